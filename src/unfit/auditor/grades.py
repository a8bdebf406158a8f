"""How much of a sample came back: a trace, a recognisable picture, or the sample itself."""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.auditor.match import rescaled
from unfit.auditor.samples import Measure, Samples

Grade = Literal["trace", "recognisable", "exact"]
GRADES: Final[tuple[Grade, ...]] = ("trace", "recognisable", "exact")
GRADE_WORDS: Final[dict[Grade, str]] = {
    "trace": "leaving a trace or more",
    "recognisable": "recognisable or exact",
    "exact": "exact",
}
PROMISED = 0.02  # relative error within which a proof promises the sample; most proofs are within 0.001
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


def grade(similarity: float, is_exact: bool, is_recovered: bool, line: float) -> Grade | None:
    """The best grade that a sample earns; None if nothing of it was recovered. What is exact is recovered."""
    if is_exact:
        return "exact"
    if not is_recovered:
        return None
    return "recognisable" if similarity > line else "trace"


def are_exact(proven: Tensor, samples: Samples, mean: Tensor, common: Tensor, scaled: bool) -> Tensor:
    """Which samples (n,) equal one of the proven candidates (p, *shape), within what a proof promises.

    Both are compared as the model sees them. The error is relative to what sets the sample apart from `common`,
    the mean of the training samples, so that being alike is not being equal. `scaled`: whether the proof promises
    the scale too, as it does where the layer has a bias; else the best scale is taken. Vectors of whole numbers
    must be identical.
    """
    if not len(proven):
        return torch.zeros(len(samples), dtype=torch.bool)
    x, found = samples.centred(mean).x.flatten(1), proven.flatten(1)
    if scaled:
        found = found[torch.cdist(x, found).argmin(1)]
    else:
        found = found[torch.cdist(F.normalize(x), F.normalize(found)).argmin(1)]
        found = rescaled(found, x)
    apart = (x - common.flatten(1)).norm(dim=1)
    exact = (found - x).norm(dim=1) <= PROMISED * apart
    if samples.is_image or not bool((samples.x == samples.x.round()).all()):
        return exact
    stored = (found / samples.scale).view_as(samples.x) + mean
    return exact & (stored.round() == samples.x).flatten(1).all(1)


def rank(grade: Grade | None) -> int:
    """From nothing, −1, upwards."""
    return -1 if grade is None else GRADES.index(grade)


def count(grades: list[Grade | None], least: Grade) -> int:
    """How many are of this grade or a better one."""
    return sum(rank(each) >= rank(least) for each in grades)
