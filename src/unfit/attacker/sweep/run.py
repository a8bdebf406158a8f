"""Many attacks with sampled settings, here or on a cluster. Killed at any moment, a sweep can go on from there."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import cast, get_args

from pydantic import ValidationError
from torch import nn

from unfit.attacker.attacks import ATTACKS, Attack, as_attack
from unfit.attacker.attacks.paper import PaperKKT
from unfit.attacker.method import Method, Parameter, Parameters
from unfit.attacker.names import Sampler
from unfit.attacker.run import check_attack
from unfit.attacker.sweep.cluster import Place, Submit, in_processes, in_this_process, on_ray
from unfit.attacker.sweep.store import Status, SweepStore, open_sweep
from unfit.attacker.sweep.tpe import load_optuna
from unfit.attacker.sweep.trials import MAX_TRIALS, Job, Outcome, Plan, TargetId, versions, write
from unfit.base.device import available, chosen
from unfit.base.errors import UsageError, explained, unknown
from unfit.base.modules import as_base, as_target
from unfit.base.nets import Architecture
from unfit.base.progress import Report, quiet, reporting
from unfit.base.target import Target
from unfit.base.threads import num_workers

Ranges = dict[str, tuple[float, float]]
ENDS = (0.0, math.nextafter(1.0, 0.0))  # of [0, 1), from which settings are sampled


def sweep(
    model: Target | nn.Module,
    trials: int,
    folder: str | Path,
    attack: Method | str | None = None,
    base: Target | nn.Module | None = None,
    *,
    sampler: Sampler = "random",
    ranges: Ranges | None = None,
    seed: int = 0,
    workers: int | None = None,
    cpus_per_trial: int = 1,
    gpus_per_trial: float = 0,
    ray: str | None = None,
    mlflow: str | None = None,
    progress: Report | bool = quiet,
    device: str | None = None,
) -> Status:
    """Attack with many different settings; each trial's candidates become a file in a folder.

    A folder of the same sweep is continued until it has `trials` in all. A script must call this under
    `if __name__ == "__main__":`, since the worker processes import it.

    Args:
        model: A `torch.nn.Module` or a `Target`.
        trials: How many in all.
        folder: Where the sweep is kept; `candidates` of an audit takes it.
        attack: The settings that all trials share; without one, the papers' solver is swept as in the papers.
        base: The weights that training started from, if they are known.
        sampler: `random` and `quasi` sample settings from the seed and the number of the trial alone; `tpe` learns
            from the attack's own loss.
        ranges: Other bounds that settings are sampled from: {"lr": (1e-3, 1)}.
        seed: Everything random follows from it.
        workers: Trials at once; by default as many as there are cores for, or as the cluster has room for.
        cpus_per_trial: Cores of each trial.
        gpus_per_trial: GPUs of each trial on a Ray cluster; 0.25: four trials share one.
        ray: The address of a Ray cluster to run on.
        mlflow: The URI of a store where each trial is logged too.
        progress: True shows a bar; a function is called with the fraction done and what is being done.
        device: Where each trial is computed: `cpu`, `cuda` or `cuda:1`; by default on CUDA where there is a GPU.
            On a Ray cluster its nodes need that device, and this machine need not have it.

    Example:
        >>> status = unfit.sweep(model, 3, "sweep", unfit.Unmix(iterations=20), workers=1)
        >>> len(status.ended)
        3
    """
    target = as_target(model)
    initial = as_base(base, target)
    _check_numbers(trials, workers, cpus_per_trial, gpus_per_trial, ray)
    plan = make_plan(
        target, initial, PaperKKT() if attack is None else as_attack(attack), sampler, ranges or {}, seed
    )
    where = device or chosen()
    if where is not None and not ray:
        available(where)
    job = Job(target, initial, plan, cpus_per_trial, None if ray else Path(folder), where)
    place: AbstractContextManager[Place]
    if ray:
        place = on_ray(job, ray, gpus_per_trial, workers)
    else:
        num = min(workers or max(1, num_workers() // cpus_per_trial), trials)
        place = in_this_process(job) if num == 1 else in_processes(job, num)
    with place as (submit, slots), open_sweep(Path(folder), plan, trials) as store:
        if mlflow:
            from unfit.attacker.sweep.tracking import log_to_mlflow

            store.log = log_to_mlflow(mlflow, plan, store.ended.values())
        with reporting(progress, "sweeping") as report:
            return run_trials(store, submit, slots, report)


def run_trials(store: SweepStore, submit: Submit, slots: Callable[[], int], progress: Report) -> Status:
    """Keep every slot busy until all trials are done."""
    running: set[Future[Outcome]] = set()
    todo = store.todo()
    while True:
        while len(running) < slots() and (trial := next(todo, None)):
            _tell(progress, store.status(len(running) + 1))
            running.add(submit(*trial))
        if not running:
            return store.status(0)
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            store.enter(write(future.result(), store.folder))
        _tell(progress, store.status(len(running)))


def _tell(progress: Report, status: Status) -> None:
    progress(len(status.ended) / status.num_trials, status.words)


# The plan, and what is refused before anything is written --------------------------------------------------


def _check_numbers(trials: int, workers: int | None, cpus: int, gpus: float, ray: str | None) -> None:
    if not 0 < trials <= MAX_TRIALS:
        raise UsageError(f"`trials` must be between 1 and {MAX_TRIALS:,}, not {trials:,}")
    if workers is not None and workers < 1:
        raise UsageError(f"`workers` must be at least 1, not {workers}")
    if cpus < 1:
        raise UsageError(f"`cpus_per_trial` must be at least 1, not {cpus}")
    if not 0 <= gpus < math.inf:
        raise UsageError(f"`gpus_per_trial` cannot be negative or infinite, but is {gpus:g}")
    if gpus and not ray:
        raise UsageError("Ray shares out the GPUs: give `ray` too, or leave out `gpus_per_trial`")


def make_plan(
    target: Target, base: Target | None, attack: Method, sampler: Sampler, ranges: Ranges, seed: int
) -> Plan:
    check_attack(attack, target, base)
    if type(attack) not in ATTACKS:
        raise UsageError(f"a sweep takes the attacks that come with unfit, not {type(attack).__name__}")
    if sampler not in get_args(Sampler):
        raise unknown("sampler", sampler, get_args(Sampler))
    try:
        plan = Plan(
            target=TargetId(sha256=target.sha256, architecture=str(target.architecture)),
            base=base.sha256 if base else None,
            attack=cast(Attack, attack.model_copy(update={"seed": seed})),
            sampler=sampler,
            seed=seed,
            parameters=with_ranges(_varied(attack, target.architecture), ranges),
            versions=versions() | ({"optuna": load_optuna().__version__} if sampler == "tpe" else {}),
        )
    except ValidationError as error:
        raise UsageError(explained(error)) from error
    _check_settings(attack, plan)
    return plan


def _varied(attack: Method, architecture: Architecture) -> Parameters:
    if parameters := attack.varies(architecture):
        return parameters
    others = [kind.title for kind in ATTACKS if kind().varies(architecture)]
    raise UsageError(f"{attack.title} has no settings for a sweep to vary; choose one of: {', '.join(others)}")


def with_ranges(parameters: Parameters, ranges: Ranges) -> Parameters:
    """The parameters, some with other bounds."""
    numbers = [name for name, parameter in parameters.items() if parameter.choices is None]
    changed = {}
    for name, (low, high) in ranges.items():
        if name not in numbers:
            raise unknown("setting in `ranges`", name, numbers)
        log = parameters[name].log
        if not -math.inf < low < high < math.inf or (log and low <= 0):
            must = "two positive numbers" if log else "two numbers"
            raise UsageError(f"`ranges` of {name} must be {must}, the smaller one first, not {low:g} and {high:g}")
        changed[name] = Parameter(low=low, high=high, log=log)
    return parameters | changed


def _check_settings(attack: Method, plan: Plan) -> None:
    """Refuse bounds that the attack does not allow, and settings of its own that no trial would use."""
    default = type(attack)()
    for end in ENDS:
        values = {name: parameter.at(end) for name, parameter in plan.parameters.items()}
        try:
            trial = attack.vary(values, plan.seed)
        except ValidationError as error:
            raise UsageError(f"`ranges`: {explained(error)}") from error
        changed = [name for name in type(attack).model_fields if getattr(attack, name) != getattr(trial, name)]
        if unread := [f"`{name}`" for name in changed if getattr(attack, name) != getattr(default, name)]:
            raise UsageError(f"a sweep sets {', '.join(unread)} of each trial itself: leave it out of the attack")
