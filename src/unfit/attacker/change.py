"""What training added to the first layer, and the gates before and after it: all that `peel` sees.

Neurons of several changes of the same samples (several checkpoints) stack into one change of more neurons: `rows`
and `space` gain rows, and `ends` an entry for each block of them. Rounding is taken to be equal in all entries of
`rows`, so each block is to be divided by its own first, which moves no zero and no gate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.attacked_layer import AttackedLayer
from unfit.attacker.edges import Layout, find_layout
from unfit.attacker.features import Features
from unfit.attacker.span import column_space
from unfit.attacker.sparse import NO_LENGTH, level
from unfit.attacker.stationarity import Stack, candidate_signals, choose_score, first_of, outputs_of, predicted

HARD = 1e4  # slope of the gates: as good as hard
ROUNDED = 30  # times the size that rounding gives to a zero on average: what is below is zero …
LEAST_WIDTH, MOST_WIDTH = (
    3e-5,
    3e-3,
)  # … of a column of mean square 1, and its width is neither below nor above these
MANY = 150  # samples from which on the second layer cleans components in every other round, and zeros decide


@dataclass(frozen=True, eq=False)
class Change:
    """What training added to the first layer, and the nets before and after it."""

    rows: Tensor  # A = [ΔW1 | Δb1]: (w, d + 1), float64
    space: Tensor  # U, an orthonormal basis of its columns: (w, n), float64
    shape: tuple[int, ...]
    layout: Layout  # which inputs are neighbours
    ends: tuple[tuple[Stack, Stack], ...]  # the nets before and after, for each block of neurons
    features: Features | None = None  # what the second layer says about pictures, where it says enough

    @property
    def n(self) -> int:
        """The number of training samples: the rank is exactly that."""
        return self.space.shape[1]

    @cached_property
    def coordinates(self) -> Tensor:
        """UᵀA: all that A holds, in n rows instead of w."""
        return self.space.T @ self.rows

    def remainder(self, known: Tensor) -> Tensor:
        """A without what the known columns (k, w) explain, in coordinates of the column space: (n, d + 1)."""
        basis = torch.linalg.qr(self.space.T @ known.T)[0]
        return self.coordinates - basis @ (basis.T @ self.coordinates)

    @cached_property
    def rounding(self) -> Tensor:
        """The size of an entry of A that its n directions do not explain, for each direction's own size: (n,)."""
        rest = self.rows - self.space @ self.coordinates
        free = math.prod(max(1, side - self.n) for side in rest.shape)
        return rest.norm() / math.sqrt(free) / self.coordinates.norm(dim=1).clamp_min(NO_LENGTH)

    def zero(self, columns: Tensor) -> Tensor:
        """The width of “zero” for each column (k, w) of mean square 1, by what rounding makes of zeros: (k, 1).

        With a = A v, the rounding of A's entries adds as much to a, times the length of v.
        """
        return (ROUNDED * self.error(columns)).clamp(LEAST_WIDTH, MOST_WIDTH)

    def error(self, columns: Tensor) -> Tensor:
        """What rounding adds to each value of a column, on average: (k, 1)."""
        return (columns @ self.space * self.rounding).norm(dim=1, keepdim=True)

    def zeros(self, columns: Tensor) -> Tensor:
        """Where sharpened columns vanish up to rounding, and nothing is merely small: (k, w)."""
        columns = level(columns)
        return columns.abs() < self.zero(columns)

    def before_and_after(self, x: Tensor) -> Tensor:
        """z¹ of every neuron before and after training: (2, m, w)."""
        sums = (torch.stack([F.linear(x, *first_of(net)) for net in nets]) for nets in self.ends)
        return torch.cat(list(sums), 2)

    def sums(self, x: Tensor) -> Tensor:
        """The larger of z¹ before and after training: below zero where a neuron was off all along. (m, w)"""
        return self.before_and_after(x).amax(0)

    def signals(self, x: Tensor) -> Tensor:
        """A guess at α, from the gradients before and after training: (m, w), mean square 1.

        The label is the net's own: it knows its training samples. With one output only the sign depends on it.
        """
        phi = outputs_of(self.end, x, HARD)
        label, score = predicted(phi), choose_score("auto", phi.shape[1])
        blocks = []
        for nets in self.ends:
            both = (candidate_signals(net, x, label, score, HARD)[:, 0] for net in nets)
            blocks.append(level(sum((F.normalize(signal, dim=1) for signal in both), torch.zeros(()))))
        if len(blocks) == 1:
            return blocks[0]
        # between equal blocks and the size of each: samples that were learnt early are small in late blocks
        sizes = [float(rows.norm()) for rows in self.rows.chunk(len(blocks))]
        return level(torch.cat([size**0.5 * block for size, block in zip(sizes, blocks, strict=True)], 1))

    @property
    def end(self) -> Stack:
        """The net as trained."""
        return self.ends[-1][1]


def read_change(layer: AttackedLayer) -> Change | None:
    """None where nothing can be proven: a convolution, no bias, or a spectrum without an end."""
    n = layer.num_samples
    if layer.conv is not None or layer.bias is None or not layer.ends or n is None or not layer.relu:
        return None
    rows = torch.cat([layer.weight, layer.bias[:, None]], 1).double()
    space = column_space(rows, n)
    layout = find_layout(layer.span, layer.shape)
    features = layer.features if n >= MANY else None
    return Change(rows, space, layer.shape, layout, tuple(layer.ends), features)
