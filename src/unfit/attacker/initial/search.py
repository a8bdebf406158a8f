"""All seeds of MT19937 by brute force: which of them draw numbers like those a layer still shows.

A layer gives rough values of the numbers that were drawn for it. Two tests, a short one that nearly all seeds
fail and a longer one, add up these values times the numbers a seed draws. Were the seed another, that sum, scaled,
would be standard normal. What is left is confirmed elsewhere, on the whole network.

Early numbers need 397 + k steps of the seeding recurrence and no more. Later ones are reached by masks: only one
bit of each, whether it is above a half, but at any place.

Where training moved the numbers little and all seeds are tried, pairs are quicker. Number p is made of the words
x_p, x_{p+1} and of what number p − 227 is made of. So whether these two lie on the same side of a half depends on
x_{p+1} alone. Each step of the recurrence can be undone: in place of all seeds, all values of one middle word
are tried, and a few dozen steps from there are enough.

All are written in C too, which the system's compiler turns into vector code if it is there; nothing is kept on the
disk. Otherwise NumPy does it, several times slower.
"""

from __future__ import annotations

import ctypes
import math
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unfit.attacker.initial.twister import (
    FIRST,
    ONE,
    SEEDS,
    SIZE,
    TWIST,
    Words,
    first_outputs,
    following,
    masks,
    parity,
    preceding,
    seeded,
    tapped,
)
from unfit.base.threads import num_workers, spread

Reals = NDArray[np.float64]

SHORT = 48  # numbers in the first test: a right seed whose layer has a correlation of 0.7 with it still passes …
SHORT_BAR = 3.0  # … 98 times in 100 at so many standard deviations, which 1 in 740 others reach
LONG_BAR = 6.0  # of the longer test: one in 10⁹ others
SIGNS, FIRST_SIGNS = 128, 8  # bits in all, and those that all seeds are tried on
# standard deviations that the signs must reach after so many of them: 8 may hold one mistake, 9 in 256 seeds pass
SIGN_BARS = {8: 2.0, 16: 2.0, 24: 2.5, 48: 3.5, 64: 4.5, 96: 5.0, 128: 5.5}
SMOOTH = (
    9  # neighbours whose mean is taken off: what training adds to pixels side by side is alike, numbers are not
)
# standard deviations that pairs should reach if the seed is right, and those that they must, in the two tests
PAIR_AIMS, PAIR_BARS = (6.0, 9.0), (SHORT_BAR, 5.0)
MOST_PAIRS = 150  # in the first test: with more, a step for each costs as much as trying seeds
UNIT = 2.0**-24
ROOM = 1 << 16  # survivors of one block at most; more would be no search
COMPILED_BLOCK, PLAIN_BLOCK = 1 << 21, 1 << 15  # seeds between two looks at the clock: about 0.1 s
CHECKED_ALL = 1 << 20  # seeds that are timed for an estimate


@dataclass(frozen=True, eq=False)
class Trace:
    """Rough values of numbers in [0, 1) that stand in the stream at `place`, `place + stride`, …

    Each number is the 24 bits of an output from bit `shift` on: PyTorch takes the low ones of each output. A
    double takes two outputs, and the first holds its high bits: NumPy's top 24, or 21 in PyTorch, from bit −3 on.
    """

    values: Reals
    place: int = 0
    stride: int = 1
    shift: int = 0
    likeness: float = 0.0  # correlation of the values with the numbers; 0: unknown

    @property
    def is_early(self) -> bool:
        return self.place == 0

    @cached_property
    def rough(self) -> Reals:
        """Centred, without what neighbours have in common; scaled so that a sum over numbers has variance 1/12."""
        kernel = np.ones(min(SMOOTH, len(self.values))) / min(SMOOTH, len(self.values))
        left = self.values - np.convolve(self.values, kernel, mode="same")
        return left - left.mean()

    def weights(self, num: int) -> NDArray[np.float32]:
        """Of the first numbers, as integers of 24 bits: their sum is standard normal for any other seed."""
        rough = self.rough[:num] - self.rough[:num].mean()
        return (rough * (UNIT * 12**0.5 / max(float(np.linalg.norm(rough)), 1e-300))).astype(np.float32)

    @cached_property
    def early_tests(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        most = min(len(self.values), (FIRST - 1) // self.stride)
        return self.weights(min(SHORT, most)), self.weights(most)

    @cached_property
    def pairs(self) -> Pairs | None:
        """Numbers 227 apart; None where the values are too few, too rough or too far apart for these tests."""
        num = min(len(self.values) - FIRST, SIZE - 1 - FIRST)
        if not self.is_early or self.stride > 1 or not self.likeness or num < 1:
            return None
        values = self.values - 0.5
        added = max(values.std() * (1 - self.likeness**2) ** 0.5, UNIT)
        sure = np.vectorize(math.erf)(
            values / (added * 2**0.5)
        )  # E(sign of u | u + e), e being what training added
        weight = sure[FIRST : FIRST + num] * sure[:num]
        power = np.concatenate([[0.0], np.cumsum(weight**2)])
        ends = np.searchsorted(power, power[:-1] + PAIR_AIMS[0] ** 2)  # where the first test would end
        lengths = np.where(ends <= num, ends - np.arange(num), SIZE)
        begin = int(lengths.argmin())
        if (short := int(lengths[begin])) > MOST_PAIRS:
            return None
        end = min(num, int(np.searchsorted(power, power[begin] + PAIR_AIMS[1] ** 2)))
        return Pairs(FIRST + begin, weight[begin:end].astype(np.float32), short, _pair_mask(23 + self.shift))

    @cached_property
    def signs(self) -> tuple[Words, NDArray[np.float32], NDArray[np.float32]]:
        """Masks, weights and limits of the bits that say whether a number is above a half: the surest numbers."""
        surest = np.argsort(-np.abs(self.rough), kind="stable")[:SIGNS]
        mask = masks(self.place + self.stride * surest.astype(np.int64), 23 + self.shift)
        weight = np.sign(self.rough[surest]).astype(np.float32)
        limit = np.full(len(surest), -np.inf)
        for num, bar in SIGN_BARS.items():
            if num <= len(surest):
                limit[num - 1] = weight[:num].sum() / 2 + bar * num**0.5 / 2
        return mask, weight, limit.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Pairs:
    """What is asked of the words from `place + 1` on, one for each pair of numbers."""

    place: int  # of the word all values of which are tried
    weight: NDArray[np.float32]  # how sure both are, negative if they lie on different sides of a half
    short: int  # how many the first test takes
    mask: int  # the bits of a word whose parity says whether they do

    @property
    def gather(self) -> int:
        """A factor that brings the parity of a masked word to its top bit."""
        return sum(1 << (31 - bit) for bit in range(32) if self.mask >> bit & 1)

    @property
    def limits(self) -> tuple[float, float]:
        """That the two sums must reach; where there are few pairs, the second asks for less."""
        first, second = (float(np.linalg.norm(self.weight[:num])) for num in (self.short, None))
        return PAIR_BARS[0] * first, min(PAIR_BARS[1], second - 2.5) * second


def _pair_mask(bit: int) -> int:
    """Which bits of a word decide whether this bit of two outputs, 227 apart, is the same."""
    taps = tapped(bit)
    assert 30 not in taps  # which would take the top bit of the word before
    odd = int(np.bitwise_xor.reduce((TWIST >> taps.astype(np.uint32)) & ONE))
    return odd | sum(1 << int(tap + 1) for tap in taps if tap < 31)


def survivors(
    trace: Trace, seeds: range, deadline: float | None = None, told: Callable[[int], None] = lambda tried: None
) -> Iterator[int]:
    """The seeds that pass the tests. `told` hears how many were tried; stops after the deadline."""
    by_pairs = trace.pairs is not None and 2 * len(seeds) > SEEDS
    test, size = _test(trace, by_pairs)
    tried = range(SEEDS) if by_pairs else seeds
    blocks = [range(a, min(a + size, tried.stop)) for a in range(tried.start, tried.stop, size)]
    for block, found in zip(blocks, spread(test, blocks), strict=True):
        yield from (seed for seed in found if seed in seeds)
        told(min(block.stop - tried.start, len(seeds)))
        if deadline is not None and time.perf_counter() > deadline:
            return


def seeds_per_second(trace: Trace) -> float:
    """Of this machine, if all are tried; the best of three short looks, the first of which may compile."""
    test, size = _test(trace, trace.pairs is not None)
    block, best = range(min(size, CHECKED_ALL)), 0.0
    for _ in range(3):
        began = time.perf_counter()
        test(block)
        best = max(best, len(block) / (time.perf_counter() - began))
    return best * num_workers()


def _test(trace: Trace, by_pairs: bool = False) -> tuple[Callable[[range], list[int]], int]:
    """What finds the seeds of a block that pass, or those of its words, and how large a block is."""
    library = compiled()
    if library is not None:
        call = _compiled_pairs if by_pairs else _compiled_early if trace.is_early else _compiled_masks
        return lambda block: call(library, trace, block), COMPILED_BLOCK if trace.is_early else COMPILED_BLOCK // 8
    plain = _plain_pairs if by_pairs else _plain_early if trace.is_early else _plain_masks
    return lambda block: plain(trace, block), PLAIN_BLOCK


# In C ---------------------------------------------------------------------------------------------------------


@cache
def compiled() -> ctypes.CDLL | None:
    """The tests in C, compiled for this processor; None where there is no compiler that can."""
    compiler = _compiler()
    if not compiler:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "search.c"), Path(folder, "search.so")
        source.write_bytes(files(__package__).joinpath("search.c").read_bytes())
        for flags in (["-march=native"], []):
            command = [*compiler, "-O3", *flags, "-shared", "-fPIC", "-o", str(library), str(source)]
            try:
                done = subprocess.run(command, capture_output=True, timeout=60, check=False)
                if done.returncode == 0:
                    return ctypes.CDLL(str(library))
            except (OSError, subprocess.TimeoutExpired):
                return None
    return None


def _compiler() -> list[str]:
    """The words of CC, which may hold options too, as in `gcc -m64`; none where there is no such compiler."""
    try:
        words = shlex.split(os.environ.get("CC", "cc"))
    except ValueError:  # a quotation without an end
        return []
    return words if words and shutil.which(words[0]) else []


def _compiled_early(library: ctypes.CDLL, trace: Trace, block: range) -> list[int]:
    short, long = trace.early_tests
    return _found(
        library.seeds_at_first,
        block,
        trace.stride,
        trace.shift,
        address(short),
        len(short),
        ctypes.c_float(SHORT_BAR),
        address(long),
        len(long),
        ctypes.c_float(LONG_BAR),
    )


def _compiled_pairs(library: ctypes.CDLL, trace: Trace, block: range) -> list[int]:
    pairs, (_, long) = trace.pairs, trace.early_tests
    assert pairs is not None
    limits = pairs.limits
    return _found(
        library.seeds_by_pairs,
        block,
        pairs.place,
        ctypes.c_uint32(pairs.mask),
        ctypes.c_uint32(pairs.gather),
        address(pairs.weight),
        pairs.short,
        ctypes.c_float(limits[0]),
        len(pairs.weight),
        ctypes.c_float(limits[1]),
        trace.shift,
        address(long),
        len(long),
        ctypes.c_float(LONG_BAR),
    )


def _compiled_masks(library: ctypes.CDLL, trace: Trace, block: range) -> list[int]:
    mask, weight, limit = trace.signs
    arrays = address(mask), address(weight), address(limit)
    return _found(library.seeds_by_masks, block, *arrays, FIRST_SIGNS, len(weight))


def _found(test: Callable[..., int], block: range, *given: object) -> list[int]:
    """The seeds of a block that pass a test in C."""
    found = np.empty(ROOM, np.uint32)
    ends = ctypes.c_uint64(block.start), ctypes.c_uint64(len(block))
    return found[: test(*ends, *given, address(found), ctypes.c_int64(ROOM))].tolist()


def address(array: NDArray[np.generic]) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return array.ctypes.data_as(ctypes.c_void_p)


# In NumPy -----------------------------------------------------------------------------------------------------


def _plain_early(trace: Trace, block: range) -> list[int]:
    short, long = trace.early_tests
    seeds = _as_words(block)
    left = seeds[_early_scores(trace, short, seeds) >= SHORT_BAR]
    return left[_early_scores(trace, long, left) >= LONG_BAR].tolist()


def _plain_pairs(trace: Trace, block: range) -> list[int]:
    pairs, (_, long) = trace.pairs, trace.early_tests
    assert pairs is not None
    first = words = _as_words(block)
    total = np.zeros(len(first), np.float32)
    for num, limit in zip((pairs.short, len(pairs.weight)), pairs.limits, strict=True):
        for k in range(0 if num == pairs.short else pairs.short, num):
            words = following(words, pairs.place + k + 1)
            total += np.where(parity(words & np.uint32(pairs.mask)), -pairs.weight[k], pairs.weight[k])
        passing = total >= limit
        first, words, total = first[passing], words[passing], total[passing]
    for j in range(pairs.place, 0, -1):
        first = preceding(first, j)
    return first[_early_scores(trace, long, first) >= LONG_BAR].tolist()


def _early_scores(trace: Trace, weight: NDArray[np.float32], seeds: Words) -> Reals:
    places = trace.stride * np.arange(len(weight))
    words = seeded(seeds, int(places[-1]) + SIZE - FIRST + 1)
    outputs = first_outputs(words, places)
    numbers = outputs >> trace.shift if trace.shift >= 0 else outputs << -trace.shift
    return weight.astype(np.float64) @ (numbers & 0xFFFFFF)


def _plain_masks(trace: Trace, block: range) -> list[int]:
    mask, weight, limit = trace.signs
    seeds = _as_words(block)
    state, total = seeded(seeds), np.zeros(len(seeds))
    for i in range(len(weight)):
        bits = np.zeros(len(seeds), np.uint32)
        for j in range(SIZE):
            bits ^= state[j] & mask[i, j]
        total += weight[i] * parity(bits)
        passing = total >= limit[i]
        if not passing.all():
            seeds, state, total = seeds[passing], np.ascontiguousarray(state[:, passing]), total[passing]
    return seeds.tolist()


def _as_words(block: range) -> Words:
    return np.arange(block.start, block.stop, dtype=np.uint64).astype(np.uint32)
