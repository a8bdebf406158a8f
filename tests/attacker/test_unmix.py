"""Planted spectra are read, planted samples come back, controls give nothing, and no data are imported."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from unfit.attacker.attacked_layer import CANDIDATE_STD, read_layer
from unfit.attacker.attacks import attack
from unfit.attacker.attacks.unmix import Unmix
from unfit.attacker.candidates import TENSORS, Candidates, Part, load_candidates, pool, save_candidates
from unfit.attacker.ica import separate
from unfit.attacker.span import noise_level, read_span, visible_num_samples
from unfit.auditor.samples import draw, draw_unseen
from unfit.auditor.sources import read_source
from unfit.base.errors import UnfitError
from unfit.base.nets import Architecture, initialise, parse_architecture
from unfit.base.target import Target
from unfit.lab.fit import fit
from unfit.lab.settings import FitSettings

RUNS = [("root", True), ("log", True), ("root", False)]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def faces(n: int, seed: int = 0) -> Tensor:
    """Real faces, less the mean of the whole source: they do not sum to zero."""
    source = read_source("faces")
    everything = source.train.take(range(len(source.train)))
    chosen = draw(source, 2 * n, seed)
    return (chosen.x - everything.mean)[chosen.y == 1]


def mixed(x: Tensor, w: int = 200, noise: float = 0.0, bias: bool = True, seed: int = 0) -> Target:
    """A target whose first layer is Σ α_i [x_i; 1]ᵀ with random α (w, n), and noise."""
    n, d, shape = len(x), x[0].numel(), tuple(x.shape[1:])
    alpha = random(w, n, seed=seed) / math.sqrt(n)
    weight = alpha @ x.flatten(1).double() + noise * random(w, d, seed=seed + 1)
    weights = {"layer1.weight": weight.float(), "layer2.weight": random(1, w, seed=seed + 2).float()}
    if bias:
        weights["layer1.bias"] = alpha.sum(1).float()
    return Target(Architecture(shape, (w,), 1, (bias, False)), weights)


def correlations(candidates: Tensor, x: Tensor) -> Tensor:
    """(candidates, samples), each less its own mean."""
    rows = [part.flatten(1).double() - part.flatten(1).double().mean(1, keepdim=True) for part in (candidates, x)]
    normed = [row / row.norm(dim=1, keepdim=True) for row in rows]
    return normed[0] @ normed[1].T


# Noise and rank --------------------------------------------------------------------------------------------


def law(w: int, d: int) -> Tensor:
    """Singular values of white noise of variance 1, by the Marchenko–Pastur law itself: its quantiles."""
    small, large = min(w, d), max(w, d)
    edges = [math.sqrt(large) - math.sqrt(small), math.sqrt(large) + math.sqrt(small)]
    s = np.linspace(*edges, 400_001)[1:-1]
    density = np.sqrt((edges[1] ** 2 - s**2) * (s**2 - edges[0] ** 2)) / s
    mass = np.cumsum(density)
    return torch.from_numpy(np.interp((np.arange(small) + 0.5) / small, mass / mass[-1], s)).flip(0)


@pytest.mark.parametrize(
    ("w", "d"), [(1000, 3072), (1000, 784), (625, 200), (900, 1000), (1000, 1000), (100, 10_000)]
)
def test_noise_of_exactly_the_law_has_level_one(w, d):
    assert noise_level(law(w, d), w, d) == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize(("w", "d"), [(200, 625), (625, 200), (300, 784), (100, 3072), (500, 500)])
@pytest.mark.parametrize("sigma", [1e-4, 3.0])
@pytest.mark.parametrize("rank", [0, 6])
def test_the_noise_level_of_a_gaussian_matrix_is_found_with_or_without_data(w, d, sigma, rank):
    data = sigma * random(w, rank, seed=1) @ random(rank, d, seed=2)
    found = read_span(sigma * random(w, d) + data)
    assert found.noise == pytest.approx(sigma, rel=0.03)
    assert found.edge == pytest.approx(sigma * (math.sqrt(w) + math.sqrt(d)), rel=0.08)
    assert rank <= found.rank <= rank + 1  # the largest of the noise may touch the edge
    assert not found.ends


@pytest.mark.parametrize("strength", [1.5, 2.0, 5.0])
def test_directions_stand_out_from_twice_the_noise_on(strength):
    """A direction of singular value s is visible in noise from s = (w d)^¼ σ on."""
    w, d, rank = 200, 625, 8
    left, right = (torch.linalg.qr(random(side, rank, seed=side))[0] for side in (w, d))
    found = read_span(random(w, d) + strength * (math.sqrt(w) + math.sqrt(d)) * left @ right.T)
    assert found.rank in (rank, rank + 1)
    seen = torch.linalg.svdvals(found.right[:rank] @ right)
    assert seen.min() > 0.7


def test_the_span_is_that_of_the_data():
    x = random(9, 300)
    found = read_span(random(80, 9, seed=1) @ x)
    basis = found.right[: found.rank]
    torch.testing.assert_close(x @ basis.T @ basis, x)
    torch.testing.assert_close(basis @ basis.T, torch.eye(9, dtype=torch.float64))


# Cliffs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 4, 12, 40])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("w", [100, 300])
def test_the_number_of_centred_samples_is_read_off_exactly(n, bias, w):
    members = draw(read_source("faces"), n, 0)
    target = mixed(members.centred(members.mean).x, w, bias=bias)
    weight, column = target.weights["layer1.weight"], target.weights.get("layer1.bias")
    found = read_span(weight)
    assert (found.ends, found.rank) == (True, n - 1)
    assert visible_num_samples(found, weight, column) == n
    assert attack(target, Unmix(ranks=())).facts["estimated_num_samples"] == n


@pytest.mark.parametrize("noise", [0.05, 0.1])
def test_noise_hides_the_number_of_samples(noise):
    target = mixed(faces(12), noise=noise)
    found = read_span(target.weights["layer1.weight"])
    assert not found.ends
    assert visible_num_samples(found, target.weights["layer1.weight"], None) is None


def test_more_samples_than_neurons_are_not_counted():
    weight = mixed(faces(30), w=20).weights["layer1.weight"]
    assert visible_num_samples(read_span(weight), weight, None) is None


def test_more_samples_than_inputs_are_not_counted_though_some_inputs_are_always_zero():
    x = random(200, 60)
    x[:, 30:] = 0
    weight, bias = (random(100, 200, seed=1) @ x, random(100, 200, seed=1).sum(1))
    assert read_span(weight).ends
    assert visible_num_samples(read_span(weight), weight, bias) is None
    fewer = random(100, 20, seed=1) @ x[:20]
    assert visible_num_samples(read_span(fewer), fewer, random(100, 20, seed=1).sum(1)) == 20


def test_a_weight_that_changed_without_its_bias_is_not_read_as_samples():
    """Samples move the bias too; an adapter that is merged into the weight does not."""
    weight = random(100, 8) @ random(8, 60, seed=1)
    assert read_span(weight).rank == 8
    assert visible_num_samples(read_span(weight), weight, torch.zeros(100)) is None
    assert visible_num_samples(read_span(weight), weight, weight[:, 0]) == 8


def test_an_adapter_merged_into_all_layers_is_not_read_as_samples():
    architecture = parse_architecture("80-60", (50,), 1)
    initial = dict(initialise(architecture, None, 0).state_dict())
    merged = {name: value.clone() for name, value in initial.items()}
    for i, (w, d) in enumerate(((80, 50), (60, 80)), 1):
        merged[f"layer{i}.weight"] += 0.1 * (random(w, 8, seed=i) @ random(8, d, seed=9)).float()
    merged["layer1.bias"] += 0.1 * random(80, 1, seed=3)[:, 0].float()
    base = Target(architecture, initial)
    assert read_layer(Target(architecture, merged), base).num_samples is None
    merged["layer2.weight"] += 0.1 * random(60, 80, seed=4).float()
    assert read_layer(Target(architecture, merged), base).num_samples == 9


@pytest.mark.parametrize("gap", [10.0, 100.0, 1e3, 1e4])
@pytest.mark.parametrize("num_strong", [1, 3])
def test_the_number_of_samples_is_right_or_not_told(gap, num_strong):
    """Nets of one hidden layer and small initial weights learn few directions first, and others weakly."""
    members = draw(read_source("faces"), 12, 0)
    x = members.centred(members.mean).x.flatten(1).double()
    left, right = (torch.linalg.qr(random(side, 12, seed=side))[0] for side in (200, 12))
    sizes = torch.tensor([1.0] * num_strong + [1 / gap] * (12 - num_strong), dtype=torch.float64)
    alpha = left * sizes @ right.T
    weight, bias = (alpha @ x).float(), alpha.sum(1).float()
    assert visible_num_samples(read_span(weight), weight, bias) in (12, None)


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (50, 1), (2, 2)])
def test_tiny_and_empty_layers_have_a_span_too(shape):
    for layer in (torch.zeros(shape), random(*shape).float()):
        found = read_span(layer)
        assert 0 <= found.rank <= min(shape)
        assert all(math.isfinite(value) for value in (found.noise, found.edge))


# Controls --------------------------------------------------------------------------------------------------


def untrained(init: float | None, seed: int, text: str = "200-50") -> Target:
    architecture = parse_architecture(text, (1, 25, 25), 1)
    return Target(architecture, dict(initialise(architecture, init, seed).state_dict()))


@pytest.mark.parametrize("init", [1e-4, None])
@pytest.mark.parametrize("seed", range(6))
def test_an_untrained_net_gives_nothing(init, seed):
    found = attack(untrained(init, seed), "unmix")
    assert found.facts["rank"] <= 1
    assert found.facts["estimated_num_samples"] is None
    assert (len(found), tuple(found.x.shape)) == (0, (0, 1, 25, 25))
    assert found.origins == ("nothing above the noise edge",)


def test_white_noise_of_any_shape_has_no_directions():
    """The control in numbers: two or more directions in at most one of twenty nets, square layers included."""
    for w, d in ((100, 100), (200, 200), (100, 110), (60, 300)):
        spans = [read_span(random(w, d, seed=seed)) for seed in range(40)]
        assert sum(span.rank > 1 for span in spans) <= 2, (w, d)
        assert not any(span.ends for span in spans), (
            w,
            d,
        )  # though the last value of a square may be close to zero


def test_a_net_that_has_not_moved_from_its_base_gives_nothing():
    initial = untrained(None, 0)
    assert len(attack(initial, "unmix", initial)) == 0
    with pytest.raises(UnfitError, match="`base` does not fit"):
        attack(initial, "unmix", untrained(None, 1))


# Planted samples -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_planted_faces_come_back(run, noise):
    x = faces(12)
    found = attack(mixed(x, noise=noise), Unmix(runs=(run,)))
    best = correlations(found.x, x).abs().amax(0)
    assert (best > 0.9).sum() >= 10
    assert correlations(found.x, faces(40, seed=1)[-20:]).abs().amax(0).median() < 0.8  # those that were not in it


@pytest.mark.parametrize("run", RUNS)
def test_planted_sparse_vectors_come_back(run):
    laplace = np.random.default_rng(0).laplace(size=(12, 600))
    x = torch.from_numpy(laplace)
    found = attack(mixed(x, noise=1e-2), Unmix(runs=(run,)))
    assert found.x.shape[1:] == (600,)
    assert (correlations(found.x, x).abs().amax(0) > 0.9).sum() >= 11


def test_a_base_is_taken_off():
    """The noise of standard initial weights hides everything, its change nothing."""
    x, initial = faces(12), untrained(None, 0, "200")
    change = mixed(x).weights
    weights = {name: value + 0.01 * change[name] for name, value in initial.weights.items()}
    trained = Target(initial.architecture, weights)
    with_base = attack(trained, "unmix", initial)
    assert (correlations(with_base.x, x).abs().amax(0) > 0.9).sum() >= 10
    assert with_base.attack["base"] is True
    without = attack(trained, "unmix")
    assert without.attack["base"] is False
    assert len(without) == 0 or (correlations(without.x, x).abs().amax(0) > 0.9).sum() <= 3


def test_both_signs_are_there_at_the_scale_of_images():
    found = attack(mixed(faces(12)), Unmix(ranks=(1.0,), runs=(("root", True),)))
    half = len(found) // 2
    assert half == found.facts["rank"]
    assert torch.equal(found.x[:half], -found.x[half:])
    torch.testing.assert_close(found.x.flatten(1).std(1), torch.full((2 * half,), CANDIDATE_STD))


def test_candidates_depend_on_the_seed_alone():
    target = mixed(faces(12), noise=1e-3)
    torch.manual_seed(5)
    first, state = attack(target, Unmix(seed=7)), torch.get_rng_state()
    torch.manual_seed(6)
    again, other = (attack(target, Unmix(seed=seed)) for seed in (7, 8))
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)
    torch.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), state)  # no global random numbers were used
    assert torch.equal(attack(target, Unmix(seed=7)).x, first.x)


def test_every_run_is_named_and_counted():
    settings = Unmix(ranks=(0.5, 1.0), runs=(("root", True), ("log", True), ("root", False)), seed=3)
    told: list[tuple[float, str]] = []
    found = attack(mixed(faces(12)), settings, None, lambda fraction, words: told.append((fraction, words)))
    expected = [
        f"unmix: rank {rank}, {contrast} contrast, {'orthogonal' if orthogonal else 'free'}"
        for rank in (6, 12)
        for contrast, orthogonal in settings.runs
    ]
    assert found.origins == tuple(expected)
    assert torch.bincount(found.origin).tolist() == [12, 12, 12, 24, 24, 24]  # both signs of each component
    assert (found.attack["method"], found.attack["seed"]) == ("unmix", 3)
    assert found.attack["settings"]["iterations"] == settings.iterations
    assert [fraction for fraction, _ in told] == sorted(fraction for fraction, _ in told)
    assert all(0 <= fraction <= 1 for fraction, _ in told)
    assert told[-1][0] == 1.0
    json.dumps([found.attack, found.facts], allow_nan=False)


@pytest.mark.parametrize("flat", ["a constant image", "equal images"])
def test_degenerate_samples_give_finite_candidates(flat):
    x = faces(6)
    x = torch.cat([x, torch.full_like(x[:1], 0.5) if flat == "a constant image" else x[:1]])
    found = attack(mixed(x, noise=1e-4), "unmix")
    assert found.x.isfinite().all()
    assert (correlations(found.x, x[:6]).abs().amax(0) > 0.9).sum() >= 4


@pytest.mark.parametrize("run", RUNS)
def test_independent_sparse_sources_are_separated_exactly(run):
    contrast, orthogonal = run
    sources = torch.from_numpy(np.random.default_rng(1).laplace(size=(6, 5000)))
    mixing = random(6, 6, seed=3)
    found = separate((mixing @ sources)[:, :, None], contrast, orthogonal, 300, 0)
    gains = (found @ mixing).abs()
    gains /= gains.amax(1, keepdim=True)
    assert sorted(gains.argmax(1).tolist()) == list(range(6))  # each source once
    assert gains.sort(1).values[:, :-1].max() < 0.1


@cache
def trained_on_faces(text: str, n: int) -> tuple[Target, Target, Tensor, Tensor]:
    """A net trained by the flow, its initial weights, the members and unseen samples."""
    source = read_source("faces")
    members = draw(source, n, 0)
    unseen = draw_unseen(source, members, 40, 0).centred(members.mean)
    members = members.centred(members.mean)
    architecture = parse_architecture(text, members.shape, 1)
    done = fit(architecture, (members.x, members.y), (unseen.x, unseen.y), FitSettings(flow_time=1e3))
    return Target(architecture, done.weights), Target(architecture, done.initial), members.x, unseen.x


@pytest.mark.parametrize("with_base", [True, False])
def test_faces_come_back_from_a_net_that_was_trained_on_them(with_base):
    target, initial, members, unseen = trained_on_faces("200-100", 10)
    found = attack(target, "unmix", initial if with_base else None)
    assert (correlations(found.x, members).abs().amax(0) > 0.8).sum() >= 6
    assert (correlations(found.x, unseen).abs().amax(0) > 0.8).sum() == 0
    assert found.facts["estimated_num_samples"] == (10 if with_base else None)


@pytest.mark.parametrize("with_base", [True, False])
@pytest.mark.parametrize(("text", "n"), [("200-100", 10), ("300", 20)])
def test_the_number_of_samples_of_a_trained_net_is_right_or_not_told(text, n, with_base):
    target, initial, _, _ = trained_on_faces(text, n)
    found = attack(target, Unmix(ranks=()), initial if with_base else None)
    assert found.facts["estimated_num_samples"] in (n, None)


def test_with_its_base_a_net_of_one_hidden_layer_gives_its_faces_away():
    """Its spectrum falls steeply after few directions, but the others are there."""
    target, initial, members, unseen = trained_on_faces("300", 20)
    found = attack(target, "unmix", initial)
    assert (correlations(found.x, members).abs().amax(0) > 0.8).double().mean() > 0.6
    assert (correlations(found.x, unseen).abs().amax(0) > 0.8).double().mean() < 0.15


# Candidates ------------------------------------------------------------------------------------------------


def some_candidates() -> Candidates:
    parts = [
        Part("first run", random(3, 2, 4).float()),
        Part("second run", random(0, 2, 4).float()),
        Part("ü", torch.ones(2, 2, 4), torch.tensor([1, 0]), torch.tensor([0.5, 2.0])),
    ]
    read = {
        "target": 64 * "0",
        "spectrum": [2.0, 1.0],
        "noise_edge": 0.5,
        "rank": 2,
        "estimated_num_samples": None,
    }
    facts = read | {"status": "finished", "seconds": 1.0}
    return pool(parts, {"method": "unmix", "seed": 3, "settings": {"ranks": [0.5]}, "base": False}, facts)


def test_pooled_candidates_know_the_run_they_came_from():
    found = some_candidates()
    assert len(found) == 5
    assert [found.origins[i] for i in found.origin] == ["first run"] * 3 + ["ü"] * 2
    assert torch.equal(found.x[3:], torch.ones(2, 2, 4))
    assert found.label.tolist() == [-1, -1, -1, 1, 0]
    assert found.multiplier.tolist() == [0, 0, 0, 0.5, 2]


def test_candidates_come_back(tmp_path):
    before = some_candidates()
    save_candidates(before, tmp_path / "c.safetensors")
    after = load_candidates(tmp_path / "c.safetensors")
    for name in TENSORS:
        assert torch.equal(getattr(after, name), getattr(before, name))
    assert (after.origins, after.attack, after.facts) == (before.origins, before.attack, before.facts)


def test_no_candidates_come_back_too(tmp_path):
    before = attack(untrained(1e-4, 0), "unmix")
    save_candidates(before, tmp_path / "c.safetensors")
    after = load_candidates(tmp_path / "c.safetensors")
    assert (tuple(after.x.shape), after.origins) == ((0, 1, 25, 25), before.origins)
    assert after.facts == before.facts


def test_candidates_cut_short_at_any_length_are_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    save_candidates(some_candidates(), path)
    whole = path.read_bytes()
    for size in range(0, len(whole), 5):
        path.write_bytes(whole[:size])
        with pytest.raises(UnfitError, match=r"c.safetensors: not a file of candidates \(.*make one with `unfit"):
            load_candidates(path)


Defect = Callable[[dict[str, Tensor], dict[str, Any]], object]


def write_with(defect: Defect, path: Path) -> None:
    """A file of candidates that is whole but for one defect, which changes the tensors or the description."""
    found = some_candidates()
    tensors = {name: getattr(found, name) for name in TENSORS}
    about = {"origins": list(found.origins), "attack": found.attack, "facts": found.facts}
    defect(tensors, about)
    save_file({name: value.contiguous() for name, value in tensors.items()}, path, {"unfit": json.dumps(about)})


def cut(name: str) -> Defect:
    return lambda tensors, _: tensors.update({name: tensors[name][:-1]})


def put(name: str, value: float) -> Defect:
    """In the last place of the tensor."""
    return lambda tensors, _: tensors.update({name: tensors[name].clone().index_fill_(0, torch.tensor(4), value)})


def test_a_file_without_defects_is_read(tmp_path):
    write_with(lambda tensors, about: None, tmp_path / "c.safetensors")
    assert torch.equal(load_candidates(tmp_path / "c.safetensors").x, some_candidates().x)


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize(
    ("defect", "says"),
    [(cut, "do not fit together"), (lambda name: lambda tensors, _: tensors.pop(name), "tensor {name}")],
    ids=["one is missing", "all are missing"],
)
def test_every_tensor_of_candidates_must_be_whole(tmp_path, name, defect, says):
    write_with(defect(name), tmp_path / "c.safetensors")
    with pytest.raises(UnfitError, match=rf"c\.safetensors: not a file of candidates .*{says.format(name=name)}"):
        load_candidates(tmp_path / "c.safetensors")


@pytest.mark.parametrize(
    ("defect", "says"),
    [
        pytest.param(put("origin", 3), "origins do not fit", id="an origin too many"),
        pytest.param(put("origin", -1), "origins do not fit", id="an origin below zero"),
        pytest.param(lambda _, about: about["origins"].pop(), "origins do not fit", id="an origin has no name"),
        pytest.param(put("x", torch.nan), "not finite", id="x is NaN"),
        pytest.param(put("x", -torch.inf), "not finite", id="x is infinite"),
        pytest.param(put("multiplier", torch.inf), "not finite", id="a multiplier is infinite"),
        pytest.param(put("confidence", torch.nan), "not finite", id="a confidence is NaN"),
        pytest.param(lambda _, about: about.pop("origins"), "`origins`", id="no origins"),
        pytest.param(lambda _, about: about.pop("attack"), "`attack`", id="no attack"),
        pytest.param(lambda _, about: about.pop("facts"), "`facts`", id="no facts"),
    ],
)
def test_candidates_with_one_defect_are_refused_for_it(tmp_path, defect, says):
    write_with(defect, tmp_path / "c.safetensors")
    with pytest.raises(UnfitError, match=rf"c\.safetensors: not a file of candidates .*{says}.*; make one with"):
        load_candidates(tmp_path / "c.safetensors")


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        pytest.param(None, "NoneType", id="no description"),
        pytest.param({"other": "{}"}, "'unfit'", id="another's description"),
        pytest.param({"unfit": "{"}, "Invalid JSON", id="not JSON"),
        pytest.param({"unfit": "[]"}, "should be an object", id="not an object"),
    ],
)
def test_candidates_without_their_description_are_refused(tmp_path, metadata, says):
    found = some_candidates()
    tensors = {name: getattr(found, name).contiguous() for name in TENSORS}
    save_file(tensors, tmp_path / "c.safetensors", metadata)
    with pytest.raises(UnfitError, match=rf"c\.safetensors: not a file of candidates .*{says}"):
        load_candidates(tmp_path / "c.safetensors")


def test_missing_candidates_are_told(tmp_path):
    with pytest.raises(UnfitError, match=r"none.safetensors: not a file of candidates .*No such file"):
        load_candidates(tmp_path / "none.safetensors")
