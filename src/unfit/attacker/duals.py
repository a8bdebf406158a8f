"""Do the neurons bear out what zeros say? A sample's column of neurons is dual to all other samples.

Training adds Σ_i α_i [x_i; 1]ᵀ to the first layer. In coordinates, samples are x_i = a_i · values and columns
α_i = neurons · c_i, and then a_j · c_i = 0 for all j ≠ i. A column also vanishes on every neuron that was off for
its own sample. So the column of a known sample is found from its gates and from the other samples, some of which
may be wrong: reweighting leaves a few out. Where texts are alike, x_1 + x_2 − x_3 can have as many zeros as a
sample has. But it has a part of the columns of samples 2 and 3, and these accuse it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, eigh

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

WIDTHS = (
    0.3,
    0.1,
    0.03,
    0.01,
    3e-3,
    1e-3,
    3e-4,
    1e-4,
    3e-5,
)  # of “zero” in reweighting, relative to the mean size of a column
TRUSTED = 100.0  # times as much as gates, which training may have turned: most other samples are right
VANISHES = 0.01  # of the mean size of a column, as in peel
AGREES = 0.8  # share of its own off neurons on which a sample's column vanishes: of 271 texts 96% have more
CONTRADICTS = 0.02  # part of another's column: samples have 0.004 at most, the 14 wrong corners of 300 texts 0.2
CREDIBLE = 0.1  # share of the corners that a column may accuse: what is no column accuses a fifth or more
MORE = 10  # neurons that are off, beyond what can vanish by chance: one does so in a hundred
EXACT, CLEAN = 1e-4, 0.9  # a column that vanishes so well on so many is exact: 61 of 110 texts, to 5·10⁻⁵ at worst
RIDGE = 1e-14  # of the mean diagonal: what rounding leaves of an eigenvalue that is zero
STEPS = 4  # of inverse iteration: each leaves a hundredth of the error where a vector stands alone


@dataclass(frozen=True, eq=False)
class GateCheck:
    """What the neurons say of k corners."""

    agrees: Flags  # (k,): whether it has a column, dual to most others, that vanishes where its neurons are off
    contradicted: Flags  # (k,): whether it has a part of the column of one that agrees
    columns: Array  # (k, n): the coordinates c of each
    wrong: Flags  # (k,): whether an exact column accuses it; others err while few samples are known
    clean: Flags  # (k,): whether its own column is exact, as far as the neurons can tell


def check_gates(neurons: Array, off: Flags, corners: Array, exact: Array) -> GateCheck:
    """neurons: (w, n), orthonormal. off: (w, k), before and after training. corners: (k, n), coordinates a.

    exact: (j, n), the exact columns of the first corners, which are not sought again.
    """
    off = off & moved(neurons)[:, None]
    unit = corners / np.linalg.norm(corners, axis=1, keepdims=True)
    others = range(len(exact), len(unit))
    columns = np.array([*exact, *(find_column(neurons, off[:, i], np.delete(unit, i, 0)) for i in others)])
    columns = columns.reshape(-1, neurons.shape[1])
    size = np.abs(neurons @ columns.T)  # (w, k)
    share = (off & (size < VANISHES * size.mean(0))).sum(0) / np.maximum(off.sum(0), 1)
    free = neurons.shape[1] - len(unit)  # neurons on which a column can vanish by chance
    agrees = (share >= AGREES) & (off.sum(0) >= free / AGREES + MORE)
    parts = np.abs(unit @ columns.T)  # (k, k): of corner j in column i
    contradicts = parts > CONTRADICTS * parts.diagonal()
    np.fill_diagonal(contradicts, False)
    agrees &= contradicts.sum(0) <= CREDIBLE * len(unit)
    clean = agrees & ((off & (size < EXACT * size.mean(0))).sum(0) >= CLEAN * off.sum(0))
    wrong = contradicts[:, clean].any(1)
    return GateCheck(agrees, contradicts[:, agrees].any(1), columns, wrong, clean & ~wrong)


def moved(neurons: Array) -> Flags:
    """The neurons on which vectors of the space need not vanish: one that never fired tells of no sample. (w,)"""
    size = np.linalg.norm(neurons, axis=1)
    found: Flags = size > VANISHES * np.sqrt(neurons.shape[1] / len(neurons))
    return found


def find_column(neurons: Array, off: Flags, others: Array) -> Array:
    """The c (n,) of unit length whose column vanishes where neurons are off, and that is dual to most others.

    It is sought twice, trusting neurons and others alike at first, or the others far more.
    """
    scale = np.sqrt(neurons.shape[1] / len(neurons))  # the typical length of a row of neurons
    rows = np.vstack([neurons[off] / scale, others])
    found = []
    for trust in (1.0, TRUSTED):
        first = np.vstack([rows[: -len(others) or None], trust * others])
        c = eigenvector(first.T @ first, 0)
        for width in WIDTHS:
            size = np.abs(rows @ c) * scale / np.abs(neurons @ c).mean()
            narrow = rows / np.sqrt(np.square(size) + width**2)[:, None]
            c = least(narrow.T @ narrow, c)
        found.append(((np.abs(rows @ c) * scale < VANISHES * np.abs(neurons @ c).mean()).sum(), c))
    return max(found, key=lambda each: int(each[0]))[1]


def least(squares: Array, near: Array) -> Array:
    """The unit vector on which a quadratic form is smallest, by inverse iteration from one that is near it."""
    try:
        factor = cho_factor(squares + RIDGE * np.trace(squares) / len(squares) * np.eye(len(squares)))
    except np.linalg.LinAlgError:  # rounding has left a negative eigenvalue
        return eigenvector(squares, 0)
    for _ in range(STEPS):
        near = cho_solve(factor, near)
        near = near / np.linalg.norm(near)
    return near


def eigenvector(squares: Array, which: int) -> Array:
    """That of the eigenvalue with this number, from the least on: a third of the time that all take."""
    vectors: Array = eigh(squares, subset_by_index=(which, which))[1]
    return vectors[:, 0]
