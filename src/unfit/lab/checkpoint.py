"""Where a training stands, kept beside its output: a kill loses half a minute, Ctrl-C nothing."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from unfit.base.errors import UnfitError
from unfit.base.store import Saved, Store, write_saved

INTERVAL = 30.0  # seconds between two checkpoints …
WRITING_SHARE = 0.05  # … or more, where writing one would take more than this share of the time
FILE = "state.safetensors"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C between two steps; the message says what is kept."""


def checkpoint_folder(out: Path) -> Path:
    """The hidden folder that belongs to an output."""
    return out.absolute().parent / f".{out.name}.checkpoint"


class TrainingCheckpoint:
    """Keeps the state of one training in a folder, if there is one, and ends it after `max_seconds`.

    A state holds all that the next step depends on. One of another training is refused; `force` drops it.
    """

    def __init__(self, folder: Path | None = None, max_seconds: float | None = None, force: bool = False) -> None:
        self.folder, self.max_seconds, self.force = folder, max_seconds, force
        self.kept: Saved | None = None  # where an earlier call stopped
        self._interrupted = False

    @contextmanager
    def training(self, about: dict[str, Any]) -> Iterator[None]:
        """Around the steps. `about` is all that their result depends on."""
        self._began = self._last = time.monotonic()
        self._pause = INTERVAL
        if self.folder is None:
            yield
            return
        self._store = Store(self.folder, "training", about)
        with self._store.owned(), self._noticing():
            self.kept = self._read()
            yield

    @property
    def num_steps(self) -> int:
        """Of earlier calls."""
        return int(self.kept.facts["steps"]) if self.kept else 0

    @property
    def seconds(self) -> float:
        """That the training has taken, earlier calls included."""
        return time.monotonic() - self._began + (self.kept.facts["seconds"] if self.kept else 0.0)

    def over(self, state: Callable[[], Saved]) -> bool:
        """After each step: keep the state when it is time to. Whether training must stop here."""
        now = time.monotonic()
        late = self.max_seconds is not None and now - self._began >= self.max_seconds
        if self.folder is not None and (late or self._interrupted or now - self._last >= self._pause):
            self._write(state())
            self._last = time.monotonic()
            self._pause = max(INTERVAL, (self._last - now) / WRITING_SHARE)
        if self._interrupted:
            steps = state().facts["steps"]
            raise Interrupted(f"{steps} steps are kept in {self.folder}; run the same command to go on")
        return late

    def remove(self) -> None:
        """Once the output is there."""
        if self.folder is not None and self.folder.is_dir():
            with suppress(UnfitError), self._store.owned():  # training there again removes it then
                self._store.clear()

    def _write(self, state: Saved) -> None:
        """A kill leaves the one before."""
        state = Saved(state.tensors, state.facts | {"seconds": self.seconds})
        self._store.write(FILE, partial(write_saved, saved=state))

    def _read(self) -> Saved | None:
        try:
            self._store.open()
            return self._store.read(FILE)
        except UnfitError as error:
            if not self.force:
                raise UnfitError(f"{error}: choose another `out`, or drop it with `force`") from error
        self._store.clear()
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
