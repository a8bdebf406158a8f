"""How long the work may take: one end for all of it, known wherever time is spent.

Long loops ask `is_over` and stop with what they have; a step that cannot be cut asks `seconds_left` before it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_end: ContextVar[float] = ContextVar("end", default=math.inf)


@contextmanager
def limited(seconds: float | None, began: float | None = None) -> Iterator[None]:
    """What is done inside ends after so many seconds, from now on or since `began`; an earlier end holds."""
    before = _end.get()
    start = time.perf_counter() if began is None else began
    token = _end.set(before if seconds is None else min(before, start + seconds))
    try:
        yield
    finally:
        _end.reset(token)


def seconds_left() -> float:
    """Infinite without a limit; below zero where it has passed."""
    return _end.get() - time.perf_counter()


def is_over() -> bool:
    return seconds_left() < 0
