"""PyTorch's generator on a GPU: Philox 4x32-10 (Salmon et al. 2011), which has 64 bits of seed and is not linear.

Each thread of a GPU has its own stream, so a tensor's numbers depend on how many threads fill it: 256 in each
block, and at most as many blocks as run at once on that model of GPU. Only likely seeds can be tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unfit.attacker.initial.recipes import TORCH, Origin, Reals, Recipe, bound_of
from unfit.attacker.initial.search import LONG_BAR, SHORT_BAR, Trace
from unfit.base.nets import Architecture
from unfit.base.target import Weights, tensor_shapes

ROUNDS = 10
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))  # of the key, from round to round
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
THREADS = 256  # of a block
AT_A_CALL = 4  # numbers that a thread draws at once, one for each of four elements
BLOCKS = sorted({side * num for side in (4, 6, 8) for num in range(4, 193)})  # blocks a processor × processors
TRIED_AT_ONCE = 1 << 12  # seeds

Counter = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]


def philox(counter: Counter, seed: NDArray[np.uint64]) -> Counter:
    """Four words of 32 bits for each counter of four, with a key of 64 bits."""
    a, b, c, d = counter
    low, high = seed & LOW, seed >> HALF
    for _ in range(ROUNDS):
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b, c, d = (second >> HALF) ^ b ^ low, second & LOW, (first >> HALF) ^ d ^ high, first & LOW
        low, high = (low + STEPS[0]) & LOW, (high + STEPS[1]) & LOW
    return a, b, c, d


def num_threads(num: int, blocks: int) -> int:
    """That fill a tensor of `num` numbers, where at most `blocks` blocks run at once."""
    return THREADS * min(blocks, math.ceil(num / THREADS))


def gpu_numbers(seed: int, places: NDArray[np.uint64], threads: int, calls: int = 0) -> Reals:
    """Numbers in [0, 1) at these places of a tensor, each thread having made so many calls before it."""
    turn, thread = np.divmod(places, np.uint64(threads))
    call, which = np.divmod(turn, np.uint64(AT_A_CALL))
    zero = np.zeros_like(places)
    words = philox((call + np.uint64(calls), zero, thread, zero), np.array(seed, np.uint64))
    return _as_numbers(np.choose(which.astype(np.intp), words))


def likely_on_gpu(trace: Trace, seeds: range) -> Iterator[int]:
    """Seeds whose first numbers on a GPU are like the trace; as in `survivors`."""
    short, long = trace.early_tests
    for begin in range(seeds.start, seeds.stop, TRIED_AT_ONCE):
        part = np.arange(begin, min(begin + TRIED_AT_ONCE, seeds.stop), dtype=np.uint64)
        left = part[_scores(short, part) >= SHORT_BAR]
        yield from left[_scores(long, left) >= LONG_BAR].tolist()


def _scores(weight: NDArray[np.float32], seeds: NDArray[np.uint64]) -> Reals:
    thread = np.arange(len(weight), dtype=np.uint64)[None]
    zero = np.zeros_like(thread)
    words = philox((zero, zero, thread, zero), seeds[:, None])
    return (_as_numbers(words[0]) * 2.0**24) @ weight.astype(np.float64)


def _as_numbers(words: NDArray[np.uint64]) -> Reals:
    """In [0, 1): PyTorch puts the lower bound in place of the upper one."""
    return (words.astype(np.float64) * 2.0**-32 + 2.0**-33) % 1


def blocks_of(values: Tensor, seed: int) -> int:
    """How many blocks filled this tensor: where the threads begin anew, second numbers of the first ones stand."""
    most = math.ceil(len(values) / THREADS)

    def fit(blocks: int) -> float:
        begin = max(min(blocks * THREADS, len(values) - THREADS), 0)
        places = np.arange(begin, min(begin + THREADS, len(values)), dtype=np.uint64)
        drawn = gpu_numbers(seed, places, THREADS * blocks)
        return float(np.corrcoef(values[begin : begin + THREADS].double().numpy(), drawn)[0, 1])

    return max([blocks for blocks in BLOCKS if blocks < most] + [most], key=fit)


def gpu_recipe(architecture: Architecture, blocks: int) -> Recipe:
    """PyTorch's default initial weights, drawn on a GPU that runs so many blocks at once."""
    shapes = tensor_shapes(architecture)

    def draw(origin: Origin, _: int) -> Weights:
        assert isinstance(origin, int)
        drawn, calls = {}, 0
        for name, shape in shapes.items():
            num, bound = math.prod(shape), bound_of(TORCH, shapes, name)
            threads = num_threads(num, blocks)
            numbers = gpu_numbers(origin, np.arange(num, dtype=np.uint64), threads, calls)
            drawn[name] = torch.from_numpy(numbers * (2 * bound) - bound).float().view(shape)
            calls += math.ceil(num / (AT_A_CALL * threads))
        return drawn

    return Recipe("PyTorch's default initial weights", replace(TORCH, name="PyTorch on a GPU (Philox)"), draw, ())
