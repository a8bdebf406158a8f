"""What commands write and say of an audit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from unfit.base.files import kept, new_file
from unfit.cli.app import out

if TYPE_CHECKING:
    from unfit.auditor.audit import Audit

AUDIT_FILES = ("audit.json", "arrays.safetensors", "index.html", "pairs.png")
SAME_KIND = 10  # bytes at the beginning that a file must have to be replaced by such a report


def keep_audit(result: Audit, folder: Path) -> None:
    """The audit with its page, elsewhere if this disk is full."""
    kept(partial(save_audit, result), folder)


def save_audit(result: Audit, folder: Path) -> None:
    from unfit.auditor.report import write_report

    result.save(folder)
    write_report(result.record, result.arrays, folder)


def say_audit(result: Audit, folder: Path, verbose: bool = False) -> None:
    from unfit.auditor.report.terminal import printed, show_audit

    printed(out, show_audit(result.record, verbose))
    say_page(folder)


def say_page(folder: Path) -> None:
    """Not wrapped, so that the path can be clicked."""
    out.print(f"page: {(folder / 'index.html').absolute()}", soft_wrap=True)


def write_text(path: Path, text: str, force: bool) -> None:
    """A new file; `force` replaces one that begins as this one does."""
    with new_file(path, force, (0, text.encode()[:SAME_KIND])) as file:
        file.write_text(text, encoding="utf-8")
