"""What counts as recovered, and how sure that is: thresholds and rates from samples the model never saw."""

from __future__ import annotations

import torch
from torch import Tensor


def calibrate(unseen_similarity: Tensor, fpr: float) -> float:
    """The threshold that at most a share `fpr` of the unseen samples exceeds."""
    allowed = int(fpr * len(unseen_similarity))
    return float(unseen_similarity.sort(descending=True)[0][allowed])


def chance(num_recovered: int, num_samples: int, num_unseen: int, fpr: float) -> float:
    """Probability of at least so many above the calibrated threshold if members were like unseen samples.

    The threshold is the (a + 1)-th largest of the unseen similarities, a = fpr · num_unseen. So r members exceed
    it just if at most a of the r + a largest of all similarities are unseen: hypergeometric.
    """
    from scipy.stats import hypergeom  # here: it takes a second to load

    allowed = int(fpr * num_unseen)
    return float(hypergeom.cdf(allowed, num_samples + num_unseen, num_unseen, num_recovered + allowed))


def interval(count: int, total: int) -> tuple[float, float]:
    """Clopper–Pearson: where the share lies that gave `count` of `total`, with 95% confidence."""
    from scipy.stats import binomtest

    bounds = binomtest(count, total).proportion_ci(0.95, method="exact")
    return float(bounds.low), float(bounds.high)


def roc(similarity: Tensor, unseen_similarity: Tensor) -> tuple[Tensor, Tensor]:
    """(false, true) positive rates at every threshold, from the strictest on; both begin at 0 and end at 1."""
    thresholds = torch.cat([similarity, unseen_similarity]).unique().flip(0)[:, None]
    rates = [(values >= thresholds).float().mean(1) for values in (unseen_similarity, similarity)]
    false, true = (torch.cat([rate.new_zeros(1), rate]) for rate in rates)
    return false, true
