"""Exact recovery of inputs that are never negative and often zero: ReLU features, counts of words, one-hot codes.

Training adds [ΔW1 | Δb1] = Σ_i α_i [x_i; 1]ᵀ to the first layer, exactly. So the rows of that change span the
samples, and the vectors of the span without a negative value form a cone. A sample with more zeros than there are
samples is a corner of it: a linear program that prefers few and small values runs into one. Known samples are cut
off, so that each program finds another. A wrong corner of an n-dimensional span vanishes where n − 1 equations
make it vanish, and each of those is needed. A sample's zeros are many more, and each follows from the others; the
neurons must bear it out, too (`attacker/duals.py`). That is a proof which needs no data. The bias column is 1 for
every sample, which gives its scale. Real columns beside such ones take no part in this: the zeros of the others
say how a sample is mixed, and its values in all columns follow. Where the model normalises its inputs itself,
that is undone first. One-hot records are listed, all that the span holds (`attacker/codes.py`). The numbered
steps are those of docs/method.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt
from scipy.linalg import eigh, null_space
from scipy.optimize import linprog
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.functional import linear

from unfit.attacker.attacks.peel import HARD
from unfit.attacker.candidates import Part
from unfit.attacker.codes import Codes, all_records, are_borne_out, find_groups, find_ones, samples_among
from unfit.attacker.duals import Hearing, eigenvector, hear, least
from unfit.attacker.method import Outlook, Prover
from unfit.attacker.mixtures import Mixtures
from unfit.attacker.span import visible_rank
from unfit.attacker.stationarity import outputs_of, predicted
from unfit.base.budget import is_over, seconds_left
from unfit.base.progress import Report, quiet
from unfit.base.times import Seconds

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

# Zeros. Noise is that of rounding in training, seen where the span has ended.
NOISE = 10.0  # times the noise: true zeros were seen up to 8, other values from hundreds on
NO_NOISE = 1e-12  # of the largest value of a column: a column that was always zero has none
CLEAR = 0.1  # noise of a zero against the typical other value: above, nothing can be told to vanish

# Corners. Directions have unit length, values mean size 1.
WIDTHS = tuple(np.geomspace(1, 1e-2, 20).tolist())  # of “small”: 12 that end at 10⁻³ are too steep
NEGATIVE = 100.0  # what a negative value costs: 10 does as well, 1 finds a quarter for 200 samples with 47% zeros
RIDGE = 1e-12  # times the mean diagonal, so that solving never fails; in units of the noise, nothing at all
SOFT = 0.1  # of the mean value: what a reweighted program takes for small
STUCK = 0.999  # cosine of two answers in a row: reweighting changes nothing any more
ROUGH = (1e-2, 1e-3, 1e-4)  # of the mean value: what first counts as zero in a program's answer
MOST_COSINES = 4096**2  # between inputs, at once: with more inputs, each is compared with some of the others
ENOUGH_COLUMNS = 3  # times the rank: a random span of more than 2 inputs a dimension has no cone (Wendel)

# Proof
ALONE = 0.9  # leverage of a zero that the other zeros do not imply: 1 in wrong corners, at most 0.7 in samples
APART = 10.0  # how much worse the next vector must vanish on the same inputs, or the zeros fit several vectors
CLEARLY_MORE = 1.5  # zeros for each sample: wrong corners of 200 samples have 1.05 …
MORE = 20  # … and so many more than samples: of ten 0/1 columns a wrong corner vanishes on a few by chance
SMALLEST = 1e-3  # of the usual size of a sample: centred ones add up to a vector of rounding errors, with a bias
SAME = 0.999  # cosine of two corners that are the same

BLUR = 20.0  # times the noise: what the errors of columns make of it, to where they leave 70 of a zero
GONE = 1e-4  # of an input's size: what they leave where no other sample uses it, in these units
ROUNDS, FEW = 3, 10  # a hearing after a third of what is left, and after ten corners at least
HEARINGS = 10  # that drop corners: of 300 texts, four dropped a dozen

# Columns of any sign
KEPT = (0.5, 0.7, 0.85, 0.92, 0.95)  # shares of the columns: of those least likely to be real
EVEN_PASSES = 20  # of Tyler's fixed point; it hardly moves after ten
PROBES, PROBE_AIMS = 10, 30  # corners that say which columns are real, and aims tried for them
SELDOM = 0.1  # share of the samples that vanish in a column: in a real one hardly any does, by chance
EXACT = 0.01  # error that rounding leaves in the real columns of a proven sample, relative to their size

# Rivals and whole numbers
WHOLE = (
    1e-3  # distance from a whole number, and from zero for the largest value 1: samples are off by 10⁻⁴ at most
)
SOME = 0.2  # share of whole corners from which on all samples are taken to be whole: by chance none is
MARGIN = 5  # zeros at which the nearest rival is not zero: two to four in wrong corners, 2 in 100 texts have fewer
RIVAL_STARTS, RIVAL_WIDTHS = 3, (0.1, 0.03, 0.01, 0.003, 0.001)  # of the search for it: widths of “zero”
ALIKE = 5  # most alike corners whose differences are ways to rivals
TINY = 1e-6  # of a value, below which it does not move

MEASURED_SECONDS = 0.3  # of one program for 100 samples and 1,280 inputs …
MEASURED_GROWTH = 1.5  # … and the power of samples and of inputs with which it grows


class Cone(Prover):
    """One linear program after the other, each for a sample not yet found.

    It is for inputs that are never negative and often zero: features behind a ReLU, counts, one-hot records.

    Args:
        reweightings: Linear programs for one corner of the cone; most need one or two.
        patience: Tries in a row that lead to nothing new, after which it ends; ten if nothing was found at all.
        programs: Further tries after these, each by a linear program; none if nothing was found at all.
        budget: Seconds, or a time such as "60s", after which no corner is begun.
        seed: Everything random follows from it.

    Example:
        >>> unfit.Cone(budget="5m")
        Cone(method='cone', seed=0, reweightings=4, patience=50, programs=5, budget=300.0)
    """

    method: Literal["cone"] = "cone"
    reweightings: PositiveInt = 4  # linear programs for one corner; most need one or two
    patience: PositiveInt = 50  # aims in a row that lead to nothing new, by least squares …
    programs: NonNegativeInt = 5  # … and then by linear programs
    budget: Seconds | None = None  # seconds after which no corner is begun

    title = "cone"

    def prove(self, mixtures: Mixtures, progress: Report = quiet) -> tuple[list[Part], bool]:
        """What can be proven, then corners that may be samples; and whether all are found, as the neurons say."""
        with threadpool_limits(1, user_api="blas"):  # small matrices: threads would wait for each other
            return self._prove(mixtures, progress)

    def _prove(self, mixtures: Mixtures, progress: Report) -> tuple[list[Part], bool]:
        whole = read_space(mixtures)
        if whole is None or not has_cone(whole):
            return [], False
        found = coded(mixtures, whole)
        if found is not None and len(found[0]):
            x, proven = found
            return _parts(mixtures, whole.normalised(x), proven), int(proven.sum()) == whole.n
        space = sparse_part(whole)
        corners, heard = heard_corners(mixtures, whole, space, self, progress)
        if not len(corners):
            return [], False
        space = whole.only(~are_real(whole, corners))
        agree = heard.agrees & ~heard.accused
        proven = agree.copy()
        for i in agree.nonzero()[0].tolist():
            proven[i] = is_borne_out(space, corners, heard, i) and rest_error(whole, space, corners[i]) < EXACT
        if agree.sum() < space.n - 1:  # else a wrong corner would have a part of some other's column
            clear = are_clear(space, corners, heard)
            proven &= stand_alone(to_scale(space, corners)[:, space.live], clear, ~heard.clean)
        proven &= found is None  # codes, but no list of records: a corner may be a mere part of samples
        if space.bias is None and mixtures.bias is not None:
            # The bias did not decay with the weights, so no scale is known but that of whole numbers.
            proven &= are_whole(to_scale(space, corners))[:, 0]
        x = whole.normalised(samples(whole, space, corners))
        return _parts(mixtures, x, proven), int(agree.sum()) == space.n

    def obstacle(self, mixtures: Mixtures) -> str | None:
        """Why there are no corners to find; None if there may be some."""
        if mixtures.conv is not None:
            return "the first layer is a convolution"
        space = read_space(mixtures)
        if space is None:
            return "the spectrum of the first layer has no visible end: a base, or `unfit start`, may give it one"
        if not has_cone(space):
            return (
                "the samples have no cone: mixtures of them are negative somewhere, as those of centred or "
                "standardised inputs are, whose zeros have become a constant for each column"
            )
        return None

    def outlook(self, mixtures: Mixtures) -> Outlook:
        if why := self.obstacle(mixtures):
            return Outlook(self.title, False, why)
        space = read_space(mixtures)
        assert space is not None
        why = f"{space.n} samples span a cone, and those with many zeros are its corners"
        return Outlook(self.title, True, why, self.seconds(space))

    def seconds(self, space: Space) -> float:
        """One program for each sample and a few in vain; each grows with the samples and with the inputs."""
        size = (space.n / 100) * (space.values.shape[1] / 1280)
        return 1.5 * space.n * MEASURED_SECONDS * size**MEASURED_GROWTH


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

    def is_nothing(self, a: Array) -> bool:
        """Whether this vector is far smaller than samples with its bias are."""
        assert self.bias is not None
        x = self.values * self.scale
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
def read_space(mixtures: Mixtures) -> Space | None:
    """None where the span is not known: a convolution, or a spectrum without an end.

    A normalisation inside the model is undone where its inputs then have a cone.
    """
    if mixtures.conv is not None or not mixtures.span.ends:
        return None
    weight, bias = mixtures.weight.double().cpu(), mixtures.bias
    if bias is None:
        return _space(weight, has_bias=False)
    bias = bias.double().cpu()[:, None]
    if mixtures.target.whole is not None and (scaling := mixtures.target.whole.scaling):
        scale, shift = scaling
        raw = _space(torch.cat([(weight - bias * shift) / scale, bias], 1), has_bias=True)
        if raw is not None and has_cone(raw):
            return replace(raw, scaling=(scale.numpy(), shift.numpy()))
    space = _space(torch.cat([weight, bias], 1), has_bias=True)
    return space if mixtures.decays_evenly else with_ones(space, weight, bias)


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


def _space(rows: Tensor, has_bias: bool) -> Space | None:
    change, n = rows.numpy(), visible_rank(rows)
    if not 1 < n < len(change):
        return None
    basis = np.linalg.eigh(change @ change.T)[1][:, -n:]
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


@lru_cache(maxsize=1)
def sparse_part(space: Space) -> Space:
    """The columns whose zeros count: all, unless samples that a part of them gives are negative elsewhere."""
    for part in sparse_likely(space):
        can_prove = part.values.shape[1] > enough_zeros(space.n) and _has_cone(part)
        probes = probe(part) if can_prove else np.zeros((0, space.n))
        if len(probes) and enough_zeros(space.n) < (sparse := ~are_real(space, probes)).sum():
            return space.only(sparse)
    return space


def are_real(space: Space, corners: Array) -> Flags:
    """Which columns are negative in some of the corners, and hardly ever vanish.

    Once there are such columns, those that never vanish do not count either, whatever their sign. A column that
    does vanish is never real: that a corner is negative there speaks against the corner.
    """
    values = corners @ space.values / np.linalg.norm(corners, axis=1)[:, None]
    seldom = (np.abs(values) < NOISE).mean(0) < SELDOM
    real: Flags = seldom & (values < -NOISE).any(0)
    return seldom if real.any() else real


def probe(space: Space) -> Array:
    """A few corners with a proof: (k, n)."""
    found, tried = np.zeros((0, space.n)), set[int]()
    for _ in range(PROBE_AIMS):
        where, aim = aim_at(space, found, tried)
        tried.add(where)
        tries = ((space, snap(space, lean(space, way))) for way in (aim, -aim))
        corner = best_corner(space, tries, found, True)
        found = found if corner is None else np.vstack([found, corner])
        if len(found) >= min(PROBES, space.n) or (not len(found) and len(tried) >= PROBES):
            break
    return found


def rest_error(whole: Space, space: Space, a: Array) -> float:
    """The error that rounding leaves in the columns beside those of `space`, relative to the values there.

    The zeros give a up to an error of covariance (V Vᵀ)⁻¹, where V are the values at the zeros and a is left out.
    """
    columns = ~space.live[whole.live]
    rest, scale = whole.values[:, columns], whole.scale[columns]
    if not columns.any():
        return 0.0
    zero = vanishing(space, a)
    squares, vectors = np.linalg.eigh(space.values[:, zero] @ space.values[:, zero].T)
    spread = np.square(vectors[:, 1:].T @ rest) / np.maximum(squares[1:, None], RIDGE)
    error = np.linalg.norm(np.sqrt(spread.sum(0) + 1) * scale)
    return float(error / np.linalg.norm(a @ rest * scale))


# Step 8: one-hot records -----------------------------------------------------------------------------------


def coded(mixtures: Mixtures, whole: Space) -> tuple[Array, Flags] | None:
    """Samples (k, d), and which are proven, where they are one-hot records; (0, d) where these cannot be listed.

    None where there are no codes, too many to try, or one group alone, as in a histogram. Other columns may stand
    beside the codes: these say how a sample is mixed. If the records do not span what the samples do, some samples
    are no records. Then any record, and any corner, may be a mere part of samples, and none is proven.
    """
    part, codes = codes_of(whole)
    if not mixtures.relu or not codes.can_tell:
        return None
    records = all_records(codes)
    if records is None or not len(records):
        return None if len(codes.groups) == 1 else (np.zeros((0, len(whole.live))), np.zeros(0, bool))
    among = samples_among(codes, records)
    chosen = records if among is None else records[among[0].which]
    a = codes.coordinates(chosen)
    x = rounded(whole.sample(a))
    x[:, part.live] = codes.rows(chosen)[:, :-1]
    if among is None:
        return x, np.zeros(len(x), bool)
    mixing, kept = among
    proven = kept & are_borne_out(mixing, *gates(mixtures, whole.normalised(x)))
    return x, proven & (beside_error(whole, part, a) < EXACT)


def gates(mixtures: Mixtures, x: Array) -> tuple[Flags, Flags]:
    """Which neurons (w, k) inputs of the first layer leave on, and which off, after training and before it."""
    layers = [mixtures.gates] if mixtures.start is None else [mixtures.gates, mixtures.start[0]]
    inputs = torch.from_numpy(x).to(mixtures.weight)
    sums = torch.stack([linear(inputs, *layer) for layer in layers]).cpu()
    on, off = ((sign * sums > 0).all(0).T.numpy() for sign in (1, -1))
    return on, off


def codes_of(whole: Space) -> tuple[Space, Codes]:
    """The span at the columns of one-hot groups."""
    groups = [] if whole.bias is None else find_groups(whole.values, whole.scale, whole.bias)
    coded = np.isin(np.arange(len(whole.scale)), np.concatenate([[], *groups]))
    part = whole.only(coded)
    places = [np.searchsorted(coded.nonzero()[0], group) for group in groups]
    return part, Codes(part.values, part.scale, part.bias, part.neurons, places)


def beside_error(whole: Space, part: Space, a: Array) -> Array:
    """The error that rounding leaves in the columns beside codes, for each record, relative to its values there.

    The codes give a up to an error of covariance (V Vᵀ)⁻¹ |a|², where V are the values at their columns.
    """
    columns = ~part.live[whole.live]
    rest, scale = whole.values[:, columns], whole.scale[columns]
    if not columns.any():
        return np.zeros(len(a))
    spread = (rest * np.linalg.solve(part.values @ part.values.T, rest)).sum(0)
    error = np.linalg.norm(np.sqrt(spread + 1) * scale) * np.linalg.norm(a, axis=1)
    relative: Array = error / np.linalg.norm(a @ rest * scale, axis=1)
    return relative


# Step 1: a corner ------------------------------------------------------------------------------------------


def lowest(directions: Array, weight: Array, aim: Array) -> Array | None:
    """The c with c · aim = 1 and no negative value whose weighted sum of values is least; None if there is none.

    Solved by its dual, max λ with Σ_j y_j u_j + λ · aim = Σ_j weight_j u_j and y ≥ 0: n equations instead of d.
    """
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
    x = space.values * space.scale
    return space.is_nothing(np.linalg.eigh(x @ x.T)[1][:, 0])


def _has_cone(space: Space) -> bool:
    random = np.random.default_rng(0)
    columns = random.permutation(space.directions.shape[1])[: ENOUGH_COLUMNS * space.n]
    some = space.directions[:, columns]
    return lowest(some, np.ones(some.shape[1]), some.sum(1)) is not None


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


def gram(rows: Array) -> Array:
    """rows · rowsᵀ: of one array with itself, which takes half the time of another product."""
    return np.asarray(rows @ rows.T)


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


def is_borne_out(space: Space, corners: Array, heard: Hearing, i: int) -> bool:
    """Whether a corner is proven in the whole span, or in what the exact columns of others leave of it.

    A text with all words of another vanishes nowhere but where that one does too. Then it takes the other's column
    to tell them apart. Where all others have exact columns, one vector is left.
    """
    if is_proven(space, corners[i]):
        return True
    part = left_of(space, heard, i)
    a = part.within(space, corners[i])
    return may_be_sample(part, a) if part.n == 1 else is_proven(part, a)


def left_of(space: Space, heard: Hearing, i: int) -> Space:
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
    """How far the zero that follows least from the others follows from itself alone: 1 if it does not from them.

    It is the largest diagonal value of the projection on the rows of directions[:, zero], which have rank n − 1.
    """
    rows = space.directions[:, zero]
    squares, vectors = np.linalg.eigh(rows @ rows.T)
    rows = (vectors[:, 1:] / np.sqrt(np.maximum(squares[1:], np.finfo(float).tiny))).T @ rows
    return float(np.square(rows).sum(0).max())


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


def are_clear(space: Space, corners: Array, heard: Hearing) -> Flags:
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


# Step 3: one after the other -------------------------------------------------------------------------------


def heard_corners(
    mixtures: Mixtures, whole: Space, space: Space, settings: Cone, progress: Report
) -> tuple[Array, Hearing]:
    """Corners (k, n), and what the neurons say of them (step 9).

    What is wrong by them is dropped, and what it stood for is sought again. Where they give exact columns of some
    samples, the others are sought in what is left, which has fewer dimensions. Linear programs, which take
    longest, come last. Without a ReLU the neurons say nothing.
    """
    banned = np.zeros((0, space.n))
    exact = columns = others = banned  # samples with an exact column, these columns, and other corners
    part, left, by_programs, pardoned = space, HEARINGS, False, False
    most, least_left = 0, space.n  # corners known, and dimensions left, at best since any were dropped
    while True:
        others = find_corners(space, part, settings, progress, exact, others, banned, by_programs)
        known = np.vstack([exact, others])
        heard = hear(space.neurons, off_for(mixtures, whole, known), known, columns)
        stays = ~heard.wrong if left and not is_over() else np.ones(len(known), bool)
        exact, columns = known[heard.clean], heard.columns[heard.clean]
        others, banned = known[stays & ~heard.clean], np.vstack([banned, known[~stays]])
        part, left = space.beyond(columns), left - (not stays.all())
        stuck = bool(stays.all()) and len(known) <= most and part.n >= least_left
        most, least_left = (max(most, len(known)), min(least_left, part.n)) if stays.all() else (0, space.n)
        if stays.all() and (len(known) == space.n or is_over() or (stuck and by_programs)):
            return known, heard
        if stuck and len(banned) and not pardoned:
            banned, pardoned = banned[:0], True  # while few columns were known, samples may have been dropped
        else:
            by_programs = stuck


def off_for(mixtures: Mixtures, whole: Space, corners: Array) -> Flags:
    """Which neurons (w, k) are off for these corners, after training and before it; none where no ReLU follows."""
    if not mixtures.relu or not len(corners):
        return np.zeros((len(whole.neurons), len(corners)), bool)
    x = samples(whole, whole.only(~are_real(whole, corners)), corners)
    return gates(mixtures, whole.normalised(x))[1]


def find_corners(
    space: Space,
    part: Space,
    settings: Cone,
    progress: Report,
    exact: Array,
    others: Array,
    banned: Array,
    by_programs: bool,
) -> Array:
    """The other corners and more that may be samples: (k, n). Each is sought with those before it cut off.

    part: Where they are sought: what the exact ones leave. banned: Corners that are none. by_programs: Solve
    linear programs instead of least squares. It ends early, so that the neurons can make the part smaller.
    """
    if not part.values.size:
        return others  # what is left is of no input
    if part.n == 1 and not len(others):
        return last_corner(space, part)
    most = min(space.n - len(exact), len(others) + max(FEW, part.n // ROUNDS))
    squares = ((True, settings.patience), (False, settings.patience))
    for proven, patience in ((False, settings.programs),) if by_programs else squares:
        tried: set[int] = set()
        vain = 0
        while len(others) < most and vain < patience:
            if not len(exact) + len(others) and (by_programs or vain >= PROBES):
                break  # where there is a cone at all, most aims lead to a corner, and programs find the last ones
            if is_over():
                return others
            where, aim = aim_at(part, part.within(space, others), tried)
            tried.add(where)
            known = np.vstack([exact, others, banned])
            found = best_corner(space, _at(space, part, aim, by_programs, settings), known, proven)
            others, vain = (others, vain + 1) if found is None else (np.vstack([others, found]), 0)
            num = len(exact) + len(others)
            progress(num / space.n, f"{num} of {space.n} corners found")
    return others


def last_corner(space: Space, part: Space) -> Array:
    """The one vector that all other samples leave, if it may be a sample: (0 or 1, n)."""
    a = np.sign(part.values.sum(1))
    return space.within(part, a[None]) if may_be_sample(part, a) else np.zeros((0, space.n))


def _at(space: Space, part: Space, aim: Array, by_programs: bool, settings: Cone) -> Iterator[tuple[Space, Array]]:
    """Corners with a value at this aim or its opposite, each with where it is one: the whole span, or the part."""
    for way in (aim, -aim):
        for c in programs(part, way, settings.reweightings) if by_programs else iter([lean(part, way)]):
            yield space, snap(space, space.within(part, c @ part.whitening) @ space.colouring)
            if part is not space:
                yield part, snap(part, c)


def aim_at(space: Space, known: Array, tried: set[int]) -> tuple[int, Array]:
    """The input that fewest of the unknown samples use, as it seems, and its direction without the known samples.

    Directions of inputs that few samples use are alike in few ways: their cosines with the others are peaked. A
    corner with a value at such a direction is none of the known ones, for they have none there.
    """
    basis = np.linalg.qr((known @ space.colouring).T)[0]
    left = space.directions - basis @ (basis.T @ space.directions)
    size = np.linalg.norm(left, axis=0)
    unit = left / np.maximum(size, np.finfo(float).tiny)
    rare = peakedness(unit)
    rare[size < CLEAR] = -1
    rare[list(tried)] -= rare.max() + 1 if len(tried) < len(rare) else 0
    best = int(rare.argmax())
    return best, unit[:, best]


def cosines(space: Space, known: Array, a: Array) -> Array:
    """Of a corner with the known ones, as their directions c."""
    known, c = known @ space.colouring, a @ space.colouring
    cosines: Array = np.abs(known @ c) / np.linalg.norm(known, axis=1) / np.linalg.norm(c)
    return cosines


def best_corner(space: Space, tries: Iterator[tuple[Space, Array]], known: Array, proven: bool) -> Array | None:
    """The first that is proven and new; else, unless `proven` asks for it, one that is plausible."""
    plausible = None
    for where, found in tries:
        a = space.within(where, found)
        if len(known) and cosines(space, known, a).max() > SAME:
            continue
        if is_proven(where, found):
            return a
        if not proven and is_corner(where, found) and is_plausible(where, found):
            plausible = a
    return plausible


def is_plausible(space: Space, a: Array) -> bool:
    """Whether it has more zeros than wrong corners have, or is made of whole numbers, which those seldom are."""
    many = vanishing(space, a).sum() > CLEARLY_MORE * space.n
    return bool(many or are_whole(to_scale(space, a[None]))[0, 0])


# The samples -----------------------------------------------------------------------------------------------


def _parts(mixtures: Mixtures, x: Array, proven: Flags) -> list[Part]:
    """First what is proven, then the other corners."""
    kinds = (("cone: proven", x[proven], True), ("cone: corner, not proven", x[~proven], False))
    return [_part(mixtures, name, some, sure) for name, some, sure in kinds if len(some)]


def _part(mixtures: Mixtures, name: str, x: Array, proven: bool) -> Part:
    maps = torch.from_numpy(x).to(mixtures.weight)
    label = predicted(outputs_of(mixtures.stack, maps, HARD))
    sure = torch.full((len(x),), proven)
    return Part(name, mixtures.inputs(maps).cpu(), label.cpu(), proven=sure, confidence=sure.float())


def samples(whole: Space, space: Space, corners: Array) -> Array:
    """The inputs (k, d) of corners: to scale, and with the columns that `space` leaves out."""
    x, rest = to_scale(space, corners), whole.live & ~space.live
    x[:, rest] = rounded((whole.sample(corners) / scales(space, corners))[:, rest])
    return x


def rounded(x: Array) -> Array:
    """Whole numbers in the columns where all samples have them, as that of a word that nearly all use."""
    whole_numbers = (np.abs(x - x.round()) < WHOLE).all(0)
    return np.where(whole_numbers, x.round(), x)


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


def are_whole(x: Array) -> Flags:
    """Which rows are whole numbers, up to rounding: (k, 1). Small values all are, so one must be at least 1."""
    whole: Flags = (np.abs(x - x.round()) < WHOLE).all(1, keepdims=True) & (x.max(1, keepdims=True) > 1 - WHOLE)
    return whole
