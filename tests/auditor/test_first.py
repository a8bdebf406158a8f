"""A first answer early: an audit stops at a leak that nothing else can undo, and only there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from trained import on_images, on_records
from unfit import AuditRequest, Auto, FitSettings, audit, audit_run, fit_run, read_source
from unfit.auditor.request import Policy
from unfit.auditor.verdict import LOWER_BOUNDS, Found, is_settled
from unfit.base.errors import UsageError

Run = Callable[..., tuple[int, str, str]]


def exactly(num: int, n: int, num_unseen: int, m: int) -> Found:
    return Found(num, num, num, n, m, 1.0, num_unseen, num_unseen, num_unseen)


@pytest.mark.parametrize(
    ("num", "num_unseen", "more", "allowed", "settled"),
    [
        (1, 0, 0, 0, True),  # nothing can come any more
        (1, 0, 1, 0, False),  # the next may be an unseen one
        (30, 0, 10, 0, True),  # even if all others are unseen ones
        (30, 0, 30, 0, False),
        (30, 2, 8, 0, True),
        (30, 2, 28, 0, False),
        (30, 0, 10, 30, False),  # the policy allows them
        (0, 0, 0, 0, False),
    ],
)
def test_a_leak_is_beyond_doubt_if_all_that_may_come_cannot_undo_it(
    num: int, num_unseen: int, more: int, allowed: int, settled: bool
) -> None:
    assert is_settled(exactly(num, 40, num_unseen, 40), Policy(max_leaked=allowed), more) is settled


def test_an_audit_stops_at_proofs_that_later_ones_cannot_outweigh() -> None:
    """Of twenty records some are not proven at first: without `first` the audit goes on."""
    model, base, x, others = on_records("counts", decay=0.01)
    private, unseen, told = (x, torch.arange(20) % 2), (others, torch.arange(20) % 2), [list[str](), list[str]()]
    early, whole = (
        audit(model, private, unseen, base=base, first=first, progress=lambda _, words, to=to: to.append(words))
        for first, to in zip((True, False), told, strict=True)
    )
    assert (early.verdict, early.exit_code) == ("leak", 1)
    assert LOWER_BOUNDS in early.record.reasons
    assert LOWER_BOUNDS not in whole.record.reasons
    assert 15 <= early.num_exact <= whole.num_exact
    assert early.record.num_candidates < whole.record.num_candidates
    leaks = [sum(words.startswith(f"leak found: {early.num_exact} exact so far; ") for words in to) for to in told]
    assert 0 < leaks[0] < leaks[1]
    assert early.record.signal_check.num_asked == len(early.record.samples) == 20


def test_samples_that_stand_in_the_file_need_no_attack() -> None:
    target, _, members, unseen = on_images("faces", "400-100", 10)
    model = nn.Sequential(nn.Flatten(), nn.Linear(625, 400), nn.ReLU(), nn.Linear(400, 100), nn.ReLU())
    model.append(nn.Linear(100, 1, bias=False))
    own = [value for name, value in target.weights.items()]
    with torch.no_grad():
        for layer in (model[1], model[3]):
            layer.bias.zero_()
        named = dict(model.named_parameters())
        for name, value in zip(["1.weight", "1.bias", "3.weight", "5.weight"], own, strict=True):
            named[name].copy_(value)
    x, others = members.centred(members.mean).x, unseen.centred(members.mean).x
    model.register_buffer("cache", x.clone())
    found = audit(model, (x, members.y), (others, unseen.y), first=True)
    assert found.verdict == "leak"
    assert LOWER_BOUNDS in found.record.reasons
    assert found.record.num_candidates == 0
    assert found.record.initial is None  # and nobody looked for the initial weights


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first")
    fit_run(read_source("faces"), 20, folder, FitSettings(), arch="200-50")
    return folder


def test_without_an_exact_sample_it_is_the_same_audit(small_run: Path) -> None:
    both = [audit_run(AuditRequest(target=small_run, first=first)).record for first in (False, True)]
    times = {"date", "seconds", "repeat", "over_time"}
    plain, first = (each.model_dump(mode="json", exclude=times) for each in both)
    assert plain == first
    assert both[1].num_exact == 0


def test_a_budget_is_respected(small_run: Path) -> None:
    began = time.process_time()
    found = audit_run(AuditRequest(target=small_run, first=True, attack=Auto(budget=3)))
    assert time.process_time() - began < 15
    assert LOWER_BOUNDS not in found.record.reasons


def test_the_command_stops_early_too(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    fit_run(read_source("faces"), 10, folder, FitSettings(init=None, flow_time=1e3), arch="400-100")
    code, _, error = run("audit", str(folder), "--base", str(folder), "--first", "--out", str(tmp_path / "audit"))
    assert code == 1
    assert "leak found: 10 exact so far" in error or not error


def test_candidates_that_are_there_cannot_come_first(small_run: Path, tmp_path: Path) -> None:
    target, _, members, unseen = on_images("faces", "400-100", 10)
    with pytest.raises(UsageError, match="`first`"):
        audit(target, members, unseen, candidates=tmp_path / "none", first=True)
    with pytest.raises(ValueError, match="`first`"):
        AuditRequest(target=small_run, candidates=tmp_path / "none", first=True)
