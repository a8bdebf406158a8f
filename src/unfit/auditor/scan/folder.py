"""A whole registry: one row for each file, here or on a Ray cluster, resumable after a kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from unfit.attacker.sweep.cluster import on_cluster
from unfit.auditor.scan.data import Side
from unfit.auditor.scan.findings import FolderRecord, ScanRecord
from unfit.auditor.scan.scan import file_facts, scanned
from unfit.base.errors import UnfitError
from unfit.base.files import Strict
from unfit.base.formats.kinds import kind_of
from unfit.base.held import FOLDERS, held_in, is_known
from unfit.base.progress import Report, quiet
from unfit.base.store import Store, read_lines

LINES = "files.jsonl"
HIDDEN = "."


class Line(Strict):
    """What is kept of one finished file: the size and time it had, and its record or why there is none."""

    name: str
    size: int
    changed: int
    record: ScanRecord | None = None
    failed: str | None = None


@dataclass(frozen=True, eq=False)
class Job:
    """What is scanned with what: the same for all files."""

    folder: Path
    own: Side | None
    other: Side | None
    examples: bool

    def run(self, name: str) -> Line:
        """One file. What cannot be read is said, and the others are scanned."""
        path = self.folder / name
        size, changed = _stamp(path)
        try:
            began = time.perf_counter()
            record = scanned(held_in(path), name, file_facts(path), self.own, self.other, self.examples, began)
            return Line(name=name, size=size, changed=changed, record=record)
        except UnfitError as error:
            return Line(name=name, size=size, changed=changed, failed=str(error).removeprefix(f"{path}: "))

    def key(self) -> dict[str, Any]:
        """What the rows follow from, besides the files."""
        sides = [None if each is None else [each.num, each.digest] for each in (self.own, self.other)]
        return {"scan": str(self.folder), "data": sides, "examples": self.examples, "version": version("unfit")}


def scan_folder(
    job: Job,
    given: Sequence[str] | None = None,
    parts: Path | None = None,
    ray: str | None = None,
    progress: Report = quiet,
) -> FolderRecord:
    """Scan every file of a folder, or those that are given.

    `parts` keeps finished rows; after a kill the same call takes them from there.
    """
    names = list(given or _models(job.folder))
    if not names:
        raise UnfitError(f"{job.folder}: there is no file in it that can be scanned")
    store = None if parts is None else Store(parts, "scan", job.key(), lists=(LINES,))
    done: dict[str, Line] = {}
    if store is not None:
        store.open()
        done = {
            line.name: line for line in read_lines(store.folder / LINES, Line) if _is_current(job.folder, line)
        }
    left = [name for name in names if name not in done]
    for i, line in enumerate(_lines(job, left, ray), len(done) + 1):
        done[line.name] = line
        if store is not None:
            store.append(LINES, line)
        progress(i / len(names), f"{i} of {len(names)} files")
    lines = [done[name] for name in names]
    return FolderRecord(
        folder=str(job.folder),
        files=tuple(line.record for line in lines if line.record is not None),
        failed={line.name: line.failed for line in lines if line.failed is not None},
    )


def _lines(job: Job, names: Sequence[str], ray: str | None) -> Iterator[Line]:
    if ray is None:
        yield from map(job.run, names)
    else:
        run: Callable[[str], Line] = job.run
        yield from on_cluster(ray, run, names)


def _models(folder: Path) -> Iterator[str]:
    """Files of known kinds, by their names inside the folder; a folder of one model is one row."""
    stack = [folder]
    while stack:
        here = stack.pop()
        for path in sorted(here.iterdir(), reverse=True):
            if path.name.startswith(HIDDEN) or path.is_symlink():
                continue
            if path.is_dir() and kind_of(path, {}) in (*FOLDERS, "run"):
                yield str(path.relative_to(folder))
            elif path.is_dir():
                stack.append(path)
            elif is_known(path):
                yield str(path.relative_to(folder))


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _is_current(folder: Path, line: Line) -> bool:
    path = folder / line.name
    return path.exists() and _stamp(path) == (line.size, line.changed)
