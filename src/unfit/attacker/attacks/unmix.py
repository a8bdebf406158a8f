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

from unfit.attacker.attacked_layer import CANDIDATE_STD, AttackedLayer, rescale
from unfit.attacker.attacks.peel import Peel
from unfit.attacker.candidates import Candidates, Part
from unfit.attacker.costs import seconds_of
from unfit.attacker.edges import edge_groups, enough_positions, num_edges, tellable
from unfit.attacker.ica import Contrast, edge_density, separate
from unfit.attacker.method import Applicability, Method, Parameter, Parameters, Values, gather
from unfit.base.budget import is_over
from unfit.base.memory import FLOAT
from unfit.base.nets import Architecture
from unfit.base.progress import Report, quiet
from unfit.base.threads import num_workers, spread

JOINED = 2.5  # times the candidates: each part, all of them joined, and half of them to be compared
EDGE_COPIES = 6  # of the edges of a run: as they are, white, unmixed, scored


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

    def run(self, layer: AttackedLayer, progress: Report = quiet) -> Candidates:
        """Its loss is how dense the edges of its components are."""
        began = time.perf_counter()
        proven, all_proven = Peel(seed=self.seed).prove(layer, progress)
        parts = proven if all_proven else [*proven, *self.components(layer, progress)]
        progress(1.0, "pooled")
        losses = [part.loss for part in parts if part.loss is not None]
        return gather(self, layer, parts, began, loss=min(losses, default=1.0))

    def components(self, layer: AttackedLayer, progress: Report = quiet) -> Iterator[Part]:
        """The independent components of the span, both signs, one part for each rank and contrast."""
        span = layer.span
        plan = list(itertools.product(self.chosen_ranks(layer), self.runs))

        def unmixed(i: int) -> Part | None:
            rank, (contrast, orthogonal) = plan[i]
            if is_over():
                return None
            groups = edge_groups(span.right[:rank], layer.shape, enough_positions(rank))
            mixing = separate(groups, contrast, orthogonal, self.iterations, self.seed + i)
            maps = mixing @ span.right[:rank]
            x = rescale(layer.inputs(torch.cat([maps, -maps])), CANDIDATE_STD)
            name = f"rank {rank}, {contrast} contrast, {'orthogonal' if orthogonal else 'free'}"
            return Part(f"unmix: {name}", x, loss=edge_density(groups, mixing), kind="unmixed")

        progress(0, f"{len(plan)} runs")
        for i, part in enumerate(spread(unmixed, range(len(plan))), 1):
            if part is None:
                return
            progress(i / len(plan), part.name)
            yield part

    def chosen_ranks(self, layer: AttackedLayer) -> list[int]:
        """How many directions are unmixed, in one run after the other."""
        span = layer.span
        most = min(span.rank if span.ends else len(span.right), tellable(layer.shape))
        return sorted({min(max(2, round(f * span.rank)), most) for f in self.ranks if span.rank > 1})

    def applicability(self, layer: AttackedLayer) -> Applicability:
        rank, most = layer.span.rank, tellable(layer.shape)
        if rank < 2:
            return Applicability(self.title, False, "nothing stands above the noise of the initial weights")
        if len(layer.shape) != 3:
            return Applicability(self.title, False, "the inputs are vectors, which have no edges")
        if not can_unmix(layer):
            return Applicability(
                self.title, False, f"too crowded: {rank} directions, and edges can separate at most {most}"
            )
        behind = layer.conv is not None or layer.target.has_prefix
        where = "behind the first layers" if behind else "above the noise"
        ranks = self.chosen_ranks(layer)
        seconds, held = self.seconds(ranks, layer.shape), self.bytes(ranks, layer)
        return Applicability(self.title, True, f"{rank} directions {where}", seconds, held)

    def seconds(self, ranks: list[int], shape: tuple[int, ...]) -> float:
        """Each iteration takes two products with the edges, the score of each edge, and a polar factor.

        Maps of a convolution may take a few times less: how alike their channels are is not known beforehand.
        """
        # by measurement, a score costs about a hundred operations an edge, and an SVD about 100 r³
        each = [(4 * r**2 + 100 * r) * num_edges(shape, enough_positions(r)) + 100 * r**3 for r in ranks]
        iterations = len(self.runs) * self.iterations
        return seconds_of("unmix", iterations * sum(each), iterations * len(ranks))

    def bytes(self, ranks: list[int], layer: AttackedLayer) -> float:
        """All components in both signs, once more to be joined and compared, and the edges of runs under way."""
        size = math.prod(layer.target.architecture.input_shape)
        candidates = 2 * len(self.runs) * sum(ranks) * size
        edges = max((r * num_edges(layer.shape, enough_positions(r)) for r in ranks), default=0)
        return FLOAT * (JOINED * candidates + EDGE_COPIES * num_workers() * edges)

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


def can_unmix(layer: AttackedLayer) -> bool:
    """Whether edges can tell the sources apart; behind a convolution some of them, and KKT runs find fewer."""
    crowded = layer.span.rank > tellable(layer.shape)
    return len(layer.shape) == 3 and (layer.conv is not None or not crowded)
