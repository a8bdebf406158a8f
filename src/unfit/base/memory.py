"""How much memory the work may take. Said in one place, and asked before anything large is allocated."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from unfit.base.errors import UnfitError, UsageError

VARIABLE = "UNFIT_MEMORY"  # in GB
USUAL = 6.0  # GB: fits into a machine with 8
PROCESS = 0.6e9  # bytes: Python, PyTorch and SciPy, before they hold anything
VALUES_AT_ONCE = 2**24  # of a step that goes through its rows in blocks: 64 MB in float32, a few times over
FLOAT, DOUBLE = 4, 8  # bytes of a value
GB = 1e9


def most_bytes() -> float:
    """The limit: UNFIT_MEMORY, or what is usual."""
    text = os.environ.get(VARIABLE)
    if not text:
        return USUAL * GB
    try:
        asked = float(text)
    except ValueError:
        asked = math.nan
    if not 0 < asked < math.inf:
        raise UsageError(f"{VARIABLE} is {text!r}, not a number of GB such as 12")
    return asked * GB


def check_memory(needs: Mapping[str, float], instead: str) -> None:
    """Refuse work that needs more than the limit. `needs` has bytes by what takes them, `instead` what to do."""
    total, most = PROCESS + sum(needs.values()), most_bytes()
    if total <= most:
        return
    large = [f"{what} {num / GB:.1f} GB" for what, num in needs.items() if num > 0.05 * total]
    parts = ", ".join(large) or "nearly all of it for the program itself"
    raise UnfitError(
        f"too large: this needs about {total / GB:.1f} GB of memory ({parts}), and the limit is "
        f"{most / GB:.1f} GB. {instead}, or set {VARIABLE}={math.ceil(total / GB)} on a machine with that many GB"
    )


def rows_at_once(values_of_a_row: int, most: int | None = None) -> int:
    """How many rows of this size make one block."""
    rows = max(1, VALUES_AT_ONCE // max(1, values_of_a_row))
    return rows if most is None else min(rows, most)
