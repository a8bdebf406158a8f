"""The rooms: imports lead downwards only, so nothing on the attacker's side can reach what holds data."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import unfit

PACKAGE = Path(unfit.__file__).parent
ROOMS = ("base", "attacker", "auditor", "lab")  # each may import its own room and those before it
ABOVE = {"__init__.py", "__main__.py", "cli.py", "mlflow.py", "sklearn.py", "testing.py"}  # what others call
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
