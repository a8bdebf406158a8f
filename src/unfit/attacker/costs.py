"""What an attack costs: operations are counted, and one matrix product is timed; bytes are counted.

Only what dominates is counted, and runs stop early, so estimates are good to a factor of two. If an attack becomes
faster or slower, `REACHED` is all that has to be measured again: `benchmarks/growth.py stated` does that.
"""

from __future__ import annotations

import math
import time
from functools import cache

import torch

from unfit.attacker.attacked_layer import AttackedLayer
from unfit.base.budget import seconds_left
from unfit.base.device import device
from unfit.base.errors import UsageError
from unfit.base.memory import DOUBLE, FLOAT, check_memory
from unfit.base.nets import Architecture
from unfit.base.threads import threads

SIDE = 512  # of the product that is timed: large enough to reach full speed, and done in a millisecond
REPEATS = 20  # of that product; the best is taken, since other work only ever slows it down
WORTH_A_WORD = 1.0  # seconds: a step that is shorter is taken, whatever the budget
EIGENVECTORS = 20  # operations for each cube of the side: 9 in textbooks, at half the speed of a matrix product
OVERHEAD = 5e-4  # seconds an iteration takes whatever its size: some twenty calls into PyTorch

# The share of a large product's speed that each attack reaches with the operations that it counts.
REACHED = {"peel": 1.0, "cone": 0.15, "unmix": 0.65, "kkt": 1.0}

LAYER_COPIES = 6  # of the attacked layer: file, model, change and right vectors; some in float64 for a while
BASE_COPIES = 2  # more, with a base


def operations_per_second(dtype: torch.dtype = torch.float32) -> float:
    """In a matrix product on one core, by its own clock: other work does not count. Or on the accelerator."""
    return _measured(dtype, device())


@cache
def _measured(dtype: torch.dtype, where: torch.device) -> float:
    a = torch.ones(SIDE, SIDE, dtype=dtype, device=where)
    clock, best = time.thread_time if where.type == "cpu" else time.perf_counter, math.inf
    with threads(1):
        for _ in range(REPEATS):
            began = clock()
            float((a @ a)[0, 0])  # read, so that it is done
            best = min(best, clock() - began)
    return 2 * SIDE**3 / best


def seconds_of(attack: str, operations: float, iterations: int = 0) -> float:
    """What these operations take on one core of this machine, spread over these iterations."""
    return iterations * OVERHEAD + operations / (REACHED[attack] * operations_per_second())


def pass_operations(architecture: Architecture) -> int:
    """Multiplications for one sample through all layers."""
    first, *later = map(math.prod, architecture.layer_shapes)
    if architecture.conv:
        first *= math.prod(architecture.map_shape[1:])
    return first + sum(later)


def spectrum_seconds(layer: AttackedLayer) -> float:
    """Two products of the first layer with its Gram matrix, in float64, and the eigenvectors of that."""
    small, large = sorted(layer.weight.shape)
    return (4 * small**2 * large + EIGENVECTORS * small**3) / operations_per_second(torch.float64)


def layer_bytes(layer: AttackedLayer) -> float:
    """The attacked layer as often as it is held, its Gram matrix and vectors, and neurons against each other."""
    copies = LAYER_COPIES + (BASE_COPIES if layer.base is not None else 0)
    squares = 3 * DOUBLE * min(layer.weight.shape) ** 2 + (FLOAT + 1) * len(layer.weight) ** 2
    return FLOAT * copies * layer.weight.numel() + squares


def check_size(layer: AttackedLayer, candidates: float, samples: float = 0.0) -> None:
    """Refuse an attack that needs more memory than the limit; bytes of what it finds, and of what judges it."""
    needs = {"samples": samples, "the attacked layer": layer_bytes(layer), "candidates": candidates}
    check_memory(needs, "Take fewer or smaller samples, or an attack with fewer runs")


def check_budget(layer: AttackedLayer) -> None:
    """Refuse a budget that not even the first step would keep. A spectrum that has been read takes no time."""
    if "span" in vars(layer):
        return
    width, inputs = layer.weight.shape
    check_seconds(
        spectrum_seconds(layer), f"reading the spectrum of {width:,} neurons with {inputs:,} inputs alone"
    )


def check_seconds(needed: float, what: str) -> None:
    """Refuse a step that cannot be cut and would not end within the budget."""
    left = seconds_left()
    if needed > max(left, WORTH_A_WORD):
        raise UsageError(
            f"the `budget` is too short: {what} takes about {needed:.0f} s, and {max(0.0, left):.0f} s are left"
        )
