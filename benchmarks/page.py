"""docs/results.md: benchmarks store their sections as JSON in benchmarks/stored, and `make results` renders them.

Numbers that verdicts quote are counts of a section. They are written to src/unfit/auditor/measured.json along with the page.

python benchmarks/page.py                     # render
python benchmarks/page.py take TITLE [CODE…]  # store a section as docs/results.md has it now, written by hand

CODE, a room or a module under src/unfit such as `attacker` or `lab/fit.py`, says what the section measures: where
that has another hash today, the page says so. Who takes a section with CODE says that today's code was measured.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

import torch
from pydantic import Field

from unfit.base.files import Strict, read_as, write_json

ROOT = Path(__file__).parents[1]
DOCS, STORED, SOURCE = ROOT / "docs", Path(__file__).parent / "stored", ROOT / "src" / "unfit"
RESULTS = DOCS / "results.md"
MEASURED = SOURCE / "auditor" / "measured.json"
SEEDS = (0, 1, 2)
BUSY = 0.1  # cores that others keep busy; beside more, seconds measure them too
LOOK = 2.0  # seconds of looking at the machine before a benchmark that measures seconds
SECONDS = re.compile(r"(seconds|.*, s)( .*)?")  # columns of them; `processor seconds` do not depend on others
HEAD = """# Results

`make bench` measures the sections of this page and stores them in `benchmarks/stored`; `make results` renders what is
stored. A section says if the code that it measured has changed since. Beside other work a benchmark states no seconds.
CIFAR-10 is read from `data_batch_1.bin` and `test_batch.bin`; pictures decoded from JPEG copies differ slightly from the
official ones. Seeds 0, 1, 2 draw the training samples and the start. Numbers are means over the seeds, with the extremes
in brackets.
"""


class Table(Strict):
    columns: list[str]
    rows: list[list[str]]

    @property
    def lines(self) -> list[str]:
        written = [f"| {' | '.join(cells)} |" for cells in (self.columns, *self.rows)]
        return [written[0], "|---" * len(self.columns) + "|", *written[1:]]

    def without_seconds(self) -> Table:
        kept = [i for i, name in enumerate(self.columns) if not SECONDS.fullmatch(name)]
        return Table(columns=[self.columns[i] for i in kept], rows=[[row[i] for i in kept] for row in self.rows])


class Section(Strict):
    """What was measured, when, where and by which code; `machine` is None for what a person wrote down."""

    title: str
    place: int  # on the page
    date: str | None = None
    machine: str | None = None
    others: float | None = None  # cores that others kept busy meanwhile
    code: dict[str, str] = Field(
        default_factory=dict
    )  # hashes by room or module; empty: from before they were kept
    content: list[list[str] | Table]  # lines of words, and tables
    counts: dict[str, int | float] = Field(default_factory=dict)  # what a verdict quotes

    @property
    def file(self) -> Path:
        return STORED / f"{re.sub(r'[^a-z0-9]+', '-', self.title.lower()).strip('-')}.json"

    @property
    def lines(self) -> list[str]:
        parts = [part.lines if isinstance(part, Table) else part for part in self.content]
        return [f"## {self.title}", "", *self.origin, *(line for part in parts for line in (*part, ""))]

    @property
    def origin(self) -> list[str]:
        changed = [name for name, stored in self.code.items() if stored != hash_of(name)]
        words = [f"Measured on {self.machine}; {self.date}."] if self.machine else []
        words += [f"Others kept {self.others:.2f} cores busy."] if self.others is not None else []
        words += [f"Older than the code: {', '.join(changed)} changed since."] if changed else []
        words += ["No hash of the code is stored: it may have changed since."] if not self.code else []
        return [f"*{' '.join(words)}*", ""] if words else []


# What the code is ----------------------------------------------------------------------------------------------


def hash_of(name: str) -> str:
    """Of a room or a module under src/unfit; "" if it is gone."""
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
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)  # type: ignore[operator]
    return "\n".join(short for line in lines if (short := re.sub(r"(^|\s)\s*# .*", "", line).rstrip()))


# What else the machine does ------------------------------------------------------------------------------------


class Watch:
    """How many cores other processes have kept busy since it was made."""

    def __init__(self) -> None:
        self.began, self.busy, self.own = time.perf_counter(), _busy_seconds(), _own_seconds()

    @property
    def others(self) -> float:
        return round(max(0.0, self.seconds) / (time.perf_counter() - self.began), 2)

    @property
    def seconds(self) -> float:
        """Of processors, spent by others."""
        return _busy_seconds() - self.busy - (_own_seconds() - self.own)


def _busy_seconds() -> float:
    """Of all cores since the machine started: user, nice, system, irq, softirq; not idle, not waiting for a disk."""
    ticks = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]))
    return (sum(ticks[:3]) + sum(ticks[5:7])) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    return sum(os.times()[:4])  # children count once they have ended


def refuse_if_busy(others: float) -> None:
    if others > BUSY:
        sys.exit(
            f"others keep {others:.2f} cores busy: seconds would be theirs too. Run this alone on the machine."
        )


# Sections ------------------------------------------------------------------------------------------------------


def write_section(title: str, lines: Iterable[str], code: Sequence[str], timed: bool = False) -> None:
    """Measure, which is to take the lines one by one; store the section, and render the page.

    Beside others the columns of seconds are left out; a section that is nothing else (`timed`) is not stored at all.
    """
    if timed:
        watch = Watch()
        time.sleep(LOOK)
        refuse_if_busy(watch.others)
    hashes, watch = {name: hash_of(name) for name in code}, Watch()
    content = parse(lines)
    others = watch.others
    if timed:
        refuse_if_busy(others)
    if others > BUSY:
        content = [part.without_seconds() if isinstance(part, Table) else part for part in content]
    store(Section(title=title, place=place_of(title), date=str(date.today()), machine=machine(), others=others, code=hashes, content=content))  # fmt: skip
    render()


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, no accelerator, PyTorch {torch.__version__}"


def parse(lines: Iterable[str]) -> list[list[str] | Table]:
    """Words and tables of a piece of Markdown."""
    parts: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("|") != bool(parts[-1] and parts[-1][0].startswith("|")):
            parts.append([])
        parts[-1].append(line)
    found: list[list[str] | Table] = []
    for part in parts:
        if part and part[0].startswith("|"):
            cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])] for line in part]
            found.append(Table(columns=cells[0], rows=cells[2:]))
        elif words := "\n".join(part).strip("\n"):
            found.append(words.split("\n"))
    return found


def stored() -> list[Section]:
    return sorted((read_as(Section, path) for path in STORED.glob("*.json")), key=lambda section: section.place)


def place_of(title: str) -> int:
    """Its place if it is there already, else the last."""
    every = stored()
    return next((s.place for s in every if s.title == title), max((s.place for s in every), default=0) + 1)


def store(section: Section) -> None:
    STORED.mkdir(exist_ok=True)
    write_json(section.file, section.model_dump(mode="json"))


def page() -> str:
    return "\n".join([HEAD, *(line for section in stored() for line in section.lines)]).rstrip() + "\n"


def quoted() -> dict[str, dict[str, int | float]]:
    """The counts of every section that has some, by the name of its file."""
    return {section.file.stem: section.counts for section in stored() if section.counts}


def render() -> None:
    RESULTS.write_text(page(), encoding="utf-8")
    write_json(MEASURED, quoted())


def take(title: str, code: Sequence[str]) -> None:
    """Store what a person wrote under a title of the page; numbers of a benchmark keep what is known of them."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", RESULTS.read_text("utf-8"), re.M | re.S)
    if not found:
        sys.exit(f"docs/results.md has no section {title!r}")
    known = next(
        (s.model_dump() for s in stored() if s.title == title), {"title": title, "place": place_of(title)}
    )
    written = re.sub(r"\A\s*\*(Measured|Others|Older|No hash).*\*\n", "", found[1])
    hashes = {name: hash_of(name) for name in code} or known.get("code", {})
    store(Section(**known | {"code": hashes, "content": parse(written.splitlines())}))


# What benchmarks share -----------------------------------------------------------------------------------------


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["take"])
    parser.add_argument("title", nargs="?", default="")
    parser.add_argument("code", nargs="*")
    given = parser.parse_args()
    if given.what == "take":
        take(given.title, given.code)
    render()
