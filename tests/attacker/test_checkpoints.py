"""Several checkpoints of one training: in any order, from files or models; those of another are refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from test_copies import SHAPE, WIDTH, N, plain, sets, states
from torch import Tensor, nn

from conftest import Run
from unfit import Peel, Reading, UnfitError, audit, load_target
from unfit.attacker.attacked_layer import Interval, gradients_between
from unfit.attacker.surfaces import surfaces
from unfit.base.load import with_checkpoints
from unfit.base.modules import as_target
from unfit.base.target import Target

STEPS, BATCH, BETA = (4, 6, 8), 2, 0.9


def saved(folder: Path, *nets: nn.Module) -> list[Path]:
    paths = [folder / f"epoch{i}.pt" for i in range(len(nets))]
    for path, net in zip(paths, nets, strict=True):
        torch.save(net.state_dict(), path)
    return paths


def read(path: Path) -> Target:
    return load_target(path, Reading(input_shape=SHAPE))


def test_checkpoints_give_away_what_one_hides(tmp_path: Path) -> None:
    private, _, unseen = sets()
    _, first, second, last = states()
    given = [*saved(tmp_path, second), first]
    done = audit(as_target(last, SHAPE), private, unseen, attack=Peel(rounds=6), checkpoints=given)
    assert (done.verdict, done.record.attacker) == ("leak", "has several checkpoints")
    assert done.num_exact > N // 2
    assert done.record.num_exact_unseen == 0
    assert len(done.record.hashes.checkpoints) == 2
    assert "Publish one alone" in done.record.next_steps[0]


def test_the_order_in_which_checkpoints_are_given_does_not_matter(tmp_path: Path) -> None:
    _, first, second, last = saved(tmp_path, *states())
    layers = [
        surfaces(with_checkpoints(read(target), others)).found[0].attacked
        for target, others in ((last, [first, second]), (last, [second, first]), (second, [last, first]))
    ]
    assert all(torch.equal(layer.weight, layers[0].weight) for layer in layers)
    assert len(layers[0].weight) == 2 * WIDTH


def test_a_folder_of_checkpoints_stands_for_all_of_them(tmp_path: Path) -> None:
    for i, net in enumerate(states()):
        folder = tmp_path / f"checkpoint-{500 * i}"
        folder.mkdir()
        (folder / "config.json").write_text("{}", encoding="utf-8")
        torch.save(net.state_dict(), folder / "pytorch_model.bin")
    target = with_checkpoints(read(tmp_path / "checkpoint-1500"), [tmp_path])
    found = surfaces(target)
    assert [state.name for state in found.used] == ["checkpoint-0", "checkpoint-500", "checkpoint-1000"]
    assert len(found.found[0].intervals) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnfitError, match="neither a model nor a folder"):
        with_checkpoints(target, [tmp_path / "empty"])


def test_a_checkpoint_of_another_training_is_refused_by_name(tmp_path: Path) -> None:
    path = saved(tmp_path, states(1)[-1])[0]
    target = with_checkpoints(as_target(states()[-1], SHAPE), [states()[1], path])
    with pytest.raises(UnfitError, match=r"epoch0\.pt: not a checkpoint of the same training"):
        surfaces(target)


def test_the_command_line_takes_several(tmp_path: Path, run: Run) -> None:
    first, second, last = saved(tmp_path, *states()[1:])
    words = [last, "--input-shape", "25x25", "--checkpoint", first, "--checkpoint", second]
    code, out, _ = run("preflight", *words)
    assert code == 0
    assert "epoch0.pt" in out
    code, _, err = run("attack", *words, "--method", "weights", "--out", tmp_path / "found.safetensors")
    assert (code, err) == (0, "")


# Sums of gradients ----------------------------------------------------------------------------------------------


@cache
def with_adam() -> tuple[list[dict[str, Any]], list[Tensor]]:
    """Checkpoints with the optimiser's state, and the gradient of the first layer in each step."""
    (x, y), _, _ = sets()
    net, kept, seen = plain(0), list[dict[str, Any]](), list[Tensor]()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3, betas=(BETA, 0.999))
    for step in range(max(STEPS) + 1):
        if step in STEPS:
            state = {"model": net.state_dict(), "optimizer": optimiser.state_dict()}
            kept.append(copy.deepcopy(state))
        some = torch.arange(BATCH * step, BATCH * (step + 1)) % N
        optimiser.zero_grad()
        nn.functional.softplus(-(2 * y[some] - 1) * net(x[some])[:, 0]).mean().backward()
        gradient = net[1].weight.grad
        assert gradient is not None
        seen.append(gradient.clone())
        optimiser.step()
    return kept, seen


def adam_file(folder: Path, *which: int) -> list[Path]:
    paths = [folder / f"step{STEPS[i]}.pt" for i in which]
    for i, path in zip(which, paths, strict=True):
        torch.save(with_adam()[0][i], path)
    return paths


@pytest.mark.parametrize("is_told", [True, False])
def test_what_lies_between_two_states_of_an_optimiser_is_a_sum_of_gradients(tmp_path: Path, is_told: bool) -> None:
    first, second = adam_file(tmp_path, 0, 2)
    target = with_checkpoints(read(second), [first])
    assert target.fading == (BETA, STEPS[2])
    after = target if is_told else replace(target, fading=(BETA, None))
    weight, _ = gradients_between(Interval(target.states[0].target, after, of_moments=True))
    _, gradients = with_adam()
    k = STEPS[2] - STEPS[0]
    true = sum((1 - BETA) * BETA ** (k - 1 - j) * gradients[STEPS[0] + j].double() for j in range(k))
    assert float((weight - true).norm() / torch.as_tensor(true).norm()) < 1e-5  # type: ignore[arg-type]


def test_states_of_an_optimiser_are_a_surface_of_the_samples_in_between(tmp_path: Path) -> None:
    first, second, third = adam_file(tmp_path, 0, 1, 2)
    found = surfaces(with_checkpoints(read(third), [first])).found
    assert [each.name for each in found] == ["gradients", "moments", "copies", "weights"]
    assert found[0].attacked.num_samples is not None
    stacked = surfaces(with_checkpoints(read(third), [second, first])).found[0].attacked
    assert len(stacked.weight) == 2 * WIDTH
    assert not stacked.is_moment


def test_the_second_layer_says_nothing_of_gradients_in_between(tmp_path: Path) -> None:
    """Its change is what Adam made of them, and no sum over the same samples."""
    first, third = adam_file(tmp_path, 0, 2)
    layer = surfaces(with_checkpoints(read(third), [first])).found[0].attacked
    assert layer.is_between
    assert layer.features is None
    assert replace(layer, intervals=()).features is not None
