"""Surfaces: each layer through which samples enter a model is attacked; what is not attacked prevents a pass."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from unfit import (
    Audit,
    Auto,
    Policy,
    Reading,
    Unmix,
    as_target,
    attack,
    audit,
    draw,
    draw_unseen,
    load_target,
    read_source,
)
from unfit.attacker.surfaces import Surfaces, surfaces
from unfit.base.modules import as_base

N, SHAPE, D = 20, (1, 25, 25), 625
Pair = tuple[Tensor, Tensor]


def stack(d: int = D, width: int = 300) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(d, width), nn.ReLU(), nn.Linear(width, 2))


class Branches(nn.Module):
    def __init__(self, a: nn.Module, b: nn.Module) -> None:
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x: Tensor) -> Tensor:
        return 0.3 * self.a(x) + self.b(x)


class Ensemble(nn.Module):
    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(0)


class Towers(nn.Module):
    """Each tower receives some of the rows of an image."""

    def __init__(self, top: nn.Module, bottom: nn.Module) -> None:
        super().__init__()
        self.top, self.bottom = top, bottom

    def forward(self, x: Tensor) -> Tensor:
        return self.top(x[:, :, :5]) + self.bottom(x[:, :, 5:])


class Joined(nn.Module):
    """Two towers whose outputs are joined; the second is silent for most samples."""

    def __init__(self, second: nn.Module) -> None:
        super().__init__()
        self.left, self.right, self.head = stack(125), second, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        both = torch.cat([self.left(x[:, :125]), (self.right(x[:, 125:]) - 100).relu()], 1)
        return self.head(both)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(D, 40), nn.Linear(40, 40), nn.Linear(40, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1)).relu()
        return self.last(h + self.block(h).relu())


class Attention(nn.Module):
    """A branch whose dense layers see several vectors per sample beside a dense one."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.dense = nn.Linear(25, 8), stack()
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x) + 0.3 * self.rows(x[:, 0]).relu().mean(1).matmul(self.out.weight.T)


@pytest.fixture(scope="module")
def sets() -> tuple[Pair, Pair, Pair]:
    """Private samples, others that part of a model was trained on, and unseen ones."""
    source = read_source("faces")
    private = draw(source, N, 0)
    rest, mean = draw_unseen(source, private, 80, 0), private.mean
    x, y = rest.x - mean, rest.y
    return (private.x - mean, private.y), (x[:N], y[:N]), (x[N:], y[N:])


def trained(net: nn.Module, pair: Pair) -> nn.Module:
    """From small first layers, which leave samples to be unmixed without a base."""
    torch.manual_seed(0)
    for part in net.modules():
        if isinstance(part, nn.Linear) and part.in_features > 40:
            nn.init.normal_(part.weight, std=1e-4)
    return steps(net, pair, 200)


def steps(net: nn.Module, pair: Pair, num: int) -> nn.Module:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(num):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(pair[0]), pair[1]).backward()
        optimiser.step()
    return net


def names(found: Surfaces) -> list[str]:
    return [surface.name for surface in found.found]


def test_a_plain_stack_has_one_surface() -> None:
    """What its later layers receive came through the first."""
    assert names(surfaces(as_target(stack(), SHAPE))) == ["weights"]
    split = nn.Sequential(nn.Flatten(), nn.Linear(D, 30), nn.GELU(), nn.Linear(30, 2))
    assert names(surfaces(as_target(split, SHAPE))) == ["weights of 1"]


def test_a_residual_block_behind_the_first_layer_is_no_surface() -> None:
    """Its skip leads around the block, not around the first layer."""
    assert names(surfaces(as_target(Residual(), SHAPE))) == ["weights of first"]


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (Branches(stack(), stack()), ["a.1", "b.1"]),
        (Ensemble(stack(), stack(), stack()), ["members.0.1", "members.1.1", "members.2.1"]),
        (Towers(stack(125), stack(500)), ["top.1", "bottom.1"]),
    ],
)
def test_each_layer_that_samples_enter_is_a_surface(model: nn.Module, layers: list[str]) -> None:
    target = as_target(model, SHAPE)
    assert [surface.layer for surface in surfaces(target).found] == layers
    base = as_base(copy.deepcopy(model), target)
    with_base = surfaces(target, base).found
    assert [surface.name for surface in with_base] == [f"change of {layer}" for layer in layers]
    assert not any(surface.attacked.weight.any() for surface in with_base)  # the base is the model itself


def test_a_way_through_no_dense_layer_is_named() -> None:
    found = surfaces(as_target(Attention(), SHAPE))
    assert names(found) == ["weights of dense.1"]
    assert ["through no dense layer" in each.why for each in found.unread] == [True]


def test_a_tower_that_is_silent_on_random_samples_is_a_surface() -> None:
    """Its layer holds samples all the same. Such a model was refused, and such a second branch was not seen."""
    found = surfaces(as_target(Joined(stack(500)), SHAPE))
    assert names(found) == ["weights of left.1", "weights of right.1"]


def test_a_silent_tower_without_dense_layers_is_named() -> None:
    tower = nn.Sequential(nn.Unflatten(1, (1, 20, 25)), nn.Conv2d(1, 2, (20, 25)), nn.Flatten())
    found = surfaces(as_target(Joined(tower), SHAPE))
    assert names(found) == ["weights of left.1"]
    assert ["through no dense layer" in each.why for each in found.unread] == [True]


def checked(model: nn.Module, sets: tuple[Pair, Pair, Pair], private: Pair, layer: str | None = None) -> Audit:
    _, _, unseen = sets
    return audit(model, private, unseen, attack=Unmix(), layer=layer, input_shape=SHAPE)


def test_samples_of_a_second_branch_leak(sets: tuple[Pair, Pair, Pair]) -> None:
    """Only its layer was trained on them; the first branch was trained on other samples."""
    private, others, _ = sets
    model = Branches(trained(stack(), others), trained(stack(), private))
    done = checked(model, sets, private)
    assert done.verdict == "leak"
    first, second = done.record.surfaces
    assert (first.name, second.name) == ("weights of b.1", "weights of a.1")  # the strongest first
    assert first.num_recognisable > second.num_recognisable == 0
    assert done.record.num_recognisable_unseen == 0


def test_each_member_of_an_ensemble_is_attacked(sets: tuple[Pair, Pair, Pair]) -> None:
    private, others, _ = sets
    model = Ensemble(trained(stack(), others), trained(stack(), others), trained(stack(), private))
    done = checked(model, sets, private)
    assert (done.verdict, done.record.surfaces[0].layer) == ("leak", "members.2.1")


def test_a_tower_leaks_the_columns_that_it_receives(sets: tuple[Pair, Pair, Pair]) -> None:
    """With a base: what enters the second tower is exact, though the first was trained on other samples."""
    private, others, unseen = sets
    torch.manual_seed(0)
    model = Towers(stack(125), stack(500))
    base = copy.deepcopy(model)
    steps(model.top, (others[0][:, :, :5], others[1]), 50)
    steps(model.bottom, (private[0][:, :, 5:], private[1]), 50)
    done = audit(model, private, unseen, attack=Auto(), base=base, input_shape=SHAPE)
    assert done.verdict == "leak"
    first, second = done.record.surfaces
    assert (first.name, second.name) == ("change of bottom.1", "change of top.1")
    assert first.num_exact > N // 2
    assert (second.num_exact, first.num_exact_unseen) == (0, 0)


def test_unseen_samples_of_a_second_branch_do_not_leak(sets: tuple[Pair, Pair, Pair]) -> None:
    """Samples that neither branch was trained on."""
    private, others, unseen = sets
    model = Branches(trained(stack(), others), trained(stack(), private))
    never_seen = unseen[0][:N], unseen[1][:N]
    rest = unseen[0][N:], unseen[1][N:]
    done = audit(model, never_seen, rest, attack=Unmix(), input_shape=SHAPE)
    assert done.verdict != "leak"
    assert len(done.record.surfaces) == 2


def test_moments_belong_to_their_layer(tmp_path: Path, sets: tuple[Pair, Pair, Pair]) -> None:
    """Of two branches of one shape, whose sums of gradients an optimiser only numbers."""
    private, _, _ = sets
    torch.manual_seed(0)
    model = Branches(stack(), stack())
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    nn.functional.cross_entropy(model(private[0]), private[1]).backward()
    optimiser.step()
    torch.save({"model": model.state_dict(), "optimizer": optimiser.state_dict()}, tmp_path / "model.pt")
    (tmp_path / "net.py").write_text(CODE, encoding="utf-8")
    target = load_target(tmp_path / "model.pt", Reading(model=f"{tmp_path / 'net.py'}:build", input_shape=SHAPE))
    found = surfaces(target)
    assert names(found) == ["moments of a.1", "moments of b.1", "weights of a.1", "weights of b.1"]
    for surface, branch in zip(found.found, (model.a, model.b), strict=False):
        moment = optimiser.state[branch[1].weight]["exp_avg"]  # type: ignore[index]
        left = torch.nn.functional.cosine_similarity(surface.attacked.weight.flatten(), moment.flatten(), dim=0)
        assert left > 0.99


def test_an_attack_sees_what_an_audit_sees(tmp_path: Path, sets: tuple[Pair, Pair, Pair]) -> None:
    """The moments of a checkpoint too: an attack once ignored them."""
    private, _, unseen = sets
    torch.manual_seed(0)
    model = stack(width=60)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(20):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(private[0]), private[1]).backward()
        optimiser.step()
    torch.save({"model": model.state_dict(), "optimizer": optimiser.state_dict()}, tmp_path / "model.pt")
    target = load_target(tmp_path / "model.pt", Reading(input_shape=SHAPE))
    found = attack(target, Unmix())
    audited = audit(target, private, unseen, attack=Unmix()).record.surfaces
    told = [(each["name"], each["num_candidates"], each["status"]) for each in found.facts["surfaces"]]
    assert sorted(told) == sorted((each.name, each.num_candidates, each.status) for each in audited)
    assert [name for name, _, _ in told] == ["moments", "weights"]
    assert len(found) == sum(num for _, num, _ in told)
    assert all(origin.startswith(("moments: ", "weights: ")) for origin in found.origins)
    alone = attack(replace(target, moments={}), Unmix())
    assert "surfaces" not in alone.facts
    assert (found.confidence.diff() <= 0).all()


CODE = """
from torch import nn

class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (
            nn.Sequential(nn.Flatten(), nn.Linear(625, 300), nn.ReLU(), nn.Linear(300, 2)) for _ in "ab"
        )

    def forward(self, x):
        return 0.3 * self.a(x) + self.b(x)

build = Branches
"""


def test_what_is_not_attacked_is_named_and_prevents_a_pass(sets: tuple[Pair, Pair, Pair]) -> None:
    private, _, unseen = sets
    model = trained(Attention(), private)
    limit = Policy(max_leaked=N)  # so that nothing is a leak
    done = audit(model, private, unseen, attack=Unmix(), policy=limit, input_shape=SHAPE)
    assert done.verdict == "inconclusive"
    assert [each.name for each in done.record.surfaces_left] == ["other layers"]
    assert any("other layers were not attacked" in reason for reason in done.record.reasons)
