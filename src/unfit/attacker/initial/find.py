"""The initial weights of a trained network, from its weights alone: find the seed, prove it, draw all layers.

Training hardly moves the weights of a wide layer. What they still show of the numbers they were drawn from is
compared with what each of the 2³² seeds draws. For any other seed these are independent of the weights, so a right
seed proves itself: by a p-value, all seeds and places that were tried counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from unfit.attacker.initial.clues import Clue, find_clues
from unfit.attacker.initial.found import InitialWeights, Search
from unfit.attacker.initial.hunt import LIKELY_FAR, Hunt
from unfit.attacker.initial.recipes import built, drawn_anew, recipes
from unfit.attacker.initial.search import seeds_per_second
from unfit.attacker.initial.twister import SEEDS
from unfit.base.errors import UsageError
from unfit.base.modules import as_target
from unfit.base.progress import Report, quiet, reporting
from unfit.base.target import Target
from unfit.base.threads import threads
from unfit.base.times import as_seconds


def find_initial_weights(
    model: Target | nn.Module,
    build: Callable[[], nn.Module] | None = None,
    *,
    seeds: int | range = SEEDS,
    skip: int = 0,
    num_samples: int | Sequence[int] = (),
    budget: float | str | None = None,
    progress: Report | bool | None = None,
) -> InitialWeights | None:
    """The initial weights of this network, if they can be found; else None.

    Args:
        model: A `torch.nn.Module` or a `Target`.
        build: A function that makes the network as it was made for training, if that is known; it draws from
            PyTorch's generator on the CPU. Without one the usual ways are tried.
        seeds: How many seeds are tried, or which: a number or a range.
        skip: How many numbers may have been drawn before, at most; tried with a thousand usual seeds.
        num_samples: How many samples were shuffled or split before the model was built, if that is known: one
            number or several. Usual draws before the model are tried with usual seeds in any case.
        budget: Seconds, or a time such as "60s" or "10m", after which the search ends.
        progress: True shows a bar, False nothing; a function is called with the fraction done and what is being
            done. By default a bar on a terminal, and lines in a notebook.

    Example:
        >>> initial = unfit.find_initial_weights(model, seeds=1000, budget="60s")
        >>> candidates = unfit.attack(model, base=initial.target) if initial else None
    """
    most = as_seconds(budget, "budget")
    sizes = (num_samples,) if isinstance(num_samples, int) else tuple(num_samples)
    with reporting(progress, "looking for the seed") as report:
        return search_initial_weights(
            model, build, seeds=seeds, skip=skip, sizes=sizes, budget=most, progress=report
        ).initial


@threads()
def search_initial_weights(
    model: Target | nn.Module,
    build: Callable[[], nn.Module] | None = None,
    *,
    seeds: int | range = SEEDS,
    far: bool = True,
    skip: int = 0,
    sizes: tuple[int, ...] = (),
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
        search = search_initial_weights(target, in_order, seeds=likely, budget=budget, progress=progress)
        if search.initial is not None:
            return search
    hunt = Hunt(
        target, known, clues, chosen, skip, math.inf if budget is None else began + budget, progress, sizes
    )
    initial = next(hunt.initial_weights(), None)
    words = hunt.words(initial)
    return Search(initial, hunt.num_tried, hunt.complete, time.perf_counter() - began, words)


def check_seeds(seeds: int | range) -> range:
    chosen = range(seeds) if isinstance(seeds, int) else seeds
    if chosen.step != 1 or not 0 <= chosen.start < chosen.stop <= SEEDS:
        raise UsageError(f"`seeds` is a number from 1 to 2**32, or a range within it, not {seeds}")
    return chosen


@dataclass(frozen=True, eq=False)
class Forecast:
    """Whether a search could find the initial weights, and how long it would take on this machine."""

    clue: Clue

    @property
    def is_early(self) -> bool:
        return self.clue.trace.is_early

    @cached_property
    def _speed(self) -> float:
        near = replace(self.clue.trace, place=min(self.clue.trace.place, 1))  # all later places cost the same
        return seeds_per_second(near)

    def seconds(self, num_seeds: int = SEEDS) -> float:
        """The most seeds that it takes."""
        return num_seeds / self._speed

    @property
    def words(self) -> str:
        clue = self.clue
        return f"{clue.site.tensor} is like {clue.recipe.name}, drawn by {clue.generator.name}"


def forecast(target: Target) -> Forecast | None:
    """None: no layer shows its initial weights, and there is nothing to search by."""
    clues = find_clues(target, recipes(target.architecture))
    return Forecast(clues[0]) if clues else None
