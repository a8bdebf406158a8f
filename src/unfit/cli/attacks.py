"""Attack: `preflight`, `attack`, `find-init`, `sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unfit.attacker.names import Sampler
from unfit.base.ends import complain
from unfit.base.errors import UsageError
from unfit.base.files import SAFETENSORS, kept, new_file
from unfit.base.files import as_json as json_text
from unfit.base.reading import Reading
from unfit.cli.app import app, out
from unfit.cli.machine import computes
from unfit.cli.options import (
    TARGET_HELP,
    Base,
    BudgetOptions,
    Checkpoints,
    Force,
    Rounds,
    SweepOptions,
    TargetOrUpdate,
    TargetPath,
    Update,
    Verbose,
    rounds_of,
    seconds,
    seed_range,
)

A_DAY = 24 * 3600.0


@app.command()
@computes
def preflight(
    how: Reading,
    target: TargetOrUpdate = None,
    base: Base = None,
    update: Update = None,
    num_samples: Annotated[int | None, typer.Option(min=1, help="Number of training samples, if known.")] = None,
    checkpoints: Checkpoints = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Verbose = False,
) -> int:
    """Which attacks apply to these weights, why do others not, and how long do they take? Exit code 3: none."""
    from unfit.attacker.preflight import preflight_file
    from unfit.auditor.report.terminal import printed, show

    found = preflight_file(target, base, how, update, num_samples, checkpoints or ())
    if as_json:
        print(json_text(found.record()), end="")
    else:
        printed(out, show(found, verbose))
    return found.exit_code


@app.command()
@computes
def attack(
    out_file: Annotated[Path, typer.Option("--out", help="The file of candidates; must not exist yet.")],
    options: BudgetOptions,
    how: Reading,
    target: TargetOrUpdate = None,
    base: Base = None,
    update: Update = None,
    checkpoints: Checkpoints = None,
    rounds: Rounds = None,
    force: Force = False,
) -> int:
    """Reconstruct training samples from weights alone."""
    from unfit.attacker.attacks.diary import Diary, attack_file, diary_lines
    from unfit.attacker.candidates import save_candidates
    from unfit.attacker.consensus import CONFIDENT
    from unfit.attacker.run import run_attack
    from unfit.base.load import load_base, load_target, with_checkpoints, with_rounds
    from unfit.base.progress import bar

    value = options.value()
    with new_file(out_file, force, SAFETENSORS) as file:
        candidates = attack_file(value, target, base, how) if isinstance(value, Diary) else None
        if candidates is None:
            attacked = load_target(target, how, base, update)
            initial = load_base(base, attacked) if base else None
            attacked = with_rounds(with_checkpoints(attacked, checkpoints or ()), rounds_of(rounds), how)
            with bar("attacking") as progress:
                candidates = run_attack(value, attacked, initial, progress)
        kept(lambda folder: save_candidates(candidates, folder / out_file.name), file.parent)
    for line in diary_lines(candidates):
        out.print(line)
    facts, sure = candidates.facts, int((candidates.confidence > CONFIDENT).sum())
    first = f", the first {sure} of them confident" if sure else ""
    out.print(f"{out_file}: {len(candidates)} candidates{first}, in {facts['seconds']:.1f} s ({facts['status']})")
    return 0


@app.command()
@computes
def find_init(
    target: TargetPath,
    how: Reading,
    out_file: Annotated[
        Path,
        typer.Option("--out", help="The initial weights as .safetensors, which --base takes; must not exist yet."),
    ],
    seeds: Annotated[
        range,
        typer.Option(
            parser=seed_range, metavar="SEEDS", help="Number of seeds to try, or which ones, as FIRST:LAST."
        ),
    ] = "4294967296",  # type: ignore[assignment]
    skip: Annotated[
        int,
        typer.Option(min=0, help="Also try usual seeds with at most this many numbers drawn before the network."),
    ] = 0,
    num_samples: Annotated[
        list[int] | None, typer.Option(help="Number of samples that may have been shuffled before; repeatable.")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(parser=seconds, metavar="TIME", help="Time limit, such as `60s` or `10m`. Default: none."),
    ] = None,
    force: Force = False,
) -> int:
    """Find the weights that training started from, by their seed. Exit code 3 if they are not found."""
    from unfit.attacker.initial import search_initial_weights
    from unfit.base.load import load_target
    from unfit.base.progress import bar
    from unfit.base.target import save_weights

    attacked = load_target(target, how)
    with bar("looking for the seed") as progress:
        search = search_initial_weights(
            attacked, seeds=seeds, skip=skip, sizes=tuple(num_samples or ()), budget=budget, progress=progress
        )
    out.print(f"{search.why[0].upper()}{search.why[1:]} ({search.seconds:.1f} s).")
    if search.initial is None:
        return 3
    with new_file(out_file, force, SAFETENSORS) as file:
        save_weights(search.initial.target.weights, file)
    left = f", of which weight decay left {search.initial.decay:.3g}" if search.initial.decay != 1 else ""
    out.print(f"{out_file}: the initial weights{left}; attack with it: --base {out_file}")
    return 0


@app.command()
@computes
def sweep(
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help=f"{TARGET_HELP} With --status: the folder of a sweep.")
    ],
    how: Reading,
    options: SweepOptions,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="The folder of the sweep. An existing sweep is continued.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Number of trials in total; a larger number extends a sweep.")] = 100,
    base: Base = None,
    sampler: Annotated[
        Sampler, typer.Option(help="How settings are chosen: `random` as in the papers, `quasi`-random, or `tpe`.")
    ] = "random",
    ranges: Annotated[
        list[str] | None, typer.Option("--range", help="Bounds of a setting: NAME=LOW:HIGH, repeatable.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Trials at once. Default: one per CPU.")] = None,
    cpus_per_trial: Annotated[int, typer.Option(help="Threads of each trial.")] = 1,
    gpus_per_trial: Annotated[float, typer.Option(help="With --ray; 0.25 means that four trials share one.")] = 0,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on this Ray cluster: HOST:PORT, ray://…, or auto.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="Also log every trial to this MLflow store.")
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="Print the progress of a sweep; run nothing.")] = False,
) -> int:
    """Attack with many sampled settings. If it is killed, the same command resumes it.

    The default is the papers' own attack, kkt with their solver.
    """
    from unfit.attacker.sweep.run import sweep as run_sweep
    from unfit.base.load import load_base, load_target
    from unfit.base.progress import bar

    if status:
        _say_status(target)
        return 0
    if out_folder is None:
        raise UsageError("give the folder of the sweep, --out DIR")
    method = options.method or "kkt"
    value = options.value(
        method=method, solver=options.solver or ("paper" if method == "kkt" else None), seed=None
    )
    attacked = load_target(target, how, base)
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


def _say_status(folder: Path) -> None:
    from unfit.attacker.sweep.store import AGAIN, read_plan, read_status

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
