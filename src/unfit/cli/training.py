"""Train: `demo`, `fit`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from unfit.base.errors import UsageError
from unfit.base.files import new_folder
from unfit.cli.app import app, out
from unfit.cli.machine import computes
from unfit.cli.options import Classes, Force, Seed, seconds
from unfit.cli.output import AUDIT_FILES, save_audit, say_audit
from unfit.lab.settings import FitSettings, Loss, Training

DEFAULTS = FitSettings()
STANDARD = "standard"  # initial weights as PyTorch draws them


@dataclass(frozen=True)
class Demo:
    """What `unfit demo` trains before it attacks."""

    source: str
    classes: str | None
    num_samples: int
    words: str
    settings: FitSettings
    biases: str


DEMOS = {
    "digits": Demo(  # PyTorch's own initial weights, mini-batches, momentum, a usual seed
        source="mnist5k",
        classes="all",
        num_samples=80,
        words="a digit classifier",
        settings=FitSettings("sgd", "ce", init=None, lr=0.05, epochs=40, batch=20, seed=42),
        biases="hidden",
    ),
    "faces": Demo("faces", None, 40, "a face detector", DEFAULTS, "first"),
}


@app.command()
@computes
def demo(
    data: Annotated[
        Literal["digits", "faces"],
        typer.Option(help="Standard training on digits, or the papers' training on faces."),
    ] = "digits",
    n: Annotated[int | None, typer.Option(help="Number of training images. Default: 80 digits, 40 faces.")] = None,
    out_folder: Annotated[Path, typer.Option("--out", help="Output folder.")] = Path("unfit-demo"),
    force: Force = False,
) -> int:
    """Train a classifier on embedded images and recover its training images from its weights."""
    from unfit.auditor.request import AuditRequest
    from unfit.auditor.sources import read_source
    from unfit.base.progress import bar
    from unfit.lab.runs import RUN_FILES, audit_run, fit_run

    shown = DEMOS[data]
    n = shown.num_samples if n is None else n
    with new_folder(out_folder, force, {"run": RUN_FILES, "audit": AUDIT_FILES}) as folder:
        source = read_source(shown.source, shown.classes)
        (folder / "run").mkdir()
        (folder / "audit").mkdir()
        with bar(f"training on {n} images") as progress:
            fitted = fit_run(source, n, folder / "run", shown.settings, biases=shown.biases, progress=progress)
        out.print(f"Trained {shown.words} on {n} images (test accuracy {fitted.record['test_accuracy']:.0%}).")
        with bar("attacking its weights") as progress:
            result = audit_run(AuditRequest(target=str(folder / "run")), progress)
        save_audit(result, folder / "audit")
    say_audit(result, out_folder / "audit")
    return 0


@app.command()
@computes
def fit(
    data: Annotated[
        str,
        typer.Option(
            help="faces, mnist5k, circle, cifar10:DIR, mnist:DIR, npz:FILE, csv:FILE:LABEL, images:DIR, …"
        ),
    ],
    n: Annotated[int, typer.Option(help="Number of training samples, the same for each class.")],
    out_folder: Annotated[Path, typer.Option("--out", help="The run folder; must not exist yet.")],
    arch: Annotated[str, typer.Option(help="Hidden layers: 1000-1000 or conv(3,32)-1000.")] = "1000-1000",
    init: Annotated[str, typer.Option(help="Scale of the first layer's initial weights, or `standard`.")] = "1e-4",
    biases: Annotated[
        Literal["first", "hidden"], typer.Option(help="In the first layer or in all hidden layers.")
    ] = "first",
    method: Annotated[
        Training,
        typer.Option(help="Gradient flow, plain gradient descent, or mini-batches.", rich_help_panel="Training"),
    ] = DEFAULTS.method,
    loss: Annotated[Loss | None, typer.Option(help="Default: logistic for two classes, ce for more.")] = None,
    weight_decay: Annotated[float, typer.Option(help="λ of the penalty λ/2 · ‖θ‖².")] = DEFAULTS.weight_decay,
    classes: Classes = None,
    lr: Annotated[float, typer.Option(help="gd, sgd: learning rate.")] = DEFAULTS.lr,
    epochs: Annotated[int, typer.Option(help="gd, sgd: passes over the data.")] = DEFAULTS.epochs,
    batch: Annotated[int, typer.Option(help="sgd: samples of a mini-batch.")] = DEFAULTS.batch,
    momentum: Annotated[
        float, typer.Option(help="sgd: share of the last step that is added to the next.")
    ] = DEFAULTS.momentum,
    flow_time: Annotated[
        float, typer.Option(help="flow: learning rate × epochs of the training it stands for.")
    ] = DEFAULTS.flow_time,
    target_loss: Annotated[
        float | None, typer.Option(help="Stop at this training loss instead.")
    ] = DEFAULTS.target_loss,
    seed: Seed = DEFAULTS.seed,
    max_time: Annotated[
        float | None,
        typer.Option(
            parser=seconds, metavar="TIME", help="Stop after this time, such as `10m`; run again to resume."
        ),
    ] = None,
    force: Force = False,
) -> int:
    """Train a target as the papers do, in hundreds of steps.

    If it is stopped by a kill, Ctrl-C or --max-time, the same command resumes from the last checkpoint.
    """
    from unfit.auditor.sources import read_source
    from unfit.base.progress import bar
    from unfit.lab.runs import fit_folder

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
    source = read_source(data, classes)
    settings = replace(settings, loss=loss or ("logistic" if len(source.train.class_names) == 2 else "ce"))
    with bar(f"training on {n} samples") as progress:
        fitted = fit_folder(source, n, out_folder, settings, arch, biases, progress, force, max_time)
    record = fitted.record
    before = f" ({fitted.resumed_at} of them before this call)" if fitted.resumed_at else ""
    loss_words = "not finite" if record["loss"] is None else f"{record['loss']:.2e}"
    out.print(
        f"{out_folder}: {record['steps']} steps{before}, {record['seconds']:.1f} s, loss {loss_words}, "
        f"train accuracy {record['train_accuracy']:.1%}, test accuracy {record['test_accuracy']:.1%} "
        f"({record['status']})"
    )
    return 0


def _init(text: str) -> float | None:
    if text == STANDARD:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"--init takes a number such as 1e-4, or `standard`, not {text!r}") from error
