"""Does an embedding give away words of the private texts? Texts are lists of ids: words, users, categories.

Presence of an id is a property of the set. What harms a person is an id that stands for them: a name, a diagnosis,
a postcode. Such ids are rare. So the audit asks for rare ids: those in at most `max_texts` of all texts, private
and unseen. A text is *read* if it has such ids and all of them moved. Which texts have rare ids does not
depend on which set they belong to. So if the model was trained on neither set, or on both alike, as large a part
of the unseen texts is read, and Fisher's exact test says how often chance would read so many more private ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unfit.attacker.embeddings import NO_BASE, Pair, Presence, paired, presence
from unfit.auditor.calibration import p_more_often
from unfit.auditor.record import Verdict
from unfit.auditor.verdict import EXIT_CODES, SIGNIFICANT
from unfit.base.errors import NotApplicableError, UnfitError, UsageError, clean_lines
from unfit.base.files import as_json
from unfit.base.formats.numpy import read_npz
from unfit.base.reading import Reading
from unfit.base.tables import Table, folder_of, read_tables, tables_of
from unfit.base.words import Words, words_beside

Texts = Sequence[Sequence[int]] | NDArray[np.integer[Any]] | Tensor | str | Path
Set = list[frozenset[int]]  # the ids of each text
MAX_TEXTS = 3  # that a rare id occurs in: of one person, or of a few
LEAST = 10  # texts with rare ids in each set: with fewer, no number of read ones is beyond chance
HALVES = 2  # of each set: one says which ids are typical of a set, the other is told by them
SHOWN = 20  # words in a summary


@dataclass(frozen=True)
class IdAudit:
    """The verdict on one table, and what it rests on. It never passes: a table is not all of a model.

    `words`: what anyone reads off the file that occurs in the private texts alone, and in few of them.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    table: str
    num_texts: int
    num_unseen: int
    num_with_rare: int  # private texts that have rare ids …
    num_with_rare_unseen: int
    num_read: int  # … and of which all rare ids moved
    num_read_unseen: int
    p_value: float
    num_ids: int  # that moved, of all
    max_texts: int
    ids: tuple[int, ...]  # rare, in private texts alone, and moved
    words: tuple[str, ...]
    num_rare: int  # rare ids in private texts alone, moved or not
    num_rare_unseen: int  # … in unseen texts alone …
    num_moved_unseen: int  # … and moved

    @property
    def exit_code(self) -> int:
        """1 leak, 3 inconclusive."""
        return EXIT_CODES[self.verdict]

    def summary(self) -> str:
        """The verdict, why, and the words."""
        more = f" and {len(self.words) - SHOWN:,} more" if len(self.words) > SHOWN else ""
        words = f"\nwords: {', '.join(self.words[:SHOWN])}{more}" if self.verdict == "leak" else ""
        return clean_lines(f"{self.verdict}: {'; '.join(self.reasons)}{words}")

    def to_json(self) -> str:
        return as_json(asdict(self))


def audit_ids(
    model: nn.Module | str | Path,
    private: Texts,
    unseen: Texts,
    *,
    base: nn.Module | str | Path | None = None,
    reading: Reading | None = None,
    padding: int | None = None,
    words: Sequence[str] | None = None,
    max_texts: int = MAX_TEXTS,
) -> IdAudit:
    """Which rare words of the private texts do the embeddings give away?

    Args:
        model: A module, or a file of weights.
        private: The texts it was trained on, as ids: lists, an integer array (n, length), or an .npz file with
            such an array `x`.
        unseen: Texts of the same kind that it never saw: the control.
        base: The weights that training started from.
        reading: Which table (`layer`), and the model's own code, where a file does not say so.
        padding: The id that fills rows of an array.
        words: Names of ids; by default those of a tokenizer beside the file.
        max_texts: In how many texts a rare id occurs at most.

    Example:
        >>> found = unfit.audit_ids(model, private, unseen, base=base)
    """
    pair = _pair(model, base, reading or Reading(), words)
    sets = _read(private, padding), _read(unseen, padding)
    known = set(sets[0])
    sets = list(dict.fromkeys(sets[0])), [text for text in sets[1] if text not in known]  # copies count once
    size = len(pair.table.weight)
    if beyond := [i for texts in sets for text in texts for i in text if not 0 <= i < size]:
        raise UnfitError(f"{pair.table.name} has {size:,} rows, but the texts have the id {beyond[0]}")
    if max_texts < 1:
        raise UsageError("`max_texts` must be at least 1")
    return judge_ids(presence(pair), sets[0], sets[1], pair.words, max_texts)


def _pair(
    model: nn.Module | str | Path,
    base: nn.Module | str | Path | None,
    reading: Reading,
    words: Sequence[str] | None,
) -> Pair:
    if base is None:
        raise NotApplicableError(f"an audit of ids {NO_BASE}")
    tables, bases = (_tables(each, reading) for each in (model, base))
    ids = [each for each in tables if each.kind == "id"]
    if reading.layer is None and len(ids) > 1:
        names = ", ".join(each.name for each in ids)
        raise UsageError(f"several tables have ids ({names}): name one with `layer`")
    folder = None if isinstance(model, nn.Module) else folder_of(Path(model))
    pairs = paired(ids or tables, bases)
    if not pairs:
        raise NotApplicableError("no table of embeddings that the base has, too")
    named = Words(tuple(words)) if words is not None else None
    named = named or (words_beside(folder, len(pairs[0].table.weight)) if folder else None)
    return Pair(pairs[0].table, pairs[0].base, named)


def _tables(model: nn.Module | str | Path, reading: Reading) -> list[Table]:
    return tables_of(model, reading.layer) if isinstance(model, nn.Module) else read_tables(model, reading)


def _read(texts: Texts, padding: int | None) -> Set:
    if isinstance(texts, str | Path):
        arrays = read_npz(Path(texts))
        if len(arrays) != 1 and "x" not in arrays:
            raise UnfitError(f"{texts}: expected an array named x, found {', '.join(arrays)}")
        texts = arrays.get("x", next(iter(arrays.values())))
    if isinstance(texts, np.ndarray | Tensor):
        texts = torch.as_tensor(texts)
        if texts.ndim != 2 or texts.is_floating_point():
            raise UsageError(
                f"texts are whole numbers (n, length), not {texts.dtype} of shape {tuple(texts.shape)}"
            )
        texts = texts.tolist()
    return [frozenset(int(i) for i in text if i != padding) for text in texts]


# The verdict -----------------------------------------------------------------------------------------------------


def judge_ids(found: Presence, private: Set, unseen: Set, words: Words | None, max_texts: int) -> IdAudit:
    """A leak only where far more private than unseen texts are read, and the sets are alike without the model."""
    moved = set(found.ids.tolist())
    everything = [*private, *unseen]
    counts: dict[int, int] = {}
    for text in everything:
        for i in text:
            counts[i] = counts.get(i, 0) + 1
    rare = {i for i, count in counts.items() if count <= max_texts}
    having = [[text & rare for text in texts if text & rare] for texts in (private, unseen)]
    read = [sum(text <= moved for text in texts) for texts in having]
    p = p_more_often(read[0], len(having[0]), read[1], len(having[1])) if all(having) else 1.0
    alone = [
        rare & frozenset().union(*texts) - frozenset().union(*others)
        for texts, others in ((private, unseen), (unseen, private))
    ]
    ids = sorted(alone[0] & moved, key=lambda i: counts[i])
    verdict, reasons = _verdict(found, having, read, p, len(ids), difference(private, unseen))
    return IdAudit(
        verdict=verdict,
        reasons=tuple(reasons),
        table=found.table,
        num_texts=len(private),
        num_unseen=len(unseen),
        num_with_rare=len(having[0]),
        num_with_rare_unseen=len(having[1]),
        num_read=read[0],
        num_read_unseen=read[1],
        p_value=p,
        num_ids=len(moved),
        max_texts=max_texts,
        ids=tuple(ids),
        words=tuple(f"id {i}" if words is None else words[i] for i in ids),
        num_rare=len(alone[0]),
        num_rare_unseen=len(alone[1]),
        num_moved_unseen=len(alone[1] & moved),
    )


def _verdict(
    found: Presence, having: list[Set], read: list[int], p: float, num_ids: int, difference_p: float
) -> tuple[Verdict, list[str]]:
    counts = (
        f"all rare words of {read[0]} of {len(having[0])} private texts and of {read[1]} of {len(having[1])} "
        f"unseen ones occurred in training by the rows of {found.table} (p = {p:.1g})"
    )
    if not found.can_tell:
        return "inconclusive", [f"{found.table}: {found.why}"]
    if difference_p < SIGNIFICANT:
        words = "private and unseen texts can be told apart without the model, so unseen ones are no control"
        return "inconclusive", [f"{words} (p = {difference_p:.1g})", counts]
    if min(map(len, having)) < LEAST:
        return "inconclusive", [f"fewer than {LEAST} texts of a set have rare words", counts]
    if p < SIGNIFICANT and num_ids:
        names = (
            f"{num_ids:,} words that occur in private texts alone, and in few of them, can be read off this file"
        )
        return "leak", [names, counts, *found.limits]
    return "inconclusive", [counts, "a table is not all of a model: what else it holds was not looked at"]


def difference(private: Set, unseen: Set) -> float:
    """How often chance alone would tell texts of the two sets apart so well, by words that one set has more often.

    Half of each set says how typical each word is of it (naive Bayes); the other half is told by that, and the
    other way round. Which of these are told right is compared with chance, half by half.
    """
    if min(len(private), len(unseen)) < HALVES:
        return 1.0
    p = 1.0
    for k in range(HALVES):
        learn = [[t for i, t in enumerate(texts) if i % HALVES != k] for texts in (private, unseen)]
        told = [[t for i, t in enumerate(texts) if i % HALVES == k] for texts in (private, unseen)]
        odds = _log_odds(*learn)
        scores = [[float(np.mean([odds.get(i, 0.0) for i in t])) if t else 0.0 for t in texts] for texts in told]
        middle = float(np.median([*scores[0], *scores[1]]))
        high = [sum(score > middle for score in each) for each in scores]
        p = min(p, p_more_often(high[0], len(scores[0]), high[1], len(scores[1])))
    return min(1.0, HALVES * p)


def _log_odds(private: Set, unseen: Set) -> dict[int, float]:
    """Of a text with this word being a private one, by how many texts of each set have it, plus a half."""
    odds: dict[int, float] = {}
    for texts, sign in ((private, 1.0), (unseen, -1.0)):
        counts: dict[int, int] = {}
        for text in texts:
            for i in text:
                counts[i] = counts.get(i, 0) + 1
        size = np.log(len(texts) + 1)
        nothing = np.log(0.5) - size
        for i, count in counts.items():
            odds[i] = odds.get(i, 0.0) + sign * (np.log(count + 0.5) - size - nothing)
    shift = np.log(len(unseen) + 1) - np.log(len(private) + 1)
    return {i: value + shift for i, value in odds.items()}
