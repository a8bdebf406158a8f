"""What a user may say about the samples of an audit. No PyTorch here: the command line makes its options of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from unfit.base.reading import Metavar, Reading, check_image, sizes


def _absolute(path: object) -> object:
    """The same place, whatever folder one is in later."""
    return path if path is None else str(Path(str(path)).absolute())


def _absolute_source(name: str) -> str:
    from unfit.auditor.sources import absolute_name

    return absolute_name(name)


FilePath = Annotated[str, BeforeValidator(_absolute)]
SourceName = Annotated[str, AfterValidator(_absolute_source)]


def _numbers(text: object) -> object:
    """`0.5,0.4,0.3` or `1/255` as numbers."""
    if not isinstance(text, str):
        return (text,) if isinstance(text, int | float) else text
    try:
        found = tuple(_ratio(part) for part in text.split(","))
    except (ValueError, ZeroDivisionError):
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise ValueError(f"{text!r} is not a number such as 0.5 or 1/255, or several such as 0.5,0.4,0.3")
    return found


def _ratio(text: str) -> float:
    above, slash, below = text.partition("/")
    return float(above) / float(below) if slash else float(above)


def _number(text: object) -> object:
    numbers = _numbers(text)
    return numbers[0] if isinstance(numbers, tuple) and len(numbers) == 1 else text


def _square(text: object) -> object:
    found = sizes(text)
    return found * 2 if isinstance(found, tuple) and len(found) == 1 else found


def _positive(values: tuple[float, ...]) -> tuple[float, ...]:
    if min(values) <= 0:
        raise ValueError(f"expected numbers above 0, found {min(values):g}")
    return values


Number = Annotated[float, BeforeValidator(_number)]
Numbers = Annotated[tuple[float, ...], BeforeValidator(_numbers), Field(min_length=1)]
Size = Annotated[tuple[int, int], BeforeValidator(_square), AfterValidator(check_image)]


class DataReading(Reading):
    """How a checkpoint becomes a model, and which samples it was trained on."""

    data: Annotated[
        SourceName | None,
        Field(description="Training data: npz:FILE, csv:FILE:LABEL, images:DIR, … Not needed for a run folder."),
    ] = None
    members: Annotated[
        FilePath | None,
        Field(description="JSON list of the training samples' indices in `data`."),
        Metavar("FILE"),
    ] = None
    unseen: Annotated[
        SourceName | None,
        Field(description="Samples it was not trained on, the control. Default: the rest of the data."),
    ] = None
    num_unseen: Annotated[
        int | None,
        Field(
            gt=0,
            description="Number of unseen samples. Default: all of `unseen`, or the number of training samples.",
        ),
    ] = None
    classes: Annotated[
        str | None, Field(description="`split` (the papers' two groups), `all`, or a number: the first classes.")
    ] = None
    feature_names: Annotated[
        FilePath | None,
        Field(description="Names of a table's columns: one per line, or a JSON list. Default: its header."),
        Metavar("FILE"),
    ] = None
    resize: Annotated[
        Size | None, Field(description="images: resize to 32 or HxW, as in training."), Metavar("SIZE")
    ] = None
    scale: Annotated[
        Number | None,
        Field(description="Preprocessing: multiply the data by this, such as 255 or 1/255."),
        Metavar("NUMBER"),
    ] = None
    mean: Annotated[
        Numbers | None,
        Field(description="Preprocessing: then subtract this; one number, or one per channel or column."),
        Metavar("NUMBERS"),
    ] = None
    std: Annotated[
        Annotated[Numbers, AfterValidator(_positive)] | None,
        Field(description="Preprocessing: then divide by this."),
        Metavar("NUMBERS"),
    ] = None
    center: Annotated[
        bool,
        Field(description="Preprocessing: subtract the mean of the training samples, as in the papers."),
    ] = False
    as_is: Annotated[
        bool,
        Field(description="Preprocessing: none; images in [0, 1]. Default, except for a run folder."),
    ] = False

    @model_validator(mode="after")
    def _one_preprocessing(self) -> Self:
        changed = [f"`{name}`" for name in ("scale", "mean", "std") if getattr(self, name) is not None]
        given = ["`center`"] * self.center + ["`as_is`"] * self.as_is + changed
        if (self.center or self.as_is) and len(given) > 1:
            raise ValueError(f"{' and '.join(given)} contradict one another: say how the model saw the data once")
        return self
