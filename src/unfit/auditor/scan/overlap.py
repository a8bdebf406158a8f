"""Words and values of samples that stand in a file: more of the private ones than chance would put there?

Any text shares words with any other, and two samples that are alike share many at once. So samples are counted,
not words: those that have a rare word, one of few samples, which stands in the file. Neither the file nor how rare
a word is depends on which samples are private. In a file that saw neither set, private samples are as frequent
among these as unseen ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unfit.auditor.calibration import p_more_often
from unfit.auditor.published import SIGNIFICANT
from unfit.auditor.scan.data import Side, words_of
from unfit.auditor.scan.known import Holds
from unfit.base.contents import Item

FEW = 3  # private words: fewer are chance
RARE = (1, 3)  # samples, private or unseen, that have a word
FOREIGN = 0.1  # of the words in the file that no sample has: the file was made from others
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Overlap:
    """What of the words or values in a file only private samples have, and what only unseen ones."""

    holds: Holds
    num: int
    of: int
    num_unseen: int | None  # None: there are none to compare with
    num_foreign: int  # in the file, but in no sample
    num_held: int  # in the file
    p_value: float
    example: str

    @property
    def is_beyond_chance(self) -> bool:
        return self.num >= FEW and self.num_unseen is not None and self.p_value < SIGNIFICANT

    @property
    def unsure(self) -> str | None:
        """Why it is not cleared, if it is not."""
        if self.num and self.num_unseen is None:
            return (
                f"holds {self.num:,} of {self.of:,} {self.holds} of the private samples; without unseen samples "
                "it is not known which of them are common: give `unseen`"
            )
        if self.num:
            return (
                f"holds {self.num:,} of {self.of:,} {self.holds} that only private samples have, and "
                f"{self.num_unseen:,} that only unseen ones have: too few to rule out chance"
            )
        if self.num_foreign > FOREIGN * self.num_held:
            return (
                f"holds {self.num_foreign:,} {self.holds} that no given sample has: it was fitted on others, or "
                "on a form of them that is not known"
            )
        return None


def overlap_of(items: Sequence[Item], own: Side, other: Side | None, is_told: bool) -> Overlap | None:
    """Of the texts of these items; if the class is known to keep values (`is_told`), of numbers too."""
    texts = {text for item in items for text in item.texts}
    if texts and own.texts:
        found = [_of_texts(texts, own, other, kind) for kind in ("cells", "words")]
        return min(found, key=lambda each: (not each.is_beyond_chance, each.num_foreign))
    arrays = [item.value for item in items if isinstance(item.value, Tensor)]
    if is_told and not texts and arrays and own.x.shape[1]:
        held = np.unique(np.concatenate([each.double().flatten().numpy(force=True) for each in arrays]))
        return _of_values(held, own, other)
    return None


def _of_texts(held: set[str], own: Side, other: Side | None, kind: str) -> Overlap:
    """Of whole cells, or of the words in them."""
    mine, theirs = getattr(own, kind), getattr(other, kind) if other else frozenset()
    private, unseen = held & mine - theirs, held & theirs - mine
    p_value = 1.0
    if other is not None and len(private) >= FEW:
        numbers = {text: i for i, text in enumerate(held)}
        pairs = [*_pairs(own, numbers, kind, 0), *_pairs(other, numbers, kind, own.num)]
        p_value = p_by_samples(np.array(pairs, dtype=np.int64).reshape(-1, 2), own.num, other.num)
    return Overlap(
        holds="values" if kind == "cells" else "words",
        num=len(private),
        of=len(mine - theirs),
        num_unseen=None if other is None else len(unseen),
        num_foreign=len(held - mine - theirs),
        num_held=len(held),
        p_value=p_value,
        example=min(private, default=""),
    )


def _pairs(side: Side, numbers: dict[str, int], kind: str, first: int) -> Iterable[tuple[int, int]]:
    """Each sample with each of the texts in the file that it has."""
    for text, sample in zip(side.texts, side.samples, strict=True):
        for part in (text,) if kind == "cells" else words_of(text):
            if part in numbers:
                yield sample + first, numbers[part]


def _of_values(held: npt.NDArray[np.float64], own: Side, other: Side | None) -> Overlap:
    theirs = other.values if other else np.zeros(0)
    mine, others = np.setdiff1d(own.values, theirs), np.setdiff1d(theirs, own.values)
    private = np.intersect1d(mine, held)
    p_value = 1.0
    if other is not None and len(private) >= FEW:
        pairs = np.concatenate([_numbers(own, held, 0), _numbers(other, held, own.num)])
        p_value = p_by_samples(pairs, own.num, other.num)
    return Overlap(
        holds="values",
        num=len(private),
        of=len(mine),
        num_unseen=None if other is None else len(np.intersect1d(others, held)),
        num_foreign=len(np.setdiff1d(np.setdiff1d(held, own.values), theirs)),
        num_held=len(held),
        p_value=p_value,
        example=f"{private[0]:g}" if len(private) else "",
    )


def _numbers(side: Side, held: npt.NDArray[np.float64], first: int) -> Ints:
    """The same as `_pairs`, of numbers; `held` is sorted."""
    samples, columns = np.nonzero(np.isin(side.x, held))
    return np.stack([samples + first, np.searchsorted(held, side.x[samples, columns])], 1)


def p_by_samples(pairs: Ints, num: int, num_unseen: int) -> float:
    """The probability that chance gives this many private samples with a rare word that stands in the file.

    Args:
        pairs: The number of a sample, private ones first, and of a word in the file that it has.
        num: Private samples.
        num_unseen: Unseen ones.
    """
    pairs = np.unique(pairs, axis=0)
    samples, words = pairs.T
    counts = np.bincount(words, minlength=1)
    p_values = []
    for most in RARE:
        having = np.unique(samples[counts[words] <= most])
        private = int((having < num).sum())
        p_values.append(p_more_often(private, num, len(having) - private, num_unseen))
    return min(1.0, len(RARE) * min(p_values))
