"""Labelled sets that the auditor owns, and balanced draws from them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from unfit.base.errors import UnfitError, UsageError, listed

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Measure = Literal["ssim", "relative error", "explained variance"]


@dataclass(frozen=True, eq=False)
class Samples:
    """A labelled set the auditor owns: images in [0, 1] as (n, c, h, w), or vectors as (n, d)."""

    x: torch.Tensor  # float32
    y: torch.Tensor  # int64, 0..k-1
    indices: torch.Tensor  # int64: position of each sample in its part of the source
    class_names: tuple[str, ...]
    shift: float | None = None  # subtracted from the net's inputs; None: the mean of the training samples
    scale: float = 1.0  # then the net's inputs are multiplied by this
    are_features: bool = False  # what a model made of the samples before its attacked layer

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3

    @property
    def measure(self) -> Measure:
        """How candidates are compared with them. Features have no scale that anyone would miss."""
        if self.is_image:
            return "ssim"
        return "explained variance" if self.are_features else "relative error"

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def mean(self) -> torch.Tensor:
        """What is subtracted from the net's inputs if this is its training set: (1, *shape)."""
        return self.x.mean(0, keepdim=True) if self.shift is None else torch.full_like(self.x[:1], self.shift)

    def centred(self, mean: torch.Tensor) -> Samples:
        """The samples as the net sees them. For unseen samples, pass the mean of the training samples."""
        return replace(self, x=(self.x - mean) * self.scale)

    def at(self, chosen: torch.Tensor) -> Samples:
        """Some of the samples, by position or by a mask."""
        return replace(self, x=self.x[chosen], y=self.y[chosen], indices=self.indices[chosen])

    @cached_property
    def sha256(self) -> str:
        """Hash of x and y, to notice when the source has changed."""
        digest = hashlib.sha256()
        for tensor in (self.x, self.y):
            digest.update(tensor.numpy(force=True).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Part:
    """One part of a source (its training or its test files), as stored.

    8-bit values stay 8-bit until samples are taken: 50,000 CIFAR images take 150 MB, not 600.
    """

    raw: Array
    labels: Ints  # -1: not in any chosen class, never drawn
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: npt.ArrayLike) -> Samples:
        """The samples at these positions in float32; 8-bit values are scaled to [0, 1]."""
        at = np.array(indices, dtype=np.int64)
        if (outside := at[(at < 0) | (at >= len(self))]).size:
            raise UnfitError(
                f"there is no sample {outside[0]}: the source has {len(self)} samples, counted from 0"
            )
        labels = self.labels[at]
        if (others := at[labels < 0]).size:
            raise UnfitError(
                f"sample {others[0]} is not in any of the classes {listed(self.class_names)}; see `classes`"
            )
        x = self.raw[at].astype(np.float32)
        if self.raw.dtype == np.uint8:
            x /= 255
        return Samples(torch.from_numpy(x), torch.from_numpy(labels), torch.from_numpy(at), self.class_names)

    def balanced(self, n: int, seed: int | Sequence[int], without: npt.ArrayLike | None = None) -> Ints:
        """Draw the positions of n samples, class by class, with equally many of each and none from `without`."""
        pools, k = self._pools(without), len(self.class_names)
        if empty := [name for name, pool in zip(self.class_names, pools, strict=True) if not len(pool)]:
            raise UnfitError(f"there are no {'' if without is None else 'more '}samples of {listed(empty)}")
        if np.min(seed) < 0:
            raise UsageError(f"`seed` must not be negative, got {seed}")
        if n < k:
            raise UsageError(f"n = {n} is less than one sample for each of the {k} classes: take {k} or more")
        scarcest = min(range(k), key=lambda label: len(pools[label]))
        if n > (largest := k * len(pools[scarcest])):
            raise UsageError(
                f"n = {n} is too large: class {self.class_names[scarcest]!r} has only {len(pools[scarcest])} "
                f"to draw from, so the largest balanced n is {largest}"
            )
        if rest := n % k:
            raise UsageError(f"n = {n} cannot be balanced over {k} classes: take {n - rest} or {n - rest + k}")
        rng = np.random.default_rng(seed)
        return np.concatenate([rng.choice(pool, n // k, replace=False) for pool in pools])

    def like(self, y: Ints, n: int, seed: int | Sequence[int], without: npt.ArrayLike | None = None) -> Ints:
        """Draw up to n positions in which classes have the shares that they have in y, and none from `without`."""
        pools = self._pools(without)
        shares = np.bincount(y, minlength=len(pools)) / len(y)
        most = min(len(pool) / share for pool, share in zip(pools, shares, strict=True) if share)
        counts = np.round(np.floor(min(n, most)) * shares).astype(int)
        rng = np.random.default_rng(seed)
        chosen = [
            rng.choice(pool, min(num, len(pool)), replace=False) for pool, num in zip(pools, counts, strict=True)
        ]
        return np.concatenate(chosen)

    def largest_balanced(self, without: npt.ArrayLike | None = None) -> int:
        """The largest n that `balanced` accepts; 0 if a class has no samples."""
        return len(self.class_names) * min(map(len, self._pools(without)))

    def _pools(self, without: npt.ArrayLike | None) -> list[Ints]:
        """The positions that may be drawn, by class."""
        free = np.isin(np.arange(len(self)), [] if without is None else without, invert=True)
        return [np.flatnonzero(free & (self.labels == label)) for label in range(len(self.class_names))]


@dataclass(frozen=True, eq=False)
class Source:
    """Where samples come from; `read_source(source.name, source.classes)` reads it again."""

    name: str  # as the user wrote it, with an absolute path
    classes: str  # "split", "all" or a number
    train: Part
    test: Part | None  # None: unseen samples are those of `train` that are not members


def draw(source: Source, n: int, seed: int) -> Samples:
    """Draw the members: n samples to train on, equally many of each class."""
    return source.train.take(source.train.balanced(n, seed))


def draw_unseen(source: Source, members: Samples, n: int | None, seed: int) -> Samples:
    """Draw the control: up to n balanced samples (None: as many as possible) that are not members.

    They come from the part that the members come from, and from the test part only if too few are left there: the
    two files of a data set may differ by more than chance, as the digits of MNIST do.
    """
    trained_on = members.indices.numpy(force=True)
    left = source.train.largest_balanced(trained_on)
    if source.test is None or (left and left >= (n or 0)):
        return _drawn(source, source.train, n, seed, trained_on)
    return _drawn(source, source.test, n, seed, None)


def draw_test(source: Source, members: Samples, seed: int) -> Samples:
    """All that a trained model is judged by, balanced: the test part, or what the members leave of the other."""
    if source.test is None:
        return _drawn(source, source.train, None, seed, members.indices.numpy(force=True))
    return _drawn(source, source.test, None, seed, None)


def _drawn(source: Source, part: Part, n: int | None, seed: int, without: npt.ArrayLike | None) -> Samples:
    if not (largest := part.largest_balanced(without)):
        raise UnfitError(
            f"{source.name}: nothing is left for unseen samples in at least one class; "
            "train on fewer samples, or name another source with `unseen`"
        )
    # (seed, 1): other random numbers than for the members
    return part.take(part.balanced(largest if n is None else min(n, largest), (seed, 1), without))
