"""All one-hot records in a span, and which of them are the samples.

A record has a 1 in one column of each group (sex, occupation, place), so it is a choice of one column a group. It
lies in the span of the samples if Σ_g z(column chosen in g) + z(bias) = 0, where z is what a basis of the
orthogonal complement holds at a column. Half of the groups make one list of sums, the other half another, and a
record is a pair that cancels. This takes the square root of all choices, and no record of the span is missed. The
samples are among them and span it. So a record without which all others span less is a sample for sure.

Other records can be exchanged: where 1 + 2 = 3 + 4, any three of them span the fourth. There neurons decide. The
change of a layer before a ReLU is A · samples, and A[k, i] = 0 where neuron k was off for sample i. Let B be other
records that span the same, samples = M · B. Then A · M takes A's place. It vanishes at (k, b) only where neuron k
was off for all samples with a part of b, M[i, b] ≠ 0. M is invertible, so its columns can be matched with samples
that have a part of them. Hence no B has more zeros than the samples have.

All this takes for granted that samples are records. Mixtures of the same records span as much. But their neurons
are not on and off where those of the records are, so neurons must bear out each record, and most of all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from unfit.base.budget import is_over

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Places = NDArray[np.intp]

MISFIT = 100.0  # times the noise: samples were seen up to 7, other records from 10⁵ on; one too many is no harm
KEYS = 6  # random directions in which sums are compared first
SIDE = 8.0  # of a cell of nearly equal sums, in units of what they may differ by
MOST_SUMS = 3_000_000  # in a list: 100 MB
MOST_PAIRS = 3_000_000  # of sums that agree in all keys: with more, noise hides what is a record
MOST_RECORDS = 5  # for each dimension of the span: with more, exchanging them takes long
NEEDED = 1e-6  # distance of a leverage from 1; share of a record that is none

NEAR = 0.9  # cosine of the bias with what it should be: 0.99 and more after decay to three quarters
TRIED = 30  # runs of columns that are near to it: a group is among the first few
MOST_COLUMNS = 4096  # whose runs are looked at: their cosines take 128 MB

JUDGES = 200  # neurons that say which exchanges are worth it, before all of them do
AT_ONCE = 1_000_000  # differences of neurons' weights, computed together
ZERO = 10.0  # times the noise: what a neuron that was off has of a sample
LOSS, LEAST_LOSS = 0.05, 5  # of the neurons, and of zeros: what every exchange must lose
ON_WITHOUT = 0.03  # share of neurons that a record leaves on but has no part in: 0 to 0.02 of samples' …
OFF_WITH = 0.3  # … and of those it leaves off but has a part in, because training turned them on and off again
STRAYS, EQUAL = 5, 3e-3  # such neurons, half of them at least, where it is the same multiple of another's part
USUAL_OFF_WITH = 0.15  # the same of most records: 0.2 and more where samples are mixtures of the records
DECIDED = 60  # neurons that a record leaves on or off throughout: with fewer, shares are too rough


@dataclass(frozen=True, eq=False)
class OneHot:
    """A span of n dimensions at columns that are one-hot, in units of the noise of each column."""

    values: Array  # (n, d)
    scale: Array  # (d,): the noise of each column, in units of the bias's
    bias: Array | None  # (n,)
    neurons: Array  # (w, n): orthonormal columns; neurons · values is the change of the layer
    groups: list[Places]  # the columns of each group

    @property
    def can_tell(self) -> bool:
        """Whether not all choices of columns lie in the span, and all of them can be tried."""
        n, d = self.values.shape
        spare = d + 1 - n - len(self.groups)  # each group adds up to the bias, whatever is chosen
        few = max(num_choices(half) for half in split(self.groups)) <= MOST_SUMS
        return self.bias is not None and few and spare > 0

    @cached_property
    def parts(self) -> tuple[Array, Array, Array]:
        """Left vectors (n, n), singular values (n,), and all right vectors (d + 1, d + 1)."""
        assert self.bias is not None
        left, sizes, right = np.linalg.svd(np.column_stack([self.values, self.bias]))
        return left, sizes, right.T

    @property
    def complement(self) -> Array:
        """(d + 1, m): z at each column and at the bias."""
        return self.parts[2][:, len(self.values) :] / np.append(self.scale, 1.0)[:, None]

    def seen_by(self, num: int) -> OneHot:
        """The same with some of the neurons."""
        some = np.random.default_rng(0).permutation(len(self.neurons))[:num]
        return replace(self, neurons=self.neurons[some])

    def rows(self, records: Places) -> Array:
        """(k, d + 1): ones at the columns chosen and at the bias."""
        rows = np.zeros((len(records), len(self.scale) + 1))
        np.put_along_axis(rows, records, 1.0, 1)
        rows[:, -1] = 1
        return rows

    def coordinates(self, records: Places) -> Array:
        """(k, n): the a of which a · values are nearest to each record."""
        left, sizes, right = self.parts
        scaled = self.rows(records) / np.append(self.scale, 1.0)
        coordinates: Array = scaled @ right[:, : len(sizes)] / sizes @ left.T
        return coordinates

    @property
    def largest(self) -> float:
        """Of the lengths that coordinates of any record may have: the noise of a record that lies in the span."""
        longest = 1 + sum(np.square(1 / self.scale[group]).max() for group in self.groups)
        return float(np.sqrt(longest) / self.parts[1][-1])


def find_groups(values: Array, scale: Array, bias: Array) -> list[Places]:
    """Runs of neighbouring columns (n, d) that add up to the bias, as the codes of one thing do; none overlap."""
    sums = np.column_stack([np.zeros(len(values)), (values * scale).cumsum(1)])
    noise = np.append(0.0, np.square(scale).cumsum())
    keys = directions(len(values))
    met = equal(keys @ (sums + bias[:, None]), keys @ sums, MISFIT * np.sqrt(1 + noise[-1]))
    groups, free = list[Places](), 0
    for start, end in [] if met is None else sorted(zip(*(each.tolist() for each in met), strict=True)):
        misfit = np.abs(sums[:, end] - sums[:, start] - bias).max()
        if start >= free and misfit < MISFIT * np.sqrt(1 + noise[end] - noise[start]):
            groups.append(np.arange(start, end))
            free = end
    return groups


def find_ones(values: Array, scale: Array, near: Array) -> tuple[Array, float] | None:
    """What every record has once, and its noise: the sum of a group, which is equal to that of another group.

    Where weights decay and the bias does not, it is only near to that. So runs of columns that add up to about the
    bias are tried, the nearest first. Two groups together point the same way, but then fewer runs add up to as
    much. None if no two groups agree.
    """
    sums = np.column_stack([np.zeros(len(values)), (values * scale).cumsum(1)])
    noise = np.append(0.0, np.square(scale).cumsum())
    if sums.shape[1] > MOST_COLUMNS:
        return None
    dots, along = sums.T @ sums, sums.T @ near
    sizes = np.sqrt(np.maximum(np.add.outer(dots.diagonal(), dots.diagonal()) - 2 * dots, np.finfo(float).tiny))
    cosines = np.triu(along[None] - along[:, None], 1) / sizes / np.linalg.norm(near)
    likely = np.argsort(-cosines, axis=None)[:TRIED]
    most, best = 1, None
    for start, end in zip(*np.unravel_index(likely[cosines.flat[likely] > NEAR], cosines.shape), strict=True):
        ones, own = sums[:, end] - sums[:, start], float(np.sqrt(noise[end] - noise[start]))
        groups = len(find_groups(values, scale / own, ones / own))
        if groups > most:
            most, best = groups, (ones, own)
    return best


def all_records(codes: OneHot) -> Places | None:
    """The columns (k, groups) of each record in the span; None if they are too many, or noise makes them so."""
    if codes.parts[1][-1] < MISFIT * np.sqrt(len(codes.scale)):
        return None  # a direction of the span is hardly more than noise at these columns
    halves = split(codes.groups)
    keys = directions(codes.complement.shape[1]) @ codes.complement.T
    left, right = (sums(keys, half) for half in halves)
    met = equal(left + keys[:, -1:], -right, MISFIT * codes.largest)
    if met is None:
        return None
    records = np.column_stack([chosen(half, which) for half, which in zip(halves, met, strict=True)])
    records = records[in_span(codes, records)]
    return records if len(records) <= MOST_RECORDS * len(codes.values) else None


def in_span(codes: OneHot, records: Places) -> Flags:
    """Which records leave no more outside the span than noise does."""
    z = codes.complement
    misfit = np.abs(z[records].sum(1) + z[-1]).max(1, initial=0)
    inside: Flags = misfit < MISFIT * np.linalg.norm(codes.coordinates(records), axis=1)
    return inside


# Neurons decide --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Mixing:
    """The layer's change as a mixture of some records that span it."""

    which: Places  # (n,): these records, of all
    weights: Array  # (w, n): A, how much each neuron has of each of them
    noise: Array  # (n,): of a column of A
    parts: Array  # (k, n): all records as mixtures of these

    @cached_property
    def zeros(self) -> Flags:
        return np.asarray(np.abs(self.weights) < ZERO * self.noise)

    @property
    def loss(self) -> float:
        """How many zeros an exchange must lose to be wrong."""
        return max(LEAST_LOSS, LOSS * len(self.weights))

    def gains(self, touched: Places, part: Array) -> Places:
        """The zeros that A gains when something with these parts of the touched takes the place of each."""
        zeros = self.zeros[:, touched].sum(0)
        return np.asarray(zeros_after(self.weights[:, touched], self.noise[touched], part) - (zeros.sum() - zeros))


@dataclass(frozen=True)
class Exchange:
    """One record for another, and how many more zeros A has then."""

    gain: int
    out: int  # place in the mixing
    into: int  # number of the record
    touched: frozenset[int]  # places in the mixing whose columns change


def mixing_of(codes: OneHot, records: Places, which: Places) -> Mixing:
    """A = U C⁻¹, where C are the coordinates of the records; rounding of the layer adds the noise of B⁺."""
    rows = codes.rows(records)
    inverse = np.linalg.pinv(rows[which] / np.append(codes.scale, 1.0))
    weights = codes.neurons @ np.linalg.inv(codes.coordinates(records[which]))
    return Mixing(which, weights, np.linalg.norm(inverse, axis=0), rows / np.append(codes.scale, 1.0) @ inverse)


def exchanges(mixing: Mixing) -> Iterator[Exchange]:
    """Every exchange of a record of the mixing for another that has a part of it."""
    for into in np.setdiff1d(np.arange(len(mixing.parts)), mixing.which):
        part = mixing.parts[into]
        touched = np.flatnonzero(np.abs(part) > NEEDED)
        gains = mixing.gains(touched, part[touched])
        for out, gain in zip(touched.tolist(), gains.tolist(), strict=True):
            yield Exchange(gain, out, int(into), frozenset(touched.tolist()))


def zeros_after(weights: Array, noise: Array, part: Array) -> Places:
    """For each of t columns: the zeros of the others once a record with these parts of all has replaced it."""
    share = part / part[:, None]
    near = ZERO * np.hypot(noise, noise[:, None] * share)
    blocks = np.array_split(weights, 1 + weights.size * len(part) // AT_ONCE)
    zeros = [(np.abs(w[:, None, :] - w[:, :, None] * share) < near).sum((0, 2)) for w in blocks]
    return np.asarray(sum(zeros) - len(weights))  # its own difference is zero everywhere


def improve(mixing: Mixing, found: list[Exchange]) -> Places:
    """The records after all exchanges that gain zeros and do not touch each other, the best first."""
    which, touched = mixing.which.copy(), set[int]()
    for each in sorted(found, key=lambda each: -each.gain):
        if each.gain > 0 and not touched & each.touched:
            which[each.out] = each.into
            touched |= each.touched
    return which


def samples_among(codes: OneHot, records: Places) -> tuple[Mixing, Flags] | None:
    """Records that span the change with the most zeros, and which of them no exchange takes out without a loss.

    None where all records together span less, or more, than the samples do. A record that no exchange takes out is
    needed whatever neurons say.
    """
    which = spanning(codes.rows(records))
    if len(which) != len(codes.values):
        return None
    mixing, _ = exchanged(codes.seen_by(JUDGES), records, which)
    return exchanged(codes, records, mixing.which)


def exchanged(codes: OneHot, records: Places, which: Places) -> tuple[Mixing, Flags]:
    """After exchanges, until none gains a zero or time is up; and which records are kept then."""
    while True:
        mixing = mixing_of(codes, records, which)
        found = list(exchanges(mixing))
        better = improve(mixing, found)
        if (better == which).all() or is_over():
            return mixing, are_kept(mixing, found)
        which = better


def are_kept(mixing: Mixing, found: list[Exchange]) -> Flags:
    kept = np.ones(len(mixing.which), bool)
    for each in found:
        kept[each.out] &= each.gain <= -mixing.loss
    return kept


def are_borne_out(mixing: Mixing, on: Flags, off: Flags) -> Flags:
    """Which records have a part in the neurons (w, n) that they leave on, and hardly one in those they leave off.

    None if most have not: then samples are no records.
    """
    part = ~mixing.zeros
    on_without = (on & ~part).sum(0) / np.maximum(on.sum(0), 1)
    off_with = (off & part).sum(0) / np.maximum(off.sum(0), 1)
    likely = (on_without < ON_WITHOUT) & (off_with < OFF_WITH) & ((on | off).sum(0) >= DECIDED)
    likely &= ~are_mixed(mixing.weights, off & part)
    return np.asarray(likely & (np.median(off_with) < USUAL_OFF_WITH))


def are_mixed(weights: Array, strays: Flags) -> Flags:
    """Which records (n,) may be parts of one sample: where one has a part but should not, it is another's.

    A sample that is half of each of two records gives both of them half of its own part, also where the one is off
    and the other is on.
    """
    mixed = np.zeros(weights.shape[1], bool)
    for i in (strays.sum(0) >= STRAYS).nonzero()[0].tolist():
        own, parts = weights[strays[:, i], i, None], weights[strays[:, i]]
        multiple = own / np.where(
            np.abs(parts) < NEEDED * np.abs(own), np.inf, parts
        )  # (strays, n): 0 if it has none
        usual = np.median(multiple, axis=0)
        same = (np.abs(multiple - usual) < EQUAL * np.abs(usual)).sum(0)
        same[i] = 0
        others = same >= max(STRAYS, len(own) / 2)
        mixed |= others
        mixed[i] |= others.any()
    return mixed


def spanning(rows: Array) -> Places:
    """Rows that span what all of them do, by number."""
    triangle, order = scipy.linalg.qr(rows.T, mode="r", pivoting=True)
    size = np.abs(np.diag(triangle))
    return np.asarray(order[: int((size > NEEDED * size.max(initial=0)).sum())])


# Meeting in the middle -------------------------------------------------------------------------------------


def split(groups: list[Places]) -> tuple[list[Places], list[Places]]:
    """Two lists of groups with about as many choices, the larger group first."""
    halves: tuple[list[Places], list[Places]] = ([], [])
    for group in sorted(groups, key=len, reverse=True):
        min(halves, key=num_choices).append(group)
    return halves


def num_choices(groups: list[Places]) -> float:
    return float(np.prod([float(len(group)) for group in groups]))


def sums(keys: Array, groups: list[Places]) -> Array:
    """(keys, choices): of the keys of one column a group, the last group's column changing fastest."""
    total = np.zeros((len(keys), 1))
    for group in groups:
        total = (total[:, :, None] + keys[:, None, group]).reshape(len(keys), -1)
    return total


def chosen(groups: list[Places], which: Places) -> Places:
    """(k, groups): the columns of these choices."""
    at = np.unravel_index(which, [len(group) for group in groups])
    return np.column_stack([group[place] for group, place in zip(groups, at, strict=True)])


def directions(num: int) -> Array:
    """(KEYS, num): random, of unit length."""
    drawn = np.random.default_rng(0).normal(size=(KEYS, num))
    unit: Array = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return unit


def equal(left: Array, right: Array, within: float) -> tuple[Places, Places] | None:
    """The pairs of columns that differ by less than this in all rows; None if there are too many.

    Columns are sorted by the cell they lie in. What is near may lie in the next cell, one way or the other.
    """
    low, high = (np.floor((right + shift) / (SIDE * within)) for shift in (-within, within))
    cells = _hash(np.floor(left / (SIDE * within)))
    order = cells.argsort()
    cells, pairs = cells[order], list[Places]()
    for which in product((False, True), repeat=len(left)):
        shifted = np.array(which)[:, None]
        near = ((low != high) | ~shifted).all(0).nonzero()[0]
        sought = _hash(np.where(shifted, high, low)[:, near])
        first, last = (np.searchsorted(cells, sought, side) for side in ("left", "right"))
        if (last - first).sum() + sum(map(len, pairs)) > MOST_PAIRS:
            return None
        pairs.append(np.column_stack([order[_ranges(first, last)], near.repeat(last - first)]))
    i, j = np.concatenate(pairs).T
    close = (np.abs(left[:, i] - right[:, j]) < within).all(0)
    return i[close], j[close]


def _hash(cells: Array) -> NDArray[np.int64]:
    """One number a column; what collides is told apart afterwards."""
    odd = np.random.default_rng(0).integers(2**62, size=len(cells)) * 2 + 1
    hashed: NDArray[np.int64] = (cells.astype(np.int64) * odd[:, None]).sum(0)
    return hashed


def _ranges(first: Places, last: Places) -> Places:
    """All numbers from each first up to its last."""
    counts = last - first
    begun = np.repeat(first - np.append(0, counts.cumsum()[:-1]), counts)
    ranges: Places = begun + np.arange(counts.sum())
    return ranges
