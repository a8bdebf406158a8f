"""Exact recovery of inputs that are never negative and often zero: ReLU features, counts of words, one-hot codes.

Training adds [ΔW1 | Δb1] = Σ_i α_i [x_i; 1]ᵀ to the first layer, exactly. So the rows of that change span the
samples, and the vectors of the span without a negative value form a cone. A sample with more zeros than there are
samples is a corner of it: a linear program that prefers few and small values runs into one. Known samples are cut
off, so that each program finds another. A wrong corner of an n-dimensional span vanishes where n − 1 equations
make it vanish, and each of those is needed. A sample's zeros are many more, and each follows from the others; the
neurons must bear it out, too (`attacker/duals.py`). That is a proof which needs no data. The bias column is 1 for
every sample, which gives its scale. Real columns beside such ones take no part in this: the zeros of the others
say how a sample is mixed, and its values in all columns follow. Where the model normalises its inputs itself,
that is undone first. One-hot records are listed, all that the span holds (`attacker/one_hot.py`). The numbered
steps are those of docs/method-cone.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt
from threadpoolctl import threadpool_limits
from torch.nn.functional import linear

from unfit.attacker.attacked_layer import AttackedLayer
from unfit.attacker.candidates import Part
from unfit.attacker.change import HARD
from unfit.attacker.cone_span import (
    NOISE,
    RIDGE,
    Array,
    Flags,
    Space,
    _has_cone,
    has_cone,
    peakedness,
    read_space,
    sparse_likely,
)
from unfit.attacker.corners import (
    CLEAR,
    SELDOM,
    WHOLE,
    are_clear,
    are_whole,
    cosines,
    enough_zeros,
    in_other_units,
    is_borne_out,
    is_corner,
    is_plausible,
    is_proven,
    lean,
    may_be_sample,
    programs,
    scales,
    snap,
    stand_alone,
    to_scale,
    vanishing,
)
from unfit.attacker.costs import seconds_of
from unfit.attacker.duals import GateCheck, check_gates
from unfit.attacker.method import Applicability, Prover
from unfit.attacker.one_hot import OneHot, all_records, are_borne_out, find_groups, samples_among
from unfit.attacker.stationarity import first_of, outputs_of, predicted
from unfit.base.budget import is_over
from unfit.base.memory import DOUBLE
from unfit.base.progress import Report, quiet
from unfit.base.times import Seconds

SAME = 0.999  # cosine of two corners that are the same
ROUNDS, FEW = 3, 10  # a hearing after a third of what is left, and after ten corners at least
GATE_CHECKS = 10  # that drop corners: of 300 texts, four dropped a dozen
PROBES, PROBE_AIMS = 10, 30  # corners that say which columns are real, and aims tried for them
EXACT = 0.01  # error that rounding leaves in the real columns of a proven sample, relative to their size
IN_VAIN = 1.5  # corners that are sought for each sample …
STEPS = 40  # … and weightings of all inputs that each takes, with the programs counted as such


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

    def prove(self, layer: AttackedLayer, progress: Report = quiet) -> tuple[list[Part], bool]:
        """What can be proven, then corners that may be samples; and whether all are found, as the neurons say."""
        with threadpool_limits(1, user_api="blas"):  # small matrices: threads would wait for each other
            return self._prove(layer, progress)

    def _prove(self, layer: AttackedLayer, progress: Report) -> tuple[list[Part], bool]:
        whole = read_space(layer)
        if whole is None or not has_cone(whole):
            return [], False
        found = coded(layer, whole)
        if found is not None and len(found[0]):
            x, proven = found
            return _parts(layer, whole.normalised(x), proven), int(proven.sum()) == whole.n
        space = sparse_part(whole)
        corners, heard = checked_corners(layer, whole, space, self, progress)
        if not len(corners):
            return [], False
        space = whole.only(~are_real(whole, corners))
        agree = heard.agrees & ~heard.contradicted
        proven = agree.copy()
        for i in agree.nonzero()[0].tolist():
            proven[i] = is_borne_out(space, corners, heard, i) and rest_error(whole, space, corners[i]) < EXACT
        if agree.sum() < space.n - 1:  # else a wrong corner would have a part of some other's column
            clear = are_clear(space, corners, heard)
            proven &= stand_alone(to_scale(space, corners)[:, space.live], clear, ~heard.clean)
        proven &= ~in_other_units(to_scale(space, corners)[:, space.live])
        proven &= found is None  # codes, but no list of records: a corner may be a mere part of samples
        if space.bias is None and layer.bias is not None:
            # The bias did not decay with the weights, so no scale is known but that of whole numbers.
            proven &= are_whole(to_scale(space, corners))[:, 0]
        x = whole.normalised(samples(whole, space, corners))
        return _parts(layer, x, proven), int(agree.sum()) == space.n

    def why_not(self, layer: AttackedLayer) -> str | None:
        """Why there are no corners to find; None if there may be some."""
        if layer.conv is not None:
            return "the first layer is a convolution"
        space = read_space(layer)
        if space is None:
            return (
                "the spectrum of the first layer has no visible end: a base, or `unfit find-init`, may give it one"
            )
        if not has_cone(space):
            return (
                "the samples have no cone: mixtures of them are negative somewhere, as those of centred or "
                "standardised inputs are, whose zeros have become a constant for each column"
            )
        return None

    def applicability(self, layer: AttackedLayer) -> Applicability:
        if why := self.why_not(layer):
            return Applicability(self.title, False, why)
        space = read_space(layer)
        assert space is not None
        why = f"{space.n} samples span a cone, and those with many zeros are its corners"
        return Applicability(self.title, True, why, self.seconds(space), 3 * DOUBLE * layer.weight.numel())

    def seconds(self, space: Space) -> float:
        """One corner for each sample and a few in vain; a step weighs the inputs in the samples' directions."""
        n, d = space.values.shape
        return seconds_of("cone", IN_VAIN * n * STEPS * 2 * n**2 * d)


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


def coded(layer: AttackedLayer, whole: Space) -> tuple[Array, Flags] | None:
    """Samples (k, d), and which are proven, where they are one-hot records; (0, d) where these cannot be listed.

    None where there are no codes, too many to try, or one group alone, as in a histogram. Other columns may stand
    beside the codes: these say how a sample is mixed. If the records do not span what the samples do, some samples
    are no records. Then any record, and any corner, may be a mere part of samples, and none is proven.
    """
    part, codes = one_hot_of(whole)
    if not layer.relu or not codes.can_tell:
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
    proven = kept & are_borne_out(mixing, *gates(layer, whole.normalised(x)))
    return x, proven & (beside_error(whole, part, a) < EXACT)


def gates(layer: AttackedLayer, x: Array) -> tuple[Flags, Flags]:
    """Which neurons (w, k) inputs of the first layer leave on, and which off, after training and before it."""
    stacks = layer.ends or [(layer.stack, layer.stack)]
    inputs = torch.from_numpy(x).to(layer.weight)
    steps = [torch.stack([linear(inputs, *first_of(stack)) for stack in step]) for step in stacks]
    sums = torch.cat(steps, 2).cpu()
    on, off = ((sign * sums > 0).all(0).T.numpy() for sign in (1, -1))
    return on, off


def one_hot_of(whole: Space) -> tuple[Space, OneHot]:
    """The span at the columns of one-hot groups."""
    groups = [] if whole.bias is None else find_groups(whole.values, whole.scale, whole.bias)
    coded = np.isin(np.arange(len(whole.scale)), np.concatenate([[], *groups]))
    part = whole.only(coded)
    places = [np.searchsorted(coded.nonzero()[0], group) for group in groups]
    return part, OneHot(part.values, part.scale, part.bias, part.neurons, places)


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


# Step 3: one after the other -------------------------------------------------------------------------------


def checked_corners(
    layer: AttackedLayer, whole: Space, space: Space, settings: Cone, progress: Report
) -> tuple[Array, GateCheck]:
    """Corners (k, n), and what the neurons say of them (step 9).

    What is wrong by them is dropped, and what it stood for is sought again. Where they give exact columns of some
    samples, the others are sought in what is left, which has fewer dimensions. Linear programs, which take
    longest, come last. Without a ReLU the neurons say nothing.
    """
    banned = np.zeros((0, space.n))
    exact = columns = others = banned  # samples with an exact column, these columns, and other corners
    part, left, by_programs, pardoned = space, GATE_CHECKS, False, False
    most, least_left = 0, space.n  # corners known, and dimensions left, at best since any were dropped
    while True:
        others = find_corners(space, part, settings, progress, exact, others, banned, by_programs)
        known = np.vstack([exact, others])
        heard = check_gates(space.neurons, off_for(layer, whole, known), known, columns)
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


def off_for(layer: AttackedLayer, whole: Space, corners: Array) -> Flags:
    """Which neurons (w, k) are off for these corners, after training and before it; none where no ReLU follows."""
    if not layer.relu or not len(corners):
        return np.zeros((len(whole.neurons), len(corners)), bool)
    x = samples(whole, whole.only(~are_real(whole, corners)), corners)
    return gates(layer, whole.normalised(x))[1]


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


# The samples -----------------------------------------------------------------------------------------------


def _parts(layer: AttackedLayer, x: Array, proven: Flags) -> list[Part]:
    """First what is proven, then the other corners."""
    kinds = (("cone: proven", x[proven], True), ("cone: corner, not proven", x[~proven], False))
    return [_part(layer, name, some, sure) for name, some, sure in kinds if len(some)]


def _part(layer: AttackedLayer, name: str, x: Array, proven: bool) -> Part:
    maps = torch.from_numpy(x).to(layer.weight)
    label = predicted(outputs_of(layer.stack, maps, HARD))
    sure = torch.full((len(x),), proven)
    return Part(name, layer.inputs(maps), label, proven=sure, confidence=sure.float())


def samples(whole: Space, space: Space, corners: Array) -> Array:
    """The inputs (k, d) of corners: to scale, and with the columns that `space` leaves out."""
    x, rest = to_scale(space, corners), whole.live & ~space.live
    x[:, rest] = rounded((whole.sample(corners) / scales(space, corners))[:, rest])
    return x


def rounded(x: Array) -> Array:
    """Whole numbers in the columns where all samples have them, as that of a word that nearly all use."""
    whole_numbers = (np.abs(x - x.round()) < WHOLE).all(0)
    return np.where(whole_numbers, x.round(), x)
