"""The sparsest vectors of a space, and a certificate that one of them is what it seems: three numbers.

A space of n dimensions is given by the rows of an orthonormal basis U, one row for each place: (w, n). The
sparsest vector near a guess is found by least squares that is reweighted while the width of “zero” falls, or by a
linear program, and sharpened until its zeros are as small as rounding leaves them. What is found is then judged by
its zeros alone (docs/proof.md has the statement):

- chance: how many sets of zeros as many and as small a space in general position is expected to have, counting all
  sets, however long anybody searched. It follows from the tail of the last singular value of a random matrix.
- gap: between the last two singular values of U at the zeros. They determine one vector, or they do not.
- support: how far the zero that the others support least follows from them. At 0, nothing but that zero's own
  demand holds it, as in a mixture that was made to vanish there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

CHANCE = 1e-9  # expected number of sets of zeros, as many and as small, in the whole space by chance
GAP = 300  # of the last two singular values: 10⁴ where zeros determine a vector, 10 where not; halfway between
SUPPORT = 0.07  # 0.1 to 0.6 for the sparsest vectors of a space, 0 for mixtures of them

RIDGE = 1e-6  # times the mean diagonal, so that solving never fails; 10⁻⁸ to 10⁻⁴ do as well
TINY = 1e-14  # times the mean diagonal, so that factorising never fails
NO_LENGTH = 1e-30  # nothing is divided by zero where a row is constant
LEAST_VALUE = 1e-9  # singular values below are rounding errors of the Gram matrix, in float64


# The search ------------------------------------------------------------------------------------------------


def falling(first: float, last: float, steps: int) -> list[float]:
    """Widths of “zero”, each the same fraction of the one before."""
    return torch.logspace(math.log10(first), math.log10(last), steps).tolist()


def reweighted(space: Tensor, off: Tensor, guess: Tensor, widths: list[float]) -> Tensor:
    """The vectors along each guess (m, w) that vanish most often, above all where `off` is large: (m, w).

    Each step makes Σ off · a² / (a₀² + width²) least for a · guess = 1, where a₀ is the last a of mean square 1.
    """
    a, along = guess, guess @ space
    for width in widths:
        a = solve_each(weighted(space, off / (level(a).square() + width**2)), along) @ space.T
    return level(a)


def sharper(space: Tensor, a: Tensor, width: float, off: Tensor | float = 1.0) -> Tensor:
    """The vector (w,) with the least Σ off · a² / (a₀² + width²), for the given a₀: by inverse iteration."""
    c = null_near(weighted(space, off / (a[None].square() + width**2), TINY)[0], a @ space)
    return level((space @ c)[None])[0]


def null_near(squares: Tensor, near: Tensor, steps: int = 2) -> Tensor:
    """The unit vector on which a quadratic form (n, n) is least, by inverse iteration from one that is near it."""
    factor = torch.linalg.cholesky(squares)
    for _ in range(steps):
        near = F.normalize(torch.cholesky_solve(near[:, None], factor)[:, 0], dim=0)
    return near


def least_sum(rows: Tensor, along: Tensor) -> Tensor | None:
    """The c with c · along = 1 and the least Σ_j |u_j · c|; None if there is none.

    Reweighting can end beside a vector. A linear program has one end only. It is solved by its dual: the largest μ
    with Σ_j y_j u_j = μ · along and |y_j| ≤ 1, whose multipliers are c.
    """
    from scipy.optimize import linprog  # here: it takes half a second to load

    found = linprog(
        [0.0] * len(rows) + [-1.0],
        A_eq=torch.cat([rows.T, -along[:, None]], 1).cpu().numpy(),
        b_eq=[0.0] * rows.shape[1],
        bounds=[(-1, 1)] * len(rows) + [(None, None)],
    )
    return torch.as_tensor(found.eqlin.marginals).to(along) if found.success else None


# The certificate -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Certificate:
    """What a set of zeros says of the one vector that vanishes there."""

    num_zeros: int
    log_chance: float
    gap: float
    support: float
    coordinates: Tensor  # (n,), of the vector that vanishes best, whatever vector the zeros were read from

    @property
    def holds(self) -> bool:
        return self.log_chance < math.log(CHANCE) and self.gap > GAP and self.support > SUPPORT


def certify(space: Tensor, zero: Tensor, width: float) -> Certificate:
    """Of the vector that vanishes on these rows of an orthonormal basis (w, n), in float64.

    width: What counts as zero, where the vector has mean square 1. Rows on which every vector is that small say
    nothing, and are left out.
    """
    rows = space[zero & (sizes(space) > width)]
    num, n = rows.shape
    values, vectors = singular(rows)
    near = vectors[:, 0]
    if n == 1:  # one vector, and nothing to mix it with
        return Certificate(num, -math.inf, math.inf, 1.0, near)
    if num < n:
        return Certificate(num, math.inf, 1.0, 0.0, near)
    on_rows = (rows @ near).abs() / rows.norm(dim=1) * math.sqrt(n)
    chance = log_chance(on_rows.sort().values, n, len(space)).min()
    support = float((1 - leverages(rows)).min()) * num / (num - n + 1)
    return Certificate(num, float(chance), float(values[1] / values[0]), support, near)


def singular(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values (n,), the smallest first, and right vectors (n, n), by the Gram matrix."""
    squares, vectors = torch.linalg.eigh(rows.T @ rows)
    return squares.clamp_min(0).sqrt().clamp_min(LEAST_VALUE), vectors


def leverages(rows: Tensor) -> Tensor:
    """How far each zero follows from itself alone: the diagonal of the projection on rows of rank n − 1. (z,)"""
    values, vectors = singular(rows)
    return (rows @ vectors[:, 1:] / values[1:]).square().sum(1)


def sizes(space: Tensor) -> Tensor:
    """What vectors of mean square 1 have at each place as a rule: (w,)."""
    w, n = space.shape
    return space.norm(dim=1) * math.sqrt(w / n)


def log_chance(values: Tensor, n: int, w: int) -> Tensor:
    """The logarithm of how many sets of zeros as many and as small there are by chance, at most, among w rows.

    values: What a unit vector (n,) has on each row of the set, where rows have the length √n: (z,), ascending. The
    result has an entry for the first n of them, the first n + 1, …: these are sets of zeros, too.

    The rows of a space in general position are as normal ones. m of them have a last singular value below σ with a
    probability of at most √π (σ²/2)^(k/2) Γ((m + 1)/2) / (Γ(n/2) Γ(k/2 + 1) Γ((k + 1)/2)), k = m − n + 1 (Edelman
    1988), and there are C(w, m) sets of m.
    """
    m = torch.arange(n, len(values) + 1).to(values)
    k, squares = m - n + 1, values.square().cumsum(0)[n - 1 :].clamp_min(NO_LENGTH)
    sets = math.lgamma(w + 1) - torch.lgamma(m + 1) - torch.lgamma(w - m + 1)
    above = math.log(math.pi) / 2 + k / 2 * (squares / 2).log() + torch.lgamma((m + 1) / 2)
    return sets + above - math.lgamma(n / 2) - torch.lgamma(k / 2 + 1) - torch.lgamma((k + 1) / 2)


def least_zeros(space: Tensor, width: float) -> int:
    """So many zeros, rows included on which every vector is small, are no chance where they fill this width."""
    nothing = int((sizes(space) <= width).sum())
    w, n = space.shape
    filled = torch.full(
        (w - nothing,), width / math.sqrt(3), dtype=torch.float64
    )  # the mean square within ± width
    enough = (log_chance(filled, n, w - nothing) < math.log(CHANCE)).nonzero()
    return nothing + (n + int(enough[0]) if len(enough) else w + 1)


# Every step ------------------------------------------------------------------------------------------------


def weighted(space: Tensor, weight: Tensor, ridge: float = RIDGE) -> Tensor:
    """UᵀDU for each row of weights (m, w), with a small ridge: (m, n, n)."""
    gram = torch.stack([(space * row[:, None]).T @ space for row in weight])
    gram.diagonal(dim1=1, dim2=2).add_(ridge * gram.diagonal(dim1=1, dim2=2).mean(1, keepdim=True))
    return gram


def solve_each(matrices: Tensor, right: Tensor) -> Tensor:
    """The solution for each matrix (m, n, n) and its right side (m, n), one at a time.

    All at once, several threads factorise side by side, and from 151 unknowns on what PyTorch returns is nonsense
    on a CPU, or nothing at all (pytorch/pytorch issue 142815).
    """
    return torch.stack([torch.linalg.solve(*pair) for pair in zip(matrices, right, strict=True)])


def level(x: Tensor) -> Tensor:
    """Scale each row to mean square 1."""
    return x / x.square().mean(1, keepdim=True).sqrt().clamp_min(NO_LENGTH)
