"""Cleaner images from what the second layer learnt, where the weights that training started from are known.

Training adds Σ β h(x_i)ᵀ to the second layer, where h = relu(W1 x + b1) is what the first makes of a sample. So
the features h of training samples lie in the row space of that change, and those of mixtures do not: a ReLU does
not commute with mixing. A rough image is moved, within the span of the samples, to where its features fit. This
sees no data and proves nothing; it makes better images for `peel` to begin with (docs/research/second-layer.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unfit.attacker.stationarity import Opaque, Stack

ROOM = 3  # neurons for each sample: with two at width 1000 there are too few equations, and images get worse
PLACE = 0.7  # between the number of samples (0) and the size of the second layer (1): there its learning ends
WAYPOINTS = (0.25, 0.75)  # of the way from start to end; features change on it, and both ends alone fit worse
ITERATIONS = 30  # most of what can be gained comes in the first fifteen
STEP, MOMENTUM = 0.5, 0.8  # of damped Gauss–Newton steps
DAMPING = 1e-3  # of the curvature
AVERAGED = 12  # images whose curvatures are averaged: gates differ, but not what half of all neurons see


@dataclass(frozen=True, eq=False)
class Features:
    """The first layer on its way through training, and which features the second has not learnt from."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    metric: Tensor  # (w, w): hᵀ M h is the part of h in directions that the second layer's change lacks


def read_features(initial: Stack, end: Stack, decay: float, num_samples: int) -> Features | None:
    """None where there is no second hidden layer, or too few neurons for so many samples."""
    if isinstance(initial, Opaque) or isinstance(end, Opaque) or len(end) < 3:
        return None
    (w0, b0), (w1, b1) = initial[0], end[0]
    change = (end[1][0] - decay * initial[1][0]).double()
    size = min(change.shape)
    if b0 is None or b1 is None or size <= num_samples or len(w1) < ROOM * num_samples:
        return None
    squares, vectors = torch.linalg.eigh(change.T @ change)
    floor = squares.flip(0)[int(num_samples + PLACE * (size - num_samples))].clamp_min(torch.finfo().tiny)
    metric = (vectors * (floor / (floor + squares.clamp_min(0)))) @ vectors.T
    layers = tuple((w0.lerp(w1, t), b0.lerp(b1, t)) for t in WAYPOINTS)
    return Features(layers, metric.float())


def refine(features: Features, x: Tensor, basis: Tensor) -> Tensor:
    """Move images (m, d) within the span of the basis (r, d) to where their features fit, at the same size."""
    inside = Features(tuple((w @ basis.T, b) for w, b in features.layers), features.metric)
    return _descend(inside, x @ basis.T, x.norm(dim=1, keepdim=True)) @ basis


def misfit(features: Features, x: Tensor) -> Tensor:
    """The share of each image's features that the second layer has not learnt from: (m,)."""
    return sum((_share(features.metric, x, *layer)[0] for layer in features.layers), torch.zeros(()))


def _share(metric: Tensor, u: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """hᵀMh / hᵀh and half its gradient."""
    h = (u @ weight.T + bias).clamp_min(0)
    missed, power = h @ metric, h.square().sum(1).clamp_min(torch.finfo().tiny)
    share = (missed * h).sum(1) / power
    pull = (missed - share[:, None] * h) * (h > 0) / power[:, None]
    return share, pull @ weight


def _descend(features: Features, u: Tensor, size: Tensor) -> Tensor:
    u = size * torch.nn.functional.normalize(u, dim=1)
    curvature = sum((_curvature(features.metric, u, *layer) for layer in features.layers), torch.zeros(()))
    inverse, speed = torch.linalg.inv(curvature), torch.zeros_like(u)
    for _ in range(ITERATIONS):
        gradient = sum((_share(features.metric, u, *layer)[1] for layer in features.layers), torch.zeros(()))
        speed = MOMENTUM * speed - STEP * gradient @ inverse
        u = size * torch.nn.functional.normalize(u + speed, dim=1)
    return u


def _curvature(metric: Tensor, u: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Wᵀ D (M + damping) D W / hᵀh with the gates D held, averaged over some images: (r, r)."""
    total = torch.zeros(u.shape[1], u.shape[1]).to(u)
    points = u[:: -(-len(u) // AVERAGED)]
    for point in points:
        h = (weight @ point + bias).clamp_min(0)
        on = h > 0
        damped = metric[on][:, on] + DAMPING * torch.eye(int(on.sum())).to(u)
        total += weight[on].T @ damped @ weight[on] / h.square().sum() / len(points)
    return total
