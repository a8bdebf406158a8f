"""The pages of evidence: benchmarks store their sections as JSON in benchmarks/stored, and `make results` renders them.

`PAGES` says which page a section is on, `headlines` which numbers the index of evidence and the README quote. The pages of docs/reproduction are rendered, too, from what is stored there. Numbers that verdicts quote are counts of a section. They are written to src/unfit/auditor/measured.json along with the pages.

python benchmarks/page.py                     # render
python benchmarks/page.py take TITLE [CODE…]  # store a section as its page has it now, written by hand

CODE, a room or a module under src/unfit such as `attacker` or `lab/fit.py`, says what the section measures: where
that has another hash today, the page says so. Who takes a section with CODE says that today's code was measured.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

from pydantic import Field

import headlines
from unfit.base.files import read_as, write_json
from unfit.base.times import duration
from unfit.base.versions import versions
from unfit.lab.measurement import SOURCE, Measurement, Table, hashes, machine, markdown, older, store

ROOT = Path(__file__).parents[1]
DOCS, STORED = ROOT / "docs", Path(__file__).parent / "stored"
README = ROOT / "README.md"
MEASURED = SOURCE / "auditor" / "measured.json"
SEEDS = (0, 1, 2)
BUSY = 0.1  # cores that others keep busy; beside more, seconds measure them too
LOOK = 2.0  # seconds of looking at the machine before a benchmark that measures seconds
SECONDS = re.compile(r"(seconds|.*, s)( .*)?")  # columns of them; `processor seconds` do not depend on others
HOW = """`make bench` measures these sections and stores them in `benchmarks/stored`; `make results` renders what is stored. A section
says if the code that it measured has changed since. If other processes kept the machine busy, a benchmark states no seconds.
CIFAR-10 is read from `data_batch_1.bin` and `test_batch.bin`; images decoded from JPEG copies differ slightly from the official
ones. Seeds 0, 1, 2 draw the training samples and the initial weights. Numbers are means over the seeds, with the extremes in
brackets.
"""
HEADS = {  # of each page, by the name of its file
    "reconstruction": "# What is recovered\n\nBy attack, optimiser and kind of sample, each with its control on unseen samples.",
    "false-positives": "# False positives: how often is a verdict wrong?\n\nProofs on samples that are known, and audits of samples that a model was *not* trained on. Tables call those *strangers*.",
    "performance": "# Reproduction of the papers, and performance\n\nWhat the papers report and what is measured here, both solvers in one race, and what an attack costs.",
}
PAGES = {  # of sections that are on another page than the first of `HEADS`
    "confidence-does-it-mean-true": "false-positives",
    "embeddings-how-many-verdicts-are-false": "false-positives",
    "proofs-how-many-are-false": "false-positives",
    "samples-in-another-part-of-the-file-does-anything-pass-unseen": "false-positives",
    "scan-how-many-leaks-are-false": "false-positives",
    "strangers-with-a-base-how-many-leaks-are-false": "false-positives",
    "strangers-without-a-base-how-many-leaks-are-false": "false-positives",
    "the-zoo-does-the-verdict-hold": "false-positives",
    "two-copies-and-several-checkpoints-controls": "false-positives",
    "a-sweep-against-single-runs": "performance",
    "matching-at-scale": "performance",
    "pooling-a-sweep": "performance",
    "scan-a-registry-killed-and-resumed": "performance",
    "scan-how-long-it-takes": "performance",
    "targets-h22-s-table-1-in-hundreds-of-steps": "performance",
    "the-circle": "performance",
    "the-papers-claims-where-they-do-not-hold-here-and-what-else-we-found": "performance",
    "the-papers-solver-against-the-fast-one": "performance",
    "the-papers-solver-with-many-settings": "performance",
    "what-the-kkt-attack-costs": "performance",
}


class Section(Measurement):
    """What a benchmark measured, or a person wrote down."""

    place: int  # on the page
    others: float | None = None  # cores that others kept busy meanwhile
    content: tuple[Table | tuple[str, ...], ...]  # tables, and lines of words
    counts: dict[str, int | float] = Field(default_factory=dict)  # what a verdict quotes

    @property
    def file(self) -> Path:
        return STORED / f"{re.sub(r'[^a-z0-9]+', '-', self.title.lower()).strip('-')}.json"

    @property
    def page(self) -> str:
        return PAGES.get(self.file.stem, next(iter(HEADS)))

    @property
    def anchor(self) -> str:
        """What a link to it ends with."""
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")

    @property
    def is_current(self) -> bool:
        """Whether today's code is what was measured."""
        return bool(self.code) and not older(self)

    @property
    def text(self) -> str:
        return markdown([[f"## {self.title}"], *self.origin, *self.content])

    @property
    def origin(self) -> list[list[str]]:
        took = f" in {duration(self.seconds)}" if self.seconds is not None else ""
        words = [f"Measured{took} on {self.machine}; {self.date}."] if self.machine else []
        words += [f"Others kept {self.others:.2f} cores busy."] if self.others is not None else []
        words += older(self)
        words += ["No hash of the code is stored: it may have changed since."] if not self.code else []
        return [[f"*{' '.join(words)}*"]] if words else []


def without_seconds(table: Table) -> Table:
    kept = [i for i, name in enumerate(table.columns) if not SECONDS.fullmatch(name)]
    columns, *rows = (tuple(cells[i] for i in kept) for cells in (table.columns, *table.rows))
    return Table(columns=columns, rows=tuple(rows))


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
    ran, watch, began = hashes(code), Watch(), time.perf_counter()
    content = parse(lines)
    others = watch.others
    if timed:
        refuse_if_busy(others)
    if others > BUSY:
        content = tuple(without_seconds(part) if isinstance(part, Table) else part for part in content)
    found = Section(
        title=title,
        place=place_of(title),
        date=str(date.today()),
        machine=machine(),
        versions=versions(),
        code=ran,
        seconds=None if others > BUSY else round(time.perf_counter() - began, 1),
        others=others,
        content=content,
    )
    store(found, found.file)
    render()


def parse(lines: Iterable[str]) -> tuple[Table | tuple[str, ...], ...]:
    """Words and tables of a piece of Markdown."""
    parts: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("|") != bool(parts[-1] and parts[-1][0].startswith("|")):
            parts.append([])
        parts[-1].append(line)
    found: list[Table | tuple[str, ...]] = []
    for part in parts:
        if part and part[0].startswith("|"):
            columns, _, *rows = map(_cells, part)
            found.append(Table(columns=columns, rows=tuple(rows)))
        elif words := "\n".join(part).strip("\n"):
            found.append(tuple(words.split("\n")))
    return tuple(found)


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1]))


def stored() -> list[Section]:
    return sorted((read_as(Section, path) for path in STORED.glob("*.json")), key=lambda section: section.place)


def place_of(title: str) -> int:
    """Its place if it is there already, else the last."""
    every = stored()
    return next((s.place for s in every if s.title == title), max((s.place for s in every), default=0) + 1)


def page(name: str) -> str:
    texts = [section.text for section in stored() if section.page == name]
    return "\n".join((f"{HEADS[name]}\n", HOW, *texts)).rstrip() + "\n"


def quoted() -> dict[str, dict[str, int | float]]:
    """The counts of every section that has some, by the name of its file."""
    return {section.file.stem: section.counts for section in stored() if section.counts}


def render() -> None:
    for name in HEADS:
        (DOCS / f"{name}.md").write_text(page(name), encoding="utf-8")
    for path in (DOCS / "results.md", README):
        if path.exists():
            path.write_text(headlines.filled(path.read_text("utf-8"), stored()), encoding="utf-8")
    write_json(MEASURED, quoted())


def take(title: str, code: Sequence[str]) -> None:
    """Store what a person wrote under a title of the page; numbers of a benchmark keep what is known of them."""
    text = "\n".join((DOCS / f"{name}.md").read_text("utf-8") for name in HEADS)
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.M | re.S)
    if not found:
        sys.exit(f"no page of evidence has a section {title!r}")
    known = next(
        (s.model_dump() for s in stored() if s.title == title), {"title": title, "place": place_of(title)}
    )
    written = re.sub(r"\A\s*\*(Measured|Others|Older|No hash).*\*\n", "", found[1])
    taken = hashes(code) or known.get("code", {})
    found = Section(**known | {"code": taken, "content": parse(written.splitlines())})
    store(found, found.file)


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
    from unfit.lab.reproduce.catalogue import ITEMS  # Matplotlib: benchmarks that store a section do without
    from unfit.lab.reproduce.index import write_pages

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["take"])
    parser.add_argument("title", nargs="?", default="")
    parser.add_argument("code", nargs="*")
    given = parser.parse_args()
    if given.what == "take":
        take(given.title, given.code)
    render()
    write_pages(DOCS / "reproduction", ITEMS)
