"""`.npz`: NumPy arrays, by name, or as a list in the order of a state dict, as Flower sends and saves models."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from tokenize import TokenError  # what NumPy raises for a damaged header, like SyntaxError
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from unfit.base.errors import UnfitError
from unfit.base.formats.inert import array_of, plain
from unfit.base.formats.limits import Weights, check_shapes, check_zip, undamaged
from unfit.base.formats.pickles import Machine

NUMBERS = "fiub"  # kinds of NumPy's types: floats, whole numbers, bools


def read_npz(path: Path) -> Weights:
    """All arrays, in the order of the file. What they claim to be is looked at before any of them is read."""
    with undamaged(path, "NumPy", SyntaxError, TokenError), zipfile.ZipFile(path) as archive:
        check_zip(path, archive)
        names = list(dict.fromkeys(archive.namelist()))
        claims = {name.removesuffix(".npy"): _claim(archive, name) for name in names}
        check_shapes(path, (shape for shape, _ in claims.values()))
        if strange := [name for name, (_, dtype) in claims.items() if dtype.kind not in NUMBERS]:
            raise UnfitError(f"{path}: {strange[0]} has type {claims[strange[0]][1]}, expected numbers")
        return {short: _tensor(archive.read(name)) for short, name in zip(claims, names, strict=True)}


def _claim(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    with archive.open(name) as file:
        shape, _, dtype = _header(file)
        return shape, dtype


def _tensor(data: bytes) -> Tensor:
    array = read_array(data)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))


def read_array(data: bytes) -> np.ndarray[Any, Any]:
    """An .npy file of numbers, whose header must tell the size that it has. Object arrays would be pickles."""
    file = io.BytesIO(data)
    shape, by_columns, dtype = _header(file)
    if dtype.kind not in NUMBERS:
        raise ValueError(f"an .npy file of type {dtype}, not of numbers")
    if math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError("an .npy file that does not have the size it tells")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if by_columns else "C")


def read_any(data: bytes | memoryview) -> Any:
    """An .npy file of numbers, texts or records; of objects, which are a pickle, what that stands for."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an .npy file of version {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(file)
    rest = memoryview(data)[file.tell() :]
    if dtype.hasobject:
        return plain(Machine(rest).run())
    return array_of(rest, dtype, shape, by_columns)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an .npy file of another version")
    return np.lib.format.read_array_header_1_0(file)
