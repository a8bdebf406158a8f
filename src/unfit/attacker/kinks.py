"""Few inputs: training points are where many first-layer neurons bend, and where the KKT multipliers are large.

With few points in few dimensions nearly every neuron that learnt anything bends (w·x + b = 0) exactly at training
points, two of them in the plane. Such lines meet elsewhere too; stationarity at the meeting points, a convex
problem once the places are fixed, gives only the training points a multiplier worth the name.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MAX_INPUTS = 3  # more dimensions have too many meeting points for random first points to find
LIVE = 0.05  # of the largest row: smaller neurons hardly moved
FARTHEST = 0.95  # quantile of the kinks' distances from the origin that is taken for the data's size
KINK_STARTS = 2000  # random points …
WIDTHS = (0.1, 0.05, 0.02, 0.01)  # … that move in kernels of these widths, in units of the data's size …
SHIFTS = 5  # … this often in each
STAY = 0.01  # of one kink: along directions in which no kink is near, a point stays where it is
SPACING = 0.03  # H22's distance of duplicates, in the same units
NUM_LARGEST, NOT_SMALL = 10, 0.4  # of the median of the ten largest multipliers (H22: λ > 5, in its own units)
NNLS_PASSES = 50  # for each unknown, instead of SciPy's 3: running out of them is an error


def meeting_points(weight: Tensor, bias: Tensor, most: int, seed: int) -> Tensor:
    """Up to `most` points (p, d) where most kinks meet, best first: mean shift from random points."""
    w, b = weight.double().cpu().numpy(), bias.double().cpu().numpy()
    size = np.linalg.norm(w, axis=1)
    live = size > LIVE * size.max()
    normal, offset = w[live] / size[live, None], b[live] / size[live]
    unit = float(np.quantile(np.abs(offset), FARTHEST))  # kinks lie as far out as the data
    x = unit * np.random.default_rng(seed).normal(size=(KINK_STARTS, w.shape[1]))
    for width in WIDTHS:
        for _ in range(SHIFTS):  # to the weighted least-squares meeting point of the kinks nearby
            gap = x @ normal.T + offset
            near = _kernel(gap, width * unit)
            gram = np.einsum("sj,ja,jb->sab", near, normal, normal) + STAY * np.eye(x.shape[1])
            x = x - np.linalg.solve(gram, ((near * gap) @ normal)[..., None])[..., 0]
    num_kinks = _kernel(x @ normal.T + offset, WIDTHS[-1] * unit).sum(1)
    return torch.from_numpy(thin(x[np.argsort(-num_kinks)], SPACING * unit, most)).to(weight)


def thin(x: np.ndarray, spacing: float, most: int) -> np.ndarray:
    """Greedily, first come first kept, at least `spacing` apart (H22 sec. 4)."""
    kept: list[np.ndarray] = []
    while len(x) and len(kept) < most:
        kept.append(x[0])
        x = x[np.linalg.norm(x - x[0], axis=1) >= spacing]
    return np.array(kept)


def exact_multipliers(signals: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """λ ≥ 0 of [W1 | b1] = Σ λ_i δ_i [x_i; 1]ᵀ at fixed places; signals δ: (p, w)."""
    from scipy.optimize import nnls  # here: it takes a second to load

    inputs = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    gradients = (signals[:, :, None] * inputs[:, None, :]).flatten(1).double().cpu().numpy()
    theta = torch.cat([weight, bias[:, None]], 1).flatten().double().cpu().numpy()
    solution, _ = nnls(gradients.T, theta, maxiter=NNLS_PASSES * len(x))
    return torch.from_numpy(solution).to(x)


def large(multiplier: Tensor) -> Tensor:
    """Which multipliers count, as positions, largest first."""
    order = multiplier.argsort(descending=True)
    return order[multiplier[order] > NOT_SMALL * multiplier[order[:NUM_LARGEST]].median()]


def _kernel(gap: np.ndarray, width: float) -> np.ndarray:
    return np.exp(-((gap / width) ** 2) / 2)
