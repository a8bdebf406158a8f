"""The shape of one sample: decided from what the user says, what the data say, and what the weights say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Sides = tuple[int, ...]
FLAT_IMAGES = (28 * 28, 3 * 32 * 32)  # rows of MNIST and CIFAR; of other lengths, they are vectors unless told
LEAST_SIDE = 8  # of an image that nobody called one
CHANNELS = (1, 3)  # an image is grey or coloured


def sample_shape(axes: Sequence[int]) -> Sides | None:
    """The shape of a sample with these axes: a vector, or an image with its channels first; None if it is neither.

    (h, w) is a grey image. With a side of 1 it is no image but one column or one row, so it is a vector.
    """
    match tuple(axes):
        case (d,):
            return (d,)
        case (h, w):
            return (h * w,) if 1 in (h, w) else (1, h, w)
        case (h, w, c) if is_channels_last(axes):
            return (c, h, w)
        case (c, h, w):
            return (c, h, w)
    return None


def is_channels_last(axes: Sequence[int]) -> bool:
    """Whether a sample with these axes has its channels behind its rows and columns."""
    return len(axes) == 3 and axes[2] in CHANNELS and axes[0] not in CHANNELS


def arranged(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Samples (n, …) with each in its shape."""
    axes = x.shape[1:]
    if is_channels_last(axes):
        return np.moveaxis(x, -1, 1)
    shape = sample_shape(axes)
    return x if shape is None else x.reshape(len(x), *shape)


def shapes_to_try(said: Sides | None, data: Sides | None, weights: Iterable[Sides]) -> list[Sides]:
    """Possible shapes of one sample, the likeliest first; a model may refuse some.

    Args:
        said: What the user says: then it is that and nothing else.
        data: The shape of the samples that there are. Flat rows may be images all the same: of a well-known length
            they are what the weights say; of any other, they are vectors if the model takes these.
        weights: What the weights allow, the likeliest first.
    """
    if said is not None:
        return [said]
    if data is None:
        return [*weights]
    fitting = [shape for shape in weights if math.prod(shape) == math.prod(data)]
    if len(data) > 1:
        tried = [data, *fitting]
    elif data[0] in FLAT_IMAGES:
        tried = [*fitting, image_shape(data[0]), data]
    else:
        tried = [data, image_shape(data[0]), *fitting]
    return [*dict.fromkeys(tried)]


def ways(shape: Sides, has_steps: bool) -> list[tuple[Sides, Sides]]:
    """In which shapes a model may want samples, the likeliest first: that of a sample here, and its axes there.

    Args:
        shape: Of a sample; (steps, values) and (rows, columns) only if data or user have it so.
        has_steps: Whether the model has layers that go through steps, as recurrent ones do. A sample of steps is
            a vector here, unless it is square: then its steps may be the rows of an image.
    """
    match shape:
        case (h, w):
            is_image = (h == w and h >= LEAST_SIDE) or (not has_steps and 1 not in shape)
            own = (1, h, w) if is_image else (h * w,)
            return [(own, shape), (own, own), (own, (h * w,))]
        case (1, h, w) if has_steps:
            return [*ways((h, w), has_steps), (shape, shape), (shape, (h * w,))]
        case (d,):
            return [(shape, shape), *([(shape, (d, 1)), (shape, (1, d))] if has_steps else [])]
    return [(shape, shape), (shape, (math.prod(shape),))]


def image_shape(d: int) -> Sides:
    """d = s² is a grey square, d = 3s² a coloured one (never both). Anything else, or s < 8, is a vector."""
    for channels in CHANNELS:
        side = math.isqrt(d // channels)
        if side >= LEAST_SIDE and channels * side * side == d:
            return (channels, side, side)
    return (d,)
