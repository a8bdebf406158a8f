"""`scan`: what stands in a file in plain sight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unfit.base.errors import UnfitError, UsageError
from unfit.base.files import as_json as json_text
from unfit.base.files import new_file, new_folder
from unfit.base.reservation import drop_parts, parts_of
from unfit.cli.app import app, out
from unfit.cli.options import Force
from unfit.cli.output import write_text

if TYPE_CHECKING:
    from unfit.auditor.scan.findings import FolderRecord, ScanRecord
    from unfit.auditor.scan.folder import Job

JSON = (0, b"{")
ESTIMATORS = ("pickle", "skops")  # kinds of files that hold an estimator
INCONCLUSIVE = 3


@app.command()
def scan(
    targets: Annotated[
        list[Path], typer.Argument(metavar="FILE|DIR...", help="Model files, or a folder: one row per file.")
    ],
    data: Annotated[
        str | None,
        typer.Option(help="Training data to look for: csv:FILE:LABEL, npz:FILE, text:FILE (a text a line), …"),
    ] = None,
    unseen: Annotated[str | None, typer.Option(help="Samples the model never saw: the control.")] = None,
    examples: Annotated[
        bool, typer.Option("--examples", help="Show a row, word or value of each finding.")
    ] = False,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="Write JSON here. A folder's scan resumes after a kill.")
    ] = None,
    page_file: Annotated[Path | None, typer.Option("--page", help="Write a page here.")] = None,
    sarif_file: Annotated[Path | None, typer.Option("--sarif", help="Write SARIF here.")] = None,
    junit_file: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML here.")] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A folder's files on this Ray cluster, or `auto`.")
    ] = None,
    force: Force = False,
) -> int:
    """What stands in a file in plain sight? Exit code 1 with samples, words or values, 0 with none."""
    from unfit.auditor.report import scan as report
    from unfit.auditor.scan.data import read_side
    from unfit.auditor.scan.folder import Job

    if unseen and not data:
        raise UsageError("`unseen` is the control for `data`: give both")
    others = [("--page", page_file), ("--sarif", sarif_file), ("--junit", junit_file)]
    for flag, path in others:
        if path and path.exists() and not force:
            raise UnfitError(f"{path} exists already: choose another {flag}, or --force to replace it")
    names = _names(targets)
    if ray and names is None:
        raise UsageError("`ray` shares out the files of a folder, and this is one model")
    own, other = (read_side(each) if each else None for each in (data, unseen))
    folder = targets[0].absolute() if names == [] else Path.cwd() if names else targets[0]
    found = _run(Job(folder, own, other, examples), names, ray, out_file, force)
    renders: list[Callable[[ScanRecord | FolderRecord], str]] = [report.page, report.sarif, report.junit]
    for (_, path), render in zip(others, renders, strict=True):
        if path:
            write_text(path, render(found), force)
    out.print(report.text(found))
    return found.exit_code


def _names(targets: list[Path]) -> list[str] | None:
    """Several files by name; none for all of a folder; None for one model."""
    from unfit.base.formats.kinds import kind_of
    from unfit.base.held import FOLDERS

    if missing := [path for path in targets if not path.exists()]:
        raise UnfitError(f"{missing[0]} does not exist")
    if len(targets) > 1:
        return [str(path) for path in targets]
    is_model = not targets[0].is_dir() or kind_of(targets[0], {}) in (*FOLDERS, "run")
    return None if is_model else []


def _run(
    job: Job, names: list[str] | None, ray: str | None, out_file: Path | None, force: bool
) -> ScanRecord | FolderRecord:
    if out_file is None:
        return _scanned(job, names, ray, None)
    with new_file(out_file, force, JSON) as file:
        found = _scanned(job, names, ray, parts_of(file))
        file.write_text(json_text(found.model_dump(mode="json") | {"outcome": found.outcome}), encoding="utf-8")
        drop_parts(file)
    return found


def _scanned(job: Job, names: list[str] | None, ray: str | None, parts: Path | None) -> ScanRecord | FolderRecord:
    from unfit.auditor.scan.folder import scan_folder
    from unfit.auditor.scan.scan import scan as scan_one
    from unfit.base.progress import bar

    if names is None:
        return scan_one(job.folder, job.own, job.other, examples=job.examples)
    with bar("scanning") as progress:
        return scan_folder(job, names, parts, ray, progress)


def no_attack(target: Path) -> str | None:
    """Why no attack applies to an estimator in a file, if none does."""
    from unfit.base.errors import NoAttackError
    from unfit.base.formats import kind_of_model, read_model

    if not target.is_file() or kind_of_model(target) not in ESTIMATORS:
        return None
    try:
        read_model(target)
    except NoAttackError as error:
        return str(error)
    except UnfitError:
        return None  # the audit names what is wrong with it
    return None


def scan_instead(
    why: str,
    target: Path,
    data: tuple[str | None, str | None],
    outputs: tuple[Path, Path | None, Path | None],
    force: bool,
) -> int:
    """For an audit of a model that no attack covers: a leak is one, and nothing else is a verdict."""
    from unfit.auditor.report import scan as report
    from unfit.auditor.scan.data import read_side
    from unfit.auditor.scan.scan import scan as scan_one

    found = scan_one(target, *(read_side(each) if each else None for each in data))
    with new_folder(outputs[0], force, ("scan.json", "index.html")) as folder:
        content = found.model_dump(mode="json") | {"outcome": found.outcome}
        (folder / "scan.json").write_text(json_text(content), encoding="utf-8")
        (folder / "index.html").write_text(report.page(found), encoding="utf-8")
    for path, render in zip(outputs[1:], (report.sarif, report.junit), strict=True):
        if path:
            write_text(path, render(found), force)
    out.print(f"{why.partition(';')[0]}; scanned instead")
    out.print(report.text(found))
    return max(found.exit_code, INCONCLUSIVE) if found.exit_code != 1 else 1
