"""A random hold-out: part of a source to train on, and unseen samples that differ from it by chance alone.

Tables stay tables, row by row, so they can be split before anything is encoded. `split.json` says what was split,
and holds the hashes of both parts: an audit that is given one of them checks it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unfit.auditor.labels import Array, Ints
from unfit.auditor.rows import classes_of, groups_of, read_table, split_groups
from unfit.auditor.samples import Subset
from unfit.auditor.sources import absolute_name, place_of, read_source
from unfit.base.errors import UnfitError, UsageError, listed
from unfit.base.files import Strict, read_as, write_json

MANIFEST = "split.json"
PARTS: tuple[Literal["train", "unseen"], ...] = ("train", "unseen")
TABLES = ("csv", "parquet")
SPLIT_FILES = (MANIFEST, *(f"{part}.{kind}" for kind in ("npz", *TABLES) for part in PARTS))
OWNER_ONLY = 0o600  # the files hold the samples themselves


class SplitPart(Strict):
    """One of the two files; `index` has the position of each sample in the source."""

    file: str
    sha256: str
    num_samples: int
    index: list[int]


class SplitFile(Strict):
    """`split.json`."""

    source: str
    by: str | None  # the column whose values stay together
    share: float
    seed: int
    train: SplitPart
    unseen: SplitPart


def split_source(
    name: str, classes: str | None, share: float, by: str | None, seed: int, folder: Path
) -> SplitFile:
    """Write both parts of a source into a folder, with their manifest: a table as rows, all else as arrays."""
    _check_share(share)
    kind = name.partition(":")[0]
    if kind in TABLES:
        if classes is not None:
            raise UsageError(f"`classes` chooses among those of images; rows of {kind} are split as they are")
        parts = _write_rows(kind, name, share, by, seed, folder)
    else:
        if by is not None:
            raise UsageError("`by` names a column of a table: csv:FILE or parquet:FILE")
        parts = write_split(read_source(name, classes).train, share, seed, folder)
    train, unseen = (
        SplitPart(file=path.name, sha256=_hash(path), num_samples=len(at), index=at.tolist()) for path, at in parts
    )
    manifest = SplitFile(source=absolute_name(name), by=by, share=share, seed=seed, train=train, unseen=unseen)
    (folder / MANIFEST).touch(OWNER_ONLY)
    write_json(folder / MANIFEST, manifest.model_dump(mode="json"))
    return manifest


def _write_rows(
    kind: str, name: str, share: float, by: str | None, seed: int, folder: Path
) -> list[tuple[Path, Ints]]:
    place = place_of(name)
    table = read_table(kind, place)
    found = []
    parts = split_groups(classes_of(table, place.column), groups_of(table, by), share, seed)
    for part, at in zip(PARTS, parts, strict=True):
        path = folder / f"{part}.{table.suffix}"
        path.touch(OWNER_ONLY)
        table.write(at.tolist(), path)
        found.append((path, at))
    return found


def check_split(data: Path, unseen: Path | None) -> None:
    """Refuse a part that has changed since it was split, and unseen samples as what was trained on."""
    for path in (data, unseen):
        if path is None or not (path.parent / MANIFEST).is_file():
            continue
        manifest = read_as(SplitFile, path.parent / MANIFEST)
        named = {part.file: part for part in (manifest.train, manifest.unseen)}
        if path.name in named and _hash(path) != named[path.name].sha256:
            raise UnfitError(f"{path} has changed since it was split: its hash in {MANIFEST} differs; split again")
        if path == data and path.name == manifest.unseen.file:
            raise UnfitError(f"{path} holds the unseen samples of its split: were `data` and `unseen` swapped?")
        if path == unseen and path.name == manifest.train.file:
            raise UnfitError(f"{path} is what its split has for training, so it is no control: see `unseen`")


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise UsageError(
            f"`unseen` is the share of samples to hold out, more than 0 and less than 1; got {share:g}"
        )


def split_part(part: Subset, share: float, seed: int) -> tuple[Ints, Ints]:
    """Positions to train on and unseen ones, both in random order. Every class has this share of it unseen."""
    _check_share(share)
    pools = [np.flatnonzero(part.labels == label) for label in range(len(part.class_names))]
    if few := [name for name, pool in zip(part.class_names, pools, strict=True) if len(pool) < 2]:
        raise UnfitError(f"too few samples of {listed(few)}: a class needs two, one for each part")
    rng = np.random.default_rng(seed)
    train, unseen = [], []
    for pool in map(rng.permutation, pools):
        num = min(max(1, round(share * len(pool))), len(pool) - 1)
        train.append(pool[num:])
        unseen.append(pool[:num])
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(unseen))


def write_split(part: Subset, share: float, seed: int, folder: Path) -> list[tuple[Path, Ints]]:
    """Write both parts as `npz:FILE` reads them, with the `index` of each sample in the source."""
    found, y = [], _y(part)
    for name, at in zip(PARTS, split_part(part, share, seed), strict=True):
        path = folder / f"{name}.npz"
        path.touch(OWNER_ONLY)
        arrays: dict[str, Any] = {"x": part.raw[at], "index": at} | ({} if y is None else {"y": y[at]})
        np.savez(path, **arrays)
        found.append((path, at))
    return found


def _y(part: Subset) -> Array | None:
    if part.y.targets is not None:
        return part.y.targets
    return label_values(part.class_names)[part.labels] if part.y.has_classes else None


def label_values(names: tuple[str, ...]) -> Ints:
    """The labels of the source if they are numbers, else 0 to k−1. Either way the classes keep their order."""
    try:
        values = np.array([int(name) for name in names])
    except ValueError:
        return np.arange(len(names))
    return values if (np.diff(values) > 0).all() else np.arange(len(names))
