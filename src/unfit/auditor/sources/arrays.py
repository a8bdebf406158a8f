"""A user's own arrays in NumPy's files: x and, if there are labels, y."""

from __future__ import annotations

import io
import math
import re
import struct
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from unfit.auditor.labels import Array
from unfit.auditor.sources.kind import Content, Kind, Place, check_size, content_of, parsing
from unfit.base.errors import UnfitError, listed

MAX_HEADER = 10_000  # bytes, of an array in a file; as numpy has it


def _npz(place: Place) -> Content:
    """Members are read by the one name that was checked: numpy would take `x` where `x` and `x.npy` are there."""
    where = place.path
    with parsing(where), zipfile.ZipFile(where) as archive:
        held = [name for name in "xy" if f"{name}.npy" in archive.namelist()]
        if "x" not in held:
            found = listed([name.removesuffix(".npy") for name in archive.namelist()]) or "none"
            raise UnfitError(f"{where}: expected an array x, and y for labels; found {found}")
        sizes = []
        for name in held:
            with archive.open(f"{name}.npy") as file:
                sizes.append(_npy_bytes(file))
        check_size(where, sum(sizes))
        x, *y = (_member(archive, name) for name in held)
    return content_of(where, x, y[0] if y else None)


def _member(archive: zipfile.ZipFile, name: str) -> Array:
    with archive.open(f"{name}.npy") as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _npy(place: Place) -> Content:
    x, *y = map(_npy_array, place.paths)
    return content_of(place.path, x, y[0] if y else None)


def _npy_array(path: Path) -> Array:
    with parsing(path), path.open("rb") as file:
        check_size(path, _npy_bytes(file))
        file.seek(0)
        return np.asarray(np.load(file, allow_pickle=False))


def _npy_bytes(file: IO[bytes]) -> int:
    """The size that the array's header claims. Its own length is a claim too, and checked first."""
    start = file.read(12)
    begin, form = (10, "<H") if start[6:7] == b"\x01" else (12, "<I")
    (size,) = struct.unpack(form, start[8:begin])
    if size > MAX_HEADER:
        raise ValueError(f"a header of {size:,} bytes")
    header = io.BytesIO(start + file.read(size + begin - len(start)))
    npy = np.lib.format
    read = npy.read_array_header_1_0 if npy.read_magic(header) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(header)
    return math.prod(shape) * dtype.itemsize


def _two_files(text: str) -> tuple[list[str], str | None]:
    return re.split(r"(?<=\.npy),", text, maxsplit=1), None


KINDS = (
    Kind("npz", "npz:FILE", _npz),
    Kind("npy", "npy:X.npy[,Y.npy]", _npy, parted=_two_files),
)
