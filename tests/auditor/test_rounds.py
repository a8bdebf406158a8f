"""Several rounds of one client: each changes the model that it was sent, and all changes are stacked."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import Run
from unfit import AuditRequest, Reading, UnfitError, load_base, load_target
from unfit.attacker.surfaces import surfaces
from unfit.auditor.redact import _named
from unfit.base.load import with_rounds

State = dict[str, torch.Tensor]
N, D, WIDTH, ROUNDS = 12, 64, 40, 3
READING = Reading(input_shape=(1, 8, 8))


def net(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(D, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))


def written(folder: Path, seed: int = 0) -> list[tuple[Path, Path]]:
    """What the client was sent in each round, and its update; other clients move the model in between."""
    model, pairs = net(seed), list[tuple[Path, Path]]()
    x, others = torch.randn(N, D), torch.randn(200, D)
    for i in range(ROUNDS):
        before = copy.deepcopy(model.state_dict())
        steps(model, x, 5)
        pair = folder / f"global{seed}{i}.pt", folder / f"update{seed}{i}.pt"
        torch.save(before, pair[0])
        torch.save({name: value - before[name] for name, value in model.state_dict().items()}, pair[1])
        pairs.append(pair)
        steps(model, others, 3)
    return pairs


def steps(model: nn.Module, x: torch.Tensor, num: int) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(num):
        optimiser.zero_grad()
        nn.functional.softplus(model(x)).mean().backward()
        optimiser.step()


def test_rounds_are_stacked_each_from_what_the_client_was_sent(tmp_path: Path) -> None:
    """Nothing that other clients did in between is in it: its rank is the number of this client's samples."""
    *earlier, (base, update) = written(tmp_path)
    target = with_rounds(load_target(None, READING, base, update), earlier, READING)
    found = {each.name: each for each in surfaces(target, load_base(base, target)).found}
    stacked = found["copies"].attacked
    assert len(found["copies"].intervals) == ROUNDS
    assert stacked.weight.shape == (ROUNDS * WIDTH, D)
    assert stacked.num_samples == N


def test_a_round_of_another_training_is_refused(tmp_path: Path) -> None:
    base, update = written(tmp_path)[-1]
    target = with_rounds(load_target(None, READING, base, update), written(tmp_path, 1)[:1], READING)
    with pytest.raises(UnfitError, match=r"update10\.pt: not a checkpoint of the same training"):
        surfaces(target, load_base(base, target))


def test_the_command_line_takes_several_rounds(tmp_path: Path, run: Run) -> None:
    first, second, (base, update) = written(tmp_path)
    words = ["--base", base, "--update", update, "--round", _text(first), "--round", _text(second)]
    code, out, err = run("attack", *words, "--method", "weights", "--out", tmp_path / "found.safetensors")
    assert (code, err) == (0, "")
    assert "candidates" in out
    code, _, err = run(
        "attack", "--base", base, "--update", update, "--round", "one", "--out", tmp_path / "x.safetensors"
    )
    assert code == 64
    assert "BASE,UPDATE" in err


def _text(pair: tuple[Path, Path]) -> str:
    return ",".join(map(str, pair))


def test_a_redacted_request_keeps_no_folder(tmp_path: Path) -> None:
    pairs = written(tmp_path)
    request = AuditRequest(base=str(pairs[0][0]), update=str(pairs[0][1]), data="faces", rounds=pairs[1:])
    assert _named(request).rounds == (("global01.pt", "update01.pt"), ("global02.pt", "update02.pt"))
