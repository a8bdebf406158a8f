"""How initial weights are recognised, by the chance of a correlation, and put together, tensor by tensor."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from unfit.attacker.initial.recipes import Generator, Origin, Recipe
from unfit.base.target import Target, Weights

KEPT = -6.0  # the same for a tensor once the seed is known: it was drawn by this recipe
TELLING = 32  # values from which it can be told whether a bias was zero at first


def assemble(
    target: Target, known: list[Recipe], generator: Generator, origin: Origin, skip: int
) -> tuple[Weights | None, str, float]:
    """All initial weights, each tensor by the recipe that explains it best.

    Also the first dense layer's rule and correlation; if no recipe explains that layer there are none.
    """
    drawn = {recipe.name: (recipe, recipe.draw(origin, skip)) for recipe in known if recipe.generator is generator}
    chances = {rule: log10_chances(target.weights, initial) for rule, (_, initial) in drawn.items()}
    best_first = sorted(chances, key=lambda rule: sum(chances[rule].values()))  # draws of several may be the same
    rules = {name: min(best_first, key=lambda rule: chances[rule][name]) for name in target.weights}
    explained = {name: rule for name, rule in rules.items() if chances[rule][name] < KEPT}
    first = next((name for name, value in target.weights.items() if value.ndim == 2), "layer1.weight")
    if first not in explained:
        return None, "", 0.0
    weights: Weights = {}
    for name, value in target.weights.items():
        of_layer = explained.get(name.replace("bias", "weight"), explained[first])
        recipe, initial = drawn[explained.get(name, of_layer)]
        drawn_value = initial[name]
        if name in recipe.scaled:
            drawn_value = drawn_value * _slope(value, drawn_value)
        elif len(known) > 1 and name not in explained and _is_absent(value, drawn_value):
            drawn_value = torch.zeros_like(value)
        weights[name] = drawn_value
    rule = explained[first]
    return weights, rule, correlation(target.weights[first], drawn[rule][1][first])


def log10_chances(weights: Weights, initial: Weights) -> dict[str, float]:
    return {name: log10_chance(value, initial[name]) for name, value in weights.items()}


def _is_absent(value: Tensor, drawn_value: Tensor) -> bool:
    """Whether a bias was zero at first, rather than this: it would hold half of its initial weights or more."""
    return value.numel() >= TELLING and _slope(value, drawn_value) < 0.25


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
