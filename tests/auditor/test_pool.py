"""Auditing candidates that were made before: a file of an attack, or the trials of a sweep, pooled."""

from __future__ import annotations

import json
import re
import shutil
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from unfit import Audit, AuditRequest, Candidates, Samples, Target, UnfitError, attack, audit, audit_run
from unfit.attacker.attacked_layer import read_layer
from unfit.attacker.attacks import Unmix
from unfit.attacker.candidates import load_candidates, save_candidates
from unfit.attacker.method import Parameter, Value
from unfit.attacker.sweep.trials import Ended, Plan, State, TargetId, file_of
from unfit.auditor.case import Case, read_case
from unfit.auditor.match import Blocks, match
from unfit.auditor.pool import COPY_CORRELATION, attack_pool, find_copies, given_pool, sketch
from unfit.base.errors import UsageError
from unfit.base.files import write_json
from unfit.lab.runs import repeat_audit

Run = Callable[..., tuple[int, str, str]]
SETTINGS = [(0.06, 0), (1.0, 1), (0.12, 1), (0.85, 0), (0.3, 0), (0.6, 2)]  # rank and seed of each trial
PARAMETERS = {"rank": Parameter(low=0.05, high=1.2, log=True), "seed": Parameter(choices=(0, 1, 2))}


def write_sweep(folder: Path, target: Target, trials: list[Candidates]) -> None:
    (folder / "trials").mkdir(parents=True)
    plan = Plan(
        target=TargetId(sha256=target.sha256, architecture=str(target.architecture)),
        base=None,
        attack=Unmix(),
        sampler="random",
        seed=7,
        parameters=PARAMETERS,
        versions={},
    )
    write_json(folder / "sweep.json", plan.model_dump(mode="json"))
    lines = []
    for number, candidates in enumerate(trials):
        rank, seed = SETTINGS[number % len(SETTINGS)]
        ended = made(number, "complete", {"rank": rank, "seed": seed}, len(candidates), 1 / (1 + number))
        named = replace(candidates, facts=candidates.facts | {"trial": ended.model_dump()})
        save_candidates(named, file_of(folder, number))
        lines.append(ended)
    nothing = {"rank": 0.07, "seed": 0}
    lines[2:2] = [made(len(trials), "pruned", nothing), made(len(trials) + 1, "failed", nothing)]
    del lines[-1]  # killed after its candidates were written and before it was listed
    (folder / "trials.jsonl").write_text("".join(f"{line.model_dump_json()}\n" for line in lines))


def made(
    number: int, state: State, settings: dict[str, Value], num: int = 0, objective: float | None = None
) -> Ended:
    return Ended(
        number=number,
        state=state,
        settings=settings,
        objective=objective,
        num_candidates=num,
        seconds=1.5,
        node="a",
        message="",
    )


@pytest.fixture(scope="module")
def case(face_run: Path) -> Case:
    return read_case(AuditRequest(target=face_run))


@pytest.fixture(scope="module")
def target(case: Case) -> Target:
    return case.target


@pytest.fixture(scope="module")
def sets(case: Case) -> tuple[Samples, Samples]:
    return case.private, case.unseen


@pytest.fixture(scope="module")
def trials(target: Target) -> list[Candidates]:
    """A small real sweep of unmixing, which finds little in too few directions."""
    layer = read_layer(target)
    return [Unmix(ranks=(rank,), iterations=60, seed=seed).run(layer) for rank, seed in SETTINGS]


@pytest.fixture(scope="module")
def sweep(target: Target, trials: list[Candidates], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep") / "sweep"
    write_sweep(folder, target, trials)
    return folder


@pytest.fixture(scope="module")
def pooled(face_run: Path, sweep: Path) -> Audit:
    return audit_run(AuditRequest(target=face_run, candidates=sweep))


@pytest.fixture
def damaged(sweep: Path, tmp_path: Path) -> Path:
    """A copy to do harm to."""
    return Path(shutil.copytree(sweep, tmp_path / "sweep"))


# In blocks -------------------------------------------------------------------------------------------------


def in_parts(x: Tensor, *sizes: int) -> Blocks:
    parts = x.split(list(sizes))
    return Blocks(sizes, tuple(x.shape[1:]), lambda i: parts[i])


def test_blocks_change_nothing(sets: tuple[Samples, Samples], trials: list[Candidates]) -> None:
    x = torch.cat([trials[1].x[:60], trials[3].x[:40]])
    stage = torch.arange(100) % 3
    whole = match(x, sets[0], sets[0].mean, stage=stage)
    parts = match(in_parts(x, 30, 1, 69), sets[0], sets[0].mean, stage=stage)
    for name in ("centred", "similarity", "assigned", "over_time"):
        assert torch.allclose(getattr(parts, name), getattr(whole, name), atol=1e-5), name
    assert torch.equal(parts.nearest, whole.nearest)


def test_of_vectors_too() -> None:
    random = torch.Generator().manual_seed(0)
    x, y = (torch.randn(num, 3, generator=random) for num in (40, 6))
    samples = Samples(y, torch.zeros(6, dtype=torch.long), torch.arange(6), ("all",))
    whole, parts = (match(c, samples, torch.zeros(1, 3)) for c in (x, in_parts(x, 10, 30)))
    assert torch.allclose(parts.similarity, whole.similarity)
    assert whole.similarity.tolist() == pytest.approx(
        [max(0, 1 - float((v - n).norm() / v.norm())) for v, n in zip(y, whole.centred, strict=True)]
    )


def test_copies_vote_but_stand_for_no_sample(sets: tuple[Samples, Samples], trials: list[Candidates]) -> None:
    x = trials[1].x[:80]
    copies = torch.arange(80) % 2 == 1
    marked, all_of_them, half = (
        match(part, sets[0], sets[0].mean, copies=copies if mark else None)
        for part, mark in ((x, True), (x, False), (x[~copies], False))
    )
    assert torch.equal(marked.similarity, all_of_them.similarity)
    assert torch.allclose(marked.assigned, half.assigned, atol=1e-5)
    assert torch.equal(marked.nearest, 2 * half.nearest)


def test_only_one_block_at_a_time_is_in_memory(sets: tuple[Samples, Samples]) -> None:
    alive: list[weakref.ref[Any]] = []
    most = 0

    def read(i: int) -> Tensor:
        nonlocal most
        block = np.random.default_rng(i).standard_normal((50, 1, 25, 25), dtype=np.float32)
        alive.append(weakref.ref(block))  # which lives as long as any tensor that looks into it
        most = max(most, sum(each() is not None for each in alive))
        return torch.from_numpy(block)

    match(Blocks((50,) * 20, (1, 25, 25), read), sets[0], sets[0].mean)
    assert len(alive) >= 40
    assert most == 2  # one is let go of only when the next is there


# Copies ----------------------------------------------------------------------------------------------------


def correlated(x: Tensor, correlation: float, seed: int) -> Tensor:
    """Rows with this correlation with those of x."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    x, noise = (v - v.mean(1, keepdim=True) for v in (x, noise))
    noise -= x * ((noise * x).sum(1) / x.square().sum(1))[:, None]
    noise *= (x.norm(dim=1) / noise.norm(dim=1))[:, None]
    return correlation * x + (1 - correlation**2) ** 0.5 * noise


def test_copies_are_what_correlates_almost_perfectly() -> None:
    x = torch.randn(300, 500, generator=torch.Generator().manual_seed(0))
    same, like = correlated(x, 0.9998, 1), correlated(x, 0.99, 2)
    found = find_copies([sketch(each, True) for each in (x, 3 * x + 1, -x, same, like)])
    assert found.view(5, 300).float().mean(1).tolist() == [0, 1, 0, 1, 0]


def test_a_copy_of_a_copy_is_none() -> None:
    """A slow walk keeps a footprint wherever it is far enough from the last one."""
    initial, end = torch.randn(2, 500, generator=torch.Generator().manual_seed(0))
    walk = torch.stack([(1 - t) * initial + t * end for t in torch.linspace(0, 1, 2500)])
    copies = find_copies([sketch(part, True) for part in walk.split(400)])
    kept = walk[~copies]
    assert 20 < len(kept) < 200
    assert (
        torch.corrcoef(torch.cat([kept, walk]))[: len(kept), len(kept) :].amax(0).min() > COPY_CORRELATION - 0.001
    )


def test_a_sweep_made_twice_finds_what_it_finds_once(
    target: Target, sets: tuple[Samples, Samples], trials: list[Candidates], tmp_path: Path
) -> None:
    write_sweep(tmp_path / "twice", target, trials + trials)
    pool = given_pool(tmp_path / "twice", target)
    every = torch.cat([each.x for each in trials])
    assert pool.copies[len(every) :].all()
    assert pool.copies[: len(every)].sum() < len(every) / 2
    once = match(every, sets[0], sets[0].mean, copies=pool.copies[: len(every)])
    twice = match(pool.blocks, sets[0], sets[0].mean, copies=pool.copies)
    assert torch.allclose(once.similarity, twice.similarity, atol=1e-5)
    assert torch.allclose(once.assigned, twice.assigned, atol=1e-5)


def test_a_proof_is_not_given_up_for_a_look_alike(
    target: Target, trials: list[Candidates], tmp_path: Path
) -> None:
    proven = replace(trials[1], proven=torch.arange(len(trials[1])) < 10)
    write_sweep(tmp_path / "sweep", target, [trials[1], proven, proven])
    pool = given_pool(tmp_path / "sweep", target)
    assert pool.proven.sum() == 20
    assert (pool.proven & ~pool.copies).sum() == 10


# The audit -------------------------------------------------------------------------------------------------


def test_a_sweep_is_audited_as_if_it_were_one_attack(
    pooled: Audit, sets: tuple[Samples, Samples], trials: list[Candidates]
) -> None:
    record = pooled.record
    every = torch.cat([each.x for each in trials])
    whole = match(every, sets[0], sets[0].mean).similarity
    assert torch.allclose(whole, pooled.arrays["similarity"], atol=1e-5)
    assert record.verdict == "leak"
    assert record.num_candidates == len(every)
    assert 0 < record.sweep.num_copies < len(every) / 2
    assert record.attack == {"method": "unmix", "settings": {}, "seed": 7, "base": False}
    assert record.seconds["attack"] == pytest.approx(sum(each.facts["seconds"] for each in trials), abs=0.01)


def test_the_trials_add_up(pooled: Audit, trials: list[Candidates]) -> None:
    record, sweep = pooled.record, pooled.record.sweep
    assert [trial.number for trial in sweep.trials] == list(range(8))
    assert sweep.num_trials == {"complete": 6, "pruned": 1, "failed": 1}
    assert sum(trial.num_best for trial in sweep.trials) == record.num_recovered
    settings = [(trial.settings["rank"], trial.settings["seed"]) for trial in sweep.trials]
    assert settings == [*SETTINGS, (0.07, 0), (0.07, 0)]
    assert [trial.num_candidates for trial in sweep.trials] == [*map(len, trials), 0, 0]
    assert sweep.trials[5].objective == 1 / 6  # it was not listed: its file says so
    assert [each.num_trials for each in sweep.shares["rank"]] == [3, 1, 1, 3]
    assert [each.num_trials for each in sweep.shares["seed"]] == [5, 2, 1]
    assert sum(each.num_best for each in sweep.shares["seed"]) == record.num_recovered


def test_the_settings_that_worked_are_told(pooled: Audit) -> None:
    sweep = pooled.record.sweep
    alone = {trial.settings.get("rank"): trial.num_recovered for trial in sweep.trials}
    assert alone[1.0] > alone[0.06] + 5
    first, *_, last = sweep.shares["rank"]
    assert (first.low, last.high) == pytest.approx((0.05, 1.2))
    assert last.mean_recovered > first.mean_recovered + 5
    assert [each.choice for each in sweep.shares["seed"]] == [0, 1, 2]


def test_more_trials_find_more(pooled: Audit, sets: tuple[Samples, Samples], trials: list[Candidates]) -> None:
    points = pooled.record.over_time
    assert [point.num_trials for point in points] == [1, 2, 3, 4, 5, 6]
    assert points[-1].num_recovered == pooled.record.num_recovered
    assert points[-1].num_candidates == pooled.record.num_candidates
    assert points[0].num_recovered < points[-1].num_recovered
    first = [match(trials[0].x, samples, sets[0].mean).similarity for samples in sets]
    assert points[0].num_recovered == int((first[0] > first[1].max()).sum())


def test_trials_that_end_in_the_middle_of_a_line_are_no_loss(damaged: Path, sweep: Path, target: Target) -> None:
    """Killed while it wrote: half a line, half a file under another name."""
    with (damaged / "trials.jsonl").open("a") as file:
        file.write('{"number": 8, "sta')
    half = file_of(damaged, 0).read_bytes()[:1000]
    (damaged / "trials" / ".00008.safetensors-xyz").mkdir()
    (damaged / "trials" / ".00008.safetensors-xyz" / "00008.safetensors").write_bytes(half)
    (damaged / "trials" / "00008.safetensors.tmp").write_bytes(half)
    before, after = given_pool(sweep, target), given_pool(damaged, target)
    assert after.trials == before.trials
    assert after.sha256 == before.sha256


def test_one_attack_attacked_before_is_as_one_attacked_now(
    target: Target, sets: tuple[Samples, Samples], tmp_path: Path
) -> None:
    now = audit(target, *sets, attack="weights").record
    candidates = attack(target, "weights")
    save_candidates(candidates, tmp_path / "c.safetensors")
    different = {
        "date",
        "doubts",
        "seconds",
        "over_time",
        "hashes",
        "reasons",
        "next_steps",
    }  # times, and that a file decides no pass
    assert now.hashes.candidates is None
    for each in (candidates, tmp_path / "c.safetensors"):
        before = audit(target, *sets, candidates=each).record
        assert before.model_dump(exclude=different) == now.model_dump(exclude=different)
        assert before.sweep is None
        assert before.hashes.candidates == attack_pool(candidates).sha256


def test_the_command_line(
    run: Run, face_run: Path, sweep: Path, damaged: Path, pooled: Audit, tmp_path: Path
) -> None:
    code, out, err = run("audit", face_run, "--candidates", sweep, "--out", tmp_path / "audit")
    assert (code, err) == (1, "")
    most = max(trial.num_recovered for trial in pooled.record.sweep.trials)
    assert re.search(rf"^trials +6 complete, 1 pruned, 1 failed; most by one alone: {most}", out, re.M)
    content = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert content["sweep"] == pooled.record.model_dump(mode="json")["sweep"]
    again = repeat_audit(pooled.record).record
    assert again.samples == pooled.record.samples
    file_of(damaged, 3).unlink()
    moved = pooled.record.repeat.model_copy(update={"candidates": str(damaged)})
    with pytest.raises(UnfitError, match="candidates differ"):
        repeat_audit(pooled.record.model_copy(update={"repeat": moved}))


# What is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--method kkt", "--iterations 4", "--budget 5s", "--controls", "--base RUN"])
def test_nothing_is_attacked_so_options_of_an_attack_are_mistakes(
    option: str, run: Run, face_run: Path, sweep: Path, tmp_path: Path
) -> None:
    words = option.replace("RUN", str(face_run)).split()
    code, _, err = run("audit", face_run, "--candidates", sweep, *words, "--out", tmp_path / "a")
    assert code == UsageError.exit_code
    assert words[0] in err
    assert not (tmp_path / "a").exists()


def test_candidates_of_another_target_are_refused(target: Target, sweep: Path, trials: list[Candidates]) -> None:
    other = replace(target, weights={name: 2 * value for name, value in target.weights.items()})
    for given in (sweep, trials[0], file_of(sweep, 0)):
        with pytest.raises(UnfitError, match="other weights"):
            given_pool(given, other)


def spoil(folder: Path, number: int, **changes: Any) -> None:
    path = file_of(folder, number)
    save_candidates(replace(load_candidates(path), **changes), path)


def cut(folder: Path) -> None:
    path = file_of(folder, 1)
    path.write_bytes(path.read_bytes()[:-500])


def two_spoilt(folder: Path) -> None:
    cut(folder)
    spoil(folder, 4, x=torch.zeros(len(load_candidates(file_of(folder, 4))), 3, 8, 8))


def older(folder: Path) -> None:
    facts = load_candidates(file_of(folder, 2)).facts
    spoil(folder, 2, facts={name: value for name, value in facts.items() if name != "target"})


def nameless(folder: Path) -> None:
    facts = load_candidates(file_of(folder, 2)).facts
    spoil(folder, 2, facts=facts | {"trial": {"number": "two"}})


def of_another(folder: Path) -> None:
    facts = load_candidates(file_of(folder, 2)).facts
    spoil(folder, 2, facts=facts | {"target": "0" * 64})


def about(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps(content | changes))


def bad_line(folder: Path) -> None:
    lines = (folder / "trials.jsonl").read_text().splitlines()
    lines[1] = lines[1][:-20]
    (folder / "trials.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (cut, r"00001\.safetensors: not a file of candidates"),
        (two_spoilt, r"00001\.safetensors: not a .*00004\.safetensors: candidates of shape \(3, 8, 8\)"),
        (older, r"00002\.safetensors: not a file of candidates \(`target`: Field required\)"),
        (nameless, r"00002\.safetensors: it does not say which trial"),
        (of_another, r"00002\.safetensors: made from other weights"),
        (bad_line, r"trials\.jsonl, line 2"),
        (lambda folder: shutil.rmtree(folder / "trials"), "none of its trials has candidates yet"),
        (lambda folder: (folder / "sweep.json").unlink(), r"not the folder of a sweep: it has no sweep\.json"),
        (lambda folder: about(folder, schema_version=1), r"sweep\.json: `schema_version`"),
        (lambda folder: about(folder, target={"sha256": "0" * 64, "architecture": ""}), "sweep of other weights"),
        (lambda folder: about(folder, parameters={"lr": {"low": 0, "high": 1, "log": True}}), "above 0 if `log`"),
        (lambda folder: about(folder, parameters={"lr": {"low": 1}}), "needs `choices`"),
    ],
)
def test_a_sweep_that_cannot_be_used_says_why(
    harm: Callable[[Path], None], says: str, damaged: Path, target: Target
) -> None:
    harm(damaged)
    with pytest.raises(UnfitError, match=says):
        given_pool(damaged, target)


def test_trials_without_candidates_are_no_trouble(
    target: Target, sets: tuple[Samples, Samples], trials: list[Candidates], tmp_path: Path
) -> None:
    names = ("x", "origin", "label", "multiplier", "proven", "confidence")
    nothing = replace(trials[0], **{name: getattr(trials[0], name)[:0] for name in names})
    write_sweep(tmp_path / "some", target, [nothing, trials[1], nothing])
    some = audit(target, *sets, candidates=tmp_path / "some").record
    alone = match(trials[1].x, sets[0], sets[0].mean).similarity > some.threshold
    assert some.sweep.trials[1].num_recovered == int(alone.sum())
    assert [trial.num_best for trial in some.sweep.trials[:3]] == [0, some.num_recovered, 0]
    write_sweep(tmp_path / "none", target, [nothing, nothing])
    none = audit(target, *sets, candidates=tmp_path / "none").record
    assert (none.verdict, none.num_candidates) == ("inconclusive", 0)
