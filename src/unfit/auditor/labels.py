"""What labels mean: a class for each sample, a number for each output, or nothing.

The same labels mean the same, whether they come from a file or from Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from unfit.base.errors import UnfitError, listed

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
ONE_CLASS = ("all",)  # the classes of samples that have none: they are compared as one
MOST_WHOLE = 2**53  # floats up to this can be told from their neighbours as whole numbers
MOST_DIGITS = 18  # of a whole number that is written as text: more do not fit into 64 bits


@dataclass(frozen=True, eq=False)
class Labels:
    """What is known of each sample besides x."""

    classes: Ints  # (n,): 0..k-1; -1: in none of the chosen classes
    names: tuple[str, ...]  # of the k classes
    targets: Array | None = None  # float32 (n, k): what the k outputs should be, where that is no class
    one_hot: bool = False  # read from rows with a single 1 each, which several labels may be by chance

    @property
    def has_classes(self) -> bool:
        return self.targets is None and self.names != ONE_CLASS

    @property
    def numbers(self) -> list[int] | None:
        """The classes' names as whole numbers; None if any is none. Columns of one-hot rows are places."""
        are_numbers = not self.one_hot and all(map(_is_plain_number, self.names))
        return [*map(int, self.names)] if are_numbers else None

    def named(self, names: Sequence[str]) -> Labels:
        """The same with these classes in this order. Samples of any other class are not drawn."""
        places = {name: place for place, name in enumerate(names)}
        table = np.array([places.get(name, -1) for name in self.names] + [-1])  # the last: not chosen here
        return replace(self, classes=table[self.classes], names=tuple(names))

    def for_outputs(self, k: int) -> Labels:
        """As a model with k outputs has them, where the classes are numbers.

        Several outputs are numbered from 0, so a class without samples keeps its place; other numbers stand for
        the outputs in their order. A single output for more than two numbers is a regression.
        """
        if self.targets is not None or (numbers := self.numbers) is None:
            return self
        if k > 1 and set(numbers) <= set(range(k)):
            return self.named([*map(str, range(k))])
        if k == 1 and len(numbers) > 2:
            return self.as_numbers(1)
        if k == 1 and len(numbers) == 1 and numbers[0] in (-1, 0, 1):
            return self.named(("-1", "1") if numbers[0] == -1 else ("0", "1"))
        return self

    def as_numbers(self, k: int) -> Labels:
        """A number for each of k outputs instead of a class, where the labels can be read so."""
        if self.targets is not None or not self.has_classes:
            return self
        if self.one_hot and k == len(self.names):
            table = np.eye(k)
        elif k == 1 and (numbers := self.numbers) is not None:
            table = np.array(numbers, np.float64)[:, None]
        else:
            return self
        targets = table[np.maximum(self.classes, 0)].astype(np.float32)
        return Labels(np.minimum(self.classes, 0), ONE_CLASS, targets)

    def like(self, own: Labels) -> Labels:
        """The same with the classes of another set or, if that has numbers, with numbers."""
        if own.has_classes and self.has_classes:
            return self.named(own.names)
        found = self if own.targets is None else self.as_numbers(own.targets.shape[1])
        if own.has_classes or found.has_classes or (own.targets is None) != (found.targets is None):
            raise UnfitError("private and unseen samples must have labels of one kind, or none")
        return found

    def without_place(self, names: Sequence[str]) -> list[str]:
        """The classes of samples that are not among these."""
        held = np.unique(self.classes[self.classes >= 0])
        return [self.names[label] for label in held if self.names[label] not in names]

    def misfit(self, k: int) -> str | None:
        """Why a model with k outputs cannot have these labels."""
        one_each = f"pass one class per sample, or a number for each of the {k} outputs"
        if self.targets is not None:
            return None if self.targets.shape[1] == k else f"y has shape {self.targets.shape}: {one_each}"
        if not self.has_classes or len(self.names) == max(k, 2):
            return None
        if self.one_hot:
            return f"y has shape {(len(self.classes), len(self.names))}: {one_each}"
        expected = [*map(str, range(max(k, 2)))]
        if self.numbers is None:
            return f"found {len(self.names)} classes ({listed(self.names)}), the model has {len(expected)}"
        return wrong_labels([name for name in self.names if name not in expected], expected)


def wrong_labels(found: Sequence[str], expected: Sequence[str]) -> str:
    return f"found labels {listed(found)}, expected {listed(expected)}"


def no_labels(n: int) -> Labels:
    return Labels(np.zeros(n, np.int64), ONE_CLASS)


def read_labels(y: Array | None, n: int) -> Labels:
    """The classes of n samples or, where y is none, the numbers that it holds."""
    if y is None:
        return no_labels(n)
    y = _plain(y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y)
    if y.dtype.kind not in "fiubU" or y.ndim not in (1, 2) or (y.ndim == 2 and y.dtype.kind == "U"):
        kinds = "(n,) numbers or strings, or (n, k) numbers"
        raise UnfitError(f"y has type {y.dtype} and shape {y.shape}, expected {kinds}")
    if not y.size:
        raise UnfitError("y is empty")
    if y.dtype.kind == "f":
        y = finite("y", y, np.float64)
    if y.ndim == 2 and _is_one_hot(y):
        return Labels(y.argmax(1), tuple(map(str, range(y.shape[1]))), one_hot=True)
    if y.ndim == 2 or not _is_whole(y):
        return replace(no_labels(n), targets=finite("y", y.reshape(n, -1), np.float32))
    values, classes = np.unique(_whole(y), return_inverse=True)
    return Labels(classes.astype(np.int64), tuple(map(str, values)))


def matched(own: Labels, others: Labels | None, k: int) -> tuple[Labels, Labels | None]:
    """The labels of two sets as a model with k outputs has them: both classes, with one's names, or both numbers.

    What one set leaves open, the other decides: rows with a single 1 each are several labels if others have more.
    """
    own = own.for_outputs(k)
    if others is None:
        return own, None
    if own.one_hot and others.targets is not None:
        own = own.as_numbers(others.targets.shape[1])
    return own, others.like(own)


def finite(name: str, values: Array, dtype: npt.DTypeLike) -> Array:
    """The values in this type; refused if any does not fit, or is NaN."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large becomes infinite, and is found below
        values = values.astype(dtype)
    if len(bad := np.argwhere(~np.isfinite(values))):
        raise UnfitError(f"{len(bad)} values of {name} are not finite, the first at index {bad[0].tolist()}")
    return values


# Kinds of values ----------------------------------------------------------------------------------------------


def _plain(y: Array) -> Array:
    """Python's objects, which tables hold, as numbers or strings. A missing label is no class of its own."""
    if y.dtype.kind in "OT":
        values = y.astype(object).ravel().tolist()
        _refuse_missing(i for i, value in enumerate(values) if _is_missing(value))
        kinds = [kind for kind in (str, bool | int | float) if all(isinstance(value, kind) for value in values)]
        return np.array(values).reshape(y.shape) if kinds else y
    if y.dtype.kind == "U":
        _refuse_missing(np.flatnonzero(np.char.strip(y) == "").tolist())
    return y


def _is_missing(value: object) -> bool:
    empty = (isinstance(value, str) and not value.strip()) or (isinstance(value, float) and value != value)
    return value is None or empty or type(value).__name__ in ("NAType", "NaTType")  # those of pandas


def _refuse_missing(places: Iterable[int]) -> None:
    if found := [*places]:
        raise UnfitError(f"{len(found)} values of y are missing, the first at index [{found[0]}]")


def _is_one_hot(y: Array) -> bool:
    return y.shape[1] > 1 and bool(np.isin(y, (0, 1)).all() and (y.sum(1) == 1).all())


def _is_whole(y: Array) -> bool:
    """Whether each value names a class: text does, and whole numbers do."""
    return y.dtype.kind != "f" or bool((y == y.round()).all() and (np.abs(y) < MOST_WHOLE).all())


def _whole(y: Array) -> Array:
    """Whole numbers as such, also from text, so that 10 comes behind 9; other text as it is."""
    if y.dtype.kind == "U":
        is_number = all(_is_plain_number(value) for value in np.unique(y))
        return y.astype(np.int64) if is_number else y
    return y.astype(np.int64) if y.dtype.kind in "fb" else y


def _is_plain_number(text: str) -> bool:
    """Whether it is a whole number as Python writes it: 1, but not 01, which may be another class."""
    digits = text.removeprefix("-")
    return digits.isdecimal() and len(digits) <= MOST_DIGITS and text == str(int(text))
