"""Exact recovery with a proof for each sample, where the weights that training started from are known.

Training adds [ΔW1 | Δb1] = Σ_i α_i [x_i; 1]ᵀ to the first layer, exactly, and α_i is zero on every neuron that was
off for x_i all along: about four in ten. A component of unmixing that is roughly right tells which neurons those
are, and how large α_i is on the others. The one vector of the column space that fits is α_i itself, and then it
vanishes on far more neurons than chance allows: a proof that needs no data. Known columns are projected out, which
takes their samples out of the mixtures, and what remains is unmixed again. With all columns known, least squares
gives the images, and the bias column their sign and scale. While one is missing, it leaves traces in all pictures:
these are estimated, and not called proven. The numbered steps are those of docs/method.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from pydantic import PositiveInt
from scipy.optimize import linprog
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.candidates import Part
from unfit.attacker.edges import Layout, edge_groups, find_layout
from unfit.attacker.features import Features, refine
from unfit.attacker.ica import Contrast, separate
from unfit.attacker.method import Outlook, Prover
from unfit.attacker.mixtures import TYPICAL_STD, Mixtures, rescale
from unfit.attacker.stationarity import Stack, candidate_signals, choose_score, first_of, outputs_of, predicted
from unfit.base.budget import is_over
from unfit.base.progress import Report, quiet
from unfit.base.times import Seconds

HARD = 1e4  # slope of the gates: as good as hard
NO_LENGTH = 1e-30  # nothing is divided by zero where a column or a neuron is constant

# Preflight
PROVABLE = 0.25  # samples for each neuron of the first layer, up to which proofs were seen to work
MEASURED_SECONDS = (4.0, 8.0)  # whatever the size, and at 100 samples and width 1000 (docs/results.md) …
MEASURED_GROWTH = 4.5  # … growing with this power of the samples: 200 take about twenty times as long as 100
HOPEFUL = 0.9  # quantile over the first components of how many neurons are off: about what a column can vanish on

# Step 1: from a rough picture to its column. Columns have mean square 1.
PRIOR_SLOPE = 4  # a sum below zero by the neuron's typical size is off with odds of e⁴ …
PRIOR_DOUBT = 1e-3  # … but no gate is certain, so the column can overrule it
FIRST_EPS, LAST_EPS = 0.25, 0.003  # ε of “off”: where it begins hardly matters, and it ends below VANISHES
FIRST_WIDTH = 0.1  # of “zero” where zeros alone decide; the last is LAST_EPS. A first one of 1 finds half as many
SLOWLY = 40  # steps from the first width to the last; 12 find two thirds as many columns, 120 hardly more
RIDGE = 1e-6  # times the mean diagonal, so that solving never fails; 10⁻⁸ to 10⁻⁴ do as well
AT_ONCE = 64  # candidates fitted at a time, with an n × n matrix each: it bounds the memory

# Step 2: proof
VANISHES = 0.01  # of a column's mean size: so far the search comes, which works in single precision
SHARPEN = 60  # steps from there to the size of rounding; 24 leave twice as many columns beside the right ones
ROUNDED = 10  # times the size that rounding gives to a zero on average: the last width of “zero” …
LEAST_WIDTH, MOST_WIDTH = 1e-5, 1e-3  # … which is neither below nor above these
AT_REST = 3  # steps at the last width, and times that width: what is below is zero up to rounding
MORE_THAN_ANY = 1.2  # times n exact zeros; with n = 200 wrong columns had up to 1.1 n, right ones 1.45 n or more
TINY = 1e-14  # times the mean diagonal, so that factorising never fails
BAR_DEVIATIONS = 8  # above the best of the null: a run tries many more candidates. 4 prove the same, 16 fewer
SAME_COLUMN = 0.995  # |cosine| of two columns that are the same sample's; of 40 faces one pair was more alike

# Step 3: purity
PURIFY_PASSES = 5  # a pure column needs one, others seldom more than two; what still moves then is given up
RIVALS = (0.1, 1e-2, 5e-3, 2e-3, 1e-3)  # widths of “zero” for a rival; a first one of 0.01 to 0.2 gives the same
NEAREST = 10  # columns that may be one of the two in a mixture, the most alike; 3 and 30 give the same proofs
MADE_UP = 0.02  # relative distance from a mixture of two others, below which a column is that mixture

# Step 4: peel. Ranks and contrasts change from round to round, because each finds other samples.
SHARES = (0.4, 0.6, 0.8, 0.95, 0.3, 0.5, 0.7)  # the rank, as a share of the samples still mixed
CONTRASTS: tuple[tuple[Contrast, bool], ...] = (("root", False), ("log", True), ("root", True))  # and orthogonal?
MANY = 150  # samples from which on the second layer cleans components in every other round, and zeros decide
NEARLY_ZERO = 0.1  # of a column's mean size: what a column near the right one may vanish on; 0.03 does as well
CLEARLY = 1.02  # times as many exact zeros: one or two more may be rounding
EASY = 25  # samples still mixed: so few are unmixed at full rank
LAST_FEW = 3  # times the patience once nearly all are found: rounds are short then, and what is missing costs all

# Step 5: pictures
EXACT = 0.05  # relative error, by the jackknife, of the worst picture of a proven set; most are below 0.001
QUARTERS = 4  # parts of the neurons that the jackknife leaves out in turn
AGREE = 0.9  # share of the neurons a column vanishes on that must be off for its picture; by chance about half are
WRONG = 0.8  # a lower share than this is no right column's: 0.85 with many gates that turned late, 0.5 by chance
RIVAL = 0.95  # of a column's zeros: a mixture with so many may as well be it; every false proof's had 1.0 or more
NEARLY_ALL = 0.8  # share of the columns: with fewer known, pictures disagree because of those that are missing
WORST_ONE_IN = 10  # columns dropped at a time: one in ten, so that the rest can recover before it is judged again
GATE_SLOPES = (10, 30, 100)  # a sum of mean size has odds of e¹⁰: smooth enough for Newton's method; then harder
FLIPPED = 4  # in units of mean size / slope: with a sum so far above zero, a neuron turned on late all the same
NEWTON_STEPS, NEWTON_STEP = 15, 0.7  # for each slope; damped: then the other of a neuron's sums may be larger
LEAST_CURVE, CURVE_RIDGE = 1e-4, 1e-3  # of a neuron, and times the mean diagonal: decided gates have no curvature


class Peel(Prover):
    """Rounds of unmixing and proving, until all is proven or nothing new comes. It needs a base.

    Args:
        rounds: At most so many.
        patience: Rounds without a new proof after which it ends; three times as many once nearly all are found.
        unmix_iterations: Of each unmixing; a rough picture is enough.
        column_iterations: Of each fit of what a sample added to the neurons.
        null: Candidates made by chance, which set the bar for a proof.
        budget: Seconds, or a time such as "60s", after which no round is begun.
        seed: Everything random follows from it.

    Example:
        >>> peel = unfit.Peel(budget="10m")  # for unfit.attack(model, peel, base=start)
    """

    method: Literal["peel"] = "peel"
    rounds: PositiveInt = 60  # at most
    patience: PositiveInt = 8  # rounds without a new proof: more than there are ranks to try
    unmix_iterations: PositiveInt = 150  # half of what `unmix` takes: a rough picture is enough
    column_iterations: PositiveInt = 20  # as good as 100 (docs/research/unmixing.md)
    null: PositiveInt = 64  # chance candidates that set the bar for a proof
    budget: Seconds | None = None  # seconds after which no round is begun

    title = "peel"

    def prove(self, mixtures: Mixtures, progress: Report = quiet) -> tuple[list[Part], bool]:
        """What can be proven, or pictures of which only the column is; and whether every sample is proven."""
        change = None if self.obstacle(mixtures) else read_change(mixtures)
        found = [] if change is None else peel(change, self, progress)
        shape = mixtures.target.architecture.input_shape
        parts = [replace(part, x=part.x.view(-1, *shape)) for part in found]
        num = sum(int(part.proven.sum()) for part in parts if part.proven is not None)
        return parts, change is not None and num == change.n

    def obstacle(self, mixtures: Mixtures) -> str | None:
        """Why nothing can be proven; None if something may be."""
        if mixtures.start is None:
            return "it needs a base: the weights training started from, which `unfit start` may find"
        if mixtures.is_moment:
            return "an optimiser's moment weighs the last steps most: a few samples drown the others' gates"
        if mixtures.conv is not None:
            return "the first layer is a convolution"
        if not mixtures.relu:
            return (
                f"no ReLU follows the first dense layer ({mixtures.target.architecture.tail}): a proof rests on "
                "neurons that are exactly off"
            )
        if mixtures.bias is None:
            return "the first layer has no bias"
        if mixtures.num_samples is None and mixtures.span.ends:
            return "the change since the base is of low rank, but not by samples, as a merged adapter's is"
        return None if mixtures.num_samples else "the change since the base has no visible end"

    def outlook(self, mixtures: Mixtures) -> Outlook:
        n, w = mixtures.num_samples, len(mixtures.weight)
        if (why := self.obstacle(mixtures)) or n is None:
            return Outlook(self.title, False, why or "")
        if n > (most := int(PROVABLE * w)):
            why = f"{n} samples are too many to prove at width {w}: about {most} can be"
            return Outlook(self.title, False, why)
        return Outlook(self.title, True, f"up to {n} samples, each with a proof", self.seconds(n, w))

    def seconds(self, num_samples: int, width: int) -> float:
        """The number of rounds grows with the samples, and so does the work of each."""
        fixed, at_100 = MEASURED_SECONDS
        return fixed + at_100 * (num_samples / 100) ** MEASURED_GROWTH * width / 1000


@dataclass(frozen=True, eq=False)
class Change:
    """What training added to the first layer, and the nets before and after it."""

    rows: Tensor  # A = [ΔW1 | Δb1]: (w, d + 1), float64
    space: Tensor  # U, an orthonormal basis of its columns: (w, n), float64
    shape: tuple[int, ...]
    layout: Layout  # which inputs are neighbours
    start: Stack
    end: Stack
    features: Features | None = None  # what the second layer says about pictures, where it says enough

    @property
    def n(self) -> int:
        """The number of training samples: the rank is exactly that."""
        return self.space.shape[1]

    @cached_property
    def coordinates(self) -> Tensor:
        """UᵀA: all that A holds, in n rows instead of w."""
        return self.space.T @ self.rows

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
        size = (columns @ self.space * self.rounding).norm(dim=1, keepdim=True)
        return (ROUNDED * size).clamp(LEAST_WIDTH, MOST_WIDTH)

    def sums(self, x: Tensor) -> Tensor:
        """The larger of z¹ before and after training: below zero where a neuron was off all along. (m, w)"""
        return torch.maximum(*(F.linear(x, *first_of(stack)) for stack in (self.start, self.end)))

    def signals(self, x: Tensor) -> Tensor:
        """A guess at α, from the gradients before and after training: (m, w), mean square 1.

        The label is the net's own: it knows its training samples. With one output only the sign depends on it.
        """
        phi = outputs_of(self.end, x, HARD)
        label, score = predicted(phi), choose_score("auto", phi.shape[1])
        both = (candidate_signals(stack, x, label, score, HARD)[:, 0] for stack in (self.start, self.end))
        return level(sum((F.normalize(signal, dim=1) for signal in both), torch.zeros(())))


def read_change(mixtures: Mixtures) -> Change | None:
    """None where nothing can be proven: a convolution, no bias, or a spectrum without an end."""
    start, n = mixtures.start_stack, mixtures.num_samples
    if mixtures.conv is not None or mixtures.bias is None or start is None or n is None or not mixtures.relu:
        return None
    rows = torch.cat([mixtures.weight, mixtures.bias[:, None]], 1).double()
    space = torch.linalg.eigh(rows @ rows.T)[1][:, -n:]
    layout = find_layout(mixtures.span, mixtures.shape)
    features = mixtures.features if n >= MANY else None
    return Change(rows, space, mixtures.shape, layout, start, mixtures.stack, features)


def peel(change: Change, settings: Peel, progress: Report = quiet) -> list[Part]:
    """Steps 1 to 4 in rounds, then step 5: pictures with their labels, proven or estimated (one part or none)."""
    known, most, stale = change.rows.new_zeros(0, len(change.rows)), 0, 0
    bar, steps = proof_bar(change, settings), settings.column_iterations
    left: Tensor | None = None
    for turn in range(settings.rounds):
        x = loose_components(change, known, turn, settings)
        if not turn and bar > float((change.sums(x) < 0).sum(1).float().quantile(HOPEFUL)):
            return []  # too many samples for this width: not even a right column could vanish so often
        before = len(known)
        found = find_columns(change, x, steps)
        if left is not None:
            guess = find_columns(change, x, steps, left)
            found = torch.cat([found, find_columns(change, x, steps, guess=guess)])
            found = torch.cat([found, led_on(change, found, change.sums(torch.cat([x, x])) < 0)])
        known = drop_mixtures(add_proven(change, known, found, bar))
        if len(known) >= change.n:  # all there, or more than there can be: now wrong ones show
            known = consistent(change, polish(change, known[: change.n]))[0]
        most, stale = max(most, len(known)), 0 if len(known) > most else stale + 1
        progress(len(known) / change.n, f"{len(known)} of {change.n} samples found")
        nearly_all = len(known) > NEARLY_ALL * change.n
        if len(known) == change.n or stale >= settings.patience * (LAST_FEW if nearly_all else 1) or is_over():
            break
        if len(known) != before:
            left = None
        elif left is None and change.n - before <= EASY and before:
            known = without_doubtful(change, known)
            left = missing_space(change, known)
    return _parts(change, *consistent(change, known))


def _parts(change: Change, known: Tensor, x: Tensor, agreement: Tensor) -> list[Part]:
    """Pictures that their gates agree with: proven if they are exact and no rival column is as good."""
    agrees = agreement >= AGREE
    proven = agrees & ~has_rival(known) if are_exact(change, known, agreement) else torch.zeros_like(agrees)
    kinds = (("proven", proven), ("column proven, picture estimated", agrees & ~proven))
    return [_part(change, name, picture(x[chosen]), agreement[chosen]) for name, chosen in kinds if chosen.any()]


def _part(change: Change, name: str, pictures: Tensor, agreement: Tensor) -> Part:
    """The confidence of what is merely estimated is the share of its neurons that agree."""
    label = predicted(outputs_of(change.end, pictures, HARD))
    sure = torch.full((len(label),), name == "proven")
    confidence = torch.ones(len(label)) if name == "proven" else agreement.float()
    x = pictures.view(-1, *change.shape).cpu()
    return Part(f"peel: {name}", x, label.cpu(), proven=sure, confidence=confidence.cpu())


# Step 1: from a rough picture to its column ----------------------------------------------------------------


def find_columns(
    change: Change, x: Tensor, iterations: int, space: Tensor | None = None, guess: Tensor | None = None
) -> Tensor:
    """For each candidate the vector of the column space (or of another) that fits it: (m, w), mean square 1.

    `guess`: about how the columns are, where more is known than the gradients say.
    """
    space = (change.space if space is None else space).float()
    off, signals = likely_off(change.sums(x)), change.signals(x) if guess is None else guess
    parts = list(zip(off.split(AT_ONCE), signals.split(AT_ONCE), strict=True))
    found = [fit_columns(space, *part, iterations) for part in parts]
    if change.n >= MANY:
        found = [sparsest(space, each, near) for (each, _), near in zip(parts, found, strict=True)]
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
    for eps in torch.logspace(math.log10(FIRST_EPS), math.log10(LAST_EPS), iterations).tolist():
        a = level(a)
        log_off = off.log() - a.square() / (2 * eps**2) - math.log(eps)
        log_on = (1 - off).log() - (a - signals).square() / 2
        share = torch.sigmoid(log_off - log_on)
        gram = weighted(space, share / eps**2 + (1 - share))
        a = solve_each(gram, ((1 - share) * signals) @ space) @ space.T
    return level(a)


def sparsest(space: Tensor, off: Tensor, guess: Tensor) -> Tensor:
    """The vectors along the guess that vanish most often, above all on neurons that are likely off: (m, w).

    Each step makes Σ off·a² / (a₀² + ε²) least for a · guess = 1, where a₀ is the last a. As ε falls, neurons that
    were on for a while are left out, and those that were always off decide; few steps end beside the column.
    """
    a, along = guess, guess @ space
    for eps in torch.logspace(math.log10(FIRST_WIDTH), math.log10(LAST_EPS), SLOWLY).tolist():
        a = solve_each(weighted(space, off / (level(a).square() + eps**2)), along) @ space.T
    return level(a)


def weighted(space: Tensor, weight: Tensor, ridge: float = RIDGE) -> Tensor:
    """UᵀDU for each row of weights (m, w), with a small ridge: (m, n, n)."""
    gram = torch.stack([(space * row[:, None]).T @ space for row in weight])
    gram.diagonal(dim1=1, dim2=2).add_(ridge * gram.diagonal(dim1=1, dim2=2).mean(1, keepdim=True))
    return gram


# Step 2: proof ---------------------------------------------------------------------------------------------


def proof_bar(change: Change, settings: Peel) -> float:
    """The number of zeros that is proof: far above what the same search finds in a random space of the same size.

    Any n-dimensional space holds vectors with n − 1 zeros, and the search finds some more. Each neuron keeps its
    size, so that one which hardly changed vanishes there too.
    """
    random = torch.Generator().manual_seed(settings.seed)
    x, space = (
        torch.randn(*shape, generator=random).to(change.rows)
        for shape in ((settings.null, len(change.rows)), change.space.shape)
    )
    space = torch.linalg.qr(space * change.space.norm(dim=1, keepdim=True))[0]
    x = rescale((x @ change.rows[:, :-1]).float(), TYPICAL_STD)
    zeros = num_zeros(find_columns(change, x, settings.column_iterations, space)).float()
    return float(zeros.max() + BAR_DEVIATIONS * zeros.std())


def num_zeros(columns: Tensor) -> Tensor:
    """The number of neurons on which each column (m, w) vanishes."""
    return vanishing(columns).sum(1)


def vanishing(columns: Tensor) -> Tensor:
    """Where each column is zero, as far as the search goes; see `exact_zeros`."""
    return columns.abs() < VANISHES * columns.abs().mean(-1, keepdim=True)


def add_proven(change: Change, known: Tensor, found: Tensor, bar: float) -> Tensor:
    """The known columns and those found that are proven and new, best first: (k, w), float64."""
    zeros = num_zeros(found)
    for i in zeros.argsort(descending=True).tolist():
        if zeros[i] < bar:
            break
        if is_new(found[i].double(), known):
            column = purify(change, sharpen(change, found[i]))
            if column is not None and num_zeros(column[None])[0] >= bar and is_new(column, known):
                known = torch.cat([known, column[None]])
    return known


def is_new(column: Tensor, known: Tensor) -> bool:
    return not len(known) or float(F.cosine_similarity(known, column[None]).abs().max()) < SAME_COLUMN


def sharpen(change: Change, column: Tensor) -> Tensor:
    """Compute the column again in double precision, down to zeros that are as small as rounding makes them.

    Each step makes Σ a² / (a₀² + ε²) least, where a₀ is the last a. As ε falls, slowly, neurons that were on for
    a while and learnt a little are left out. A vector with more exact zeros than chance allows is at its end.
    """
    a = level(column[None].double())
    last = change.zero(a).item()
    for eps in torch.logspace(math.log10(VANISHES), math.log10(last), SHARPEN).tolist():
        if is_certain(change, a):
            break
        a = smallest(change.space, a, eps)
    for _ in range(AT_REST):
        a = smallest(change.space, a, last)
    return a[0]


def smallest(space: Tensor, a: Tensor, eps: float) -> Tensor:
    """One step of `sharpen`: the eigenvector of the smallest eigenvalue near a, by inverse iteration. (1, w)"""
    gram = weighted(space, 1 / (a.square() + eps**2), TINY)[0]
    factor, c = torch.linalg.cholesky(gram), space.T @ a[0]
    for _ in range(2):
        c = F.normalize(torch.cholesky_solve(c[:, None], factor)[:, 0], dim=0)
    return level((space @ c)[None])


def exact_zeros(change: Change, columns: Tensor) -> Tensor:
    """Where sharpened columns vanish up to rounding, and nothing is merely small: (k, w)."""
    columns = level(columns)
    return columns.abs() < AT_REST * change.zero(columns)


def is_certain(change: Change, columns: Tensor) -> Tensor:
    """Which columns have more exact zeros than any vector of an n-dimensional space: (k,)."""
    return exact_zeros(change, columns).sum(1) > MORE_THAN_ANY * change.n


# Step 3: purity --------------------------------------------------------------------------------------------


def purify(change: Change, column: Tensor) -> Tensor | None:
    """The column, or the purer one that it leads to; None if that does not end.

    A mixture of alike samples' columns vanishes where all of them were off, which can be often. But then a whole
    family of mixtures vanishes there, and its purest members, those of single samples, vanish on most neurons.
    """
    for _ in range(PURIFY_PASSES):
        purest = purest_of_family(change, column)
        if not is_new(column, purest):
            return column
        column = sharpen(change, purest[0])
    return None


def purest_of_family(change: Change, column: Tensor) -> Tensor:
    """The two vectors that vanish most often among the mixtures of the column and its nearest rival: (2, w).

    The rival is the other vector that vanishes on as many of the same neurons as possible, found as in `sharpen`
    (the column is the first, the rival the second).
    """
    rows = change.space[vanishing(column)]
    weight = torch.ones(len(rows)).to(rows)
    for eps in RIVALS:
        rival = torch.linalg.eigh((rows * weight[:, None]).T @ rows)[1][:, 1]
        size = (rows @ rival).abs() / (change.space @ rival).square().mean().sqrt()
        weight = 1 / (size.square() + eps**2)
    pair = torch.stack([column, level((change.space @ rival)[None])[0]])
    moving = ~vanishing(pair).all(0)
    angles = torch.atan2(-pair[0, moving], pair[1, moving])  # of the mixture that vanishes on this neuron
    members = level(torch.stack([angles.cos(), angles.sin()], 1) @ pair)
    first = num_zeros(members).argmax()
    apart = F.cosine_similarity(members, members[first][None]).abs() < SAME_COLUMN
    second = (num_zeros(members) * apart).argmax()
    return members[torch.stack([first, second])]


def drop_mixtures(known: Tensor) -> Tensor:
    """Drop mixtures of two columns that vanish more often: the columns of samples are linearly independent."""
    kept = known[:0]
    for column in known[num_zeros(known).argsort(descending=True)]:
        if not is_mixture(F.normalize(column, dim=0), F.normalize(kept, dim=1)):
            kept = torch.cat([kept, column[None]])
    return kept


def is_mixture(column: Tensor, others: Tensor) -> bool:
    """Whether the column is a mixture of two others, one of them among the most alike. All have unit length."""
    for i in (others @ column).abs().argsort(descending=True)[:NEAREST]:
        one = others[i]
        rest = column - (column @ one) * one
        directions = F.normalize(others - (others @ one)[:, None] * one, dim=1)
        directions[i] = 0
        if len(others) > 1 and rest.square().sum() - (directions @ rest).square().max() < MADE_UP**2:
            return True
    return False


# Step 4: peel ----------------------------------------------------------------------------------------------


def loose_components(change: Change, known: Tensor, turn: int, settings: Peel) -> Tensor:
    """Unmix what the known columns do not explain: only samples not yet known are left in its rows. (m, d)

    The second layer cleans the components, where it says enough. Then the sign that is moved less is the right one
    more often than not, and the other is left out; else each comes with both.
    """
    left = change.n - len(known)
    share = 1.0 if left <= EASY else SHARES[turn % len(SHARES)]
    rank = max(1, min(int(share * left), change.n - 1))  # all together, centred samples span one direction less
    right = torch.linalg.svd(remainder(change, known)[:, :-1], full_matrices=False)[2].float()
    whole, right = right[: min(left, change.n - 1)], right[:rank]
    contrast, seed = CONTRASTS[turn % len(CONTRASTS)], settings.seed + turn
    mixing = separate(edge_groups(right, change.layout), *contrast, settings.unmix_iterations, seed)
    x = rescale(mixing @ right, TYPICAL_STD)
    both = torch.cat([x, -x])
    if change.features is None or turn % 2:
        return both
    moved = refine(change.features, both, whole)
    plus, minus = F.cosine_similarity(moved, both).chunk(2)
    one, other = moved.chunk(2)
    return torch.where((plus >= minus)[:, None], one, other)


def remainder(change: Change, known: Tensor) -> Tensor:
    """A without what the known columns explain, in coordinates of the column space: (n, d + 1)."""
    basis = torch.linalg.qr(change.space.T @ known.T)[0]
    return change.coordinates - basis @ (basis.T @ change.coordinates)


def without_doubtful(change: Change, known: Tensor) -> Tensor:
    """The columns that are certain, if most are. One that is not may be wrong, and then hides what is missing."""
    certain = is_certain(change, known)
    return known[certain] if certain.double().mean() > NEARLY_ALL else known


def missing_space(change: Change, known: Tensor) -> Tensor:
    """About the span of the columns not yet known: what the known ones and their pictures do not explain. (w, m)

    It has so few dimensions that poor gates are enough to find a column in it: a good guess for the whole space.
    """
    rest = change.rows - known.T @ judge(change, known)[0]
    return torch.linalg.svd(rest, full_matrices=False)[0][:, : change.n - len(known)]


def polish(change: Change, known: Tensor) -> Tensor:
    """All n columns, without the traces that some have of others; doubtful ones are sought again.

    A trace of another column spoils the other's picture, not the column's own. So that picture tells where the
    column should vanish, and there the trace is all there is of it.
    """
    for _ in range(PURIFY_PASSES):
        sums = change.sums(picture(judge(change, known)[0]))
        off, likely = sums < 0, likely_off(sums)
        before, known = known, known.clone()
        doubtful = ~is_certain(change, known)
        for i in range(len(known)):
            others = torch.cat([known[:i], known[i + 1 :]])
            purer = without_trace(known[i], others, off[i])
            tries = [purer] if num_zeros(torch.stack([purer, known[i]])).diff() < 0 else []
            if doubtful[i]:
                again = sparsest(change.space.float(), likely[i : i + 1], known[i : i + 1].float())
                tries += led_on(change, torch.cat([known[i : i + 1], again]), off[[i, i]])
            for pure in (sharpen(change, column) for column in tries):
                zeros = exact_zeros(change, torch.stack([pure, known[i]])).sum(1)
                if zeros[0] > CLEARLY * zeros[1] and is_new(pure, others):
                    known[i] = pure
        if torch.equal(known, before):
            break
    return known


def led_on(change: Change, near: Tensor, off: Tensor) -> Tensor:
    """These vectors (k, w), each led on by `least_on` from where sharpening ends. (k, w)"""
    pairs = zip(near, off, strict=True)
    return torch.stack([least_on(change, sharpen(change, column), each) for column, each in pairs]).to(near)


def least_on(change: Change, column: Tensor, off: Tensor) -> Tensor:
    """The vector along a nearly right column with the least Σ |a| over neurons that are off for its picture: (w,).

    Reweighting can end beside a column: with 213 exact zeros, where the right one has 336 and a cosine of 0.99999
    with it. A linear program has one end only. Neurons that the column is not small on are left out: of the others
    most are zeros, and few were on for a while.
    """
    rows = change.space[off & (column.abs() < NEARLY_ZERO)]
    if len(rows) <= change.n:
        return column
    along = column @ change.space
    found = linprog(  # the dual: largest μ with Σ_j y_j u_j = μ · along and |y_j| ≤ 1; its multipliers are a's
        [0.0] * len(rows) + [-1.0],
        A_eq=torch.cat([rows.T, -along[:, None]], 1).cpu().numpy(),
        b_eq=[0.0] * change.n,
        bounds=[(-1, 1)] * len(rows) + [(None, None)],
    )
    if not found.success:
        return column
    return level((change.space @ torch.as_tensor(found.eqlin.marginals).to(along))[None])[0]


def without_trace(column: Tensor, others: Tensor, off: Tensor) -> Tensor:
    """The column less the multiple of another that is all there is of it on most neurons that were off."""
    ratio = column / others.where(~vanishing(others), 0.0)
    ratio = ratio[:, off & ~vanishing(column)].nan_to_num(torch.inf, torch.inf, torch.inf).sort(1).values
    if not ratio.numel():
        return column
    width = 2 * VANISHES * column.abs().mean() / others.abs().mean(1, keepdim=True)
    many = num_alike(ratio, width)
    j, first = divmod(int(many.argmax()), ratio.shape[1])
    alike = ratio[j, first : first + int(many[j, first])]
    return level((column - alike.median() * others[j])[None])[0] if len(alike) else column


def num_alike(ratio: Tensor, width: Tensor) -> Tensor:
    """How many of the ratios in each row (k, w), sorted, lie within the width from each of them on."""
    places = torch.arange(ratio.shape[1], device=ratio.device)
    return (torch.searchsorted(ratio, ratio + width, right=True) - places) * ratio.isfinite()


# Step 5: pictures ------------------------------------------------------------------------------------------


def consistent(change: Change, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The columns without wrong ones, their [s x; s], and how well each picture's gates agree with its column.

    One wrong column spoils the pictures of all others. So while nearly all are there and most disagree, the worst
    tenth goes. (With many missing, most disagree because of those.)
    """
    x, agreement = judge(change, known)
    while len(known) > NEARLY_ALL * change.n and agreement.median() < AGREE:
        kept = agreement > agreement.sort().values[len(known) // WORST_ONE_IN]
        known = known[kept]
        x, agreement = judge(change, known)
    return known, x, agreement


def judge(change: Change, known: Tensor) -> tuple[Tensor, Tensor]:
    """[s x; s] of each column, and the share of the neurons it vanishes on that are off for the picture x.

    Where the picture itself was found with the help of gates, each half of the neurons judges what the other says,
    and of the two signs that the traces of other samples leave open the better one is taken.
    """
    if not len(known):
        return known.new_zeros(0, change.rows.shape[1]), known.new_zeros(0)
    off = exact_zeros(change, known)
    num = off.sum(1).clamp_min(1)
    x = torch.linalg.lstsq(known.T, change.rows).solution  # (k, d + 1)
    if len(known) == change.n:
        return x, (off & (change.sums(picture(x)) < 0)).sum(1) / num
    half = torch.arange(off.shape[1], device=off.device) % 2 == 0
    judged = []
    for sign in (1.0, -1.0):
        both, even, odd = others_in(sign * x, change, known, [torch.ones_like(half), half, ~half])
        agreed = torch.zeros(len(known)).to(x)
        for rest, judges in ((even, ~half), (odd, half)):
            agreed += (off & judges & (change.sums(picture(sign * x - rest)) < 0)).sum(1)
        judged.append((x - sign * both, agreed / num))
    (plus, agreement), (minus, other) = judged
    better = agreement >= other
    return torch.where(better[:, None], plus, minus), torch.maximum(agreement, other)


def picture(x: Tensor) -> Tensor:
    """From [s x; s] to x."""
    return (x[:, :-1] / x[:, -1:]).nan_to_num().float()


def others_in(x: Tensor, change: Change, known: Tensor, neurons: list[Tensor]) -> list[Tensor]:
    """The traces of samples without a known column in the pictures of the others, by the gates of these neurons.

    Least squares gives x_i + Σ_m c_m x_m, m unknown. Their span is known, and so are hundreds of neurons that were
    off for x_i before and after training: as many inequalities for few unknowns.
    """
    right = torch.linalg.svd(remainder(change, known), full_matrices=False)[2][: change.n - len(known)]
    ends = first_of(change.start), first_of(change.end)
    layers = [torch.cat([w, b[:, None]], 1).double() for w, b in ends if b is not None]
    features = torch.stack([right @ layer.T for layer in layers])  # (2, n − k, w): before and after training
    off = exact_zeros(change, known)
    own = torch.stack([x @ layer.T for layer in layers])  # (2, k, w)
    found = []
    for used in neurons:
        parts = zip(own.split(AT_ONCE, 1), (off & used).split(AT_ONCE), strict=True)
        found.append(torch.cat([_regress(*part, features) for part in parts]) @ right)
    return found


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


def are_exact(change: Change, known: Tensor, agreement: Tensor) -> bool:
    """Whether the pictures are the samples themselves, not merely estimated: all of them, or none is known to be.

    A column that is missing or wrong leaves traces in other pictures, and these may show nothing.
    """
    if len(known) < change.n or agreement.min() < WRONG or not is_certain(change, known).all():
        return False
    return bool(jackknife(change, known).max() < EXACT)


def has_rival(known: Tensor) -> Tensor:
    """Which columns are in a pair of which some mixture vanishes on nearly as many neurons as one of the two.

    Two samples that are nearly alike have nearly the same gates, and columns nearly in proportion. Then a mixture
    of both has as many zeros as either, and zeros cannot tell which are the columns.
    """
    off, rivals = vanishing(known), torch.zeros(len(known), len(known), dtype=torch.bool, device=known.device)
    for i, column in enumerate(known):
        ratio = (-column / known).where(~off & ~off[i], torch.inf).sort(1).values  # at which a neuron cancels
        width = 2 * VANISHES * column.abs().mean() / known.abs().mean(1, keepdim=True)
        rivals[i] = (off & off[i]).sum(1) + num_alike(ratio, width).amax(1) >= RIVAL * off[i].sum()
    rivals.fill_diagonal_(False)
    return rivals.any(0) | rivals.any(1)


def jackknife(change: Change, known: Tensor) -> Tensor:
    """How far off each picture is, relative to its size, with all n columns known: (n,).

    Rounding errors grow where samples are alike. So each quarter of the neurons is left out in turn, and columns
    and pictures are found again from the zeros and the rows of the others; the pictures' spread is their error.
    """
    off, quarter = exact_zeros(change, known), torch.arange(known.shape[1], device=known.device) % QUARTERS
    pictures = torch.stack([_pictures_by(change, off, quarter != left_out) for left_out in range(QUARTERS)])
    variance = (QUARTERS - 1) * pictures.var(0, correction=0).sum(1)
    return variance.sqrt() / pictures.mean(0).norm(dim=1).clamp_min(NO_LENGTH)


def _pictures_by(change: Change, off: Tensor, used: Tensor) -> Tensor:
    """The pictures as these neurons alone give them, each column being the one that vanishes on its zeros."""
    spaces = (change.space[zeros & used] for zeros in off)
    columns = torch.stack([torch.linalg.eigh(space.T @ space)[1][:, 0] for space in spaces]) @ change.space[used].T
    return picture(torch.linalg.lstsq(columns.T, change.rows[used]).solution)


# Every step ------------------------------------------------------------------------------------------------


def solve_each(matrices: Tensor, right: Tensor) -> Tensor:
    """The solution for each matrix (m, n, n) and its right side (m, n), one at a time.

    All at once, several threads factorise side by side, and from 151 unknowns on what PyTorch returns is nonsense
    on a CPU, or nothing at all (pytorch/pytorch issue 142815).
    """
    return torch.stack([torch.linalg.solve(*pair) for pair in zip(matrices, right, strict=True)])


def level(x: Tensor) -> Tensor:
    """Scale each row to mean square 1."""
    return x / x.square().mean(1, keepdim=True).sqrt().clamp_min(NO_LENGTH)
