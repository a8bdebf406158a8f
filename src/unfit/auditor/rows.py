"""A table split as it is, before anything is encoded: text, empty cells and quotes stay what they are."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from unfit.auditor.labels import Array, read_labels
from unfit.auditor.sources.kind import Place, check_size, parsing
from unfit.auditor.sources.tables import delimiter_of, header_of, position_of
from unfit.base.errors import UnfitError, listed

MOST_CLASSES = 0.5  # of the rows: a column with more different values is no class


class Table(Protocol):
    """The rows of a table, and how to write some of them."""

    @property
    def suffix(self) -> str: ...
    def __len__(self) -> int: ...
    def column(self, name: str) -> Array: ...
    def write(self, at: Sequence[int], path: Path) -> None: ...


@dataclass(frozen=True, eq=False)
class Lines:
    """A CSV: each row with the text that it was read from."""

    path: Path
    header: str
    names: Sequence[str]
    rows: list[list[str]]
    texts: list[str]
    suffix: str = "csv"

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> Array:
        at = position_of(self.path, self.names, name)
        return np.array([row[at] for row in self.rows])

    def write(self, at: Sequence[int], path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            file.write(self.header)
            file.writelines(self.texts[i] for i in at)


@dataclass(frozen=True, eq=False)
class Columns:
    """A parquet file."""

    path: Path
    table: Any  # of pyarrow
    suffix: str = "parquet"

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> Array:
        at = position_of(self.path, self.table.column_names, name)
        return np.array([str(value) if value is not None else "" for value in self.table.column(at).to_pylist()])

    def write(self, at: Sequence[int], path: Path) -> None:
        from pyarrow.parquet import write_table

        write_table(self.table.take(list(at)), path)


def read_table(kind: str, place: Place) -> Table:
    """The rows of a csv or parquet source."""
    found = _lines(place.path) if kind == "csv" else _columns(place.path)
    if not len(found):
        raise UnfitError(f"{place.path}: contains no samples")
    return found


def _lines(path: Path) -> Lines:
    check_size(path, path.stat().st_size)
    with parsing(path), path.open(newline="", encoding="utf-8-sig") as file:
        delimiter = delimiter_of(file)
        read = list[str]()
        parsed = csv.reader(_kept(file, read), delimiter=delimiter)
        rows, texts = list[list[str]](), list[str]()
        for row in parsed:
            text = "".join(read)
            read.clear()
            if row:
                rows.append(row)
                texts.append(text if text.endswith("\n") else text + "\n")
    header = header_of(rows[0]) if rows else None
    names = header or [str(i) for i in range(len(rows[0]) if rows else 0)]
    if wrong := [i for i, row in enumerate(rows, 1) if len(row) != len(names)]:
        raise UnfitError(f"{path}: row {wrong[0]} has {len(rows[wrong[0] - 1])} values, expected {len(names)}")
    first = 1 if header else 0
    return Lines(path, texts[0] if header else "", names, rows[first:], texts[first:])


def _kept(lines: Iterator[str], read: list[str]) -> Iterator[str]:
    """The lines as they are, each noted: a quoted value may hold several."""
    for line in lines:
        read.append(line)
        yield line


def _columns(path: Path) -> Columns:
    from pyarrow.parquet import ParquetFile

    with parsing(path), ParquetFile(path) as file:
        check_size(path, 8 * file.metadata.num_rows * len(file.schema_arrow.names))
        return Columns(path, file.read())


# Which rows are held out --------------------------------------------------------------------------------------


def classes_of(table: Table, column: str | None) -> Array:
    """The class of each row; one for all without a column, or if that holds numbers and no classes."""
    one = np.zeros(len(table), np.int64)
    if column is None:
        return one
    values = table.column(column)
    try:
        if read_labels(_numbers(values), len(values)).targets is not None:
            return one
    except UnfitError:  # labels are missing: such rows are a class of their own
        pass
    names, classes = np.unique(values, return_inverse=True)
    return one if len(names) > MOST_CLASSES * len(values) else classes.astype(np.int64)


def _numbers(values: Array) -> Array:
    try:
        return values.astype(np.float64)
    except ValueError:
        return values


def groups_of(table: Table, by: str | None) -> Array:
    """The group of each row: rows of one group go to the same part. Without a column each row is one."""
    if by is None:
        return np.arange(len(table))
    values = table.column(by)
    if empty := np.flatnonzero(np.char.strip(values) == "").tolist():
        rows = listed([i + 1 for i in empty])
        raise UnfitError(f"column {by!r} is empty in rows {rows}: every row needs a group for `by`")
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def split_groups(classes: Array, groups: Array, share: float, seed: int) -> tuple[Array, Array]:
    """Positions to train on and unseen ones, whole groups at a time, with about this share of every class unseen.

    A group counts as one of the class that most of its rows have.
    """
    num = int(groups.max()) + 1
    counts = np.zeros((num, int(classes.max()) + 1), np.int64)
    np.add.at(counts, (groups, classes), 1)
    main, sizes, rng = counts.argmax(1), counts.sum(1), np.random.default_rng(seed)
    is_unseen = np.zeros(num, bool)
    for label in range(counts.shape[1]):
        pool = rng.permutation(np.flatnonzero(main == label))
        if len(pool) == 1:
            raise UnfitError("a class is in one group alone: every class needs two, one for each part")
        before = np.cumsum(sizes[pool]) - sizes[pool] / 2
        chosen = before < share * sizes[pool].sum()
        if len(pool):
            chosen[0], chosen[-1] = True, False
        is_unseen[pool[chosen]] = True
    unseen = is_unseen[groups]
    return rng.permutation(np.flatnonzero(~unseen)), rng.permutation(np.flatnonzero(unseen))
