"""What an audit is shown as: `report`, `card`; and `formats`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unfit.auditor.grades import Audience
from unfit.base.errors import UsageError
from unfit.base.files import new_file
from unfit.cli.app import app, out
from unfit.cli.options import Force
from unfit.cli.output import say_page, write_text

REPORTS = {
    ".pdf": (0, b"%PDF"),
    ".md": (0, b"# Report"),
    ".json": (0, b"{"),
}  # how a report begins: --force replaces no other file


@app.command()
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="AUDIT", help="The folder of an audit; with --for, also an audit.json alone.")
    ],
    audience: Annotated[
        Audience | None,
        typer.Option(
            "--for",
            help="Write a report for a data protection officer, an output checker of a TRE, or an auditor.",
        ),
    ] = None,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="The report: a .pdf (needs unfit[report]), .md or .json file.")
    ] = None,
    images: Annotated[
        bool,
        typer.Option("--images", help="Show the most similar pairs of images in the PDF. Default: no images."),
    ] = False,
    force: Force = False,
) -> int:
    """Write the page again, or with --for a report for people who must sign; both from a saved audit alone."""
    from unfit.auditor.audit import load_audit, load_record

    if (audience is None) != (out_file is None) or (images and audience is None):
        raise UsageError("give --for and --out together, and --images only with them")
    if audience is None or out_file is None:
        from unfit.auditor.report import write_report

        audit = load_audit(folder)
        write_report(audit.record, audit.arrays, folder)
        say_page(folder)
        return 0
    from unfit.auditor.report.pack import best_pairs, rendered

    if images and out_file.suffix != ".pdf":
        raise UsageError("--images needs a report as PDF: --out report.pdf")
    with new_file(out_file, force, REPORTS.get(out_file.suffix)) as file:
        if images:
            audit = load_audit(folder)
            content = rendered(audit.record, audience, out_file.suffix, best_pairs(audit.record, audit.arrays))
        else:
            content = rendered(load_record(folder), audience, out_file.suffix)
        file.write_bytes(content)
    out.print(f"report: {out_file.absolute()}", soft_wrap=True)
    return 0


@app.command()
def card(
    folder: Annotated[Path, typer.Argument(metavar="AUDIT", help="An audit.json, or the folder of an audit.")],
    out_file: Annotated[
        Path | None, typer.Option("--out", help="Write the section to this file; default: print it.")
    ] = None,
    eval_file: Annotated[
        Path | None,
        typer.Option("--eval-results", help="Also write this .eval_results/NAME.yaml; needs --benchmark."),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(metavar="OWNER/NAME", help="The data set on the Hub that is registered as benchmark."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Its task; default: exact, recognisable or trace, as the policy counts.")
    ] = None,
    force: Force = False,
) -> int:
    """Write a section of a model card on Hugging Face, and an entry for `.eval_results/`, without private data."""
    from unfit.auditor.audit import load_record
    from unfit.auditor.report.card import card as model_card
    from unfit.auditor.report.card import eval_results

    if (eval_file is None) != (benchmark is None) or (task and not benchmark):
        raise UsageError("give --eval-results and --benchmark together, and --task only with them")
    record = load_record(folder)
    if eval_file and benchmark:
        write_text(eval_file, eval_results(record, benchmark, task), force)
    if out_file:
        write_text(out_file, model_card(record), force)
    else:
        print(model_card(record), end="")
    return 0


@app.command()
def formats() -> int:
    """Which files can be attacked or audited, what each gives, and what must be installed for it."""
    from unfit.base.formats import format_table

    for each in format_table():
        needed = f"needs unfit[{each.extra}]" if each.extra else ""
        out.print(f"{' '.join(each.suffixes):<26} {each.gives:<14}  {each.name:<54} {needed}".rstrip())
    return 0
