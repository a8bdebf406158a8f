"""Where tensors are computed: what a user can choose, and that no tensor is on the wrong device.

There need be no GPU: `elsewhere.py` makes a device that refuses what a GPU refuses. A tensor that an attack
creates without a device is on the CPU, and fails where it meets one that is not. A result that stays on the
device is found here. What this cannot show is a GPU's own rounding, speed and memory.

Run this way are `cone`, `fast`, `paper`, `inversion`, `weights`, `unmix` of a convolution and of a prefix,
training, the audit and the preflight. Not run this way are `peel`, `unmix` where it proves samples first, and
`auto`, which runs both: the simulated device does not give the CPU's bits there.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from elsewhere import Away, computing_elsewhere
from torch import Tensor, nn

from unfit import (
    Auto,
    Candidates,
    Cone,
    Diary,
    FastKKT,
    Inversion,
    PaperKKT,
    Peel,
    UnfitError,
    Unmix,
    Weights,
    as_target,
    attack,
    audit,
    fit,
    parse_architecture,
    preflight,
    sweep,
)
from unfit.attacker.attacks import ATTACKS
from unfit.attacker.candidates import TENSORS
from unfit.attacker.method import Method
from unfit.base.device import device, on_device
from unfit.lab.settings import FitSettings

NUM, SIDE = 6, 8


def samples(seed: int, sparse: bool) -> Tensor:
    """Pictures of rectangles; `sparse`: records of which most values are zero."""
    random = torch.Generator().manual_seed(seed)
    if sparse:
        return torch.nn.functional.one_hot(torch.randint(8, (NUM, 8), generator=random), 8).float().flatten(1)
    x = torch.zeros(NUM, 1, SIDE, SIDE)
    for image in x[:, 0]:
        for _ in range(3):
            top, left = torch.randint(SIDE - 2, (2,), generator=random).tolist()
            image[top : top + 4, left : left + 4] += torch.rand((), generator=random)
    return x - x.mean(0)


def of(kind: str) -> nn.Module:
    dense = nn.Linear(SIDE**2, 60), nn.ReLU(), nn.Linear(60, 1)
    if kind == "convolution":
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 60), nn.ReLU(), dense[2])
    if kind == "prefix":  # and what follows the attacked layer is not dense layers and ReLUs alone
        front = nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Flatten()
        return nn.Sequential(*front, nn.Linear(32, 60), nn.ReLU(), nn.LayerNorm(60), dense[2])
    if kind == "few inputs":
        return nn.Sequential(nn.Linear(2, 60), nn.ReLU(), dense[2])
    return nn.Sequential(*([] if kind == "records" else [nn.Flatten()]), *dense)


@cache
def trained(kind: str) -> tuple[nn.Module, nn.Module, Tensor]:
    """A model after plain gradient steps, what it was before, and its samples."""
    x, y = samples(0, kind == "records"), torch.arange(NUM) % 2
    x = x.flatten(1)[:, 20:22] if kind == "few inputs" else x
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = of(kind)
    base = copy.deepcopy(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(50):
        optimiser.zero_grad()
        nn.functional.softplus(-model(x)[:, 0] * (2 * y - 1)).mean().backward()
        optimiser.step()
    return model, base, x


SHORT: dict[type[Method], dict[str, Any]] = {
    Unmix: {"iterations": 10},
    FastKKT: {"runs": 1, "iterations": 10},
    PaperKKT: {"num_candidates": 8, "iterations": 5},
    Inversion: {"num_candidates": 8, "iterations": 10},
}
APPLYING = {  # which attack gives candidates of which model; with a base if it takes one
    Cone: ("records",),
    Unmix: ("convolution", "prefix"),
    FastKKT: ("pictures", "convolution", "few inputs"),
    PaperKKT: ("pictures", "convolution"),
    Inversion: ("pictures", "convolution", "prefix"),
    Weights: ("pictures",),
}
PAIRS = [(kind, model) for kind, models in APPLYING.items() for model in models]


def attacked(kind: type[Method], name: str) -> Candidates:
    model, base, x = trained(name)
    with_base = kind.takes_base and name != "few inputs"
    target, initial = (as_target(each, tuple(x.shape[1:])) for each in (model, base))
    return attack(target, kind(**SHORT.get(kind, {})), initial if with_base else None)


def assert_same(found: Tensor, expected: Tensor) -> None:
    assert not isinstance(found, Away)
    assert torch.equal(found, expected)


def test_every_attack_is_tried_but_those_that_the_simulated_device_cannot_run() -> None:
    assert {*APPLYING, Auto, Peel, Diary} == set(ATTACKS)


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_an_attack_computes_on_the_chosen_device_and_its_candidates_come_back(kind, name):
    with computing_elsewhere():
        found = attacked(kind, name)
    expected = attacked(kind, name)
    assert len(found)
    for tensor in TENSORS:
        assert_same(getattr(found, tensor), getattr(expected, tensor))


def test_training_computes_on_the_chosen_device_and_its_weights_come_back() -> None:
    x, y = samples(0, sparse=False), torch.arange(NUM) % 2
    net, settings = parse_architecture("20", (1, SIDE, SIDE), 1), FitSettings(flow_time=1.0, max_steps=5)
    with computing_elsewhere():
        found = fit(net, (x, y), (x, y), settings)
    expected = fit(net, (x, y), (x, y), settings)
    for name, value in expected.weights.items():
        assert_same(found.weights[name], value)
        assert_same(found.initial[name], expected.initial[name])


@pytest.mark.parametrize("name", ["pictures", "prefix"])
def test_an_audit_computes_on_the_chosen_device_and_says_the_same(name: str) -> None:
    """The signal check and matching, too."""
    model, base, x = trained(name)
    sets = (x, torch.arange(NUM) % 2), (samples(1, sparse=False), torch.arange(NUM) % 2)
    with computing_elsewhere():
        found = audit(model, *sets, attack=Weights(), base=base)
    expected = audit(model, *sets, attack=Weights(), base=base)
    assert (found.verdict, found.record.reasons) == (expected.verdict, expected.record.reasons)
    for tensor, value in expected.arrays.items():
        assert_same(found.arrays[tensor], value)


def test_preflight_reads_the_weights_on_the_chosen_device() -> None:
    model, base, _ = trained("pictures")
    with computing_elsewhere():
        found = preflight(model, base)
    assert (found.spectrum, found.notes) == ((expected := preflight(model, base)).spectrum, expected.notes)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("cuda", "PyTorch finds 0 CUDA devices"),
        ("cuda:1", "PyTorch finds 0 CUDA devices"),
        ("cuda:first", "choose one of cpu, cuda"),
        ("cpu:0", "choose one of cpu, cuda"),
        ("gpu", "choose one of cpu, cuda"),
        ("mps", "no double precision"),
    ],
)
def test_a_device_that_is_not_there_is_refused_by_all_that_take_one(name, why, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model, _, x = trained("pictures")
    net = parse_architecture("5", (1, SIDE, SIDE), 1)
    y = torch.arange(NUM) % 2
    for call in (
        lambda: attack(model, Weights(), device=name),
        lambda: audit(model, (x, y), (x, y), device=name),
        lambda: preflight(model, device=name),
        lambda: sweep(model, 1, tmp_path / "sweep", Inversion(), device=name),
        lambda: fit(net, (x, y), (x, y), device=name),
    ):
        with pytest.raises(UnfitError, match=why):
            call()
    assert not (tmp_path / "sweep").exists()


def test_what_is_named_inside_goes_before_what_is_named_outside() -> None:
    with computing_elsewhere():
        with on_device("cpu"):
            assert device() == torch.device("cpu")
        with on_device(None):
            assert device() == torch.device("meta")
    assert device().type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_the_device_of_a_sweep_reaches_its_worker_processes(tmp_path, monkeypatch):
    """They are told which, and would refuse one that they do not have; this process is made to believe in it."""
    target = as_target(trained("pictures")[0])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    trials = Inversion(num_candidates=2, iterations=1)
    with pytest.raises(UnfitError, match="finds 0 CUDA devices"):
        sweep(target, 2, tmp_path / "sweep", trials, workers=2, device="cuda:0")
