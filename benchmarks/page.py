"""docs/results.md, a section at a time: what a benchmark measures replaces its own section and no other."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable
from datetime import date
from pathlib import Path

import torch

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "results.md"
SEEDS = (0, 1, 2)


def write_section(title: str, lines: Iterable[str]) -> None:
    """Replace the section `## title`, or add it at the end; it says when and where it was measured."""
    where = f"{platform.machine()}, {os.cpu_count()} cores, no accelerator, PyTorch {torch.__version__}; {date.today()}."
    section = "\n".join([f"## {title}", "", f"*Measured on {where}*", "", *lines]) + "\n"
    whole = RESULTS.read_text(encoding="utf-8")
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.M | re.S)
    if pattern.search(whole):
        whole = pattern.sub(lambda _: section + "\n", whole)
    else:
        whole = whole.rstrip() + "\n\n" + section
    RESULTS.write_text(whole.rstrip() + "\n", encoding="utf-8")


def rows_of(script: str, cases: dict[str, str]) -> list[str]:
    """A row of a table for each case, printed by the script in a process of its own: its largest size is then the case's."""
    return [
        f"| {words} | {subprocess.run([sys.executable, script, case], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()} |"
        for case, words in cases.items()
    ]


def spread(values: list[float], scale: float = 1, digits: int = 1) -> str:
    """The mean, and the extremes in brackets where they differ."""
    low, mean, high = (f"{scale * f(values):.{digits}f}" for f in (min, statistics.mean, max))
    return mean if low == high else f"{mean} ({low}–{high})"
