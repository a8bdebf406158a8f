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

from unfit.auditor.labels import Labels, matched, no_labels, read_labels, wrong_labels
from unfit.auditor.samples import Samples
from unfit.auditor.sources.kind import MAX_SOURCE
from unfit.auditor.sources.tables import AS_SEEN
from unfit.base.errors import UnfitError, listed
from unfit.base.shapes import arranged, is_channels_last, sample_shape

Arrays = Any
"""Samples; or x, (x, y), pairs in a list, a mapping, a `Dataset` or a `DataLoader`, x as the model sees it."""

X_KEYS = ("x", "image", "images", "img", "pixel_values", "features", "inputs", "data")
Y_KEYS = ("y", "label", "labels", "target", "targets")
BATCH = 256  # samples of a `Dataset` at once


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
    """Convert both sets for a model with these inputs and outputs; one error lists everything wrong with them.

    The arrays are what the model sees, so no mean is subtracted.
    """
    own, others = opened(private), opened(unseen)
    if isinstance(own, Samples) and isinstance(others, Samples):
        return own, others
    if isinstance(own, Samples) or isinstance(others, Samples):
        raise UnfitError("the samples cannot be used: pass both sets as arrays, or both as Samples")
    problems: list[str] = []
    first, second = (_read(name, each, shape, problems) for name, each in (("private", own), ("unseen", others)))
    labels = _labels((own, first[1]), (others, second[1]), num_outputs, problems)
    if problems or labels is None:
        raise UnfitError("the samples cannot be used: " + "; ".join(problems))
    return in_unit_range(_samples(first[0], labels[0], own), _samples(second[0], labels[1], others))


def _samples(x: Tensor, labels: Labels, given: Given) -> Samples:
    return Samples(
        x,
        torch.from_numpy(labels.classes),
        torch.arange(len(x)),
        labels.names,
        shift=0.0,
        targets=None if labels.targets is None else torch.from_numpy(labels.targets),
        feature_names=given.feature_names,
    )


def in_unit_range(private: Samples, unseen: Samples) -> tuple[Samples, Samples]:
    """Images are compared and shown in [0, 1].

    If their values exceed it, the common range of both sets is mapped to it, the same for all samples and
    channels; `shift` and `scale` take them back to what the model sees.
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


def shape_of(given: Given | Samples) -> tuple[int, ...] | None:
    """The shape of one sample as the data have it, channels first; None if they have none.

    With two axes it may be an image or steps of values: the model decides.
    """
    if isinstance(given, Samples):
        return given.shape
    axes = _axes(given)
    if axes is not None and len(axes) == 2:
        return axes
    return None if axes is None else sample_shape(axes)


def words_on(given: Given | Samples) -> str:
    """How the model is taken to have seen its samples."""
    axes = _axes(given) if isinstance(given, Given) else None
    if axes is None or sample_shape(axes) is None:
        return "as given"
    if is_channels_last(axes):
        return "as given, channels last made first"
    if len(axes) == 2 and 1 in axes:
        return f"as given, {axes[0]}×{axes[1]} values as vectors of {math.prod(axes)}"
    return "as given"


def _axes(given: Given) -> tuple[int, ...] | None:
    """What is behind the first axis of x; None of ragged rows, say, which `as_samples` refuses."""
    try:
        return tuple(np.shape(given.x)[1:])
    except (TypeError, ValueError):
        return None


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


# What the model sees --------------------------------------------------------------------------------------------


def _read(name: str, given: Given, shape: tuple[int, ...], problems: list[str]) -> tuple[Tensor, Labels | None]:
    """x in float32 as (n, *shape) and what y means; append what is wrong with them to `problems`."""
    found: list[str] = []
    x = _numbers(given.x, found)
    y = _meaning(given.y, x, found)
    if x is not None:
        x = _shaped(x, shape, found)
    problems += [f"{name}: {problem}" for problem in found]
    return torch.zeros(0, *shape) if x is None else x, y


def _meaning(y: Any, x: Tensor | None, problems: list[str]) -> Labels | None:
    if y is None:
        return None if x is None else no_labels(len(x))
    try:
        values = _array(y)
    except (TypeError, ValueError):
        problems.append("y is not an array of numbers or strings")
        return None
    n = len(values) if values.ndim else 0
    if x is not None and len(x) != n:
        problems.append(f"{len(x)} samples but {n} labels")
        return None
    try:
        return read_labels(values, n)
    except UnfitError as error:
        problems.append(str(error))
        return None


def _numbers(values: Any, problems: list[str]) -> Tensor | None:
    """x as a float64 tensor; 8-bit values are scaled to [0, 1]."""
    try:
        found = values.detach().cpu() if isinstance(values, Tensor) else torch.from_numpy(_array(values).copy())
    except (TypeError, ValueError):
        found = None
    if found is None or found.is_complex() or not found.ndim:
        problems.append("x is not an array of numbers")
    elif not found.numel():
        problems.append("x is empty")
    elif not found.double().isfinite().all():
        problems.append(f"x has {int((~found.double().isfinite()).sum())} values that are NaN or infinite")
    else:
        return found.double() / (255 if found.dtype == torch.uint8 else 1)
    return None


def _shaped(x: Tensor, shape: tuple[int, ...], problems: list[str]) -> Tensor | None:
    """Reshape x to (n, *shape), also from flat images, channels last, or grey ones without a channel axis."""
    found = x if tuple(x.shape[1:]) == shape else torch.from_numpy(arranged(x.numpy()))
    has_steps = x.ndim == 3 and len(shape) == 1 and x[0].numel() == math.prod(shape)
    if has_steps or tuple(found.shape[1:]) in (shape, (math.prod(shape),)):
        return found.float().reshape(-1, *shape).contiguous()
    problems.append(f"x has shape {tuple(x.shape)}, the model expects (n, {', '.join(map(str, shape))})")
    return None


def _labels(
    own: tuple[Given, Labels | None], others: tuple[Given, Labels | None], k: int, problems: list[str]
) -> tuple[Labels, Labels] | None:
    """What both sets say of their samples, for a model with k outputs."""
    (first, private), (second, unseen) = own, others
    if (first.y is None) != (second.y is None):
        problems.append("one set has labels (y), the other has none: give both, or neither")
    if private is None or unseen is None or problems:
        known = [each if each is None else each.for_outputs(k).misfit(k) for each in (private, unseen)]
        problems += [f"{name}: {each}" for name, each in zip(("private", "unseen"), known, strict=True) if each]
        return None
    try:
        private, matching = matched(private, unseen, k)
    except UnfitError as error:
        problems.append(str(error))
        return None
    assert matching is not None
    if problem := private.misfit(k):
        problems.append(f"private: {problem}")
    elif strange := unseen.without_place(matching.names) if matching.has_classes else []:
        problems.append(f"unseen: {wrong_labels(strange, matching.names)}")
    elif problem := matching.misfit(k):
        problems.append(f"unseen: {problem}")
    return private, matching
