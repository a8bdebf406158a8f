"""The rooms: imports lead downwards only, so nothing on the attacker's side can reach what holds data.

Nor can data be handed to it: what makes an attacked target takes weights alone.
"""

from __future__ import annotations

import ast
import hashlib
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import unfit
from unfit.attacker.attacks.weights import Weights
from unfit.attacker.surfaces import surfaces
from unfit.auditor.audit import find_candidates
from unfit.auditor.case import case_of

PACKAGE = Path(unfit.__file__).parent
ROOMS = ("base", "attacker", "auditor", "lab")  # each may import its own room and those before it
ABOVE = {"__init__.py", "__main__.py", "cli", "mlflow.py", "sklearn.py", "testing.py"}  # what others call
ATTACKED = {
    "Target",
    "AttackedLayer",
    "Surface",
    "Surfaces",
    "Candidates",
}  # what is attacked, and what an attack finds
DATA = {"Tensor", "ndarray", "NDArray", "Array", "Arrays", "Dataset", "DataLoader", "Samples", "Source", "Case"}
NAMES_OF_DATA = {"x", "y", "data", "samples", "private", "unseen"}
CHOICES = {"__getitem__"}  # of candidates that were found, by a mask
FILES = sorted(path for room in ROOMS for path in (PACKAGE / room).rglob("*.py"))


def room_of(module: str) -> str:
    """`attacker` of `unfit.attacker.span`; of the package itself and its command line nothing that is a room."""
    return [*module.split("."), ""][1]


def imports(source: str) -> set[str]:
    """The modules of this project that a source imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide where they lead"
            found.add(str(node.module))
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
            raise AssertionError(f"an import that cannot be followed: {ast.unparse(node)}")
    return {name for name in found if name.split(".")[0] == "unfit"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_lead_downwards_only(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    allowed = ROOMS[: ROOMS.index(room) + 1]
    upwards = {name for name in imports(path.read_text(encoding="utf-8")) if room_of(name) not in allowed}
    assert not upwards


def test_no_import_leads_back_to_where_it_came_from() -> None:
    """Otherwise it depends on what was imported before whether a module can be imported at all."""
    paths = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in FILES}
    graph = {name.removesuffix(".__init__"): imports(path.read_text("utf-8")) for name, path in paths.items()}
    for name, needed in graph.items():  # a module brings the packages that it is in, except into themselves
        brought = needed | {module.rpartition(".")[0] for module in needed}
        graph[name] = {module for module in brought if not name.startswith(module)}
    assert set(TopologicalSorter(graph).static_order()) >= graph.keys()


def test_the_rule_sees_every_way_of_importing() -> None:
    assert imports("def f():\n    from unfit.auditor.samples import draw") == {"unfit.auditor.samples"}
    assert imports("import unfit.lab.fit as f, os") == {"unfit.lab.fit"}
    assert room_of("unfit.auditor.samples") == "auditor"
    assert room_of("unfit") not in ROOMS
    with pytest.raises(AssertionError, match="cannot be followed"):
        imports("import importlib\nimportlib.import_module('unfit.lab')")


def test_every_module_is_in_a_room() -> None:
    inside = {path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")}
    assert inside == {*ROOMS, *ABOVE}


def test_benchmarks_import_only_what_is_there() -> None:
    """Nothing else runs them all."""
    gone = []
    for path in sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or str(node.module).split(".")[0] != "unfit":
                continue
            place = PACKAGE.parent / str(node.module).replace(".", "/")
            source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            words = set(re.findall(r"\w+", source.read_text(encoding="utf-8"))) if source.exists() else set()
            modules = {each.stem for each in place.glob("*.py")} if place.is_dir() else set()
            gone += [
                f"{path.name}: {a.name} of {node.module}" for a in node.names if a.name not in words | modules
            ]
    assert not gone


def test_contributing_names_every_module_and_none_that_is_gone() -> None:
    """The table of rooms: a name in it is a module or a folder of its room, and no module is left out."""
    guide = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    room, wrong = "", []
    named: dict[str, set[str]] = {each: set() for each in ROOMS}
    for first, words in re.findall(r"^\| (?:`(\w+)/` )?\| (.*) \|$", guide, re.MULTILINE):
        room = first or room
        for name in set(re.findall(r"`([a-z_]+(?:/[a-z_]*)?)`", words)) - {"unfit"}:
            paths = [PACKAGE / room / f"{name}{end}" for end in ("", ".py")]
            places = [*paths, *(PACKAGE / room).glob(f"*/{name}.py")]
            wrong += [] if any(path.exists() for path in places) else [f"{room}: {name}"]
            named[room].add(name.rstrip("/"))
    assert not wrong
    missing = {
        room: {path.stem for path in (PACKAGE / room).glob("*.py")} - names for room, names in named.items()
    }
    assert {room: left - {"__init__"} for room, left in missing.items()} == {room: set() for room in ROOMS}


def test_contributing_names_functions_of_the_path_of_an_audit_that_exist() -> None:
    """Each `module.function` in the diagram is a function of that module."""
    guide = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    diagram = guide.partition("function by function")[2].split("```")[1]
    named = set(re.findall(r"\b([a-z_]+)\.([a-z_]+)\b(?!\.)", diagram)) - {("audit", "json"), ("unfit", "audit")}
    assert len(named) > 15
    for module, function in named:
        sources = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob(f"{module}.py")]
        assert any(f"\ndef {function}(" in source for source in sources), f"{module}.{function}"


# Nothing that makes what is attacked takes data --------------------------------------------------------------


def names_in(annotation: ast.expr) -> set[str]:
    """All names in an annotation, also in one that is written as text."""
    plain = ast.parse(ast.unparse(annotation).replace("'", "").replace('"', ""))
    found = [node for node in ast.walk(plain) if isinstance(node, ast.Attribute | ast.Name)]
    return {node.attr if isinstance(node, ast.Attribute) else node.id for node in found}


def takes_data(source: str) -> set[str]:
    """Parameters that can hold samples, of functions that return what is attacked; weights go by names."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name in CHOICES:
            continue
        if node.returns is None or not names_in(node.returns) & ATTACKED:
            continue
        given = node.args
        variadic = [each for each in (given.vararg, given.kwarg) if each is not None]
        for each in [*given.posonlyargs, *given.args, *given.kwonlyargs, *variadic]:
            if each.arg in ("self", "cls"):
                continue
            unknown = each.annotation is None or (
                ast.unparse(each.annotation) == "Any" and each is not given.kwarg
            )
            if unknown or each.arg in NAMES_OF_DATA or (each.annotation and names_in(each.annotation) & DATA):
                found.add(f"{node.name}({each.arg})")
    return found


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path.relative_to(PACKAGE).parts[0] in ("base", "attacker")],
    ids=lambda path: path.relative_to(PACKAGE).as_posix(),
)
def test_what_is_attacked_is_made_without_data(path: Path) -> None:
    assert not takes_data(path.read_text(encoding="utf-8"))


def test_the_rule_sees_every_way_of_taking_data() -> None:
    for parameter in (
        "x: Tensor",
        "p: Tensor",
        "p: list[torch.Tensor] | None",
        "p: 'Samples'",
        "p: NDArray[f]",
        "p",
        "*p: Tensor",
        "*, p: Case",
        "unseen: object",
        "p: Any",
        "p: Callable[[], Tensor]",
    ):
        assert takes_data(f"def f({parameter}) -> Target | None: ..."), parameter
    assert takes_data("class A:\n    def f(self, p: Tensor) -> 'list[AttackedLayer]': ...")
    assert not takes_data("def f(target: Target, weights: Weights, seed: int = 0, **facts: Any) -> Target: ...")
    assert not takes_data("def f(x: Tensor) -> Tensor: ...")


def disguised() -> nn.Sequential:
    """With neurons that never fire, and others that only large samples fire."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 60), nn.ReLU(), nn.Linear(60, 10), nn.ReLU(), nn.Linear(10, 1))
    net[1].weight.data[20:] = 5 * nn.functional.normalize(torch.randn(40, 36), dim=1)
    net[1].bias.data[20:40], net[1].bias.data[40:] = -1e4, -50
    return net.requires_grad_(False)


def samples(seed: int, size: float) -> tuple[Tensor, Tensor]:
    return size * torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(seed)), torch.arange(8) % 2


def attacked_with(private: tuple[Tensor, Tensor], unseen: tuple[Tensor, Tensor]) -> list[tuple[str, ...]]:
    """What an audit attacks, surface by surface, and what it finds there."""
    case, seen = case_of(disguised(), private, unseen), []
    for surface in surfaces(case.target, case.base).found:
        at, pool = case.at(surface), find_candidates(case.at(surface), Weights(), None)
        weight = hashlib.sha256(at.layer.weight.numpy().tobytes()).hexdigest()
        seen.append((surface.name, str(at.attacked.architecture), at.attacked.sha256, weight, pool.sha256))
    return seen


def test_what_an_audit_attacks_and_finds_does_not_depend_on_its_samples() -> None:
    found = attacked_with(samples(0, 0.1), samples(1, 0.1))
    assert [form for form, *_ in found] == ["weights", "normal form"]
    assert found == attacked_with(samples(2, 100.0), samples(3, 100.0))
    assert found == attacked_with(samples(0, 0.1), samples(4, 100.0))
