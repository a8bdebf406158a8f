"""Samples that are not images, as people read them: column by column, true and reconstructed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.auditor.record import OF_FEATURES, Record
from unfit.base.errors import clean

MOST_ROWS = 60_000  # of all samples together: 2 MB of a page
ROWS = (12, 60)  # of one sample: of the largest sets, and of the smallest
MANY_COLUMNS, MOSTLY_ZERO = 50, 0.8  # named columns, share of zeros: then a sample is a list of what it has
LITTLE = 0.1  # of the largest value: a reconstructed value below it is the attack's noise, not an entry
LONGEST_NAME = 60  # letters
STILLS = 6  # samples that a page shows where no script runs …
STILL_ROWS = 12  # … and rows of each


@dataclass(frozen=True)
class Row:
    """One column of one sample."""

    column: int
    true: float
    back: float

    @property
    def error(self) -> float:
        return abs(self.back - self.true)


@dataclass(frozen=True)
class Tables:
    """A table for each sample, the columns that set it apart first; and what is left out of it."""

    rows: list[list[Row]]
    num_left: int
    largest_left: list[float]  # of the errors, in the columns that are left out
    more_entries: list[tuple[int, int]]  # entries left out: of the sample, and of its reconstruction
    names: dict[int, str]  # of the columns that are shown
    noun: str  # of a column that has no name
    has_entries: bool  # whether a sample is read as a list of what it has

    def name(self, column: int) -> str:
        return self.names.get(column, f"{self.noun} {column}")

    def data(self) -> dict[str, Any]:
        """For the page's script."""
        return {
            "rows": [[[row.column, row.true, row.back] for row in rows] for rows in self.rows],
            "numLeft": self.num_left,
            "largestLeft": self.largest_left,
            "more": self.more_entries,
            "names": self.names,
            "noun": self.noun,
            "hasEntries": self.has_entries,
            "little": LITTLE,
        }


def as_tables(record: Record, arrays: Mapping[str, Tensor]) -> Tables | None:
    """Of vectors, and of features that are shown with images; a redacted audit has no values to show."""
    names = OF_FEATURES if OF_FEATURES[0] in arrays else ("original", "reconstruction")
    true, back = (arrays[name].double() for name in names)
    if record.redacted or true.ndim != 2:
        return None
    return _tables(record, true, back)


def _tables(record: Record, true: Tensor, back: Tensor) -> Tables:
    n, d = true.shape
    lists = has_entries(true, record.feature_names)
    num = min(d, max(ROWS[0], min(ROWS[1], MOST_ROWS // n)))
    shown = _chosen(true, back, lists, num)
    rest = torch.ones(n, d, dtype=torch.bool).scatter_(1, shown, False)
    errors = torch.where(rest, (true - back).abs(), 0).amax(1)
    entries = [(rest & (true > 0)).sum(1), (rest & _came_back(back)).sum(1)]
    used = shown.unique().tolist() if record.feature_names else []
    return Tables(
        rows=[
            [Row(*row) for row in zip(columns, _rounded(a), _rounded(b), strict=True)]
            for columns, a, b in zip(shown.tolist(), true.gather(1, shown), back.gather(1, shown), strict=True)
        ],
        num_left=d - num,
        largest_left=_rounded(errors),
        more_entries=[(a, b) for a, b in zip(*(each.tolist() for each in entries), strict=True)],
        names={column: short((record.feature_names or [])[column]) for column in used},
        noun="feature" if record.similarity.name == "explained variance" else "column",
        has_entries=lists,
    )


def has_entries(true: Tensor, names: list[str] | None) -> bool:
    """Whether a sample is a list of what it has, as a text is of its words: of many names it uses few."""
    return (
        names is not None
        and true.shape[1] >= MANY_COLUMNS
        and bool((true >= 0).all())
        and float((true == 0).double().mean()) >= MOSTLY_ZERO
    )


def _chosen(true: Tensor, back: Tensor, lists: bool, num: int) -> Tensor:
    """The columns (n, num) that are shown of each sample; few columns are all shown, in their own order."""
    if true.shape[1] <= ROWS[0]:
        return torch.arange(true.shape[1]).expand(len(true), -1)
    weights = _entry_weights(true, back) if lists else _apart(true, back)
    return weights.topk(num, dim=1).indices


def _entry_weights(true: Tensor, back: Tensor) -> Tensor:
    """The entries of the sample first, then those of its reconstruction, each by its share of the largest."""
    return torch.maximum(_of_largest(true), _of_largest(back)) + (true > 0)


def _of_largest(values: Tensor) -> Tensor:
    return values / values.amax(1, keepdim=True).clamp_min(1e-30)


def _came_back(back: Tensor) -> Tensor:
    return _of_largest(back) > LITTLE


def _apart(true: Tensor, back: Tensor) -> Tensor:
    """How far a value, or its reconstruction, is from the mean of its column, in standard deviations of it."""
    mean, std = true.mean(0), true.std(0, correction=0)
    usual = std[std > 0].median() if (std > 0).any() else std.new_ones(())
    return torch.maximum((true - mean).abs(), (back - mean).abs()) / torch.where(std > 0, std, usual)


def _rounded(values: Tensor) -> list[float]:
    """To six digits, nearly those of float32: more would only make the page larger."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def short(name: str) -> str:
    """A name from a file as one printable line of a few words."""
    shown = clean(name[: LONGEST_NAME + 1])
    return shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 1]}…"


def stills(record: Record, tables: Tables) -> list[dict[str, Any]]:
    """What a page shows of the samples nearest to their reconstructions where no script runs."""
    order = sorted(range(len(tables.rows)), key=lambda i: -record.samples[i].similarity)[:STILLS]
    return [
        {
            "sample": record.samples[i],
            "rows": [(tables.name(row.column), row) for row in tables.rows[i][:STILL_ROWS]],
            "num_left": tables.num_left + len(tables.rows[i][STILL_ROWS:]),
        }
        for i in order
    ]


def cells(true: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """Features as grey squares (n, 1, h, w) of a cell each; the sample's own largest is white."""
    low, high = true.amin(1, keepdim=True), true.amax(1, keepdim=True)
    across = _across(true.shape[1])
    down = math.ceil(true.shape[1] / across)

    def square(values: Tensor) -> Tensor:
        shades = ((values - low) / (high - low).clamp_min(1e-30)).clamp(0, 1)
        return F.pad(shades, (0, across * down - values.shape[1]), value=1.0).view(-1, 1, down, across)

    return square(true), square(back)


def _across(num: int) -> int:
    """Cells in a row: nearly a square, and if there is one that leaves no gap, that."""
    side = math.ceil(math.sqrt(num))
    return next((width for width in range(side, 2 * side) if num % width == 0), side)
