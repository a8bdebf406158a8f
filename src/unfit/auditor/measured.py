"""What verdicts quote of the benchmarks: measured.json, which `make results` writes from benchmarks/stored."""

from __future__ import annotations

import json
from decimal import ROUND_UP, Context
from functools import cache
from importlib.resources import files
from typing import Any

FALSE_PROOFS = "proofs-how-many-are-false"


@cache
def measured() -> dict[str, dict[str, Any]]:
    """The counts of each stored section that has some; read when a verdict first needs one."""
    content: dict[str, dict[str, Any]] = json.loads(
        files(__package__).joinpath("measured.json").read_text("utf-8")
    )
    return content


def false_proofs() -> str:
    """How often a sample that was called exact was not: benchmarks/proofs.py."""
    counts = measured()[FALSE_PROOFS]
    at_most = Context(prec=2, rounding=ROUND_UP).create_decimal(repr(100 * counts["at_most"]))
    return (
        f"in tests on small models with known samples, {counts['num_false']:,} of {counts['num_exact']:,} exact "
        f"reconstructions were wrong: at most {at_most}%, with {counts['confidence']:.0%} confidence"
    )
