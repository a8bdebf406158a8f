"""Audit: `split`, `audit`, `diff`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from unfit.auditor.data_reading import DataReading
from unfit.auditor.policy import Policy
from unfit.base.errors import UnfitError, UsageError, explained
from unfit.base.files import new_folder
from unfit.base.reservation import parts_of
from unfit.cli.app import app, out
from unfit.cli.machine import computes
from unfit.cli.options import (
    Base,
    BudgetOptions,
    Checkpoints,
    Classes,
    Force,
    Rounds,
    Seed,
    TargetOrUpdate,
    Update,
    Verbose,
    rounds_of,
)
from unfit.cli.output import AUDIT_FILES, keep_audit, say_audit, write_text
from unfit.cli.scans import no_attack, scan_instead

if TYPE_CHECKING:
    from unfit.auditor.request import AuditRequest

NOT_REPEATED = {
    "out_folder",
    "repeat",
    "redacted",
    "junit_file",
    "sarif_file",
    "force",
    "threads",
    "device",
    "author",
    "verbose",
}
"""Options about where an audit is made and what is written of it, not about the audit: `--from` allows them."""


@app.command()
def split(
    data: Annotated[str, typer.Argument(metavar="SOURCE", help="npz:FILE, images:DIR, or another of --data.")],
    out_folder: Annotated[Path, typer.Option("--out", help="The folder of both parts; must not exist yet.")],
    unseen: Annotated[float, typer.Option(help="Share of every class to hold out.")] = 0.5,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="csv, parquet: rows with the same value in this column stay together."
        ),
    ] = None,
    classes: Classes = None,
    seed: Seed = 0,
    force: Force = False,
) -> int:
    """Hold samples out at random before training: train on one part, audit with the other as --unseen.

    Tables are split row by row, before anything is encoded; all else is written as arrays.
    """
    from unfit.auditor.split import SPLIT_FILES, split_source

    with new_folder(out_folder, force, SPLIT_FILES) as folder:
        done = split_source(data, classes, unseen, by, seed, folder)
    kind = Path(done.train.file).suffix.removeprefix(".")
    train, held_out = (f"{kind}:{out_folder / part.file}" for part in (done.train, done.unseen))
    num, num_unseen = done.train.num_samples, done.unseen.num_samples
    if kind == "npz":
        out.print(f"{num} samples to train on and {num_unseen} unseen ones; after training:")
    else:
        out.print(f"{num} rows to train on and {num_unseen} unseen ones; encode both alike; after training:")
    out.print(f"unfit audit MODEL --data {train} --unseen {held_out} --out AUDIT")
    return 0


@app.command()
@computes
def audit(
    context: typer.Context,
    out_folder: Annotated[Path, typer.Option("--out", help="The folder of the audit; must not exist yet.")],
    data: DataReading,
    options: BudgetOptions,
    policy: Policy,
    target: TargetOrUpdate = None,
    repeat: Annotated[
        Path | None, typer.Option("--from", help="An audit.json or its folder: repeat that audit.")
    ] = None,
    base: Base = None,
    update: Update = None,
    checkpoints: Checkpoints = None,
    rounds: Rounds = None,
    candidates: Annotated[
        Path | None,
        typer.Option(help="Match these candidates (a file, or the folder of a sweep) instead of attacking."),
    ] = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="Also attack an untrained model, and one trained on other samples.")
    ] = False,
    baselines: Annotated[
        bool,
        typer.Option("--baselines", help="Also try two simpler methods: the weights as images, and inversion."),
    ] = False,
    first: Annotated[
        bool, typer.Option("--first", help="Stop at the first leak that nothing else can undo.")
    ] = False,
    redacted: Annotated[
        bool | None,
        typer.Option(
            "--redact/--no-redact",
            help="Remove images and identifying details. Default: on, unless writing to a terminal.",
        ),
    ] = None,
    author: Annotated[str | None, typer.Option(help="Who makes this audit: reports name them.")] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", help="Also write the verdict as JUnit XML.")
    ] = None,
    sarif_file: Annotated[
        Path | None, typer.Option("--sarif", help="Also write the verdict as SARIF, for code scanning.")
    ] = None,
    force: Force = False,
    verbose: Verbose = False,
) -> int:
    """Which training samples can be recovered from this file? Exit code 0 pass, 1 leak, 3 inconclusive."""
    from unfit.auditor.audit import load_record
    from unfit.auditor.redact import redact
    from unfit.auditor.report.junit import junit
    from unfit.auditor.report.sarif import sarif
    from unfit.base.progress import bar
    from unfit.lab.runs import audit_run, repeat_audit

    if (target is None and update is None) == (repeat is None):
        raise UsageError("give either a TARGET, or --base and --update, or --from AUDIT.JSON")
    if repeat and (given := _given(context) - NOT_REPEATED):
        names = ", ".join(sorted(f"--{name.replace('_', '-')}" for name in given))
        raise UsageError(f"--from repeats an audit as it was: leave out {names}")
    reports = [("--junit", junit_file, junit), ("--sarif", sarif_file, sarif)]
    for flag, path, _ in reports:
        if path and path.exists() and not force:
            raise UnfitError(f"{path} exists already: choose another {flag}, or --force to overwrite it")
    if target is not None and (why := no_attack(target)):
        return scan_instead(why, target, (data.data, data.unseen), (out_folder, sarif_file, junit_file), force)
    chosen = {**dict(data), "policy": policy, "target": target, "update": update, "base": base, "author": author}
    chosen |= {"candidates": candidates, "controls": controls, "baselines": baselines, "first": first}
    chosen |= {"checkpoints": tuple(checkpoints or ()), "rounds": rounds_of(rounds)}
    request = None if repeat else _request(options, chosen)
    with new_folder(out_folder, force, AUDIT_FILES) as folder:
        with bar("searching the candidates" if candidates else "auditing") as progress:
            if request is not None:
                result = audit_run(request, progress, parts_of(folder))
            else:
                assert repeat is not None
                result = repeat_audit(load_record(repeat), progress, parts_of(folder), author)
        if redacted if redacted is not None else not sys.stdout.isatty():
            result = redact(result)
        keep_audit(result, folder)
    for _, path, render in reports:
        if path:
            try:
                write_text(path, render(result.record), force)
            except UnfitError as error:
                raise UnfitError(f"{error}; the audit itself is kept in {out_folder}") from error
    say_audit(result, out_folder, verbose)
    return result.exit_code


def _request(options: BudgetOptions, chosen: dict[str, Any]) -> AuditRequest:
    from unfit.auditor.request import AuditRequest

    attack = options.value()
    try:
        return AuditRequest(**chosen, attack=attack, seed=options.seed)
    except ValidationError as error:
        raise UsageError(explained(error)) from error


def _given(context: typer.Context) -> set[str]:
    """The parameters that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


@app.command()
def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The last release's audit.json, or its folder.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="This release's audit.json, or its folder.")],
    out_file: Annotated[Path | None, typer.Option("--out", help="Write a page here.")] = None,
    force: Force = False,
) -> int:
    """Compare two audits of the same samples. Exit code 1 if something got worse, else 0."""
    from unfit.auditor.audit import load_record
    from unfit.auditor.compare import compare

    before, now = load_record(old), load_record(new)
    difference = compare(before, now)
    if out_file:
        from unfit.auditor.report.diff import page

        write_text(out_file, page(before, now), force)
    out.print("\n".join(difference.changes) or "nothing changed")
    for regression in difference.regressions:
        out.print(f"worse: {regression}")
    if out_file:
        out.print(f"page: {out_file}")
    return difference.exit_code
