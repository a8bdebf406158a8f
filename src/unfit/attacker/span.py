"""The span of the training inputs, read off the first layer.

Every gradient step adds (backprop signal)·xᵀ to W1, so its rows are mixtures of the inputs, on top of what
remains of the initial weights. These are white noise: their singular values end at a sharp edge, and what stands
above the edge is data. Where the initial weights are known or gone, the spectrum ends in a cliff instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BULK = 0.25  # quantile of the singular values that is taken to be noise: data may fill the other three quarters
CLIFF = 20.0  # a fall of the spectrum by this factor in one step is where data end and rounding errors begin
SLOW_SVD = 1_000_000  # values in a matrix: from here on an SVD takes seconds
LAST = 0.1  # of the singular values: a cliff among them is not believed, for the last ones fall by chance
AFTER_CLIFF = (
    1e-5  # of the largest value: rounding errors lie lower, what remains of random initial weights higher
)
LEAST_EDGE = 1e-6  # of the largest value: below are only the rounding errors of training in float32
ROWS_AT_ONCE = 64  # rows at a time that are looked through for equal ones
AT_ONCE = 8192  # columns of a large matrix that are taken to float64 together
GRID = 20_001  # points of the Marchenko–Pastur law: its quantiles to four digits
SQUARE_ROUNDING = 1e-15  # of the largest eigenvalue of a Gram matrix, in float64


@dataclass(frozen=True, eq=False)
class Span:
    """Singular values of the mixtures, their right vectors (min(w, d), d), and the noise they stand out from."""

    values: Tensor
    right: Tensor
    noise: float  # standard deviation of one entry
    edge: float  # largest singular value that the noise alone would have
    rank: int  # number of directions above the edge
    ends: bool  # whether the spectrum ends there in a cliff, so that no data lie beyond


def read_span(layer: Tensor, rounding: float = 0.0) -> Span:
    """mixtures: (w, d), rows are mixtures of inputs plus white noise.

    rounding: The largest singular value that rounding errors can have, where it is known.
    """
    values, right = _singular(layer)
    if rank := _cliff(values, rounding):
        noise = float(values[rank:].square().mean().sqrt()) / math.sqrt(max(layer.shape))
        return Span(values, right, noise, float((values[rank - 1] * values[rank]).sqrt()), rank, True)
    noise = noise_level(values, *layer.shape)
    fluctuation = 1 + min(layer.shape) ** (-2 / 3)  # of the largest value: the Tracy–Widom scale
    edge = noise * fluctuation * sum(math.sqrt(side) for side in layer.shape)
    edge = max(edge, LEAST_EDGE * float(values[0]))
    return Span(values, right, noise, edge, int((values > edge).sum()), False)


def noise_level(values: Tensor, w: int, d: int) -> float:
    """Standard deviation of the white noise whose lower singular values these are (Marchenko–Pastur law)."""
    ratio = min(w, d) / max(w, d)
    low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
    grid = np.linspace(math.sqrt(low), math.sqrt(high), GRID)[1:-1]  # of singular values: no pole where w = d
    mass = np.cumsum(np.sqrt((high - grid**2) * (grid**2 - low)) / grid)
    expected = float(np.interp(BULK, mass / mass[-1], grid)) * math.sqrt(max(w, d))
    return float(values.flip(0)[int(BULK * len(values))]) / expected


def visible_num_samples(span: Span, weight: Tensor, bias: Tensor | None) -> int | None:
    """The number of samples where the spectrum shows it, else None: the rank of [W1 | b1] = Σ α_i [x_i; 1]ᵀ.

    It is their number if they are linearly independent and plain gradient steps made W1. It is not where the rank
    is as large as the matrix allows, or where the bias is zero, which any sample would have moved. Centred inputs
    sum to zero, so without a bias column the rank is one less than their number.
    """
    if not span.ends or span.rank >= live(weight).shape[1]:
        return None
    if bias is None:
        return None if is_full(weight, span.rank) else span.rank + 1
    if not bias.any():
        return None  # an update of the weight alone, as adapters make it
    rows = torch.cat([weight, bias[:, None]], 1)
    rank = visible_rank(rows)
    return rank if rank and not is_full(rows, rank) else None


def is_full(matrix: Tensor, rank: int) -> bool:
    """Whether the rank is as large as the rows or columns allow, so that it says nothing about what made them.

    Whatever the steps are, neurons that never fire stay as they are. Those that fire for one sample alone get
    multiples of one row, and inputs that are alike in all samples get columns that are equal but for the sign.
    Plain steps keep ranks below that. The rank of Adam's steps has no other limit.
    """
    zero = AFTER_CLIFF * float(matrix.double().norm())
    scaled = rank > 1  # with a rank of one all rows are multiples, whatever made them
    return num_distinct(matrix, zero, rank, scaled) <= rank or num_distinct(matrix.T, zero, rank, False) <= rank


def num_distinct(rows: Tensor, zero: float, most: int, scaled: bool) -> int:
    """How many rows are further than `zero` from zero and, but for the sign, from all larger ones.

    `scaled`: from all multiples of those. Once there are more than `most`, no others are counted.
    """
    sizes = rows.norm(dim=1)
    rows = rows[sizes.argsort(descending=True)[: int((sizes > zero).sum())]]
    known = rows[:0].double()
    for part in rows.split(most + ROWS_AT_ONCE):
        both = torch.cat([known, part.double()])
        squares, products = both.square().sum(1), (both @ both.T).abs()
        nearest = products / squares if scaled else torch.ones_like(products)  # multiple of each column's row
        apart = squares[:, None] - 2 * nearest * products + nearest.square() * squares
        known = both[~((apart <= zero**2).tril(-1).any(1))]
        if len(known) > most:
            break
    return len(known)


def visible_rank(matrix: Tensor) -> int:
    """Where the spectrum ends in a cliff; 0 if it does not."""
    return _cliff(_values(matrix)) if matrix.numel() else 0


def column_space(matrix: Tensor, rank: int) -> Tensor:
    """An orthonormal basis (w, rank) of the columns of (w, d) along its largest directions, in float64.

    By the smaller Gram matrix: with 10,000 neurons and 1,000 inputs the other takes a thousand times as long.
    """
    if matrix.shape[0] <= matrix.shape[1]:
        return torch.linalg.eigh(matrix @ matrix.T)[1][:, -rank:]
    return torch.linalg.qr(matrix @ torch.linalg.eigh(matrix.T @ matrix)[1][:, -rank:])[0]


def live(matrix: Tensor) -> Tensor:
    """Without the columns of inputs that were always zero: nothing is learnt from those."""
    sizes = matrix.norm(dim=0)
    return matrix[:, sizes > AFTER_CLIFF * sizes.max()]


def _singular(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values in float64, falling, and right vectors; of a large matrix by its smaller Gram matrix.

    That is faster, and values below 3·10⁻⁸ of the largest are lost in rounding, far below any that matters.
    """
    if matrix.numel() < SLOW_SVD:
        _, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
        return values, right.to(matrix.dtype)
    squares, vectors = torch.linalg.eigh(_gram(matrix))
    vectors = vectors.flip(1)
    if matrix.shape[0] > matrix.shape[1]:
        return _roots(squares), vectors.T.to(matrix.dtype)
    right = torch.empty_like(matrix)
    for some, into in zip(_columns(matrix), _columns(right), strict=True):
        into.copy_(vectors.T @ some.double())
    return _roots(squares), torch.nn.functional.normalize(right, dim=1)


def _values(matrix: Tensor) -> Tensor:
    """The singular values alone."""
    if matrix.numel() < SLOW_SVD:
        return torch.linalg.svdvals(matrix.double())
    return _roots(torch.linalg.eigvalsh(_gram(matrix)))


def _gram(matrix: Tensor) -> Tensor:
    """A Aᵀ or Aᵀ A, whichever is smaller, in float64: summed over parts, so that no copy of all is made."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    total = torch.zeros(len(wide), len(wide), dtype=torch.float64, device=matrix.device)
    for some in _columns(wide):
        part = some.double()
        total.addmm_(part, part.T)
    return total


def _columns(matrix: Tensor) -> tuple[Tensor, ...]:
    return matrix.split(AT_ONCE, dim=1)


def _roots(squares: Tensor) -> Tensor:
    return squares.flip(0).clamp_min(SQUARE_ROUNDING * float(squares.max())).sqrt()


def _cliff(values: Tensor, rounding: float = 0.0) -> int:
    """How many singular values stand before the first cliff that ends in rounding errors; 0 if there is none."""
    falls = (values[:-1] > CLIFF * values[1:]) & (values[1:] < max(rounding, AFTER_CLIFF * float(values[0])))
    falls[int((1 - LAST) * len(values)) :] = False
    return int(falls.nonzero()[0]) + 1 if falls.any() else 0
