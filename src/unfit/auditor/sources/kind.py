"""What a kind of data source is, and what all that read one need."""

from __future__ import annotations

import csv
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from unfit.auditor.labels import Array, Ints, finite, read_labels
from unfit.auditor.samples import Subset
from unfit.base.errors import UnfitError, UsageError
from unfit.base.shapes import CHANNELS, arranged

LIMIT = "UNFIT_MAX_GIB"  # the environment raises the limit by it
Size = tuple[int, int]  # height, width
Split = tuple[tuple[str, str], Ints]  # the papers' two groups, and the group (or -1) of each class


class Content(NamedTuple):
    """What a source holds."""

    train: Subset
    test: Subset | None = None
    split: Split | None = None


@dataclass(frozen=True)
class Place:
    """Where a source is on disk, and how it is to be read."""

    paths: tuple[Path, ...]
    column: str | None = None  # of the labels, in a table
    resize: Size | None = None  # of images

    @property
    def path(self) -> Path:
        return self.paths[0]


def one_path(text: str) -> tuple[list[str], str | None]:
    return [text], None


@dataclass(frozen=True)
class Kind:
    """A kind of data source: its name, how it is written, and how it is read."""

    name: str
    form: str  # as a user writes it: csv:FILE[:COLUMN]
    read: Callable[[Place], Content]
    where: Literal["package", "file", "folder"] = "file"
    parted: Callable[[str], tuple[list[str], str | None]] = one_path  # paths, and a column
    resizes: bool = False
    needs: tuple[str, str] | None = None  # a package, and the extra of `unfit` that installs it


# What is on disk is not trusted ---------------------------------------------------------------------------------

# what gzip, zipfile, numpy and Pillow raise for damaged, hostile or foreign files
_DAMAGED = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, SyntaxError, RuntimeError),
    *(MemoryError, OverflowError, struct.error, zlib.error, zipfile.BadZipFile, NotImplementedError),
    *(Image.DecompressionBombError, Image.DecompressionBombWarning, csv.Error, tokenize.TokenError),
)


def _limit() -> int:
    """The bytes of a source, by default 2 GiB: ten times CIFAR-10. What a header claims is checked against it."""
    try:
        return int(float(os.environ.get(LIMIT, "2")) * 2**30)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{LIMIT} is the most GiB of a source, a number such as 8") from error


MAX_SOURCE = _limit()


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise UnfitError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error


def check_size(path: Path, num_bytes: int) -> None:
    if num_bytes > MAX_SOURCE:
        limit = f"the limit is {MAX_SOURCE / 2**30:g} GiB, unless {LIMIT} says otherwise"
        raise UnfitError(f"{path}: {num_bytes / 2**30:.1f} GiB of data; {limit}")


def check_labels(path: Path, raw: Array, labels: Array, *num_classes: int) -> None:
    """Of a well-known data set, whose classes are numbered."""
    if len(raw) != len(labels):
        raise UnfitError(f"{path}: {len(raw)} samples but {len(labels)} labels")
    if not raw.size:
        raise UnfitError(f"{path}: contains no samples")
    if (wrong := labels[(labels < 0) | (labels >= np.array(num_classes))]).size:
        valid = " and ".join(f"0 to {k - 1}" for k in num_classes)
        raise UnfitError(f"{path}: found label {wrong[0]}, expected {valid}")


def content_of(where: Path, x: Array, y: Array | None, names: tuple[str, ...] | None = None) -> Content:
    """Arrays of a user's own: any numbers as x, and any labels or none."""
    if x.dtype.kind not in "fiub":
        raise UnfitError(f"{where}: x has type {x.dtype}, expected numbers")
    if y is not None and (not y.ndim or not x.ndim or len(x) != len(y)):
        raise UnfitError(f"{where}: {len(x) if x.ndim else 0} samples but {len(y) if y.ndim else 0} labels")
    if not x.size:
        raise UnfitError(f"{where}: contains no samples")
    try:
        labels = read_labels(y, len(x))
        x = _shaped(x if x.dtype == np.uint8 else finite("x", x, np.float32))
    except UnfitError as error:
        raise UnfitError(f"{where}: {error}") from error
    return Content(Subset(x, labels, names))


def _shaped(x: Array) -> Array:
    found = arranged(x)
    if found.ndim == 2 or (found.ndim == 4 and found.shape[1] in CHANNELS):
        return found
    valid = "(n, d), (n, h, w), (n, c, h, w) or (n, h, w, c) with c = 1 or 3"
    raise UnfitError(f"x has shape {x.shape}, expected {valid}")
