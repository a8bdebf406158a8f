"""The command line: parse into a value or a request, call, print."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast, get_type_hints

import typer
from pydantic import ValidationError
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from unfit import __version__
from unfit.attacker.attacks import METHODS, Attack, named_attack, run_attack
from unfit.attacker.candidates import save_candidates
from unfit.attacker.consensus import CONFIDENT
from unfit.attacker.preflight import preflight_file
from unfit.attacker.start import search_start
from unfit.attacker.stationarity import Score
from unfit.attacker.sweep.books import AGAIN, read_plan, read_status
from unfit.attacker.sweep.run import sweep as run_sweep
from unfit.attacker.sweep.trials import Sampler
from unfit.auditor.audit import Audit, load_audit, load_record
from unfit.auditor.compare import compare
from unfit.auditor.grades import Grade
from unfit.auditor.redact import redact
from unfit.auditor.report import write_report
from unfit.auditor.report.card import card as model_card
from unfit.auditor.report.card import eval_results
from unfit.auditor.report.junit import junit
from unfit.auditor.report.sarif import sarif
from unfit.auditor.report.terminal import printed, show, show_audit
from unfit.auditor.request import AuditRequest, Policy
from unfit.auditor.sources import read_source
from unfit.auditor.split import SPLIT_FILES, write_split
from unfit.base.ends import complain, end, ending
from unfit.base.errors import UnfitError, UsageError, clean_lines, explained, unknown
from unfit.base.files import SAFETENSORS, kept, new_file, new_folder
from unfit.base.files import as_json as json_text
from unfit.base.formats import format_table
from unfit.base.load import Reading, load_base, load_target
from unfit.base.overview import first_steps, overview
from unfit.base.progress import bar
from unfit.base.reservation import parts_of
from unfit.base.target import save_weights
from unfit.base.times import duration, parse_seconds
from unfit.lab.runs import RUN_FILES, audit_run, fit_folder, fit_run, repeat_audit
from unfit.lab.training import FitSettings, Loss
from unfit.lab.training import Method as Training

AUDIT_FILES = ("audit.json", "arrays.safetensors", "index.html", "pairs.png")
NOT_REPEATED = {"out_folder", "repeat", "redacted", "junit_file", "sarif_file", "force"}  # not how it is made
A_DAY = 24 * 3600.0
SAME_KIND = 10  # bytes at its begin that a file must have to be replaced by such a report


class _Printer(Console):
    """Names in files may be anything; and Rich would end the process with exit code 1, which here is a leak."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Words are wrapped at spaces on a terminal; elsewhere lines stay whole."""
        cleaned = (clean_lines(each) if isinstance(each, str) else each for each in objects)
        super().print(*cleaned, **{"soft_wrap": not self.is_terminal} | options)

    def on_broken_pipe(self) -> None:
        raise


Function = TypeVar("Function", bound=Callable[..., Any])
PURPOSES = {  # the sections of a command's help, in order, and the parameters that each holds
    "Model": "model layer input_shape base update arch init biases",
    "Data": "data n members feature_names unseen num_unseen classes resize scale mean std center as_is data_dir",
    "Training": "loss weight_decay lr epochs batch momentum flow_time target_loss max_time",
    "Attack": "method solver score num_candidates budget seeds skip iterations candidates trials sampler ranges "
    "controls baselines attacks",
    "Policy": "fail_on max_recovered min_budget fpr window",
    "Machines": "workers cpus_per_trial gpus_per_trial ray",
    "Output": "out_folder collected out_file force redacted junit_file sarif_file eval_file benchmark task "
    "as_json mlflow",
    "Also": "repeat status listing seed help",
}


class _Command(TyperCommand):
    """A command whose help is grouped by purpose."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *PURPOSES)}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                sections[purpose(parameter)].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def purpose(parameter: Any) -> str:
    """The section of the help that a parameter stands in, by its name unless it says so itself."""
    if parameter.param_type_name == "argument":
        return "Arguments"
    named = (purpose for purpose, names in PURPOSES.items() if parameter.name in names.split())
    return getattr(parameter, "rich_help_panel", None) or next(named, "Also")


class _Group(TyperGroup):
    def get_help(self, ctx: Any) -> str:
        return overview()


class _App(typer.Typer):
    def command(self, *words: Any, **options: Any) -> Callable[[Function], Function]:
        return super().command(*words, **{"cls": _Command} | options)


app = _App(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, cls=_Group)
out = _Printer(highlight=False, markup=False)  # a path may hold [brackets]


def main() -> None:
    """Run a command; errors are one message on standard error. Exit codes: docs/formats.md."""
    group = typer.main.get_command(app)
    with ending():
        try:  # not group(), which ends with exit code 1, a leak, if nobody reads standard output
            with group.make_context("unfit", sys.argv[1:]) as context:
                code = group.invoke(context)
        except typer.Exit as done:
            code = done.exit_code
        except UnfitError as error:
            end(with_flags(str(error), group), error.exit_code)
        except typer.TyperException as error:
            place = getattr(error, "ctx", None)
            end(f"{error.format_message()} (see `{_path(place)} --help`)", UsageError.exit_code)
    sys.exit(code)


def _path(context: typer.Context | None) -> str:
    """The command that was to be run, as it is called."""
    return context.command_path if context else "unfit"


def with_flags(message: str, group: Any) -> str:
    """Errors name Python's arguments in backticks; whoever called a command knows them by its flags."""
    command = group.commands.get(next(iter(sys.argv[1:]), ""))
    flags = [flag for each in (command.params if command else ()) for flag in each.opts if flag.startswith("--")]
    names = {flag.removeprefix("--").replace("-", "_"): flag for flag in flags}
    return re.sub(r"`(?:\w+\.)?(\w+)`", lambda found: names.get(found[1], found[0]), message)


# Groups of options --------------------------------------------------------------------------------------------


def grouped(command: Callable[..., int]) -> Callable[..., int]:
    """Let a command take groups of options: dataclasses, each of whose fields is an option."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    flat: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            inner = get_type_hints(groups[name], include_extras=True)
            flat += [_parameter(each.name, inner[each.name], each.default) for each in fields(groups[name])]
        else:
            flat.append(_parameter(name, hints[name], parameter.default))

    @wraps(command)
    def call(**given: Any) -> int:
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group)})
        return command(**given)

    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return call


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def seconds(text: str) -> float:
    try:
        return cast(float, parse_seconds(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def seed_range(text: str) -> range:
    """`16777216`: so many; `1000:2000`: from the first to before the last."""
    low, colon, high = text.partition(":")
    if not all(part.isdecimal() for part in ((low, high) if colon else (low,))):
        raise typer.BadParameter(f"{text!r} is not a number of seeds such as 16777216, or a range such as 0:1000")
    return range(int(low), int(high)) if colon else range(int(low))


if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[METHODS]

Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Seed = Annotated[int, typer.Option(min=0, help="Everything random follows from it.")]
TARGET_HELP = "A checkpoint or a folder; `unfit formats` lists what can be read."
TargetPath = Annotated[Path, typer.Argument(metavar="TARGET", help=TARGET_HELP)]
TargetOrUpdate = Annotated[
    Path | None, typer.Argument(metavar="TARGET", help=f"{TARGET_HELP} With --update there is none.")
]
Update = Annotated[
    Path | None,
    typer.Option(help="Instead of TARGET: a client's differences to --base, new weights less old ones."),
]
Base = Annotated[
    Path | None, typer.Option(help="The weights training started from, if known; attacks the change.")
]
Classes = Annotated[
    str | None, typer.Option(help="`split` (the papers' two groups), `all`, or a number: the first classes.")
]


@dataclass(frozen=True)
class AttackOptions:
    """Which attack, and its settings; None: its defaults."""

    method: Annotated[MethodName | None, typer.Option(help="The attack; default: auto, all that applies.")] = None
    solver: Annotated[
        Literal["fast", "paper"] | None,
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
        options = {each.name: getattr(self, each.name) for each in fields(self)}
        return named_attack(**{**options, **more})


@dataclass(frozen=True)
class BudgetOptions(AttackOptions):
    budget: Annotated[
        float | None,
        typer.Option(
            parser=seconds, metavar="TIME", help="Time for all of it, such as `60s`, `10m`; default: as it takes."
        ),
    ] = None

    seeds: Annotated[
        int | None,
        typer.Option(
            help="auto: seeds that are tried for the start, where it is standard; 0: none; default: all."
        ),
    ] = None


@dataclass(frozen=True)
class SweepOptions(AttackOptions):
    iterations: Annotated[
        int | None, typer.Option(help="Of each trial; default: the attack's own (paper: 50,000).")
    ] = None


@dataclass(frozen=True)
class ModelOptions:
    """How the checkpoint becomes a net, where the file alone does not say."""

    model: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="Your code: NAME() builds the model, which gets these weights."),
    ] = None
    layer: Annotated[
        str | None, typer.Option(help="The dense layer to attack; default: the first that sees each sample once.")
    ] = None
    input_shape: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE", help="Shape of one sample, such as 8x8 or 3x32x32; default: as data or weights say."
        ),
    ] = None

    def value(self) -> Reading:
        try:
            return Reading(**vars(self))
        except ValidationError as error:
            raise UsageError(explained(error)) from error


@dataclass(frozen=True)
class DataOptions:
    """What the target was trained on, and what it never saw."""

    data: Annotated[
        str | None,
        typer.Option(help="What it was trained on: npz:FILE, csv:FILE:LABEL, images:DIR, …; a run folder knows."),
    ] = None
    members: Annotated[Path | None, typer.Option(help="JSON list of the training samples' indices in --data.")] = (
        None
    )
    unseen: Annotated[str | None, typer.Option(help="Samples it never saw; default: the rest of the data.")] = None
    num_unseen: Annotated[
        int | None, typer.Option(help="How many of those; default: as many as it was trained on.")
    ] = None
    classes: Classes = None
    feature_names: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Names of a table's columns: one a line, or a JSON list; default: its header."
        ),
    ] = None
    resize: Annotated[str | None, typer.Option(metavar="SIZE", help="images: to 32 or HxW, as in training.")] = (
        None
    )
    scale: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="The model saw the data times this, such as 255 or 1/255, …"),
    ] = None
    mean: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="… less this: one number, or one per channel or column, …"),
    ] = None
    std: Annotated[str | None, typer.Option(metavar="NUMBERS", help="… over this.")] = None
    center: Annotated[
        bool, typer.Option("--center", help="Or: less the mean of the training samples, as in the papers.")
    ] = False
    as_is: Annotated[
        bool, typer.Option("--as-is", help="Or: as they are, images in [0, 1]; default, but of a run folder.")
    ] = False


DEFAULT_POLICY = Policy()


@dataclass(frozen=True)
class PolicyOptions:
    """What a model must meet to pass."""

    fail_on: Annotated[
        Grade, typer.Option(help="The grade that counts: samples of it or of a better one may make a leak.")
    ] = DEFAULT_POLICY.fail_on
    max_recovered: Annotated[
        int, typer.Option(min=0, help="More samples of that grade, beyond what chance gives, are a leak.")
    ] = DEFAULT_POLICY.max_recovered
    min_budget: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="TIME",
            help="An attack stopped sooner (`10m`) cannot pass; default: it must finish.",
        ),
    ] = DEFAULT_POLICY.min_budget
    fpr: Annotated[float, typer.Option(help="Share of the unseen samples that may count as recovered.")] = (
        DEFAULT_POLICY.fpr
    )
    window: Annotated[int, typer.Option(help="SSIM window: 11, 7, or 3 as in the papers' code.")] = (
        DEFAULT_POLICY.window
    )

    def value(self) -> Policy:
        try:
            return Policy(**vars(self))
        except ValidationError as error:
            raise UsageError(explained(error)) from error


# Commands -----------------------------------------------------------------------------------------------------


@app.callback(invoke_without_command=True)
def unfit(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Reconstruct training samples from the weights of a trained classifier, and audit what it gives away."""
    if version:
        out.print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        out.print(first_steps())
        raise typer.Exit(UsageError.exit_code)


@app.command()
def demo(
    n: Annotated[int, typer.Option(help="Training images, half of them faces: 40 or 100 are good choices.")] = 40,
    out_folder: Annotated[Path, typer.Option("--out", help="Where to write.")] = Path("unfit-demo"),
    force: Force = False,
) -> int:
    """Train a face detector on embedded images and take its training faces back out of its weights."""
    with new_folder(out_folder, force, {"run": RUN_FILES, "audit": AUDIT_FILES}) as folder:
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
            result = audit_run(AuditRequest(target=str(folder / "run")), progress)
        _save_audit(result, folder / "audit")
    _say(result, out_folder / "audit")
    return 0


@app.command()
def fit(
    data: Annotated[
        str,
        typer.Option(
            help="faces, mnist5k, circle, cifar10:DIR, mnist:DIR, npz:FILE, csv:FILE:LABEL, images:DIR, …"
        ),
    ],
    n: Annotated[int, typer.Option(help="Training samples, equally many of each class.")],
    out_folder: Annotated[Path, typer.Option("--out", help="The run folder; must not exist yet.")],
    arch: Annotated[str, typer.Option(help="Hidden layers: 1000-1000 or conv(3,32)-1000.")] = "1000-1000",
    init: Annotated[str, typer.Option(help="Scale of the first layer's start, or `standard`.")] = "1e-4",
    biases: Annotated[
        Literal["first", "hidden"], typer.Option(help="In the first layer or in all hidden layers.")
    ] = "first",
    method: Annotated[
        Training,
        typer.Option(help="Gradient flow, plain gradient descent, or mini-batches.", rich_help_panel="Training"),
    ] = "flow",
    loss: Annotated[Loss | None, typer.Option(help="Default: logistic for two classes, ce for more.")] = None,
    weight_decay: Annotated[float, typer.Option(help="λ of the penalty λ/2 · ‖θ‖².")] = 0.0,
    classes: Classes = None,
    lr: Annotated[float, typer.Option(help="gd, sgd: learning rate.")] = 0.01,
    epochs: Annotated[int, typer.Option(help="gd, sgd: passes over the data.")] = 10_000,
    batch: Annotated[int, typer.Option(help="sgd: samples of a mini-batch.")] = 50,
    momentum: Annotated[float, typer.Option(help="sgd: how much of the last step goes on.")] = 0.9,
    flow_time: Annotated[
        float, typer.Option(help="flow: learning rate × epochs of the training it stands for.")
    ] = 1e4,
    target_loss: Annotated[float | None, typer.Option(help="Stop at this training loss instead.")] = None,
    seed: Seed = 0,
    max_time: Annotated[
        float | None,
        typer.Option(
            parser=seconds, metavar="TIME", help="Stop after this long, such as `10m`; run again to go on."
        ),
    ] = None,
    force: Force = False,
) -> int:
    """Train a target as the papers do, in hundreds of steps.

    Stopped by a kill, by Ctrl-C or by --max-time, it goes on from its last checkpoint when you run it again.
    """
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


@app.command()
@grouped
def attack(
    out_file: Annotated[Path, typer.Option("--out", help="The file of candidates; must not exist yet.")],
    options: BudgetOptions,
    how: ModelOptions,
    target: TargetOrUpdate = None,
    base: Base = None,
    update: Update = None,
    force: Force = False,
) -> int:
    """Reconstruct training samples from weights alone."""
    value = options.value()
    with new_file(out_file, force, SAFETENSORS) as file:
        attacked = load_target(target, how.value(), base, update)
        start = load_base(base, attacked) if base else None
        with bar("attacking") as progress:
            candidates = run_attack(value, attacked, start, progress)
        kept(lambda folder: save_candidates(candidates, folder / out_file.name), file.parent)
    facts, sure = candidates.facts, int((candidates.confidence > CONFIDENT).sum())
    first = f", the first {sure} of them confident" if sure else ""
    out.print(f"{out_file}: {len(candidates)} candidates{first}, in {facts['seconds']:.1f} s ({facts['status']})")
    return 0


@app.command()
@grouped
def start(
    target: TargetPath,
    how: ModelOptions,
    out_file: Annotated[
        Path, typer.Option("--out", help="The start as .safetensors, which --base takes; must not exist yet.")
    ],
    seeds: Annotated[
        range,
        typer.Option(parser=seed_range, metavar="SEEDS", help="How many seeds, or which, as FIRST:LAST."),
    ] = "4294967296",  # type: ignore[assignment]
    skip: Annotated[
        int, typer.Option(min=0, help="Also, with usual seeds, up to so many numbers drawn before the network.")
    ] = 0,
    budget: Annotated[
        float | None, typer.Option(parser=seconds, metavar="TIME", help="Such as `60s` or `10m`; default: no end.")
    ] = None,
    force: Force = False,
) -> int:
    """Find the weights that training started from, by their seed. Exit code 3 if they are not found."""
    attacked = load_target(target, how.value())
    with bar("looking for the seed") as progress:
        search = search_start(attacked, seeds=seeds, skip=skip, budget=budget, progress=progress)
    out.print(f"{search.why[0].upper()}{search.why[1:]} ({search.seconds:.1f} s).")
    if search.start is None:
        return 3
    with new_file(out_file, force, SAFETENSORS) as file:
        save_weights(search.start.target.weights, file)
    left = f", of which weight decay left {search.start.decay:.3g}" if search.start.decay != 1 else ""
    out.print(f"{out_file}: the start{left}; attack with it: --base {out_file}")
    return 0


@app.command()
@grouped
def sweep(
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help=f"{TARGET_HELP} With --status: the folder of a sweep.")
    ],
    how: ModelOptions,
    options: SweepOptions,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="The folder of the sweep; if it is there, the sweep goes on.")
    ] = None,
    trials: Annotated[int, typer.Option(help="How many in all; a larger number extends a sweep.")] = 100,
    base: Base = None,
    sampler: Annotated[
        Sampler, typer.Option(help="Of the settings: `random` as in the papers, `quasi`-random, or `tpe`.")
    ] = "random",
    ranges: Annotated[
        list[str] | None, typer.Option("--range", help="Other bounds of a setting: NAME=LOW:HIGH, repeatable.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Trials at once; default: as many as there are CPUs for.")
    ] = None,
    cpus_per_trial: Annotated[int, typer.Option(help="Threads of each trial.")] = 1,
    gpus_per_trial: Annotated[float, typer.Option(help="With --ray; 0.25: four trials share one.")] = 0,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on this Ray cluster: HOST:PORT, ray://…, or auto.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="Log every trial to this MLflow store too.")
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="Say how far a sweep is; run nothing.")] = False,
) -> int:
    """Attack with many sampled settings. Killed at any moment, the same command goes on where it was.

    The default is the papers' own attack, kkt with their solver.
    """
    if status:
        _say_status(target)
        return 0
    if out_folder is None:
        raise UsageError("give the folder of the sweep, --out DIR")
    method = options.method or "kkt"
    value = options.value(
        method=method, solver=options.solver or ("paper" if method == "kkt" else None), seed=None
    )
    attacked = load_target(target, how.value(), base)
    with bar("sweeping", period=A_DAY) as progress:
        result = run_sweep(
            attacked,
            trials,
            out_folder,
            value,
            load_base(base, attacked) if base else None,
            sampler=sampler,
            ranges=dict(map(_named_range, ranges or [])),
            seed=options.seed,
            workers=workers,
            cpus_per_trial=cpus_per_trial,
            gpus_per_trial=gpus_per_trial,
            ray=ray,
            mlflow=mlflow,
            progress=progress,
        )
    out.print(f"{out_folder}: {result.words}")
    for note in result.notes:
        complain(note)
    return 0


@app.command()
@grouped
def audit(
    context: typer.Context,
    out_folder: Annotated[Path, typer.Option("--out", help="The folder of the audit; must not exist yet.")],
    how: ModelOptions,
    data: DataOptions,
    options: BudgetOptions,
    policy: PolicyOptions,
    target: TargetOrUpdate = None,
    repeat: Annotated[
        Path | None, typer.Option("--from", help="An audit.json or its folder: repeat that audit.")
    ] = None,
    base: Base = None,
    update: Update = None,
    candidates: Annotated[
        Path | None, typer.Option(help="Search these, of `unfit attack` or the folder of a sweep; attack nothing.")
    ] = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="Attack an untrained net too, and one trained on other samples.")
    ] = False,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Say what the weights as pictures and inversion find.")
    ] = False,
    redacted: Annotated[
        bool | None,
        typer.Option("--redact/--no-redact", help="Show no picture and nobody; default: unless on a terminal."),
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", help="Also write the verdict as JUnit XML.")
    ] = None,
    sarif_file: Annotated[
        Path | None, typer.Option("--sarif", help="Also write the verdict as SARIF, for code scanning.")
    ] = None,
    force: Force = False,
) -> int:
    """Which training samples do these weights give away? Exit code 0 pass, 1 leak, 3 inconclusive."""
    if (target is None and update is None) == (repeat is None):
        raise UsageError("give either a TARGET, or --base and --update, or --from AUDIT.JSON")
    if repeat and (given := _given(context) - NOT_REPEATED):
        names = ", ".join(sorted(f"--{name.replace('_', '-')}" for name in given))
        raise UsageError(f"--from repeats an audit as it was: leave out {names}")
    reports = [("--junit", junit_file, junit), ("--sarif", sarif_file, sarif)]
    for flag, path, _ in reports:
        if path and path.exists() and not force:
            raise UnfitError(f"{path} exists already: choose another {flag}, or --force to replace it")
    chosen = {**vars(how), "base": base, "candidates": candidates, "controls": controls, "baselines": baselines}
    chosen |= {"target": target, "update": update}
    request = None if repeat else _request(data, options, policy, chosen)
    with new_folder(out_folder, force, AUDIT_FILES) as folder:
        with bar("searching the candidates" if candidates else "auditing") as progress:
            if request is not None:
                result = audit_run(request, progress, parts_of(folder))
            else:
                assert repeat is not None
                result = repeat_audit(load_record(repeat), progress, parts_of(folder))
        if redacted if redacted is not None else not sys.stdout.isatty():
            result = redact(result)
        kept(partial(_save_audit, result), folder)
    for _, path, render in reports:
        if path:
            try:
                _write(path, render(result.record), force)
            except UnfitError as error:
                raise UnfitError(f"{error}; the audit itself is kept in {out_folder}") from error
    _say(result, out_folder)
    return result.exit_code


def _request(
    data: DataOptions, options: BudgetOptions, policy: PolicyOptions, chosen: dict[str, Any]
) -> AuditRequest:
    attack, rules = options.value(), policy.value()
    try:
        return AuditRequest(**vars(data), **chosen, attack=attack, policy=rules, seed=options.seed)
    except ValidationError as error:
        raise UsageError(explained(error)) from error


@app.command()
def split(
    data: Annotated[str, typer.Argument(metavar="SOURCE", help="npz:FILE, images:DIR, or another of --data.")],
    out_folder: Annotated[Path, typer.Option("--out", help="The folder of both parts; must not exist yet.")],
    unseen: Annotated[float, typer.Option(help="The share of every class that is held out.")] = 0.5,
    classes: Classes = None,
    seed: Seed = 0,
    force: Force = False,
) -> int:
    """Hold samples out at random before training: train on train.npz, and audit with unseen.npz as unseen."""
    with new_folder(out_folder, force, SPLIT_FILES) as folder:
        num, num_unseen = write_split(read_source(data, classes).train, unseen, seed, folder)
    train, held_out = (f"npz:{out_folder / name}" for name in SPLIT_FILES)
    out.print(f"{num} samples to train on and {num_unseen} unseen ones; after training:")
    out.print(f"unfit audit MODEL --data {train} --unseen {held_out} --out AUDIT")
    return 0


@app.command()
def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The last release's audit.json, or its folder.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="This release's audit.json, or its folder.")],
) -> int:
    """What changed between two audits of the same samples. Exit code 1 if something got worse, else 0."""
    difference = compare(load_record(old), load_record(new))
    out.print("\n".join(difference.changes) or "nothing changed")
    for regression in difference.regressions:
        out.print(f"worse: {regression}")
    return difference.exit_code


@app.command()
@grouped
def preflight(
    how: ModelOptions,
    target: TargetOrUpdate = None,
    base: Base = None,
    update: Update = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same for machines.")] = False,
) -> int:
    """Which attacks apply to these weights, why not the others, and how long? Exit code 3 if there are none."""
    found = preflight_file(target, base, how.value(), update)
    if as_json:
        print(json_text(found.record()), end="")
    else:
        printed(out, show(found))
    return found.exit_code


@app.command()
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
    """Reproduce a figure or a table of the papers. Killed, the same command goes on where it was.

    Other seeds and scales in the same --out are stored beside the first, and the pages show them together.
    """
    from unfit.lab.reproduce.catalogue import ITEMS, chosen  # Matplotlib: no other command needs it
    from unfit.lab.reproduce.index import collect, write_pages
    from unfit.lab.reproduce.item import make, place_of
    from unfit.lab.reproduce.lab import ATTACKS, SCALES, Lab

    named = tuple(dict.fromkeys(attacks or ("auto",)))
    if strangers := [each for each in named if each not in ATTACKS]:
        raise unknown("attack", strangers[0], ATTACKS)
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


@app.command()
def formats() -> int:
    """Which files can be attacked or audited, what each gives, and what must be installed for it."""
    for each in format_table():
        needed = f"needs unfit[{each.extra}]" if each.extra else ""
        out.print(f"{' '.join(each.suffixes):<26} {each.gives:<14}  {each.name:<54} {needed}".rstrip())
    return 0


@app.command()
def report(folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of an audit.")]) -> int:
    """Make the page again, from an audit's audit.json and arrays.safetensors alone."""
    audit = load_audit(folder)
    write_report(audit.record, audit.arrays, folder)
    _say_page(folder)
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
    """An audit for Hugging Face: a section of the model card, and an entry for `.eval_results/`, both public."""
    if (eval_file is None) != (benchmark is None) or (task and not benchmark):
        raise UsageError("give --eval-results and --benchmark together, and --task only with them")
    record = load_record(folder)
    if eval_file and benchmark:
        _write(eval_file, eval_results(record, benchmark, task), force)
    if out_file:
        _write(out_file, model_card(record), force)
    else:
        print(model_card(record), end="")
    return 0


def _write(path: Path, text: str, force: bool) -> None:
    """A new file; `force` replaces one that begins as this one does."""
    with new_file(path, force, (0, text.encode()[:SAME_KIND])) as file:
        file.write_text(text, encoding="utf-8")


def _given(context: typer.Context) -> set[str]:
    """The parameters that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _say_status(folder: Path) -> None:
    plan, status = read_plan(folder), read_status(folder)
    out.print(f"{plan.attack.title} on {plan.target.architecture}, {plan.sampler} settings, seed {plan.seed}")
    out.print(status.words)
    if status.best:
        out.print("best: " + ", ".join(f"{name} {_brief(value)}" for name, value in status.best.settings.items()))
    if not status.at_work:
        out.print(f"not running: {AGAIN}" if status.num_left else "all done")
    elif status.seconds_left is not None:
        out.print(f"about {status.seconds_left / 60:.0f} min left")


def _brief(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _named_range(text: str) -> tuple[str, tuple[float, float]]:
    try:
        name, _, bounds = text.partition("=")
        low, high = map(float, bounds.split(":"))
    except ValueError as error:
        raise UsageError(f"--range {text}: write NAME=LOW:HIGH, such as lr=1e-3:1") from error
    return name, (low, high)


def _init(text: str) -> float | None:
    if text == "standard":
        return None
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"--init takes a number such as 1e-4, or `standard`, not {text!r}") from error


def _save_audit(result: Audit, folder: Path) -> None:
    result.save(folder)
    write_report(result.record, result.arrays, folder)


def _say(result: Audit, folder: Path) -> None:
    printed(out, show_audit(result.record))
    _say_page(folder)


def _say_page(folder: Path) -> None:
    """Not wrapped: a path that is whole can be clicked."""
    out.print(f"page: {(folder / 'index.html').absolute()}", soft_wrap=True)
