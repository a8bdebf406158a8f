"""A second copy of the weights is a surface: what lies between both holds samples, and no initial weights."""

from __future__ import annotations

import copy
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from unfit import (
    Audit,
    Peel,
    Policy,
    Reading,
    Unmix,
    Weights,
    attack,
    audit,
    draw,
    draw_unseen,
    load_target,
    preflight,
    read_source,
)
from unfit.attacker.attacked_layer import Interval, read_intervals
from unfit.attacker.series import in_order, is_of_one_training
from unfit.attacker.surfaces import surfaces
from unfit.base.modules import as_target
from unfit.base.target import Target

N, WIDTH, SHAPE, D = 16, 300, (1, 25, 25), 625
Pair = tuple[Tensor, Tensor]


@cache
def sets() -> tuple[Pair, Pair, Pair]:
    """Private samples, others, and unseen ones."""
    source = read_source("faces")
    private = draw(source, N, 0)
    rest, mean = draw_unseen(source, private, 60, 0), private.mean
    x, y = rest.x - mean, rest.y
    return (private.x - mean, private.y), (x[:N], y[:N]), (x[N : 2 * N], y[N : 2 * N])


def plain(seed: int) -> nn.Sequential:
    """Initial weights in an order that no seed gives."""
    torch.manual_seed(seed)
    hidden = nn.Linear(D, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
    net = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(WIDTH, 1))
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(value.flatten()[torch.randperm(value.numel())].view_as(value))
    return net


@cache
def states(seed: int = 0, steps: tuple[int, ...] = (0, 5, 12, 30)) -> list[nn.Module]:
    """The net after so many steps on the private samples."""
    (x, y), _, _ = sets()
    net, kept = plain(seed), list[nn.Module]()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    for step in range(max(steps) + 1):
        if step in steps:
            kept.append(copy.deepcopy(net))
        optimiser.zero_grad()
        nn.functional.softplus(-(2 * y - 1) * net(x)[:, 0]).mean().backward()
        optimiser.step()
    return kept


def in_a_file(folder: Path, **nets: nn.Module) -> Target:
    torch.save({name: net.state_dict() for name, net in nets.items()}, folder / "model.pt")
    return load_target(folder / "model.pt", Reading(input_shape=SHAPE))


def checked(target: Target, private: Pair, **settings: object) -> Audit:
    return audit(target, private, sets()[2], **{"attack": Peel(rounds=6), **settings})  # type: ignore[arg-type]


def test_two_copies_in_a_file_give_away_what_one_hides(tmp_path: Path) -> None:
    private, _, _ = sets()
    _, earlier, _, last = states()
    alone = checked(in_a_file(tmp_path, model=last), private, attack=Unmix())
    assert alone.num_recognisable == 0
    both = checked(in_a_file(tmp_path, model=last, ema=earlier), private)
    assert (both.verdict, both.record.attacker) == ("leak", "has two copies")
    assert both.num_recognisable > N // 2
    assert (both.record.num_recognisable_unseen, both.record.surfaces[0].name) == (0, "copies")
    assert "Publish one copy" in both.record.next_steps[0]
    assert not both.record.file.rest  # the copy was attacked


def test_samples_that_no_copy_was_trained_on_do_not_leak(tmp_path: Path) -> None:
    _, others, _ = sets()
    _, earlier, _, last = states()
    done = checked(in_a_file(tmp_path, model=last, ema=earlier), others)
    assert done.verdict != "leak"
    assert done.num_exact == 0


def test_with_a_base_copies_are_attacked_beside_the_change(tmp_path: Path) -> None:
    initial, earlier, _, last = states()
    target = in_a_file(tmp_path, model=last, ema=earlier)
    found = surfaces(target, as_target(initial, SHAPE))
    assert [each.name for each in found.found] == ["change", "copies"]
    _, copies = found.found
    assert len(copies.intervals) == 2
    assert len(copies.attacked.weight) == 2 * WIDTH
    assert copies.attacked.num_samples == found.found[0].attacked.num_samples == N


def test_a_copy_of_another_training_is_no_surface_and_prevents_a_pass(tmp_path: Path) -> None:
    private, _, _ = sets()
    target = in_a_file(tmp_path, model=states()[-1], teacher=states(1)[-1])
    found = surfaces(target)
    assert [each.name for each in found.found] == ["weights"]
    assert "another training" in found.notes[0]
    done = checked(target, private, attack=Weights(), policy=Policy(max_leaked=N))
    assert any("`teacher`" in reason for reason in done.record.reasons)


def test_weights_that_did_not_change_are_said_to_be_frozen(tmp_path: Path) -> None:
    net = states()[-1]
    target = in_a_file(tmp_path, model=net, ema=copy.deepcopy(net))
    found = surfaces(target)
    assert [each.name for each in found.found] == ["weights"]
    assert "did not change" in found.notes[0]


def test_attacks_that_look_at_weights_alone_leave_copies_and_say_so(tmp_path: Path) -> None:
    private, _, _ = sets()
    target = in_a_file(tmp_path, model=states()[-1], ema=states()[1])
    done = checked(target, private, candidates=attack(target, Weights()), attack="auto")
    assert [each.name for each in done.record.surfaces_left] == ["copies"]


def test_states_are_put_in_the_order_of_training() -> None:
    there = [as_target(net, SHAPE) for net in states()]
    for order in ([2, 0, 3, 1], [3, 1, 0, 2]):
        assert in_order([there[i] for i in order]) == there
    assert in_order([there[i] for i in (3, 1, 2)], there[0]) == there


def test_states_of_two_trainings_differ_by_their_noise() -> None:
    first, second = ([as_target(net, SHAPE) for net in states(seed)[::3]] for seed in (0, 1))
    assert is_of_one_training(*first)
    assert is_of_one_training(*second)
    assert not any(is_of_one_training(a, b) for a in first for b in second)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2)])
def test_steps_stacked_in_the_wrong_order_prove_nothing_that_is_wrong(order: tuple[int, ...]) -> None:
    """Each difference of two states is a sum over samples: a wrong order costs proofs, and makes none false."""
    private, _, _ = sets()
    there = [as_target(states()[i], SHAPE) for i in order]
    steps = tuple(Interval(a, b) for a, b in pairwise(there))
    parts, _ = Peel(rounds=4).prove(read_intervals(there[-1], steps))
    proven = torch.cat([part.x[part.proven] for part in parts if part.proven is not None])
    if order == (0, 1, 2, 3):
        assert len(proven) > N // 2
    apart = torch.cdist(proven.flatten(1), private[0].flatten(1)).amin(1)
    assert (apart < 0.05 * private[0].flatten(1).norm(dim=1).mean()).all()


def test_preflight_warns_of_two_copies(tmp_path: Path) -> None:
    found = preflight(in_a_file(tmp_path, model=states()[-1], ema=states()[1], best=states()[-1]))
    assert any("`ema`" in note and "publish one copy" in note for note in found.notes)
