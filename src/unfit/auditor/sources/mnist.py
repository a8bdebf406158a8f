"""MNIST and Fashion-MNIST as they are downloaded: IDX files, gzipped or not."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np

from unfit.auditor.labels import Array, Labels
from unfit.auditor.samples import Subset
from unfit.auditor.sources.kind import Content, Kind, Place, Split, check_labels, check_size, parsing
from unfit.base.errors import UnfitError, listed

DIGITS = tuple("0123456789")
PARITY: Split = ("even", "odd"), np.arange(10) % 2


def _mnist(place: Place) -> Content:
    where = place.path
    train = _idx_part(where, "train")
    return Content(train, _idx_part(where, "t10k") if any(where.glob("t10k-*ubyte*")) else None, PARITY)


def _idx_part(where: Path, part: str) -> Subset:
    images, labels = _idx_file(where, f"{part}-images", 3), _idx_file(where, f"{part}-labels", 1)
    pixels, digits = _idx(images, 3), _idx(labels, 1)
    check_labels(labels, pixels, digits, 10)
    return Subset(pixels[:, None], Labels(digits.astype(np.int64), DIGITS))


def _idx_file(where: Path, stem: str, num_axes: int) -> Path:
    names = [f"{stem}{dot}idx{num_axes}-ubyte{gz}" for dot in "-." for gz in ("", ".gz")]
    for name in names:
        if (where / name).is_file():
            return where / name
    raise UnfitError(f"{where}: expected one of {listed(names)}, found none")


def _idx(path: Path, num_axes: int) -> Array:
    size, wanted = 4 + 4 * num_axes, 0x800 + num_axes
    with parsing(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        if len(head := file.read(size)) < size:
            raise UnfitError(f"{path}: expected at least {size} bytes, found {len(head)}")
        magic, *shape = struct.unpack(f">{1 + num_axes}I", head)
        if magic != wanted:
            raise UnfitError(f"{path}: its magic number is {magic:#x}, expected {wanted:#x}")
        check_size(path, expected := math.prod(shape))
        body = file.read(expected + 1)  # not all of it: a small gzip file can unpack to terabytes
    if len(body) != expected:
        found = f"{'at least ' if len(body) > expected else ''}{size + len(body)}"
        raise UnfitError(f"{path}: expected {size + expected} bytes, found {found}")
    return np.frombuffer(body, np.uint8).reshape(shape)


KINDS = (Kind("mnist", "mnist:DIR", _mnist, "folder"),)
