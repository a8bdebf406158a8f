"""What the search tries, and in which order: usual seeds and cheap places first; what survives is proven."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.initial.clues import Clue, nearness
from unfit.attacker.initial.found import InitialWeights
from unfit.attacker.initial.philox import blocks_of, gpu_recipe, likely_on_gpu
from unfit.attacker.initial.proof import assemble, log10_chances
from unfit.attacker.initial.recipes import TORCH, Origin, Recipe, numbers_of
from unfit.attacker.initial.search import Trace, survivors
from unfit.attacker.initial.state import EQUATIONS, WINDOW, seed_of, solve_state, surest_signs
from unfit.attacker.initial.twister import SEEDS
from unfit.attacker.initial.usual import NEAR, usual_skips, usual_words
from unfit.base.progress import Report
from unfit.base.target import Target

CERTAIN = -12.0  # log10 of the p-value, all tries counted
LIKELY, LIKELY_FAR = 1 << 24, 1 << 16  # seeds that are tried first, at places that are cheap to reach or not
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
SAFE = (
    4.5  # times what training added, on average, a weight must be for its sign to be that of its initial weights
)
SOLVING = 90.0  # seconds that should be left for it
AT_ONCE = 1 << 20  # numbers of a stream that are looked through at once
PASSING = 5.0  # standard deviations of the test that slides along a stream
TOO_LATE = (
    "the initial weights were drawn with seed {}, but drawing all of it would take longer than the budget leaves"
)
NO_CLUE = (
    "no layer looks like one that was drawn by a known rule and hardly moved: "
    "the initial weights are gone, or unusual"
)


@dataclass(eq=False)
class Hunt:
    """One search: the seeds at each clue, usual ones first, and the proof of what survives."""

    target: Target
    known: list[Recipe]
    clues: list[Clue]
    seeds: range
    skip: int
    deadline: float
    progress: Report
    sizes: tuple[int, ...] = ()  # numbers of samples that may have been shuffled before the network was built
    num_tried: int = 0
    complete: bool = True
    found_elsewhere: str = ""

    def initial_weights(self) -> Iterator[InitialWeights]:
        """First what is cheap and likely: early numbers with the first millions of seeds, then all others."""
        early, far = ([clue for clue in self.clues if clue.trace.is_early is cheap] for cheap in (True, False))
        for clue in early:
            yield from self._tried(clue, self.seeds[:LIKELY])
        for clue in early[:1]:
            yield from self._after_usual_draws(clue)
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

    def _tried(self, clue: Clue, seeds: range) -> Iterator[InitialWeights]:
        def told(tried: int) -> None:
            if clue is self.clues[0]:
                self.num_tried = max(self.num_tried, seeds.start - self.seeds.start + tried)
            so_far, most = seeds.start - self.seeds.start + tried, len(self.seeds)
            words = f"{clue.site.tensor}: {so_far / 1e6:,.0f} of {most / 1e6:,.0f} million seeds"
            self.progress(so_far / most, words)

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

    def _usual(self) -> Iterator[InitialWeights]:
        """The most usual seeds, by all that they draw: where nothing else finds a seed, or an input's weights are
        drawn together.

        Clues look at what is drawn first. If most samples use the first inputs, that is just what training moved.
        """
        for recipe in (each for each in self.known if each.transposed or not each.generator.stride):
            for seed in USUAL:
                if seed in self.seeds and time.perf_counter() < self.deadline:
                    yield from self._proven(recipe, next(iter(self.target.weights)), seed, 0)

    def _on_gpu(self, clue: Clue) -> Iterator[InitialWeights]:
        """The same numbers by the generator of a GPU, with likely seeds."""
        if clue.generator is not TORCH or clue.site.family != "uniform":
            return
        for seed in likely_on_gpu(clue.trace, self.seeds[:LIKELY_FAR]):
            blocks = blocks_of(self.target.weights[clue.site.tensor].flatten(), seed)
            recipe = gpu_recipe(self.target.architecture, blocks)
            self.known.append(recipe)
            yield from self._proven(recipe, clue.site.tensor, seed, 0)

    def _solved(self, clue: Clue) -> Iterator[InitialWeights]:
        """Without any seed, where enough signs are certain: cheaper than all seeds, whatever was drawn before."""
        flat, stride = clue.recipe.flat(self.target.weights[clue.site.tensor]), clue.generator.stride
        trace = Trace(numbers_of(flat[:WINDOW], "uniform"), 0, stride, clue.generator.shift)
        late = time.perf_counter() + SOLVING > self.deadline
        if late or len(flat) < EQUATIONS or not _are_certain(trace, flat[:WINDOW]):
            return
        self.progress(0.0, f"{clue.site.tensor}: solving for the state of the generator")
        for state in solve_state(trace):
            yield from self._proven(clue.recipe, clue.site.tensor, state, 0)

    def _skipped(self) -> Iterator[InitialWeights]:
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

    def _after_usual_draws(self, clue: Clue) -> Iterator[InitialWeights]:
        """Usual seeds with a shuffle, a loader or other models before the network, in milliseconds each."""
        if clue.generator is not TORCH:
            return
        weight = torch.from_numpy(clue.trace.early_tests[1]).float() / 2.0**-24
        places = torch.tensor(usual_skips(self.target.architecture.num_parameters, self.sizes))
        self.progress(0.0, "usual seeds after usual draws")
        for seed in FAMOUS:
            if seed not in self.seeds or not len(places):
                continue
            if time.perf_counter() > self.deadline:
                self.complete = False
                return
            there = places if seed in USUAL else places[places <= NEAR]
            if not len(there):
                continue
            stream = torch.from_numpy(clue.generator.numbers(seed, int(there[-1]) + len(weight))).float()
            score = stream.unfold(0, len(weight), 1)[there] @ weight
            for skip in there[score > PASSING].tolist():
                yield from self._proven(clue.recipe, clue.site.tensor, seed, skip)

    def _proven(self, recipe: Recipe, tensor: str, origin: Origin, skip: int) -> Iterator[InitialWeights]:
        """The initial weights, if this origin is certain and explains the first layer; `tensor` led to it."""
        began, seed = time.perf_counter(), origin if isinstance(origin, int) else seed_of(origin)
        drawn = recipe.draw(origin, skip)
        tries = math.log10(SEEDS * (len(self.clues) + 1) * (self.skip + 1) * len(drawn))
        log10_p = min(log10_chances(self.target.weights, drawn).values()) + tries
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
        initial = replace(self.target, weights=weights)
        yield InitialWeights(seed, skip, recipe.generator.name, rule, near, log10_p, initial, self.target)

    def words(self, initial: InitialWeights | None) -> str:
        if initial is not None:
            before = f" after {initial.skip:,} other numbers" if initial.skip else ""
            if initial.seed is None:
                return (
                    f"the initial weights were drawn by {initial.generator}, whose state the weights gave away: "
                    f"{initial.rule}"
                )
            drawn = f"with seed {initial.seed} by {initial.generator}{before}"
            return f"the initial weights were drawn {drawn}: {initial.rule}"
        if self.found_elsewhere:
            return self.found_elsewhere
        if not self.clues:
            return NO_CLUE
        if not self.complete:
            return f"not found among {self.num_tried:,} seeds, for which there was time"
        tried = f"no seed of {len(self.seeds):,} draws these initial weights"
        also = f", nor do {usual_words(self.sizes)}" if any(clue.trace.is_early for clue in self.clues) else ""
        return f"{tried}{also}: it was drawn otherwise, or training moved it too far"


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
