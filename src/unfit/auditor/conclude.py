"""From the evidence of all surfaces to one record, and the arrays that the page is drawn from."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import torch
from torch import Tensor

from unfit.attacker.invert import invert
from unfit.attacker.surfaces import WORDS, Surface
from unfit.auditor.calibration import Calibration, calibrate, calibrate_sets
from unfit.auditor.case import Case
from unfit.auditor.evidence import Evidence, found_of
from unfit.auditor.examine import Examined
from unfit.auditor.grades import GRADES, rank
from unfit.auditor.grading import Grades, best_grades
from unfit.auditor.match import GOOD, HIGH, Matches, l2, match, nearest, psnr, rescaled
from unfit.auditor.policy import Policy
from unfit.auditor.pool import Pool, sweep_record
from unfit.auditor.probability import interval
from unfit.auditor.published import Published, with_stored
from unfit.auditor.record import (
    SCHEMA_VERSION,
    Baseline,
    Control,
    DoubtRecord,
    Hashes,
    Point,
    Rate,
    Record,
    SampleRecord,
    Similarity,
    SurfaceRecord,
    Sweep,
    TargetRecord,
    UnreadSurface,
)
from unfit.auditor.request import AuditRequest
from unfit.auditor.samples import Samples
from unfit.auditor.verdict import Decision, Found, judge
from unfit.base.device import device
from unfit.base.images import ncc, stretch
from unfit.base.target import Target
from unfit.base.versions import versions

RATES = (0.01, 0.001)  # false-positive rates that are reported where there are enough unseen samples
MOST_INVERTED = 48  # features that images are sought for, the most similar first: each takes a second or so
# arrays with a row for each sample that differ by surface; not every audit has the last two
OF_SURFACE = (
    "reconstruction",
    "nearest_unseen",
    "similarity",
    "projection_similarity",
    "ssim",
    "reconstructed_features",
)


@dataclass(frozen=True)
class Comparisons:
    """What else was attacked, to compare with."""

    controls: Sequence[Control] = ()
    baselines: Sequence[Baseline] = ()


NO_COMPARISONS = Comparisons()  # an audit compares with unseen samples; all else has to be asked for


@dataclass(frozen=True, eq=False)
class Joined:
    """All surfaces together, each sample at its best."""

    surfaces: Sequence[Evidence]  # the strongest first
    by_attack: Found
    found: Found  # by attack, or in the file in plain sight
    samples: list[SampleRecord]
    arrays: dict[str, Tensor]


def concluded(
    surfaces: Sequence[Evidence],
    examined: Examined,
    policy: Policy,
    compared: Comparisons = NO_COMPARISONS,
    request: AuditRequest | None = None,
) -> tuple[Record, dict[str, Tensor]]:
    """The verdict on all attacked surfaces and on what stands in the file in plain sight, and all it rests on."""
    joined = join(surfaces, examined.published)
    found, attacked = joined.found, [each.attacked for each in joined.surfaces]
    verbatim = examined.published.verbatim(found.num_exact, found.num(policy.fail_on))
    decision = judge(attacked, joined.by_attack, policy, verbatim)
    if decision.verdict != "leak":
        decision = replace(decision, reasons=[*decision.reasons, *examined.surfaces.notes])
    return record_of(joined, decision, examined, policy, compared, request), joined.arrays


def join(surfaces: Sequence[Evidence], published: Published) -> Joined:
    """Each sample as the surface shows it that shows it best; or as it stands in the file."""
    ordered = sorted(surfaces, key=lambda each: each.found.strength, reverse=True)
    first, *others = ordered
    samples, arrays = _samples(first), _arrays(first)
    for other in others:
        shown, drawn = _samples(other), _arrays(other)
        better = [i for i, each in enumerate(shown) if rank(each.grade) > rank(samples[i].grade)]
        for i in better:
            samples[i] = shown[i]
        arrays |= {name: _with_rows(arrays[name], drawn[name], better) for name in _alike(arrays, drawn)}
    p_value = min(each.found.p_value for each in ordered)
    private, unseen = _any([each.private for each in ordered]), _any([each.unseen for each in ordered])
    by_attack = found_of(private, unseen, p_value)
    samples, arrays = with_stored(samples, arrays, published.private)
    stored = {grade: which | published.private for grade, which in private.items()}
    return Joined(ordered, by_attack, found_of(stored, unseen, p_value), samples, arrays)


def _any(graded: Sequence[Grades]) -> Grades:
    return {grade: torch.stack([each[grade] for each in graded]).any(0) for grade in GRADES}


def _alike(arrays: dict[str, Tensor], others: dict[str, Tensor]) -> list[str]:
    """What both hold in one shape: the towers of a model may receive different columns of a sample."""
    there = [name for name in OF_SURFACE if name in arrays and name in others]
    return [name for name in there if arrays[name].shape == others[name].shape]


def _with_rows(values: Tensor, others: Tensor, rows: list[int]) -> Tensor:
    """With these rows of another tensor; it is left as it was where there are none."""
    if not rows:
        return values
    values = values.clone()
    values[rows] = others[rows]
    return values


# The record -------------------------------------------------------------------------------------------------


def record_of(
    joined: Joined,
    decision: Decision,
    examined: Examined,
    policy: Policy,
    compared: Comparisons,
    request: AuditRequest | None,
) -> Record:
    """Numbers of matching are those of the strongest surface; samples are counted at their best."""
    first, found = joined.surfaces[0], joined.found
    case, pool, own, control = first.case, first.pool, first.matches, first.control
    rate = _rate(first.calibration)
    return Record(
        schema_version=SCHEMA_VERSION,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        verdict=decision.verdict,
        reasons=decision.reasons,
        next_steps=decision.next_steps,
        doubts=[
            DoubtRecord(code=each.code, reason=each.reason, accepted=each.code in policy.accept)
            for each in decision.doubts
        ],
        attacker=decision.attacker,
        policy=policy,
        **vars(found),
        num_copies=case.num_copies,
        num_repeated=case.num_repeated,
        num_left_out=case.num_left_out,
        num_candidates=len(pool),
        num_good=int((own.by_papers > GOOD).sum()),
        num_good_unseen=int((control.by_papers > GOOD).sum()),
        recovered_interval=interval(found.num_recovered, found.num_samples),
        num_recovered_high=int((own.by_papers > HIGH).sum()),
        recognisable_line=first.line,
        num_assigned=int((own.assigned > calibrate(control.assigned, rate.fpr)).sum()),
        num_candidates_with_proof=int((pool.proven & ~pool.copies).sum()),
        estimated_num_samples=pool.facts["estimated_num_samples"],
        similarity=_similarity(case, policy),
        threshold=rate.threshold,
        fpr=rate.fpr,
        signal_check=first.answer,
        initial=pool.initial,
        data_check=examined.data_check,
        comparability=examined.comparability,
        rates=_rates(first, rate),
        over_time=_over_time(first),
        controls=list(compared.controls),
        baselines=list(compared.baselines),
        sweep=_sweep(first, policy.window),
        rank=pool.facts["rank"],
        noise_edge=pool.facts["noise_edge"],
        seconds={
            "attack": round(sum(each.effort.seconds for each in joined.surfaces), 3),
            "match": round(sum(each.seconds for each in joined.surfaces), 3),
        },
        attack=pool.attack,
        target=_target(case.target),
        file=examined.published.record,
        surfaces=[_surface(each) for each in joined.surfaces],
        surfaces_left=[UnreadSurface(name=each.name, why=each.why) for each in examined.surfaces.unread],
        hashes=_hashes(case, pool),
        data=case.source.name if case.source else "",
        inputs=case.inputs,
        class_names=list(case.private.class_names),
        feature_names=_feature_names(case.private),
        versions=versions(),
        machine={"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count() or 1},
        repeat=request,
        redacted=False,
        samples=joined.samples,
    )


def _surface(evidence: Evidence) -> SurfaceRecord:
    surface = evidence.case.surface or Surface("weights", "", evidence.case.target)
    found, effort = evidence.found, evidence.effort
    return SurfaceRecord(
        name=surface.name,
        layer=surface.layer,
        subtracted=WORDS[surface.kind],
        status=effort.status,
        num_candidates=effort.num_candidates,
        **{name: value for name, value in vars(found).items() if name in SurfaceRecord.model_fields},
    )


def _rates(evidence: Evidence, rate: Rate) -> list[Rate]:
    """What is recovered at the usual false-positive rates, where there are enough unseen samples for them."""
    own, unseen = evidence.matches.similarity, evidence.control.similarity
    others = [_rate(calibrate_sets(own, unseen, fpr)) for fpr in RATES if fpr != rate.fpr]
    every = sorted([rate, *others], key=lambda each: -each.fpr)
    return [each for each in every if each.fpr in RATES and each.fpr * len(unseen) >= 1]


def _rate(calibrated: Calibration) -> Rate:
    num, n = int(calibrated.recovered.sum()), len(calibrated.recovered)
    return Rate(
        fpr=calibrated.fpr,
        threshold=calibrated.threshold,
        num_recovered=num,
        tpr=num / n,
        interval=interval(num, n),
    )


def _over_time(evidence: Evidence) -> list[Point]:
    """What was recovered when. A trial of a sweep belongs to one point as a whole."""
    pool, points = evidence.pool, []
    stages = zip(evidence.times, evidence.matches.over_time, evidence.control.over_time, strict=True)
    for i, (seconds, own, unseen) in enumerate(stages):
        threshold = calibrate(unseen, evidence.calibration.fpr)
        there = evidence.stage <= i
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


def _sweep(evidence: Evidence, window: int) -> Sweep | None:
    """What each trial gave, by itself and as part of the whole."""
    case, pool, matches = evidence.case, evidence.pool, evidence.matches
    if pool.parameters is None:
        return None
    threshold = evidence.calibration.threshold
    blocks = (pool.blocks.read(i) for i in range(len(pool.blocks.sizes)))
    alone = (match(block, case.private, case.mean, window, case.vote).similarity for block in blocks)
    num_alone = [int((similarity > threshold).sum()) for similarity in alone]
    return sweep_record(pool, matches.similarity > threshold, matches.nearest, num_alone)


def _similarity(case: Case, policy: Policy) -> Similarity:
    window = policy.window if case.private.is_image else None
    return Similarity(name=case.private.measure, window=window, vote=case.vote)


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
        checkpoints=[state.target.sha256 for state in case.target.states],
        candidates=pool.sha256 if pool.given else None,
    )


def _feature_names(samples: Samples) -> list[str] | None:
    """Images have pixels, whatever the columns of their table were called."""
    return None if samples.is_image or samples.feature_names is None else list(samples.feature_names)


# Samples and arrays -----------------------------------------------------------------------------------------


def _samples(evidence: Evidence) -> list[SampleRecord]:
    private, matches = evidence.case.private, evidence.matches
    pair = matches.shown, private.x
    columns: dict[str, Tensor | None] = {  # None: vectors have no such number
        "index": private.indices,
        "label": private.y,
        "output": evidence.outputs[0],
        "similarity": matches.similarity,
        "ssim": matches.ssim,
        "assigned": matches.assigned,
        "ncc": ncc(*pair),
        "psnr": psnr(*pair) if private.is_image else None,
        "l2": l2(*pair),
        "projection_similarity": evidence.signal_check.similarity,
        "recovered": evidence.private["trace"],
        "exact": evidence.private["exact"],
    }
    none = [None] * len(private)
    rows = zip(*(none if column is None else column.tolist() for column in columns.values()), strict=True)
    named = (dict(zip(columns, row, strict=True)) for row in rows)
    grades = best_grades(evidence.private)
    return [SampleRecord(grade=grade, **row) for grade, row in zip(grades, named, strict=True)]


def _arrays(evidence: Evidence) -> dict[str, Tensor]:
    """What the page is drawn from."""
    case, matches, control = evidence.case, evidence.matches, evidence.control
    ssims = {"ssim": matches.ssim, "unseen_ssim": control.ssim}  # what *good* is judged by; vectors have none
    return {
        **_images(case, matches),
        "nearest_unseen": nearest(matches.centred, case.unseen.x - case.mean),
        "similarity": matches.similarity,
        "unseen_similarity": control.similarity,
        **{name: each for name, each in ssims.items() if each is not None},
        "projection_similarity": evidence.signal_check.similarity,
        "unseen_projection_similarity": evidence.signal_check.unseen_similarity,
        "output": evidence.outputs[0],
        "unseen_output": evidence.outputs[1],
        "spectrum": torch.tensor(evidence.pool.facts["spectrum"], dtype=torch.float64),
    }


def _images(case: Case, matches: Matches) -> dict[str, Tensor]:
    """What people look at: the samples and what was recovered; of features, also images that lead to them."""
    back = matches.shown
    if case.private.measure == "explained variance":  # of which the scale is no part
        back = rescaled(matches.centred, case.private.x - case.mean) + case.mean
    if case.originals is None or not case.originals[0].is_image or case.private.is_image:
        return {"original": case.private.x, "reconstruction": back, "unseen": case.unseen.x}
    private, unseen = case.originals
    shown = torch.zeros_like(private.x)
    best = matches.similarity.argsort(descending=True, stable=True)[:MOST_INVERTED]
    best = best[matches.similarity[best] > 0]  # nothing leads to nothing
    if len(best):
        found = invert(case.target.split.on(device()), matches.centred[best])
        shown[best] = stretch(found / private.scale + private.mean)
    features = {"features": case.private.x, "reconstructed_features": back}
    return {"original": private.x, "reconstruction": shown, "unseen": unseen.x, **features}
