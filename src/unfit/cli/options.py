"""Options that several commands share. Their names and defaults come from modules that need no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from pydantic import ValidationError

from unfit.attacker.names import MethodName, Score, Solver
from unfit.auditor.grades import Grade
from unfit.auditor.policy import Policy
from unfit.base.errors import UsageError, explained
from unfit.base.reading import Reading
from unfit.base.times import parse_seconds

if TYPE_CHECKING:
    from unfit.attacker.attacks import Attack


def seconds(text: str) -> float:
    try:
        return cast(float, parse_seconds(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def seed_range(text: str) -> range:
    """`16777216`: this many; `1000:2000`: from the first to before the last."""
    low, colon, high = text.partition(":")
    if not all(part.isdecimal() for part in ((low, high) if colon else (low,))):
        raise typer.BadParameter(f"{text!r} is not a number of seeds such as 16777216, or a range such as 0:1000")
    return range(int(low), int(high)) if colon else range(int(low))


def rounds_of(texts: list[str] | None) -> tuple[tuple[Path, Path], ...]:
    """`sent.pt,update.pt`: two files."""
    pairs = [text.partition(",") for text in texts or []]
    if wrong := [base for base, comma, update in pairs if not (base and update)]:
        raise UsageError(f"--round {wrong[0]}: write BASE,UPDATE: what the client was sent, and its differences")
    return tuple((Path(base), Path(update)) for base, _, update in pairs)


Force = Annotated[bool, typer.Option("--force", help="Overwrite existing output.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print everything, not only what matters most.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
TARGET_HELP = "A checkpoint or a folder; `unfit formats` lists what can be read."
TargetPath = Annotated[Path, typer.Argument(metavar="TARGET", help=TARGET_HELP)]
TargetOrUpdate = Annotated[
    Path | None, typer.Argument(metavar="TARGET", help=f"{TARGET_HELP} With --update there is none.")
]
Update = Annotated[
    Path | None,
    typer.Option(help="Instead of TARGET: a client's differences to --base, new weights minus old ones."),
]
Base = Annotated[
    Path | None, typer.Option(help="The weights that training started from, if known. The change is attacked.")
]
Checkpoints = Annotated[
    list[Path] | None,
    typer.Option(
        "--checkpoint",
        help="Another checkpoint of the same training, or a folder of them; repeatable.",
    ),
]
Rounds = Annotated[
    list[str] | None,
    typer.Option(
        "--round",
        metavar="BASE,UPDATE",
        help="Another round of a client: what it was sent, its update; repeatable.",
    ),
]
Classes = Annotated[
    str | None, typer.Option(help="`split` (the papers' two groups), `all`, or a number: the first classes.")
]


@dataclass(frozen=True)
class AttackOptions:
    """Which attack, and its settings; None: its defaults."""

    method: Annotated[MethodName | None, typer.Option(help="The attack; default: auto, all that applies.")] = None
    solver: Annotated[
        Solver | None,
        typer.Option(help="kkt: in seconds, or exactly as published, in hours."),
    ] = None
    score: Annotated[
        Score | None,
        typer.Option(help="kkt: `any` for a regression loss with weight decay; default: by the outputs."),
    ] = None
    num_candidates: Annotated[
        int | None, typer.Option(help="kkt, inversion: candidates of a run; default: by the weights' spectrum.")
    ] = None
    seed: Seed = 0

    def value(self, **more: Any) -> Attack:
        from unfit.attacker.attacks import named_attack

        options = {each.name: getattr(self, each.name) for each in fields(self)}
        return named_attack(**{**options, **more})


@dataclass(frozen=True)
class BudgetOptions(AttackOptions):
    budget: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="TIME",
            help="Time limit for the whole command, such as `60s` or `10m`. Default: none.",
        ),
    ] = None

    seeds: Annotated[
        int | None,
        typer.Option(help="auto: seeds to try for standard initial weights; 0: none; default: all."),
    ] = None


@dataclass(frozen=True)
class SweepOptions(AttackOptions):
    iterations: Annotated[
        int | None, typer.Option(help="Of each trial; default: the attack's own (paper: 50,000).")
    ] = None


@dataclass(frozen=True)
class ModelOptions:
    """How the checkpoint becomes a model, if the file alone does not define it."""

    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME", help="Your code: NAME() builds the model that these weights belong to."
        ),
    ] = None
    layer: Annotated[
        str | None, typer.Option(help="The dense layer to attack; default: the first that sees each sample once.")
    ] = None
    input_shape: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE", help="Shape of one sample, such as 8x8 or 3x32x32. Default: from data or weights."
        ),
    ] = None

    def value(self) -> Reading:
        try:
            return Reading(**vars(self))
        except ValidationError as error:
            raise UsageError(explained(error)) from error


@dataclass(frozen=True)
class DataOptions:
    """What the target was trained on, and what it was not."""

    data: Annotated[
        str | None,
        typer.Option(help="Training data: npz:FILE, csv:FILE:LABEL, images:DIR, … Not needed for a run folder."),
    ] = None
    members: Annotated[Path | None, typer.Option(help="JSON list of the training samples' indices in --data.")] = (
        None
    )
    unseen: Annotated[
        str | None, typer.Option(help="Samples it was not trained on, the control. Default: the rest of the data.")
    ] = None
    num_unseen: Annotated[
        int | None,
        typer.Option(
            help="Number of unseen samples. Default: all of --unseen, or the number of training samples."
        ),
    ] = None
    classes: Classes = None
    feature_names: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Names of a table's columns: one per line, or a JSON list. Default: its header."
        ),
    ] = None
    resize: Annotated[
        str | None, typer.Option(metavar="SIZE", help="images: resize to 32 or HxW, as in training.")
    ] = None
    scale: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="Preprocessing: multiply the data by this, such as 255 or 1/255."),
    ] = None
    mean: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS", help="Preprocessing: then subtract this; one number, or one per channel or column."
        ),
    ] = None
    std: Annotated[str | None, typer.Option(metavar="NUMBERS", help="Preprocessing: then divide by this.")] = None
    center: Annotated[
        bool,
        typer.Option(
            "--center", help="Preprocessing: subtract the mean of the training samples, as in the papers."
        ),
    ] = False
    as_is: Annotated[
        bool,
        typer.Option("--as-is", help="Preprocessing: none; images in [0, 1]. Default, except for a run folder."),
    ] = False


DEFAULT_POLICY = Policy()


@dataclass(frozen=True)
class PolicyOptions:
    """What a model must meet to pass."""

    fail_on: Annotated[Grade, typer.Option(help="Weakest grade that counts as a leak.")] = DEFAULT_POLICY.fail_on
    max_leaked: Annotated[int, typer.Option(min=0, help="Number of samples of that grade that are allowed.")] = (
        DEFAULT_POLICY.max_leaked
    )
    min_budget: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="TIME",
            help="An attack stopped before this time (`10m`) cannot pass. Default: it must finish.",
        ),
    ] = DEFAULT_POLICY.min_budget
    fpr: Annotated[float, typer.Option(help="Share of unseen samples that may pass the threshold of a trace.")] = (
        DEFAULT_POLICY.fpr
    )
    window: Annotated[int, typer.Option(help="SSIM window: 11, 7, or 3 as in the papers' code.")] = (
        DEFAULT_POLICY.window
    )
    accept: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODE",
            help="Let an audit pass that is inconclusive for this reason, such as holds-samples; repeatable.",
        ),
    ] = None

    def value(self) -> Policy:
        try:
            return Policy(**{**vars(self), "accept": tuple(self.accept or ())})
        except ValidationError as error:
            raise UsageError(explained(error)) from error
