"""How much of a sample came back: a trace, a recognisable picture, or the sample itself."""

from __future__ import annotations

from typing import Final, Literal

from torch import Tensor

from unfit.auditor.samples import Measure

Grade = Literal["trace", "recognisable", "exact"]
GRADES: Final[tuple[Grade, ...]] = ("trace", "recognisable", "exact")
GRADE_WORDS: Final[dict[Grade, str]] = {
    "trace": "leaving a trace or more",
    "recognisable": "recognisable or exact",
    "exact": "exact",
}
LINES: Final[dict[Measure, float]] = {
    "edge correlation": 0.6,  # above it a person recognises nearly every image (docs/method.md shows both sides)
    "relative error": 0.75,  # an error of a quarter of the vector's length
    "explained variance": 0.75,  # an error of half of what sets the sample apart
}
HIGHEST = 0.99  # of a similarity, whose largest value is 1: a normal distribution would go on beyond
RARE_TAIL = 3.09  # standard deviations above the mean, which 1 in 1,000 of a normal distribution exceeds


def recognisable_line(unseen_similarity: Tensor, threshold: float, measure: Measure) -> float:
    """The similarity above which a sample counts as recognisable.

    It is a fixed line that a person agrees with, and never below what 1 in 1,000 unseen samples reach. Few audits
    have thousands of those, so that is taken from their mean and spread; where all pictures look alike, as digits
    do, it decides. `threshold` is that of a trace, which is the weaker word.
    """
    spread = float(unseen_similarity.std()) if len(unseen_similarity) > 1 else 0.0
    rare = float(unseen_similarity.mean()) + RARE_TAIL * spread
    return max(LINES[measure], min(rare, HIGHEST), threshold)


def grade(similarity: float, is_proven: bool, is_recovered: bool, line: float) -> Grade | None:
    """The best grade that a sample earns; None if nothing of it came back."""
    if is_proven:
        return "exact"
    if not is_recovered:
        return None
    return "recognisable" if similarity > line else "trace"


def count(grades: list[Grade | None], least: Grade) -> int:
    """How many are of this grade or a better one."""
    return sum(each is not None and GRADES.index(each) >= GRADES.index(least) for each in grades)
