"""Exact recovery with a proof for each sample, where the weights that training started from are known.

Training adds [ΔW1 | Δb1] = Σ_i α_i [x_i; 1]ᵀ to the first layer, exactly, and α_i is zero on every neuron that was
off for x_i all along: about four in ten. A component of unmixing that is roughly right tells which neurons those
are, and how large α_i is on the others. The one vector of the column space that fits is α_i itself, and then it
vanishes on far more neurons than chance allows: a proof that needs no data. Known columns are projected out, which
takes their samples out of the mixtures, and what remains is unmixed again. With all columns known, least squares
gives the images, and the bias column their sign and scale. While one is missing, it leaves traces in all images:
these are estimated, and not called proven. The numbered steps are those of docs/method-peel.md.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.attacked_layer import TYPICAL_STD, AttackedLayer, rescale
from unfit.attacker.candidates import Part
from unfit.attacker.change import HARD, LEAST_WIDTH, Change, read_change
from unfit.attacker.costs import seconds_of
from unfit.attacker.edges import edge_groups, num_edges
from unfit.attacker.features import refine
from unfit.attacker.gates import AGREE, AT_ONCE, NEARLY_ALL, are_exact, consistent, image, judge
from unfit.attacker.ica import Contrast, separate
from unfit.attacker.method import Applicability, Prover
from unfit.attacker.sparse import (
    NO_LENGTH,
    certify,
    falling,
    least_sum,
    least_zeros,
    level,
    reweighted,
    sharper,
    solve_each,
    weighted,
)
from unfit.attacker.stationarity import outputs_of, predicted
from unfit.base.budget import is_over
from unfit.base.memory import DOUBLE, FLOAT, VALUES_AT_ONCE, rows_at_once
from unfit.base.progress import Report, quiet
from unfit.base.times import Seconds

# Preflight
PROVABLE = 0.25  # samples for each neuron of the first layer, up to which proofs were seen to work
ROUNDS, ROUNDS_FOR = 10, 100  # rounds that up to so many samples take; more samples take more in proportion
HOPEFUL = 0.9  # quantile over the first components of how many neurons are off: about what a column can vanish on

# Step 1: from a rough image to its column. Columns have mean square 1.
PRIOR_SLOPE = 4  # a sum below zero by the neuron's typical size is off with odds of e⁴ …
PRIOR_DOUBT = 1e-3  # … but no gate is certain, so the column can overrule it
FIRST_EPS, LAST_EPS = 0.25, 0.003  # ε of “off”: where it begins hardly matters, and it ends below VANISHES
FIRST_WIDTH = 0.1  # of “zero” where zeros alone decide; the last is LAST_EPS. A first one of 1 finds half as many
SLOWLY = 40  # steps from the first width to the last; 12 find two thirds as many columns, 120 hardly more

# Step 2: proof
VANISHES = 0.01  # of a column's mean size: so far the search comes, which works in single precision
SHARPEN = 60  # steps from there to the size of rounding; 24 leave twice as many columns near the right ones
AT_REST = 3  # steps at the last width
SAME_COLUMN = 0.9999  # |cosine| of two columns that are the same

# Step 3: peel. Ranks, contrasts and sizes change from round to round, because each finds other samples.
SHARES = (0.4, 0.6, 0.8, 0.95, 0.3, 0.5, 0.7)  # the rank, as a share of the samples still mixed
CONTRASTS: tuple[tuple[Contrast, bool], ...] = (("root", False), ("log", True), ("root", True))  # and orthogonal?
SIZES = (
    1.0,
    0.4,
)  # of components, times the usual: unmixing leaves it open, and gates depend on it through biases
NEARLY_ZERO = 0.1  # of a column's mean size: what a column near the right one may vanish on; 0.03 does as well
EASY = 25  # samples still mixed: so few are unmixed at full rank
LAST_FEW = 3  # times the patience once nearly all are found: rounds are short then, and what is missing costs all


class Peel(Prover):
    """Rounds of unmixing and proving, until all is proven or nothing new comes. It needs a base.

    Args:
        rounds: At most so many.
        patience: Rounds without a new proof after which it ends; three times as many once nearly all are found.
        unmix_iterations: Of each unmixing; a rough image is enough.
        column_iterations: Of each fit of what a sample added to the neurons.
        budget: Seconds, or a time such as "60s", after which no round is begun.
        seed: Everything random follows from it.

    Example:
        >>> peel = unfit.Peel(budget="10m")  # for unfit.attack(model, peel, base=start)
    """

    method: Literal["peel"] = "peel"
    rounds: PositiveInt = 60  # at most
    patience: PositiveInt = 8  # rounds without a new proof: more than there are ranks to try
    unmix_iterations: PositiveInt = 150  # half of what `unmix` takes: a rough image is enough
    column_iterations: PositiveInt = 20  # as good as 100 (docs/research/unmixing.md)
    budget: Seconds | None = None  # seconds after which no round is begun

    title = "peel"

    def prove(self, layer: AttackedLayer, progress: Report = quiet) -> tuple[list[Part], bool]:
        """What can be proven, or images of which only the column is; and whether every sample is proven."""
        change = None if self.why_not(layer) else read_change(layer)
        found = [] if change is None else peel(change, self, progress)
        shape = layer.target.architecture.input_shape
        parts = [replace(part, x=part.x.view(-1, *shape)) for part in found]
        num = sum(int(part.proven.sum()) for part in parts if part.proven is not None)
        return parts, change is not None and num == change.n

    def why_not(self, layer: AttackedLayer) -> str | None:
        """Why nothing can be proven; None if something may be."""
        if layer.initial is None:
            return "it needs a base: the weights training started from, which `unfit find-init` may find"
        if layer.is_moment:
            return "an optimiser's moment weighs the last steps most: a few samples drown the others' gates"
        if layer.conv is not None:
            return "the first layer is a convolution"
        if not layer.relu:
            return (
                f"no ReLU follows the first dense layer ({layer.target.architecture.tail}): a proof rests on "
                "neurons that are exactly off"
            )
        if layer.bias is None:
            return "the first layer has no bias"
        if layer.num_samples is None and layer.span.ends:
            return "the change since the base is of low rank, but not by samples, as a merged adapter's is"
        return None if layer.num_samples else "the change since the base has no visible end"

    def applicability(self, layer: AttackedLayer) -> Applicability:
        n, w = layer.num_samples, len(layer.weight)
        if (why := self.why_not(layer)) or n is None:
            return Applicability(self.title, False, why or "")
        if n > (most := int(PROVABLE * w)):
            why = f"{n} samples are too many to prove at width {w}: about {most} can be"
            return Applicability(self.title, False, why)
        # the change and what is left of it in float64, and blocks of matrices
        held = 3 * DOUBLE * layer.weight.numel() + 3 * FLOAT * min(AT_ONCE * n**2, VALUES_AT_ONCE)
        return Applicability(
            self.title, True, f"up to {n} samples, each with a proof", self.seconds(n, w, layer.shape), held
        )

    def seconds(self, num_samples: int, width: int, shape: tuple[int, ...]) -> float:
        """A round unmixes what is left, and fits a column to each component in either sign."""
        n, rounds = num_samples, ROUNDS * max(1.0, num_samples / ROUNDS_FOR)
        fits = 2 * n * self.column_iterations * (2 * width * n**2 + 2 / 3 * n**3)
        unmixing = self.unmix_iterations * ((4 * n**2 + 100 * n) * num_edges(shape) + 100 * n**3)
        return seconds_of("peel", rounds * (fits + unmixing), round(rounds * self.unmix_iterations))


def peel(change: Change, settings: Peel, progress: Report = quiet) -> list[Part]:
    """Steps 1 to 3 in rounds, then step 4: images with their labels, proven or estimated."""
    known, most, stale = change.rows.new_zeros(0, len(change.rows)), 0, 0
    steps = settings.column_iterations
    least = least_zeros(change.space, LEAST_WIDTH)
    left: Tensor | None = None
    for turn in range(settings.rounds):
        x = loose_components(change, known, turn, settings)
        if not turn and least > float((change.sums(x) < 0).sum(1).float().quantile(HOPEFUL)):
            return []  # too many samples for this width: not even a right column could vanish so often
        before, off = len(known), likely_off(change.sums(x))
        found = find_columns(change, x, steps)
        if left is not None:
            guess = find_columns(change, x, steps, left)
            found, off = torch.cat([found, find_columns(change, x, steps, guess=guess)]), torch.cat([off, off])
            found, off = torch.cat([found, led_on(change, found, off)]), torch.cat([off, off])
            last, its_off = last_few(change, known, settings.seed + turn)
            found, off = torch.cat([found, last.to(found)]), torch.cat([off, its_off])
        known = add_certain(change, known, found, off)
        if len(known) >= change.n:  # all there, or more than there can be: now wrong ones show
            known = consistent(change, known[: change.n])[0]
        most, stale = max(most, len(known)), 0 if len(known) > most else stale + 1
        progress(len(known) / change.n, f"{len(known)} of {change.n} samples found")
        nearly_all = len(known) > NEARLY_ALL * change.n
        if len(known) == change.n or stale >= settings.patience * (LAST_FEW if nearly_all else 1) or is_over():
            break
        if len(known) != before:
            left = None
        elif left is None and change.n - before <= EASY and before:
            left = missing_space(change, known)
    return _parts(change, *consistent(change, known))


def _parts(change: Change, known: Tensor, x: Tensor, agreement: Tensor) -> list[Part]:
    """The exact images; of the others, those that their gates agree with."""
    proven = are_exact(change, known, x)
    kinds = (("proven", proven), ("column proven, picture estimated", (agreement >= AGREE) & ~proven))
    return [_part(change, name, image(x[chosen]), agreement[chosen]) for name, chosen in kinds if chosen.any()]


def _part(change: Change, name: str, images: Tensor, agreement: Tensor) -> Part:
    """The confidence of what is merely estimated is the share of its neurons that agree."""
    label = predicted(outputs_of(change.end, images, HARD))
    sure = torch.full((len(label),), name == "proven")
    confidence = torch.ones(len(label)) if name == "proven" else agreement.float()
    x = images.view(-1, *change.shape)
    return Part(f"peel: {name}", x, label, proven=sure, confidence=confidence)


# Step 1: from a rough image to its column ----------------------------------------------------------------


def find_columns(
    change: Change, x: Tensor, iterations: int, space: Tensor | None = None, guess: Tensor | None = None
) -> Tensor:
    """For each candidate the vector of the column space (or of another) that fits it: (m, w), mean square 1.

    `guess`: about how the columns are, where more is known than the gradients say.
    """
    space = (change.space if space is None else space).float()
    off, signals = likely_off(change.sums(x)), change.signals(x) if guess is None else guess
    size = rows_at_once(change.n**2, AT_ONCE)
    found = []
    for each, near in zip(off.split(size), signals.split(size), strict=True):
        fitted = fit_columns(space, each, near, iterations)
        found.append(reweighted(space, each, fitted, falling(FIRST_WIDTH, LAST_EPS, SLOWLY)))
    return torch.cat(found)


def likely_off(sums: Tensor) -> Tensor:
    """The probability that each neuron was off all along, by the larger of its sums: (m, w)."""
    off = torch.sigmoid(-PRIOR_SLOPE * sums / sums.square().mean(0).sqrt().clamp_min(NO_LENGTH))
    return off.clamp(PRIOR_DOUBT, 1 - PRIOR_DOUBT)


def fit_columns(space: Tensor, off: Tensor, signals: Tensor, iterations: int) -> Tensor:
    """Expectation–maximisation: a neuron is off (a ≈ 0 ± ε, prior `off`) or on (a ≈ signal ± 1); ε falls to zero.

    Each step is a weighted least-squares problem for the coordinates of the column in `space`.
    """
    a = signals @ space @ space.T
    for eps in falling(FIRST_EPS, LAST_EPS, iterations):
        a = level(a)
        log_off = off.log() - a.square() / (2 * eps**2) - math.log(eps)
        log_on = (1 - off).log() - (a - signals).square() / 2
        share = torch.sigmoid(log_off - log_on)
        gram = weighted(space, share / eps**2 + (1 - share))
        a = solve_each(gram, ((1 - share) * signals) @ space) @ space.T
    return level(a)


# Step 2: proof ---------------------------------------------------------------------------------------------


def vanishing(columns: Tensor) -> Tensor:
    """Where each column is zero, as far as the search goes; see `Change.zeros`."""
    return columns.abs() < VANISHES * columns.abs().mean(-1, keepdim=True)


def add_certain(change: Change, known: Tensor, found: Tensor, off: Tensor) -> Tensor:
    """The known columns and those found that are certain and new, best first: (k, w), float64."""
    zeros = vanishing(found).sum(1)
    least = least_zeros(change.space, LEAST_WIDTH)
    for i in zeros.argsort(descending=True).tolist():
        if zeros[i] < least:
            break
        if is_new(found[i].double(), known):
            column = certain(change, sharpen(change, found[i]))
            if column is None:
                column = certain(change, sharpen(change, found[i], LAST_EPS, off[i]))
            if column is not None and is_new(column, known):
                known = torch.cat([known, column[None]])
    return known


def is_new(column: Tensor, known: Tensor) -> bool:
    return not len(known) or float(F.cosine_similarity(known, column[None]).abs().max()) < SAME_COLUMN


def certain(change: Change, column: Tensor) -> Tensor | None:
    """The column that the zeros of this one determine, if they do so with certainty: (w,)."""
    found = certify(change.space, change.zeros(column[None])[0], change.zero(level(column[None])).item())
    return level((change.space @ found.coordinates)[None])[0] if found.holds else None


def sharpen(change: Change, column: Tensor, first: float = VANISHES, off: Tensor | float = 1.0) -> Tensor:
    """Compute the column again in double precision, down to zeros that are as small as rounding makes them.

    As the width falls, slowly, neurons that were on for a while and learnt a little are left out. A column with
    few zeros and many small values is left where the first width is wide. It is found where that is narrow, and
    only neurons count that are likely `off`. A vector with more exact zeros than chance gives is at its end.
    """
    a = level(column[None].double())[0]
    last = change.zero(a[None]).item()
    enough = least_zeros(change.space, last)
    for width in falling(first, last, SHARPEN):
        if change.zeros(a[None]).sum() >= enough:
            break
        a = sharper(change.space, a, width, off)
    for _ in range(AT_REST):
        a = sharper(change.space, a, last)
    return a


# Step 3: peel ----------------------------------------------------------------------------------------------


def loose_components(change: Change, known: Tensor, turn: int, settings: Peel) -> Tensor:
    """Unmix what the known columns do not explain: only samples not yet known are left in its rows. (m, d)

    The second layer cleans the components, where it says enough. Then the sign that is moved less is the right one
    more often than not, and the other is left out; else each comes with both.
    """
    left = change.n - len(known)
    share = 1.0 if left <= EASY else SHARES[turn % len(SHARES)]
    rank = max(1, min(int(share * left), change.n - 1))  # all together, centred samples span one direction less
    right = torch.linalg.svd(change.remainder(known)[:, :-1], full_matrices=False)[2].float()
    whole, right = right[: min(left, change.n - 1)], right[:rank]
    contrast, seed = CONTRASTS[turn % len(CONTRASTS)], settings.seed + turn
    mixing = separate(edge_groups(right, change.layout), *contrast, settings.unmix_iterations, seed)
    x = rescale(mixing @ right, TYPICAL_STD * SIZES[turn // 2 % len(SIZES)])
    both = torch.cat([x, -x])
    if change.features is None or turn % 2:
        return both
    moved = refine(change.features, both, whole)
    plus, minus = F.cosine_similarity(moved, both).chunk(2)
    one, other = moved.chunk(2)
    return torch.where((plus >= minus)[:, None], one, other)


def missing_space(change: Change, known: Tensor) -> Tensor:
    """About the span of the columns not yet known: what the known ones and their images do not explain. (w, m)

    It has so few dimensions that poor gates are enough to find a column in it: a good guess for the whole space.
    """
    rest = change.coordinates - change.space.T @ known.T @ judge(change, known)[0]
    return change.space @ torch.linalg.svd(rest, full_matrices=False)[0][:, : change.n - len(known)]


def last_few(change: Change, known: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """The columns of the last samples, so few that unmixing gives their images nearly exactly, and what is off.

    Of all vectors of the space that are no mixture of known columns, a sample's own has the least Σ |a| over the
    neurons that are off for it. Along a guess alone, a known column with more zeros comes first.
    """
    x = alone(change, known, seed)
    basis = torch.linalg.qr(change.space.T @ known.T)[0]
    along = change.signals(x).double() @ change.space
    along = F.normalize(along - along @ basis @ basis.T, dim=1)
    sums, found = change.sums(x), []
    for each, off in zip(along, sums < 0, strict=True):
        c = least_sum(change.space[off], each)
        found.append(change.space @ (each if c is None else c))
    return level(torch.stack(found)), likely_off(sums)


def alone(change: Change, known: Tensor, seed: int) -> Tensor:
    """Images of the few samples not yet known, in their own sign and scale, which their bias tells: (m, d)."""
    rest, few = change.remainder(known), change.n - len(known)
    left, sizes, right = torch.linalg.svd(rest[:, :-1], full_matrices=False)
    bias = left[:, :few].T @ rest[:, -1] / sizes[:few]
    groups = edge_groups(right[:few].float(), change.layout)
    mixing = separate(groups, *CONTRASTS[0], Peel().unmix_iterations, seed).double()
    return (mixing @ right[:few] / (mixing @ bias)[:, None]).nan_to_num().float()


def led_on(change: Change, near: Tensor, off: Tensor) -> Tensor:
    """These vectors (k, w), each led on by `least_on` from where sharpening ends. (k, w)"""
    pairs = zip(near, off, strict=True)
    return torch.stack([least_on(change, sharpen(change, column), each > 0.5) for column, each in pairs]).to(near)


def least_on(change: Change, column: Tensor, off: Tensor) -> Tensor:
    """The vector along a nearly right column with the least Σ |a| over neurons that are off for its image: (w,).

    Neurons that the column is not small on are left out: of the others most are zeros, few were on for a while.
    """
    rows = change.space[off & (column.abs() < NEARLY_ZERO)]
    if len(rows) <= change.n or (c := least_sum(rows, column @ change.space)) is None:
        return column
    return level((change.space @ c)[None])[0]
