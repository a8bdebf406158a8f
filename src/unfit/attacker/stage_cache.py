"""Finished stages of an attack, kept until all of it is finished: a killed audit resumes after them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from unfit.attacker.candidates import Candidates, Part, load_candidates, save_candidates
from unfit.attacker.initial.found import InitialRecord, Search
from unfit.base.budget import is_over
from unfit.base.errors import UnfitError
from unfit.base.store import Saved, Store, read_saved, write_saved
from unfit.base.target import Target

TENSORS = ("x", "label", "multiplier", "proven", "confidence")  # of a part, which may lack all but the first
Stage = TypeVar("Stage")


@dataclass(frozen=True)
class StageCache:
    """Finished stages by name; without a store nothing is kept.

    A stage that cannot be read is computed again. One that a budget has cut short is not finished. A full disk
    does not end the attack: nothing is kept then.
    """

    store: Store | None = None
    prefix: str = ""

    def under(self, name: str) -> StageCache:
        """The same store for another attack."""
        return replace(self, prefix=f"{self.prefix}{name}-")

    def parts(self, name: str, began: float, make: Callable[[], Iterable[Part]]) -> Iterator[Part]:
        """The parts of one stage: those kept, or those made now, which are kept once all of them are there."""
        found = self._read(name, partial(_read_parts, began=began))
        if found is not None:
            yield from found[0]
            return
        made = []
        for part in make():
            made.append(part)
            yield part
        self._write(name, partial(_write_parts, (made, False), began=began))

    def proofs(
        self, name: str, began: float, make: Callable[[], tuple[list[Part], bool]]
    ) -> tuple[list[Part], bool]:
        """The same, with whether every sample is proven."""
        return self._kept(name, partial(_read_parts, began=began), make, partial(_write_parts, began=began))

    def candidates(self, name: str, make: Callable[[], Candidates]) -> Candidates:
        """All that an attack gave."""
        return self._kept(name, load_candidates, make, save_candidates)

    def search(self, target: Target, make: Callable[[], Search]) -> Search:
        """What the search for the initial weights came to."""
        return self._kept("initial", partial(_read_search, target=target), make, _write_search)

    @property
    def seconds(self) -> float:
        """What the kept stages took to make, by the last of them."""
        if self.store is None:
            return 0.0
        paths = self.store.folder.glob(f"{self.prefix}*.safetensors")
        names = [path.stem.removeprefix(self.prefix) for path in paths]
        return max((self._read(name, _read_seconds) or 0.0 for name in names), default=0.0)

    def _kept(
        self,
        name: str,
        read: Callable[[Path], Stage],
        make: Callable[[], Stage],
        write: Callable[[Stage, Path], None],
    ) -> Stage:
        found = self._read(name, read)
        if found is None:
            found = make()
            self._write(name, partial(write, found))
        return found

    def _read(self, name: str, read: Callable[[Path], Stage]) -> Stage | None:
        path = None if self.store is None else self.store.folder / self._file(name)
        if path is None or not path.is_file():
            return None
        try:
            return read(path)
        except (UnfitError, KeyError, TypeError, ValueError, AttributeError):
            return None  # damaged

    def _write(self, name: str, write: Callable[[Path], None]) -> None:
        if self.store is None or is_over():
            return
        with suppress(OSError):
            self.store.write(self._file(name), write)

    def _file(self, name: str) -> str:
        return f"{self.prefix}{name}.safetensors"


NOWHERE = StageCache()


def open_stage_cache(folder: Path, key: str) -> StageCache:
    """The stages of this very audit in a folder that this process owns; those of any other go."""
    store = Store(folder, "audit", {"sha256": key})
    try:
        store.open()
    except (UnfitError, OSError):
        store.clear()
    return StageCache(store)


def _write_parts(found: tuple[list[Part], bool], path: Path, began: float) -> None:
    parts, all_proven = found
    given = {f"{i}.{name}": getattr(part, name) for i, part in enumerate(parts) for name in TENSORS}
    told = [
        {"name": part.name, "kind": part.kind, "loss": part.loss, "finished": part.finished - began}
        for part in parts
    ]
    facts = {"parts": told, "all_proven": all_proven, "seconds": time.perf_counter() - began}
    write_saved(path, Saved({name: value for name, value in given.items() if value is not None}, facts))


def _read_parts(path: Path, began: float) -> tuple[list[Part], bool]:
    saved = read_saved(path)
    parts = []
    for i, told in enumerate(saved.facts["parts"]):
        tensors = saved.part(str(i))
        if tensors["x"].ndim < 2 or {len(value) for value in tensors.values()} != {len(tensors["x"])}:
            raise ValueError(f"part {i} does not fit together")
        parts.append(
            Part(told["name"], kind=told["kind"], loss=told["loss"], finished=began + told["finished"], **tensors)
        )
    return parts, bool(saved.facts["all_proven"])


def _read_seconds(path: Path) -> float:
    return float(read_saved(path, with_tensors=False).facts["seconds"])


def _write_search(search: Search, path: Path) -> None:
    weights = search.initial.target.weights if search.initial else {}
    write_saved(path, Saved(weights, search.record.facts))


def _read_search(path: Path, target: Target) -> Search:
    saved = read_saved(path)
    return Search.of(InitialRecord.model_validate(saved.facts), saved.tensors, target)
