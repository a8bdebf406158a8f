"""Many attacks with sampled settings, here or on a cluster. Killed at any moment, it goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import nn

from unfit.attacker.attacks.inversion import STARTS
from unfit.attacker.attacks.solvers import Solver, count
from unfit.attacker.candidates import share_out
from unfit.attacker.stationarity import Score, check_layers, choose_score
from unfit.attacker.sweep.cluster import Place, Submit, in_processes, in_this_process, on_ray
from unfit.attacker.sweep.trials import (
    MOST_TRIALS,
    Fixed,
    Job,
    Method,
    Outcome,
    Plan,
    Sampler,
    TargetId,
    parameters_of,
    versions,
    with_ranges,
    write,
)
from unfit.base.errors import UsageError, unknown
from unfit.base.modules import as_base, as_target
from unfit.base.progress import Report, quiet
from unfit.base.target import Target

if TYPE_CHECKING:  # Optuna takes a while to import, and only sweeps need it
    from optuna.trial import FrozenTrial, Trial

    from unfit.attacker.sweep.study import Books, Status


def sweep(
    model: Target | nn.Module,
    trials: int,
    folder: str | Path,
    method: Method = "kkt",
    base: Target | nn.Module | None = None,
    seed: int = 0,
    progress: Report = quiet,
    *,
    solver: Solver | None = None,
    score: Score | None = None,
    num_candidates: int | None = None,
    iterations: int | None = None,
    sampler: Sampler = "random",
    ranges: dict[str, tuple[float, float]] | None = None,
    workers: int | None = None,
    cpus_per_trial: int = 1,
    gpus_per_trial: float = 0,
    ray: str | None = None,
    mlflow: str | None = None,
) -> Status:
    """Attack with `trials` different settings; each trial's candidates become a file in `folder`.

    A folder of the same sweep is continued, up to `trials` in all. Settings are sampled as in the papers, and kkt
    is run with their solver, unless `solver` is "fast"; `ranges` are other bounds. `random` and `quasi` draw them
    from (seed, number of the trial) alone; `tpe` learns from the attack's own loss. So many `workers` run at once:
    by default as many as there are cores for, `cpus_per_trial` each, or on the Ray cluster at the address `ray`.
    `mlflow`: a tracking URI to log trials to. A script must call this under `if __name__ == "__main__":`, since
    worker processes import it.
    """
    target = as_target(model)
    start = as_base(base, target)
    _check_numbers(trials, workers, cpus_per_trial, gpus_per_trial, ray)
    fixed = {"score": score, "num_candidates": num_candidates, "iterations": iterations}
    plan = make_plan(target, start, method, solver, sampler, seed, fixed, ranges or {})
    job = Job(target, start, plan, cpus_per_trial, None if ray else Path(folder))
    place: AbstractContextManager[Place]
    if ray:
        place = on_ray(job, ray, gpus_per_trial, workers)
    else:
        num = min(workers or max(1, torch.get_num_threads() // cpus_per_trial), trials)
        place = in_this_process(job) if num == 1 else in_processes(job, num)
    from unfit.attacker.sweep.study import keeping, open_books

    with place as (submit, slots), open_books(Path(folder), plan, trials) as books:
        if mlflow:
            from unfit.attacker.sweep.tracking import log_to_mlflow

            books.log = log_to_mlflow(mlflow, plan, books.ended.values())
        with keeping(books.folder):
            return run_trials(books, submit, slots, progress)


def run_trials(books: Books, submit: Submit, slots: Callable[[], int], progress: Report) -> Status:
    """Keep as many trials running as there are slots, until all are done."""
    running: dict[Future[Outcome], Trial | FrozenTrial] = {}
    todo = books.todo()
    while True:
        while len(running) < slots() and (trial := next(todo, None)):
            _tell(progress, books.status(len(running) + 1))
            running[submit(trial.number, trial.params)] = trial
        if not running:
            return books.status(0)
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            books.enter(running.pop(future), write(future.result(), books.folder))
        _tell(progress, books.status(len(running)))


def _tell(progress: Report, status: Status) -> None:
    progress(len(status.ended) / status.num_trials, status.words)


def _check_numbers(trials: int, workers: int | None, cpus: int, gpus: float, ray: str | None) -> None:
    if not 0 < trials <= MOST_TRIALS:
        raise UsageError(f"trials must be between 1 and {MOST_TRIALS:,}, not {trials:,}")
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, not {workers}")
    if cpus < 1 or not 0 <= gpus < 1e6:
        raise UsageError(f"a trial needs at least one CPU and no negative number of GPUs, not {cpus} and {gpus:g}")
    if gpus and not ray:
        raise UsageError("GPUs are shared out by Ray: give --ray too, or leave out --gpus-per-trial")


def make_plan(
    target: Target,
    base: Target | None,
    method: Method,
    solver: Solver | None,
    sampler: Sampler,
    seed: int,
    fixed: dict[str, Any],
    ranges: dict[str, tuple[float, float]],
) -> Plan:
    """All that the trials follow from; what cannot be is refused here, before anything is written."""
    named = (("method of a sweep", method, Method), ("sampler", sampler, Sampler), ("solver", solver, Solver))
    for what, given, valid in named:
        if given is not None and given not in get_args(valid):
            raise unknown(what, given, get_args(valid))
    chosen: Solver | None = (solver or "paper") if method == "kkt" else None
    if unread := _unread(method, solver, chosen, base, fixed):
        kind = f"kkt with the solver {chosen}" if chosen else method
        raise UsageError(f"a sweep of {kind} does not use {', '.join(unread)}")
    _check_fixed(target, method, fixed)
    parameters = parameters_of(method, chosen, fixed["score"], target.architecture.num_outputs)
    return Plan(
        target=TargetId(sha256=target.sha256, architecture=str(target.architecture)),
        base=base.sha256 if base else None,
        method=method,
        solver=chosen,
        sampler=sampler,
        seed=seed,
        fixed=Fixed(**fixed),
        parameters=with_ranges(parameters, ranges),
        versions=versions(),
    )


def _unread(
    method: Method, solver: Solver | None, chosen: Solver | None, base: Target | None, fixed: dict[str, Any]
) -> list[str]:
    reads = {"kkt": set(fixed), "unmix": {"iterations"}, "inversion": {"num_candidates", "iterations"}}[method]
    unread = [name for name, value in fixed.items() if value is not None and name not in reads]
    unread += ["solver"] if solver and not chosen else []
    unread += ["base"] if base and (method == "inversion" or chosen == "paper") else []
    return [f"--{name.replace('_', '-')}" for name in unread]


def _check_fixed(target: Target, method: Method, fixed: dict[str, Any]) -> None:
    k = target.architecture.num_outputs
    if fixed["iterations"] is not None and fixed["iterations"] < 1:
        raise UsageError(f"iterations must be at least 1, not {fixed['iterations']}")
    if method == "kkt":
        check_layers(target.net())
        count(fixed["num_candidates"], 1, choose_score(fixed["score"] or "auto", k), k)
    elif method == "inversion":
        share_out(fixed["num_candidates"], STARTS, max(k, 2))
