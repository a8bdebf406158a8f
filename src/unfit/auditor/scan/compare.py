"""Which samples stand in an array: fast, by columns that hold the same values, and by hashes of whole rows.

Columns of a table may come in another order, scaled each by itself, in another type, or be only some of them. So
the columns of the file are first matched with columns of the samples by their values alone, and rows are then
joined on the columns that match. Rows that are near are left to `stored`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from unfit.auditor.stored import RARE, surprise

Rows = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
PROBED = 128  # values of a column of the file that are looked up
FIRST = 5  # looked up before the others
SHARE = 0.9  # of them that must be values of the same column of the samples
TOLERANCE = 2e-6  # relative to the largest value of a column; half precision has one of its own
HALF_TOLERANCE = 1e-3
MOST_COLUMNS = 512
MOST_LOOKUPS = 100_000
FEWEST_VALUES = 3  # different ones: zeros and ones match everywhere
LEAST_COLUMNS = 2  # that match
WINDOW = 64  # rows that agree in the most telling column
MISSING = -9.87654321e30  # stands for a gap
ODD = 0x9E3779B97F4A7C15


@dataclass(frozen=True, eq=False)
class Known:
    """All samples in one form, private ones first, ready to be looked up."""

    x: Rows

    @cached_property
    def filled(self) -> Rows:
        return np.where(np.isnan(self.x), MISSING, self.x)

    @cached_property
    def columns(self) -> list[Rows]:
        """The different values of each, sorted."""
        return [np.unique(column) for column in self.filled.T]

    @cached_property
    def scales(self) -> list[float]:
        return [float(np.abs(each[each != MISSING]).max(initial=0.0)) or 1.0 for each in self.columns]

    @cached_property
    def rare(self) -> Mask:
        """Samples that chance does not repeat."""
        return surprise(torch.from_numpy(self.filled)).numpy() >= RARE

    @cached_property
    def tells(self) -> Mask:
        """Samples that are not constant."""
        return self.filled.max(1, initial=-np.inf) > self.filled.min(1, initial=np.inf)

    @cached_property
    def hashes(self) -> npt.NDArray[np.uint64]:
        return hashes(self.filled)


def hashes(rows: Rows) -> npt.NDArray[np.uint64]:
    """One number for each row, equal for rows that are equal in single precision."""
    rng = np.random.default_rng(ODD)
    odd = rng.integers(0, 2**63, rows.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    found = np.zeros(len(rows), np.uint64)
    size = max(1, 2**22 // max(1, rows.shape[1]))
    for at in range(0, len(rows), size):
        with np.errstate(over="ignore"):
            part = np.ascontiguousarray(rows[at : at + size], dtype=np.float32) + np.float32(0)  # no negative zero
        found[at : at + size] = (part.view(np.uint32).astype(np.uint64) * odd).sum(1, dtype=np.uint64)
    return found


def rows_held(array: Rows, forms: Sequence[Known], is_half: bool = False) -> tuple[Mask, Mask]:
    """Which samples are rows of a matrix, in whichever form, type, scale or order of columns; which are too rare.

    Too rare to be there by chance: judged by the columns that agree, not by all that a sample has.
    """
    found = np.zeros(len(forms[0].x), dtype=bool)
    rare = found.copy()
    array = np.where(np.isnan(array), MISSING, array)
    for form in forms:
        if form.x.shape[1] == array.shape[1] > 1:
            here = np.isin(form.hashes, hashes(array)) & form.tells
            if here.any():
                found, rare = found | here, rare | (here & form.rare)
    if array.shape[1] <= MOST_COLUMNS:
        here, few = _by_columns(array, forms, HALF_TOLERANCE if is_half else TOLERANCE)
        found, rare = found | here, rare | few
    return found, rare


def _by_columns(array: Rows, forms: Sequence[Known], tolerance: float) -> tuple[Mask, Mask]:
    """Join the rows on the columns whose values are those of a column of the samples."""
    found = np.zeros(len(forms[0].x), dtype=bool)
    pairs = _matched(array, forms, tolerance)
    different = {j: form for _, form, j in pairs}
    if len(different) < LEAST_COLUMNS:
        return found, found
    at, form, j = max(pairs, key=lambda pair: len(pair[1].columns[pair[2]]))
    order = np.argsort(form.filled[:, j], kind="stable")
    known, wanted = form.filled[order, j], array[:, at]
    room = tolerance * form.scales[j]
    low, high = np.searchsorted(known, wanted - room), np.searchsorted(known, wanted + room, side="right")
    for step in range(int(min(WINDOW, (high - low).max(initial=0)))):
        rows = np.flatnonzero(low + step < high)
        samples = order[low[rows] + step]
        same = np.ones(len(rows), dtype=bool)
        for c, other, k in pairs:
            same &= np.abs(other.filled[samples, k] - array[rows, c]) <= tolerance * other.scales[k]
        found[samples[same]] = True
    agreeing = np.stack([form.filled[:, j] for j, form in different.items()], 1)
    return found, found & (surprise(torch.from_numpy(agreeing)).numpy() >= RARE) if found.any() else found


def _matched(array: Rows, forms: Sequence[Known], tolerance: float) -> list[tuple[int, Known, int]]:
    """Columns of the array, each with the column of the samples that has its values."""
    chosen = np.linspace(0, len(array) - 1, min(PROBED, len(array))).astype(int)
    lookups = array.shape[1] * sum(form.x.shape[1] for form in forms)
    found = []
    for c in range(array.shape[1]):
        probes = np.unique(array[chosen, c])
        if len(probes) < FEWEST_VALUES:
            continue
        first = probes[:: max(1, len(probes) // FIRST)][:FIRST]
        best: tuple[float, int, Known, int] | None = None  # how near, how many values, and which
        for form in forms:
            every = range(form.x.shape[1]) if lookups <= MOST_LOOKUPS else range(c, min(c + 1, form.x.shape[1]))
            for j in every:
                if not _may_match(first, form.columns[j], tolerance * form.scales[j]):
                    continue
                apart = _apart(probes, form.columns[j]) / form.scales[j]
                rank = (-round(float(np.minimum(apart, tolerance).mean()), 12), len(form.columns[j]))
                if (apart <= tolerance).mean() >= SHARE and (best is None or rank > best[:2]):
                    best = (*rank, form, j)
        if best is not None and best[1] >= FEWEST_VALUES:
            found.append((c, best[2], best[3]))
    return found


def _may_match(probes: Rows, values: Rows, room: float) -> bool:
    """Whether most of a few values are there: nearly all pairs of columns end here."""
    low, high = values.searchsorted(probes - room), values.searchsorted(probes + room, side="right")
    return 2 * int(np.count_nonzero(high > low)) > len(probes)


def _apart(probes: Rows, values: Rows) -> Rows:
    """How far each is from the nearest of the sorted values."""
    right = np.searchsorted(values, probes).clip(0, len(values) - 1)
    left = (right - 1).clip(0)
    return np.minimum(np.abs(values[left] - probes), np.abs(values[right] - probes))


def patterns_held(array: Rows, patterns: Mask) -> Mask:
    """Which texts have the same words as a row of the matrix has entries."""
    if patterns.shape[1] != array.shape[1] or not len(patterns):
        return np.zeros(len(patterns), dtype=bool)
    known, here = hashes(patterns.astype(np.float64)), hashes((array != 0).astype(np.float64))
    return np.isin(known, here) & (patterns.sum(1) >= LEAST_COLUMNS)
