"""The command line: parse, call, print."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from unfit import __version__
from unfit.attacks import Method as AttackMethod
from unfit.attacks import Score, Solver
from unfit.attacks import attack as run_attack
from unfit.attacks.consensus import CONFIDENT
from unfit.audit import Audit
from unfit.candidates import save_candidates
from unfit.errors import UnfitError, UsageError
from unfit.files import as_json as json_text
from unfit.files import new_file, new_folder
from unfit.fit import FitSettings, Loss, Method
from unfit.preflight import preflight_file
from unfit.progress import bar
from unfit.report import write_report
from unfit.report.terminal import show
from unfit.runs import RUN_FILES, audit_run, fit_run
from unfit.sources import read_source
from unfit.target import load_base, load_target

AUDIT_FILES = ("audit.json", "arrays.safetensors", "index.html", "pairs.png")

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
out = Console(highlight=False, markup=False, soft_wrap=True)  # a path may hold [brackets]

Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Seed = Annotated[int, typer.Option(min=0, help="Everything random follows from it.")]
TargetPath = Annotated[
    Path, typer.Argument(metavar="TARGET", help="A run folder, a .safetensors or a .pt state dict.")
]
Base = Annotated[
    Path | None, typer.Option(help="The weights training started from, if known; attacks the change.")
]
ChosenSolver = Annotated[
    Solver | None, typer.Option(help="kkt: `fast` (default), or `paper`, exactly as published and hours long.")
]
ChosenScore = Annotated[
    Score | None, typer.Option(help="kkt: `any` for a regression loss with weight decay; default: by the outputs.")
]
NumCandidates = Annotated[
    int | None, typer.Option(help="kkt, inversion: candidates of a run; default: by the weights' spectrum.")
]
Budget = Annotated[
    str | None, typer.Option(help="auto: how long, as in `60s` or `10m`; default: until all runs are done.")
]
Classes = Annotated[
    str | None, typer.Option(help="`split` (the papers' two groups), `all`, or the first so many.")
]


def main() -> None:
    """Run a command; errors are one message on standard error. Exit codes: docs/formats.md."""
    try:
        code = app(standalone_mode=False)
    except UnfitError as error:
        code = _complain(str(error), error.exit_code)
    except typer.TyperException as error:
        code = _complain(f"{error.format_message()} (see `unfit --help`)", UsageError.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        code = _complain("interrupted", 130)
    sys.exit(code)


def _complain(message: str, code: int) -> int:
    print(f"unfit: {message}", file=sys.stderr)
    return code


@app.callback(invoke_without_command=True)
def unfit(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Reconstruct training samples from the weights of a trained classifier, and audit what it gives away."""
    if version:
        out.print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        out.print(context.get_help())
        raise typer.Exit(UsageError.exit_code)


@app.command()
def demo(
    n: Annotated[int, typer.Option(help="Training images, half of them faces: 40 or 100 are good choices.")] = 40,
    out_folder: Annotated[Path, typer.Option("--out", help="Where to write.")] = Path("unfit-demo"),
    force: Force = False,
) -> int:
    """Train a face detector on embedded images and take its training faces back out of its weights."""
    with new_folder(out_folder, force, ("run", "audit")) as folder:
        source = read_source("faces")
        (folder / "run").mkdir()
        (folder / "audit").mkdir()
        with bar(f"training on {n} images") as progress:
            fitted = fit_run(source, n, folder / "run", FitSettings(), progress=progress)
        out.print(
            f"Trained a face detector on {n} images in {fitted.record['seconds']:.1f} s "
            f"(test accuracy {fitted.record['test_accuracy']:.0%})."
        )
        with bar("attacking its weights") as progress:
            result = audit_run(folder / "run", progress=progress)
        _save_audit(result, folder / "audit")
    _say(result, out_folder / "audit")
    return 0


@app.command()
def fit(
    data: Annotated[
        str,
        typer.Option(help="faces, mnist5k, circle, cifar10:DIR, cifar100:DIR, mnist:DIR, npz:FILE, images:DIR."),
    ],
    n: Annotated[int, typer.Option(help="Training samples, equally many of each class.")],
    out_folder: Annotated[Path, typer.Option("--out", help="The run folder; must not exist yet.")],
    arch: Annotated[str, typer.Option(help="Hidden layers: 1000-1000 or conv(3,32)-1000.")] = "1000-1000",
    init: Annotated[str, typer.Option(help="Scale of the first layer's start, or `standard`.")] = "1e-4",
    biases: Annotated[
        Literal["first", "hidden"], typer.Option(help="In the first layer or in all hidden layers.")
    ] = "first",
    method: Annotated[
        Method, typer.Option(help="Gradient flow, plain gradient descent, or mini-batches.")
    ] = "flow",
    loss: Annotated[Loss | None, typer.Option(help="Default: logistic for two classes, ce for more.")] = None,
    weight_decay: Annotated[float, typer.Option()] = 0.0,
    classes: Classes = None,
    lr: Annotated[float, typer.Option(help="gd, sgd: learning rate.")] = 0.01,
    epochs: Annotated[int, typer.Option(help="gd, sgd.")] = 10_000,
    batch: Annotated[int, typer.Option(help="sgd.")] = 50,
    momentum: Annotated[float, typer.Option(help="sgd.")] = 0.9,
    flow_time: Annotated[
        float, typer.Option(help="flow: learning rate × epochs of the training it stands for.")
    ] = 1e4,
    target_loss: Annotated[float | None, typer.Option(help="Stop at this training loss instead.")] = None,
    seed: Seed = 0,
    force: Force = False,
) -> int:
    """Train a target as the papers do, in hundreds of steps."""
    settings = FitSettings(
        method=method,
        weight_decay=weight_decay,
        init=_init(init),
        lr=lr,
        epochs=epochs,
        batch=batch,
        momentum=momentum,
        flow_time=flow_time,
        target_loss=target_loss,
        seed=seed,
    )
    with new_folder(out_folder, force, RUN_FILES) as folder:
        source = read_source(data, classes)
        settings = replace(settings, loss=loss or ("logistic" if len(source.train.class_names) == 2 else "ce"))
        with bar(f"training on {n} samples") as progress:
            record = fit_run(source, n, folder, settings, arch, biases, progress).record
    loss_words = "not finite" if record["loss"] is None else f"{record['loss']:.2e}"
    out.print(
        f"{out_folder}: {record['steps']} steps, {record['seconds']:.1f} s, loss {loss_words}, "
        f"train accuracy {record['train_accuracy']:.1%}, test accuracy {record['test_accuracy']:.1%} "
        f"({record['status']})"
    )
    return 0


@app.command()
def attack(
    target: TargetPath,
    out_file: Annotated[Path, typer.Option("--out", help="The file of candidates; must not exist yet.")],
    method: Annotated[AttackMethod, typer.Option()] = "auto",
    base: Base = None,
    solver: ChosenSolver = None,
    score: ChosenScore = None,
    num_candidates: NumCandidates = None,
    budget: Budget = None,
    seed: Seed = 0,
    force: Force = False,
) -> int:
    """Reconstruct training samples from weights alone."""
    with new_file(out_file, force) as file:
        attacked = load_target(target)
        start = load_base(base, attacked) if base else None
        with bar("attacking") as progress:
            candidates = run_attack(
                attacked,
                method,
                start,
                seed,
                progress,
                solver=solver,
                score=score,
                num_candidates=num_candidates,
                budget=_seconds(budget),
            )
        save_candidates(candidates, file)
    facts, sure = candidates.facts, int((candidates.confidence > CONFIDENT).sum())
    first = f", the first {sure} of them confident" if sure else ""
    out.print(f"{out_file}: {len(candidates)} candidates{first}, in {facts['seconds']:.1f} s ({facts['status']})")
    return 0


@app.command()
def audit(
    target: TargetPath,
    out_folder: Annotated[Path, typer.Option("--out", help="The audit's folder; must not exist yet.")],
    data: Annotated[str | None, typer.Option(help="What it was trained on; a run folder knows.")] = None,
    members: Annotated[
        Path | None, typer.Option(help="JSON list of the training samples' indices in --data.")
    ] = None,
    unseen: Annotated[
        str | None, typer.Option(help="Samples it never saw; default: the rest of the data.")
    ] = None,
    classes: Classes = None,
    method: Annotated[AttackMethod, typer.Option()] = "auto",
    base: Base = None,
    solver: ChosenSolver = None,
    score: ChosenScore = None,
    num_candidates: NumCandidates = None,
    budget: Budget = None,
    window: Annotated[int, typer.Option(help="SSIM window: 11, 7, or 3 as in the papers' code.")] = 11,
    seed: Seed = 0,
    force: Force = False,
) -> int:
    """Which training samples do these weights give away? Exit code 0 pass, 1 leak, 3 inconclusive."""
    with new_folder(out_folder, force, AUDIT_FILES) as folder:
        with bar("attacking") as progress:
            result = audit_run(
                target,
                data=data,
                members=members,
                unseen=unseen,
                classes=classes,
                method=method,
                base=base,
                solver=solver,
                score=score,
                num_candidates=num_candidates,
                budget=_seconds(budget),
                window=window,
                seed=seed,
                progress=progress,
            )
        _save_audit(result, folder)
    _say(result, out_folder)
    return result.exit_code


@app.command()
def preflight(
    target: TargetPath,
    base: Base = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same for machines.")] = False,
) -> int:
    """Which attacks apply to these weights, why not the others, and how long? Exit code 3 if there are none."""
    found = preflight_file(target, base)
    if as_json:
        print(json_text(found.record()), end="")
    else:
        for part in show(found):
            out.print(part, soft_wrap=isinstance(part, Text))  # tables wrap inside their cells
    return found.exit_code


def _seconds(text: str | None) -> float | None:
    """`90`, `90s`, `1.5m` or `1h` in seconds."""
    if text is None:
        return None
    number, unit = (text[:-1], text[-1]) if text[-1:] in tuple("smh") else (text, "s")
    try:
        return float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    except ValueError as error:
        raise UsageError(f"--budget {text}: give a time like 60s, 10m or 1h") from error


def _init(text: str) -> float | None:
    if text == "standard":
        return None
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"--init takes a number such as 1e-4, or `standard`, not {text!r}") from error


def _save_audit(result: Audit, folder: Path) -> None:
    result.save(folder)
    write_report(result, folder)


def _say(result: Audit, folder: Path) -> None:
    record = result.record
    out.print(f"{record.verdict}: {'; '.join(record.reasons)}")
    out.print(
        f"recovered {record.num_recovered} of {record.num_samples} "
        f"(similarity above {record.threshold:.2f}; {record.num_recovered_unseen} of {record.num_unseen} unseen), "
        f"good {record.num_good} (unseen {record.num_good_unseen}), attack {record.seconds['attack']:.1f} s"
    )
    out.print(f"page: {(folder / 'index.html').absolute()}")
