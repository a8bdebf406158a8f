"""A script's usual draws between the seed and the model: its initial weights are found all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from unfit import Auto, audit, find_initial_weights
from unfit.attacker.initial.usual import MOST, usual_skips


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 2))


def loaded() -> None:
    data = TensorDataset(torch.zeros(20, 2))
    for _ in DataLoader(data, batch_size=5, shuffle=True):
        pass


DRAWS: dict[str, Callable[[], object]] = {
    "randperm of a known table": lambda: torch.randperm(569),
    "random_split of a given number": lambda: random_split(range(137), [100, 37]),
    "a loader": loaded,
    "two other models": lambda: [build(), build()],
    "a shuffle, then another model": lambda: [torch.randperm(137), build()],
}


@pytest.mark.parametrize("name", DRAWS)
def test_initial_weights_are_found_after_usual_draws(name: str) -> None:
    torch.manual_seed(42)
    DRAWS[name]()
    net = build()
    initial = {key: value.clone() for key, value in net.state_dict().items()}
    x, y = torch.randn(12, 30), torch.arange(12) % 2
    optimiser = torch.optim.SGD(net.parameters(), 0.05)
    for _ in range(20):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    found = find_initial_weights(net, seeds=100, num_samples=137)
    assert found is not None
    assert found.seed == 42
    torch.testing.assert_close(found.target.weights["layer1.weight"], initial["0.weight"])


def test_an_audit_tells_the_attacker_the_numbers_of_samples_and_nothing_else() -> None:
    torch.manual_seed(7)
    order = torch.randperm(61)  # of the private and unseen samples together
    net = build()
    x, y = torch.randn(61, 30), torch.arange(61) % 2
    own, unseen = order[:21], order[21:]
    optimiser = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x[own]), y[own]).backward()
        optimiser.step()
    sets = (x[own], y[own]), (x[unseen], y[unseen])
    record = audit(net, *sets, attack=Auto(seeds=10), budget="60s").record
    assert record.attack["settings"]["num_samples"] == [21, 61]
    assert record.attack["settings"]["budget"] == 60
    assert record.initial is not None
    assert (record.initial.seed, record.initial.skip) == (7, 60)
    assert record.attacker == "computes the initial weights"
    blind = audit(net, *sets, attack=Auto(seeds=0)).record
    assert (blind.attacker, blind.initial) == ("blind", None)


def test_places_are_few_and_in_order() -> None:
    skips = usual_skips(1_000, [100])
    assert skips == sorted(set(skips))
    assert {99, 101, 1_099, 2_099, 568, 2, 4, 1_000} <= set(skips)
    assert 0 not in skips
    assert len(skips) < 200
    assert all(skip <= MOST for skip in usual_skips(10**9))
