"""What is said before an attack: it holds when the attack is made."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from trained import without_order
from unfit import FitSettings, Preflight, Target, attack, fit_run, load_base, load_target, preflight, read_source
from unfit.attacker.attacked_layer import read_layer
from unfit.attacker.preflight import not_covered, preflight_file
from unfit.auditor.report.terminal import plain, show
from unfit.base.nets import initialise, parse_architecture
from unfit.base.times import duration

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def standard_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A standard initial weights, which hides the samples from whoever does not know it."""
    folder = tmp_path_factory.mktemp("standard")
    fit_run(read_source("faces"), 40, folder, FitSettings(init=None), arch="300-100")
    return folder


def untrained(arch: str = "300-100", shape: tuple[int, ...] = (1, 25, 25), scale: float | None = None) -> Target:
    architecture = parse_architecture(arch, shape, 1)
    net = initialise(architecture, scale, seed=3)
    return Target(architecture, {name: value.detach() for name, value in net.state_dict().items()})


def applying(found: Preflight) -> dict[str, bool]:
    return {applicability.attack: applicability.applies for applicability in found.attacks}


def why(found: Preflight, name: str) -> str:
    return next(applicability.why for applicability in found.attacks if applicability.attack == name)


def test_a_face_detector_can_be_unmixed(face_run: Path) -> None:
    target = load_target(face_run)
    found = preflight(target)
    assert found.applies
    assert found.exit_code == 0
    assert applying(found) | {"peel": False, "unmix": True, "kkt": True} == applying(found)
    assert "a base" in why(found, "peel")
    assert found.rank == read_layer(target).span.rank > 10
    assert found.estimated_num_samples is None
    assert any(note.startswith("neurons are balanced") for note in found.notes)
    assert (
        "p = 1,627,000 equations for n·d unknowns (H22, Sec. 3.2), more than unknowns up to n = 2,603"
        in " ".join(found.notes)
    )
    assert any(note.endswith("up to about 250 samples can be exact") for note in found.notes)
    assert [layer.shape for layer in found.layers] == [(1000, 625), (1000, 1000), (1, 1000)]


def test_what_auto_is_said_to_do_it_does(face_run: Path) -> None:
    target = load_target(face_run)
    said = preflight(target).attacks[0]
    done = {name.partition(":")[0] for name in attack(target).origins} - {"consensus"}
    assert set(said.why.removeprefix("does ").split(", then ")) == done
    assert said.seconds is not None
    assert said.bytes is not None
    assert min(said.seconds, said.bytes) > 0


def test_a_start_that_a_likely_seed_draws_is_as_good_as_a_base(standard_run: Path) -> None:
    target = load_target(standard_run)
    found, known = preflight(target), preflight(target, load_base(standard_run, target))
    assert "drawn with seed 0 by PyTorch" in found.notes[0]
    assert found.notes[1:] == known.notes
    assert [each.applies for each in found.attacks] == [each.applies for each in known.attacks]


def test_a_standard_start_hides_and_a_base_uncovers(standard_run: Path) -> None:
    target = load_target(standard_run)
    blind, known = preflight(without_order(target)), preflight(target, load_base(standard_run, target))
    assert any("PyTorch's initial weights" in note for note in blind.notes)
    assert not any("PyTorch's initial weights" in note for note in known.notes)
    assert (blind.estimated_num_samples, known.estimated_num_samples) == (None, 40)
    assert applying(known)["peel"]
    assert not applying(blind)["peel"]
    assert any("plain gradient steps (GD, SGD, momentum)" in note for note in known.notes)


def test_with_a_base_the_count_of_equations_is_exact(standard_run: Path) -> None:
    target = load_target(standard_run)
    notes = " ".join(preflight(target, load_base(standard_run, target)).notes)
    assert "separate at most 300 samples" in notes
    assert f"p/(d·n) = {target.architecture.num_parameters / (625 * 40):.2g}" in notes
    assert "with a base" not in notes


def test_of_a_net_that_was_split_the_layer_is_named_and_nothing_is_said_of_balance() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(100, 30), nn.GELU(), nn.Linear(30, 20), nn.GELU(), nn.Linear(20, 1)
    )
    found = preflight(model)
    assert found.num_parameters == sum(value.numel() for value in model.parameters())
    said = "the attacked layer is the dense layer 1; unmix applies whatever follows it (GELU)"
    assert found.notes[0].startswith(said)
    assert found.notes[0].endswith("other layers that --layer can name: 3, 5")
    assert not any(word in note for word in ("balance", "same norm", "H22") for note in found.notes)
    assert any("without proofs" in note for note in found.notes)
    behind = preflight(model, layer="3")
    assert "an attack reconstructs what enters it, 30 values per sample" in behind.notes[0]


def test_another_base_is_noticed(standard_run: Path) -> None:
    found = preflight(load_target(standard_run), untrained())
    assert not applying(found)["peel"]
    assert "no visible end" in why(found, "peel")
    assert any("not plain gradient steps from this base alone" in note for note in found.notes)


def test_a_merged_adapter_is_not_taken_for_samples() -> None:
    base = untrained()
    random = torch.Generator().manual_seed(0)
    name, (w, d) = "layer1.weight", base.weights["layer1.weight"].shape
    update = torch.randn(w, 8, generator=random) @ torch.randn(8, d, generator=random)
    found = preflight(replace(base, weights=base.weights | {name: base.weights[name] + 0.01 * update}), base)
    assert (found.rank, found.estimated_num_samples) == (8, None)
    assert any(note.startswith("rank 8; an update of low rank such as a merged adapter") for note in found.notes)
    assert "as a merged adapter's is" in why(found, "peel")


@pytest.mark.parametrize("k", [2, 3, 4])
def test_a_few_classes_are_not_taken_for_an_adapter(k: int) -> None:
    """The changes of a softmax's outputs sum to zero, so the last layer's is of rank k − 1."""
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 100, generator=random), torch.arange(20) % k
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, k))
    initial = copy.deepcopy(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(50):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    found = preflight(model, initial)
    assert found.estimated_num_samples == 20
    assert applying(found)["peel"]


@pytest.mark.parametrize("scale", [None, 1e-4])
def test_an_untrained_net_shows_nothing(scale: float | None) -> None:
    """But for standard initial weights there is its seed to look for."""
    found = preflight(untrained(scale=scale))
    assert found.applies == (scale is None)
    assert found.exit_code == (0 if scale is None else 3)
    said = (
        "does the search for the initial weights"
        if scale is None
        else "nothing stands above the noise of the initial weights"
    )
    assert why(found, "auto") == said
    assert "nothing stands above the noise" in why(found, "unmix")
    assert any("no sign of training" in note for note in found.notes)
    assert applying(found)["inversion"]  # baselines always run


def test_adam_is_not_ruled_out_and_shows_where_it_can() -> None:
    """Steps that are no sums of inputs leave a spectrum without an end, and neurons out of balance."""
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 100, generator=random), (torch.arange(20) % 2).float()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 1))
    initial = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 1))
    initial.load_state_dict(model.state_dict())
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y).backward()
        optimiser.step()
    assert any("Adam" in note for note in preflight(model).notes)
    assert any("not plain gradient steps" in note for note in preflight(model, initial).notes)


def test_crowded_samples_and_vectors_are_left_to_kkt() -> None:
    random = torch.Generator().manual_seed(0)
    target = untrained("100", (1, 8, 8))
    weight = torch.randn(100, 40, generator=random) @ torch.randn(40, 64, generator=random)
    crowded = Target(target.architecture, target.weights | {"layer1.weight": weight})
    assert "too crowded: 40 directions, and edges can separate at most 12" in why(preflight(crowded), "unmix")
    vectors = Target(parse_architecture("100", (64,), 1), crowded.weights)
    assert "vectors" in why(preflight(vectors), "unmix")
    assert why(preflight(vectors), "auto") == "does kkt"


@pytest.mark.parametrize(("d", "num", "said"), [(10, 40, True), (10, 4, False), (2, 40, False), (200, 300, False)])
def test_more_samples_than_inputs_are_said_not_to_be_told_apart(d: int, num: int, said: bool) -> None:
    """Not where fewer samples show, where kinks help, nor where training sets may well be smaller."""
    random = torch.Generator().manual_seed(0)
    base = untrained("100", (d,))
    samples = torch.cat([torch.randn(num, d, generator=random), torch.ones(num, 1)], 1)
    change = torch.randn(100, num, generator=random) @ samples
    last = base.weights["layer2.weight"] + torch.randn(1, 100, generator=random)
    changed = {"layer1.weight": base.weights["layer1.weight"] + change[:, :-1], "layer2.weight": last}
    changed["layer1.bias"] = base.weights["layer1.bias"] + change[:, -1]
    found = preflight(Target(base.architecture, base.weights | changed), base)
    assert any("few inputs" in note for note in found.notes) == said


def test_a_convolution_is_looked_through() -> None:
    found = preflight(untrained("conv(3,4)-50", (1, 10, 10)))
    assert [layer.shape for layer in found.layers] == [(4, 1, 3, 3), (50, 256), (1, 50)]
    assert all(layer.balance is not None for layer in found.layers[:-1])
    base = preflight(untrained("conv(3,4)-50", (1, 10, 10)), untrained("conv(3,4)-50", (1, 10, 10)))
    assert why(base, "peel") == "the first layer is a convolution"


def resnet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.ModuleDict({"embed": nn.Embedding(9, 16), "encoder": layer, "head": nn.Linear(16, 2)})


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (resnet, ["BatchNorm (1): it mixes the samples", "convolution (0)"]),
        (
            transformer,
            ["attention (encoder.self_attn", "normalisation (encoder.norm1 and", "embedding (embed)"],
        ),
        (lambda: nn.LSTM(5, 6), ["recurrent layer"]),
        (lambda: nn.ModuleList([nn.Linear(5, 6), nn.Linear(5, 6)]), ["do not chain"]),
    ],
)
def test_what_no_attack_covers_is_named_and_inconclusive(
    run: Run, tmp_path: Path, module: Callable[[], nn.Module], says: list[str]
) -> None:
    torch.save(module().state_dict(), tmp_path / "net.pt")
    code, printed, complaint = run("preflight", tmp_path / "net.pt")
    assert (code, complaint) == (3, "")
    assert all(part in printed for part in ["nothing to attack", "--model FILE.py:NAME", *says]), printed
    found = preflight_file(tmp_path / "net.pt")
    assert not any(applying(found).values())


def test_a_tensor_of_no_layer_is_named() -> None:
    assert "other tensor (temperature)" in not_covered({"temperature": torch.zeros(())}).notes[0]


def test_the_command_prints_a_table(run: Run, face_run: Path) -> None:
    code, printed, _ = run("preflight", face_run, "--verbose")
    assert code == 0
    assert printed.startswith("attackable; estimated time ")
    assert "on one core (625-1000-1000-1, 1,627,000 parameters)" in printed
    assert all(f"\n{name}" in printed for name in ("auto", "peel", "unmix", "kkt", "inversion", "spectrum █"))
    short = run("preflight", face_run)[1]
    assert "spectrum █" not in short
    assert "\nunmix" in short


def test_the_command_speaks_json(run: Run, face_run: Path) -> None:
    code, printed, _ = run("preflight", face_run, "--base", face_run, "--json")
    content = json.loads(printed, parse_constant=lambda name: pytest.fail(name))
    assert code == 0
    assert content["estimated_num_samples"] == 40
    assert content["attacks"][1]["attack"] == "peel"
    assert len(content["spectrum"]) == 625


def test_unreadable_files_are_errors(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04 cut short")
    assert run("preflight", tmp_path / "cut.pt")[0] == 2
    assert run("preflight", tmp_path / "absent.pt")[0] == 2


def test_durations_are_coarse() -> None:
    assert [duration(s) for s in (None, 0.2, 31.4, 119, 600, 7200 * 4, 1e6)] == [
        *("", "1 s", "31 s", "119 s", "10 min", "8 h", "12 days"),
    ]


def test_all_of_a_preflight_is_shown(face_run: Path) -> None:
    found = preflight(load_target(face_run))
    shown = " ".join(plain(show(found), 10_000).split())
    assert all(" ".join(note.split()) in shown for note in found.notes)
    assert all(applicability.why in shown for applicability in found.attacks)
