"""The span of samples that are never negative and often zero, as `cone` sees it: in units of rounding.

The rows of the layer's change span the samples; vectors of the span without a negative value form a cone. Real
columns beside sparse ones take no part in this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import null_space
from torch import Tensor

from unfit.attacker.attacked_layer import AttackedLayer
from unfit.attacker.one_hot import find_ones
from unfit.attacker.span import column_space, visible_rank
from unfit.base.budget import seconds_left

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

# Zeros. Noise is that of rounding in training, seen where the span has ended.
NOISE = 10.0  # times the noise: true zeros were seen up to 8, other values from hundreds on
NO_NOISE = 1e-12  # of the largest value of a column: a column that was always zero has none
RIDGE = 1e-12  # times the mean diagonal, so that solving never fails; in units of the noise, nothing at all
MOST_COSINES = 4096**2  # between inputs, at once: with more inputs, each is compared with some of the others
ENOUGH_COLUMNS = 3  # times the rank: a random span of more than 2 inputs a dimension has no cone (Wendel)
SMALLEST = 1e-3  # of the usual size of a sample: centred ones add up to a vector of rounding errors, with a bias
BLUR = 20.0  # times the noise: what the errors of columns make of it, to where they leave 70 of a zero
GONE = 1e-4  # of an input's size: what they leave where no other sample uses it, in these units
# Columns of any sign
KEPT = (0.5, 0.7, 0.85, 0.92, 0.95)  # shares of the columns: of those least likely to be real
EVEN_PASSES = 20  # of Tyler's fixed point; it hardly moves after ten


# The span --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Space:
    """The span of the samples: each is a combination of the rows of `values`, at inputs that any sample used."""

    values: Array  # (n, live): UᵀA in units of the noise of each input, so that the noise of a · values is |a|
    scale: Array  # (live,): the noise of each input, in units of the bias's noise if there is one
    bias: Array | None  # (n,): UᵀΔb1 in units of its noise; every sample has the same
    live: Flags  # (d,): the inputs that some sample used
    neurons: Array  # (w, n): orthonormal columns; neurons · values is the change of the layer in these units
    scaling: tuple[Array, Array] | None = None  # scale and shift (d,): what the model does to its inputs first

    @property
    def n(self) -> int:
        return len(self.values)

    @cached_property
    def squares(self) -> Array:
        return gram(self.values)

    @cached_property
    def whitening(self) -> Array:
        """(n, n): c · whitening are the coordinates a of which a · values are the values of c."""
        return whitening_of(self.values * self.scale)

    @cached_property
    def colouring(self) -> Array:
        """(n, n): from coordinates a back to c."""
        return np.asarray(np.linalg.inv(self.whitening), np.float64)

    @cached_property
    def directions(self) -> Array:
        """One unit vector an input: the values of c at the inputs are c · directions, up to a scale for each."""
        white = self.whitening @ self.values
        directions: Array = white / np.linalg.norm(white, axis=0)
        return directions

    @cached_property
    def varying(self) -> Flags:
        """The inputs that are not the same for all samples: what is, is a multiple of the bias."""
        assert self.bias is not None
        length = max(float(np.linalg.norm(self.bias)), float(np.finfo(float).tiny))
        along = self.bias @ self.values / length
        rest = np.linalg.norm(self.values - np.outer(self.bias / length, along), axis=0)
        varying: Flags = rest > NOISE * np.sqrt(self.n) * (1 + np.abs(along) / length)
        return varying

    def is_nothing(self, a: Array) -> bool:
        """Whether this vector is far smaller than samples with its bias are, where samples differ."""
        assert self.bias is not None
        x = (self.values * self.scale)[:, self.varying]
        size, usual = float(np.linalg.norm(a @ x)), float(np.linalg.norm(x))
        return size * float(np.linalg.norm(self.bias)) < SMALLEST * usual * abs(float(a @ self.bias))

    def only(self, columns: Flags) -> Space:
        """The same span, seen at some of the live inputs alone."""
        live = self.live.copy()
        live[live] = columns
        return replace(self, values=self.values[:, columns], scale=self.scale[columns], live=live)

    def beyond(self, columns: Array) -> Space:
        """The part of the span that holds all samples but those with these columns (k, n): it is dual to them."""
        if not len(columns):
            return self
        rest = null_space(columns)
        values, bias = rest.T @ self.values / BLUR, None if self.bias is None else rest.T @ self.bias / BLUR
        size, before = (np.linalg.norm(each, axis=0) for each in (values, self.values))
        part = replace(self, values=values, bias=bias, neurons=self.neurons @ rest)
        return part.only(size > np.maximum(NOISE * np.sqrt(len(values)), GONE * before))

    def within(self, other: Space, a: Array) -> Array:
        """Coordinates (…, n) of another part of the same span in those of this one."""
        here: Array = a @ other.neurons.T @ self.neurons
        return here

    def normalised(self, x: Array) -> Array:
        """From inputs of the model to those of its first layer."""
        return x if self.scaling is None else x * self.scaling[0] + self.scaling[1]

    def sample(self, corners: Array) -> Array:
        """The inputs (k, d) of corners in the coordinates of `values`."""
        x = np.zeros((len(corners), len(self.live)))
        x[:, self.live] = corners @ self.values * self.scale
        return x


@lru_cache(maxsize=1)  # preflight, `auto` and the attack ask for it in turn
def read_space(layer: AttackedLayer) -> Space | None:
    """None where the span is not known: a convolution, or a spectrum without an end.

    A normalisation inside the model is undone where its inputs then have a cone.
    """
    if layer.conv is not None or not layer.span.ends:
        return None
    weight, bias = layer.weight.double().cpu(), layer.bias
    if bias is None:
        return _space(weight, has_bias=False, n=layer.span.rank)
    bias = bias.double().cpu()[:, None]
    if layer.target.whole is not None and (scaling := layer.target.whole.scaling):
        scale, shift = scaling
        raw = _space(torch.cat([(weight - bias * shift) / scale, bias], 1), has_bias=True)
        if raw is not None and has_cone(raw):
            return replace(raw, scaling=(scale.numpy(), shift.numpy()))
    space = _space(torch.cat([weight, bias], 1), has_bias=True)
    return space if layer.decays_evenly else with_ones(space, weight, bias)


def with_ones(space: Space | None, weight: Tensor, bias: Tensor) -> Space | None:
    """The span with a bias that is exact, where weights decayed and the bias did not, or without one.

    Training then adds Σ_i α_i x_iᵀ to the weights and another Σ_i β_i to the bias. β_i is near to α_i, or in a
    direction of its own, which looks like the sum of centred samples. What one-hot groups add up to is exact.
    """
    alone = _space(weight, has_bias=False)
    if alone is not None and (grouped := _with_groups(alone, bias)):
        return grouped
    if alone is None or (space is not None and not is_centred(space)):
        return space
    enough = alone.values.shape[1] > ENOUGH_COLUMNS * alone.n
    return alone if enough and has_cone(alone) else space


def _with_groups(space: Space, bias: Tensor) -> Space | None:
    """The span of weights alone with the sum of a one-hot group as its bias; None if there are no groups."""
    found = find_ones(space.values, space.scale, space.neurons.T @ bias[:, 0].numpy())
    if found is None:
        return None
    ones, noise = found
    return replace(space, bias=ones / noise, scale=space.scale / noise)


def _space(rows: Tensor, has_bias: bool, n: int | None = None) -> Space | None:
    """`n`: its dimensions, where they are known."""
    change, n = rows.numpy(), visible_rank(rows) if n is None else n
    if not 1 < n < len(change):
        return None
    basis = column_space(rows, n).numpy()
    values = basis.T @ change
    rest = np.linalg.norm(change - basis @ values, axis=0) / np.sqrt(len(change) - n)
    scale = np.maximum(rest, NO_NOISE * np.abs(change).max())
    values = values / scale
    live = np.linalg.norm(values, axis=0) > NOISE * np.sqrt(n)
    if not has_bias:
        return Space(values[:, live], scale[live], None, live, basis)
    live = live[:-1]
    return Space(values[:, :-1][:, live], scale[:-1][live] / scale[-1], values[:, -1], live, basis)


# Columns of any sign ---------------------------------------------------------------------------------------


def peakedness(directions: Array) -> Array:
    """Σ_k cos⁴ of each unit direction with the others: large for an input that few samples use."""
    some = directions[:, :: max(1, directions.shape[1] ** 2 // MOST_COSINES)]
    peaked: Array = np.square(np.square(directions.T @ some)).sum(1)
    return peaked


def sparse_likely(space: Space) -> Iterator[Space]:
    """Parts of the columns that may hold no real one, then all of them.

    Columns that few samples use have peaked cosines. Those that many use and that are never negative point in one
    common direction, that of the bias if there is one. Real columns do neither.
    """
    even, bias = evened(space)
    common = space.directions.T @ space.directions.sum(1)
    both = ranks(peakedness(even)) + (0 if bias is None else ranks(bias @ even))
    for share in KEPT:
        yield from (space.only(likely >= np.quantile(likely, 1 - share)) for likely in (both, common))
    yield space


def peaked_parts(space: Space) -> Iterator[Space]:
    """The columns with the most peaked cosines."""
    peaked = peakedness(evened(space)[0])
    yield from (space.only(peaked >= np.quantile(peaked, 1 - share)) for share in KEPT)


def evened(space: Space) -> tuple[Array, Array | None]:
    """Unit directions where no direction is preferred, whatever a column's units (Tyler); and the bias there."""
    even, bias = space.values, space.bias
    for _ in range(EVEN_PASSES):
        whitening = whitening_of(even)
        even, bias = whitening @ even, None if bias is None else whitening @ bias
        even = even / np.linalg.norm(even, axis=0)
    return even, bias


def ranks(values: Array) -> NDArray[np.intp]:
    return values.argsort().argsort()


def whitening_of(columns: Array) -> Array:
    """(n, n): what makes the rows of columns (n, d) orthonormal."""
    squares, vectors = np.linalg.eigh(columns @ columns.T)
    whitening: Array = (vectors / np.sqrt(np.maximum(squares, RIDGE * squares.max()))).T
    return whitening


# Step 1: a corner ------------------------------------------------------------------------------------------


def lowest(directions: Array, weight: Array, aim: Array) -> Array | None:
    """The c with c · aim = 1 and no negative value whose weighted sum of values is least; None if there is none.

    Solved by its dual, max λ with Σ_j y_j u_j + λ · aim = Σ_j weight_j u_j and y ≥ 0: n equations instead of d.
    """
    from scipy.optimize import linprog  # here: it takes half a second to load

    d = directions.shape[1]
    cost = np.append(np.zeros(d), -1.0)
    found = linprog(
        cost,
        A_eq=np.column_stack([directions, aim]),
        b_eq=directions @ weight,
        bounds=[(0, None)] * d + [(None, None)],
        method="highs-ds",
        options={"presolve": False, "time_limit": max(0.0, seconds_left())},  # dense: nothing to take out
    )
    return -found.eqlin.marginals if found.status == 0 else None


@lru_cache(maxsize=1)
def has_cone(space: Space) -> bool:
    """Whether the span has a vector without negative values where columns may not be real.

    A few of these columns are enough to say that it has none.
    """
    if is_centred(space):
        return False
    parts = (part for part in peaked_parts(space) if part.values.shape[1] > ENOUGH_COLUMNS * space.n)
    return _has_cone(space) or any(map(_has_cone, parts))


def is_centred(space: Space) -> bool:
    """Whether the samples add up to nothing: then their zeros are constants, and that sum would be a corner."""
    if space.bias is None:
        return False
    x = (space.values * space.scale)[:, space.varying]
    return space.is_nothing(np.linalg.eigh(x @ x.T)[1][:, 0])


def _has_cone(space: Space) -> bool:
    random = np.random.default_rng(0)
    columns = random.permutation(space.directions.shape[1])[: ENOUGH_COLUMNS * space.n]
    some = space.directions[:, columns]
    return lowest(some, np.ones(some.shape[1]), some.sum(1)) is not None


def gram(rows: Array) -> Array:
    """rows · rowsᵀ: of one array with itself, which takes half the time of another product."""
    return np.asarray(rows @ rows.T)
