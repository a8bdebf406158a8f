"""Targets of the benchmarks: how each is trained and attacked; what was measured is kept beside it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from page import BUSY, SEEDS, Watch, spread
from unfit import Audit, AuditRequest, FitSettings, PaperKKT, audit_run, fit_run, read_source
from unfit.attacker.attacks import named_attack
from unfit.attacker.attacks.paper import paper_iterates
from unfit.auditor.calibration import calibrate
from unfit.auditor.case import read_case
from unfit.auditor.match import GOOD, match
from unfit.base.files import read_json, write_json

COUNTS = ("num_good", "num_good_unseen", "num_recovered", "num_exact", "num_candidates")


@dataclass(frozen=True)
class Case:
    """A target of the table: how it is trained, and how it is attacked."""

    name: str
    slug: str
    n: int
    fit: dict[str, Any] = field(default_factory=dict)
    data: str = "cifar10"
    classes: str | None = None
    arch: str = "1000-1000"
    biases: str = "first"
    score: str | None = None
    base: bool = False  # the weights training started from are known
    seeds: tuple[int, ...] = SEEDS


def run_of(case: Case, seed: int, folder: Path, runs: Path) -> Path:
    """The case's trained target, trained now if it is not there."""
    run = runs / f"{case.slug}_{seed}"
    if not (run / "fit.json").is_file():
        run.mkdir(parents=True, exist_ok=True)
        place = {"cifar10": f":{folder}", "mnist": f":{folder / 'mnist'}"}.get(case.data, "")
        source = read_source(case.data + place, case.classes)
        fit_run(source, case.n, run, FitSettings(seed=seed, **case.fit), case.arch, case.biases)
    return run


def measured(case: Case, seed: int, method: str, folder: Path, runs: Path, seconds: float = 0) -> dict[str, float]:
    """The audit's numbers, kept beside the target so that a benchmark which was stopped goes on where it was.

    `paper` is the papers' solver for so many seconds.
    """
    run = run_of(case, seed, folder, runs)
    kept = run / f"{method}.json"
    if not kept.is_file():
        watch = Watch()
        found = paper(run, seconds) if method == "paper" else numbers(audited(case, run, method, seed))
        write_json(kept, found | {"others": watch.others})
    return dict(read_json(kept))


def seconds_of(rows: list[dict[str, float]]) -> str:
    """The seconds of attacks, if they were alone on the machine."""
    alone = all(row.get("others", math.inf) <= BUSY for row in rows)  # not known: not alone
    return spread([row["seconds"] for row in rows], digits=0) if alone else ""


def source_of(run: Path) -> str:
    """What a run folder says it was trained on: for runs of one's own, since anybody else's may name any file."""
    return str(read_json(run / "members.json")["data"])


def audited(case: Case, run: Path, method: str, seed: int) -> Audit:
    base = run if case.base and method != "inversion" else None
    score = case.score if method == "kkt" else None
    seeds = 0 if method == "auto" else None  # blind: the rows compare with the papers
    attack = named_attack(method, score=score, seed=seed, seeds=seeds)
    data = source_of(run)
    return audit_run(AuditRequest(target=str(run), data=data, base=base and str(base), attack=attack, seed=seed))


def numbers(audit: Audit) -> dict[str, float]:
    counts = {name: getattr(audit.record, name) for name in COUNTS}
    return counts | {"seconds": audit.record.seconds["attack"]}


def paper(run: Path, seconds: float) -> dict[str, float]:
    """What the papers' solver has after so long: its last iterate (float32, which only makes it faster)."""
    case = read_case(AuditRequest(target=str(run), data=source_of(run)))
    settings = PaperKKT(num_candidates=2 * len(case.private), dtype="float32")
    began, x = time.perf_counter(), torch.zeros(0)
    for iterate in paper_iterates(case.target, settings, case.layer.span.rank):
        x = iterate.x.detach()
        if time.perf_counter() - began > seconds:
            break
    seen, control = (match(x, samples, case.mean).similarity for samples in (case.private, case.unseen))
    found = (int((s > GOOD).sum()) for s in (seen, control))
    recovered = int((seen > calibrate(control, 0.01)).sum())
    return dict(zip(COUNTS, (*found, recovered, 0, len(x)), strict=True)) | {"seconds": seconds}
