"""Turn a user's arrays or tensors into Samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from unfit.auditor.samples import Samples
from unfit.base.errors import UnfitError, listed

Arrays = Samples | tuple[Any, Any]
"""Samples, or (x, y) as tensors, arrays or lists, with x as the net sees it."""


def as_samples(
    private: Arrays, unseen: Arrays, shape: tuple[int, ...], num_outputs: int
) -> tuple[Samples, Samples]:
    """Convert both sets for a net with these inputs and outputs; one error lists everything wrong with them.

    The arrays are what the net sees, so no mean is subtracted. Pictures are compared and shown in [0, 1]. If their
    values exceed it, the common range of both sets is mapped to it, the same for all samples and channels.
    """
    if isinstance(private, Samples) and isinstance(unseen, Samples):
        return private, unseen
    problems: list[str] = []
    (x, y), (other_x, other_y) = (
        _read(name, given, shape, problems) for name, given in (("private", private), ("unseen", unseen))
    )
    classes = _classes(y, num_outputs)
    for name, labels in (("private", y), ("unseen", other_y)):
        strange = sorted(set(labels.tolist()) - set(classes))
        problems += [f"{name}: found labels {listed(strange)}, expected {listed(classes)}"] if strange else []
    if problems:
        raise UnfitError("the samples cannot be used: " + "; ".join(problems))
    shift, scale = value_range(torch.cat([x, other_x])) if len(shape) == 3 else (0.0, 1.0)
    return _samples(x, y, classes, shift, scale), _samples(other_x, other_y, classes, shift, scale)


def sample_shape(given: Arrays) -> tuple[int, ...] | None:
    """The shape of one sample; None if the arrays are flat, as they may be pictures or vectors."""
    if isinstance(given, Samples):
        return given.shape
    x = given[0] if isinstance(given, tuple | list) and len(given) == 2 else ()
    try:
        shape = tuple(x.shape if isinstance(x, Tensor) else np.shape(x))
    except ValueError:  # ragged rows, which `as_samples` refuses
        return None
    return {3: (1, *shape[1:]), 4: shape[1:]}.get(len(shape))


def _samples(x: Tensor, y: Tensor, classes: list[int], shift: float, scale: float) -> Samples:
    position = torch.searchsorted(torch.tensor(classes), y)
    return Samples(x / scale + shift, position, torch.arange(len(x)), tuple(map(str, classes)), shift, scale)


def _read(name: str, given: Arrays, shape: tuple[int, ...], problems: list[str]) -> tuple[Tensor, Tensor]:
    """x in float32 as (n, *shape) and y in int64; append what is wrong with them to `problems`."""
    nothing = torch.zeros(0, *shape), torch.zeros(0, dtype=torch.int64)
    if isinstance(given, Samples) or not (isinstance(given, tuple | list) and len(given) == 2):
        problems.append(f"{name}: pass both sets as (x, y), or both as Samples")
        return nothing
    found: list[str] = []
    x, y = _numbers("x", given[0], found), _numbers("y", given[1], found)
    if x is not None:
        x = _shaped(x, shape, found)
    if y is not None:
        y = _whole(y, found)
    if x is not None and y is not None and len(x) != len(y):
        found.append(f"{len(x)} samples but {len(y)} labels")
    problems += [f"{name}: {problem}" for problem in found]
    return nothing if found or x is None or y is None else (x, y)


def _numbers(name: str, values: Any, problems: list[str]) -> Tensor | None:
    """A float64 tensor; 8-bit x is scaled to [0, 1]."""
    try:
        found = values.detach().cpu() if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError):
        found = None
    if found is None or found.is_complex():
        problems.append(f"{name} is not an array of numbers")
    elif not found.numel():
        problems.append(f"{name} is empty")
    elif not found.double().isfinite().all():
        problems.append(f"{name} has {int((~found.double().isfinite()).sum())} values that are NaN or infinite")
    else:
        return found.double() / (255 if name == "x" and found.dtype == torch.uint8 else 1)
    return None


def _shaped(x: Tensor, shape: tuple[int, ...], problems: list[str]) -> Tensor | None:
    """Reshape x to (n, *shape), also from flat pictures or grey ones without a channel axis."""
    flat = (int(np.prod(shape)),)
    accepted = [shape, flat, shape[1:]] if len(shape) == 3 and shape[0] == 1 else [shape, flat]
    if tuple(x.shape[1:]) in accepted:
        return x.float().reshape(-1, *shape)
    problems.append(f"x has shape {tuple(x.shape)}, the net expects (n, {', '.join(map(str, shape))})")
    return None


def _whole(y: Tensor, problems: list[str]) -> Tensor | None:
    """Labels as int64 (n,), also from the floats and the (n, 1) that binary cross-entropy expects."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 1 and torch.equal(y, y.round()):
        return y.long()
    wrong = "has values that are not whole numbers" if y.ndim == 1 else f"has shape {tuple(y.shape)}, not (n,)"
    problems.append(f"y {wrong}: pass one class per sample")
    return None


def _classes(y: Tensor, num_outputs: int) -> list[int]:
    """The labels that the outputs stand for: 0..k−1; for one output 0 and 1, −1 and 1, or the two labels found."""
    if num_outputs > 1:
        return list(range(num_outputs))
    found = sorted(set(y.tolist()))
    if set(found) <= {0, 1} or len(found) != 2:
        return [-1, 1] if found == [-1] else [0, 1]
    return found


def value_range(x: Tensor) -> tuple[float, float]:
    """(shift, scale) such that x = (picture − shift) · scale with pictures in [0, 1]."""
    low, high = float(x.min()), float(x.max())
    if (low >= 0 and high <= 1) or low == high:
        return 0.0, 1.0
    return -low / (high - low), high - low
