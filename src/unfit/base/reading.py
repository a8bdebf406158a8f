"""What a user may say about a model's file. No PyTorch here: the command line makes its options of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from unfit.base.files import Strict

MAX_SIDE = 65_536  # of an image: no format holds larger ones
MAX_DIGITS = 6  # of a size: a longer one is a mistake


def sizes(text: object) -> object:
    """`32x32` as (32, 32)."""
    if not isinstance(text, str):
        return (text,) if isinstance(text, int) else text
    parts = text.lower().split("x")
    if not all(part.isdecimal() and len(part) <= MAX_DIGITS for part in parts):
        raise ValueError(f"{text!r} is not a size such as 32 or 32x32")
    return tuple(map(int, parts))


def _shape(text: object) -> object:
    """`8x8` is a grey image of one channel."""
    found = sizes(text)
    return (1, *found) if isinstance(found, tuple) and len(found) == 2 else found


def check_image(shape: tuple[int, ...]) -> tuple[int, ...]:
    if min(shape) <= 0:
        raise ValueError(f"expected numbers above 0, found {min(shape)}")
    if max(shape) > MAX_SIDE and len(shape) > 1:
        raise ValueError(f"no image is {max(shape)} wide or high")
    return shape


Shape = Annotated[
    tuple[int, ...], BeforeValidator(_shape), Field(min_length=1, max_length=3), AfterValidator(check_image)
]


def _absolute_code(code: str) -> str:
    """FILE.py:NAME, the same file whatever folder one is in later."""
    file, colon, name = code.rpartition(":")
    return f"{Path(file).absolute()}:{name}" if colon else code


@dataclass(frozen=True)
class Metavar:
    """What stands for the value of an option in the help of a command."""

    name: str


class Reading(Strict):
    """How a checkpoint becomes a model, where the file alone does not say.

    Example:
        >>> reading = unfit.Reading(input_shape="25x25")
    """

    model: Annotated[
        Annotated[str, AfterValidator(_absolute_code)] | None,
        Field(description="Your code: NAME() builds the model that these weights belong to."),
        Metavar("FILE.py:NAME"),
    ] = None
    layer: Annotated[
        str | None,
        Field(description="The dense layer to attack; default: the first that sees each sample once."),
    ] = None
    input_shape: Annotated[
        Shape | None,
        Field(description="Shape of one sample, such as 8x8 or 3x32x32. Default: from data or weights."),
        Metavar("SHAPE"),
    ] = None
