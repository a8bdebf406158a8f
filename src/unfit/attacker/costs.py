"""How long the attacks take on this machine: operations counted, and one matrix product timed.

Within a factor of two or three of what is measured; the counts are of what dominates, and whole runs stop early.
"""

from __future__ import annotations

import math
import time
from functools import cache

import torch

from unfit.attacker.attacks.inversion import STARTS, InversionSettings
from unfit.attacker.attacks.solvers import FastSettings, PaperSettings, count
from unfit.attacker.attacks.unmix import UnmixSettings
from unfit.attacker.stationarity import choose_score
from unfit.base.nets import Architecture, device

SIDE = 512  # of the product that is timed
OVERHEAD = 5e-4  # seconds of an iteration whatever its size
PEEL = (4.0, 8.0)  # seconds: whatever the size, and at 100 samples and width 1000; measured (docs/results.md)


@cache
def operations_per_second(dtype: torch.dtype = torch.float32) -> float:
    """Of a matrix product, the best of five."""
    a = torch.ones(SIDE, SIDE, dtype=dtype, device=device())
    best = math.inf
    for _ in range(5):
        began = time.perf_counter()
        float((a @ a)[0, 0])  # read, so that it is done
        best = min(best, time.perf_counter() - began)
    return 2 * SIDE**3 / best


def unmix_seconds(ranks: list[int], shape: tuple[int, ...], speed: float) -> float:
    """Each iteration: two products with the edges, the score of each, and a polar factor."""
    settings = UnmixSettings()
    channels, *sides = shape if len(shape) == 3 else (1, math.prod(shape))
    edges = 2 * channels * math.prod(sides)
    each = [4 * r**2 * edges + 100 * r * edges + 100 * r**3 for r in ranks]
    return len(settings.runs) * settings.iterations * sum(OVERHEAD + ops / speed for ops in each)


def kkt_seconds(rank: int, architecture: Architecture, speed: float) -> float:
    """Each iteration: signals of the candidates through all layers, and their multipliers by least squares."""
    settings = FastSettings()
    m = count(None, rank, choose_score("auto", architecture.num_outputs), architecture.num_outputs)
    (w, _), *others = (shape for shape in architecture.layer_shapes if len(shape) == 2)
    later = sum(map(math.prod, others))
    ops = 6 * m * (rank * w + later) + 4 * m**2 * w + 5 * m**3
    return settings.runs * settings.iterations * (OVERHEAD + ops / speed)


def paper_seconds(rank: int, architecture: Architecture) -> float:
    """Double precision, and a derivative of a gradient: six passes."""
    k = architecture.num_outputs
    m = count(None, rank, choose_score("auto", k), k)
    ops = 6 * 2 * m * pass_operations(architecture)
    return PaperSettings().iterations * ops / operations_per_second(torch.float64)


def inversion_seconds(architecture: Architecture, speed: float) -> float:
    """Forward, and backward to the inputs."""
    return InversionSettings().iterations * 2 * 2 * STARTS * pass_operations(architecture) / speed


def peel_seconds(num_samples: int, width: int) -> float:
    """Rounds grow with the samples too."""
    return PEEL[0] + PEEL[1] * (num_samples / 100) ** 5 * width / 1000


def pass_operations(architecture: Architecture) -> int:
    """Multiplications for one sample through all layers."""
    first, *later = map(math.prod, architecture.layer_shapes)
    if architecture.conv:
        first *= math.prod(side - architecture.conv[0] + 1 for side in architecture.input_shape[1:])
    return first + sum(later)
