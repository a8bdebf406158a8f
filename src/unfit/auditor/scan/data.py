"""What a file is compared with: rows of numbers, cells and words, of private samples and of unseen ones."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unfit.auditor.arrays import Arrays, opened
from unfit.auditor.samples import Samples
from unfit.auditor.sources import KINDS, read_source
from unfit.auditor.sources.kind import check_size, parsing
from unfit.base.errors import UnfitError

WORD = re.compile(r"\w+")
LONGEST_GRAM = 3  # words behind each other that vectorisers put together
LEAST_WORD = 2  # characters
Table = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two sets. `x` has a row for each sample; of texts alone it has no columns."""

    x: Table
    texts: tuple[str, ...] = ()  # cells and documents
    samples: tuple[int, ...] = ()  # which sample each of them is of
    shape: tuple[int, ...] = ()  # of one sample, where that is an image

    @property
    def num(self) -> int:
        return len(self.x)

    @cached_property
    def digest(self) -> str:
        """Equal for equal data alone."""
        digest = hashlib.sha256(np.ascontiguousarray(self.x).tobytes())
        digest.update("\0".join(self.texts).encode("utf-8", "replace"))
        return digest.hexdigest()

    @cached_property
    def cells(self) -> frozenset[str]:
        return frozenset(text for text in self.texts if text)

    @cached_property
    def words(self) -> frozenset[str]:
        """Words, as written and in small letters, and up to three behind each other."""
        return frozenset(word for text in self.cells for word in words_of(text))

    @cached_property
    def values(self) -> Table:
        """Every number that is in it, once."""
        return np.unique(self.x)


def words_of(text: str) -> set[str]:
    """As vectorisers make them."""
    found: set[str] = set()
    for words in {text, text.lower()}:
        parts = [word for word in WORD.findall(words) if len(word) >= LEAST_WORD]
        for length in range(1, LONGEST_GRAM + 1):
            found.update(" ".join(parts[i : i + length]) for i in range(len(parts) - length + 1))
    return found


def read_side(name: str) -> Side:
    """A source as `--data` names it. Tables may have columns of text, and a file of texts one of them a line."""
    kind, _, behind = name.partition(":")
    if kind == "text" and behind:
        return _of_texts(_lines(Path(behind)))
    if kind == "csv" and behind:
        paths, column = KINDS["csv"].parted(behind)
        return _of_csv(Path(paths[0]), column)
    samples = read_source(name).train.chosen()
    return _of_samples(samples)


def side_of(given: Arrays) -> Side:
    """The same of what is given in Python: arrays, tables, lists of texts, or (x, y)."""
    if isinstance(given, Side):
        return given
    if isinstance(given, Samples):
        return _of_samples(given)
    if isinstance(given, tuple) and len(given) == 2:
        given = given[0]
    if isinstance(given, list | tuple) and given and all(isinstance(each, str) for each in given):
        return _of_texts(given)
    if hasattr(given, "to_numpy") and hasattr(given, "columns"):
        return _of_columns([given[name].to_numpy() for name in given.columns])
    if hasattr(given, "toarray"):
        given = given.toarray()
    if isinstance(given, np.ndarray) and given.dtype.kind in "OUS":
        columns: list[npt.NDArray[Any]] = [*given.reshape(len(given), -1).T] if given.size else []
        return _of_texts(list(map(str, given))) if given.ndim == 1 else _of_columns(columns)
    found = opened(given)
    if isinstance(found, Samples):
        return _of_samples(found)
    try:
        x = np.asarray(found.x, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UnfitError(
            f"the samples cannot be compared: expected numbers, texts or a table ({error})"
        ) from error
    return Side(x.reshape(len(x), -1), shape=tuple(x.shape[1:]) if x.ndim > 2 else ())


def _of_samples(samples: Samples) -> Side:
    x = samples.x.flatten(1).double().numpy(force=True)
    return Side(x, shape=samples.shape if samples.is_image else ())


def _of_texts(texts: Sequence[str]) -> Side:
    return Side(np.zeros((len(texts), 0)), tuple(texts), tuple(range(len(texts))))


def _of_columns(columns: Sequence[npt.NDArray[Any]]) -> Side:
    """Columns of numbers make rows; all others are cells."""
    numbers, texts = [], list[tuple[str, int]]()
    for column in columns:
        found = _numeric(column.tolist())
        if found is None:
            held = enumerate(column.tolist())
            texts += [(str(each), i) for i, each in held if each is not None and each == each]
        else:
            numbers.append(found)
    num = len(columns[0]) if len(columns) else 0
    x = np.stack(numbers, 1) if numbers else np.zeros((num, 0))
    return Side(x, tuple(text for text, _ in texts), tuple(i for _, i in texts))


def _numeric(column: Iterable[Any]) -> Table | None:
    """None of a column with anything but numbers and gaps in it."""
    try:
        found = np.array([np.nan if each in ("", None) else float(each) for each in column])
    except (TypeError, ValueError):
        return None
    return found


def _of_csv(path: Path, column: str | None) -> Side:
    """Columns of texts are kept as such, unlike where a model is attacked."""
    if not path.is_file():
        raise UnfitError(f"{path} {'is not a file' if path.exists() else 'does not exist'}")
    check_size(path, path.stat().st_size)
    with parsing(path), path.open(newline="", encoding="utf-8-sig") as file:
        delimiter = max(",;\t", key=file.readline().count)
        file.seek(0)
        lines = [row for row in csv.reader(file, delimiter=delimiter) if row]
    if not lines:
        raise UnfitError(f"{path}: contains no samples")
    header = lines[0] if _numeric(lines[0]) is None else None
    rows = lines[1:] if header else lines
    if uneven := [i for i, row in enumerate(rows) if len(row) != len(lines[0])]:
        raise UnfitError(f"{path}: row {uneven[0] + 1} has {len(rows[uneven[0]])} values, not {len(lines[0])}")
    names = header or [str(i) for i in range(len(lines[0]))]
    if column is not None and column not in names:
        raise UnfitError(f"{path}: there is no column {column!r}")
    columns = [each for name, each in zip(names, zip(*rows, strict=True), strict=True) if name != column]
    return _of_columns([np.array(each, dtype=object) for each in columns])


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise UnfitError(f"{path} is not a file")
    check_size(path, path.stat().st_size)
    with parsing(path):
        return [line for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
