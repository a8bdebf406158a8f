"""Where the search looks: values that training hardly moved, and where in a stream of numbers they would stand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from unfit.attacker.initial.recipes import Family, Generator, Recipe, Site, numbers_of
from unfit.attacker.initial.search import Trace
from unfit.base.target import Target

TAKEN = 4096  # values of a layer that are compared in the search; all of them confirm
FEWEST, FEWEST_FAR = 64, 256  # fewer cannot single out one of 2³² seeds; of later ones only signs are compared
UNIFORM, SLACK = -1.2, 0.3  # excess kurtosis of uniform numbers; of normal ones it is 0
MOVED = 0.6  # correlation with its initial weights that a layer must still have, by its kurtosis, to be searched
LARGER = 1.15  # times what a recipe draws: more than training leaves or the estimate is off by
HARDLY_MOVED = 0.85  # the same for one neuron of many, whose kurtosis is small by chance
TELLING_ROW = 512  # inputs from which a neuron's kurtosis says something


@dataclass(frozen=True, eq=False)
class Clue:
    """Values that still show the numbers they were drawn from, and where in the stream those would stand."""

    recipe: Recipe
    site: Site
    trace: Trace
    likeness: float  # correlation of its values with their initial weights, by their kurtosis
    unlikely: (
        float  # how much else must have happened for this recipe: |log| of what is left of the initial weights
    )

    @property
    def is_sure(self) -> bool:
        """Whether other places need not be looked at. Of normal values the kurtosis says nothing."""
        return self.trace.is_early and (self.likeness >= HARDLY_MOVED or self.site.family == "normal")

    @property
    def strength(self) -> float:
        """Standard deviations above chance that its values should show."""
        return self.likeness * len(self.trace.values) ** 0.5

    @property
    def generator(self) -> Generator:
        return self.recipe.generator


def find_clues(target: Target, known: list[Recipe]) -> list[Clue]:
    """At most two of each recipe, the cheapest and likeliest first.

    The first thing that is drawn is far cheaper to look at than all else. Where it has moved, or was drawn again,
    there is also the neuron of all layers that moved least, by its kurtosis.
    """
    quietest = {name: _quietest_row(value) for name, value in target.weights.items()}
    found = [clue for recipe in known for clue in _clues(target, recipe, quietest)]
    early = {(clue.generator.name, clue.site.family) for clue in found if clue.is_sure}
    found = [c for c in found if c.trace.is_early or (c.generator.name, c.site.family) not in early]
    found.sort(key=_order)
    return list({(c.generator.name, c.site.family, c.trace.place): c for c in reversed(found)}.values())[::-1]


def _order(clue: Clue) -> tuple[bool, bool, float, float]:
    """Cheap ones first; then those of uniform layers, which is evidence, while a normal layer may be anything."""
    early = clue.trace.is_early
    return not early, clue.site.family == "normal", 0.0 if early else -clue.strength, clue.unlikely


def _clues(target: Target, recipe: Recipe, quietest: dict[str, int]) -> Iterator[Clue]:
    """Those to search by: the first values that are drawn, and the surest of all if those are not sure."""
    near: list[Clue] = []
    for site in recipe.sites:
        for offset, window in _windows(recipe, target.weights[site.tensor], quietest[site.tensor]):
            likeness, place = float(nearness(window, site.family)), site.place + offset
            enough = len(window) >= (FEWEST_FAR if place else FEWEST)
            if enough and likeness >= (HARDLY_MOVED if offset else MOVED):
                near += _as_clue(recipe, site, window, place, likeness)
    early = [clue for clue in near if clue.trace.place == 0][:1]
    yield from early
    surest = max(near, key=lambda clue: clue.strength, default=None)
    if surest is not None and surest not in early and not (early and early[0].is_sure):
        yield surest


def _as_clue(recipe: Recipe, site: Site, window: Tensor, place: int, likeness: float) -> list[Clue]:
    """None where the values are larger than the recipe draws."""
    left, stride = _left_of_initial(recipe, site, window, likeness), recipe.generator.stride
    if left is None:
        return []
    near = likeness if site.family == "uniform" else 0.0  # a normal value is made of two numbers
    trace = Trace(numbers_of(window, site.family), place * stride, stride, recipe.generator.shift, near)
    return [Clue(recipe, site, trace, likeness, abs(math.log(left)))]


def _windows(recipe: Recipe, value: Tensor, quietest: int) -> list[tuple[int, Tensor]]:
    """Parts of a tensor and where they begin: its first values, and those of the neuron that moved least."""
    rows = value.flatten(1) if value.ndim > 1 and not recipe.transposed else value[None]
    there = [(quietest * rows.shape[1], rows[quietest][:TAKEN])] if quietest and not recipe.transposed else []
    return [(0, recipe.flat(value)[:TAKEN]), *there]


def _quietest_row(value: Tensor) -> int:
    """The neuron whose weights are most like uniform numbers; 0 where its inputs are too few to tell."""
    if value.ndim < 2 or value[0].numel() < TELLING_ROW:
        return 0
    return int(nearness(value.flatten(1), "uniform").argmax())


def nearness(values: Tensor, family: Family) -> Tensor:
    """Correlation of values (…, m) with their initial weights, by kurtosis; 0 where they cannot be of this family.

    What training adds to uniform initial weights makes the sum more normal: the excess kurtosis of
    ρ · uniform + noise is −1.2 ρ⁴. Normal initial weights cannot be separated from what is added.
    """
    squares = (values - values.mean(-1, keepdim=True)).square()
    mean = squares.mean(-1)
    kurtosis = squares.square().mean(-1) / mean.square().clamp_min(1e-37) - 3
    if family == "normal":
        return MOVED * (kurtosis.abs() < SLACK)
    return (kurtosis / UNIFORM).clamp(0, 1) ** 0.25 * (mean > 0)


def _left_of_initial(recipe: Recipe, site: Site, window: Tensor, nearest: float) -> float | None:
    """About what share of the initial weights is left, by the values' size; None: more than the recipe draws.

    Where a recipe does not say how large its values are, they exceed PyTorch's own, which explain the rest.
    """
    size = float(window.double().std()) * nearest / site.std
    if site.tensor in recipe.scaled:
        return 1.0 if site.family == "normal" or size > LARGER else None
    return size if size < LARGER else None
