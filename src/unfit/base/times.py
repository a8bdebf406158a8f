"""Times as people write them, and as they read them."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BeforeValidator, Field

from unfit.base.errors import UsageError

UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_seconds(given: object) -> object:
    """`90s`, `1.5m`, `1h` or `90` in seconds; what is no text is left as it is."""
    if not isinstance(given, str):
        return given
    number, unit = (given[:-1], given[-1]) if given[-1:] in UNITS else (given, "s")
    try:
        found = float(number) * UNITS[unit]
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found > 0):
        raise ValueError(f"{given!r} is not a time such as 60s, 10m or 1h")
    return found


def as_seconds(given: float | str | None, name: str) -> float | None:
    """The same for the argument of a function, which `name` names."""
    try:
        found = parse_seconds(given)
    except ValueError as error:
        raise UsageError(f"`{name}`: {error}") from error
    assert found is None or isinstance(found, int | float)
    return found


Seconds = Annotated[float, Field(gt=0), BeforeValidator(parse_seconds)]
"""A setting in seconds, which may be given as text too."""


def duration(seconds: float | None) -> str:
    """As coarse as the estimate is."""
    if seconds is None:
        return ""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "1 s"
