"""The folder of a sweep: its plan, the trials that ended, their candidates, and the Optuna study of them all.

A trial is done when its line stands in `trials.jsonl` or its candidates lie in `trials/`. The study is written by
one process only, and last; what it lacks after a kill is made up for at the next start.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from sqlalchemy.exc import SQLAlchemyError

from unfit.attacker.sweep.trials import MOST_TRIALS, Choice, Ended, Outcome, Plan, draw, file_of
from unfit.base.errors import UnfitError
from unfit.base.files import new_folder, read_as, write_json

AGAIN = "run the same command again to go on"
NAME = "unfit"
LOCK_PATIENCE = 60  # seconds that SQLite waits for another reader, such as the dashboard


@dataclass(frozen=True)
class Status:
    """How far a sweep is."""

    num_trials: int  # asked for
    ended: tuple[Ended, ...]
    running: int
    at_work: bool = True  # a process is running it
    notes: tuple[str, ...] = ()

    @property
    def num_left(self) -> int:
        return max(0, self.num_trials - len(self.ended))

    @property
    def best(self) -> Ended | None:
        """The complete trial with the lowest loss."""
        complete = [trial for trial in self.ended if trial.state == "complete"]
        return min(complete, key=lambda trial: trial.objective or 0.0, default=None)

    @property
    def seconds_left(self) -> float | None:
        """If the other trials take as long as those that ended, and as many run at once as now."""
        if not self.ended or not self.running:
            return None
        return self.num_left / self.running * sum(trial.seconds for trial in self.ended) / len(self.ended)

    @property
    def words(self) -> str:
        """For one line."""
        states = Counter(trial.state for trial in self.ended)
        counts = [f"{len(self.ended)} of {self.num_trials} trials done", f"{self.running} running"]
        counts += [f"{states[state]} {state}" for state in ("pruned", "diverged", "failed")]
        best = self.best
        return ", ".join(counts) + (f"; best objective {best.objective:.4g} (trial {best.number})" if best else "")


def open_folder(folder: Path, plan: Plan) -> None:
    """A new folder with the plan and an empty study; an existing one only if it is of this very sweep."""
    if not folder.exists():
        with new_folder(folder, False, ()) as partial:
            (partial / "trials").mkdir()
            write_json(partial / "sweep.json", plan.model_dump(mode="json"))
            with storage_of(partial) as storage:
                optuna.create_study(storage=storage, study_name=NAME, direction="minimize")
        return
    old, new = read_plan(folder).model_dump(mode="json"), plan.model_dump(mode="json")
    names = [name for name in new if old[name] != new[name]]
    differ = [f"{name} ({_short(old[name])} there, {_short(new[name])} here)" for name in names]
    if differ:
        raise UnfitError(f"{folder} is of another sweep, it differs in {'; '.join(differ)}: choose another --out")


def read_plan(folder: Path) -> Plan:
    if not (folder / "sweep.json").is_file():
        raise UnfitError(f"{folder} is no sweep's folder, it has no sweep.json: choose another --out")
    return read_as(Plan, folder / "sweep.json")


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


@contextmanager
def storage_of(folder: Path) -> Iterator[RDBStorage]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would tell of every trial
    url = f"sqlite:///{(folder / 'study.db').absolute()}"
    storage = RDBStorage(url, engine_kwargs={"connect_args": {"timeout": LOCK_PATIENCE}})
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


@contextmanager
def study_of(folder: Path) -> Iterator[optuna.Study]:
    path = folder / "study.db"
    if not path.is_file():
        raise UnfitError(f"{path} is missing: choose another --out")
    with ExitStack() as stack:
        try:
            storage = stack.enter_context(storage_of(folder))
            study = optuna.load_study(storage=storage, study_name=NAME)
        except (KeyError, RuntimeError, SQLAlchemyError, StorageInternalError) as error:
            raise UnfitError(f"{path} is not the study of a sweep: {str(error).splitlines()[0]}") from error
        yield study


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time; the system lifts the lock however that one ends."""
    with (folder / "sweep.json").open() as file:
        if not _lock(file):
            raise UnfitError(f"{folder} is being swept by another process: wait for it, or see --status")
        yield


def _lock(file: IO[str]) -> bool:
    import fcntl  # not on Windows: there everything but sweeps works

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


STOPS = (UnfitError, OSError, StorageInternalError, BrokenProcessPool)


@contextmanager
def keeping(folder: Path) -> Iterator[None]:
    """Whatever stops the trials: what is done is kept, and the user told so."""
    try:
        yield
    except STOPS as error:
        num = len(read_lines(folder))
        raise UnfitError(f"{_reason(error, folder)}; the {num} trials that are done are kept, {AGAIN}") from error


def _reason(error: Exception, folder: Path) -> str:
    if isinstance(error, BrokenProcessPool):
        return "a worker process was killed, perhaps for want of memory (fewer --workers need less)"
    if isinstance(error, StorageInternalError):
        return f"cannot write {folder / 'study.db'}: {str(error.__cause__ or error).splitlines()[0]}"
    return f"cannot write in {folder}: {error.strerror or error}" if isinstance(error, OSError) else str(error)


@contextmanager
def open_books(folder: Path, plan: Plan, num_trials: int) -> Iterator[Books]:
    """The folder's, for the only process that may write in them."""
    try:
        open_folder(folder, plan)
        with locked(folder), study_of(folder) as study:
            _clean(folder)
            ended = {trial.number: trial for trial in read_lines(folder)}
            num_trials = max(num_trials, len(ended))
            study.set_user_attr("num_trials", num_trials)
            yield Books(folder, plan, num_trials, study, ended)
    except (OSError, StorageInternalError) as error:
        raise UnfitError(_reason(error, folder)) from error


@dataclass
class Books:
    """What is known of each trial."""

    folder: Path
    plan: Plan
    num_trials: int
    study: optuna.Study
    ended: dict[int, Ended]
    log: Callable[[Ended], None] | None = None
    notes: list[str] = field(default_factory=list)

    def status(self, running: int) -> Status:
        return Status(self.num_trials, tuple(self.ended.values()), running, notes=tuple(self.notes))

    def todo(self) -> Iterator[Trial | FrozenTrial]:
        """First what a killed process left unfinished and what has lost its file, then new trials."""
        for left in self._trials(TrialState.RUNNING):
            self._seed(left.number)
            trial = self._sampled(Trial(self.study, left._trial_id))  # Optuna has no other way back to one
            if done := self.ended.get(trial.number) or read_ended(self.folder, trial.number):
                self.enter(trial, Outcome(done, []))
            elif trial.number < self.num_trials:
                yield trial
        for known in self._trials(TrialState.COMPLETE):
            if not file_of(self.folder, known.number).exists():
                yield known
        while (number := self._num_begun()) < self.num_trials:
            self._seed(number)
            if self.plan.sampler != "tpe" and not self._trials(TrialState.WAITING):  # killed there?
                self.study.enqueue_trial(draw(self.plan, number))
            yield self._sampled(self.study.ask())

    def _num_begun(self) -> int:
        return sum(trial.state != TrialState.WAITING for trial in self._trials(*TrialState))

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states)

    def _sampled(self, trial: Trial) -> Trial:
        """With a value of each parameter; those stay that it had when its process was killed."""
        for name, parameter in self.plan.parameters.items():
            if isinstance(parameter, Choice):
                trial.suggest_categorical(name, parameter.choices)
            else:
                trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log)
        return trial

    def _seed(self, number: int) -> None:
        """For each trial anew: then what TPE proposes follows from the study alone, after a restart too."""
        seed = (self.plan.seed * MOST_TRIALS + number) % 2**32
        self.study.sampler = optuna.samplers.TPESampler(seed=seed)

    def enter(self, trial: Trial | FrozenTrial, outcome: Outcome) -> None:
        """Line first, study second: what was killed between the two has a line, and `todo` tells the study."""
        if isinstance(trial, FrozenTrial):
            return  # it was known already: only its file had to be made again
        ended = outcome.ended
        new = ended.number not in self.ended
        if new:
            with (self.folder / "trials.jsonl").open("a", encoding="utf-8") as file:
                file.write(ended.model_dump_json() + "\n")
            self.ended[ended.number] = ended
        tell(self.study, trial, outcome)
        if new and self.log:
            try:
                self.log(ended)
            except UnfitError as error:  # hours of attacks do not end because a tracker does
                self.log = None
                self.notes.append(f"no longer logged: {error}; the next start logs what is missing")


def tell(study: optuna.Study, trial: Trial, outcome: Outcome) -> None:
    """What Optuna's samplers and its dashboard read."""
    ended = outcome.ended
    for step, loss in outcome.curve:
        trial.report(loss, step)
    trial.set_user_attr("ended", ended.model_dump(include={"state", "num_candidates", "node", "message"}))
    if ended.state == "complete":
        study.tell(trial, ended.objective)
    else:  # to TPE a failed trial is none, a pruned one a bad one: what diverges is bad
        study.tell(trial, state=TrialState.FAIL if ended.state == "failed" else TrialState.PRUNED)


def _clean(folder: Path) -> None:
    """What a killed process or a full disk cut short: a last line, files that were never finished."""
    lines = folder / "trials.jsonl"
    if lines.exists():
        os.truncate(lines, lines.read_bytes().rfind(b"\n") + 1)
    for partial in (folder / "trials").glob(".*"):
        shutil.rmtree(partial)


def read_lines(folder: Path) -> list[Ended]:
    """The trials that ended, in the order they did; a last line that is being written is passed over."""
    path = folder / "trials.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    try:
        return [Ended.model_validate_json(line) for line in lines]
    except ValidationError as error:
        raise UnfitError(f"{path} holds a line that is no trial: {error.errors()[0]['msg']}") from error


def read_ended(folder: Path, number: int) -> Ended | None:
    """What the file of a trial's candidates says of it; None without a file."""
    path = file_of(folder, number)
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads(file.metadata()["unfit"])
            return Ended.model_validate(about["facts"]["trial"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise UnfitError(f"{path}: not the candidates of a trial ({error}); remove it and {AGAIN}") from error


def read_status(folder: str | Path) -> Status:
    """How far the sweep in this folder is, from another process."""
    folder = Path(folder)
    read_plan(folder)
    with (folder / "sweep.json").open() as file:
        at_work = not _lock(file)
    ended = tuple(read_lines(folder))
    with study_of(folder) as study:
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        num_trials = study.user_attrs.get("num_trials", 0)
    num = len({trial.number for trial in running} - {trial.number for trial in ended}) if at_work else 0
    return Status(num_trials, ended, num, at_work)
