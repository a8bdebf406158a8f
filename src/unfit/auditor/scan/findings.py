"""What a scan says: one finding for each kind of thing in a file, and a record of the whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from unfit.auditor.scan.known import LEAKS, Holds, Severity
from unfit.base.errors import clean
from unfit.base.files import Strict

SCHEMA_VERSION = 1
Outcome = Literal["found", "nothing found", "incomplete"]
EXIT_CODES: dict[Outcome, int] = {"nothing found": 0, "found": 1, "incomplete": 3}
ORDER: dict[Severity, int] = {"high": 0, "medium": 1, "low": 2, "note": 3}
MOST_EXAMPLE = 120  # characters
WORDS: dict[Holds, str] = {
    "rows": "rows of the samples that it was fitted on",
    "words": "words of the texts that it was fitted on",
    "values": "values of the columns that it was fitted on",
    "bank": "what may be samples or their features",
    "centres": "centres, of small groups samples themselves",
    "labels": "the label of each sample",
    "indices": "which samples were used",
    "per sample": "an entry for each sample",
    "order statistics": "smallest, largest or middle values of columns",
    "thresholds": "thresholds between values of columns",
    "counts": "counts of samples",
    "sums": "sums over samples",
    "paths": "paths, names or settings of the machine",
    "optimiser": "the state of an optimiser",
    "average": "another copy of the weights",
    "code": "code that runs when the file is loaded",
    "none": "nothing of samples",
}


class Finding(Strict):
    """One thing that stands in the file."""

    holds: Holds
    path: str  # inside the file
    num_places: int = 1  # of the same class and attribute
    owner: str  # the class of the object that holds it
    num: int  # how many rows, words or values; of private samples, where there are any to compare with
    num_unseen: int | None = None  # how many of the unseen samples stand there too; None: not compared
    of: int | None = None  # how many private samples, words or values there are
    is_private: bool  # rows, words or values of private samples: what exit code 1 is for
    basis: Literal["compared", "by class", "by name"]
    severity: Severity
    example: str | None = None  # None: redacted
    purpose: str
    remedy: str

    @property
    def words(self) -> str:
        """What stands there, in one sentence without a full stop."""
        what = WORDS[self.holds]
        if self.basis != "compared":
            counted = (
                f"{self.num:,} {what}"
                if self.holds in LEAKS
                else f"{what} ({self.num:,} {'entry' if self.num == 1 else 'entries'})"
            )
            return counted if self.num else what
        unseen = "" if self.num_unseen is None else f" (unseen: {self.num_unseen:,})"
        alone = "" if self.num_unseen is None else " that no unseen sample has"
        kind = f"{self.holds}{alone}" if self.holds in ("words", "values") else "private samples"
        return f"{self.num:,} of {self.of:,} {kind}{unseen}"


class ScanRecord(Strict):
    """All that a scan of one file says."""

    schema_version: int = SCHEMA_VERSION
    file: str
    sha256: str | None  # of a file; a folder or a live object has none
    num_bytes: int
    num_items: int
    num_private: int | None  # samples to compare with; None: none were given
    num_unseen: int | None
    findings: tuple[Finding, ...]
    unread: tuple[str, ...]  # what could not be read, or not compared
    seconds: float = Field(ge=0)
    date: str = ""  # in UTC, by ISO 8601

    @property
    def outcome(self) -> Outcome:
        """Rows, words or values of private samples; nothing of these; or not all could be seen."""
        if any(each.is_private for each in self.findings):
            return "found"
        return "incomplete" if self.unread else "nothing found"

    @property
    def exit_code(self) -> int:
        """0, 1 or 3, as of an audit."""
        return EXIT_CODES[self.outcome]

    @property
    def headline(self) -> str:
        """The outcome in one sentence, as a person reads it."""
        if self.outcome == "incomplete":
            return "No verdict: not all of this file could be read or compared. Treat it as not cleared."
        worst = next((each for each in self.findings if each.is_private), None)
        if worst is not None:
            return f"This file holds {worst.words}."
        if self.num_private is None:
            return "No class or name in this file is known to hold rows, words or values of samples."
        return "No rows, words or values of the private samples were found in this file."


class FolderRecord(Strict):
    """One row for each file of a folder."""

    schema_version: int = SCHEMA_VERSION
    folder: str
    files: tuple[ScanRecord, ...]
    failed: dict[str, str] = Field(default_factory=dict)  # files that could not be read at all, and why

    @property
    def outcome(self) -> Outcome:
        """The worst of its files."""
        found = {each.outcome for each in self.files}
        if "found" in found:
            return "found"
        return "incomplete" if "incomplete" in found or self.failed else "nothing found"

    @property
    def exit_code(self) -> int:
        """0, 1 or 3."""
        return EXIT_CODES[self.outcome]

    @property
    def headline(self) -> str:
        """The outcome in one sentence."""
        total = len(self.files) + len(self.failed)
        num = sum(each.outcome == "found" for each in self.files)
        unsure = sum(each.outcome == "incomplete" for each in self.files) + len(self.failed)
        files = f"{total:,} file{'s' if total != 1 else ''}"
        more = f" {unsure:,} could not be read or compared whole: treat them as not cleared." if unsure else ""
        return f"{num:,} of {files} {'hold' if num != 1 else 'holds'} rows, words or values of samples.{more}"


def ordered(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The worst first."""
    return tuple(sorted(findings, key=lambda each: (not each.is_private, ORDER[each.severity], each.path)))


def is_leak_by_class(holds: Holds) -> bool:
    return holds in LEAKS


def shown(text: str) -> str:
    """An example, on one line."""
    text = clean(text)
    return text if len(text) <= MOST_EXAMPLE else text[: MOST_EXAMPLE - 1] + "…"


def base_name(path: str) -> str:
    """`categories_` of `categories_[3]`: columns and trees of one object are one finding."""
    return re.sub(r"\[\d+\]", "[…]", path)


# Code ---------------------------------------------------------------------------------------------------------

RUNS = {
    *("os", "posix", "nt", "subprocess", "sys", "socket", "shutil", "runpy", "importlib", "pty", "ctypes", "code"),
    *("webbrowser", "commands", "pickle", "_pickle", "marshal", "types", "functools", "operator", "asyncio"),
}
BUILTINS = {"eval", "exec", "compile", "getattr", "setattr", "open", "__import__", "execfile", "apply", "input"}
HARMLESS = {("functools", "partial"), ("operator", "itemgetter"), ("types", "SimpleNamespace"), ("os", "PathLike")}


def running(names: Sequence[str]) -> list[str]:
    """Of what a pickle names, what could run commands. Other tools look for these, and do it better."""
    found = []
    for name in names:
        module, _, short = name.partition(".")
        last = name.rpartition(".")[2]
        if (module, last) in HARMLESS:
            continue
        if module in RUNS or (module in ("builtins", "__builtin__") and last in BUILTINS and short):
            found.append(name)
    return sorted(found)
