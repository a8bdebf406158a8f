"""What counts as recovered, and with what confidence, judged by samples the model never saw."""

from __future__ import annotations

import torch
from torch import Tensor


def calibrate(unseen_similarity: Tensor, fpr: float) -> float:
    """The threshold that at most a fraction `fpr` of the unseen samples exceeds."""
    allowed = int(fpr * len(unseen_similarity))
    return float(unseen_similarity.sort(descending=True)[0][allowed])


def chance(num_recovered: int, num_samples: int, num_unseen: int, fpr: float) -> float:
    """The probability of `num_recovered` or more above the threshold if members were like unseen samples.

    The threshold is the (a + 1)-th largest unseen similarity, a = fpr · num_unseen. So at least r members exceed
    it exactly if at most a of the r + a largest similarities overall are unseen: a hypergeometric distribution.
    """
    from scipy.stats import hypergeom  # imported here because it takes a second to load

    allowed = int(fpr * num_unseen)
    return float(hypergeom.cdf(allowed, num_samples + num_unseen, num_unseen, num_recovered + allowed))


def interval(count: int, total: int) -> tuple[float, float]:
    """The 95% Clopper–Pearson confidence interval of the rate behind `count` out of `total`."""
    from scipy.stats import binomtest

    bounds = binomtest(count, total).proportion_ci(0.95, method="exact")
    return float(bounds.low), float(bounds.high)


def roc(similarity: Tensor, unseen_similarity: Tensor) -> tuple[Tensor, Tensor]:
    """(false, true) positive rates at every threshold, strictest first; both start at 0 and end at 1."""
    thresholds = torch.cat([similarity, unseen_similarity]).unique().flip(0)[:, None]
    rates = [(values >= thresholds).float().mean(1) for values in (unseen_similarity, similarity)]
    false, true = (torch.cat([rate.new_zeros(1), rate]) for rate in rates)
    return false, true
