"""Turn what a user has, arrays, tables, data sets or loaders, into Samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from unfit.auditor.samples import ONE_CLASS, Samples
from unfit.auditor.sources import AS_SEEN, MAX_SOURCE, is_one_hot
from unfit.base.errors import UnfitError, listed

Arrays = Any
"""Samples; or x, (x, y), a list of pairs, a mapping, a `Dataset` or a `DataLoader`, with x as the net sees it."""

X_KEYS = ("x", "image", "images", "img", "pixel_values", "features", "inputs", "data")
Y_KEYS = ("y", "label", "labels", "target", "targets")
FLAT_PICTURES = (28 * 28, 3 * 32 * 32)  # rows of MNIST and CIFAR; of other lengths, they are vectors unless told
BATCH = 256  # samples of a `Dataset` at once
CHANNELS = (1, 3)  # a picture is grey or coloured


@dataclass(frozen=True, eq=False)
class Given:
    """What a user gave, taken apart. y is None where there are no labels."""

    x: Any
    y: Any = None
    feature_names: tuple[str, ...] | None = None


def opened(given: Arrays) -> Given | Samples:
    """Find x and y in whatever they came in; a loader that shuffles is read in order."""
    match given:
        case Samples() | Given():
            return given
        case DataLoader():
            return _joined(_in_order(given))
        case Dataset():
            return _joined(DataLoader(given, batch_size=BATCH))
        case tuple():
            return _pair(given)
        case list() if given and all(isinstance(each, tuple) for each in given):
            return _stacked([_pair(each) for each in given])
        case list() if given and all(isinstance(each, Mapping) for each in given):
            return _stacked([_named(each, list(each)) for each in given])
        case [first, second] if getattr(first, "ndim", 0) > getattr(second, "ndim", math.inf):
            return _pair(given)  # two arrays, as a batch of a loader is
    if isinstance(given, Mapping):
        return _named(given, list(given))
    if isinstance(names := getattr(given, "column_names", None), list):  # a data set of Hugging Face
        return _named(given, names)
    return _pair((given,))


def as_samples(
    private: Arrays, unseen: Arrays, shape: tuple[int, ...], num_outputs: int
) -> tuple[Samples, Samples]:
    """Convert both sets for a net with these inputs and outputs; one error lists everything wrong with them.

    The arrays are what the net sees, so no mean is subtracted.
    """
    own, others = opened(private), opened(unseen)
    if isinstance(own, Samples) and isinstance(others, Samples):
        return own, others
    if isinstance(own, Samples) or isinstance(others, Samples):
        raise UnfitError("the samples cannot be used: pass both sets as arrays, or both as Samples")
    problems: list[str] = []
    read = [_read(name, each, shape, problems) for name, each in (("private", own), ("unseen", others))]
    unread = any(y is None and each.y is not None for (_, y), each in zip(read, (own, others), strict=True))
    truths = [] if unread else _truths(read, num_outputs, problems)
    if problems:
        raise UnfitError("the samples cannot be used: " + "; ".join(problems))
    first, second = (
        Samples(x, labels, torch.arange(len(x)), names, 0.0, 1.0, targets, each.feature_names)
        for (x, _), (labels, names, targets), each in zip(read, truths, (own, others), strict=True)
    )
    return in_unit_range(first, second)


def in_unit_range(private: Samples, unseen: Samples) -> tuple[Samples, Samples]:
    """Pictures are compared and shown in [0, 1].

    If their values exceed it, the common range of both sets is mapped to it, the same for all samples and
    channels; `shift` and `scale` take them back to what the net sees.
    """
    sets = (private, unseen)
    low, high = min(float(each.x.min()) for each in sets), max(float(each.x.max()) for each in sets)
    if not private.is_image or (low >= 0 and high <= 1) or low == high:
        return private, unseen
    shift, scale = -low / (high - low), high - low
    first, second = (
        replace(each, x=each.x / scale + shift, shift=None if each.shift is None else shift, scale=scale)
        for each in sets
    )
    return first, second


def sample_shape(given: Arrays) -> tuple[int, ...] | None:
    """The shape of one sample, channels first; None if flat rows may be pictures as well."""
    given = opened(given)
    if isinstance(given, Samples):
        return given.shape
    try:
        _, *shape = np.shape(given.x)
    except (TypeError, ValueError):  # ragged rows, say, which `as_samples` refuses
        return None
    if is_channels_last(shape):
        return shape[2], shape[0], shape[1]
    if len(shape) == 1:
        return None if shape[0] in FLAT_PICTURES else (shape[0],)
    return {2: (1, *shape), 3: tuple(shape)}.get(len(shape))


def is_channels_last(shape: Sequence[int]) -> bool:
    """Whether a sample of this shape has its channels behind its rows and columns."""
    return len(shape) == 3 and shape[2] in CHANNELS and shape[0] not in CHANNELS


# Taking apart -------------------------------------------------------------------------------------------------


def _pair(given: Sequence[Any]) -> Given:
    if len(given) not in (1, 2):
        raise UnfitError(f"the samples cannot be used: expected x or (x, y), found {len(given)} values")
    x, y = given[0], given[1] if len(given) == 2 else None
    return Given(_values(x), None if y is None else _values(y), _column_names(x))


def _named(given: Any, names: Sequence[str]) -> Given:
    """x and y by their usual names."""
    x, y = (next((key for key in keys if key in names), None) for keys in (X_KEYS, Y_KEYS))
    if x is None:
        raise UnfitError(
            f"the samples cannot be used: none of {listed(names)} is a name of x: use one of {', '.join(X_KEYS)}"
        )
    return _pair([given[x]] if y is None else [given[x], given[y]])


def _stacked(samples: list[Given]) -> Given:
    if any((each.y is None) != (samples[0].y is None) for each in samples):
        raise UnfitError("the samples cannot be used: some have a label and some have none")
    y = None if samples[0].y is None else [each.y for each in samples]
    return _pair([[each.x for each in samples], y])


def _in_order(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Positions in shuffled samples say nothing. A sampler that chooses among the samples is kept."""
    shuffles = type(loader.sampler) is RandomSampler and not isinstance(loader.dataset, IterableDataset)
    if not shuffles or loader.batch_size is None:
        return loader
    return DataLoader(loader.dataset, batch_size=loader.batch_size, collate_fn=loader.collate_fn)


def _joined(loader: DataLoader[Any]) -> Given:
    """All batches, one after the other."""
    batches, num_bytes = [], 0
    for batch in loader:
        batches.append(_batch(batch))
        num_bytes += _array(batches[-1].x).nbytes
        if num_bytes > MAX_SOURCE:
            raise UnfitError(f"the samples cannot be used: more than {MAX_SOURCE / 2**30:g} GiB of data")
    if not batches:
        raise UnfitError("the samples cannot be used: there are none")
    y = None if batches[0].y is None else np.concatenate([_array(each.y) for each in batches])
    return Given(np.concatenate([_array(each.x) for each in batches]), y)


def _batch(batch: Any) -> Given:
    if isinstance(batch, Mapping):
        return _named(batch, list(batch))
    return _pair(batch if isinstance(batch, tuple | list) else (batch,))


def _values(values: Any) -> Any:
    """A list or a table as an array, if all of it are numbers."""
    if isinstance(values, list | tuple):
        try:
            return _array(values)
        except (TypeError, ValueError):  # rows of different lengths, say: refused later, with all else
            return values
    if not hasattr(values, "to_numpy"):
        return values
    if _column_names(values):
        for name in values.columns:
            if (kind := values[name].to_numpy().dtype).kind not in "fiub":
                raise UnfitError(
                    f"the samples cannot be used: column {str(name)!r} is {kind}, not numbers; {AS_SEEN}"
                )
    return values.to_numpy()


def _column_names(x: Any) -> tuple[str, ...] | None:
    return tuple(map(str, x.columns)) if hasattr(x, "to_numpy") and hasattr(x, "columns") else None


def _array(values: Any) -> npt.NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return np.asarray(values.float() if values.dtype == torch.bfloat16 else values)
    if isinstance(values, list | tuple) and values and isinstance(values[0], Tensor):
        return np.array([_array(each) for each in values])
    return np.asarray(values)


# What the net sees --------------------------------------------------------------------------------------------


def _read(name: str, given: Given, shape: tuple[int, ...], problems: list[str]) -> tuple[Tensor, Tensor | None]:
    """x in float32 as (n, *shape) and y as numbers; append what is wrong with them to `problems`."""
    found: list[str] = []
    x = _numbers("x", given.x, found)
    y = None if given.y is None else _numbers("y", given.y, found)
    if x is not None:
        x = _shaped(x, shape, found)
    if x is not None and y is not None and len(x) != len(y):
        found.append(f"{len(x)} samples but {len(y)} labels")
    problems += [f"{name}: {problem}" for problem in found]
    return torch.zeros(0, *shape) if x is None else x, y


def _numbers(name: str, values: Any, problems: list[str]) -> Tensor | None:
    """A float64 tensor; 8-bit x is scaled to [0, 1]."""
    try:
        found = values.detach().cpu() if isinstance(values, Tensor) else torch.from_numpy(_array(values).copy())
    except (TypeError, ValueError):
        found = None
    if found is None or found.is_complex() or not found.ndim:
        problems.append(f"{name} is not an array of numbers")
    elif not found.numel():
        problems.append(f"{name} is empty")
    elif not found.double().isfinite().all():
        problems.append(f"{name} has {int((~found.double().isfinite()).sum())} values that are NaN or infinite")
    else:
        return found.double() / (255 if name == "x" and found.dtype == torch.uint8 else 1)
    return None


def _shaped(x: Tensor, shape: tuple[int, ...], problems: list[str]) -> Tensor | None:
    """Reshape x to (n, *shape), also from flat pictures, channels last, or grey ones without a channel axis."""
    found = tuple(x.shape[1:])
    if len(shape) == 3 and is_channels_last(found) and (found[2], *found[:2]) == shape:
        return x.float().permute(0, 3, 1, 2).contiguous()
    accepted = [shape, (math.prod(shape),), *([shape[1:]] if len(shape) == 3 and shape[0] == 1 else [])]
    if found in accepted:
        return x.float().reshape(-1, *shape)
    problems.append(f"x has shape {tuple(x.shape)}, the net expects (n, {', '.join(map(str, shape))})")
    return None


# What they are ------------------------------------------------------------------------------------------------

_Truth = tuple[Tensor, tuple[str, ...], Tensor | None]  # labels, the classes' names, targets


def _truths(read: list[tuple[Tensor, Tensor | None]], num_outputs: int, problems: list[str]) -> list[_Truth]:
    """What both sets say of their samples: a class, or a number for each output, or nothing."""
    ys = [_column(y) for _, y in read if y is not None]
    if not ys:
        return [(torch.zeros(len(x)).long(), ONE_CLASS, None) for x, _ in read]
    if len(ys) < len(read):
        problems.append("one set has labels (y), the other has none: give both, or neither")
    elif all(y.ndim == 2 and y.shape[1] == num_outputs and is_one_hot(y.numpy()) for y in ys):
        ys = [y.argmax(1).double() for y in ys]
    classes = _classes(ys[0], num_outputs)
    if classes is None:
        return _numbered(ys, num_outputs, problems)
    for name, y in zip(("private", "unseen"), ys, strict=False):
        strange = sorted(set(y.flatten().tolist()) - set(classes))
        problems += [f"{name}: found labels {_numerals(strange)}, expected {listed(classes)}"] if strange else []
    positions = [torch.searchsorted(torch.tensor(classes), y.long()) for y in ys]
    return [(position, tuple(map(str, classes)), None) for position in positions]


def _numbered(ys: list[Tensor], num_outputs: int, problems: list[str]) -> list[_Truth]:
    for name, y in zip(("private", "unseen"), ys, strict=False):
        if y.ndim > 2 or y.reshape(len(y), -1).shape[1] != num_outputs:
            each = f"a number for each of the {num_outputs} outputs"
            problems.append(f"{name}: y has shape {tuple(y.shape)}: pass one class per sample, or {each}")
    return [(torch.zeros(len(y)).long(), ONE_CLASS, y.reshape(len(y), -1).float()) for y in ys]


def _column(y: Tensor) -> Tensor:
    """(n, 1), as binary cross-entropy expects it, as (n,)."""
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def _numerals(values: Sequence[float]) -> str:
    return listed([f"{value:g}" for value in values])


def _classes(y: Tensor, num_outputs: int) -> list[int] | None:
    """The labels that the outputs stand for: 0..k−1; for one output 0 and 1, −1 and 1, or the two labels found.

    None where y is no class: it has several columns or values between whole numbers, or a single output is
    to take more than two.
    """
    if y.ndim != 1 or not torch.equal(y, y.round()):
        return None
    if num_outputs > 1:
        return list(range(num_outputs))
    found = sorted({int(value) for value in y.tolist()})
    if len(found) > 2:
        return None
    if set(found) <= {0, 1} or len(found) != 2:
        return [-1, 1] if found == [-1] else [0, 1]
    return found
