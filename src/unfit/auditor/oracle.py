"""What the weights hold of each sample at best, measured with the sample in hand. The auditor's side of power.

An attack that finds nothing proves little by itself: it may be too weak. The oracle knows the samples, so it needs
no search. It asks how strongly the weights react to the part of a sample that no other sample explains, and asks
it for private and unseen samples alike. If the model never saw the private ones, both react equally.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.mixtures import Mixtures
from unfit.auditor.calibration import calibrate, chance
from unfit.auditor.match import compare
from unfit.auditor.samples import Samples

if TYPE_CHECKING:
    from unfit.auditor.case import Case

RIDGE = 1e-4  # of the largest squared singular value of the samples: copies among them must not divide by zero
MOST_SAMPLES = 1000  # of each set that are weighed against each other: that takes seconds
AT_ONCE = 8192  # inputs that are taken to float64 together
SHOWN_AT_ONCE = 2**24  # values of samples that are projected together: 64 MB, a few times over


@dataclass(frozen=True, eq=False)
class Oracle:
    """For private and unseen samples: the reaction of the weights, and the best that their span can show."""

    reaction: Tensor  # (at most MOST_SAMPLES of n,)
    unseen_reaction: Tensor
    similarity: Tensor  # (n,): of each sample with its projection on the attacked span
    unseen_similarity: Tensor

    def num_held(self, fpr: float) -> int:
        """How many private samples the weights react to more than to all but a share `fpr` of the unseen ones."""
        return int((self.reaction > calibrate(self.unseen_reaction, fpr)).sum())

    def p_value(self, fpr: float) -> float:
        """How often chance alone would let the weights react so much more to the private samples.

        Twice the smaller of two: all of them react a little more (Mann–Whitney), or some of them much more.
        """
        return min(1.0, 2 * min(p_more(self.reaction, self.unseen_reaction), self._p_some(fpr)))

    def _p_some(self, fpr: float) -> float:
        return chance(self.num_held(fpr), len(self.reaction), len(self.unseen_reaction), fpr)


def p_more(reaction: Tensor, unseen_reaction: Tensor) -> float:
    """How often chance alone would let the weights react more to all of the private samples (Mann–Whitney)."""
    from scipy.stats import mannwhitneyu  # imported here because it takes a second to load

    return float(mannwhitneyu(reaction, unseen_reaction, alternative="greater").pvalue)


def consult(case: Case, mixtures: Mixtures, window: int) -> Oracle:
    """Ask the oracle about every sample of a case, and what these mixtures hold of it."""
    maps = maps_of(case, mixtures)
    shown = [
        span_similarity(samples, each, mixtures, case.mean, window)
        for samples, each in zip((case.private, case.unseen), maps, strict=True)
    ]
    return Oracle(*react(maps, mixtures), *shown)


def maps_of(case: Case, mixtures: Mixtures) -> list[Tensor]:
    """What enters the attacked layer for the private and for the unseen samples."""
    sets = (samples.centred(case.mean) for samples in (case.private, case.unseen))
    return [as_maps(samples.x, mixtures) for samples in sets]


def react(maps: list[Tensor], mixtures: Mixtures) -> tuple[Tensor, Tensor]:
    """The reactions of the weights to both sets."""
    first = [each[:MOST_SAMPLES] for each in maps]
    own, unseen = reactions(torch.cat(first), mixtures.weight).cpu().split([len(each) for each in first])
    return own, unseen


def as_maps(x: Tensor, mixtures: Mixtures) -> Tensor:
    """What enters the attacked layer: (n, d)."""
    x = x.to(mixtures.weight)
    if mixtures.conv is not None:
        with torch.no_grad():
            x = torch.cat([F.relu(mixtures.conv(part)) for part in x.split(MOST_SAMPLES)])
    return x.flatten(1)


def reactions(maps: Tensor, weight: Tensor) -> Tensor:
    """‖W e_i‖² / ‖e_i‖² for each row of `maps`, where e_i is what the other rows leave unexplained of it: (n,).

    By ridge regression e_i is, up to its length, row i of K A with A the rows and K = (A Aᵀ + ρ)⁻¹. So it takes
    only the products of all rows with each other and with the weights. All rows are treated alike, so for samples
    that the weights never saw the order of these numbers is pure chance. That is why their common mean goes:
    private samples less their own mean would add up to zero, others would not.
    """
    gram = torch.zeros(len(maps), len(maps), dtype=torch.float64, device=maps.device)
    product = torch.zeros(len(weight), len(maps), dtype=torch.float64, device=maps.device)
    for some, of_weight in zip(maps.split(AT_ONCE, 1), weight.split(AT_ONCE, 1), strict=True):
        a = some.double() - some.double().mean(0)
        gram.addmm_(a, a.T)
        product.addmm_(of_weight.double(), a.T)
    squares, vectors = torch.linalg.eigh(gram)
    ridge = squares.clamp_min(0) + RIDGE * squares[-1]
    energy = (product @ (vectors / ridge) @ vectors.T).square().sum(0)
    length = (vectors.square() * squares.clamp_min(0) / ridge.square()).sum(1)
    return energy / length.clamp_min(1e-300)


def span_similarity(samples: Samples, maps: Tensor, mixtures: Mixtures, mean: Tensor, window: int) -> Tensor:
    """The similarity of each sample with its part in the attacked span, the best that any unmixing could show.

    Its scale is fitted, since the way back through a convolution has none.
    """
    basis = mixtures.span.right[: mixtures.span.rank]
    size, found = max(1, SHOWN_AT_ONCE // maps.shape[1]), []
    for start in range(0, len(maps), size):
        rows = slice(start, start + size)
        shown, seen = mixtures.inputs(maps[rows] @ basis.T @ basis).cpu(), samples.x[rows] - mean
        fit = (shown * seen).flatten(1).sum(1) / shown.flatten(1).square().sum(1).clamp_min(1e-30)
        found.append(compare(shown * fit.view(-1, *[1] * (seen.ndim - 1)), samples, rows, mean, window))
    return torch.cat(found)
