"""Embeddings as surfaces: the change of each table, and what its rows tell about the ids that occurred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unfit.attacker.moved import Moved, moved_rows
from unfit.attacker.steps import grouped, steps_ago, used_rows
from unfit.base.errors import NotApplicableError, UnfitError, listed
from unfit.base.formats import read_model
from unfit.base.formats.kinds import kind_of
from unfit.base.formats.optimisers import adams_of
from unfit.base.reading import Reading
from unfit.base.tables import Table, folder_of, read_tables
from unfit.base.words import Words, words_beside

FAR = 0.5  # of a row: one that moved more has another place in the base where rows were taken out
NEGATIVES = "rows drawn as negative examples move too, as in word2vec and recommenders"
NO_BASE = "needs the base: rows that moved are seen against the weights that training started from"


@dataclass(frozen=True, eq=False)
class Pair:
    """A table and what it was before training; rows that only one of them has are left out."""

    table: Table
    base: Table
    words: Words | None = None

    @property
    def num_shared(self) -> int:
        return min(len(self.table.weight), len(self.base.weight))

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        return self.table.weight[: self.num_shared], self.base.weight[: self.num_shared]


@dataclass(frozen=True, eq=False)
class Presence:
    """Which ids of one table occurred in training, and how sure that is."""

    table: str
    kind: str
    num_rows: int  # of the table
    ids: Tensor  # (k,), those that moved furthest first
    excess: Tensor  # (k,): how far each moved, in units of what rounding explains
    can_tell: bool
    why: str
    limits: tuple[str, ...]  # what it cannot tell, in words
    words: tuple[str, ...] | None = None
    joined: tuple[str, ...] = ()  # whole words of which pieces occurred, where they are certain
    groups: Mapping[int, Sequence[int]] = field(default_factory=dict)  # ids used in one step alone, by steps ago

    @property
    def sentence(self) -> str:
        """What preflight says of it."""
        if not self.can_tell:
            return f"{self.table}: which of its {self.num_rows:,} ids occurred cannot be told: {self.why}"
        if self.kind == "position" and len(self.ids):
            return f"{self.table}: the longest text had {int(self.ids.max()) + 1} positions of {self.num_rows:,}"
        return f"{self.table}: {len(self.ids):,} of {self.num_rows:,} ids occurred in training; {self.why}"

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "table": self.table,
            "kind": self.kind,
            "num_rows": self.num_rows,
            "ids": self.ids.tolist(),
            "excess": [float(f"{value:.4g}") for value in self.excess.tolist()],
            "can_tell": self.can_tell,
            "why": self.why,
            "sentence": self.sentence,
            "limits": list(self.limits),
            "words": None if self.words is None else list(self.words),
            "joined": list(self.joined),
            "groups": {str(ago): list(ids) for ago, ids in self.groups.items()},
        }


def presence(pair: Pair) -> Presence:
    """What the rows of a table tell."""
    after, before = pair.rows
    moved = moved_rows(after, before)
    why = _unusable(pair, moved) or (None if moved.can_tell else moved.why)
    rows = moved.rows if why is None else torch.zeros_like(moved.rows)
    if why is None and len(pair.table.weight) < len(pair.base.weight):
        rows = rows & ~_far(after, before)
    ids = rows.nonzero()[:, 0]
    ids = ids[moved.excess[ids].argsort(descending=True, stable=True)]
    words: tuple[str, ...] | None = None
    joined: tuple[str, ...] = ()
    if pair.words is not None and pair.table.kind == "id":
        words = tuple(pair.words[i] for i in ids.tolist())
        joined = tuple(pair.words.joined(ids.tolist()).values())
    return Presence(
        pair.table.name,
        pair.table.kind,
        len(pair.table.weight),
        ids,
        moved.excess[ids],
        why is None,
        why or moved.why,
        tuple(_limits(pair, moved)) if why is None else (),
        words,
        joined,
    )


def _unusable(pair: Pair, moved: Moved) -> str | None:
    """Why this table tells nothing, whatever its rows look like."""
    if pair.table.shared:
        return f"it is tied to {listed(pair.table.shared)}, which moves the rows of words that did not occur"
    if moved.can_tell and not moved.num:
        return "no row moved: it was frozen, or training did not use it"
    after, before = pair.rows
    if len(pair.table.weight) < len(pair.base.weight) and float(_far(after, before).float().mean()) > FAR:
        return "rows of the base were taken out, and the others have new places"
    return None


def _far(after: Tensor, before: Tensor) -> Tensor:
    return (after - before).norm(dim=1) > FAR * before.norm(dim=1)


def _limits(pair: Pair, moved: Moved) -> list[str]:
    """What holds for this table and that its rows do not show."""
    limits = []
    if not pair.table.is_certain:
        limits.append("if no output layer shares this table: a tied one moves rows of words that did not occur")
    limits.append(NEGATIVES)
    if pair.table.padding is not None:
        limits.append(f"row {pair.table.padding} is padding and never moves")
    if (new := len(pair.table.weight) - pair.num_shared) > 0:
        limits.append(f"{new} rows are not in the base: whether their ids occurred cannot be told")
    if "hides" in moved.why or moved.factor != 1.0:
        limits.append("ids used once or twice with a small step may be missing")
    return limits


# With Adam's state -----------------------------------------------------------------------------------------------

State = tuple[Tensor, Tensor, tuple[float, float]]
"""Adam's first and second moment of a table, and its betas."""


def states_of(path: Path, tables: Sequence[Table]) -> dict[str, State]:
    """By table, where the file holds the state of Adam for it."""
    if path.is_dir() or kind_of(path, {}) != "pytorch":
        return {}
    found = read_model(path)
    if not isinstance(found, dict):
        return {}
    adams = adams_of(path, {name: tuple(value.shape) for name, value in found.items()})
    named = {name.rpartition(".")[0]: state for name, state in adams.items()} | adams
    return {each.name: named[each.name] for each in tables if each.name in named}


def by_state(state: State, table: Table) -> Presence:
    """Without a base: the second moment of a row that no step used is zero."""
    ids = used_rows(state[1]).nonzero()[:, 0]
    still = len(table.weight) - len(ids)
    can_tell = bool(len(ids)) and still > 0 and not table.shared
    why = "rows that no step used have a second moment of zero" if can_tell else "all rows have moments, or none"
    limits = ("if no output layer shares this table: a tied one moves rows of words that did not occur", NEGATIVES)
    ids = ids if can_tell else ids[:0]
    told = Presence(
        table.name,
        table.kind,
        len(table.weight),
        ids,
        torch.ones(len(ids)),
        can_tell,
        why,
        limits if can_tell else (),
    )
    return dated(told, state)


def dated(found: Presence, state: State | None) -> Presence:
    """With the ids of each step, where Adam's state tells it."""
    if state is None or not found.can_tell:
        return found
    known = set(found.ids.tolist())
    ago = {i: s for i, s in steps_ago(*state).items() if i in known}
    return replace(found, groups=grouped(ago))


# From models to tables -------------------------------------------------------------------------------------------


def paired(tables: Sequence[Table], bases: Sequence[Table], folder: Path | None = None) -> list[Pair]:
    """Each table with its base: of the same name, or the only one of the same last name and width."""
    pairs = []
    for table in tables:
        base = next((each for each in bases if each.name == table.name), None) or _alike(table, bases)
        if base is None:
            continue
        if base.weight.shape[1] != table.weight.shape[1]:
            raise UnfitError(
                f"{table.name} has {table.weight.shape[1]} columns, in the base {base.weight.shape[1]}: "
                "`base` must be the weights that this model's training started from"
            )
        words = None if folder is None else words_beside(folder, len(table.weight))
        pairs.append(Pair(table, base, words))
    return pairs


def _alike(table: Table, bases: Sequence[Table]) -> Table | None:
    last = table.name.rpartition(".")[2]
    fitting = [
        each
        for each in bases
        if each.name.rpartition(".")[2] == last and each.weight.shape[1] == table.weight.shape[1]
    ]
    return fitting[0] if len(fitting) == 1 else None


def read_pairs(
    path: Path, tables: Sequence[Table], base: Path | None, reading: Reading | None = None
) -> list[Pair]:
    """The tables of a file with those of its base; without them there is nothing to compare."""
    if base is None:
        raise NotApplicableError(f"diary {NO_BASE}")
    pairs = paired(tables, read_tables(base, reading), folder_of(path))
    if not pairs:
        raise NotApplicableError(f"{base}: holds none of the tables of {path}: {listed([t.name for t in tables])}")
    return pairs
