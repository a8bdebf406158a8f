"""What a paper says, what was found, and whether that agrees: by a rule, with a margin, from trained nets alone.

A claim agrees if what was measured passes its bar by the margin or more, differs if it misses it by as much, and
is too close to call in between. The margin is what another draw of the samples may well change.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import torch
from scipy.stats import fisher_exact, spearmanr
from torch import Tensor

from unfit.auditor.audit import Audit
from unfit.auditor.calibration import calibrate
from unfit.base.files import Strict

CERTAIN = 0.01  # chance shows as much less often than this: agrees …
OPEN = 0.1  # … and up to this often: too close to call
ERRORS = 2.58  # standard errors of a difference between counts: chance exceeds them in 1 of 100 cases
TRAINED = 0.75  # a net that fits fewer of its training samples supports no claim
TWICE = 2  # times as many as on unseen samples: else most of them are near by chance, and merely look alike
DOZENS = 24 / 500  # of the samples
COUNT_MARGIN = 2  # of a count that must not exceed a handful
SIMILARITY_MARGIN = 0.05  # of mean similarities and correlations

NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")

Kind = Literal["good", "legible"]  # by the papers' SSIM, or by the correlation of edges as audits grade images
LEGIBLE = (
    "legible: correlation of edges above 0.6 and above what 1 in 1,000 unseen digits reach, "
    "because noise on a black background keeps SSIM below 0.4 even for the digits that the authors published"
)
Verdict = Literal["agrees", "differs", "too close to call"]
_SAID: dict[Verdict, str] = {"agrees": "agree", "differs": "differ", "too close to call": "too close to call"}


class Claim(Strict):
    """One claim; `rule` holds its bar and its margin, `by` how much was measured to spare or is missing."""

    claim: str
    paper: str
    ours: str
    rule: str
    verdict: Verdict
    by: str
    num_seeds: int = 1


def judge(value: float, bar: float, margin: float) -> Verdict:
    """More is better; what lies on the bar itself is never decided."""
    if value > bar and value >= bar + margin:
        return "agrees"
    return "differs" if value < bar and value <= bar - margin else "too close to call"


def by_chance(p: float, right_way: bool) -> Verdict:
    """By how often chance alone would show as much."""
    if p < CERTAIN:
        return "agrees" if right_way else "differs"
    return "too close to call" if p < OPEN and right_way else "differs"


def fitted(audit: Audit) -> float:
    """The share of samples on their own side of the decision; an output of exactly zero is on neither."""
    side = audit.arrays["output"]
    if audit.record.target.architecture.endswith("-1"):  # else it is the margin already
        side = side * torch.tensor([2 * sample.label - 1 for sample in audit.record.samples])
    return float((side > 0).float().mean())


def trained(audit: Audit) -> bool:
    """Whether the net has learnt its samples."""
    return fitted(audit) >= TRAINED


def _if_trained(audit: Audit, claim: Claim) -> Claim:
    if trained(audit):
        return claim
    why = f"not trained: {fitted(audit):.0%} of its samples fitted"
    return claim.model_copy(update={"verdict": "too close to call", "by": why})


def undecided(what: str, paper: str) -> Claim:
    """Where no net is left to judge by."""
    rule = f"nets that fit at least {TRAINED:.0%} of their samples"
    return Claim(
        claim=what, paper=paper, ours="–", rule=rule, verdict="too close to call", by="too few trained nets"
    )


# Several seeds --------------------------------------------------------------------------------------------------


def over_seeds(claims: Sequence[Claim]) -> Claim:
    """One claim, measured with several draws of the samples: where their verdicts are not the same, it is open."""
    count = Counter(claim.verdict for claim in claims)
    if len(claims) == 1:
        return claims[0]
    return claims[0].model_copy(
        update={
            "claim": over_words([claim.claim for claim in claims]),  # it may name what is best with its seed
            "ours": over_words([claim.ours for claim in claims]),
            "verdict": claims[0].verdict if len(count) == 1 else "too close to call",
            "by": ", ".join(f"{num} of {len(claims)} {_SAID[verdict]}" for verdict, num in count.items()),
            "num_seeds": len(claims),
        }
    )


def over_words(words: Sequence[str]) -> str:
    """The same words with other numbers: the mean of each number, and the extremes in brackets."""
    if len({NUMBER.sub("", each) for each in words}) > 1:
        return "; ".join(dict.fromkeys(words))
    spreads = [_mean_and_extremes(numbers) for numbers in zip(*map(NUMBER.findall, words), strict=True)]
    return NUMBER.sub(lambda _: spreads.pop(0), words[0])


def _mean_and_extremes(numbers: Sequence[str]) -> str:
    if len(set(numbers)) == 1:
        return numbers[0]
    digits = max(1, *(len(number.partition(".")[2]) for number in numbers))
    low, *_, high = sorted(numbers, key=float)
    return f"{statistics.mean(map(float, numbers)):.{digits}f} ({low}–{high})"


# Kinds of claims ------------------------------------------------------------------------------------------------


def leaks(audit: Audit, what: str, paper: str) -> Claim:
    """A signal: more samples stand out than chance would show, by the samples the model never saw."""
    record = audit.record
    return _if_trained(
        audit,
        Claim(
            claim=what,
            paper=paper,
            ours=_found(*_numbers(audit)),
            rule=f"more recovered than chance would show, p < {CERTAIN}",
            verdict=by_chance(record.p_value, True),
            by=f"p = {record.p_value:.2g}",
        ),
    )


def come_back(audit: Audit, what: str, paper: str, kind: Kind = "good") -> Claim:
    """Images, not only a signal."""
    return _if_trained(audit, come_back_counts(what, paper, *_numbers(audit, kind), kind))


def come_back_counts(
    what: str, paper: str, good: int, n: int, unseen: int, recovered: int, kind: Kind = "good"
) -> Claim:
    """More samples are good than by chance, and most of them not by chance: unseen ones are the control."""
    p = float(fisher_exact([[good, n - good], [unseen, n - unseen]], alternative="greater")[1])
    clearly = p < CERTAIN and good >= TWICE * unseen
    verdict: Verdict = "agrees" if clearly else "too close to call" if good > unseen else "differs"
    return Claim(
        claim=what,
        paper=paper,
        ours=_found(good, n, unseen, recovered, kind),
        rule=f"at least {TWICE} times as many {kind} as on unseen, and more than by chance, p < {CERTAIN}"
        + _meaning(kind),
        verdict=verdict,
        by=f"p = {p:.2g}",
    )


def dozens(audit: Audit, what: str, paper: str, kind: Kind = "good") -> Claim:
    """A share of the samples that is dozens of 500."""
    return _if_trained(audit, dozens_counts(what, paper, *_numbers(audit, kind), kind))


def dozens_counts(
    what: str, paper: str, good: int, n: int, unseen: int, recovered: int, kind: Kind = "good"
) -> Claim:
    bar = DOZENS * n
    margin = spread((good, n))
    return Claim(
        claim=what,
        paper=paper,
        ours=_found(good, n, unseen, recovered, kind),
        rule=f"{kind} beyond those on unseen: as 24 of 500 ({bar:.1f}) ± {margin:.1f}" + _meaning(kind),
        verdict=judge(good - unseen, bar, margin),
        by=f"{good - unseen - bar:+.1f}",
    )


def _numbers(audit: Audit, kind: Kind = "good") -> tuple[int, int, int, int]:
    """What is good or legible, of how many, of the unseen ones, and what was recovered."""
    record = audit.record
    good, unseen = record.num_good, record.num_good_unseen
    if kind == "legible":
        good, unseen = record.num_recognisable, record.num_recognisable_unseen
    return good, record.num_samples, unseen, record.num_recovered


def _found(good: int, n: int, unseen: int, recovered: int, kind: Kind = "good") -> str:
    return f"{good} of {n} {kind}, {unseen} on unseen; {recovered} recovered"


def _meaning(kind: Kind) -> str:
    """*Good* is explained once, on the page of all claims."""
    return f" ({LEGIBLE})" if kind == "legible" else ""


def ssims(audit: Audit) -> tuple[Tensor, Tensor]:
    """What the papers' figures show of the private and the unseen samples; vectors have another similarity."""
    name = "ssim" if "ssim" in audit.arrays else "similarity"
    return audit.arrays[name], audit.arrays[f"unseen_{name}"]


def ssim_threshold(audit: Audit) -> float:
    """The SSIM that a share `fpr` of the unseen samples exceeds."""
    return calibrate(ssims(audit)[1], audit.record.fpr)


def on_margin(audit: Audit, what: str) -> Claim:
    """Rank correlation of SSIM with −|output − margin|; the margin is the smallest |output|."""
    size = audit.arrays["output"].abs()
    correlation, p = spearmanr(ssims(audit)[0], -(size - size.min()))
    return _if_trained(audit, on_margin_of(what, float(correlation), float(p)))


def on_margin_of(what: str, correlation: float, p: float) -> Claim:
    return Claim(
        claim=f"{what}: good reconstructions lie on the margin",
        paper="yes",
        ours=f"rank correlation {correlation:.2f}",
        rule=f"rank correlation above 0, p < {CERTAIN}",
        verdict=by_chance(p, correlation > 0),
        by=f"p = {p:.2g}",
    )


def few(audit: Audit, what: str, paper: str, most: int) -> Claim:
    """At most a handful."""
    good, n, unseen, _ = _numbers(audit)
    return _if_trained(
        audit,
        Claim(
            claim=what,
            paper=paper,
            ours=f"{good} of {n} good, {unseen} on unseen",
            rule=f"at most {most} good, ± {COUNT_MARGIN}",
            verdict=judge(most - good, 0, COUNT_MARGIN),
            by=f"{most - good:+d}",
        ),
    )


def compared(what: str, paper: str, larger: float, smaller: float, words: str, margin: float) -> Claim:
    """The first number is to be larger; `words` has two places for the two."""
    difference = larger - smaller
    small = abs(larger) < 1.5
    return Claim(
        claim=what,
        paper=paper,
        ours=words.format(larger, smaller),
        rule=f"a difference of {margin:.2f} or more" if small else f"a difference of {margin:.1f} or more",
        verdict=judge(difference, 0, margin),
        by=f"{difference:+.2f}" if small else f"{difference:+g}",
    )


def spread(*counts: tuple[float, int]) -> float:
    """How far sums and differences of such counts, each (found, of n), vary with the draw of the samples."""
    return ERRORS * math.sqrt(sum(found * (1 - found / n) for found, n in counts))


def mean_similarity(audit: Audit) -> float:
    return float(ssims(audit)[0].mean())


def harder(sizes: Sequence[int], good: Sequence[int]) -> Claim:
    """The share of good ones falls with the number of samples."""
    shares = [num / n for num, n in zip(good, sizes, strict=True)]
    margin = ERRORS * math.sqrt(sum(s * (1 - s) / n for s, n in ((shares[0], sizes[0]), (shares[-1], sizes[-1]))))
    falls = shares == sorted(shares, reverse=True)
    verdict = judge(shares[0] - shares[-1], 0, margin)
    return Claim(
        claim="more samples are harder",
        paper="yes",
        ours="good: " + ", ".join(f"{share:.0%} of {n}" for share, n in zip(shares, sizes, strict=True)),
        rule=f"a share that never rises and falls by {margin:.0%} or more",
        verdict=verdict if falls or verdict == "differs" else "too close to call",
        by=f"{shares[-1] - shares[0]:+.0%} from first to last",
    )
