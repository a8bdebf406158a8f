"""Edges of pictures, and of vectors whose inputs have neighbours."""

import pytest
import torch
from torch import Tensor

from unfit.attacker import edges
from unfit.attacker.attacks import attack
from unfit.attacker.attacks.peel import Peel
from unfit.attacker.edges import Neighbours, edge_groups, find_layout, find_neighbours
from unfit.attacker.span import read_span
from unfit.auditor.samples import draw
from unfit.auditor.sources import read_source
from unfit.base.nets import parse_architecture
from unfit.base.target import Target
from unfit.lab.fit import fit
from unfit.lab.settings import FitSettings

SIDE = 28


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def digits(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    drawn = draw(read_source("mnist5k"), n, seed)
    return (drawn.x - drawn.x.mean(0)).flatten(1), drawn.y


def mixed(x: Tensor, noise: float = 0.0) -> Tensor:
    """A layer's change: mixtures of the samples, and noise."""
    return random(200, len(x), seed=1) @ x + noise * random(200, x.shape[1], seed=2)


def test_edges_of_an_image_are_its_differences():
    image = random(2, 3 * 4 * 5)
    groups = edge_groups(image, (3, 4, 5))
    assert groups.shape == (2, 3 * 4, 6)
    image = image.view(2, 3, 4, 5)
    across, down = image.diff(dim=3)[:, :, :-1], image.diff(dim=2)[..., :-1]
    torch.testing.assert_close(groups[1, 7], torch.cat([across[1, :, 1, 3], down[1, :, 1, 3]]))
    assert torch.equal(edge_groups(image, (60,)), image[:, :, None])


def test_maps_that_are_alike_have_fewer_channels_and_edges_as_long():
    image = random(4, 3, 6, 5)
    maps = torch.einsum("nchw,kc->nkhw", image, random(16, 3, seed=1)) + 1e-3 * random(4, 16, 6, 5, seed=2)
    groups = edge_groups(maps.flatten(1), (16, 6, 5))
    across, down = maps.diff(dim=3)[:, :, :-1], maps.diff(dim=2)[..., :-1]
    size = (across.square() + down.square()).sum(1).flatten(1).sqrt()
    assert groups.shape == (4, 5 * 4, 2 * 3)
    torch.testing.assert_close(groups.norm(dim=2), size, rtol=0.01, atol=0.01)
    assert edge_groups(random(4, 16 * 6 * 5), (16, 6, 5)).shape[2] == 2 * 16  # not alike: all are kept
    assert not edge_groups(torch.zeros(2, 16 * 6 * 5), (16, 6, 5)).any()


@pytest.mark.parametrize("noise", [0.0, 1e-2])
def test_the_neighbours_of_a_flattened_picture_are_those_beside_and_below(noise):
    x = digits(60)[0]
    found = find_layout(read_span(mixed(x, noise)), (SIDE**2,))
    assert isinstance(found, Neighbours)
    distance = (found.others - found.places[:, None]).abs()
    assert ((distance == 1) | (distance == SIDE)).float().mean() > 0.6
    assert set(found.places.tolist()) <= set(x.any(0).nonzero()[:, 0].tolist())  # what is always zero has none


def test_edges_of_neighbours_are_differences_at_equal_size():
    x = digits(60)[0]
    found = find_neighbours(read_span(mixed(x)))
    groups, i = edge_groups(x, found), 100
    own, other = found.places[i], found.others[i, 0]
    expected = x[:, own] / found.size[i] - x[:, other] / found.size_of_others[i, 0]
    torch.testing.assert_close(groups[:, i, 0], expected)
    assert groups.square().mean() < 0.5 * (x[:, found.places] / found.size).square().mean()  # neighbours are alike


WITHOUT_NEIGHBOURS = {
    "a table": lambda: random(40, 300),
    "texts": lambda: (random(40, 600) > 2 + random(600, seed=3)).float(),
    "shuffled pixels": lambda: digits(60)[0][:, random(SIDE**2).argsort()],
    "one sample": lambda: digits(2)[0][:1],
    "nothing": lambda: torch.zeros(3, 50),
}


@pytest.mark.parametrize("kind", WITHOUT_NEIGHBOURS)
def test_what_has_no_neighbours_keeps_its_values(kind):
    x = WITHOUT_NEIGHBOURS[kind]()
    shape = (x.shape[1],)
    assert find_layout(read_span(mixed(x)), shape) == shape


def test_of_long_vectors_some_inputs_are_compared_with_all(monkeypatch):
    change = mixed(digits(60)[0])
    whole = find_neighbours(read_span(change))
    monkeypatch.setattr(edges, "MOST_COSINES", len(whole.places) ** 2 // 3)
    some = find_neighbours(read_span(change))
    assert torch.equal(some.places, whole.places[::3])
    assert torch.equal(some.others, whole.others[::3])


def test_digits_given_as_vectors_are_proven():
    x, y = digits(30)
    architecture = parse_architecture("300-50", (SIDE**2,), 1, "first")
    net = fit(architecture, (x, y), (x, y), FitSettings(init=None, seed=1))  # with 0 rounding decides
    initial, end = (Target(architecture, weights, None) for weights in (net.initial, net.weights))
    found = attack(end, Peel(), initial)
    assert found.proven.sum() >= 25  # without their neighbours: none
    near = torch.cdist(found.x[found.proven], x) / x.norm(dim=1)
    assert near.min(1).values.max() < 0.01
    assert len(near.argmin(1).unique()) == found.proven.sum()
