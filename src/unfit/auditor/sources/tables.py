"""Tables of numbers, of which one column may hold the labels."""

from __future__ import annotations

import csv
import json
import os
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TextIO

import numpy as np

from unfit.auditor.labels import Array
from unfit.auditor.sources.kind import Content, Kind, Place, check_size, content_of, parsing
from unfit.base.errors import UnfitError, listed

AS_SEEN = "encode it as the model saw it"


def read_names(path: Path) -> tuple[str, ...]:
    """The names of columns: a line for each, or a JSON list."""
    if not path.is_file():
        raise UnfitError(f"{path} {'is not a file' if path.exists() else 'does not exist'}")
    check_size(path, path.stat().st_size)
    with parsing(path):
        text = path.read_text(encoding="utf-8-sig")
        if not text.lstrip().startswith("["):
            return tuple(text.splitlines())
        names = json.loads(text)
    if not all(isinstance(name, str) for name in names):
        raise UnfitError(f"{path}: expected a JSON list of names, all of them strings")
    return tuple(names)


def _csv(place: Place) -> Content:
    """A table of numbers, with a header or without, its columns parted by commas, semicolons or tabs."""
    where, column = place.path, place.column
    check_size(where, where.stat().st_size)
    with parsing(where), where.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file, delimiter=delimiter_of(file))
        first = next(rows, [])
        header = header_of(first)
        names = header or [str(i) for i in range(len(first))]
        at = None if column is None else position_of(where, names, column)
        lines = enumerate(rows, 2) if header else enumerate(chain([first], rows), 1)
        x, y = _csv_values(where, lines, names, at)
    kept = tuple(name for i, name in enumerate(names) if i != at)
    return content_of(where, x, y, kept if header else None)


def delimiter_of(file: TextIO) -> str:
    """What parts the columns; the file is at its begin afterwards."""
    found = max(",;\t", key=file.readline().count)
    file.seek(0)
    return found


def header_of(first: list[str]) -> list[str] | None:
    """The first row, unless all of it are numbers."""
    return None if all(map(_is_number, first)) else first


def _csv_values(
    where: Path, lines: Iterable[tuple[int, list[str]]], names: Sequence[str], at: int | None
) -> tuple[Array, Array | None]:
    """x as (n, d), and y where its column is given: numbers if all of it are, else strings."""
    values, y = array("d"), []
    for number, row in lines:
        if not row:  # an empty line
            continue
        if len(row) != len(names):
            raise UnfitError(f"{where}: line {number} has {len(row)} values, expected {len(names)}")
        if at is not None:
            y.append(row.pop(at))
        try:
            values.extend(map(float, row))
        except ValueError:
            kept = [name for i, name in enumerate(names) if i != at]
            name, value = next(pair for pair in zip(kept, row, strict=True) if not _is_number(pair[1]))
            what = f"is text ({value!r} in line {number})" if value.strip() else f"is empty in line {number}"
            raise UnfitError(f"{where}: column {name!r} {what}; {AS_SEEN}") from None
        check_size(where, 8 * len(values))
    x = np.frombuffer(values).reshape(-1, len(names) - (at is not None)) if values else np.zeros((0, 1))
    if at is None:
        return x, None
    return x, np.array([float(value) for value in y]) if all(map(_is_number, y)) else np.array(y)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def position_of(where: Path, names: Sequence[str], column: str) -> int:
    if column not in names:
        raise UnfitError(f"{where}: there is no column {column!r}; it has {listed(names)}")
    return names.index(column)


def _parquet(place: Place) -> Content:
    from pyarrow.parquet import ParquetFile

    where, column = place.path, place.column
    with parsing(where), ParquetFile(where) as file:
        names = file.schema_arrow.names
        at = None if column is None else position_of(where, names, column)
        check_size(where, 8 * file.metadata.num_rows * len(names))
        columns = [each.to_numpy() for each in file.read().columns]
    y = None if at is None else columns[at]
    kept = [(name, values) for i, (name, values) in enumerate(zip(names, columns, strict=True)) if i != at]
    for name, values in kept:
        if values.dtype.kind not in "fiub":
            raise UnfitError(f"{where}: column {name!r} is not of numbers but {values.dtype}; {AS_SEEN}")
    x = np.stack([values.astype(np.float64) for _, values in kept], 1) if kept else np.zeros((0, 1))
    return content_of(where, x, y, tuple(name for name, _ in kept))


def _with_column(text: str) -> tuple[list[str], str | None]:
    path, _, column = text.rpartition(":")
    return ([path], column) if path and os.sep not in column else ([text], None)


KINDS = (
    Kind("csv", "csv:FILE[:COLUMN]", _csv, parted=_with_column),
    Kind("parquet", "parquet:FILE[:COLUMN]", _parquet, parted=_with_column, needs=("pyarrow", "parquet")),
)
