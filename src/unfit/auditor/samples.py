"""Sets that the auditor owns, labelled or not, and balanced draws from them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from unfit.auditor.labels import ONE_CLASS, Array, Ints, Labels
from unfit.base.errors import UnfitError, UsageError, listed

Measure = Literal["edge correlation", "relative error", "explained variance"]
Truth = Literal["classes", "labels", "values", "nothing"]  # labels: several of them may hold at once


@dataclass(frozen=True, eq=False)
class Samples:
    """A set the auditor owns: images in [0, 1] as (n, c, h, w), or vectors as (n, d)."""

    x: torch.Tensor  # float32
    y: torch.Tensor  # int64, 0..k-1
    indices: torch.Tensor  # int64: position of each sample in its part of the source
    class_names: tuple[str, ...]
    shift: float | None = None  # subtracted from the model's inputs; None: the mean of the training samples
    scale: float = 1.0  # then the model's inputs are multiplied by this
    targets: torch.Tensor | None = None  # float32 (n, k): what the k outputs should be, where that is no class
    feature_names: tuple[str, ...] | None = None  # of a vector's columns
    are_features: bool = False  # what a model made of the samples before its attacked layer
    whole_mean: torch.Tensor | None = None  # of the set these are from, where repeated samples were left out

    def __repr__(self) -> str:
        """No values: a log is no place for them."""
        shape = "×".join(map(str, self.shape))
        return f"Samples({len(self)} of shape {shape}, classes {listed(self.class_names)})"

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
        """What candidates are graded by. Features have no scale that anyone would miss."""
        if self.is_image:
            return "edge correlation"
        return "explained variance" if self.are_features else "relative error"

    def with_names(self, names: Sequence[str]) -> Samples:
        """The same vectors with these names of their columns."""
        if self.is_image or self.are_features:
            what = "images" if self.is_image else "features, which a model made of the samples"
            raise UsageError(f"`feature_names` are those of a table's columns, but these samples are {what}")
        if len(names) != self.shape[0]:
            raise UsageError(f"`feature_names` has {len(names)} names, the samples have {self.shape[0]} columns")
        return replace(self, feature_names=tuple(map(str, names)))

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def truth(self) -> Truth:
        """What is known of each sample besides x."""
        if self.targets is None:
            return "nothing" if self.class_names == ONE_CLASS else "classes"
        return "labels" if bool(((self.targets == 0) | (self.targets == 1)).all()) else "values"

    @property
    def mean(self) -> torch.Tensor:
        """What is subtracted from the model's inputs if this is its training set: (1, *shape)."""
        if self.shift is not None:
            return torch.full_like(self.x[:1], self.shift)
        return self.x.mean(0, keepdim=True) if self.whole_mean is None else self.whole_mean

    def centred(self, mean: torch.Tensor) -> Samples:
        """The samples as the model sees them. For unseen samples, pass the mean of the training samples."""
        return replace(self, x=(self.x - mean) * self.scale)

    def at(self, chosen: torch.Tensor) -> Samples:
        """Some of the samples, by position or by a mask."""
        targets = None if self.targets is None else self.targets[chosen]
        return replace(self, x=self.x[chosen], y=self.y[chosen], indices=self.indices[chosen], targets=targets)

    def unique(self) -> Samples:
        """The first of each sample that is there more than once, with the mean of all.

        The copies of a sample are recovered or not together, so as evidence they count once.
        """
        rows = self.x.numpy(force=True).reshape(len(self), -1)
        first = {hashlib.sha256(row.tobytes()).digest(): i for i, row in reversed([*enumerate(rows)])}
        if len(first) == len(self):
            return self
        return replace(self.at(torch.tensor(sorted(first.values()))), whole_mean=self.mean)

    @cached_property
    def sha256(self) -> str:
        """Hash of x and y, to notice when the source has changed."""
        digest = hashlib.sha256()
        for tensor in (self.x, self.y, *([] if self.targets is None else [self.targets])):
            digest.update(tensor.numpy(force=True).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Subset:
    """A source's training samples, or its test samples, as stored.

    8-bit values stay 8-bit until samples are taken: 50,000 CIFAR images take 150 MB, not 600.
    """

    raw: Array
    y: Labels
    feature_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.raw.shape[1:]

    @property
    def labels(self) -> Ints:
        """The class of each sample; -1: not in any chosen class, never drawn."""
        return self.y.classes

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.y.names

    def take(self, indices: npt.ArrayLike) -> Samples:
        """The samples at these positions in float32; 8-bit values are scaled to [0, 1]."""
        at = np.array(indices, dtype=np.int64)
        if (outside := at[(at < 0) | (at >= len(self))]).size:
            raise UnfitError(
                f"there is no sample {outside[0]}: the source has {len(self)} samples, counted from 0"
            )
        labels, targets = self.labels[at], self.y.targets
        if (others := at[labels < 0]).size:
            raise UnfitError(
                f"sample {others[0]} is not in any of the classes {listed(self.class_names)}; see `classes`"
            )
        x = self.raw[at].astype(np.float32)
        if self.raw.dtype == np.uint8:
            x /= 255
        return Samples(
            torch.from_numpy(x),
            torch.from_numpy(labels),
            torch.from_numpy(at),
            self.class_names,
            targets=None if targets is None else torch.from_numpy(targets[at]),
            feature_names=self.feature_names,
        )

    def chosen(self) -> Samples:
        """All samples that are in a chosen class."""
        return self.take((self.labels >= 0).nonzero()[0])

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
    train: Subset
    test: Subset | None  # None: unseen samples are those of `train` that are not members


def draw(source: Source, n: int, seed: int) -> Samples:
    """Draw samples to train on, equally many of each class.

    Args:
        source: What `read_source` gives.
        n: How many.
        seed: Which ones follows from it.

    Example:
        >>> members = unfit.draw(unfit.read_source("faces"), 40, seed=0)
    """
    check_trainable(source)
    return source.train.take(source.train.balanced(n, seed))


def check_trainable(source: Source) -> None:
    """Training here is the papers': on classes, and images in [0, 1]. An audit takes more."""
    part = source.train
    if len(part.class_names) < 2:
        raise UnfitError(f"{source.name}: at least two classes are needed; found {listed(part.class_names)}")
    if part.raw.ndim == 4 and part.raw.dtype != np.uint8 and (part.raw.min() < 0 or part.raw.max() > 1):
        low, high = part.raw.min(), part.raw.max()
        advice = "; divide by 255?" if high > 1 else ""
        raise UnfitError(f"{source.name}: images must be in [0, 1], x is in [{low:g}, {high:g}]{advice}")


def draw_unseen(source: Source, members: Samples, n: int | None, seed: int) -> Samples:
    """Draw the control: samples that are not members, equally many of each class.

    They come from the part that the members come from, and from the test part only if too few are left there: the
    two files of a data set may differ by more than chance, as the digits of MNIST do.

    Args:
        source: Where the members come from.
        members: What `draw` gave.
        n: At most so many; None: as many as possible.
        seed: Which ones follows from it.

    Example:
        >>> source = unfit.read_source("faces")
        >>> members = unfit.draw(source, 40, seed=0)
        >>> unseen = unfit.draw_unseen(source, members, 40, seed=0)
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


def _drawn(source: Source, part: Subset, n: int | None, seed: int, without: npt.ArrayLike | None) -> Samples:
    if not (largest := part.largest_balanced(without)):
        raise UnfitError(
            f"{source.name}: nothing is left for unseen samples in at least one class; "
            "train on fewer samples, or name another source with `unseen`"
        )
    # (seed, 1): other random numbers than for the members
    return part.take(part.balanced(largest if n is None else min(n, largest), (seed, 1), without))
