"""How fast this machine is: operations are counted, and one matrix product is timed.

Estimates built on these are within a factor of two or three: only what dominates is counted, and runs stop early.
"""

from __future__ import annotations

import math
import time
from functools import cache

import torch

from unfit.attacker.mixtures import Mixtures
from unfit.base.budget import seconds_left
from unfit.base.errors import UsageError
from unfit.base.nets import Architecture, device

SIDE = 512  # of the product that is timed: large enough to reach full speed, and done in a millisecond
REPEATS = 5  # of that product; the best is taken, since other work on the machine only ever slows it down
WORTH_A_WORD = 1.0  # seconds: a step that is shorter is taken, whatever the budget
EIGENVECTORS = 20  # operations for each cube of the side: 9 in textbooks, at half the speed of a matrix product
OVERHEAD = 5e-4  # seconds an iteration takes whatever its size: some twenty calls into PyTorch


@cache
def operations_per_second(dtype: torch.dtype = torch.float32) -> float:
    """In a matrix product."""
    a = torch.ones(SIDE, SIDE, dtype=dtype, device=device())
    best = math.inf
    for _ in range(REPEATS):
        began = time.perf_counter()
        float((a @ a)[0, 0])  # read, so that it is done
        best = min(best, time.perf_counter() - began)
    return 2 * SIDE**3 / best


def pass_operations(architecture: Architecture) -> int:
    """Multiplications for one sample through all layers."""
    first, *later = map(math.prod, architecture.layer_shapes)
    if architecture.conv:
        first *= math.prod(architecture.map_shape[1:])
    return first + sum(later)


def spectrum_seconds(mixtures: Mixtures) -> float:
    """Two products of the first layer with its Gram matrix, in float64, and the eigenvectors of that."""
    small, large = sorted(mixtures.weight.shape)
    return (4 * small**2 * large + EIGENVECTORS * small**3) / operations_per_second(torch.float64)


def check_budget(mixtures: Mixtures) -> None:
    """Refuse a budget that not even the first step would keep, which cannot be cut."""
    needed, left = spectrum_seconds(mixtures), seconds_left()
    if needed > max(left, WORTH_A_WORD):
        width, inputs = mixtures.weight.shape
        raise UsageError(
            f"the `budget` is too short: reading the spectrum of {width:,} neurons with {inputs:,} inputs alone "
            f"takes about {needed:.0f} s, and {max(0.0, left):.0f} s are left"
        )
