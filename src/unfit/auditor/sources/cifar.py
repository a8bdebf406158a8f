"""CIFAR-10 and CIFAR-100 as they are downloaded, binary or for Python."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from unfit.auditor import batches
from unfit.auditor.labels import Array, Ints, Labels
from unfit.auditor.samples import Subset
from unfit.auditor.sources.kind import Content, Kind, Place, check_labels, check_size, parsing
from unfit.base.errors import UnfitError, listed


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


def _cifar(form: _Cifar, place: Place) -> Content:
    where = place.path
    folders = [where, *(where / name for name in form.folders)]
    for folder, end in product(folders, (".bin", "")):
        if train := [path for name in form.train if (path := folder / f"{name}{end}").is_file()]:
            break
    else:
        wanted = listed([f"{name}[.bin]" for name in form.train])
        raise UnfitError(f"found no training files: looked for {wanted} in {listed(folders)}")
    tests = [path] if (path := folder / f"{form.test}{end}").is_file() else []
    check_size(folder, sum(path.stat().st_size for path in (*train, *tests)))
    parts, names = [], _cifar_names(folder, form)
    split = np.full(len(names), -1)
    for paths in filter(None, (train, tests)):
        batches = [_cifar_batch(path, form) for path in paths]
        pixels, labels = (np.concatenate(each) for each in zip(*batches, strict=True))
        parts.append(Subset(pixels.reshape(-1, 3, 32, 32), Labels(labels[:, -1], names)))
        split[labels[:, -1]] = np.array(form.split)[labels[:, 0]]
    return Content(parts[0], parts[1] if tests else None, (("vehicles", "animals"), split))


def _cifar_names(folder: Path, form: _Cifar) -> tuple[str, ...]:
    text, pickled, key = form.names
    *_, k = form.num_classes.values()
    if (path := folder / text).is_file():
        names = path.read_text("utf-8", "replace").split()
    elif (path := folder / pickled).is_file():
        with parsing(path):
            names = batches.names(_pickled(path), key)
    else:
        names = [str(label) for label in range(k)]
    if len(names) != k:
        raise UnfitError(f"{path}: found {len(names)} class names, expected {k}")
    return tuple(names)


def _cifar_batch(path: Path, form: _Cifar) -> tuple[Array, Ints]:
    """Pixels (n, 3072) and labels, one column per kind."""
    check_size(path, path.stat().st_size)
    read = _binary_batch if path.suffix == ".bin" else _pickled_batch
    pixels, labels = read(path, list(form.num_classes))
    check_labels(path, pixels, labels, *form.num_classes.values())
    return pixels, labels.astype(np.int64)


def _binary_batch(path: Path, keys: list[str]) -> tuple[Array, Array]:
    values, record = np.fromfile(path, np.uint8), len(keys) + 3072
    if values.size % record:
        raise UnfitError(f"{path}: expected a multiple of {record} bytes, found {values.size}; was it cut short?")
    rows = values.reshape(-1, record)
    return rows[:, len(keys) :], rows[:, : len(keys)]


def _pickled_batch(path: Path, keys: list[str]) -> tuple[Array, Array]:
    with parsing(path):
        content = _pickled(path)
        return batches.pixels(content), batches.whole_numbers(content, keys)


def _pickled(path: Path) -> dict[bytes, Any]:
    check_size(path, path.stat().st_size)
    return batches.read_batch(path)


KINDS = (
    Kind("cifar10", "cifar10:DIR", partial(_cifar, _CIFAR10), "folder"),
    Kind("cifar100", "cifar100:DIR", partial(_cifar, _CIFAR100), "folder"),
)
