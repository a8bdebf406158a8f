"""What a training has done so far, kept beside its output: a kill loses half a minute, Ctrl-C nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unfit.base.errors import UnfitError, listed

INTERVAL = 30.0  # seconds between two checkpoints …
WRITING_SHARE = 0.05  # … or more, where writing one would take more than this share of the time
FILE = "state.safetensors"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C between two steps; the message says what is kept."""


@dataclass(frozen=True, eq=False)
class State:
    """All that the next step depends on. The names of tensors have a prefix: `net.layer1.weight`."""

    steps: int
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]
    seconds: float = 0.0  # that training has taken

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors with this prefix, without it."""
        return {key.partition(".")[2]: value for key, value in self.tensors.items() if key.startswith(name + ".")}


def checkpoint_folder(out: Path) -> Path:
    """The hidden folder that belongs to an output."""
    return out.absolute().parent / f".{out.name}.checkpoint"


class Keeper:
    """Keeps the state of one training in a folder, if there is one, and ends it after `max_seconds`.

    A checkpoint of another training is refused; `force` drops it.
    """

    def __init__(self, folder: Path | None = None, max_seconds: float | None = None, force: bool = False) -> None:
        self.folder, self.max_seconds, self.force = folder, max_seconds, force
        self.kept: State | None = None  # where an earlier call stopped
        self._interrupted = False

    @contextmanager
    def training(self, about: dict[str, Any]) -> Iterator[None]:
        """Around the steps. `about` is all that their result depends on."""
        self._about = about
        self._began = self._last = time.monotonic()
        self._pause = INTERVAL
        if self.folder is None:
            yield
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(self.folder), self._noticing():
            try:
                self.kept = self._read()
                yield
            finally:
                if not (self.folder / FILE).exists():
                    self.remove()

    @property
    def seconds(self) -> float:
        """That the training has taken, earlier calls included."""
        return time.monotonic() - self._began + (self.kept.seconds if self.kept else 0.0)

    def over(self, state: Callable[[], State]) -> bool:
        """After each step: keep the state when it is time to. Whether training must stop here."""
        now = time.monotonic()
        late = self.max_seconds is not None and now - self._began >= self.max_seconds
        if self.folder is not None and (late or self._interrupted or now - self._last >= self._pause):
            self._write(state())
            self._last = time.monotonic()
            self._pause = max(INTERVAL, (self._last - now) / WRITING_SHARE)
        if self._interrupted:
            raise Interrupted(f"{state().steps} steps are kept in {self.folder}; run the same command to go on")
        return late

    def remove(self) -> None:
        """Once the output is there."""
        if self.folder is not None and self.folder.is_dir():
            shutil.rmtree(self.folder)

    def _write(self, state: State) -> None:
        """Whole or not at all: a kill leaves the one before."""
        assert self.folder is not None
        tensors = {name: value.detach().cpu().contiguous() for name, value in state.tensors.items()}
        content = {"about": self._about, "numbers": state.numbers, "steps": state.steps, "seconds": self.seconds}
        partial = self.folder / f"{FILE}.partial"
        partial.touch(mode=0o600)
        save_file(tensors, partial, {"unfit": json.dumps(content)})
        partial.chmod(0o600)
        partial.replace(self.folder / FILE)

    def _read(self) -> State | None:
        assert self.folder is not None
        path = self.folder / FILE
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                content = json.loads(file.metadata()["unfit"])
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            state = State(content["steps"], tensors, content["numbers"], content["seconds"])
            problem = _difference(content["about"], self._about)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            problem = f"is not a checkpoint ({error})"
        if not problem:
            return state
        if not self.force:
            raise UnfitError(f"{path} {problem}: choose another `out`, or drop it with `force`")
        path.unlink()
        return None

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Ctrl-C waits for the end of a step, where the state is whole; a second one does not wait."""
        before = signal.getsignal(signal.SIGINT)
        if not callable(before) or threading.current_thread() is not threading.main_thread():
            yield
            return
        signal.signal(signal.SIGINT, self._notice)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _notice(self, *_: object) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True


def _difference(there: dict[str, Any], here: dict[str, Any]) -> str:
    names = [name for name in there | here if there.get(name) != here.get(name)]
    differ = [f"{name} ({there.get(name)} there, {here.get(name)} here)" for name in names]
    return f"is of another training, which differs in {listed(differ)}" if differ else ""


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time; the system lifts the lock however that one ends."""
    try:
        import fcntl
    except ImportError:  # Windows: two trainings at once would only write the same states
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UnfitError(f"another process uses {folder}: wait for it, or choose another `out`") from error
        yield
    finally:
        os.close(handle)
