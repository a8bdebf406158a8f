"""Spectral unmixing: the training inputs as independent sources, mixed into the rows of the first layer.

Natural images have sparse edges and mixtures of them do not, so blind source separation on the edges of W1's
row space gives the images back, up to sign and scale. No network gradients at all.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unfit.attacks.mixtures import Mixtures, read_mixtures
from unfit.candidates import Candidates, Part, describe, pool
from unfit.progress import Report, quiet
from unfit.target import Target

Contrast = Literal["root", "log"]
# Components have no scale. The protocol adds the mean image before it compares, and on faces that mean alone is
# like many a face: a standard deviation well above that of centred images (0.1 to 0.3) keeps it from speaking.
CANDIDATE_STD = 1.0
POSITIONS_PER_SOURCE = 4  # with fewer pixels than that for each source, edges no longer tell the sources apart


@dataclass(frozen=True)
class UnmixSettings:
    """One run for each rank and contrast; different runs find different samples, so all are pooled."""

    ranks: tuple[float, ...] = (0.7, 0.85, 1.0, 1.2)  # times the number of directions above the noise edge
    runs: tuple[tuple[Contrast, bool], ...] = (
        ("root", True),
        ("log", True),
        ("root", False),
    )  # contrast, orthogonal
    iterations: int = 300
    seed: int = 0


def unmix(
    target: Target,
    base: Target | None = None,
    settings: UnmixSettings | None = None,
    progress: Report = quiet,
) -> Candidates:
    """Attack the first layer, or with `base` (the weights training started from) its change.

    A target in which no direction stands above the noise gives no candidates; `facts` says so.
    """
    settings, began = settings or UnmixSettings(), time.perf_counter()
    mixtures = read_mixtures(target, base)
    parts = list(components(mixtures, settings, progress))
    progress(1.0, "pooled")
    nothing = Part("nothing above the noise edge", torch.zeros(0, *target.architecture.input_shape))
    facts = mixtures.facts() | {"status": "finished", "seconds": time.perf_counter() - began}
    return pool(parts or [nothing], describe("unmix", settings, base is not None), facts)


def components(mixtures: Mixtures, settings: UnmixSettings, progress: Report = quiet) -> Iterator[Part]:
    """The independent components of the span, both signs, one part for each rank and contrast."""
    span = mixtures.span
    most = min(span.rank if span.ends else len(span.right), tellable(mixtures.shape))
    ranks = sorted({min(max(2, round(f * span.rank)), most) for f in settings.ranks if span.rank > 1})
    plan = list(itertools.product(ranks, settings.runs))
    for i, (rank, (contrast, orthogonal)) in enumerate(plan):
        name = f"rank {rank}, {contrast} contrast, {'orthogonal' if orthogonal else 'free'}"
        progress(i / len(plan), name)
        groups = edge_groups(span.right[:rank], mixtures.shape)
        mixing = separate(groups, contrast, orthogonal, settings.iterations, settings.seed + i)
        maps = mixing @ span.right[:rank]
        yield Part(f"unmix: {name}", rescale(mixtures.inputs(torch.cat([maps, -maps]))).cpu())


def tellable(shape: tuple[int, ...]) -> int:
    """How many sources the edges of such images can tell apart."""
    positions = (shape[1] - 1) * (shape[2] - 1) if len(shape) == 3 else shape[0]
    return max(2, positions // POSITIONS_PER_SOURCE)


def rescale(x: Tensor) -> Tensor:
    """Each candidate to the standard deviation CANDIDATE_STD."""
    return CANDIDATE_STD * x / x.flatten(1).std(1).clamp_min(1e-12).view(-1, *[1] * (x.ndim - 1))


def edge_groups(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """What is sparse in a source: (r, groups, size). A group is all derivatives, of all channels, at one pixel.

    Vectors have no neighbours: there each value is a group of its own.
    """
    if len(shape) != 3:
        return rows[:, :, None]
    image = rows.view(len(rows), *shape)
    across = image[..., :-1, 1:] - image[..., :-1, :-1]
    down = image[..., 1:, :-1] - image[..., :-1, :-1]
    return torch.cat([across, down], 1).flatten(2).transpose(1, 2).contiguous()


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
        if moved < 1e-6:
            break
    return b @ white


def _score(y: Tensor, contrast: Contrast) -> tuple[Tensor, Tensor]:
    """φ = −∇ log p of each group and the mean slope of φ, p ∝ exp(−√(q + ε)) or (q + ε)^−½; q: mean square."""
    q = y.square().mean(2)
    if contrast == "root":
        weight = (q + 0.01).rsqrt()
        bend = weight**3
    else:
        weight = 1 / (q + 0.1)
        bend = 2 * weight**2
    return weight[..., None] * y, (weight - bend * q / y.shape[2]).mean(1)


def _orthogonal_step(b: Tensor, x: Tensor, y: Tensor, phi: Tensor, slope: Tensor, num: int) -> Tensor:
    left, _, right = torch.linalg.svd(phi @ x.T / num - slope[:, None] * b)
    return left @ right


def _likelihood_step(b: Tensor, x: Tensor, y: Tensor, phi: Tensor, slope: Tensor, num: int) -> Tensor:
    gradient = phi @ y.T / num - torch.eye(len(b), device=b.device)
    power = y.square().mean(1)
    curve = slope[:, None] * power[None]
    step = (curve.T * gradient - gradient.T) / (curve * curve.T - 1).clamp_min(1e-2)
    step.diagonal().copy_(gradient.diagonal() / (slope * power + 1))
    return b - min(1.0, 0.3 * len(b) ** 0.5 / float(step.norm())) * step @ b


def _whitening(flat: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((flat @ flat.T / flat.shape[1]).double())
    floor = values.max() * 1e-12  # a direction without edges (a flat image) must not be blown up to noise
    return (vectors * values.clamp_min(floor).rsqrt() @ vectors.T).to(flat)
