"""What one attacked surface shows: matches with private and unseen samples, proofs, the signal check."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unfit.attacker.attacked_layer import AttackedLayer
from unfit.attacker.edges import tellable
from unfit.attacker.initial import find_initial_weights
from unfit.attacker.initial.twister import SEEDS
from unfit.attacker.preflight import FAR_BELOW
from unfit.auditor.calibration import Calibration, calibrate_sets, strata
from unfit.auditor.case import Case
from unfit.auditor.comparability import Comparability
from unfit.auditor.data_check import UNCHECKED, DataCheck
from unfit.auditor.examine import Examined
from unfit.auditor.grading import LINES, Grades, are_exact, graded, recognisable_line
from unfit.auditor.match import GOOD, Matches, compare, match, nearest_other
from unfit.auditor.outliers import outlier_p_value
from unfit.auditor.policy import Policy
from unfit.auditor.pool import Pool
from unfit.auditor.record import Attacker, SignalRecord
from unfit.auditor.samples import Samples
from unfit.auditor.signal_check import Reactions, SignalCheck, check_signal
from unfit.auditor.verdict import RANDOM_UNSEEN, Attacked, Doubt, Effort, Found, Sight, is_crowded
from unfit.base.progress import Report, quiet, split

DIRECTIONS_SHARED = 4  # samples for each direction above the noise; with more, only what many share stands out
ELSEWHERE = Doubt(
    "the candidates were made elsewhere: they can show a leak, but a pass needs the attack itself",
    "audit again without --candidates",
    "unfinished",
)
NO_GRADIENTS = Doubt(
    "the outputs have no gradients with respect to the inputs, or do not follow them, so the signal check could "
    "use the weights only",
    "give the model as it was before it was quantised, rounded or otherwise rewritten",
    "no-gradients",
)
NOT_COVERED = "treat the model as not cleared: no attack here reads this part of it"
ALONE = "publish the weights alone, and audit them alone"
UNLABELLED = Doubt(UNCHECKED, "give the labels of the samples too", "no-labels")
CLEARLY = 0.1  # an unseen sample is this much more similar to a reconstruction than to any other unseen one …
MOST_SEEN = 0.1  # … which a few may be by accident, but not more than this share of them
MOST_POINTS = 12  # of the curve over time …
MOST_PAIRS = 500_000_000  # … fewer where all their pairs of sample and candidate would be more


@dataclass(frozen=True, eq=False)
class Evidence:
    """What one attacked surface shows, for private samples (n,) and unseen ones (m,)."""

    case: Case
    pool: Pool
    matches: Matches
    control: Matches  # of the unseen samples
    times: Sequence[float]  # of the curve over time, in seconds of the attack
    stage: Tensor  # of each candidate: the first of these times at which it was there
    signal_check: SignalCheck
    outputs: tuple[Tensor, Tensor]
    calibration: Calibration
    line: float  # the similarity above which a sample counts as recognisable
    private: Grades
    unseen: Grades
    found: Found
    effort: Effort
    sight: Sight
    answer: SignalRecord
    seconds: float  # of matching

    @property
    def attacked(self) -> Attacked:
        """What the verdict rests on."""
        return Attacked(self.found, self.effort, self.sight)


def measure(
    case: Case, pool: Pool, policy: Policy, examined: Examined, progress: Report = quiet, num_surfaces: int = 1
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
    outputs, layer = case.outputs(), attacked_layer(case, pool)
    signal_check = check_signal(case, layer, policy.window)
    shares = only_shares_differ(case, examined.comparability, policy.fpr)
    labels = (case.private.y, case.unseen.y) if shares else None
    calibration = calibrate_sets(matches.similarity, control.similarity, policy.fpr, labels)
    line = recognisable_line(control.similarity, calibration.threshold, case.private.measure)
    exact = exact_samples(case, pool, layer)
    own, unseen = (
        graded(each.similarity, recovered, is_exact, line)
        for each, recovered, is_exact in (
            (matches, calibration.recovered, exact[0]),
            (control, control.similarity > calibration.threshold, exact[1]),
        )
    )
    answer = _answer(signal_check, policy.fpr)
    found = found_of(own, unseen, min(1.0, num_surfaces * calibration.p_value))
    effort, ratio, outliers = _effort(case, pool, layer, examined), parameter_ratio(case), None
    if is_crowded(found, effort) and ratio <= FAR_BELOW:
        matched = Reactions(matches.similarity, control.similarity)
        outliers = outlier_p_value(case, layer, signal_check, matched)
    sight = Sight(
        signal_p_value=answer.p_value,
        num_held=answer.num_held,
        knows_p_value=1.0 if answer.knows_p_value is None else answer.knows_p_value,
        accuracy=_accuracy(examined.data_check),
        differences=[] if labels else _differences(examined.comparability),
        ratio=ratio,
        outlier_p_value=outliers or 0.0,
        unchecked=_unchecked(case, pool, examined, signal_check, control),
    )
    progress(1.0, "compared")
    return Evidence(
        case=case,
        pool=pool,
        matches=matches,
        control=control,
        times=times,
        stage=stage,
        signal_check=signal_check,
        outputs=outputs,
        calibration=calibration,
        line=line,
        private=own,
        unseen=unseen,
        found=found,
        effort=effort,
        sight=sight,
        answer=answer,
        seconds=time.perf_counter() - began,
    )


def found_of(private: Grades, unseen: Grades, p_value: float) -> Found:
    """Counts of both sets; each sample counts with the best of its grades."""
    own, others = ({grade: int(which.sum()) for grade, which in each.items()} for each in (private, unseen))
    return Found(
        num_recovered=own["trace"],
        num_recognisable=own["recognisable"],
        num_exact=own["exact"],
        num_samples=len(private["trace"]),
        num_unseen=len(unseen["trace"]),
        p_value=p_value,
        num_recovered_unseen=others["trace"],
        num_recognisable_unseen=others["recognisable"],
        num_exact_unseen=others["exact"],
    )


def _unchecked(
    case: Case, pool: Pool, examined: Examined, signal_check: SignalCheck, control: Matches
) -> list[Doubt]:
    """What could not be looked at: no reason against a leak, but against a pass."""
    return [
        *([UNLABELLED] * (examined.data_check.measure == "none")),
        *([ELSEWHERE] * pool.from_file),
        *([NO_GRADIENTS] * (not signal_check.asked_function)),
        *_seen_after_all(case, control),
        *([Doubt(case.target.unread, ALONE)] if case.target.unread else []),
        *(Doubt(f"{each.name} were not attacked: {each.why}", NOT_COVERED) for each in examined.surfaces.unread),
        *examined.published.doubts,
    ]


def stages(pool: Pool, n: int) -> tuple[list[float], Tensor]:
    """The times of the curve over time, and for each candidate the first of them at which it was there."""
    times = pool.finished.unique()
    num = min(len(times), MOST_POINTS, max(1, MOST_PAIRS // max(1, len(pool) * n)))
    kept = times[torch.arange(1, num + 1) * len(times) // max(1, num) - 1]  # the last one always
    return kept.tolist(), torch.searchsorted(kept, pool.finished)


def _seen_after_all(case: Case, control: Matches) -> list[Doubt]:
    """A doubt about unseen samples that were recovered themselves: a control that was trained on hides leaks."""
    num, unseen = num_returned(case.unseen, control.similarity, case.mean), len(case.unseen)
    if num <= MOST_SEEN * unseen:
        return []
    words = (
        f"{num} of {unseen} unseen samples were recovered too, each far more similar to its reconstruction "
        "than to any other unseen sample: the model may have been trained on them"
    )
    return [Doubt(words, RANDOM_UNSEEN, "unseen-trained")]


def num_returned(unseen: Samples, similarity: Tensor, mean: Tensor) -> int:
    """How many were recovered recognisably, and not because samples are alike, as digits are."""
    returned = 0
    for i in (similarity > LINES[unseen.measure]).nonzero()[:, 0].tolist():
        other, rows = unseen.x[nearest_other(unseen, i)][None], slice(i, i + 1)
        returned += bool(similarity[i] > compare(other - mean, unseen, rows, mean) + CLEARLY)
    return returned


def only_shares_differ(case: Case, comparability: Comparability, fpr: float) -> bool:
    """Whether the sets differ in the shares of their classes alone, all so large that each is its own control."""
    private, _ = strata(case.private.y, case.unseen.y, fpr)
    return not comparability.comparable and comparability.within_classes and bool((private >= 0).all())


def attacked_layer(case: Case, pool: Pool) -> AttackedLayer:
    """What the attack worked on: where it found the initial weights, the change since that."""
    told = pool.initial
    if case.base is not None or told is None or not told.found:
        return case.layer
    if pool.layer is not None and pool.layer.base is not None:
        return pool.layer
    seed = told.seed  # None: the state was solved for, which is done again
    seeds = SEEDS if seed is None else range(seed, seed + 1)
    initial = find_initial_weights(case.attacked, seeds=seeds, skip=told.skip or 0)
    return case.layer if initial is None else initial.change


def _effort(case: Case, pool: Pool, layer: AttackedLayer, examined: Examined) -> Effort:
    """How hard was tried, by which attacker, and how many samples could have been separated."""
    facts = pool.facts
    return Effort(
        method=pool.attack["method"],
        status=facts["status"],
        applies=facts.get("applies", True),
        seconds=facts["seconds"],
        num_candidates=len(pool),
        rank=facts["rank"],
        capacity=min(most_samples(layer), tellable(layer.shape), layer.weight.shape[1] - 1),
        estimated=facts["estimated_num_samples"],
        attacker=_attacker(case, pool, layer, examined),
        base_given=case.base is not None,
        num_proven=int((pool.proven & ~pool.copies).sum()),
    )


def parameter_ratio(case: Case) -> float:
    """The model's parameters for each value of a sample: H22's count of equations over that of unknowns.

    Where fewer values enter the attacked layer than a sample has, these are counted.
    """
    values = min(case.private.x[0].numel(), case.given[0].x[0].numel())
    return case.target.num_parameters / (values * len(case.private))


def most_samples(layer: AttackedLayer) -> int:
    """How many samples the attacked directions can hold such that single ones can be separated.

    Where the spectrum ends there is nothing beyond, and each sample has a direction of its own; inputs that sum to
    zero have one less. An adapter of rank r holds r mixtures of any number of samples. If noise hides the rest,
    samples share the directions that stand out.
    """
    if layer.span.ends:
        return max(layer.span.rank + 1, layer.num_samples or 0)
    return DIRECTIONS_SHARED * layer.span.rank


def _attacker(case: Case, pool: Pool, layer: AttackedLayer, examined: Examined) -> Attacker:
    if case.surface is not None and case.surface.kind in ("copies", "gradients"):
        given = any(state.is_file for state in examined.surfaces.used)
        return "has several checkpoints" if given else "has two copies"
    if layer.is_moment:
        return "has the optimiser"
    if not pool.attack.get("base"):
        return "blind"
    return "computes the initial weights" if pool.initial is not None and pool.initial.found else "has the base"


def _answer(signal_check: SignalCheck, fpr: float) -> SignalRecord:
    clearest = signal_check.clearest(fpr)
    return SignalRecord(
        p_value=signal_check.p_value(fpr),
        num_held=clearest.num_held(fpr),
        num_asked=len(clearest.own),
        knows_p_value=signal_check.knows_p_value,
        num_good=int((signal_check.by_papers[0] > GOOD).sum()),
        num_good_unseen=int((signal_check.by_papers[1] > GOOD).sum()),
    )


def _accuracy(check: DataCheck) -> tuple[float, float] | None:
    """On private and on unseen samples, of a classifier."""
    own, unseen = check.private_accuracy, check.unseen_accuracy
    return None if check.measure != "accuracy" or own is None or unseen is None else (own, unseen)


def _differences(comparability: Comparability) -> list[str]:
    """Why the two sets cannot be compared."""
    if comparability.comparable:
        return []
    return [
        f"private and unseen samples are not comparable: {'; '.join(comparability.reasons)}. "
        "Compare with a random hold-out of the same source; `unfit split` makes one"
    ]


def exact_samples(case: Case, pool: Pool, layer: AttackedLayer) -> tuple[Tensor, Tensor]:
    """Which private and which unseen samples equal a candidate that has a proof."""
    proven = pool.blocks.take(pool.proven.nonzero()[:, 0])
    common = case.private.centred(case.mean).x.mean(0, keepdim=True)
    scaled = layer.bias is not None
    first, second = (are_exact(proven, each, case.mean, common, scaled) for each in (case.private, case.unseen))
    return first, second
