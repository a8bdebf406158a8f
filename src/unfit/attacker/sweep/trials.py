"""One trial of a sweep: its settings and its outcome. No training data here."""

from __future__ import annotations

import math
import platform
import time
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from unfit.attacker.attacked_layer import AttackedLayer, read_layer
from unfit.attacker.attacks import Attack
from unfit.attacker.candidates import Candidates, save_candidates
from unfit.attacker.method import Parameters, Value, Values
from unfit.attacker.names import Sampler
from unfit.base.device import on_device
from unfit.base.files import Strict
from unfit.base.store import write_whole
from unfit.base.target import Target

State = Literal["complete", "pruned", "diverged", "failed"]

HERE = platform.node()
MAX_TRIALS = 100_000  # a trial's number has five digits in its file's name and in its seed
MESSAGE_LENGTH = 500  # characters of an error that a line of `trials.jsonl` keeps


class TargetId(Strict):
    sha256: str
    architecture: str


class Plan(Strict):
    """`sweep.json`: everything that the trials follow from, except how many there are."""

    schema_version: Literal[2] = 2
    target: TargetId
    base: str | None  # sha256
    attack: Attack  # with the settings that all trials share
    sampler: Sampler
    seed: Annotated[int, Field(ge=0)]
    parameters: Parameters  # what is sampled for each trial
    versions: dict[str, str]

    def trial_seed(self, number: int) -> int:
        return self.seed * MAX_TRIALS + number


class Ended(Strict):
    """A line of `trials.jsonl`, which the file of a trial's candidates holds as well."""

    number: int
    state: State
    settings: dict[str, Value]
    objective: float | None = None  # the attack's own loss, lower is better; null where it has none
    num_candidates: int = 0
    seconds: float
    node: str
    message: str


@dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome of a trial, with its candidates if they are still to be written."""

    ended: Ended
    candidates: Candidates | None = None


def versions() -> dict[str, str]:
    """The packages that decide which candidates a trial gives."""
    return {name: version(name) for name in ("unfit", "torch")}


def draw(plan: Plan, number: int) -> Values:
    """The settings of a trial, from the seed and its number alone, whatever else ran; not TPE's."""
    names = sorted(plan.parameters)
    if plan.sampler == "quasi":
        from scipy.stats import qmc  # here: it takes a second to load

        sequence = qmc.Sobol(len(names), scramble=True, rng=np.random.default_rng(plan.seed))
        if number:
            sequence.fast_forward(number)
        points = sequence.random()[0]
    else:
        points = np.random.default_rng([plan.seed, number]).random(len(names))
    return {name: plan.parameters[name].at(float(point)) for name, point in zip(names, points, strict=True)}


@dataclass(frozen=True, eq=False)
class Job:
    """What every trial of a sweep needs."""

    target: Target
    base: Target | None
    plan: Plan
    threads: int
    folder: Path | None  # where the candidates are written; None: they are returned
    device: str | None = None  # where trials are computed, in whichever process; None: as that process decides

    @cached_property
    def layer(self) -> AttackedLayer:
        """Read once in each process."""
        return read_layer(self.target, self.base)

    def run(self, number: int, values: Values, node: str = HERE) -> Outcome:
        """Divergence is an outcome, and so is what PyTorch cannot compute or hold in memory."""
        began = time.perf_counter()
        attack = self.plan.attack.vary(values, self.plan.trial_seed(number))
        try:
            with on_device(self.device):
                outcome = outcome_of(number, values, node, attack.run(self.layer))
        except (RuntimeError, MemoryError) as error:
            seconds = round(time.perf_counter() - began, 3)
            message = f"{type(error).__name__}: {error}".splitlines()[0][:MESSAGE_LENGTH]
            failed = Ended(
                number=number, state="failed", settings=values, seconds=seconds, node=node, message=message
            )
            return Outcome(failed)
        return outcome if self.folder is None else Outcome(write(outcome, self.folder))


def outcome_of(number: int, values: Values, node: str, candidates: Candidates) -> Outcome:
    """Only a complete trial keeps its candidates; their file says by itself that the trial is done."""
    facts, state = candidates.facts, _state(candidates)
    ended = Ended(
        number=number,
        state=state,
        settings=values,
        objective=facts.get("loss") if _is_finite(facts.get("loss")) else None,
        num_candidates=len(candidates) if state == "complete" else 0,
        seconds=round(facts["seconds"], 3),
        node=node,
        message="" if facts["status"] == "finished" else facts["status"],
    )
    if state != "complete":
        return Outcome(ended)
    told = facts | {"trial": ended.model_dump()}
    return Outcome(ended, replace(candidates, facts=told, layer=None))  # other nodes have the weights


def _state(candidates: Candidates) -> State:
    """Some attacks have no loss; those that have one diverge when it is not finite."""
    facts = candidates.facts
    if facts.get("pruned"):
        return "pruned"
    finite = _is_finite(facts.get("loss", 0.0)) and bool(candidates.x.isfinite().all())
    return "complete" if facts["status"] == "finished" and finite else "diverged"


def _is_finite(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


def write(outcome: Outcome, folder: Path) -> Ended:
    """Put the candidates into the sweep's folder: where a file is, a trial is done."""
    if outcome.candidates is not None:
        write_whole(file_of(folder, outcome.ended.number), partial(save_candidates, outcome.candidates))
    return outcome.ended


def file_of(folder: Path, number: int) -> Path:
    return folder / "trials" / f"{number:05}.safetensors"
