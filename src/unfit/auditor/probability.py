"""How often chance alone would give as much: the tests of an audit, from scipy.special and counting.

scipy.stats has them too, but takes as long to load as a small audit takes to compute.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
COUNTED = 8  # samples: where one set has no more and none are equal, all orders are counted


def at_most(num: int, total: int, marked: int, drawn: int) -> float:
    """The probability that at most `num` of the `drawn` are marked (hypergeometric)."""
    return min(1.0, float(_hypergeometric(total, marked, drawn, 0, num).sum()))


def at_least(num: int, total: int, marked: int, drawn: int) -> float:
    """The probability that at least `num` of the `drawn` are marked (hypergeometric)."""
    return min(1.0, float(_hypergeometric(total, marked, drawn, num, drawn).sum()))


def _hypergeometric(total: int, marked: int, drawn: int, low: int, high: int) -> Floats:
    """The probabilities of `low` to `high` marked ones, as far as they are possible."""
    k = np.arange(max(low, 0, drawn + marked - total), min(high, marked, drawn) + 1)
    found: Floats = np.exp(
        log_choose(marked, k) + log_choose(total - marked, drawn - k) - log_choose(total, drawn)
    )
    return found


def log_choose(total: Any, part: Any) -> Any:
    """The logarithm of the number of ways to choose so many of the total."""
    from scipy.special import gammaln

    return gammaln(total + 1) - gammaln(part + 1) - gammaln(total - part + 1)


def heads(num: int, of: int) -> float:
    """How often at least `num` of `of` coins show heads."""
    from scipy.special import bdtrc

    return float(bdtrc(num - 1, of, 0.5))


def student_quantile(tail: float, freedom: int) -> float:
    """What Student's t exceeds with the probability `tail`."""
    from scipy.special import stdtrit

    return -float(stdtrit(freedom, tail))


def interval(count: int, total: int) -> tuple[float, float]:
    """The 95% Clopper–Pearson confidence interval of the rate behind `count` out of `total`."""
    from scipy.special import betaincinv

    tail = 0.025
    low = float(betaincinv(count, total - count + 1, tail)) if count else 0.0
    high = float(betaincinv(count + 1, total - count, 1 - tail)) if count < total else 1.0
    return low, high


def mann_whitney(own: npt.ArrayLike, others: npt.ArrayLike) -> float:
    """How often chance alone would make the first numbers so much larger than the others (Mann and Whitney)."""
    x, y = np.asarray(own), np.asarray(others)
    m, n = len(x), len(y)
    _, place, counts = np.unique(np.concatenate([x, y]), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    u = float(ranks[:m].sum()) - m * (m + 1) / 2  # pairs in which the own number is larger; equal ones are half
    if min(m, n) <= COUNTED and counts.max() == 1:
        ways = _orders(min(m, n), max(m, n))
        return sum(ways[round(u) :]) / sum(ways)
    ties = float((counts.astype(float) ** 3 - counts).sum()) / ((m + n) * (m + n - 1))
    variance = m * n / 12 * (m + n + 1 - ties)
    if variance <= 0:  # all are equal
        return 1.0
    return 0.5 * math.erfc((u - m * n / 2 - 0.5) / math.sqrt(2 * variance))


def _orders(m: int, n: int) -> list[int]:
    """How many orders of m and n numbers have 0, 1, …, m·n pairs in which the first is larger.

    Their generating function is the product of (1 − q^(n + i)) / (1 − qⁱ) over i = 1, …, m.
    """
    ways = [1] + [0] * (m * n)
    for i in range(1, m + 1):
        for u in range(m * n, n + i - 1, -1):
            ways[u] -= ways[u - n - i]
        for u in range(i, m * n + 1):
            ways[u] += ways[u - i]
    return ways
