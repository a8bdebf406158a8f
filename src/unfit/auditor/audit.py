"""From a case to its evidence: attack, match against private and unseen samples, decide, keep everything.

Request → Case → candidates → matches → verdict → Record, which is built once.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unfit.attacker.attacks import as_attack, check_attack
from unfit.attacker.attacks.unmix import tellable
from unfit.attacker.candidates import Candidates
from unfit.attacker.method import Method, gather
from unfit.attacker.mixtures import Mixtures, check_base, read_mixtures
from unfit.attacker.start import find_start
from unfit.auditor.arrays import Arrays
from unfit.auditor.calibration import calibrate, calibrate_by_class, chance, chance_by_class, interval, strata
from unfit.auditor.case import Case, case_of
from unfit.auditor.exchange import Exchange, compare_sets
from unfit.auditor.fitting import Fitting, check_fit
from unfit.auditor.grades import count, grade, recognisable_line
from unfit.auditor.match import GOOD, HIGH, Matches, l2, match, ncc, nearest, psnr
from unfit.auditor.oracle import Oracle, consult
from unfit.auditor.pool import Pool, attack_pool, given_pool, sweep_record
from unfit.auditor.record import (
    SCHEMA_VERSION,
    Attacker,
    Baseline,
    Control,
    Hashes,
    OracleRecord,
    Point,
    Rate,
    Record,
    SampleRecord,
    Similarity,
    Sweep,
    TargetRecord,
    Verdict,
)
from unfit.auditor.report.notebook import picture
from unfit.auditor.report.page import page
from unfit.auditor.request import AuditRequest, Policy
from unfit.auditor.samples import Samples
from unfit.auditor.verdict import EXIT_CODES, Effort, Found, Sight, decide
from unfit.base.errors import MisfitError, NotApplicableError, UnfitError, UsageError
from unfit.base.files import as_json, new_file, read_as, read_json, write_json
from unfit.base.progress import Report, quiet, split
from unfit.base.target import Target

SAME_SAMPLE = 0.9  # correlation above which a proven candidate is taken to be this sample
RATES = (0.01, 0.001)  # false-positive rates that are reported where there are enough unseen samples
DIRECTIONS_SHARED = 4  # samples for each direction above the noise; with more, only what many share stands out
MOST_POINTS = 12  # of the curve over time …
MOST_PAIRS = 500_000_000  # … fewer where all their pairs of sample and candidate would be more
ATTACK_SHARE, MATCH_SHARE = 9, 1  # of an audit's time, as a rule: what its progress is split by


@dataclass(frozen=True, eq=False)
class Audit:
    """The whole evidence: the record, and the arrays that the page is drawn from."""

    record: Record
    arrays: dict[str, Tensor]

    @property
    def verdict(self) -> Verdict:
        return self.record.verdict

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def recovered(self) -> list[int | str]:
        """The indices of the samples that left a trace or more; in a redacted audit their hashes."""
        return [sample.index for sample in self.record.samples if sample.recovered]

    @property
    def recognisable(self) -> list[int | str]:
        """The indices of the samples that came back recognisably or exactly."""
        return [sample.index for sample in self.record.samples if sample.grade in ("recognisable", "exact")]

    def to_json(self, path: str | Path | None = None) -> str:
        """The content of `audit.json`, also written to `path` if one is given."""
        return _written(as_json(self.record.model_dump(mode="json")), path)

    def to_html(self, path: str | Path | None = None) -> str:
        """The page, self-contained, also written to `path` if one is given."""
        return _written(page(self.record, self.arrays), path)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return picture(self.record, self.arrays)

    def save(self, folder: Path) -> None:
        """Write `audit.json` and `arrays.safetensors`; the page is built from these alone."""
        save_file({name: value.contiguous() for name, value in self.arrays.items()}, folder / "arrays.safetensors")
        write_json(folder / "audit.json", self.record.model_dump(mode="json"))


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        with new_file(Path(path), force=True) as file:
            file.write_text(text, encoding="utf-8")
    return text


def load_audit(folder: Path) -> Audit:
    try:
        return Audit(load_record(folder), load_file(folder / "arrays.safetensors"))
    except (SafetensorError, OSError) as error:
        raise UnfitError(f"{folder}: not the folder of an audit: {error}") from error


def load_record(path: Path) -> Record:
    """Read an `audit.json`, or the one in a folder, of this version of the format."""
    path = path / "audit.json" if path.is_dir() else path
    found = read_json(path).get("schema_version")
    if not isinstance(found, int):
        raise UnfitError(f"{path}: not an audit: it has no schema_version")
    if found != SCHEMA_VERSION:
        raise UnfitError(
            f"{path}: schema_version {found}, this unfit reads {SCHEMA_VERSION}: make the audit again, "
            f"or use an unfit {'older' if found < SCHEMA_VERSION else 'newer'} than {version('unfit')}"
        )
    return read_as(Record, path)


def audit(
    model: Target | nn.Module,
    private: Arrays,
    unseen: Arrays,
    *,
    attack: Method | str = "auto",
    base: Target | nn.Module | None = None,
    candidates: Candidates | str | Path | None = None,
    policy: Policy | None = None,
    progress: Report = quiet,
) -> Audit:
    """Which of the private samples do the weights give away?

    `private` is what the model was trained on, `unseen` at least as many samples of the same kind that it never
    saw: the control. Either (x, y), tensors or arrays, x exactly as the model sees it; or `Samples` as stored,
    less the mean of the private ones. `attack` is a name or a value such as `Unmix(seed=1)`. `candidates` that
    were made from this model before (they themselves, their file, or the folder of a sweep) are searched instead
    of attacking.
    """
    case, policy, value = case_of(model, private, unseen, base), policy or Policy(), as_attack(attack)
    if candidates is not None and (attack != "auto" or base is not None):
        raise UsageError("with `candidates` nothing is attacked: leave out `attack` and `base`")
    attacking, matching = split(progress, (ATTACK_SHARE, MATCH_SHARE))
    examined = examine(case, policy)
    refuse_misfit(examined.fitting)
    pool = find_candidates(case, value, candidates, attacking)
    return evidence(case, pool, policy, examined, progress=matching)


@dataclass(frozen=True)
class Examined:
    """What is known of a case before anything is attacked."""

    fitting: Fitting
    exchange: Exchange


def examine(case: Case, policy: Policy) -> Examined:
    """Look at the samples before anything is attacked; refuse those that cannot be samples of this net."""
    case.check(policy.window)
    return Examined(check_fit(case), compare_sets(case.private, case.unseen))


def refuse_misfit(fitting: Fitting) -> None:
    """A model that does not know its own training samples was trained on others, or on another form of them."""
    if not fitting.fits:
        words = [*fitting.reasons, *([fitting.likely_cause] if fitting.likely_cause else [])]
        raise MisfitError(f"an audit would say nothing: {'; '.join(words)}")


def find_candidates(
    case: Case, attack: Method, candidates: Candidates | str | Path | None, progress: Report = quiet
) -> Pool:
    """What is searched: candidates that were given, or those of the attack."""
    if candidates is not None:
        return given_pool(candidates, case.target)
    return attack_pool(try_attack(case, attack, progress))


def try_attack(case: Case, attack: Method, progress: Report = quiet) -> Candidates:
    """The attack's candidates; none, and why, where it does not cover this net."""
    check_attack(attack, case.target, case.base)
    check_base(case.mixtures)
    try:
        return attack.run(case.mixtures, progress)
    except NotApplicableError as error:
        return gather(attack, case.mixtures, [], time.perf_counter(), f"not applicable: {error}")


def evidence(
    case: Case,
    pool: Pool,
    policy: Policy,
    examined: Examined,
    request: AuditRequest | None = None,
    controls: Sequence[Control] = (),
    baselines: Sequence[Baseline] = (),
    progress: Report = quiet,
) -> Audit:
    """Match the candidates against both sets, decide, and keep all that the decision rests on."""
    began = time.perf_counter()
    times, stage = stages(pool, max(len(case.private), len(case.unseen)))
    matches, control = (
        match(pool.blocks, samples, case.mean, policy.window, case.vote, stage, pool.copies, report)
        for samples, report in zip((case.private, case.unseen), split(progress, (1, 1)), strict=True)
    )
    output, unseen_output = case.outputs()
    mixtures = attacked_mixtures(case, pool)
    oracle = consult(case, mixtures, policy.window)
    by_class = calibrates_by_class(case, examined.exchange, policy.fpr)
    rate = _rate(matches.similarity, control.similarity, policy.fpr)
    thresholds = torch.full((len(case.private),), rate.threshold)
    if by_class:
        thresholds = calibrate_by_class(control.similarity, case.unseen.y, case.private.y, policy.fpr)
        rate = _recounted(rate, int((matches.similarity > thresholds).sum()), len(case.private))
    line = recognisable_line(control.similarity, rate.threshold, case.private.is_image)
    samples = _samples(case, pool, matches, oracle, output, thresholds, line)
    sweep = _sweep(case, pool, matches, rate.threshold, policy.window)
    seconds = {"attack": pool.facts["seconds"], "match": time.perf_counter() - began}
    odds = chance(rate.num_recovered, len(case.private), len(case.unseen), policy.fpr)
    if by_class:
        odds = chance_by_class(rate.num_recovered, case.unseen.y, case.private.y, policy.fpr)
    found = _found(samples, rate, len(case.unseen), odds)
    effort = _effort(pool, mixtures)
    answer = _answer(oracle, policy.fpr)
    verdict, reasons = decide(found, effort, _sight(answer, examined.exchange, by_class), policy)
    record = Record(
        schema_version=SCHEMA_VERSION,
        verdict=verdict,
        reasons=reasons,
        attacker=effort.attacker,
        policy=policy,
        num_candidates=len(pool),
        num_recognisable=found.num_recognisable,
        num_recognisable_unseen=int((control.similarity > line).sum()),
        recognisable=line,
        num_proven=found.num_exact,
        num_proven_candidates=int((pool.proven & ~pool.copies).sum()),
        estimated_num_samples=pool.facts["estimated_num_samples"],
        similarity=_similarity(case, policy),
        p_value=found.p_value,
        oracle=answer,
        start=pool.facts.get("start"),
        fitting=examined.fitting,
        exchange=examined.exchange,
        **_counts(matches, control, rate),
        over_time=_over_time(pool, times, stage, matches, control, policy.fpr),
        controls=list(controls),
        baselines=list(baselines),
        sweep=sweep,
        rank=pool.facts["rank"],
        noise_edge=pool.facts["noise_edge"],
        seconds={name: round(value, 3) for name, value in seconds.items()},
        attack=pool.attack,
        target=_target(case.target),
        hashes=_hashes(case, pool),
        data=case.source.name if case.source else "",
        class_names=list(case.private.class_names),
        versions=_versions(),
        machine={"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count() or 1},
        repeat=request,
        redacted=False,
        samples=samples,
    )
    arrays = {
        "original": case.private.x,
        "reconstruction": matches.shown,
        "unseen": case.unseen.x,
        "nearest_unseen": nearest(matches.centred, case.unseen.x - case.mean),
        "similarity": matches.similarity,
        "unseen_similarity": control.similarity,
        "upper_bound": oracle.similarity,
        "unseen_upper_bound": oracle.unseen_similarity,
        "output": output,
        "unseen_output": unseen_output,
        "spectrum": torch.tensor(pool.facts["spectrum"], dtype=torch.float64),
    }
    progress(1.0, "decided")
    return Audit(record, arrays)


def stages(pool: Pool, n: int) -> tuple[list[float], Tensor]:
    """The times of the curve over time, and for each candidate the first of them at which it was there."""
    times = pool.finished.unique()
    num = min(len(times), MOST_POINTS, max(1, MOST_PAIRS // max(1, len(pool) * n)))
    kept = times[torch.arange(1, num + 1) * len(times) // max(1, num) - 1]  # the last one always
    return kept.tolist(), torch.searchsorted(kept, pool.finished)


def _over_time(
    pool: Pool, times: list[float], stage: Tensor, matches: Matches, control: Matches, fpr: float
) -> list[Point]:
    """What was recovered when. A trial of a sweep belongs to one point as a whole."""
    points = []
    for i, (seconds, own, unseen) in enumerate(zip(times, matches.over_time, control.over_time, strict=True)):
        threshold = calibrate(unseen, fpr)
        there = stage <= i
        points.append(
            Point(
                seconds=round(seconds, 3),
                num_trials=None if pool.parameters is None else pool.num_blocks(there),
                num_candidates=int(there.sum()),
                num_recovered=int((own > threshold).sum()),
                num_recovered_unseen=int((unseen > threshold).sum()),
            )
        )
    return points


def _sweep(case: Case, pool: Pool, matches: Matches, threshold: float, window: int) -> Sweep | None:
    """What each trial gave, by itself and as part of the whole."""
    if pool.parameters is None:
        return None
    blocks = (pool.blocks.read(i) for i in range(len(pool.blocks.sizes)))
    alone = (match(block, case.private, case.mean, window, case.vote).similarity for block in blocks)
    num_alone = [int((similarity > threshold).sum()) for similarity in alone]
    return sweep_record(pool, matches.similarity > threshold, matches.nearest, num_alone)


def _counts(matches: Matches, control: Matches, rate: Rate) -> dict[str, Any]:
    """Fields of the record: how many are above which threshold, and how sure that is."""
    own, unseen = matches.similarity, control.similarity
    others = [_rate(own, unseen, fpr) for fpr in RATES if fpr != rate.fpr and fpr * len(unseen) >= 1]
    own_rate = [rate] if rate.fpr in RATES and rate.fpr * len(unseen) >= 1 else []
    return {
        "num_samples": len(own),
        "num_unseen": len(unseen),
        "num_good": int((own > GOOD).sum()),
        "num_good_unseen": int((unseen > GOOD).sum()),
        "num_recovered": rate.num_recovered,
        "num_recovered_unseen": int((unseen > rate.threshold).sum()),
        "recovered_interval": rate.interval,
        "num_recovered_high": int((own > HIGH).sum()),
        "num_assigned": int((matches.assigned > calibrate(control.assigned, rate.fpr)).sum()),
        "threshold": rate.threshold,
        "fpr": rate.fpr,
        "rates": sorted(own_rate + others, key=lambda each: -each.fpr),
    }


def _rate(own: Tensor, unseen: Tensor, fpr: float) -> Rate:
    threshold, n = calibrate(unseen, fpr), len(own)
    num = int((own > threshold).sum())
    return Rate(fpr=fpr, threshold=threshold, num_recovered=num, tpr=num / n, interval=interval(num, n))


def calibrates_by_class(case: Case, exchange: Exchange, fpr: float) -> bool:
    """Where only the shares of the classes differ, each large class is its own control."""
    private, _ = strata(case.private.y, case.unseen.y, fpr)
    return not exchange.exchangeable and exchange.within_classes and bool((private >= 0).all())


def _recounted(rate: Rate, num: int, n: int) -> Rate:
    return rate.model_copy(update={"num_recovered": num, "tpr": num / n, "interval": interval(num, n)})


def _found(samples: list[SampleRecord], rate: Rate, num_unseen: int, p_value: float) -> Found:
    grades = [sample.grade for sample in samples]
    return Found(
        num_recovered=rate.num_recovered,
        num_recognisable=count(grades, "recognisable"),
        num_exact=count(grades, "exact"),
        num_samples=len(samples),
        num_unseen=num_unseen,
        p_value=p_value,
    )


def attacked_mixtures(case: Case, pool: Pool) -> Mixtures:
    """What the attack worked on: where it found the start, the change since that."""
    told = pool.facts.get("start") or {}
    if case.base is not None or not told.get("found"):
        return case.mixtures
    seed, skip = int(told["seed"]), int(told["skip"])
    start = find_start(case.target, seeds=range(seed, seed + 1), skip=skip)
    return case.mixtures if start is None else read_mixtures(case.target, start.target)


def _effort(pool: Pool, mixtures: Mixtures) -> Effort:
    """How hard was tried, by whom, and how many samples that could have told apart."""
    facts = pool.facts
    return Effort(
        method=pool.attack["method"],
        status=facts["status"],
        seconds=facts["seconds"],
        num_candidates=len(pool),
        rank=facts["rank"],
        capacity=min(DIRECTIONS_SHARED * facts["rank"], tellable(mixtures.shape), mixtures.weight.shape[1] - 1),
        attacker=_attacker(pool),
    )


def _attacker(pool: Pool) -> Attacker:
    if not pool.attack.get("base"):
        return "blind"
    return "found the start" if (pool.facts.get("start") or {}).get("found") else "knows the start"


def _answer(oracle: Oracle, fpr: float) -> OracleRecord:
    return OracleRecord(
        p_value=oracle.p_value(fpr),
        num_held=oracle.num_held(fpr),
        num_asked=len(oracle.reaction),
        num_good=int((oracle.similarity > GOOD).sum()),
        num_good_unseen=int((oracle.unseen_similarity > GOOD).sum()),
    )


def _sight(oracle: OracleRecord, exchange: Exchange, by_class: bool) -> Sight:
    differences = []
    if not exchange.exchangeable and not by_class:
        differences.append(
            f"private and unseen samples can be told apart without the model: {'; '.join(exchange.reasons)}. "
            "Compare with a random hold-out of the same source; `unfit split` makes one"
        )
    return Sight(oracle.p_value, oracle.num_held, differences)


def _similarity(case: Case, policy: Policy) -> Similarity:
    if case.private.is_image:
        return Similarity(name="ssim", window=policy.window, vote=case.vote)
    return Similarity(name="relative error", window=None, vote=case.vote)


def _target(target: Target) -> TargetRecord:
    architecture = target.architecture
    return TargetRecord(
        sha256=target.sha256, architecture=str(architecture), num_parameters=architecture.num_parameters
    )


def _hashes(case: Case, pool: Pool) -> Hashes:
    return Hashes(
        private=case.private.sha256,
        unseen=case.unseen.sha256,
        base=case.base.sha256 if case.base else None,
        candidates=pool.sha256 if pool.given else None,
    )


def _versions() -> dict[str, str]:
    packages = ("unfit", "torch", "numpy", "scipy")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def _samples(
    case: Case, pool: Pool, matches: Matches, oracle: Oracle, output: Tensor, thresholds: Tensor, line: float
) -> list[SampleRecord]:
    private, pair = case.private, (matches.shown, case.private.x)
    columns = {
        "index": private.indices,
        "label": private.y,
        "output": output,
        "similarity": matches.similarity,
        "assigned": matches.assigned,
        "ncc": ncc(*pair),
        "l2": l2(*pair),
        "upper_bound": oracle.similarity,
        "recovered": matches.similarity > thresholds,
        "proven": _proven(pool, private, case.mean, matches),
    }
    decibels = psnr(*pair).tolist() if private.is_image else [None] * len(private)
    rows = zip(decibels, *(column.tolist() for column in columns.values()), strict=True)
    named = [(p, dict(zip(columns, row, strict=True))) for p, *row in rows]
    return [
        SampleRecord(psnr=p, grade=grade(row["similarity"], row["proven"], row["recovered"], line), **row)
        for p, row in named
    ]


def _proven(pool: Pool, private: Samples, mean: Tensor, matches: Matches) -> Tensor:
    """Whose nearest candidate has a certificate and is clearly this sample, not merely the nearest to it."""
    if not pool.proven.any():
        return torch.zeros(len(private), dtype=torch.bool)
    correlation = ncc(pool.blocks.take(matches.nearest), private.x - mean)
    return pool.proven[matches.nearest] & (correlation > SAME_SAMPLE)
