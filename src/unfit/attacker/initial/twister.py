"""MT19937, the generator of PyTorch on the CPU and of NumPy's RandomState: many seeds at once, and by masks.

A seed fills 624 words by a recurrence that is not linear. From there on all is linear over the two-element field:
each bit of each output is the parity of the seeded words under a mask, wherever in the stream the output stands.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

SIZE, MIDDLE = 624, 397
SEEDS = 1 << 32
FIRST = SIZE - MIDDLE  # outputs so early come from two neighbours and one later word of the seeded state each
HIGH, LOW, TWIST = np.uint32(0x80000000), np.uint32(0x7FFFFFFF), np.uint32(0x9908B0DF)
ONE = np.uint32(1)
FACTOR = np.uint32(1812433253)
INVERSE = np.uint32(pow(1812433253, -1, 1 << 32))


def seeded(seeds: Words, num: int = SIZE) -> Words:
    """The first `num` words of the state after seeding: (num, len(seeds))."""
    words = np.empty((num, len(seeds)), np.uint32)
    words[0] = seeds
    scratch = np.empty_like(words[0])
    for j in range(1, num):
        np.right_shift(words[j - 1], 30, out=scratch)
        np.bitwise_xor(words[j - 1], scratch, out=scratch)
        np.multiply(scratch, FACTOR, out=scratch)
        np.add(scratch, np.uint32(j), out=words[j])
    return words


def following(words: Words, j: int) -> Words:
    """Word j of the seeded state, from word j − 1."""
    return FACTOR * (words ^ (words >> np.uint32(30))) + np.uint32(j)


def preceding(words: Words, j: int) -> Words:
    """Word j − 1 of the seeded state, from word j."""
    mixed = (words - np.uint32(j)) * INVERSE
    return mixed ^ (mixed >> np.uint32(30))


def first_outputs(words: Words, places: NDArray[np.int64]) -> Words:
    """The outputs at these places, all below FIRST, from the seeded words."""
    y = (words[places] & HIGH) | (words[places + 1] & LOW)
    return tempered(words[places + MIDDLE] ^ (y >> ONE) ^ ((y & ONE) * TWIST))


def tempered(v: Words) -> Words:
    v = v ^ (v >> np.uint32(11))
    v = v ^ ((v << np.uint32(7)) & np.uint32(0x9D2C5680))
    v = v ^ ((v << np.uint32(15)) & np.uint32(0xEFC60000))
    return v ^ (v >> np.uint32(18))


def masks(places: NDArray[np.int64], bit: int) -> Words:
    """For each place the mask whose parity over the seeded words is this bit of the output there: (places, 624).

    A functional of the words up to x_n, pulled back word by word: x_n = x_{n−227} ⊕ T(x_{n−624}, x_{n−623}), so
    its coefficient at x_n goes to those three. 227 words at a time do not touch each other.
    """
    where = places + SIZE
    beginnings = range(SIZE + FIRST * int((where.max() - SIZE) // FIRST), SIZE - 1, -FIRST)
    held = np.zeros((len(places), SIZE + FIRST), np.uint32)  # of words a − 624 … a + 226
    for a in beginnings:
        for i in np.flatnonzero((where >= a) & (where < a + FIRST)):
            held[i, where[i] - a + SIZE] ^= _tempered_back(bit)
        own = held[:, SIZE:].copy()
        held[:, SIZE - FIRST : SIZE] ^= own
        back = (own << ONE) | parity(own & TWIST)
        held[:, :FIRST] ^= back & HIGH
        held[:, 1 : FIRST + 1] ^= back & LOW
        if a > SIZE:
            held[:, FIRST:] = held[:, :SIZE].copy()
            held[:, :FIRST] = 0
    return np.ascontiguousarray(held[:, :SIZE])


def _tempered_back(bit: int) -> np.uint32:
    """The mask of the bits of a word that make up this bit of its output."""
    return np.uint32((ONE << tapped(bit).astype(np.uint32)).sum(dtype=np.uint64))


def tapped(bit: int) -> NDArray[np.int64]:
    """Which bits of a word make up this bit of its output."""
    units = ONE << np.arange(32, dtype=np.uint32)
    return np.flatnonzero((tempered(units) >> np.uint32(bit)) & ONE)


def parity(v: Words) -> Words:
    for shift in (16, 8, 4, 2, 1):
        v = v ^ (v >> np.uint32(shift))
    return v & ONE
