"""The folder of a sweep: its plan, the trials that began, those that ended, and their candidates.

A trial is done when its line is in `trials.jsonl` or its candidates are in `trials/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from unfit.attacker.method import Value, Values
from unfit.attacker.sweep.tpe import propose
from unfit.attacker.sweep.trials import Ended, Plan, draw, file_of
from unfit.base.errors import UnfitError
from unfit.base.files import Strict, read_as
from unfit.base.reservation import is_owned
from unfit.base.store import Store, read_lines, read_saved

AGAIN = "run the same sweep again to go on"
PLAN, BEGUN, ENDED = "sweep.json", "begun.jsonl", "trials.jsonl"


class Begun(Strict):
    """A line of `begun.jsonl`: a trial is about to run, perhaps not for the first time."""

    number: int
    settings: dict[str, Value]
    num_trials: int  # how many the sweep was to have then


@dataclass(frozen=True)
class Status:
    """How far a sweep has come."""

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
        known = [trial for trial in self.ended if trial.state == "complete" and trial.objective is not None]
        return min(known, key=attrgetter("objective"), default=None)

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


# Reading, from any process ---------------------------------------------------------------------------------


def read_plan(folder: Path) -> Plan:
    if not (folder / PLAN).is_file():
        raise UnfitError(f"{folder} is not the folder of a sweep: it has no {PLAN}")
    return read_as(Plan, folder / PLAN)


def read_ended(folder: Path) -> list[Ended]:
    """The trials that ended, in the order in which they did."""
    return read_lines(folder / ENDED, Ended)


def read_status(folder: str | Path) -> Status:
    """How far the sweep in this folder has come."""
    folder = Path(folder)
    read_plan(folder)
    at_work = is_owned(folder)
    begun, ended = read_lines(folder / BEGUN, Begun), read_ended(folder)
    running = {trial.number for trial in begun} - {trial.number for trial in ended}
    asked = begun[-1].num_trials if begun else 0
    return Status(_num_trials(asked, ended), tuple(ended), len(running) if at_work else 0, at_work)


def _read_file(path: Path) -> Ended | None:
    """What the file of a trial's candidates says about the trial; None without a file."""
    if not path.exists():
        return None
    try:
        return Ended.model_validate(read_saved(path, with_tensors=False).facts["facts"]["trial"])
    except (UnfitError, KeyError, TypeError, ValueError) as error:
        raise UnfitError(f"{path}: not the candidates of a trial ({error}); remove it") from error


def _num_trials(asked: int, ended: Iterable[Ended]) -> int:
    """A sweep that has gone further than what is asked for stays as long as it is."""
    return max([asked, *(trial.number + 1 for trial in ended)])


# Writing, by one process -----------------------------------------------------------------------------------


@contextmanager
def open_sweep(folder: Path, plan: Plan, num_trials: int) -> Iterator[SweepStore]:
    """For the one process that runs trials. Whatever stops it, what is done is kept, and the user is told so."""
    folder = folder.resolve()
    store = Store(folder, "sweep", plan.model_dump(mode="json"), PLAN, (BEGUN, ENDED))
    try:
        with store.owned():
            store.open()
            begun = {trial.number: trial.settings for trial in read_lines(folder / BEGUN, Begun)}
            ended = {trial.number: trial for trial in read_ended(folder)}
            sweep = SweepStore(store, plan, _num_trials(num_trials, ended.values()), begun, ended)
            with _keeping(sweep):
                yield sweep
    except OSError as error:
        raise UnfitError(_reason(error, folder)) from error


@contextmanager
def _keeping(sweep: SweepStore) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise type(error)(_kept(sweep)) from error
    except (UnfitError, OSError, BrokenProcessPool) as error:
        raise UnfitError(f"{_reason(error, sweep.folder)}; {_kept(sweep)}") from error


def _kept(sweep: SweepStore) -> str:
    return f"{len(sweep.ended)} of {sweep.num_trials} trials are done and kept, {AGAIN}"


def _reason(error: Exception, folder: Path) -> str:
    if isinstance(error, BrokenProcessPool):
        return "a worker process was killed, perhaps because memory ran out (fewer `workers` need less)"
    return f"cannot write in {folder}: {error.strerror or error}" if isinstance(error, OSError) else str(error)


@dataclass
class SweepStore:
    """What is known about each trial, by its number."""

    kept: Store
    plan: Plan
    num_trials: int
    begun: dict[int, Values]
    ended: dict[int, Ended]
    log: Callable[[Ended], None] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.kept.folder

    def status(self, running: int) -> Status:
        return Status(self.num_trials, tuple(self.ended.values()), running, notes=tuple(self.notes))

    def todo(self) -> Iterator[tuple[int, Values]]:
        """The trials to run, with their settings: those that are not done, and those whose file was lost."""
        for number in range(self.num_trials):
            known = self.ended.get(number)
            if known is None and (known := _read_file(file_of(self.folder, number))):
                self.enter(known)  # it was killed before it could write the line
            if known is None:
                yield number, self._begin(number)
            elif known.state == "complete" and not file_of(self.folder, number).exists():
                yield number, known.settings

    def _begin(self, number: int) -> Values:
        """A trial that a kill interrupted keeps its settings: TPE might propose others now."""
        if (values := self.begun.get(number)) is None:
            tpe = self.plan.sampler == "tpe"
            values = propose(self.plan, number, self.ended.values()) if tpe else draw(self.plan, number)
        self.kept.append(BEGUN, Begun(number=number, settings=values, num_trials=self.num_trials))
        return values

    def enter(self, ended: Ended) -> None:
        """Trials that are known already had only lost their files."""
        if ended.number in self.ended:
            return
        self.kept.append(ENDED, ended)
        self.ended[ended.number] = ended
        if self.log:
            try:
                self.log(ended)
            except UnfitError as error:  # hours of attacks do not end because a tracker does
                self.log = None
                self.notes.append(f"logging ended: {error}; the same command logs what is missing when it resumes")
