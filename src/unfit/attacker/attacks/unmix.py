"""Spectral unmixing: the training inputs as independent sources, mixed into the rows of the first layer.

Natural images have sparse edges and mixtures of them do not, so blind source separation on the edges of W1's
row space gives the images back, up to sign and scale. No network gradients at all.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from typing import Literal, Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from unfit.attacker.attacks.peel import Peel
from unfit.attacker.candidates import Candidates, Part
from unfit.attacker.costs import OVERHEAD, operations_per_second
from unfit.attacker.edges import edge_groups, enough_positions, tellable
from unfit.attacker.ica import Contrast, edge_density, separate
from unfit.attacker.method import Method, Outlook, Parameter, Parameters, Values, gather
from unfit.attacker.mixtures import CANDIDATE_STD, Mixtures, rescale
from unfit.base.budget import is_over
from unfit.base.nets import Architecture
from unfit.base.progress import Report, quiet
from unfit.base.threads import spread


class Unmix(Method):
    """One run for each rank and contrast. Different runs find different samples, so all are pooled.

    With a base, samples are proven first where that can be done; if all are, nothing is left to unmix.

    Args:
        ranks: Of the runs, times the number of directions above the noise.
        runs: Pairs of a contrast (`root` or `log`) and whether the components are kept orthogonal.
        iterations: Of each run.
        seed: Everything random follows from it.

    Example:
        >>> candidates = unfit.attack(model, unfit.Unmix(ranks=(0.7, 1.0)))
    """

    method: Literal["unmix"] = "unmix"
    ranks: tuple[PositiveFloat, ...] = (0.7, 0.85, 1.0, 1.2)  # times the number of directions above the noise edge
    runs: tuple[tuple[Contrast, bool], ...] = (("root", True), ("log", True), ("root", False))  # and orthogonal?
    iterations: PositiveInt = 300  # orthogonal runs stand still after about 250

    title = "unmix"

    def run(self, mixtures: Mixtures, progress: Report = quiet) -> Candidates:
        """Its loss is how dense the edges of its components are."""
        began = time.perf_counter()
        proven, all_proven = Peel(seed=self.seed).prove(mixtures, progress)
        parts = proven if all_proven else [*proven, *self.components(mixtures, progress)]
        progress(1.0, "pooled")
        losses = [part.loss for part in parts if part.loss is not None]
        return gather(self, mixtures, parts, began, loss=min(losses, default=1.0))

    def components(self, mixtures: Mixtures, progress: Report = quiet) -> Iterator[Part]:
        """The independent components of the span, both signs, one part for each rank and contrast."""
        span = mixtures.span
        plan = list(itertools.product(self.chosen_ranks(mixtures), self.runs))

        def unmixed(i: int) -> Part | None:
            rank, (contrast, orthogonal) = plan[i]
            if is_over():
                return None
            groups = edge_groups(span.right[:rank], mixtures.shape, enough_positions(rank))
            mixing = separate(groups, contrast, orthogonal, self.iterations, self.seed + i)
            maps = mixing @ span.right[:rank]
            x = rescale(mixtures.inputs(torch.cat([maps, -maps])), CANDIDATE_STD).cpu()
            name = f"rank {rank}, {contrast} contrast, {'orthogonal' if orthogonal else 'free'}"
            return Part(f"unmix: {name}", x, loss=edge_density(groups, mixing))

        progress(0, f"{len(plan)} runs")
        for i, part in enumerate(spread(unmixed, range(len(plan))), 1):
            if part is None:
                return
            progress(i / len(plan), part.name)
            yield part

    def chosen_ranks(self, mixtures: Mixtures) -> list[int]:
        """How many directions are unmixed, in one run after the other."""
        span = mixtures.span
        most = min(span.rank if span.ends else len(span.right), tellable(mixtures.shape))
        return sorted({min(max(2, round(f * span.rank)), most) for f in self.ranks if span.rank > 1})

    def outlook(self, mixtures: Mixtures) -> Outlook:
        rank, most = mixtures.span.rank, tellable(mixtures.shape)
        if rank < 2:
            return Outlook(self.title, False, "nothing stands above the noise of the start")
        if len(mixtures.shape) != 3:
            return Outlook(self.title, False, "the inputs are vectors, which have no edges")
        if not can_unmix(mixtures):
            return Outlook(self.title, False, f"too crowded: {rank} directions, and edges can tell {most} apart")
        behind = mixtures.conv is not None or mixtures.target.has_prefix
        where = "behind the first layers" if behind else "above the noise"
        seconds = self.seconds(self.chosen_ranks(mixtures), mixtures.shape)
        return Outlook(self.title, True, f"{rank} directions {where}", seconds)

    def seconds(self, ranks: list[int], shape: tuple[int, ...]) -> float:
        """Each iteration takes two products with the edges, the score of each edge, and a polar factor.

        Maps of a convolution may take a few times less: how alike their channels are is not known beforehand.
        """
        channels, *sides = shape if len(shape) == 3 else (1, math.prod(shape))
        edges = [2 * channels * min(math.prod(sides), enough_positions(r)) for r in ranks]
        # by measurement, a score costs about a hundred operations an edge, and an SVD about 100 r³
        each = [(4 * r**2 + 100 * r) * num + 100 * r**3 for r, num in zip(ranks, edges, strict=True)]
        speed = operations_per_second()
        return len(self.runs) * self.iterations * sum(OVERHEAD + ops / speed for ops in each)

    def varies(self, architecture: Architecture) -> Parameters:
        """One of the runs that it makes by default, with any rank between theirs."""
        return {
            "rank": Parameter(low=min(DEFAULT.ranks), high=max(DEFAULT.ranks)),
            "contrast": Parameter(choices=("root", "log")),
            "orthogonal": Parameter(choices=(True, False)),
        }

    def vary(self, values: Values, seed: int) -> Self:
        run = (values["contrast"], values["orthogonal"])
        return super().vary({"ranks": (values["rank"],), "runs": (run,)}, seed)


DEFAULT = Unmix()


def in_one_sign(part: Part) -> Tensor:
    """Its components (rank, d), each once."""
    return part.x[: len(part.x) // 2].flatten(1)


def can_unmix(mixtures: Mixtures) -> bool:
    """Whether edges can tell the sources apart; behind a convolution some of them, and KKT runs find fewer."""
    crowded = mixtures.span.rank > tellable(mixtures.shape)
    return len(mixtures.shape) == 3 and (mixtures.conv is not None or not crowded)
