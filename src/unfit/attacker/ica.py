"""Grouped independent component analysis: the directions in which the edges of images are sparse."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from unfit.base.budget import is_over

Contrast = Literal["root", "log"]

# ε of the densities rounds off their cusp at zero; edges have mean square 1. On CIFAR-10, n=100, a run finds 62 to
# 64 samples, and 57 to 68 with an ε three to ten times larger or smaller.
ROOT_EPS, LOG_EPS = 0.01, 0.1
STANDS_STILL = 1e-6  # 1 − |cosine| of the source that moved most in an iteration
LEAST_CURVATURE = 1e-2  # of a pair of sources: near zero a Newton step would have no end; 10⁻³ to 0.1 find as many
LONGEST_STEP = 0.3  # of ‖B‖: a safeguard far from the end; 0.1 finds as many, and so does no limit
FLATTEST = 1e-12  # of the largest variance: a direction without edges (a flat image) must not become noise


def separate(groups: Tensor, contrast: Contrast, orthogonal: bool, iterations: int, seed: int) -> Tensor:
    """B (r, r) such that the rows of B·groups are sparse and independent: grouped ICA.

    `orthogonal`: symmetric fixed point under a whitening constraint. Otherwise maximum likelihood by
    quasi-Newton steps on the relative gradient: the edges of two images are not exactly uncorrelated,
    and the constraint forces them to be.
    """
    r, num_groups, size = groups.shape
    flat = groups.reshape(r, -1)
    white = _whitening(flat)
    x, num = white @ flat, flat.shape[1]
    start = torch.randn(r, r, generator=torch.Generator().manual_seed(seed))
    b = torch.linalg.qr(start)[0].to(flat)
    step = _orthogonal_step if orthogonal else _likelihood_step
    for _ in range(iterations):
        y = b @ x
        phi, slope = _score(y.view(r, num_groups, size), contrast)
        new = step(b, x, y, phi.reshape(r, -1), slope, num)
        moved = 1 - torch.nn.functional.cosine_similarity(new, b).abs().min()
        b = new
        if moved < STANDS_STILL or is_over():
            break
    return b @ white


def edge_density(groups: Tensor, mixing: Tensor) -> float:
    """Mean over root mean square of the sources' edges, 0 to 1: mixtures have edges everywhere, images do not."""
    size = torch.einsum("sr,rgk->sgk", mixing, groups).square().mean(2).sqrt()  # (sources, groups)
    return float((size.mean(1) / size.square().mean(1).sqrt().clamp_min(1e-20)).mean())


def _score(y: Tensor, contrast: Contrast) -> tuple[Tensor, Tensor]:
    """φ = −∇ log p of each group and the mean slope of φ, p ∝ exp(−√(q + ε)) or (q + ε)^−½; q: mean square."""
    q = y.square().mean(2)
    if contrast == "root":
        weight = (q + ROOT_EPS).rsqrt()
        bend = weight**3
    else:
        weight = 1 / (q + LOG_EPS)
        bend = 2 * weight**2
    return weight[..., None] * y, (weight - bend * q / y.shape[2]).mean(1)


def _orthogonal_step(b: Tensor, x: Tensor, y: Tensor, phi: Tensor, slope: Tensor, num: int) -> Tensor:
    left, _, right = torch.linalg.svd(phi @ x.T / num - slope[:, None] * b)
    return left @ right


def _likelihood_step(b: Tensor, x: Tensor, y: Tensor, phi: Tensor, slope: Tensor, num: int) -> Tensor:
    gradient = phi @ y.T / num - torch.eye(len(b), device=b.device)
    power = y.square().mean(1)
    curve = slope[:, None] * power[None]
    step = (curve.T * gradient - gradient.T) / (curve * curve.T - 1).clamp_min(LEAST_CURVATURE)
    step.diagonal().copy_(gradient.diagonal() / (slope * power + 1))
    return b - min(1.0, LONGEST_STEP * len(b) ** 0.5 / float(step.norm())) * step @ b


def _whitening(flat: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((flat @ flat.T / flat.shape[1]).double())
    return (vectors * values.clamp_min(FLATTEST * values.max()).rsqrt() @ vectors.T).to(flat)
