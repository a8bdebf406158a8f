"""The papers' figures and tables: `reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from unfit.base.ends import complain
from unfit.base.errors import UnfitError, UsageError, unknown
from unfit.base.times import duration
from unfit.cli.app import app, out
from unfit.cli.machine import computes
from unfit.cli.options import Force, Seed


@app.command()
@computes
def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="haim2022/fig4, …, a whole paper, or `all`.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Name everything, with its cost; run nothing.")] = False,
    scale: Annotated[
        Literal["small", "full"],
        typer.Option(help="Minutes on 2 cores, or the papers' own size for a GPU.", rich_help_panel="Machines"),
    ] = "small",
    attacks: Annotated[
        list[str] | None,
        typer.Option("--attack", metavar="NAME", help="auto (default), fast, unmix, paper; repeatable."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(envvar="UNFIT_DATA", help="Holds the official files of CIFAR-10 and MNIST."),
    ] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="full: the hundred runs of `paper` on this cluster.")
    ] = None,
    out_folder: Annotated[Path, typer.Option("--out", help="Where results and what they share are kept.")] = Path(
        "reproduction"
    ),
    collected: Annotated[
        Path | None,
        typer.Option(
            "--collect", metavar="DIR", help="Add what is in this other --out to the pages; run nothing."
        ),
    ] = None,
    seed: Seed = 0,
    force: Force = False,
) -> int:
    """Reproduce a figure or a table of the papers. If it is killed, the same command resumes it.

    Other seeds and scales in the same --out are stored with the first, and the pages show them together.
    """
    from unfit.base.progress import bar
    from unfit.lab.reproduce.catalogue import ITEMS, chosen
    from unfit.lab.reproduce.index import collect, write_pages
    from unfit.lab.reproduce.item import make, place_of
    from unfit.lab.reproduce.lab import ATTACKS, SCALES, Lab

    named = tuple(dict.fromkeys(attacks or ("auto",)))
    if unknowns := [each for each in named if each not in ATTACKS]:
        raise unknown("attack", unknowns[0], ATTACKS)
    full = Lab(out_folder / "cache", SCALES["full"], named, data_dir)
    if listing:
        for item in ITEMS:
            costs = f"{duration(item.seconds):>7} small {duration(item.full_seconds(full)):>9} full"
            out.print(f"{item.name:<18} {costs}  {item.title}")
        return 0
    if collected is not None:
        added = collect(collected, out_folder, ITEMS, lambda item: item.why_not_run(full))
        write_pages(out_folder, ITEMS)
        out.print(f"{added} items of {collected} added to {out_folder / 'index.md'}")
        return 0
    if name is None:
        raise UsageError("name a figure or a table; `unfit reproduce --list` shows all")
    if ray and not (scale == "full" and "paper" in named):
        raise UsageError("--ray runs the hundred attacks of --attack paper at --scale full; leave it out")
    items, codes = chosen(name), [0]
    for item in items:
        place = place_of(out_folder, item, scale, seed)
        if len(items) > 1 and place.exists() and not force:
            out.print(f"{item.name}: already there")
            continue
        if scale == "full":
            out.print(f"{item.name}: about {duration(item.full_seconds(full))} on this machine alone")
        try:
            with bar(item.name) as progress:
                lab = Lab(out_folder / "cache", SCALES[scale], named, data_dir, ray, seed, progress)
                results = make(item, lab, place, force)
        except UnfitError as error:  # of many, the others go on
            if len(items) == 1:
                raise
            complain(f"{item.name}: {error}")
            codes.append(error.exit_code)
            continue
        write_pages(out_folder, ITEMS)
        for line in results.words:
            out.print(f"{item.name}: {line}")
        out.print(f"{item.name}: {results.seconds:.0f} s, {place if place.is_file() else place / 'figure.png'}")
    return max(codes)
