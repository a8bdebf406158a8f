"""The folder of a sweep: its plan, the trials that began, those that ended, and their candidates.

A trial is done when its line is in `trials.jsonl` or its candidates are in `trials/`. One process at a time writes
here, and it only appends. What a kill cut short is removed at the next start.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from unfit.attacker.method import Value, Values
from unfit.attacker.sweep.tpe import propose
from unfit.attacker.sweep.trials import Ended, Plan, draw, file_of
from unfit.base.errors import UnfitError, listed
from unfit.base.files import Strict, check_regular, new_folder, read_as, write_json
from unfit.base.reservation import is_free, opened, remove_dead

AGAIN = "run the same sweep again to go on"
LISTS = ("begun.jsonl", "trials.jsonl")
Line = TypeVar("Line", bound=Strict)


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
    if not (folder / "sweep.json").is_file():
        raise UnfitError(f"{folder} is not the folder of a sweep: it has no sweep.json")
    return read_as(Plan, folder / "sweep.json")


def read_ended(folder: Path) -> list[Ended]:
    """The trials that ended, in the order in which they did."""
    return _read_lines(folder / "trials.jsonl", Ended)


def read_status(folder: str | Path) -> Status:
    """How far the sweep in this folder has come."""
    folder = Path(folder)
    read_plan(folder)
    with (folder / "sweep.json").open() as file:
        at_work = not is_free(file.fileno())
    begun, ended = _read_lines(folder / "begun.jsonl", Begun), read_ended(folder)
    running = {trial.number for trial in begun} - {trial.number for trial in ended}
    asked = begun[-1].num_trials if begun else 0
    return Status(_num_trials(asked, ended), tuple(ended), len(running) if at_work else 0, at_work)


def _read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """What follows the last line break is being written, or was cut short."""
    check_regular(path)
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1] if path.exists() else [], 1):
        try:
            found.append(kind.model_validate_json(line))
        except ValidationError as error:
            raise UnfitError(f"{path}, line {number}: {error.errors()[0]['msg']}") from error
    return found


def _read_file(folder: Path, number: int) -> Ended | None:
    """What the file of a trial's candidates says about the trial; None without a file."""
    path = file_of(folder, number)
    check_regular(path)
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads(file.metadata()["unfit"])
            return Ended.model_validate(about["facts"]["trial"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise UnfitError(f"{path}: not the candidates of a trial ({error}); remove it") from error


def _num_trials(asked: int, ended: Iterable[Ended]) -> int:
    """A sweep that has gone further than what is asked for stays as long as it is."""
    return max([asked, *(trial.number + 1 for trial in ended)])


# Writing, by one process -----------------------------------------------------------------------------------


@contextmanager
def open_books(folder: Path, plan: Plan, num_trials: int) -> Iterator[Books]:
    """For the one process that runs trials. Whatever stops it, what is done is kept, and the user is told so."""
    try:
        _open_folder(folder, plan)
        with _locked(folder):
            _remove_remains(folder)
            begun = {trial.number: trial.settings for trial in _read_lines(folder / "begun.jsonl", Begun)}
            ended = {trial.number: trial for trial in read_ended(folder)}
            books = Books(folder, plan, _num_trials(num_trials, ended.values()), begun, ended)
            with _keeping(books):
                yield books
    except OSError as error:
        raise UnfitError(_reason(error, folder)) from error


def _open_folder(folder: Path, plan: Plan) -> None:
    """Make a folder that holds the plan; an existing one must hold the same plan, and no links to elsewhere."""
    if not folder.exists():
        with new_folder(folder, False, ()) as partial:
            (partial / "trials").mkdir()
            write_json(partial / "sweep.json", plan.model_dump(mode="json"))
        return
    if links := [folder / name for name in (*LISTS, "sweep.json", "trials") if (folder / name).is_symlink()]:
        raise UnfitError(f"{links[0]} is a link, and what is written here must stay here: choose another folder")
    old, new = (_flat(each.model_dump(mode="json")) for each in (read_plan(folder), plan))
    names = [name for name in old | new if old.get(name) != new.get(name)]
    if differ := [f"{name} ({old.get(name)} there, {new.get(name)} here)" for name in names]:
        raise UnfitError(f"{folder} holds another sweep, which differs in {listed(differ)}: choose another folder")


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time; the system lifts the lock however that one ends."""
    with (folder / "sweep.json").open() as file:
        if not is_free(file.fileno()):
            raise UnfitError(f"another process is sweeping into {folder}: wait for it, or choose another folder")
        yield


def _remove_remains(folder: Path) -> None:
    """What a kill or a full disk left unfinished: the last line of a list, a file in the making."""
    for path in filter(Path.exists, (folder / name for name in LISTS)):
        with opened(path, os.O_RDWR) as file:
            file.truncate(file.read().rfind(b"\n") + 1)
    remove_dead(folder / "trials")


@contextmanager
def _keeping(books: Books) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise type(error)(_kept(books)) from error
    except (UnfitError, OSError, BrokenProcessPool) as error:
        raise UnfitError(f"{_reason(error, books.folder)}; {_kept(books)}") from error


def _kept(books: Books) -> str:
    return f"{len(books.ended)} of {books.num_trials} trials are done and kept, {AGAIN}"


def _reason(error: Exception, folder: Path) -> str:
    if isinstance(error, BrokenProcessPool):
        return "a worker process was killed, perhaps because memory ran out (fewer `workers` need less)"
    return f"cannot write in {folder}: {error.strerror or error}" if isinstance(error, OSError) else str(error)


@dataclass
class Books:
    """What is known about each trial, by its number."""

    folder: Path
    plan: Plan
    num_trials: int
    begun: dict[int, Values]
    ended: dict[int, Ended]
    log: Callable[[Ended], None] | None = None
    notes: list[str] = field(default_factory=list)

    def status(self, running: int) -> Status:
        return Status(self.num_trials, tuple(self.ended.values()), running, notes=tuple(self.notes))

    def todo(self) -> Iterator[tuple[int, Values]]:
        """The trials to run, with their settings: those that are not done, and those whose file was lost."""
        for number in range(self.num_trials):
            known = self.ended.get(number)
            if known is None and (known := _read_file(self.folder, number)):
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
        self._append("begun.jsonl", Begun(number=number, settings=values, num_trials=self.num_trials))
        return values

    def enter(self, ended: Ended) -> None:
        """Trials that are known already had only lost their files."""
        if ended.number in self.ended:
            return
        self._append("trials.jsonl", ended)
        self.ended[ended.number] = ended
        if self.log:
            try:
                self.log(ended)
            except UnfitError as error:  # hours of attacks do not end because a tracker does
                self.log = None
                self.notes.append(f"no longer logged: {error}; the next start logs what is missing")

    def _append(self, name: str, line: Strict) -> None:
        with opened(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
            file.write(line.model_dump_json().encode() + b"\n")
