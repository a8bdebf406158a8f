"""One trial of a sweep: which settings it has, and what comes of it. The attacker's side: no data here."""

from __future__ import annotations

import math
import platform
import time
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from unfit.attacker.attacks.inversion import InversionSettings, run_inversion
from unfit.attacker.attacks.solvers import FastSettings, PaperSettings, Solver, run_fast, run_paper
from unfit.attacker.attacks.unmix import UnmixSettings, run_unmix
from unfit.attacker.candidates import Candidates, save_candidates
from unfit.attacker.mixtures import Mixtures, read_mixtures
from unfit.attacker.stationarity import Score
from unfit.base.errors import UsageError, unknown
from unfit.base.files import Strict, new_file
from unfit.base.target import Target

Method = Literal["kkt", "unmix", "inversion"]
Sampler = Literal["random", "quasi", "tpe"]
State = Literal["complete", "pruned", "diverged", "failed"]
Values = dict[str, float | bool | str]
"""The sampled settings of a trial, by name."""

HERE = platform.node()
MOST_TRIALS = 100_000  # their numbers have five digits, and each has a seed of its own


class Range(Strict):
    """Uniform, or if `log` log-uniform, between two numbers."""

    low: float
    high: float
    log: bool = False


class Choice(Strict):
    """Each as likely as the others."""

    choices: tuple[bool | str, ...]


Parameters = dict[str, Range | Choice]

H22: Parameters = {  # App. B.2
    "lr": Range(low=1e-5, high=1, log=True),
    "sigma": Range(low=1e-6, high=1, log=True),
    "alpha": Range(low=10, high=500),
    "lambda_min": Range(low=1e-4, high=1, log=True),
}
B23: Parameters = H22 | {  # App. A, for several classes and for any loss
    "sigma": Range(low=1e-6, high=0.1, log=True),
    "lambda_min": Range(low=0.01, high=0.5),
}
H22_INVERSION: Parameters = {  # App. B.2
    "lr": Range(low=1e-6, high=1, log=True),
    "sigma": Range(low=1e-7, high=1, log=True),
}
FAST: Parameters = {  # about its defaults, by a factor of three or four both ways
    "alpha": Range(low=15, high=150, log=True),
    "damping": Range(low=0.01, high=0.1, log=True),
    "step": Range(low=0.1, high=0.6),
}
UNMIX: Parameters = {  # one run of those that `unmix` makes, with any rank between theirs
    "rank": Range(low=0.7, high=1.2),
    "contrast": Choice(choices=("root", "log")),
    "orthogonal": Choice(choices=(True, False)),
}


class TargetId(Strict):
    sha256: str
    architecture: str


class Fixed(Strict):
    """Settings that all trials share; null: the attack's default."""

    score: Score | None = None
    num_candidates: Annotated[int, Field(gt=0)] | None = None
    iterations: Annotated[int, Field(gt=0)] | None = None

    def given(self) -> dict[str, object]:
        return self.model_dump(exclude_none=True)


class Plan(Strict):
    """`sweep.json`: all that the trials follow from, but for how many there are."""

    schema_version: Literal[1] = 1
    target: TargetId
    base: str | None  # sha256
    method: Method
    solver: Solver | None
    sampler: Sampler
    seed: Annotated[int, Field(ge=0)]
    fixed: Fixed
    parameters: Parameters
    versions: dict[str, str]


class Ended(Strict):
    """A line of `trials.jsonl`."""

    number: int
    state: State
    settings: Values
    objective: float | None  # the attacker's own loss, lower is better
    num_candidates: int
    seconds: float
    node: str
    message: str


@dataclass(frozen=True, eq=False)
class Outcome:
    """What comes of a trial. `candidates`: if they are still to be written."""

    ended: Ended
    curve: list[tuple[int, float]]  # (iteration, loss)
    candidates: Candidates | None = None


def parameters_of(method: Method, solver: Solver | None, score: Score | None, num_outputs: int) -> Parameters:
    """The papers' own distributions where they have them."""
    if method != "kkt":
        return UNMIX if method == "unmix" else H22_INVERSION
    if solver == "fast":
        return FAST
    if score == "any":  # multipliers of any sign have no least one
        return {name: parameter for name, parameter in B23.items() if name != "lambda_min"}
    return H22 if num_outputs == 1 else B23


def versions() -> dict[str, str]:
    """Of what the candidates of a trial, given its settings, depend on."""
    return {name: version(name) for name in ("unfit", "torch", "optuna")}


def with_ranges(parameters: Parameters, ranges: dict[str, tuple[float, float]]) -> Parameters:
    """These parameters between other bounds."""
    for name, (low, high) in ranges.items():
        known = [n for n, parameter in parameters.items() if isinstance(parameter, Range)]
        if name not in known:
            raise unknown("parameter with a range", name, known)
        old = parameters[name]
        assert isinstance(old, Range)
        if not -math.inf < low < high < math.inf or (old.log and low <= 0):
            positive = "positive and " if old.log else ""
            raise UsageError(f"the range of {name}, {low:g}:{high:g}, must be {positive}rising")
        parameters = parameters | {name: Range(low=low, high=high, log=old.log)}
    return parameters


def draw(plan: Plan, number: int) -> Values:
    """The settings of a trial: of (seed, number) alone, whatever ran before or beside it. Not for `tpe`."""
    names = sorted(plan.parameters)
    if plan.sampler == "quasi":
        from scipy.stats import qmc  # here: it takes a second to load

        sequence = qmc.Sobol(len(names), scramble=True, rng=np.random.default_rng(plan.seed))
        if number:
            sequence.fast_forward(number)
        points = sequence.random()[0]
    else:
        points = np.random.default_rng([plan.seed, number]).random(len(names))
    return {name: _value(plan.parameters[name], float(point)) for name, point in zip(names, points, strict=True)}


def _value(parameter: Range | Choice, point: float) -> float | bool | str:
    """Where a point of [0, 1) lies."""
    if isinstance(parameter, Choice):
        return parameter.choices[int(point * len(parameter.choices))]
    low, high = parameter.low, parameter.high
    value = low * (high / low) ** point if parameter.log else low + (high - low) * point
    return min(max(value, low), high)  # rounding must not lead out of the range


@dataclass(frozen=True, eq=False)
class Job:
    """What every trial of a sweep needs."""

    target: Target
    base: Target | None
    plan: Plan
    threads: int
    folder: Path | None  # where candidates are written; None: they are handed back

    @cached_property
    def mixtures(self) -> Mixtures:
        """Read once in each process."""
        return read_mixtures(self.target, self.base)

    def run(self, number: int, values: Values, node: str = HERE) -> Outcome:
        """Divergence is an outcome, and so is what PyTorch cannot compute or hold in memory."""
        began = time.perf_counter()
        try:
            candidates = self.attack(number, values)
        except (RuntimeError, MemoryError) as error:
            message = f"{type(error).__name__}: {error}".splitlines()[0][:500]
            return Outcome(_ended(number, "failed", values, time.perf_counter() - began, node, message), [])
        facts = candidates.facts
        state, objective = _state(candidates), facts["loss"]
        kept = len(candidates) if state == "complete" else 0
        message = "" if facts["status"] == "finished" else facts["status"]
        ended = _ended(number, state, values, facts["seconds"], node, message, objective, kept)
        facts["trial"] = ended.model_dump()  # so that the file alone says that the trial is done
        outcome = Outcome(ended, facts.get("curve", []), candidates if state == "complete" else None)
        return outcome if self.folder is None else write(outcome, self.folder)

    def attack(self, number: int, values: Values) -> Candidates:
        plan, given = self.plan, self.plan.fixed.given()
        given["seed"] = plan.seed * MOST_TRIALS + number
        if plan.method == "unmix":
            ranks, runs = (values["rank"],), ((values["contrast"], values["orthogonal"]),)
            return run_unmix(self.target, self.mixtures, UnmixSettings(ranks=ranks, runs=runs, **given))  # type: ignore[arg-type]
        if plan.method == "inversion":
            pairs = {name: (value, value) for name, value in values.items()}
            return run_inversion(self.target, self.mixtures, InversionSettings(**pairs, **given))  # type: ignore[arg-type]
        if plan.solver == "fast":
            return run_fast(self.target, self.mixtures, FastSettings(**values, **given))  # type: ignore[arg-type]
        return run_paper(self.target, self.mixtures, PaperSettings(**values, **given), give_up=True)  # type: ignore[arg-type]


def _state(candidates: Candidates) -> State:
    status, loss = candidates.facts["status"], candidates.facts["loss"]
    if status.startswith("pruned"):
        return "pruned"
    finite = loss is not None and math.isfinite(loss) and bool(candidates.x.isfinite().all())
    return "complete" if status == "finished" and finite else "diverged"


def _ended(
    number: int,
    state: State,
    values: Values,
    seconds: float,
    node: str,
    message: str,
    objective: float | None = None,
    num_candidates: int = 0,
) -> Ended:
    finite = objective if objective is not None and math.isfinite(objective) else None
    return Ended(
        number=number,
        state=state,
        settings=values,
        objective=finite,
        num_candidates=num_candidates,
        seconds=round(seconds, 3),
        node=node,
        message=message,
    )


def write(outcome: Outcome, folder: Path) -> Outcome:
    """The candidates into the sweep's folder, whole or not at all: where a file is, a trial is done."""
    if outcome.candidates is not None:
        with new_file(file_of(folder, outcome.ended.number), force=True) as path:
            save_candidates(outcome.candidates, path)
    return replace(outcome, candidates=None)


def file_of(folder: Path, number: int) -> Path:
    return folder / "trials" / f"{number:05}.safetensors"
