"""A random hold-out: part of a source to train on, and unseen samples that differ from it by chance alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unfit.auditor.samples import ONE_CLASS, Array, Ints, Part
from unfit.base.errors import UnfitError, UsageError, listed

SPLIT_FILES = ("train.npz", "unseen.npz")
OWNER_ONLY = 0o600  # the files hold the samples themselves


def split_part(part: Part, share: float, seed: int) -> tuple[Ints, Ints]:
    """Positions to train on and unseen ones, both in random order. Every class has this share of it unseen."""
    if not 0 < share < 1:
        raise UsageError(
            f"`unseen` is the share of samples to hold out, more than 0 and less than 1; got {share:g}"
        )
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


def write_split(part: Part, share: float, seed: int, folder: Path) -> tuple[int, int]:
    """Write both parts as `npz:FILE` reads them, with the `index` of each sample in the source."""
    parts = split_part(part, share, seed)
    y = _y(part)
    for name, at in zip(SPLIT_FILES, parts, strict=True):
        path = folder / name
        path.touch(OWNER_ONLY)
        arrays: dict[str, Any] = {"x": part.raw[at], "index": at} | ({} if y is None else {"y": y[at]})
        np.savez(path, **arrays)
    return len(parts[0]), len(parts[1])


def _y(part: Part) -> Array | None:
    if part.targets is not None:
        return part.targets
    return None if part.class_names == ONE_CLASS else label_values(part.class_names)[part.labels]


def label_values(names: tuple[str, ...]) -> Ints:
    """The labels of the source if they are numbers, else 0 to k−1. Either way the classes keep their order."""
    try:
        values = np.array([int(name) for name in names])
    except ValueError:
        return np.arange(len(names))
    return values if (np.diff(values) > 0).all() else np.arange(len(names))
