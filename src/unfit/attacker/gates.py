"""From columns to samples, and what a sample's own gates say of them.

With all n columns known, least squares gives all samples at once. While some are missing, their traces are
estimated by the gates. The gates of a recovered sample also judge its column, by bits that took no part in finding
it: where a neuron was off for it before and after training the column is zero, and where it was on both times the
column is not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unfit.attacker.change import Change
from unfit.attacker.sparse import NO_LENGTH, level, solve_each
from unfit.attacker.stationarity import Stack, first_of
from unfit.base.memory import rows_at_once

EXACT = 0.05  # relative error that rounding leaves in the worst image of a proven set; most are below 0.001
STRAYS = (
    0.02  # share of a column's zeros on which its neuron may be on before and after: 0 to 0.005 of right ones'
)
DECIDED = (
    10  # neurons that must speak for a column and against each mixture of it with another: near-copies have fewer
)
SAME_RATIO = 0.01  # of a mixture's other part: neurons that cancel so nearly are counted for the mixture

NEARLY_ALL = 0.8  # share of the columns: with fewer known, images disagree because of those that are missing
AGREE = 0.9  # share of the neurons a column vanishes on that are off for its image; by chance about half are
WORST_ONE_IN = 10  # columns dropped at a time: one in ten, so that the rest can recover before it is judged again
AT_ONCE = 64  # candidates fitted at a time, with an n × n matrix each; fewer where that takes too much memory
GATE_SLOPES = (10, 30, 100)  # a sum of mean size has odds of e¹⁰: smooth enough for Newton's method; then harder
FLIPPED = 4  # in units of mean size / slope: with a sum so far above zero, a neuron turned on late all the same
NEWTON_STEPS, NEWTON_STEP = 15, 0.7  # for each slope; damped: then the other of a neuron's sums may be larger
LEAST_CURVE, CURVE_RIDGE = 1e-4, 1e-3  # of a neuron, and times the mean diagonal: decided gates have no curvature


# What is exact ---------------------------------------------------------------------------------------------


def are_exact(change: Change, known: Tensor, x: Tensor) -> Tensor:
    """Which images are the samples themselves, up to rounding: (k,). Columns are certain; images need all of them.

    A column that is missing or wrong leaves traces in others' images, and these may show nothing. So either gates
    contradict no column and rounding leaves all images exact, or none is. A mixture with one other column that
    the gates do not decide against leaves a trace in that other's image, and both are in doubt.
    """
    agree = len(known) == change.n and bool(contradicted(change, known, x).max() <= STRAYS)
    if not agree or not bool(errors(change, known, x).max() <= EXACT):
        return torch.zeros(len(known), dtype=torch.bool, device=known.device)
    doubt = margins(change, known, x) < DECIDED
    return ~(doubt.any(0) | doubt.any(1))


def contradicted(change: Change, known: Tensor, x: Tensor) -> Tensor:
    """The share of each column's zeros on which its sample leaves the neuron on before and after training: (k,).

    The first step would have moved such a neuron. In batches it may have turned off and on again.
    """
    zero = change.zeros(known)
    return (zero & (change.before_and_after(image(x)) > 0).all(0)).sum(1) / zero.sum(1).clamp_min(1)


def margins(change: Change, known: Tensor, x: Tensor) -> Tensor:
    """By how many neurons the gates of sample i prefer its column to any mixture of it with column j: (k, k).

    A mixture in place of column i leaves image i as it is, so the same gates judge both. On neurons that are off
    for i before and after, the mixture loses the zeros of i that are none of j's, whatever the multiple of j is,
    and gains those on which i is not zero but some one multiple cancels it.
    """
    known, zero = level(known), change.zeros(known)
    off = change.sums(image(x)) < 0
    margin = torch.full((len(known), len(known)), torch.inf, dtype=known.dtype, device=known.device)
    for i, column in enumerate(known):
        lost = (off[i] & zero[i] & ~zero).sum(1)
        could = off[i] & ~zero[i]
        ratio = (-column[could] / known[:, could]).masked_fill(zero[:, could], torch.inf).sort(1).values
        gained = num_alike(ratio, SAME_RATIO).amax(1) if could.any() else torch.zeros_like(lost)
        margin[i] = lost - gained
    margin.fill_diagonal_(torch.inf)
    return margin


def num_alike(ratio: Tensor, share: float) -> Tensor:
    """How many of the ratios in each row (k, m), sorted, lie within a share of its size of each of them."""
    places = torch.arange(ratio.shape[1], device=ratio.device)
    within = torch.searchsorted(ratio, ratio + share * ratio.abs(), right=True) - places
    return within * ratio.isfinite()


def errors(change: Change, known: Tensor, x: Tensor) -> Tensor:
    """How far off rounding leaves each image, relative to its size, with all n columns known: (n,).

    A column's zeros give its coordinates c up to an error of covariance r² (VᵀV)⁺, where V is the space at the
    zeros and r what rounding makes of a zero. Images are C⁻¹ UᵀA, so the error δC moves them by −C⁻¹ δC x.
    """
    known = level(known)
    inverse = torch.linalg.inv(change.space.T @ known.T)  # (n, n): row j is dual to all columns but the j-th
    size, rounding = x.norm(dim=1), change.error(known)[:, 0]
    variance = torch.zeros_like(size)
    for i, zero in enumerate(change.zeros(known)):
        rows = change.space[zero]
        squares, vectors = torch.linalg.eigh(rows.T @ rows)
        spread = (inverse @ vectors[:, 1:]).square() / squares[1:].clamp_min(NO_LENGTH)
        variance += spread.sum(1) * (rounding[i] * size[i]).square()
    return variance.sqrt() / size.clamp_min(NO_LENGTH)


# Images ----------------------------------------------------------------------------------------------------


def consistent(change: Change, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The columns without wrong ones, their [s x; s], and how well each image's gates agree with its column.

    One wrong column spoils the images of all others. So while nearly all are there and most disagree, the worst
    tenth goes. (With many missing, most disagree because of those.)
    """
    x, agreement = judge(change, known)
    while len(known) > NEARLY_ALL * change.n and agreement.median() < AGREE:
        kept = agreement > agreement.sort().values[len(known) // WORST_ONE_IN]
        known = known[kept]
        x, agreement = judge(change, known)
    return known, x, agreement


def judge(change: Change, known: Tensor) -> tuple[Tensor, Tensor]:
    """[s x; s] of each column, and the share of the neurons it vanishes on that are off for the image x.

    Where the image itself was found with the help of gates, each half of the neurons judges what the other says,
    and of the two signs that the traces of other samples leave open the better one is taken.
    """
    if not len(known):
        return known.new_zeros(0, change.rows.shape[1]), known.new_zeros(0)
    off = change.zeros(known)
    num = off.sum(1).clamp_min(1)
    x = torch.linalg.lstsq(change.space.T @ known.T, change.coordinates).solution  # (k, d + 1)
    if len(known) == change.n:
        return x, (off & (change.sums(image(x)) < 0)).sum(1) / num
    half = torch.arange(off.shape[1], device=off.device) % 2 == 0
    judged = []
    for sign in (1.0, -1.0):
        both, even, odd = others_in(sign * x, change, known, [torch.ones_like(half), half, ~half])
        agreed = torch.zeros(len(known)).to(x)
        for rest, judges in ((even, ~half), (odd, half)):
            agreed += (off & judges & (change.sums(image(sign * x - rest)) < 0)).sum(1)
        judged.append((x - sign * both, agreed / num))
    (plus, agreement), (minus, other) = judged
    better = agreement >= other
    return torch.where(better[:, None], plus, minus), torch.maximum(agreement, other)


def image(x: Tensor) -> Tensor:
    """From [s x; s] to x."""
    return (x[:, :-1] / x[:, -1:]).nan_to_num().float()


def others_in(x: Tensor, change: Change, known: Tensor, neurons: list[Tensor]) -> list[Tensor]:
    """The traces of samples without a known column in the images of the others, by the gates of these neurons.

    Least squares gives x_i + Σ_m c_m x_m, m unknown. Their span is known, and so are hundreds of neurons that were
    off for x_i before and after training: as many inequalities for few unknowns.
    """
    right = torch.linalg.svd(change.remainder(known), full_matrices=False)[2][: change.n - len(known)]
    layers = [torch.cat([_with_bias(nets[when]) for nets in change.ends]) for when in (0, 1)]
    features = torch.stack([right @ layer.T for layer in layers])  # (2, n − k, w): before and after training
    off = change.zeros(known)
    own = torch.stack([x @ layer.T for layer in layers])  # (2, k, w)
    found, size = [], rows_at_once(features.numel(), AT_ONCE)
    for used in neurons:
        parts = zip(own.split(size, 1), (off & used).split(size), strict=True)
        found.append(torch.cat([_regress(*part, features) for part in parts]) @ right)
    return found


def _with_bias(net: Stack) -> Tensor:
    weight, bias = first_of(net)
    assert bias is not None
    return torch.cat([weight, bias[:, None]], 1).double()


def _regress(own: Tensor, off: Tensor, features: Tensor) -> Tensor:
    """c (k, m) such that max(own − c · features) < 0 where a neuron was off: logistic regression by Newton steps.

    Gates become harder step by step; neurons that would have to be clearly on are taken to have turned on late.
    """
    c = own.new_zeros(own.shape[1], features.shape[1])
    for slope in GATE_SLOPES:
        scale = own.abs().mean((0, 2))[:, None] / slope
        for _ in range(NEWTON_STEPS):
            z, which = (own - c @ features).max(0)  # (k, w)
            used = torch.where(which[:, None] == 0, features[0], features[1])  # (k, m, w)
            counts = off & (z < FLIPPED * scale)
            p = torch.sigmoid(z / scale) * counts
            curve = (used * ((p * (1 - p)).clamp_min(LEAST_CURVE) * counts)[:, None]) @ used.mT
            ridge = CURVE_RIDGE * curve.diagonal(dim1=1, dim2=2).mean(1) + LEAST_CURVE * used.square().mean((1, 2))
            curve.diagonal(dim1=1, dim2=2).add_(ridge[:, None])
            c = c + NEWTON_STEP * scale * solve_each(curve, (used @ p[..., None])[..., 0])
    return c
