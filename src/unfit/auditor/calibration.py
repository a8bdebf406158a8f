"""What counts as recovered, and with what confidence, judged by samples the model never saw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unfit.auditor.probability import at_least, at_most, log_choose


def calibrate(unseen_similarity: Tensor, fpr: float) -> float:
    """The threshold that at most a fraction `fpr` of the unseen samples exceeds."""
    allowed = int(fpr * len(unseen_similarity))
    return float(unseen_similarity.sort(descending=True)[0][allowed])


def chance(num_recovered: int, num_samples: int, num_unseen: int, fpr: float) -> float:
    """The probability of `num_recovered` or more above the threshold if members were like unseen samples.

    The threshold is the (a + 1)-th largest unseen similarity, a = fpr · num_unseen. So at least r members exceed
    it exactly if at most a of the r + a largest similarities overall are unseen: a hypergeometric distribution.
    """
    allowed = int(fpr * num_unseen)
    return at_most(allowed, num_samples + num_unseen, num_unseen, num_recovered + allowed)


def p_more_often(num: int, num_samples: int, num_unseen_too: int, num_unseen: int) -> float:
    """How often as many of all that have a property are private ones, if chance decides who is (Fisher, exact)."""
    return at_least(num, num_samples + num_unseen, num + num_unseen_too, num_samples)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Which private samples left a trace, and how often chance would give as many."""

    fpr: float
    threshold: float  # that of all unseen samples together
    recovered: Tensor  # (n,), bool
    p_value: float


def calibrate_sets(
    similarity: Tensor, unseen_similarity: Tensor, fpr: float, labels: tuple[Tensor, Tensor] | None = None
) -> Calibration:
    """Judge private samples by unseen ones; with the `labels` of both, each class by its own."""
    threshold = calibrate(unseen_similarity, fpr)
    if labels is None:
        recovered = similarity > threshold
        p_value = chance(int(recovered.sum()), len(similarity), len(unseen_similarity), fpr)
    else:
        y, unseen_y = labels
        recovered = similarity > calibrate_by_class(unseen_similarity, unseen_y, y, fpr)
        p_value = chance_by_class(int(recovered.sum()), unseen_y, y, fpr)
    return Calibration(fpr, threshold, recovered, p_value)


def strata(private_y: Tensor, unseen_y: Tensor, fpr: float) -> tuple[Tensor, Tensor]:
    """The stratum that each private and each unseen sample is judged in: its class, or −1 for all small classes.

    A class is large if a share `fpr` of its unseen samples is at least one. The shares of large classes may
    differ between both sets; those within stratum −1 may not, or its threshold means nothing.
    """
    labels, counts = unseen_y.unique(return_counts=True)
    large = labels[torch.tensor([int(fpr * num) >= 1 for num in counts.tolist()])]
    private, unseen = (torch.where(torch.isin(y, large), y, -1) for y in (private_y, unseen_y))
    return private, unseen


def calibrate_by_class(unseen_similarity: Tensor, unseen_y: Tensor, private_y: Tensor, fpr: float) -> Tensor:
    """The threshold for each private sample, calibrated on the unseen samples of its own stratum.

    It is infinite where there are none: nothing can be said of such a sample.
    """
    private, unseen = strata(private_y, unseen_y, fpr)
    thresholds = torch.full(private.shape, torch.inf)
    for stratum in unseen.unique():
        thresholds[private == stratum] = calibrate(unseen_similarity[unseen == stratum], fpr)
    return thresholds


def chance_by_class(num_recovered: int, unseen_y: Tensor, private_y: Tensor, fpr: float) -> float:
    """`chance`, for thresholds by class. The strata are independent, so their sum is a convolution."""
    private, unseen = strata(private_y, unseen_y, fpr)
    total = np.ones(1)
    for stratum in unseen.unique():
        n, m = int((private == stratum).sum()), int((unseen == stratum).sum())
        total = np.convolve(total, _num_above(n, m, int(fpr * m)))
    return min(1.0, float(total[num_recovered:].sum()))


def _num_above(n: int, m: int, allowed: int) -> npt.NDArray[np.float64]:
    """The probabilities that 0, …, n of n samples exceed the (allowed + 1)-th largest of m that are like them.

    Any order of the n + m is as likely, so the number is negative hypergeometric.
    """
    r = np.arange(n + 1)
    below = n - r + m - allowed - 1
    found: npt.NDArray[np.float64] = np.exp(
        log_choose(r + allowed, r) + log_choose(below, n - r) - log_choose(n + m, n)
    )
    return found


def roc(similarity: Tensor, unseen_similarity: Tensor) -> tuple[Tensor, Tensor]:
    """(false, true) positive rates at every threshold, strictest first; both start at 0 and end at 1."""
    thresholds = torch.cat([similarity, unseen_similarity]).unique().flip(0)[:, None]
    rates = [(values >= thresholds).float().mean(1) for values in (unseen_similarity, similarity)]
    false, true = (torch.cat([rate.new_zeros(1), rate]) for rate in rates)
    return false, true
