"""Spectral unmixing: the training inputs as independent sources, mixed into the rows of the first layer.

Natural images have sparse edges and mixtures of them do not, so blind source separation on the edges of W1's
row space gives the images back, up to sign and scale. No network gradients at all.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from unfit.attacker.attacks.peel import PeelSettings, prove
from unfit.attacker.candidates import Candidates, Part, describe, pool
from unfit.attacker.ica import Contrast, edge_density, edge_groups, separate
from unfit.attacker.mixtures import CANDIDATE_STD, Mixtures, read_mixtures, rescale
from unfit.base.progress import Report, quiet
from unfit.base.target import Target

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

    With a base, samples are proven where that can be done; if all are, there is nothing else to find. A target in
    which no direction stands above the noise gives no candidates; `facts` says so.
    """
    return run_unmix(target, read_mixtures(target, base), settings or UnmixSettings(), progress)


def run_unmix(target: Target, mixtures: Mixtures, settings: UnmixSettings, progress: Report = quiet) -> Candidates:
    """The same where the mixtures are known. Its loss is how dense the edges of its components are."""
    began = time.perf_counter()
    parts = list(unmixed(mixtures, settings, progress))
    losses = [part.loss for part in parts if part.loss is not None]
    progress(1.0, "pooled")
    nothing = Part("nothing above the noise edge", torch.zeros(0, *target.architecture.input_shape))
    facts = mixtures.facts() | {"status": "finished", "loss": min(losses, default=1.0)}
    facts["seconds"] = time.perf_counter() - began
    return pool(parts or [nothing], describe("unmix", settings, mixtures.start is not None), facts)


def unmixed(mixtures: Mixtures, settings: UnmixSettings, progress: Report = quiet) -> Iterator[Part]:
    """What can be proven, then the independent components, unless every sample is proven."""
    proven, all_proven = prove(mixtures, PeelSettings(seed=settings.seed), progress)
    yield from proven
    if not all_proven:
        yield from components(mixtures, settings, progress)


def components(mixtures: Mixtures, settings: UnmixSettings, progress: Report = quiet) -> Iterator[Part]:
    """The independent components of the span, both signs, one part for each rank and contrast."""
    span = mixtures.span
    plan = list(itertools.product(run_ranks(mixtures, settings), settings.runs))
    for i, (rank, (contrast, orthogonal)) in enumerate(plan):
        name = f"rank {rank}, {contrast} contrast, {'orthogonal' if orthogonal else 'free'}"
        progress(i / len(plan), name)
        groups = edge_groups(span.right[:rank], mixtures.shape)
        mixing = separate(groups, contrast, orthogonal, settings.iterations, settings.seed + i)
        maps = mixing @ span.right[:rank]
        x = rescale(mixtures.inputs(torch.cat([maps, -maps])), CANDIDATE_STD).cpu()
        yield Part(f"unmix: {name}", x, loss=edge_density(groups, mixing))


def run_ranks(mixtures: Mixtures, settings: UnmixSettings) -> list[int]:
    """How many directions are unmixed, in one run after the other."""
    span = mixtures.span
    most = min(span.rank if span.ends else len(span.right), tellable(mixtures.shape))
    return sorted({min(max(2, round(f * span.rank)), most) for f in settings.ranks if span.rank > 1})


def tellable(shape: tuple[int, ...]) -> int:
    """How many sources the edges of such images can tell apart."""
    positions = (shape[1] - 1) * (shape[2] - 1) if len(shape) == 3 else shape[0]
    return max(2, positions // POSITIONS_PER_SOURCE)
