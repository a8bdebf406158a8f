"""All seeds of MT19937 by brute force: which of them draw numbers like those a layer still shows.

A layer gives rough values of the numbers its start was drawn from. Two tests, a short one that nearly all seeds
fail and a longer one, add up these values times the numbers a seed draws. Were the seed another, that sum, scaled,
would be standard normal. What is left is confirmed elsewhere, on the whole network.

Early numbers need 397 + k steps of the seeding recurrence and no more. Later ones are reached by masks: only one
bit of each, whether it is above a half, but at any place. Both are written in C too, which the system's compiler
turns into vector code if it is there; nothing is kept on the disk. Otherwise NumPy does it, several times slower.
"""

from __future__ import annotations

import ctypes
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

from unfit.attacker.start.twister import FIRST, SIZE, Words, first_outputs, masks, parity, seeded
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


def survivors(
    trace: Trace, seeds: range, deadline: float | None = None, told: Callable[[int], None] = lambda tried: None
) -> Iterator[int]:
    """The seeds that pass both tests, in order. `told` hears how many were tried; stops after the deadline."""
    test, size = _test(trace)
    blocks = [range(a, min(a + size, seeds.stop)) for a in range(seeds.start, seeds.stop, size)]
    for block, found in zip(blocks, spread(test, blocks), strict=True):
        yield from found
        told(block.stop - seeds.start)
        if deadline is not None and time.perf_counter() > deadline:
            return


def seeds_per_second(trace: Trace) -> float:
    """Of this machine; the best of three short looks, the first of which may compile."""
    test, size = _test(trace)
    block, best = range(min(size, CHECKED_ALL)), 0.0
    for _ in range(3):
        began = time.perf_counter()
        test(block)
        best = max(best, len(block) / (time.perf_counter() - began))
    return best * num_workers()


def _test(trace: Trace) -> tuple[Callable[[range], list[int]], int]:
    """What finds the seeds of a block that pass, and how large a block is."""
    library = compiled()
    if library is not None:
        call = _compiled_early if trace.is_early else _compiled_masks
        return lambda block: call(library, trace, block), COMPILED_BLOCK if trace.is_early else COMPILED_BLOCK // 8
    plain = _plain_early if trace.is_early else _plain_masks
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
    found = np.empty(ROOM, np.uint32)
    num = library.seeds_at_first(
        ctypes.c_uint64(block.start),
        ctypes.c_uint64(len(block)),
        trace.stride,
        trace.shift,
        _address(short),
        len(short),
        ctypes.c_float(SHORT_BAR),
        _address(long),
        len(long),
        ctypes.c_float(LONG_BAR),
        _address(found),
        ctypes.c_int64(ROOM),
    )
    return found[:num].tolist()


def _compiled_masks(library: ctypes.CDLL, trace: Trace, block: range) -> list[int]:
    mask, weight, limit = trace.signs
    found = np.empty(ROOM, np.uint32)
    num = library.seeds_by_masks(
        ctypes.c_uint64(block.start),
        ctypes.c_uint64(len(block)),
        _address(mask),
        _address(weight),
        _address(limit),
        FIRST_SIGNS,
        len(weight),
        _address(found),
        ctypes.c_int64(ROOM),
    )
    return found[:num].tolist()


def _address(array: NDArray[np.generic]) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return array.ctypes.data_as(ctypes.c_void_p)


# In NumPy -----------------------------------------------------------------------------------------------------


def _plain_early(trace: Trace, block: range) -> list[int]:
    short, long = trace.early_tests
    seeds = _as_words(block)
    left = seeds[_early_scores(trace, short, seeds) >= SHORT_BAR]
    return left[_early_scores(trace, long, left) >= LONG_BAR].tolist()


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
