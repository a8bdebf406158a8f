"""The generator's whole state from the signs of weights, by linear algebra: no seed is tried, and none is needed.

MT19937 is linear over the two-element field: whether a number is above a half is the parity of some of the 19,937
bits that its state holds when the layer begins. The sign of a weight that training hardly moved is that of its
initial value, certainly so where the weight is large. Twenty thousand such signs are a system of equations with
one solution, and those left over prove it: a wrong sign, or another generator, contradicts them. So it does not
matter what was drawn before, nor how many bits the seed has: filling the state with true randomness is no defence.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from unfit.attacker.initial.search import Trace, address, compiled
from unfit.attacker.initial.twister import FACTOR, FIRST, HIGH, MIDDLE, ONE, SIZE, TWIST, Words, parity, tapped

WINDOW = 200_000  # numbers from which signs are taken: the more, the larger the weights, and the longer it takes
EQUATIONS = 20_100  # 163 more than there are unknown bits: chance would fulfil them once in 2¹⁶³
BITS = 32
GROUP = 8  # rows of which all 256 sums are kept in a table
UNUSED = 31  # low bits of the first word, which no output depends on
MOST_FREE = 4  # unknown bits that may stay open: all their values are tried


def solve_state(trace: Trace) -> list[Words]:
    """States that explain the signs of a trace's largest values: none, one, or a few where some bits stay open.

    Bits can stay open because large numbers begin with several equal bits: the stream of second bits, which is
    one of first bits from another state, fits them as well.
    """
    surest = surest_signs(trace)
    rows = equations(trace.stride * surest, 23 + trace.shift)
    return solutions(rows, trace.values[surest] > 0.5)


def surest_signs(trace: Trace) -> NDArray[np.int64]:
    """Where the values are furthest from a half, in rising order."""
    size = np.abs(trace.values[:WINDOW] - 0.5)
    return np.sort(np.argsort(-size, kind="stable")[:EQUATIONS])


def equations(places: NDArray[np.int64], bit: int) -> Words:
    """For each place, in rising order, the mask over the state whose parity is this bit there: (places, 624).

    As `masks`, but run forwards for all bits of each word: for many places at once that is far less work.
    """
    words = np.zeros((SIZE, BITS, SIZE), np.uint32)  # of each word and bit in it, the mask over the state
    words[np.arange(SIZE), :, np.arange(SIZE)] = ONE << np.arange(BITS, dtype=np.uint32)
    taps, found = tapped(bit), np.empty((len(places), SIZE), np.uint32)
    if (library := compiled()) is None:
        _plain_equations(words, places, taps, found)
    else:
        where, num = np.ascontiguousarray(places, np.int64), ctypes.c_int64(len(places))
        library.equations(address(words), address(where), num, address(taps), len(taps), address(found))
    return found


def _plain_equations(words: Words, places: NDArray[np.int64], taps: NDArray[np.int64], found: Words) -> None:
    twisted = np.flatnonzero((TWIST >> np.arange(BITS, dtype=np.uint32)) & ONE)
    for begin in range(0, int(places[-1]) + 1, FIRST):
        i = np.arange(begin, begin + FIRST)
        low, high = words[(i + 1) % SIZE], words[i % SIZE, BITS - 1]
        new = words[(i + MIDDLE) % SIZE]
        new[:, : BITS - 2] ^= low[:, 1 : BITS - 1]
        new[:, BITS - 2] ^= high
        new[:, twisted] ^= low[:, :1]
        words[i % SIZE] = new
        here = (places >= begin) & (places < begin + FIRST)
        found[here] = np.bitwise_xor.reduce(new[places[here] - begin][:, taps], axis=1)


def solutions(rows: Words, bits: NDArray[np.bool_]) -> list[Words]:
    """All states whose parities under the rows are these bits; none if they contradict each other."""
    system = np.concatenate([rows, bits.astype(np.uint32)[:, None]], 1)
    pivots = eliminate(system)
    if system[len(pivots) :, -1].any():
        return []
    open_bits = sorted(set(range(UNUSED, BITS * rows.shape[1])) - set(pivots))
    if len(open_bits) > MOST_FREE:
        return []
    found = [_substituted(system, pivots, np.zeros(rows.shape[1], np.uint32), system[:, -1])]
    for bit in open_bits:
        chosen = np.zeros(rows.shape[1], np.uint32)
        chosen[bit // BITS] = ONE << np.uint32(bit % BITS)
        other = _substituted(system, pivots, chosen, np.zeros(len(system), np.uint32))
        found += [state ^ other for state in found]
    return found


def eliminate(system: Words) -> list[int]:
    """Bring a system, whose last word is its right side, to echelon form in place; the column of each row's pivot.

    The method of the four Russians: a word of columns at a time, the rows below by tables of sums of eight rows.
    """
    pivots: list[int] = []
    for word in range(system.shape[1] - 1):
        rest = system[len(pivots) :, word:]  # all before is zero by now
        bits, added, num = (
            rest[:, 0].copy(),
            np.zeros(len(rest), np.uint32),
            0,
        )  # which new pivot rows each row has
        for j in range(BITS):
            hits = np.flatnonzero((bits[num:] >> np.uint32(j)) & ONE)
            if not len(hits):
                continue
            for each in (rest, bits, added):
                each[[num, num + hits[0]]] = each[[num + hits[0], num]]
            for i in range(num):
                if added[num] >> np.uint32(i) & ONE:
                    rest[num] ^= rest[i]
            below = num + hits[1:]  # the first is the pivot now, and the row in its place had no such bit
            bits[below] ^= bits[num]
            added[below] |= ONE << np.uint32(num)
            pivots.append(word * BITS + j)
            num += 1
        _add(rest, num, added)
    return pivots


def _add(rest: Words, num: int, added: Words) -> None:
    """To each row below the first `num` those of them that are marked in `added`."""
    table = np.zeros((BITS // GROUP, 1 << GROUP, rest.shape[1]), np.uint32)
    for i in range(num):
        part, bit = divmod(i, GROUP)
        table[part, 1 << bit : 2 << bit] = table[part, : 1 << bit] ^ rest[i]
    below, marks = rest[num:], np.ascontiguousarray(added[num:])
    if (library := compiled()) is not None and below.size:
        stride, width = ctypes.c_int64(rest.strides[0] // rest.itemsize), rest.shape[1]
        first = ctypes.c_void_p(below.ctypes.data)
        library.add_rows(first, stride, ctypes.c_int64(len(below)), address(table), width, address(marks))
        return
    for part in range(len(table)):
        below ^= table[part][(marks >> np.uint32(GROUP * part)) & np.uint32(0xFF)]


def _substituted(system: Words, pivots: list[int], state: Words, right: Words) -> Words:
    """Solve from the last pivot to the first; bits that are open keep their value."""
    state = state.copy()
    for i in reversed(range(len(pivots))):
        if int(parity(np.bitwise_xor.reduce(system[i, :-1] & state)[None])[0]) != int(right[i]):
            state[pivots[i] // BITS] ^= ONE << np.uint32(pivots[i] % BITS)
    return state


def seed_of(state: Words) -> int | None:
    """The seed whose first state this is; None if something was drawn before, or the state was not seeded."""
    inverse = pow(int(FACTOR), -1, 1 << BITS)
    mixed = (int(state[1]) - 1) * inverse % (1 << BITS)
    seed = mixed ^ (mixed >> 30)
    words = [seed]
    for j in range(1, SIZE):
        words.append((int(FACTOR) * (words[-1] ^ (words[-1] >> 30)) + j) % (1 << BITS))
    same = np.array_equal(np.array(words[1:], np.uint32), state[1:]) and not (seed ^ int(state[0])) & int(HIGH)
    return seed if same else None
