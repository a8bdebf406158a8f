"""From a measurement to a page: what it found is stored with the code and the machine, and rendered as Markdown.

`docs/results.md` and `docs/reproduction` are pages of stored measurements. They say which code has changed since.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import torch
from pydantic import Field

from unfit.base.files import Strict, new_file, write_json

SOURCE = Path(__file__).parents[1]
TRAINING = ("base/nets.py", *(f"lab/{name}.py" for name in ("fit", "settle", "trainee", "training")))
MEASURES = ("attacker", "auditor", *TRAINING)  # what an audit of a target that is trained here depends on


class Measurement(Strict):
    """What was measured, by which code, on which machine. Who stores one adds fields for what was found."""

    title: str
    date: str | None = None
    machine: str | None = None  # None: a person wrote it down
    versions: dict[str, str] = Field(default_factory=dict)
    code: dict[str, str] = Field(default_factory=dict)  # hashes by room or module under src/unfit; empty: not kept
    seconds: float | None = None  # that it took


def store(measurement: Measurement, path: Path) -> None:
    """Replace what is stored there, whole or not at all."""
    with new_file(path, force=True) as file:
        write_json(file, measurement.model_dump(mode="json"))


def machine() -> str:
    """Where something is measured; the version of PyTorch says for which accelerator it was built."""
    cores = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    return f"{platform.machine()}, {cores}, PyTorch {torch.__version__}"


# Which code ------------------------------------------------------------------------------------------------------


def hashes(names: Iterable[str]) -> dict[str, str]:
    return {name: hash_of(name) for name in names}


@cache
def hash_of(name: str) -> str:
    """Of a room or a module under src/unfit, as it was when this process first asked; "" if it is gone."""
    place = SOURCE / name
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    whole = "".join(f"{path.relative_to(SOURCE).as_posix()}\n{bare(path.read_text('utf-8'))}\n" for path in files)
    return hashlib.sha256(whole.encode()).hexdigest()[:12] if files else ""


def bare(code: str) -> str:
    """Without comments, docstrings and empty lines, which change no number."""
    lines = code.splitlines()
    for node in ast.walk(ast.parse(code)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno + 1)
    return "\n".join(short for line in lines if (short := re.sub(r"(^|\s)\s*# .*", "", line).rstrip()))


def older(*measured: Measurement) -> list[str]:
    """A sentence about the code that has changed since any of these was measured; none if that code is current."""
    code = [item for each in measured for item in each.code.items()]
    changed = dict.fromkeys(name for name, stored in code if stored != hash_of(name))
    return [f"Older than the code: {', '.join(changed)} changed since."] if changed else []


# Markdown --------------------------------------------------------------------------------------------------------


class Table(Strict):
    """Of cells as they are read: a bar in one of them, as in |r|, is escaped on a page."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def lines(self) -> list[str]:
        named = "".join(f" {_escaped(name)} |" if name else " |" for name in self.columns)
        rows = [f"| {' | '.join(map(_escaped, cells))} |" for cells in self.rows]
        return [f"|{named}", "|---" * len(self.columns) + "|", *rows]


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


Passage = Table | Sequence[str]
"""A table, or lines of words."""


def markdown(parts: Iterable[Passage]) -> str:
    """An empty line parts them."""
    written = (part.lines if isinstance(part, Table) else part for part in parts)
    return "\n".join(line for lines in written for line in (*lines, ""))
