"""Which rows of a table moved in training: those that a sample used.

A row that no sample used has a gradient of exactly zero. So training leaves it as it was, or weight decay shrinks
it by one factor that all such rows share. All else that differs in such a row is rounding: of the type that stores
it, and of each step of decay. A row counts as moved only where none of these explains it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 2.0**-23  # of float32, relative
HALVES = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # and the relative error that rounding to them makes
FEW_COLUMNS = 4  # a row of fewer is a multiple of its base by chance: then no factor can be told
FEW_ROWS = 3  # that must share a factor before it counts as that of decay
PURE = 1e-3  # deviation of a row from a multiple of its base that decay's rounding may leave
ROUNDED = 8.0  # times what decay's rounding leaves of the typical row that stayed: others were seen up to 2
NO_FACTOR = "every row differs, and not by one common factor: nothing tells which were used"
ROUNDINGS = 4.0  # of a half type that a value that decayed may go through: base, product, file, and one to spare
FEW_SEEN = 50  # rows that tell at once that values are no whole numbers of steps
ONE_STEP = 2.1  # times the rounding error of a half type: to the next value
MOST_DECAY = 0.5  # of the base: more is no fine-tuning, and rows may agree in it by chance
LEVELS = 256  # values that an 8-bit type can hold
OFF = 0.05  # of a step: how far a value may lie from a whole number of steps, the first of which is measured
MOST_ALIKE = 32  # values in a typical row: fewer are ones and zeros, not floats made small
MIN_COLUMNS = 16  # a shorter row fits whole numbers of steps by chance


@dataclass(frozen=True, eq=False)
class Moved:
    """`rows`: (v,), bool. `excess`: (v,): how far each row moved, in units of what rounding explains."""

    rows: Tensor
    excess: Tensor
    factor: float  # what decay left of the rows that stayed
    why: str  # how it was told, or why it cannot be
    can_tell: bool = True

    @property
    def num(self) -> int:
        return int(self.rows.sum())

    @property
    def num_still(self) -> int:
        return len(self.rows) - self.num if self.can_tell else 0


def moved_rows(after: Tensor, before: Tensor) -> Moved:
    """after, before: (v, d), of which row i is the same word, user or category."""
    after, before = after.float(), before.float()
    steps = [step for step in map(grid_step, (after, before)) if step is not None]
    if steps and not (len(steps) == 2 and torch.equal(*steps)):
        return _on_grid(after, before, steps)
    kinds = [kind for kind in HALVES if any(_holds(kind, values) for values in (after, before))]
    kind = kinds[0] if kinds else torch.float32
    rounded = [values.to(kind).float() for values in (after, before)]  # what a file rounded did not move
    words = f"; {str(kind).removeprefix('torch.')} hides small steps" if kinds else ""
    equal = (rounded[0] == rounded[1]).all(1)
    if not (equal & before.any(1)).any():
        return _decayed(after, before, kind, words)
    still = equal | _rounded_down(rounded[0], rounded[1], kind, equal, is_twice=len(kinds) > 1)
    excess = torch.where(still, 0.0, _deviation(rounded[0], rounded[1], 1.0, kind) / EPSILON)
    return Moved(~still, excess, 1.0, f"rows that no sample used are equal{words}")


def _rounded_down(after: Tensor, before: Tensor, kind: torch.dtype, equal: Tensor, is_twice: bool) -> Tensor:
    """(v,): rows that differ by what is left of a decay that rounding swallows in most values.

    Such values are a little nearer to zero, all of them. In few columns training does that by chance too: then it
    counts as decay only where more rows look like it. What two types rounded may be off in both directions.
    """
    limit = max(PURE, ONE_STEP * HALVES.get(kind, 0.0))
    near = (after - before).abs() <= limit * before.abs().clamp_min(torch.finfo(kind).tiny)
    if is_twice:
        return near.all(1)
    found: Tensor = (near & (after.abs() <= before.abs()) & (after * before >= 0)).all(1) & ~equal
    by_chance = 0.5 ** after.shape[1] * int((~equal).sum())
    is_decay = after.shape[1] >= MIN_COLUMNS or int(found.sum()) > FEW_ROWS + 10 * by_chance
    return found & is_decay


def _nothing(rows: int, why: str) -> Moved:
    return Moved(torch.zeros(rows, dtype=torch.bool), torch.zeros(rows), 1.0, why, can_tell=False)


def _holds(kind: torch.dtype, values: Tensor) -> bool:
    return bool(torch.equal(values.to(kind).float(), values))


def _deviation(after: Tensor, before: Tensor, factor: Tensor | float, kind: torch.dtype) -> Tensor:
    """(v,): the largest |after / (factor · before) − 1| in a row; what was zero must stay zero.

    Below the smallest normal number of a type, its errors are no longer relative to the values.
    """
    expected = factor * before
    return ((after - expected).abs() / expected.abs().clamp_min(torch.finfo(kind).tiny)).amax(1)


# Decay -----------------------------------------------------------------------------------------------------------


def _decayed(after: Tensor, before: Tensor, kind: torch.dtype, words: str) -> Moved:
    """Rows that stayed are multiples of their base by one factor; values that training moves are not."""
    v, d = after.shape
    if d < FEW_COLUMNS:
        return _nothing(v, f"all rows differ, and {d} columns are too few to tell decay from training")
    a, b, unit = after.double(), before.double(), HALVES.get(kind, 0.0)
    factors = factors_of(a, b)
    own = _deviation(a, b, factors[:, None], kind)
    pure = b.any(1) & (own < max(PURE, ROUNDINGS * unit)) & ((factors - 1).abs() < MOST_DECAY)
    if int(pure.sum()) < FEW_ROWS:
        return _nothing(v, NO_FACTOR)
    factor = _mode(factors[pure])
    spread = _deviation(a[pure], b[pure], factor, kind)
    near = spread < max(2 * abs(1 - factor), 4 * EPSILON, ROUNDINGS * unit)  # a step's rounding is below the step
    if int(near.sum()) < FEW_ROWS:
        return _nothing(v, NO_FACTOR)
    tolerance = ROUNDINGS * unit or max(ROUNDED * float(spread[near].median()), 4 * EPSILON)
    excess = (_deviation(a, b, factor, kind) / tolerance).float()
    why = f"rows that no sample used shrank by one factor, {factor:.6g}, up to {tolerance:.1g}{words}"
    return Moved(excess > 1, excess, factor, why)


def factors_of(after: Tensor, before: Tensor) -> Tensor:
    """(v,): what multiple of its base each row is, by least squares."""
    return (after * before).sum(1) / before.square().sum(1).clamp_min(torch.finfo(torch.float64).tiny)


def _mode(values: Tensor) -> float:
    """The middle of the shortest interval that holds half of them, again and again (the half-sample mode)."""
    values = values.sort().values
    while len(values) > 2:
        half = (len(values) + 1) // 2
        widths = values[half - 1 :] - values[: len(values) - half + 1]
        start = int(widths.argmin())
        values = values[start : start + half] if half < len(values) else values[:2]
    return float(values.mean())


# Whole numbers ---------------------------------------------------------------------------------------------------


def _on_grid(after: Tensor, before: Tensor, steps: list[Tensor]) -> Moved:
    """Values of an 8-bit type lie within half a step of what they stand for; decay is seen on average alone."""
    a, b = after.double(), before.double()
    factors, alive = factors_of(a, b), b.any(1)
    if int(alive.sum()) < FEW_ROWS:
        return _nothing(len(a), NO_FACTOR)
    factor = _mode(factors[alive])
    apart = float((factors[alive] - factor).abs().median())  # how little the average of a row says
    gap, tolerance = (a - factor * b).abs().amax(1), 0.5 * torch.stack(steps).sum(0)[:, 0]
    unit = sum(error for kind, error in HALVES.items() if any(_holds(kind, values) for values in (after, before)))
    tolerance = tolerance + (apart + ONE_STEP * unit) * b.abs().amax(1)
    excess = (gap / tolerance.clamp_min(torch.finfo(torch.float64).tiny)).float()
    if int((excess <= 1).sum()) < FEW_ROWS:
        return _nothing(len(a), NO_FACTOR)
    return Moved(
        excess > 1,
        excess,
        factor,
        "rows that no sample used differ by 8-bit rounding alone, which hides small steps",
    )


def grid_step(values: Tensor) -> Tensor | None:
    """(v, 1): the step of an 8-bit type in each row, where all values of all rows are whole numbers of steps."""
    if values.shape[1] < MIN_COLUMNS:
        return None
    if len(values) > 2 * FEW_SEEN and grid_step(values[:: len(values) // FEW_SEEN]) is None:
        return None  # seen at once: sorting all takes seconds
    ordered = values.double().sort(1).values
    gaps = ordered.diff(dim=1)
    gaps = torch.where(gaps > EPSILON * ordered.abs().amax(1, keepdim=True), gaps, torch.inf)
    num_levels = gaps.isfinite().sum(1) + 1
    step = gaps.amin(1, keepdim=True)
    step = torch.where(step.isfinite(), step, torch.ones_like(step))
    counts = (ordered - ordered[:, :1]) / step
    fits = ((counts - counts.round()).abs().amax(1) < OFF) & (counts.amax(1) < LEVELS)
    if not fits.all() or float(num_levels.median()) < min(MOST_ALIKE, values.shape[1] / 4):
        return None
    return torch.where(num_levels[:, None] > 1, step, torch.zeros_like(step))
