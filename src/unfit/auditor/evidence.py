"""What a verdict rests on: matches with private and unseen samples, the oracle, the record, the arrays."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from unfit.attacker.edges import tellable
from unfit.attacker.invert import invert
from unfit.attacker.mixtures import Mixtures
from unfit.attacker.start import find_start
from unfit.attacker.start.twister import SEEDS
from unfit.auditor.calibration import Calibration, calibrate, calibrate_sets, interval, strata
from unfit.auditor.case import Case
from unfit.auditor.conclude import Evidence, found_of
from unfit.auditor.exchange import Exchange, compare_sets
from unfit.auditor.fitting import UNCHECKED, Fitting, check_fit
from unfit.auditor.grades import LINES, Grade, are_exact, grade, recognisable_line
from unfit.auditor.match import GOOD, HIGH, Matches, compare, l2, match, nearest, nearest_other, psnr, rescaled
from unfit.auditor.oracle import Oracle, consult
from unfit.auditor.pool import Pool, sweep_record
from unfit.auditor.published import Published, look_through
from unfit.auditor.record import (
    SCHEMA_VERSION,
    Attacker,
    Baseline,
    Control,
    Hashes,
    OracleRecord,
    Point,
    Rate,
    SampleRecord,
    Similarity,
    Sweep,
    TargetRecord,
)
from unfit.auditor.request import AuditRequest, Policy
from unfit.auditor.samples import Samples
from unfit.auditor.verdict import RANDOM_UNSEEN, Attacked, Doubt, Effort, Sight
from unfit.base.errors import MisfitError
from unfit.base.pictures import ncc, stretch
from unfit.base.progress import Report, quiet, split
from unfit.base.target import Target

RATES = (0.01, 0.001)  # false-positive rates that are reported where there are enough unseen samples
DIRECTIONS_SHARED = 4  # samples for each direction above the noise; with more, only what many share stands out
ELSEWHERE = Doubt(
    "the candidates were made elsewhere: they can show a leak, but a pass needs the attack itself",
    "audit again without --candidates",
)
NO_GRADIENTS = Doubt(
    "the outputs have no gradients with respect to the inputs, or do not follow them, so only the weights could "
    "be asked what they hold",
    "give the model as it was before it was quantised, rounded or otherwise rewritten",
)
BYPASSED = Doubt(
    "another part of the model receives the samples by a way around the attacked layer, and was not attacked",
    "audit the other dense layers as well (--layer), one by one",
)
ALONE = "publish the weights alone, and audit them alone"
UNLABELLED = Doubt(UNCHECKED, "give the labels of the samples too")
CLEARLY = 0.1  # by so much an unseen sample is more like what came back than like any other unseen one …
MOST_SEEN = 0.1  # … which a few may be by accident, but not more than this share of them
MOST_INVERTED = 48  # features that pictures are sought for, the most similar first: each takes a second or so
MOST_POINTS = 12  # of the curve over time …
MOST_PAIRS = 500_000_000  # … fewer where all their pairs of sample and candidate would be more


@dataclass(frozen=True)
class Examined:
    """What is known of a case before anything is attacked."""

    fitting: Fitting
    exchange: Exchange
    published: Published
    seconds: float = 0.0  # that the first two took


def examine(case: Case, policy: Policy) -> Examined:
    """Look at the samples before anything is attacked; refuse those that cannot be samples of this net."""
    began = time.perf_counter()
    case.check(policy.window)
    fitting, exchange = check_fit(case), compare_sets(*case.given)
    seconds = time.perf_counter() - began
    return Examined(fitting, exchange, look_through(case, exchange.exchangeable), seconds)


def refuse_misfit(examined: Examined, policy: Policy) -> None:
    """A model that does not know its own training samples was trained on others, or on another form of them.

    Samples that stand in its file are a leak all the same.
    """
    fitting = examined.fitting
    if not fitting.fits and examined.published.num_verbatim <= policy.max_recovered:
        words = [*fitting.reasons, *([fitting.likely_cause] if fitting.likely_cause else [])]
        raise MisfitError(f"an audit would say nothing: {'; '.join(words)}")


def evidence(
    case: Case,
    pool: Pool,
    policy: Policy,
    examined: Examined,
    request: AuditRequest | None = None,
    controls: Sequence[Control] = (),
    baselines: Sequence[Baseline] = (),
    progress: Report = quiet,
    num_surfaces: int = 1,
) -> Evidence:
    """Match the candidates against both sets, and keep all that a decision can rest on.

    `num_surfaces`: how many are attacked in this audit, each with its own chance of a false find.
    """
    began = time.perf_counter()
    times, stage = stages(pool, max(len(case.private), len(case.unseen)))
    matches, control = (
        match(pool.blocks, samples, case.mean, policy.window, case.vote, stage, pool.copies, report)
        for samples, report in zip((case.private, case.unseen), split(progress, (1, 1)), strict=True)
    )
    outputs = case.outputs()
    mixtures = attacked_mixtures(case, pool)
    oracle = consult(case, mixtures, policy.window)
    labels = (case.private.y, case.unseen.y) if only_shares_differ(case, examined.exchange, policy.fpr) else None
    calibrated = calibrate_sets(matches.similarity, control.similarity, policy.fpr, labels)
    line = recognisable_line(control.similarity, calibrated.threshold, case.private.measure)
    exact, exact_unseen = _exact(case, pool, mixtures)
    recovered = calibrated.recovered | exact
    unseen_recovered = (control.similarity > calibrated.threshold) | exact_unseen
    unseen: dict[Grade, Tensor] = {
        "trace": unseen_recovered,
        "recognisable": (unseen_recovered & (control.similarity > line)) | exact_unseen,
        "exact": exact_unseen,
    }
    samples = _samples(case, matches, oracle, outputs[0], recovered, exact, line)
    sweep = _sweep(case, pool, matches, calibrated.threshold, policy.window)
    seconds = {"attack": pool.facts["seconds"], "match": time.perf_counter() - began}
    found = found_of(samples, unseen, min(1.0, num_surfaces * calibrated.p_value))
    effort, answer = _effort(case, pool, mixtures), _answer(oracle, policy.fpr)
    differences = [] if labels else _differences(examined.exchange)
    unchecked = [
        *([UNLABELLED] * (examined.fitting.measure == "none")),
        *([ELSEWHERE] * pool.from_file),
        *([NO_GRADIENTS] * (not oracle.asked_function)),
        *_seen_after_all(case, control),
        *([Doubt(case.target.unread, ALONE)] if case.target.unread else []),
        *([BYPASSED] * (case.target.whole is not None and case.target.whole.has_bypass)),
        *examined.published.doubts,
    ]
    sight = Sight(
        signal_p_value=answer.p_value,
        num_held=answer.num_held,
        knows_p_value=1.0 if answer.knows_p_value is None else answer.knows_p_value,
        accuracy=_accuracy(examined.fitting),
        differences=differences,
        unchecked=unchecked,
    )
    fields = dict(
        schema_version=SCHEMA_VERSION,
        attacker=effort.attacker,
        policy=policy,
        num_copies=case.num_copies,
        num_repeated=case.num_repeated,
        num_candidates=len(pool),
        recognisable=line,
        num_proven_candidates=int((pool.proven & ~pool.copies).sum()),
        estimated_num_samples=pool.facts["estimated_num_samples"],
        similarity=_similarity(case, policy),
        oracle=answer,
        start=pool.facts.get("start"),
        fitting=examined.fitting,
        exchange=examined.exchange,
        **_counts(matches, control, calibrated),
        over_time=_over_time(pool, times, stage, matches, control, policy.fpr),
        controls=list(controls),
        baselines=list(baselines),
        sweep=sweep,
        rank=pool.facts["rank"],
        noise_edge=pool.facts["noise_edge"],
        seconds={name: round(value, 3) for name, value in seconds.items()},
        attack=pool.attack,
        target=_target(case.target),
        file=examined.published.record,
        hashes=_hashes(case, pool),
        data=case.source.name if case.source else "",
        inputs=case.inputs,
        class_names=list(case.private.class_names),
        feature_names=_feature_names(case.private),
        versions=_versions(),
        machine={"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count() or 1},
        repeat=request,
        redacted=False,
    )
    progress(1.0, "compared")
    arrays = _arrays(case, pool, matches, control, oracle, outputs)
    return Evidence(Attacked(found, effort, sight), unseen, samples, fields, arrays)


def _arrays(
    case: Case, pool: Pool, matches: Matches, control: Matches, oracle: Oracle, outputs: tuple[Tensor, Tensor]
) -> dict[str, Tensor]:
    """What the page is drawn from."""
    return {
        **_pictures(case, matches),
        "nearest_unseen": nearest(matches.centred, case.unseen.x - case.mean),
        "similarity": matches.similarity,
        "unseen_similarity": control.similarity,
        **_ssims(matches, control),
        "upper_bound": oracle.similarity,
        "unseen_upper_bound": oracle.unseen_similarity,
        "output": outputs[0],
        "unseen_output": outputs[1],
        "spectrum": torch.tensor(pool.facts["spectrum"], dtype=torch.float64),
    }


def _ssims(matches: Matches, control: Matches) -> dict[str, Tensor]:
    """What *good* is judged by; vectors have none."""
    both = {"ssim": matches.ssim, "unseen_ssim": control.ssim}
    return {name: each for name, each in both.items() if each is not None}


def _pictures(case: Case, matches: Matches) -> dict[str, Tensor]:
    """What people look at: the samples and what came back; of features, also pictures that lead to them."""
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
        shown[best] = stretch(invert(case.target.split, matches.centred[best]) / private.scale + private.mean)
    features = {"features": case.private.x, "reconstructed_features": back}
    return {"original": private.x, "reconstruction": shown, "unseen": unseen.x, **features}


def _feature_names(samples: Samples) -> list[str] | None:
    """Pictures have pixels, whatever the columns of their table were called."""
    return None if samples.is_image or samples.feature_names is None else list(samples.feature_names)


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


def _counts(matches: Matches, control: Matches, calibrated: Calibration) -> dict[str, Any]:
    """Fields of the record: how many are above which threshold, and how sure that is."""
    own, unseen = matches.similarity, control.similarity
    rate = _rate(calibrated)
    others = [_rate(calibrate_sets(own, unseen, fpr)) for fpr in RATES if fpr != rate.fpr]
    return {
        "num_samples": len(own),
        "num_unseen": len(unseen),
        "num_good": int((matches.by_papers > GOOD).sum()),
        "num_good_unseen": int((control.by_papers > GOOD).sum()),
        "num_recovered": rate.num_recovered,
        "num_recovered_unseen": int((unseen > rate.threshold).sum()),
        "recovered_interval": rate.interval,
        "num_recovered_high": int((matches.by_papers > HIGH).sum()),
        "num_assigned": int((matches.assigned > calibrate(control.assigned, rate.fpr)).sum()),
        "threshold": rate.threshold,
        "fpr": rate.fpr,
        "rates": [
            each
            for each in sorted([rate, *others], key=lambda each: -each.fpr)
            if each.fpr in RATES and each.fpr * len(unseen) >= 1
        ],
    }


def _rate(calibrated: Calibration) -> Rate:
    num, n = int(calibrated.recovered.sum()), len(calibrated.recovered)
    return Rate(
        fpr=calibrated.fpr,
        threshold=calibrated.threshold,
        num_recovered=num,
        tpr=num / n,
        interval=interval(num, n),
    )


def _seen_after_all(case: Case, control: Matches) -> list[Doubt]:
    """A doubt about unseen samples that came back themselves: a control that was trained on hides every leak."""
    num, unseen = num_returned(case.unseen, control.similarity, case.mean), len(case.unseen)
    if num <= MOST_SEEN * unseen:
        return []
    words = (
        f"{num} of {unseen} unseen samples came back too, each far more like its reconstruction than like any "
        "other unseen one: the model may have seen them"
    )
    return [Doubt(words, RANDOM_UNSEEN)]


def num_returned(unseen: Samples, similarity: Tensor, mean: Tensor) -> int:
    """How many came back recognisably, and not because samples are alike, as digits are."""
    returned = 0
    for i in (similarity > LINES[unseen.measure]).nonzero()[:, 0].tolist():
        other, rows = unseen.x[nearest_other(unseen, i)][None], slice(i, i + 1)
        returned += bool(similarity[i] > compare(other - mean, unseen, rows, mean) + CLEARLY)
    return returned


def only_shares_differ(case: Case, exchange: Exchange, fpr: float) -> bool:
    """Whether the sets differ in the shares of their classes alone, all so large that each is its own control."""
    private, _ = strata(case.private.y, case.unseen.y, fpr)
    return not exchange.exchangeable and exchange.within_classes and bool((private >= 0).all())


def attacked_mixtures(case: Case, pool: Pool) -> Mixtures:
    """What the attack worked on: where it found the start, the change since that."""
    told = pool.facts.get("start") or {}
    if case.base is not None or not told.get("found"):
        return case.mixtures
    if case.mixtures.found:
        return case.mixtures.found[0]
    seed = told["seed"]  # None: the state was solved for, which is done again
    seeds = SEEDS if seed is None else range(seed, seed + 1)
    start = find_start(case.attacked, seeds=seeds, skip=told["skip"])
    return case.mixtures if start is None else start.change


def _effort(case: Case, pool: Pool, mixtures: Mixtures) -> Effort:
    """How hard was tried, by whom, and how many samples that could have separated."""
    facts = pool.facts
    return Effort(
        method=pool.attack["method"],
        status=facts["status"],
        seconds=facts["seconds"],
        num_candidates=len(pool),
        rank=facts["rank"],
        capacity=min(most_samples(mixtures), tellable(mixtures.shape), mixtures.weight.shape[1] - 1),
        estimated=facts["estimated_num_samples"],
        attacker=_attacker(pool, mixtures),
        base_given=case.base is not None,
    )


def most_samples(mixtures: Mixtures) -> int:
    """How many samples the attacked directions can hold such that single ones can be told apart.

    Where the spectrum ends there is nothing beyond, and each sample has a direction of its own; inputs that sum to
    zero have one less. An adapter of rank r holds r mixtures, of however many samples. Where noise hides the rest,
    samples share the directions that stand out.
    """
    if mixtures.span.ends:
        return max(mixtures.span.rank + 1, mixtures.num_samples or 0)
    return DIRECTIONS_SHARED * mixtures.span.rank


def _attacker(pool: Pool, mixtures: Mixtures) -> Attacker:
    if mixtures.is_moment:
        return "has the optimiser"
    if not pool.attack.get("base"):
        return "blind"
    return "found the start" if (pool.facts.get("start") or {}).get("found") else "knows the start"


def _answer(oracle: Oracle, fpr: float) -> OracleRecord:
    clearest = oracle.clearest(fpr)
    return OracleRecord(
        p_value=oracle.p_value(fpr),
        num_held=clearest.num_held(fpr),
        num_asked=len(clearest.own),
        knows_p_value=oracle.knows_p_value,
        num_good=int((oracle.by_papers[0] > GOOD).sum()),
        num_good_unseen=int((oracle.by_papers[1] > GOOD).sum()),
    )


def _accuracy(fitting: Fitting) -> tuple[float, float] | None:
    """On private and on unseen samples, of a classifier."""
    own, unseen = fitting.private_accuracy, fitting.unseen_accuracy
    return None if fitting.measure != "accuracy" or own is None or unseen is None else (own, unseen)


def _differences(exchange: Exchange) -> list[str]:
    """Why the two sets cannot be compared."""
    if exchange.exchangeable:
        return []
    return [
        f"private and unseen samples can be told apart without the model: {'; '.join(exchange.reasons)}. "
        "Compare with a random hold-out of the same source; `unfit split` makes one"
    ]


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
        candidates=pool.sha256 if pool.given else None,
    )


def _versions() -> dict[str, str]:
    packages = ("unfit", "torch", "numpy", "scipy")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def _samples(
    case: Case, matches: Matches, oracle: Oracle, output: Tensor, recovered: Tensor, exact: Tensor, line: float
) -> list[SampleRecord]:
    private, pair = case.private, (matches.shown, case.private.x)
    columns: dict[str, Tensor | None] = {  # None: vectors have no such number
        "index": private.indices,
        "label": private.y,
        "output": output,
        "similarity": matches.similarity,
        "ssim": matches.ssim,
        "assigned": matches.assigned,
        "ncc": ncc(*pair),
        "psnr": psnr(*pair) if private.is_image else None,
        "l2": l2(*pair),
        "upper_bound": oracle.similarity,
        "recovered": recovered,
        "proven": exact,
    }
    none = [None] * len(private)
    rows = zip(*(none if column is None else column.tolist() for column in columns.values()), strict=True)
    named = [dict(zip(columns, row, strict=True)) for row in rows]
    return [
        SampleRecord(grade=grade(row["similarity"], row["proven"], row["recovered"], line), **row) for row in named
    ]


def _exact(case: Case, pool: Pool, mixtures: Mixtures) -> tuple[Tensor, Tensor]:
    """Which private and which unseen samples equal a candidate that has a proof."""
    proven = pool.blocks.take(pool.proven.nonzero()[:, 0])
    common = case.private.centred(case.mean).x.mean(0, keepdim=True)
    scaled = mixtures.bias is not None
    first, second = (are_exact(proven, each, case.mean, common, scaled) for each in (case.private, case.unseen))
    return first, second
