"""How much of a sample was recovered: a trace, a recognisable image, or the sample itself."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.auditor.grades import GRADES, Grade
from unfit.auditor.match import rescaled
from unfit.auditor.samples import Measure, Samples

PROMISED = 0.02  # relative error within which a proof promises the sample; most proofs are within 0.001
LINES: Final[dict[Measure, float]] = {
    "edge correlation": 0.6,  # above it a person recognises nearly every image (docs/method-evidence.md)
    "relative error": 0.75,  # an error of a quarter of the vector's length
    "explained variance": 0.75,  # an error of half of what sets the sample apart
}
RARE = 0.001  # share of unseen samples that may reach the line of *recognisable*
WHOLE = 1 - 1e-6  # similarity of what is as good as the sample itself
Grades = dict[Grade, Tensor]
"""bool, for each sample: whether it is of this grade or a better one."""


def recognisable_line(unseen_similarity: Tensor, threshold: float, measure: Measure) -> float:
    """The similarity above which a sample counts as recognisable.

    It is a fixed line that a person agrees with, and never below what 1 in 1,000 unseen samples reach; where all
    images look alike, as digits do, that decides. `threshold` is that of a trace, which is the weaker word.
    """
    return max(LINES[measure], rare_similarity(unseen_similarity), threshold)


def rare_similarity(unseen_similarity: Tensor) -> float:
    """What 1 in 1,000 of such samples reach, from far fewer of them.

    The similarity s of unrelated samples has a tail that ends at 1, so 1 − s falls as a power: −log(1 − s) is
    exponential above its median, and its mean excess there is the one number to estimate (Hill's estimator).
    """
    far = -torch.log1p(-unseen_similarity.double().clamp(0, WHOLE))
    middle = far.median()
    above = far[far > middle] - middle
    if not len(above):
        return 0.0
    excess = float(above.mean()) * math.log(max(1.0, len(above) / len(far) / RARE))
    return 1 - math.exp(-float(middle) - excess)


def graded(similarity: Tensor, recovered: Tensor, exact: Tensor, line: float) -> Grades:
    """Each sample by its similarity and by what is known of it: what is exact is recovered, too."""
    recovered = recovered | exact
    return {"trace": recovered, "recognisable": (recovered & (similarity > line)) | exact, "exact": exact}


def best_grades(graded: Grades) -> list[Grade | None]:
    """Of each sample; None if nothing of it was recovered. The better grades are parts of the weaker ones."""
    num = sum(which.int() for which in graded.values())
    return [GRADES[each - 1] if each else None for each in torch.as_tensor(num).tolist()]


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
