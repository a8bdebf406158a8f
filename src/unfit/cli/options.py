"""Options that several commands share. Their names and defaults come from modules that need no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from unfit.attacker.names import MethodName, Score, Solver
from unfit.auditor.data_reading import DataReading
from unfit.base.errors import UsageError
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
Classes = Annotated[str | None, typer.Option(help=DataReading.model_fields["classes"].description)]


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
