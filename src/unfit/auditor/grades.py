"""The grades of a recovered sample, from the weakest, and who reads them. No PyTorch: help lists both."""

from __future__ import annotations

from typing import Final, Literal

Grade = Literal["trace", "recognisable", "exact"]
Audience = Literal["dpo", "tre", "auditor"]  # whom a report is for
GRADES: Final[tuple[Grade, ...]] = ("trace", "recognisable", "exact")
GRADE_WORDS: Final[dict[Grade, str]] = {
    "trace": "leaving a trace or more",
    "recognisable": "recognisable or exact",
    "exact": "exact",
}


def rank(grade: Grade | None) -> int:
    """From nothing, −1, upwards."""
    return -1 if grade is None else GRADES.index(grade)
