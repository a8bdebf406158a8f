"""The start of a trained network, from its weights alone: find the seed, prove it, and draw all layers again.

Training hardly moves the weights of a wide layer. What they still show of the numbers they were drawn from is
compared with what each of the 2³² seeds draws. For any other seed these are independent of the weights, so a right
seed proves itself: by a p-value, all seeds and places that were tried counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.mixtures import Mixtures, read_mixtures
from unfit.attacker.start.philox import blocks_of, gpu_recipe, likely_on_gpu
from unfit.attacker.start.recipes import (
    TORCH,
    Family,
    Generator,
    Origin,
    Recipe,
    Site,
    built,
    drawn_anew,
    numbers_of,
    recipes,
)
from unfit.attacker.start.search import Trace, seeds_per_second, survivors
from unfit.attacker.start.state import EQUATIONS, WINDOW, seed_of, solve_state, surest_signs
from unfit.attacker.start.twister import SEEDS
from unfit.base.errors import UsageError
from unfit.base.modules import as_target
from unfit.base.progress import Report, quiet, reporting
from unfit.base.target import Target, Weights
from unfit.base.threads import threads
from unfit.base.times import as_seconds

TAKEN = 4096  # values of a layer that are compared in the search; all of them confirm
FEWEST, FEWEST_FAR = 64, 256  # fewer cannot single out one of 2³² seeds; of later ones only signs are compared
UNIFORM, SLACK = -1.2, 0.3  # excess kurtosis of uniform numbers; of normal ones it is 0
MOVED = 0.6  # correlation with its start that a layer must still have, by its kurtosis, to be searched
CERTAIN = -12.0  # log10 of the p-value, all tries counted
KEPT = -6.0  # the same for a tensor once the seed is known: it was drawn by this recipe
LARGER = 1.15  # times what a recipe draws: more than training leaves or the estimate is off by
HARDLY_MOVED = 0.85  # the same for one neuron of many, whose kurtosis is small by chance
TELLING_ROW = 512  # inputs from which a neuron's kurtosis says something
TELLING = 32  # values from which it can be told whether a bias started from zero
LIKELY, LIKELY_FAR = 1 << 24, 1 << 16  # seeds that are tried first, at places that are cheap to reach or not
SAME = 1e-6  # relative distance from the start at which a network is untrained
FAMOUS = (
    *range(1024),
    1234,
    1337,
    2000,
    *range(2015, 2031),
    3407,
    4242,
    12345,
    31337,
    42424,
    54321,
    123456,
    1234567,
)
USUAL = (0, 1, 2, 7, 10, 42, 100, 123, 1234, 1337, 2024, 2025, 2026, 12345)  # tried by all that they draw
SAFE = 4.5  # times what training added, on average, a weight must be for its sign to be that of its start
SOLVING = 90.0  # seconds that should be left for it
AT_ONCE = 1 << 20  # numbers of a stream that are looked through at once
PASSING = 5.0  # standard deviations of the test that slides along a stream


@dataclass(frozen=True, eq=False)
class Start:
    """The weights that training started from, and what they were drawn by. `target` is a base for any attack."""

    target: Target
    seed: int | None  # None: its state was solved for, and no seed of 32 bits gives it right before the network
    skip: int  # numbers that were drawn before the network
    generator: str
    rule: str
    correlation: float  # of the first layer with its start
    log10_p: float  # that any other seed would fit so well, all that were tried counted
    trained: Target

    def __repr__(self) -> str:
        drawn = "no seed" if self.seed is None else f"seed {self.seed}"
        return f"Start({drawn} of {self.generator}, {self.rule}, p < 1e{math.ceil(self.log10_p)})"

    @cached_property
    def change(self) -> Mixtures:
        """What training added to it."""
        return read_mixtures(self.trained, self.target)

    @property
    def decay(self) -> float:
        """What weight decay left of the start: W = decay · W₀ + a sum over samples."""
        return self.change.decay

    @property
    def is_trained(self) -> bool:
        """Whether training changed anything: there is nothing to attack in a start."""
        pairs = [(self.trained.weights[name], value) for name, value in self.target.weights.items()]
        return any(float((a - b).norm()) > SAME * float(b.norm()) for a, b in pairs)


@dataclass(frozen=True, eq=False)
class Search:
    """What was tried and what came of it."""

    start: Start | None
    num_tried: int  # seeds at the first place
    complete: bool  # all seeds that were asked for, at all places
    seconds: float
    why: str  # in words

    def facts(self) -> dict[str, Any]:
        """What candidates record of it."""
        told: dict[str, Any] = {
            "found": self.start is not None,
            "why": self.why,
            "num_tried": self.num_tried,
            "complete": self.complete,
            "seconds": round(self.seconds, 3),
        }
        if self.start is not None:
            named = ("seed", "skip", "generator", "rule", "correlation", "log10_p", "decay")
            told |= {name: getattr(self.start, name) for name in named}
        return told


def find_start(
    model: Target | nn.Module,
    build: Callable[[], nn.Module] | None = None,
    *,
    seeds: int | range = SEEDS,
    skip: int = 0,
    budget: float | str | None = None,
    progress: Report | bool = quiet,
) -> Start | None:
    """The weights that training of this network started from, if they can be found; else None.

    Args:
        model: A `torch.nn.Module` or a `Target`.
        build: A function that makes the network as it was made for training, if that is known; it draws from
            PyTorch's generator on the CPU. Without one the usual ways are tried.
        seeds: How many seeds are tried, or which: a number or a range.
        skip: Also look for a start before which up to so many numbers were drawn, with a thousand usual seeds.
        budget: Seconds, or a time such as "60s" or "10m", after which the search ends.
        progress: True shows a bar; a function is called with the fraction done and what is being done.

    Example:
        >>> start = unfit.find_start(model, seeds=1000, budget="60s")
        >>> candidates = unfit.attack(model, base=start.target) if start else None
    """
    most = as_seconds(budget, "budget")
    with reporting(progress, "looking for the seed") as report:
        return search_start(model, build, seeds=seeds, skip=skip, budget=most, progress=report).start


@threads()
def search_start(
    model: Target | nn.Module,
    build: Callable[[], nn.Module] | None = None,
    *,
    seeds: int | range = SEEDS,
    far: bool = True,
    skip: int = 0,
    budget: float | None = None,
    progress: Report = quiet,
) -> Search:
    """The same with an account of what was tried. Without `far` only the cheapest place that fits is looked at.

    Behind a prefix the layer may have been drawn after all that comes before it, which is tried with likely seeds,
    or alone, as a new head.
    """
    target, began = as_target(model), time.perf_counter()
    chosen = check_seeds(seeds)
    known = [built(build, target)] if build is not None else recipes(target.architecture)
    clues = find_clues(target, known)
    if not far:
        clues = [clue for clue in clues if clue.trace.is_early][:1]
    if build is None and target.whole is not None and target.has_prefix and target.is_complete:
        in_order, likely = drawn_anew(target.whole), chosen[:LIKELY_FAR]
        search = search_start(target, in_order, seeds=likely, budget=budget, progress=progress)
        if search.start is not None:
            return search
    hunt = _Hunt(target, known, clues, chosen, skip, math.inf if budget is None else began + budget, progress)
    start = next(hunt.starts(), None)
    words = hunt.words(start)
    return Search(start, hunt.num_tried, hunt.complete, time.perf_counter() - began, words)


TOO_LATE = "the start was drawn with seed {}, but drawing all of it would take longer than the budget leaves"
NO_CLUE = "no layer looks like one that was drawn by a known rule and hardly moved: the start is gone, or unusual"


def check_seeds(seeds: int | range) -> range:
    chosen = range(seeds) if isinstance(seeds, int) else seeds
    if chosen.step != 1 or not 0 <= chosen.start < chosen.stop <= SEEDS:
        raise UsageError(f"`seeds` is a number from 1 to 2**32, or a range within it, not {seeds}")
    return chosen


# Where to look ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Clue:
    """Values that still show the numbers they were drawn from, and where in the stream those would stand."""

    recipe: Recipe
    site: Site
    trace: Trace
    likeness: float  # correlation of its values with their start, by their kurtosis
    unlikely: float  # how much else must have happened for this recipe: |log| of what is left of the start

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
    left, stride = _left_of_start(recipe, site, window, likeness), recipe.generator.stride
    if left is None:
        return []
    trace = Trace(numbers_of(window, site.family), place * stride, stride, recipe.generator.shift)
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
    """Correlation of values (…, m) with their start, by their kurtosis; 0 where they cannot be of this family.

    What training adds to a uniform start makes the sum more like a normal distribution: the excess kurtosis of
    ρ · uniform + noise is −1.2 ρ⁴. A normal start and what is added to it cannot be told apart.
    """
    squares = (values - values.mean(-1, keepdim=True)).square()
    mean = squares.mean(-1)
    kurtosis = squares.square().mean(-1) / mean.square().clamp_min(1e-37) - 3
    if family == "normal":
        return MOVED * (kurtosis.abs() < SLACK)
    return (kurtosis / UNIFORM).clamp(0, 1) ** 0.25 * (mean > 0)


def _left_of_start(recipe: Recipe, site: Site, window: Tensor, nearest: float) -> float | None:
    """About what share of the start is still there, by the size of the values; None: more than the recipe draws.

    Where a recipe does not say how large its values are, they exceed PyTorch's own, which explain the rest.
    """
    size = float(window.double().std()) * nearest / site.std
    if site.tensor in recipe.scaled:
        return 1.0 if site.family == "normal" or size > LARGER else None
    return size if size < LARGER else None


# The search ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Hunt:
    """One search: the seeds at each clue, usual ones first, and the proof of what survives."""

    target: Target
    known: list[Recipe]
    clues: list[Clue]
    seeds: range
    skip: int
    deadline: float
    progress: Report
    num_tried: int = 0
    complete: bool = True
    found_elsewhere: str = ""

    def starts(self) -> Iterator[Start]:
        """First what is cheap and likely: early numbers with the first millions of seeds, then all others."""
        early, far = ([clue for clue in self.clues if clue.trace.is_early is cheap] for cheap in (True, False))
        for clue in early:
            yield from self._tried(clue, self.seeds[:LIKELY])
        for clue in far:
            yield from self._tried(clue, self.seeds[:LIKELY_FAR])
        yield from self._usual()
        for clue in early:
            yield from self._on_gpu(clue)
        if self.skip:
            yield from self._skipped()
        for clue in early:
            if len(self.seeds) > LIKELY:
                yield from self._solved(clue)
            yield from self._tried(clue, self.seeds[LIKELY:])
        for clue in far:
            yield from self._tried(clue, self.seeds[LIKELY_FAR:])

    def _tried(self, clue: Clue, seeds: range) -> Iterator[Start]:
        began = time.perf_counter()

        def told(tried: int) -> None:
            if clue is self.clues[0]:
                self.num_tried = max(self.num_tried, seeds.start - self.seeds.start + tried)
            left = (time.perf_counter() - began) / max(tried, 1) * (len(seeds) - tried)
            words = (
                f"{clue.site.tensor}: {(seeds.start + tried) / 1e6:,.0f} million seeds, about {left:.0f} s left"
            )
            self.progress(tried / max(len(seeds), 1), words)

        if not seeds:
            return
        if time.perf_counter() > self.deadline:
            self.complete = False
            return
        for seed in survivors(clue.trace, seeds, self.deadline, told):
            told(seed - seeds.start + 1)
            yield from self._proven(clue.recipe, clue.site.tensor, seed, 0)
        if time.perf_counter() > self.deadline:
            self.complete = False

    def _usual(self) -> Iterator[Start]:
        """The most usual seeds, by all that they draw, where the weights of an input are drawn together.

        Clues look at what is drawn first. If most samples use the first inputs, that is just what training moved.
        """
        for recipe in (recipe for recipe in self.known if recipe.transposed):
            for seed in USUAL:
                if seed in self.seeds and time.perf_counter() < self.deadline:
                    yield from self._proven(recipe, recipe.sites[0].tensor, seed, 0)

    def _on_gpu(self, clue: Clue) -> Iterator[Start]:
        """The same numbers by the generator of a GPU, with likely seeds."""
        if clue.generator is not TORCH or clue.site.family != "uniform":
            return
        for seed in likely_on_gpu(clue.trace, self.seeds[:LIKELY_FAR]):
            blocks = blocks_of(self.target.weights[clue.site.tensor].flatten(), seed)
            recipe = gpu_recipe(self.target.architecture, blocks)
            self.known.append(recipe)
            yield from self._proven(recipe, clue.site.tensor, seed, 0)

    def _solved(self, clue: Clue) -> Iterator[Start]:
        """Without any seed, where enough signs are certain: cheaper than all seeds, whatever was drawn before."""
        flat, stride = clue.recipe.flat(self.target.weights[clue.site.tensor]), clue.generator.stride
        trace = Trace(numbers_of(flat[:WINDOW], "uniform"), 0, stride, clue.generator.shift)
        late = time.perf_counter() + SOLVING > self.deadline
        if late or len(flat) < EQUATIONS or not _are_certain(trace, flat[:WINDOW]):
            return
        self.progress(0.0, f"{clue.site.tensor}: solving for the state of the generator")
        for state in solve_state(trace):
            yield from self._proven(clue.recipe, clue.site.tensor, state, 0)

    def _skipped(self) -> Iterator[Start]:
        """Usual seeds with other numbers drawn before the network: slide along each one's stream."""
        early = [clue for clue in self.clues if clue.trace.is_early]
        for i, seed in enumerate(FAMOUS):
            self.progress(i / len(FAMOUS), f"seed {seed}: up to {self.skip:,} numbers before the network")
            if time.perf_counter() > self.deadline:
                self.complete = False
                return
            for clue in early:
                for skip in _slide(clue, seed, self.skip):
                    yield from self._proven(clue.recipe, clue.site.tensor, seed, skip)

    def _proven(self, recipe: Recipe, tensor: str, origin: Origin, skip: int) -> Iterator[Start]:
        """The start, if this origin is certain and explains the first layer. `tensor`: what led to it."""
        began, seed = time.perf_counter(), origin if isinstance(origin, int) else seed_of(origin)
        drawn = recipe.draw(origin, skip)
        tries = math.log10(SEEDS * (len(self.clues) + 1) * (self.skip + 1) * len(drawn))
        log10_p = min(_chances(self.target.weights, drawn).values()) + tries
        if log10_p > CERTAIN:
            return
        rules = sum(each.generator is recipe.generator for each in self.known)
        if time.perf_counter() + rules * (time.perf_counter() - began) > self.deadline:
            self.complete, self.found_elsewhere = False, TOO_LATE.format(seed)
            return
        weights, rule, near = assemble(self.target, self.known, recipe.generator, origin, skip)
        if weights is None:
            self.found_elsewhere = (
                f"{tensor} was drawn with seed {seed} ({recipe.generator.name}), "
                "but the first layer was not, by any rule that is known here"
            )
            return
        start = replace(self.target, weights=weights)
        yield Start(start, seed, skip, recipe.generator.name, rule, near, log10_p, self.target)

    def words(self, start: Start | None) -> str:
        if start is not None:
            before = f" after {start.skip:,} other numbers" if start.skip else ""
            if start.seed is None:
                return f"the start was drawn by {start.generator}, whose state the weights gave away: {start.rule}"
            return f"the start was drawn with seed {start.seed} by {start.generator}{before}: {start.rule}"
        if self.found_elsewhere:
            return self.found_elsewhere
        if not self.clues:
            return NO_CLUE
        if not self.complete:
            return f"not found among the first {self.num_tried:,} seeds, for which there was time"
        tried = f"no seed of {len(self.seeds):,} draws this start"
        return f"{tried}: it was drawn otherwise, or training moved it too far"


def _are_certain(trace: Trace, values: Tensor) -> bool:
    """Whether what training added cannot have changed the signs that would be taken."""
    near = float(nearness(values, "uniform"))
    smallest = np.abs(trace.values[surest_signs(trace)] - 0.5).min() * 12**0.5  # in standard deviations
    return bool(smallest > SAFE * (1 - near**2) ** 0.5)


def _slide(clue: Clue, seed: int, most: int) -> Iterator[int]:
    """Places up to `most` in a seed's stream that are like the clue."""
    weight = torch.from_numpy(clue.trace.early_tests[1]).float() / 2.0**-24
    stream = torch.from_numpy(clue.generator.numbers(seed, most + len(weight))).float()
    for begin in range(0, most + 1, AT_ONCE):
        part = stream[begin : begin + AT_ONCE + len(weight) - 1]
        score = F.conv1d(part[None, None], weight[None, None])[0, 0]
        for place in (score > PASSING).nonzero()[:, 0].tolist():
            yield begin + place


def assemble(
    target: Target, known: list[Recipe], generator: Generator, origin: Origin, skip: int
) -> tuple[Weights | None, str, float]:
    """The whole start, each tensor by the recipe that explains it best.

    Also the first dense layer's rule and correlation; if no recipe explains that layer there is no start.
    """
    drawn = {recipe.name: (recipe, recipe.draw(origin, skip)) for recipe in known if recipe.generator is generator}
    chances = {rule: _chances(target.weights, start) for rule, (_, start) in drawn.items()}
    best_first = sorted(chances, key=lambda rule: sum(chances[rule].values()))  # draws of several may be the same
    rules = {name: min(best_first, key=lambda rule: chances[rule][name]) for name in target.weights}
    explained = {name: rule for name, rule in rules.items() if chances[rule][name] < KEPT}
    first = next((name for name, value in target.weights.items() if value.ndim == 2), "layer1.weight")
    if first not in explained:
        return None, "", 0.0
    weights: Weights = {}
    for name, value in target.weights.items():
        of_layer = explained.get(name.replace("bias", "weight"), explained[first])
        recipe, start = drawn[explained.get(name, of_layer)]
        begun = start[name]
        if name in recipe.scaled:
            begun = begun * _slope(value, begun)
        elif len(known) > 1 and name not in explained and _is_absent(value, begun):
            begun = torch.zeros_like(value)
        weights[name] = begun
    rule = explained[first]
    return weights, rule, correlation(target.weights[first], drawn[rule][1][first])


def _chances(weights: Weights, start: Weights) -> dict[str, float]:
    return {name: log10_chance(value, start[name]) for name, value in weights.items()}


def _is_absent(value: Tensor, begun: Tensor) -> bool:
    """Whether a bias started from zero rather than so: it would hold half of its start or more."""
    return value.numel() >= TELLING and _slope(value, begun) < 0.25


def correlation(a: Tensor, b: Tensor) -> float:
    a, b = (each.flatten() - each.mean() for each in (a, b))  # float32: its rounding is far below any chance
    return float(a @ b / (a.norm() * b.norm()).clamp_min(1e-37))


def _slope(value: Tensor, drawn: Tensor) -> float:
    value, drawn = value.flatten().double(), drawn.flatten().double()
    return float(value @ drawn / (drawn @ drawn))


def log10_chance(value: Tensor, drawn: Tensor) -> float:
    """log10 of a bound on the probability that independent numbers correlate so well: exp(−N r² / 2).

    It holds for uniform numbers at any N, whatever the weights are: the tails of a sum of uniform numbers with any
    fixed weights are lighter than those of the normal distribution of its variance.
    """
    r = max(correlation(value, drawn), 0.0)
    return -value.numel() * r**2 / 2 / math.log(10)


@dataclass(frozen=True, eq=False)
class Forecast:
    """Whether a search could find the start, and how long it would take on this machine."""

    clue: Clue

    @property
    def is_early(self) -> bool:
        return self.clue.trace.is_early

    @cached_property
    def _speed(self) -> float:
        near = replace(self.clue.trace, place=min(self.clue.trace.place, 1))  # all later places cost the same
        return seeds_per_second(near)

    def seconds(self, num_seeds: int = SEEDS) -> float:
        """With so many seeds, at most."""
        return num_seeds / self._speed

    @property
    def words(self) -> str:
        clue = self.clue
        return f"{clue.site.tensor} is like {clue.recipe.name}, drawn by {clue.generator.name}"


def forecast(target: Target) -> Forecast | None:
    """None: no layer shows its start, and there is nothing to search by."""
    clues = find_clues(target, recipes(target.architecture))
    return Forecast(clues[0]) if clues else None
