"""Edges: what is sparse in a sample, and dense in a mixture of samples.

In an image they are the differences of neighbouring pixels. A vector does not say which of its values are
neighbours, but its span does: the pixels of a flattened image, the bands of a spectrum and the steps of a series
are alike in all samples if they lie side by side. Those that do are always the same few places apart: 1 and 28
in a digit. So each input is compared with those that it is most like. Words of texts and columns of tables are
alike too, but at no common distance: they have no edges, and their values stand for themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from unfit.attacker.span import Span

POSITIONS_PER_SOURCE = 4  # with fewer pixels than that for each source, edges no longer tell the sources apart
MOST_POSITIONS = 2**14  # of larger images every second, third, … pixel: there are still many for each source
# Unmixing needs fewer. 100 images of 224×224, mosaics of CIFAR's: with 126, 63 and 31 pixels for each source all
# come back, with a mean cosine of 0.977, 0.976 and 0.973, in 13, 5 and 3 seconds.
ENOUGH_PER_SOURCE, LEAST_POSITIONS = 32, 2**12

# Maps of a convolution are much alike: of 64 channels of 3×3 kernels, 11 directions hold 99% of the edges. With
# these alone unmixing is seven times as fast, and comes as near to the samples' maps: a correlation of 0.7 with 45
# and 34 of 500 instead of 31 and 29 (two contrasts). Fig 15 of B23 has the counts with their control.
COLOURS = 3  # channels of an image, all of which are kept
EDGES_KEPT = 0.99
NO_EDGES = 1e-30  # nothing is divided by zero where all maps are flat

# Neighbours of a vector's inputs
NEIGHBOURS = 3  # of each input; of 100 digits peel proves as many with 2, 3 or 4
MOST_COSINES = 2**28  # between inputs, or seconds become minutes: of longer vectors some inputs are left out
COSINES_AT_ONCE = 2**24  # 64 MB
ABOVE_NOISE = 2.0  # times the noise: what an input in use has, at least, in the directions of the span
DISTANCES = 4  # at which neighbours lie: across, down, and in another channel
REGULAR = 0.5  # share of the neighbours at these distances: 0.89 in digits, below 0.1 in texts and tables


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Which inputs of a vector are alike."""

    places: Tensor  # (p,): inputs in use
    size: Tensor  # (p,): their size in the span, so that faint inputs count as much as others
    others: Tensor  # (p, NEIGHBOURS): for each the inputs it is most like
    size_of_others: Tensor  # (p, NEIGHBOURS); infinite where one is no more alike than by chance

    @property
    def regularity(self) -> float:
        """The share of the neighbours, if all had as many, that lie at one of the few most common distances."""
        distances = (self.others - self.places[:, None])[self.size_of_others.isfinite()].abs()
        return float(distances.bincount().sort().values[-DISTANCES:].sum()) / max(1, self.others.numel())


Layout = tuple[int, ...] | Neighbours  # the shape of samples, or which inputs of vectors are neighbours


def find_layout(span: Span, shape: tuple[int, ...]) -> Layout:
    """An image has its shape; the neighbours of a vector's inputs are read off its span, if they are regular."""
    neighbours = None if len(shape) == 3 else find_neighbours(span)
    return shape if neighbours is None or neighbours.regularity < REGULAR else neighbours


def find_neighbours(span: Span) -> Neighbours:
    """The inputs whose values go together: those with the largest cosines in the span, all directions alike."""
    right, values = span.right[: span.rank], span.values[: span.rank].to(span.right)
    signal = (values[:, None] * right).square().sum(0)
    used = (signal > ABOVE_NOISE**2 * span.rank * span.noise**2).nonzero()[:, 0]
    most = max(1, min(MOST_POSITIONS, MOST_COSINES // max(1, len(used))))
    chosen = torch.arange(0, len(used), max(1, -(-len(used) // most)), device=used.device)
    cosines, nearest = _most_alike(normalize(right[:, used], dim=0), chosen)
    places, others, size = used[chosen], used[nearest], right.norm(dim=0)
    chance = math.sqrt(2 * math.log(max(2, len(used))) / max(1, span.rank))  # about the largest random cosine
    return Neighbours(places, size[places], others, size[others].where(cosines > chance, torch.inf))


def _most_alike(unit: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Of the unit columns (r, u) those most like the chosen ones: cosines and numbers, (p, NEIGHBOURS)."""
    most = min(NEIGHBOURS, max(0, unit.shape[1] - 1))
    cosines, numbers = [unit.new_zeros(0, most)], [chosen.new_zeros(0, most)]
    for some in chosen.split(max(1, COSINES_AT_ONCE // max(1, unit.shape[1]))):
        each = unit[:, some].T @ unit
        each[torch.arange(len(some), device=some.device), some] = -torch.inf  # itself
        nearest = each.topk(most, dim=1)
        cosines.append(nearest.values)
        numbers.append(nearest.indices)
    return torch.cat(cosines), torch.cat(numbers)


def edge_groups(rows: Tensor, layout: Layout, most: int = MOST_POSITIONS) -> Tensor:
    """What is sparse in a source: (r, groups, size). A group is all differences, of all channels, at one place.

    Values of a vector without neighbours are groups of their own.
    """
    if isinstance(layout, Neighbours):
        own = rows[:, layout.places] / layout.size
        return own[:, :, None] - rows[:, layout.others] / layout.size_of_others
    if len(layout) != 3:
        return rows[:, :, None]
    image = rows.view(len(rows), *layout)
    across = image[..., :-1, 1:] - image[..., :-1, :-1]
    down = image[..., 1:, :-1] - image[..., :-1, :-1]
    both = torch.stack([across, down], 1).flatten(3).permute(0, 3, 1, 2)  # (r, places, 2, channels)
    both = both[:, :: -(-both.shape[1] // most)].contiguous()
    return (both if layout[0] <= COLOURS else in_main_channels(both)).flatten(2)


def in_main_channels(edges: Tensor) -> Tensor:
    """Edges (…, channels) in the few directions between channels that hold nearly all of them.

    To turn the channels changes no group's length, which is all that unmixing looks at.
    """
    flat = edges.flatten(0, -2)
    squares, vectors = torch.linalg.eigh((flat.T @ flat).double())
    share = squares.flip(0).cumsum(0) / squares.sum().clamp_min(NO_EDGES)
    num = int((share < EDGES_KEPT).sum()) + 1
    return edges @ vectors.flip(1)[:, :num].to(edges)


def num_edges(shape: tuple[int, ...], most: int = MOST_POSITIONS) -> int:
    """About how many values `edge_groups` gives each source of such a shape."""
    channels, *sides = shape if len(shape) == 3 else (1, math.prod(shape))
    return 2 * channels * min(math.prod(sides), most)


def enough_positions(num_sources: int) -> int:
    """Places of a large image whose edges tell so many sources apart."""
    return min(max(LEAST_POSITIONS, ENOUGH_PER_SOURCE * num_sources), MOST_POSITIONS)


def tellable(shape: tuple[int, ...]) -> int:
    """How many sources the edges of such images can tell apart."""
    positions = (shape[1] - 1) * (shape[2] - 1) if len(shape) == 3 else shape[0]
    return max(2, positions // POSITIONS_PER_SOURCE)
