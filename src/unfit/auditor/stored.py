"""Samples that stand in the file verbatim: in a batch, a bank or a text beside the weights, or as rows of a layer.

No attack is needed to read these. Each tensor whose size fits is compared with every sample, private or unseen, up
to rounding and to what preprocessing does to a whole sample: one shift and one positive scale.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from unfit.auditor.samples import Samples
from unfit.base.contents import Item, contents_of
from unfit.base.errors import UnfitError

FEW = 16  # values of a sample: with fewer, a shift and a scale fit too much, so values must be equal
APART = 2e-4  # squared distance of unit vectors: a correlation of 1 − 1e-4
SPREADS = 0.03  # root mean square, in standard deviations of each column of a table
EQUAL = 1e-3  # relative error of each value of a short sample …
VERBATIM = 1e-6  # … and of one with fewer than four: more would be chance
LEAST = 4  # values off the lowest and off the highest: unit vectors and masks stand in many files
SKETCH = 32  # directions in which all pairs are compared before the closest are in all
RARE = 40.0  # bits: 2^24 pairs of a row and a sample are many, and columns are not independent
REFERENCES = 1000  # samples that tell how common a value is …
MOST_COLUMNS = 256  # … in so many columns: more would not be needed
BLOCK = 2**22  # values that are compared at once
PAIRS = 2**24  # distances at once
NUMBERS = re.compile(r"[\s\d.,;+\-eE\[\]()]+")  # a text of nothing but numbers
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
TYPES = (torch.uint8, torch.float16, torch.float32, torch.float64)  # that raw bytes may be


@dataclass(frozen=True, eq=False)
class Stored:
    """Which samples stand in the file, and the items that hold private or unseen ones."""

    private: Tensor  # bool (n,)
    unseen: Tensor  # bool (m,)
    rare: Tensor  # bool (n,): of the private ones, those that do not repeat by themselves
    places: list[Item]
    unseen_places: list[Item]
    by_item: list[tuple[Item, Tensor]]  # each item that holds any, and which: bool (n + m,)


def stored_samples(
    items: Iterable[Item],
    sets: tuple[Samples, Samples],
    given: tuple[Samples, Samples],
    mean: Tensor,
    most_pairs: float = math.inf,
) -> Stored:
    """Look for private and unseen samples in all that a file or module holds.

    Args:
        items: What the file or module holds.
        sets: The private and the unseen samples as they enter the attacked layer.
        given: Both as people know them; the same where nothing comes before that layer.
        mean: What is subtracted from `sets` before the model sees them.
        most_pairs: Of rows of an item and samples that are compared; of a longer item every second row, or third.
    """
    num, total = len(given[0]), len(given[0]) + len(given[1])
    found = torch.zeros(total, dtype=torch.bool)
    places: list[Item] = []
    unseen_places: list[Item] = []
    by_item: list[tuple[Item, Tensor]] = []
    judges = _judges(sets, given, mean)
    for item in items:
        here = torch.zeros_like(found)
        for judge in judges:
            for rows in _rows_of(item, judge.d):
                here |= judge.held(rows[:: math.ceil(len(rows) * total / most_pairs) or 1])
        by_item += [(item, here)] * bool(here.any())
        places += [item] * bool(here[:num].any())
        unseen_places += [item] * bool(here[num:].any())
        found |= here
    rare = found & (surprise(torch.cat([each.x.flatten(1) for each in given])) >= RARE)
    return Stored(found[:num], found[num:], rare[:num], places, unseen_places, by_item)


def surprise(x: Tensor) -> Tensor:
    """−log2 of the probability that a sample drawn at random equals each of x (n, d), column by column.

    Records of a few categories repeat in any two tables of the same kind: that one stands in a file says little.
    In each column the samples themselves tell how common a value is; of values that no other sample has, how many
    are near it. As if columns were independent: they are not, so a probability that counts has to be tiny.
    """
    random = torch.Generator().manual_seed(0)
    columns = torch.randperm(x.shape[1], generator=random)[:MOST_COLUMNS]
    x = x[:, columns].double()
    others = x[torch.randperm(len(x), generator=random)[:REFERENCES]].T.sort(1).values.contiguous()
    spread, values = x.std(0)[:, None] if len(x) > 1 else torch.ones(x.shape[1], 1), x.T.contiguous()
    wide = SPREADS * spread
    narrow = wide if x.shape[1] >= FEW else torch.minimum(EQUAL * torch.maximum(values.abs(), spread), wide)

    def share(tolerance: Tensor, own: int) -> Tensor:
        above = torch.searchsorted(others, values + tolerance, right=True)
        return (above - torch.searchsorted(others, values - tolerance) - own).clamp_min(0) / others.shape[1]

    near = share(wide, 0).clamp_min(1 / others.shape[1]) * (narrow / wide.clamp_min(1e-300)).clamp(max=1)
    return -torch.maximum(share(narrow, 1), near).clamp(1e-12, 1).log2().sum(0)


# What is looked for -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Probe:
    """Samples in one order of their values, and how they and rows of a file are made comparable."""

    x: Tensor  # (n, d)
    order: Tensor | None  # of the values, where channels come last
    judged: Tensor  # bool (n,): samples that chance does not make
    spread: Tensor | None  # of each column of a table, (d,)

    def at(self, chosen: Tensor) -> Tensor:
        return self.x[chosen] if self.order is None else self.x[chosen][:, self.order]


@dataclass(frozen=True, eq=False)
class Judge:
    """All probes of one size that see rows of a file in the same way: `ready` makes a row comparable."""

    d: int
    ready: Callable[[Tensor], Tensor]
    limit: float  # of the squared distance
    probes: list[Probe]

    @cached_property
    def directions(self) -> Tensor | None:
        """Orthonormal (d, SKETCH): distances along them are never larger than the whole."""
        if self.d <= SKETCH:
            return None
        return torch.linalg.qr(torch.randn(self.d, SKETCH, generator=torch.Generator().manual_seed(0)))[0]

    @cached_property
    def sketches(self) -> list[Tensor]:
        whole = torch.arange(len(self.probes[0].x)).split(max(1, BLOCK // self.d))
        return [torch.cat([self.sketch(self.ready(probe.at(part))) for part in whole]) for probe in self.probes]

    def sketch(self, ready: Tensor) -> Tensor:
        return ready if self.directions is None else ready @ self.directions

    def held(self, rows: Tensor) -> Tensor:
        """Which samples are among these rows (r, d): bool (n,)."""
        found = torch.zeros(len(self.probes[0].x), dtype=torch.bool)
        size = max(1, min(BLOCK // self.d, PAIRS // max(1, len(found))))
        for part in rows.split(size):
            block = part.cpu().to(torch.float32)
            ready = self.ready(block)
            fine = ready.isfinite().all(1)
            block, ready = block[fine], ready[fine]
            if not len(ready):
                continue
            short = self.sketch(ready)
            for probe, sketch in zip(self.probes, self.sketches, strict=True):
                found |= self._close(probe, sketch, block, ready, short)
        return found

    def _close(self, probe: Probe, sketch: Tensor, block: Tensor, ready: Tensor, short: Tensor) -> Tensor:
        """The closest row of each sample in the sketch, then in all of its values."""
        apart = torch.addmm(short.square().sum(1)[None], sketch, short.T, alpha=-2)  # less the sample's own square
        least, nearest = apart.min(1)
        close = (least + sketch.square().sum(1) <= self.limit * 1.1 + 1e-6) & probe.judged
        chosen = close.nonzero().flatten()
        for part in chosen.split(max(1, BLOCK // self.d)):
            x, at = probe.at(part), nearest[part]
            same = (self.ready(x) - ready[at]).square().sum(1) <= self.limit
            if probe.spread is not None:
                same &= _fits_columns(block[at], x, probe.spread)
            close[part] = same
        return close


@dataclass(frozen=True, eq=False)
class Equals:
    """Judges short samples by each of their values."""

    x: Tensor  # (n, d), float64
    judged: Tensor
    tolerance: Tensor  # (n, d)

    @property
    def d(self) -> int:
        return int(self.x.shape[1])

    def held(self, rows: Tensor) -> Tensor:
        found = torch.zeros(len(self.x), dtype=torch.bool)
        low, high = (self.x - self.tolerance).amin(0), (self.x + self.tolerance).amax(0)
        for part in rows.split(max(1, BLOCK // max(len(self.x), 1))):
            block = part.cpu().double()
            block = block[((block >= low) & (block <= high)).all(1)]  # also leaves out what is not finite
            if len(block):
                same = torch.ones(len(self.x), len(block), dtype=torch.bool)
                for j in range(self.d):
                    same &= (self.x[:, j, None] - block[None, :, j]).abs() <= self.tolerance[:, j, None]
                found |= same.any(1)
        return found & self.judged


def _judges(sets: tuple[Samples, Samples], given: tuple[Samples, Samples], mean: Tensor) -> list[Judge | Equals]:
    """One for each way of seeing a row, with the samples as given, as the model sees them, and as features."""
    known = torch.cat([each.x.flatten(1) for each in given])
    judged = _is_telling(known)
    forms = [given, (given[0].centred(given[0].mean), given[1].centred(given[0].mean))]
    if sets[0] is not given[0]:
        forms += [sets, (sets[0].centred(mean), sets[1].centred(mean))]
    found: list[Judge | Equals] = []
    judges: dict[object, Judge] = {}
    done: list[Tensor] = []
    for first, second in forms:
        x = torch.cat([first.x, second.x]).cpu().to(torch.float32)
        flat = x.flatten(1)
        if any(each.shape == flat.shape and torch.equal(each, flat) for each in done):
            continue
        done.append(flat)
        mask = judged & _is_telling(flat)
        if flat.shape[1] < FEW:
            found.append(_equals(flat.double(), mask))
            continue
        for key, judge in _ways(x, mask):
            judges.setdefault(key, judge).probes.extend(
                judge.probes if key in judges and judges[key] is not judge else []
            )
    return [*found, *judges.values()]


def _ways(x: Tensor, judged: Tensor) -> Iterator[tuple[object, Judge]]:
    """How rows are compared with samples of this shape; those with equal keys see rows alike."""
    flat, d = x.flatten(1), math.prod(x.shape[1:])
    if x.ndim != 4:
        centre, spread = flat.mean(0), flat.std(0) if len(flat) > 1 else torch.ones(d)
        spread = spread.clamp_min(1e-3 * float(spread.square().mean().sqrt()) + 1e-12)
        yield (d, "unit"), Judge(d, _unit, APART, [Probe(flat, None, judged, spread)])
        ready = _columns(centre, spread)
        yield object(), Judge(d, ready, SPREADS**2, [Probe(flat, None, judged, None)])
        return
    channels = x.shape[1]
    last = torch.arange(d).view(x.shape[1:]).permute(1, 2, 0).flatten() if channels > 1 else None
    orders = [None] if last is None else [None, last]
    yield (d, "unit"), Judge(d, _unit, APART, [Probe(flat, order, judged, None) for order in orders])
    if last is not None:
        for order in orders:
            ready = _by_channel(channels, order is not None)
            yield (d, channels, order is None), Judge(d, ready, APART, [Probe(flat, order, judged, None)])


def _is_telling(x: Tensor) -> Tensor:
    """Samples that are not (almost) constant: those, and unit vectors, stand in files that hold no sample."""
    off_lowest = (x != x.amin(1, keepdim=True)).sum(1)
    off_highest = (x != x.amax(1, keepdim=True)).sum(1)
    least = min(LEAST, max(1, x.shape[1] - 1)) if x.shape[1] >= FEW else min(2, x.shape[1] - 1)
    return (off_lowest >= least) & (off_highest >= least)


def _equals(x: Tensor, judged: Tensor) -> Equals:
    """Short samples of nothing but -1, 0 and 1 are told by no comparison."""
    d = x.shape[1]
    spread = x.std(0) if len(x) > 1 else torch.zeros(d, dtype=x.dtype)
    tolerance = (EQUAL if d >= LEAST else VERBATIM) * torch.maximum(x.abs(), spread.expand_as(x))
    codes = ((x == 0) | (x.abs() == 1)).all(1)
    return Equals(x, judged & ~codes & (d > 1), tolerance)


def _unit(rows: Tensor) -> Tensor:
    """Without the mean of each row, of length 1; a constant row is 0, which is far from everything."""
    rows = rows - rows.mean(1, keepdim=True)
    return torch.nn.functional.normalize(rows, dim=1)


def _by_channel(channels: int, last: bool) -> Callable[[Tensor], Tensor]:
    """Pictures are often normalised channel by channel."""

    def ready(rows: Tensor) -> Tensor:
        size = rows.shape[1] // channels  # −1 is ambiguous where there are no rows
        maps = rows.view(len(rows), size, channels) if last else rows.view(len(rows), channels, size)
        along = 1 if last else 2
        maps = maps - maps.mean(along, keepdim=True)
        return torch.nn.functional.normalize(maps, dim=along).flatten(1) / math.sqrt(channels)

    return ready


def _columns(centre: Tensor, spread: Tensor) -> Callable[[Tensor], Tensor]:
    """Columns of a table have units of their own: one with large numbers would decide alone."""
    return lambda rows: (rows - centre) / (spread * math.sqrt(len(centre)))


def _fits_columns(rows: Tensor, x: Tensor, spread: Tensor) -> Tensor:
    """Whether the rows, after the best shift and scale, agree with x in each column as samples vary in it."""
    a, b = rows - rows.mean(1, keepdim=True), x - x.mean(1, keepdim=True)
    scale = (a * b).sum(1, keepdim=True) / a.square().sum(1, keepdim=True)
    return ((scale * a - b) / spread).square().mean(1).sqrt() <= SPREADS


# Where it is looked for ---------------------------------------------------------------------------------------


def _rows_of(item: Item, d: int) -> Iterator[Tensor]:
    """All ways in which an item holds rows of d values."""
    texts = (found for text in item.texts for found in decoded(text))
    values = [item.value] if isinstance(item.value, Tensor) else list(texts)
    for value in values:
        if value.is_complex() or value.numel() < d:
            continue
        yield from _rows(value, d)
        if value.dtype == torch.uint8 and value.ndim == 1:
            for dtype in TYPES[1:]:
                if value.numel() % (d * dtype.itemsize) == 0:
                    yield value.clone().view(dtype).view(-1, d)


def _rows(value: Tensor, d: int) -> Iterator[Tensor]:
    """Samples along the first axes or the last, one after another, or with a label at one end."""
    shape, num = tuple(value.shape), value.numel()
    if value.ndim <= 1 or num == d:
        flat = value.reshape(-1)
        yield flat[: num // d * d].view(-1, d)
        if num % d:
            yield flat[num % d :].view(-1, d)
        if num % (d + 1) == 0:
            yield from _without_label(flat.view(-1, d + 1))
        return
    if any(math.prod(shape[k:]) == d for k in range(1, len(shape))):
        yield value.reshape(-1, d)
    if any(math.prod(shape[:k]) == d for k in range(1, len(shape))):
        yield value.reshape(d, -1).T
    if len(shape) == 2 and shape[1] == d + 1:
        yield from _without_label(value)


def _without_label(rows: Tensor) -> Iterator[Tensor]:
    yield rows[:, :-1]
    yield rows[:, 1:]


def decoded(text: str) -> Iterator[Tensor]:
    """Numbers that a text holds: written out, in JSON, or as bytes in base64."""
    if NUMBERS.fullmatch(text):
        yield torch.tensor([float(each) for each in NUMBER.findall(text)], dtype=torch.float64)
    elif text.lstrip()[:1] in ("{", "["):
        for inside in _json(text):
            if isinstance(inside, Tensor):
                yield inside
            else:
                yield from _bytes(inside)
    else:
        yield from _bytes(text)


def _json(text: str) -> list[Tensor | str]:
    try:
        found = contents_of(json.loads(text))
        return [
            each for item in found for each in ([item.value] if isinstance(item.value, Tensor) else item.texts)
        ]
    except (ValueError, RecursionError, UnfitError):
        return []  # it only looked like JSON


def _bytes(text: str) -> Iterator[Tensor]:
    """Also of a data URL, and of the alphabet for file names."""
    compact = "".join(text.rpartition("base64,")[2].split())
    if not BASE64.fullmatch(compact):
        return
    try:
        data = base64.b64decode(compact.rstrip("=") + "=" * (-len(compact.rstrip("=")) % 4), altchars=None)
    except (binascii.Error, ValueError):
        return
    if data:
        yield torch.frombuffer(bytearray(data), dtype=torch.uint8)
