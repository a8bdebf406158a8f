"""Every method on every target, in one table: python benchmarks/leaderboard.py FOLDER [--runs RUNS] [targets]

FOLDER holds cifar-10-batches-bin and mnist; RUNS keeps the trained targets and what was measured on them, so a run that
was stopped goes on where it was. Run it alone on the machine: about two hours on 2 cores.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cases import Case, audited, measured, numbers, run_of, seconds_of
from page import DOCS, Watch, write_section
from unfit import UnfitError
from unfit.auditor.report.plots import pairs
from unfit.base.files import write_json
from unfit.lab.measurement import MEASURES

DECAY = {"init": None, "weight_decay": 1e-3}
KNOWN = {"init": None}
CASES = (
    Case("n=50, init 1e-4", "bin50", 50),
    Case("n=100, init 1e-4", "bin100", 100),
    Case("n=100, standard init, weight decay 1e-3", "wd100", 100, DECAY),
    Case("n=100, start weights known", "std100", 100, KNOWN, base=True),
    Case("n=150, start weights known", "std150", 150, KNOWN, base=True, seeds=(0,)),
    Case("n=200, start weights known", "std200", 200, KNOWN, base=True, seeds=(0,)),
    Case("faces n=100, init 1e-4", "faces100", 100, data="faces"),
    Case("MNIST n=100, init 1e-4", "mnist100", 100, data="mnist"),
    Case("n=500, init 1e-4", "bin500", 500, seeds=(0,)),
    Case("n=500, standard init, weight decay 1e-3", "wd500", 500, DECAY, seeds=(0,)),
    Case("n=500, 10 classes, init 1e-4", "c10_500", 500, {"loss": "ce"}, classes="all", seeds=(0,)),
)
METHODS = ("weights", "inversion", "paper", "kkt", "unmix", "auto")


def main(folder: Path, runs: Path, cases: list[Case]) -> None:
    write_section("Leaderboard", board(folder, runs, cases), MEASURES)
    for case in cases:
        shutil.copy(top45(case, folder, runs), DOCS / "images" / f"top45_{case.slug}.png")


def top45(case: Case, folder: Path, runs: Path) -> Path:
    """The closest 45 of the first seed as a picture, kept beside the target."""
    run = run_of(case, case.seeds[0], folder, runs)
    kept = run / "top45.png"
    if not kept.is_file():
        watch = Watch()
        audit = audited(case, run, "auto", case.seeds[0])
        if not (run / "auto.json").is_file():
            write_json(run / "auto.json", numbers(audit) | {"others": watch.others})
        pairs(audit.arrays).quantize(128).save(kept, optimize=True)
    return kept


def board(folder: Path, runs: Path, cases: list[Case]) -> Iterator[str]:
    yield "CIFAR-10, vehicles against animals, unless the row says otherwise; d-1000-1000-1. Each cell gives good / good on unseen /"
    yield "recovered, as means over the seeds (three where that takes minutes, one where it takes an hour), then the seconds of the attack."
    yield "*good*: SSIM > 0.4, Gaussian window 11; *recovered*: above the threshold that 1% of as many unseen samples pass. `paper` is the"
    yield "papers' solver, run for as long as `auto` took. `unmix` and `auto` also say how many samples they proved."
    yield ""
    yield "| target | seeds | " + " | ".join(METHODS) + " |"
    yield "|---|---|" + "---|" * len(METHODS)
    for case in cases:
        top45(case, folder, runs)
        rows = {method: [] for method in METHODS}
        for seed in case.seeds:
            long = measured(case, seed, "auto", folder, runs)["seconds"]
            for method in METHODS:
                rows[method].append(measured(case, seed, method, folder, runs, long))
        line = (
            f"| {case.name} | {len(case.seeds)} | " + " | ".join(cell(rows[method]) for method in METHODS) + " |"
        )
        print(line, flush=True)
        yield line
    yield ""
    yield "The closest 45 pairs for each target (`auto`, seed 0), reconstruction above original:"
    yield ""
    for case in cases:
        yield f"**{case.name}**"
        yield ""
        yield f"![{case.name}](images/top45_{case.slug}.png)"
        yield ""


def cell(rows: list[dict[str, float]]) -> str:
    """good / on unseen / recovered (proven), seconds."""
    keys = ("num_good", "num_good_unseen", "num_recovered")
    means = " / ".join(f"{sum(row[key] for row in rows) / len(rows):.1f}".removesuffix(".0") for key in keys)
    proven = sum(row.get("num_exact", 0) for row in rows) / len(rows)
    return (
        means
        + (f", {proven:.1f} proven" if proven else "")
        + (f", {timed} s" if (timed := seconds_of(rows)) else "")
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("targets", nargs="*", help="slugs of the targets; default: all")
    given = parser.parse_intermixed_args()
    by_slug = {case.slug: case for case in CASES}
    chosen = [by_slug[slug] for slug in given.targets or by_slug]
    try:
        with tempfile.TemporaryDirectory() as scratch:
            main(given.folder, given.runs or Path(scratch), chosen)
    except UnfitError as error:
        sys.exit(f"unfit: {error}")
