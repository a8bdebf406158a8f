"""All that a file or a folder holds, and what of it could not be read."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tokenize import TokenError
from typing import Any

from torch import nn

from unfit.base.contents import Item, contents_of
from unfit.base.errors import UnfitError
from unfit.base.formats import kind_of_model
from unfit.base.formats.inert import InertError
from unfit.base.formats.limits import check_file, check_size, check_zip, rehearsed, undamaged
from unfit.base.formats.packed import UNPACKING, Inside, content_of, read_pickles, read_torch
from unfit.base.formats.plainly import tree_of_h5, tree_of_npz, tree_of_onnx, tree_of_text
from unfit.base.formats.skops import Skops
from unfit.base.formats.tensors import read_metadata, read_safetensors

FOLDERS = ("huggingface", "peft")  # kinds of folders in which every file is published, not only the weights
PICKLES = (".pkl", ".pickle", ".joblib", ".sav", ".model", ".gz", ".bz2", ".xz", ".lzma", ".z")
TEXTS = (".json", ".txt", ".jsonl", ".csv", ".tsv", ".md", ".yaml", ".yml")
NO_DATA = (
    "",
    ".py",
    ".png",
    ".jpg",
    ".jpeg",
    ".svg",
    ".gif",
    ".html",
    ".pdf",
    ".lock",
)  # code and what people read
OF_PYTORCH = (".pt", ".pth", ".bin", ".ckpt", ".tar")


@dataclass(frozen=True, eq=False)
class Held:
    """What is in a file. `names` are the classes and functions that a pickle asks for."""

    items: list[Item]
    names: frozenset[str] = frozenset()
    unread: list[str] = field(default_factory=list)


def contents_of_file(path: Path) -> list[Item]:
    """All that a file holds; of a folder as libraries publish it, all that its files hold.

    Like reading the weights, it runs no code and refuses what would take more memory than the file is worth.
    """
    return held_in(path).items


def held_in(path: Path) -> Held:
    """The same, with what could not be read in a folder, and what a pickle would import."""
    kind = kind_of_model(path)
    if kind in FOLDERS:
        return _of_folder(path)
    if kind == "run":
        return _of_file(path / "target.safetensors", "safetensors")  # what else is there belongs to the auditor
    if path.is_dir():
        raise UnfitError(f"{path}: no model in this folder; give the files in it")
    return _of_file(path, kind)


def held_by(value: object) -> Held:
    """What a live object would leave in a file: it is saved to memory, and that is read."""
    import pickle

    if isinstance(value, nn.Module):
        return Held(contents_of(value))
    try:
        data = pickle.dumps(value, protocol=4)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise UnfitError(f"a {type(value).__name__} that cannot be saved cannot be scanned: {error}") from error
    try:
        inside = read_pickles(memoryview(bytearray(data)))
    except InertError as error:
        raise UnfitError(f"a {type(value).__name__} cannot be read: {error}") from error
    return Held(contents_of(inside.tree), frozenset(inside.names), inside.unread)


def is_known(path: Path) -> bool:
    """Whether a file is of a kind that is read here, by its content or its name."""
    return path.is_file() and (kind_of_model(path) in READERS or path.suffix.lower() in PICKLES)


def _of_file(path: Path, kind: str | None) -> Held:
    check_file(path)
    with undamaged(path, NAMES.get(kind or "", "model"), *_errors(), *UNPACKING, SyntaxError, TokenError):
        inside = _inside(path, kind)
        return Held(contents_of(inside.tree), frozenset(inside.names), inside.unread)


def _inside(path: Path, kind: str | None) -> Inside:
    if kind is not None and kind in READERS:
        return READERS[kind](path)
    if kind in ("compressed", None) and path.suffix.lower() not in TEXTS:
        return read_pickles(content_of(path)) if path.suffix.lower() not in OF_PYTORCH else read_torch(path)
    if path.suffix.lower() in TEXTS:
        return Inside(tree_of_text(path))
    raise UnfitError(f"{path}: a {kind} file is not read")


def _errors() -> tuple[type[Exception], ...]:
    from safetensors import SafetensorError

    try:
        from google.protobuf.message import DecodeError
    except ImportError:
        return (SafetensorError,)
    return (SafetensorError, DecodeError)


def _safetensors(path: Path) -> Inside:
    texts = read_metadata(path)
    return Inside({**read_safetensors(path), **({"metadata": texts} if texts else {})})


def _skops(path: Path) -> Inside:
    with zipfile.ZipFile(path) as archive:
        check_zip(path, archive)
        reader = Skops(archive)
        return Inside(reader.read(), reader.names)


def _h5(path: Path) -> Inside:
    from unfit.base.formats.keras import check_heaps

    check_heaps(path)
    return Inside(rehearsed(path, lambda: tree_of_h5(path, path)))


def _keras(path: Path) -> Inside:
    with zipfile.ZipFile(path) as archive:
        check_zip(path, archive)
        texts: dict[str, Any] = {
            name: archive.read(name).decode("utf-8", "replace")
            for name in archive.namelist()
            if name.endswith(".json")
        }
        content = archive.read("model.weights.h5")
    return Inside(texts | rehearsed(path, lambda: tree_of_h5(path, io.BytesIO(content))))


def _numpy(path: Path) -> Inside:
    from unfit.base.formats.numpy import read_any

    return Inside({path.stem: read_any(content_of(path))})


READERS: Mapping[str, Callable[[Path], Inside]] = {
    "pickle": lambda path: read_pickles(content_of(path)),
    "pytorch": read_torch,
    "torchscript": read_torch,
    "safetensors": _safetensors,
    "skops": _skops,
    "npz": lambda path: Inside(tree_of_npz(path)),
    "numpy": _numpy,
    "hdf5": _h5,
    "keras": _keras,
    "onnx": lambda path: Inside(tree_of_onnx(path)),
}
NAMES = {"pytorch": "PyTorch", "npz": "NumPy", "numpy": "NumPy", "hdf5": "HDF5", "keras": "Keras", "onnx": "ONNX"}


def _of_folder(folder: Path) -> Held:
    """Each file that can be opened without running code. The others are named."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    check_size(folder, "holds", sum(path.stat().st_size for path in files))
    found: list[Item] = []
    names: set[str] = set()
    unread: list[str] = []
    for path in files:
        kind = kind_of_model(path)
        if kind is None and path.suffix.lower() not in (*TEXTS, *OF_PYTORCH):
            if path.suffix.lower() not in NO_DATA and not path.name.startswith("."):
                unread.append(f"{path.name} is of a kind that is not read")
            continue
        try:
            held = _of_file(path, kind)
        except UnfitError as error:
            unread.append(str(error))
            continue
        found += [
            Item(f"{path.name}: {each.path}".removesuffix(": "), each.value, each.owner, each.name)
            for each in held.items
        ]
        names |= held.names
        unread += held.unread
    return Held(found, frozenset(names), unread)
