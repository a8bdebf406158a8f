"""The tests of an audit are those of scipy.stats, and give what it gives."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from unfit.auditor import probability


@pytest.mark.parametrize("total", [2, 7, 60, 5000])
def test_the_hypergeometric_distribution(total: int) -> None:
    rng = np.random.default_rng(total)
    for _ in range(40):
        marked, drawn = map(int, rng.integers(0, total + 1, 2))
        num = int(rng.integers(-1, drawn + 2))
        of = (total, marked, drawn)
        assert probability.at_most(num, *of) == pytest.approx(stats.hypergeom.cdf(num, *of), rel=1e-7, abs=1e-250)
        assert probability.at_least(num, *of) == pytest.approx(
            stats.hypergeom.sf(num - 1, *of), rel=1e-7, abs=1e-250
        )


@pytest.mark.parametrize(("num", "of"), [(0, 0), (0, 5), (5, 5), (6, 5), (700, 1000)])
def test_coins(num: int, of: int) -> None:
    assert probability.heads(num, of) == pytest.approx(stats.binom.sf(num - 1, of, 0.5), rel=1e-9)


@pytest.mark.parametrize(("count", "total"), [(0, 1), (1, 1), (0, 40), (3, 40), (40, 40), (12, 5000)])
def test_the_interval_of_a_rate(count: int, total: int) -> None:
    expected = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
    assert probability.interval(count, total) == pytest.approx((expected.low, expected.high), rel=1e-9)


@pytest.mark.parametrize(("tail", "freedom"), [(0.01, 3), (1e-6, 30), (0.4, 999)])
def test_students_quantile(tail: float, freedom: int) -> None:
    assert probability.student_quantile(tail, freedom) == pytest.approx(stats.t.isf(tail, freedom), rel=1e-9)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 2), (8, 9), (8, 300), (9, 9), (40, 40), (200, 1000)])
@pytest.mark.parametrize("digits", [0, 1, 9])
def test_mann_and_whitneys(m: int, n: int, digits: int, kind: type) -> None:
    """Counted where sets are small and nothing is equal, else by the normal distribution with ties."""
    rng = np.random.default_rng((m, n, digits))
    for shift in (-1, 0, 0.3, 3):
        x = (rng.normal(size=m) + shift).round(digits).astype(kind)
        y = rng.normal(size=n).round(digits).astype(kind)
        if len(np.unique([*x, *y])) == 1:
            continue
        expected = stats.mannwhitneyu(x.astype(float), y.astype(float), alternative="greater").pvalue
        assert probability.mann_whitney(x, y) == pytest.approx(expected, rel=1e-6)


def test_equal_numbers_say_nothing() -> None:
    assert probability.mann_whitney(np.ones(20), np.ones(30)) == 1
    assert probability.mann_whitney([1.0], [1.0]) == 1
