"""Corners of the cone, and what proves that one is a sample: its zeros, each of which follows from the others.

The numbered steps are those of docs/method-cone.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh

from unfit.attacker.cone_span import NOISE, RIDGE, Array, Flags, Space, gram, lowest
from unfit.attacker.duals import GateCheck, eigenvector, least
from unfit.attacker.sparse import leverages

CLEAR = 0.1  # noise of a zero against the typical other value: above, nothing can be told to vanish
# Corners. Directions have unit length, values mean size 1.
WIDTHS = tuple(np.geomspace(1, 1e-2, 20).tolist())  # of “small”: 12 that end at 10⁻³ are too steep
NEGATIVE = 100.0  # what a negative value costs: 10 does as well, 1 finds a quarter for 200 samples with 47% zeros
SOFT = 0.1  # of the mean value: what a reweighted program takes for small
STUCK = 0.999  # cosine of two answers in a row: reweighting changes nothing any more
ROUGH = (1e-2, 1e-3, 1e-4)  # of the mean value: what first counts as zero in a program's answer
# Proof
ALONE = 0.9  # leverage of a zero that the other zeros do not imply: 1 in wrong corners, at most 0.7 in samples
APART = 10.0  # how much worse the next vector must vanish on the same inputs, or the zeros fit several vectors
CLEARLY_MORE = 1.5  # zeros for each sample: wrong corners of 200 samples have 1.05 …
MORE = 20  # … and so many more than samples: of ten 0/1 columns a wrong corner vanishes on a few by chance
SELDOM = 0.1  # share of the samples that vanish in a column: in a real one hardly any does, by chance
# Rivals and whole numbers
WHOLE = (
    1e-3  # distance from a whole number, and from zero for the largest value 1: samples are off by 10⁻⁴ at most
)
SOME = 0.2  # share of whole corners from which on all samples are taken to be whole: by chance none is
MARGIN = 5  # zeros at which the nearest rival is not zero: two to four in wrong corners, 2 in 100 texts have fewer
RIVAL_STARTS, RIVAL_WIDTHS = 3, (0.1, 0.03, 0.01, 0.003, 0.001)  # of the search for it: widths of “zero”
ALIKE = 5  # most alike corners whose differences are ways to rivals
TINY = 1e-6  # of a value, below which it does not move


def lean(space: Space, aim: Array) -> Array:
    """About the c with c · aim = 1 that has fewest values and hardly a negative one: least squares, reweighted.

    A value that is small is made smaller yet, and a negative one costs more; what counts as small shrinks. Where
    aims are good this runs into the same corners as linear programs do, ten times as fast.
    """
    c = aim
    for width in WIDTHS:
        values = c @ space.directions
        values = values / np.abs(values).mean()
        weight = np.where(values < 0, NEGATIVE, 1.0) / (np.square(values) + width**2)
        squares = gram(space.directions * np.sqrt(weight))
        c = np.linalg.solve(squares + RIDGE * np.trace(squares) / space.n * np.eye(space.n), aim)
    return c


def programs(space: Space, aim: Array, reweightings: int) -> Iterator[Array]:
    """Corners with a value at this aim: each linear program prefers what the last left small."""
    weight, last = np.ones(space.directions.shape[1]), np.zeros(space.n)
    for _ in range(reweightings):
        c = lowest(space.directions, weight, aim)
        if c is None or c @ last > STUCK * np.linalg.norm(c) * np.linalg.norm(last):
            return
        yield c
        last, values = c, np.maximum(c @ space.directions, 0)
        weight = 1 / (values / values.mean() + SOFT)


def snap(space: Space, c: Array) -> Array:
    """The vector that vanishes best where this one is about zero, of unit length and not negative on the whole.

    What is about zero is guessed more than once: a few small values among the zeros can lead to another vector.
    """
    tries = (_snapped(space, c, (*ROUGH[i:], None, None)) for i in range(len(ROUGH)))
    a = max(tries, key=lambda each: int(vanishing(space, each).sum()))
    return a * np.sign((a @ space.values).sum() or 1.0) / np.linalg.norm(a)


def _snapped(space: Space, c: Array, guesses: tuple[float | None, ...]) -> Array:
    values, a = np.abs(c @ space.directions), c @ space.whitening
    for rough in guesses:
        zero = vanishing(space, a) if rough is None else values < rough * values.mean()
        if zero.sum() < space.n - 1:
            break
        a = least(squares_at(space, zero), a)
        values = np.abs(a @ space.colouring @ space.directions)
    return a


def squares_at(space: Space, columns: Flags) -> Array:
    """V Vᵀ, where V are the values at these columns; by the others, where those are fewer."""
    if 2 * columns.sum() < len(columns):
        return gram(space.values[:, columns])
    return space.squares - gram(space.values[:, ~columns])


def vanishing(space: Space, a: Array) -> Flags:
    """The live inputs at which a vector of unit length is zero, up to rounding."""
    return np.abs(a @ space.values) < NOISE * np.linalg.norm(a)


# Step 2: proof ---------------------------------------------------------------------------------------------


def is_proven(space: Space, a: Array) -> bool:
    """Whether it is a corner with many more zeros than any has, each of which follows from the others."""
    zero = vanishing(space, a)
    many = zero.sum() >= enough_zeros(space.n)
    return bool(many) and is_corner(space, a) and leverage(space, zero) < ALONE


def is_borne_out(space: Space, corners: Array, heard: GateCheck, i: int) -> bool:
    """Whether a corner is proven in the whole span, or in what the exact columns of others leave of it.

    A text with all words of another vanishes nowhere but where that one does too. Then it takes the other's column
    to tell them apart. Where all others have exact columns, one vector is left.
    """
    if is_proven(space, corners[i]):
        return True
    part = left_of(space, heard, i)
    a = part.within(space, corners[i])
    return may_be_sample(part, a) if part.n == 1 else is_proven(part, a)


def left_of(space: Space, heard: GateCheck, i: int) -> Space:
    """What the exact columns of all other corners leave of a span."""
    others = heard.clean & (np.arange(len(heard.clean)) != i)
    return space.beyond(heard.columns[others])


def enough_zeros(n: int) -> float:
    return max(CLEARLY_MORE * n, n + MORE)


def is_corner(space: Space, a: Array) -> bool:
    """Whether it may be a sample, and no other vector vanishes where it does."""
    zero = vanishing(space, a)
    if not may_be_sample(space, a) or zero.sum() <= space.n:
        return False
    first, second = eigh(squares_at(space, zero), eigvals_only=True, subset_by_index=(0, 1))
    rounding = np.finfo(float).eps * np.trace(space.squares)  # of these products: 10⁴ where values reach 10⁹
    return bool(second > APART**2 * max(first, rounding))


def may_be_sample(space: Space, a: Array) -> bool:
    """Whether it is never negative, clearly not zero elsewhere, and has a scale and a size if there is a bias."""
    values = a @ space.values
    others = values[~vanishing(space, a)]
    if not len(others) or values.min() < -NOISE or CLEAR * np.median(others) < NOISE:
        return False
    if space.bias is None:
        return True
    return float(a @ space.bias) > NOISE and not space.is_nothing(a)  # the difference of two samples has no bias


def leverage(space: Space, zero: Flags) -> float:
    """How far the zero that follows least from the others follows from itself alone."""
    return float(leverages(torch.from_numpy(space.directions[:, zero].T.copy())).max())


def stand_alone(x: Array, clear: Flags, doubtful: Flags) -> Flags:
    """Which clear corners have no rival that vanishes as often, and are whole where some are: (k,).

    Where two samples are alike, their difference is nearly zero, and a third plus that difference is a corner too.
    Where values are equal, as counts are, many then vanish at once, and zeros alone cannot tell which one is the
    sample. So from each corner the way along such differences is gone, both ways, until the next value vanishes.
    What stands there may be a sample, and any of the three corners that lead there may be none. Only differences
    of doubtful corners are ways to rivals: a corner with a part of an exact column of another is accused.
    """
    whole = are_whole(x[:, often_zero(x)])[:, 0]
    alone = clear & (whole if whole.mean() > SOME else True)
    pairs, zeros = alike_pairs(x), (x == 0).sum(1)
    pairs = pairs[doubtful[pairs].all(1)]
    ways, beaten = x[pairs[:, 0]] - x[pairs[:, 1]], np.zeros(len(x), bool)
    for i, each in enumerate(x):
        others = (pairs != i).all(1)
        rivals = most_zeros(each, ways[others])
        for members in (np.full(len(rivals), i), *pairs[others].T):
            beaten[members[rivals >= zeros[members]]] = True
    return alone & ~beaten


def often_zero(x: Array) -> Flags:
    """The columns that vanish in some of the corners: what never does may be real, and no whole number."""
    often: Flags = (x == 0).mean(0) >= SELDOM
    return often if often.any() else ~often


def are_clear(space: Space, corners: Array, heard: GateCheck) -> Flags:
    """Which corners no other vector comes near to: the next best one is not zero at several of their zeros.

    Rivals have no part of an exact column of another, or it would accuse them.
    """
    clear = np.zeros(len(corners), bool)
    for i, a in enumerate(corners):
        part = left_of(space, heard, i)
        clear[i] = part.n == 1 or margin(part, part.within(space, a)) >= MARGIN
    return clear


def margin(space: Space, a: Array) -> int:
    """At how many zeros of this corner the vector is not zero that vanishes at most others, by reweighting."""
    zero = vanishing(space, a)
    if not zero.any():
        return 0
    rows, fewest = space.values[:, zero], int(zero.sum())
    unit = rows / np.linalg.norm(rows, axis=0)
    for first in range(1, min(RIVAL_STARTS, space.n - 1) + 1):
        weight, which = np.ones(unit.shape[1]), first
        for eps in RIVAL_WIDTHS:
            rival = eigenvector(gram(unit * np.sqrt(weight)), which)
            size, which = np.abs(rival @ unit), 1
            weight = 1 / (np.square(size / np.sqrt(np.square(size).mean())) + eps**2)
        fewest = min(fewest, int((np.abs(rival @ rows) > NOISE).sum()))
    return fewest


def alike_pairs(x: Array) -> NDArray[np.intp]:
    """Each corner with those most like it: (p, 2)."""
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(float).tiny)
    alike = np.argsort(-(unit @ unit.T - 2 * np.eye(len(x))), axis=1)[:, :ALIKE]
    pairs = {(min(i, j), max(i, j)) for i, row in enumerate(alike) for j in row if i != j}
    return np.array(sorted(pairs), dtype=np.intp).reshape(-1, 2)


def most_zeros(x: Array, ways: Array) -> NDArray[np.intp]:
    """The most zeros of x ± t · way for each way, where t is as large as it can be without a value below zero."""
    most = np.zeros(len(ways), np.intp)
    for sign in (1, -1):
        with np.errstate(divide="ignore", invalid="ignore"):
            far = np.where(sign * ways < -TINY, x / (-sign * ways), np.inf).min(1)
        moves = (far > TINY) & np.isfinite(far)
        there = x + ways[moves] * sign * far[moves, None]
        most[moves] = np.maximum(most[moves], (np.abs(there) < WHOLE * x.max()).sum(1))
    return most


def cosines(space: Space, known: Array, a: Array) -> Array:
    """Of a corner with the known ones, as their directions c."""
    known, c = known @ space.colouring, a @ space.colouring
    cosines: Array = np.abs(known @ c) / np.linalg.norm(known, axis=1) / np.linalg.norm(c)
    return cosines


def is_plausible(space: Space, a: Array) -> bool:
    """Whether it has more zeros than wrong corners have, or is made of whole numbers, which those seldom are."""
    many = vanishing(space, a).sum() > CLEARLY_MORE * space.n
    return bool(many or are_whole(to_scale(space, a[None]))[0, 0])


def to_scale(space: Space, corners: Array) -> Array:
    """The inputs (k, d) of corners: zeros exactly zero, the bias 1, whole numbers whole."""
    x = _with_zeros(space, corners) / scales(space, corners)
    return np.where(are_whole(x), x.round(), x)


def scales(space: Space, corners: Array) -> Array:
    """What to divide corners by, (k, 1), so that their bias is 1.

    Without a bias the smallest value is taken for 1 where all others are multiples of it, else the largest is 1.
    """
    if space.bias is not None:
        by_bias: Array = (corners @ space.bias)[:, None]
        return by_bias
    x = _with_zeros(space, corners)
    least = np.where(x > 0, x, np.inf).min(1, keepdims=True)
    return np.where(are_whole(x / least), least, x.max(1, keepdims=True))


def _with_zeros(space: Space, corners: Array) -> Array:
    x = space.sample(corners)
    x[:, space.live] *= ~np.stack([vanishing(space, a) for a in corners])
    return x


def in_other_units(x: Array) -> Flags:
    """Which rows are whole multiples of a value that is not 1, so that their scale is in doubt: (k,).

    Where weights decayed, what all samples add up to may be taken for the bias, and it may be a multiple of that.
    """
    least = np.where(x > 0, x, np.inf).min(1, keepdims=True)
    doubt: Flags = (are_whole(x / least) & ~are_whole(x))[:, 0]
    return doubt


def are_whole(x: Array) -> Flags:
    """Which rows are whole numbers, up to rounding: (k, 1). Small values all are, so one must be at least 1."""
    whole: Flags = (np.abs(x - x.round()) < WHOLE).all(1, keepdims=True) & (x.max(1, keepdims=True) > 1 - WHOLE)
    return whole
