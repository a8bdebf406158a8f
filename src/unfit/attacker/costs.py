"""How fast this machine is: operations are counted, and one matrix product is timed.

Estimates built on these are within a factor of two or three: only what dominates is counted, and runs stop early.
"""

from __future__ import annotations

import math
import time
from functools import cache

import torch

from unfit.base.nets import Architecture, device

SIDE = 512  # of the product that is timed: large enough to reach full speed, and done in a millisecond
REPEATS = 5  # of that product; the best is taken, since other work on the machine only ever slows it down
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
