"""What an attack has finished, kept until all of it is: a run that was killed goes on where it was."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from unfit.attacker.candidates import Candidates, Part, load_candidates, pool, save_candidates
from unfit.attacker.start.find import Search, Start
from unfit.base.budget import is_over
from unfit.base.errors import UnfitError
from unfit.base.files import write_tensors
from unfit.base.reservation import PRIVATE_FILE, PRIVATE_FOLDER
from unfit.base.target import Target

KEY = "key"
OPTIONAL = ("label", "multiplier", "proven", "confidence")  # what a part may not tell
OF_START = ("seed", "skip", "generator", "rule", "correlation", "log10_p")


@dataclass(frozen=True)
class Shelf:
    """A folder of finished parts by name, there once it has one; without a folder nothing is kept."""

    folder: Path | None = None
    key: str = ""  # of the work that these are parts of
    prefix: str = ""

    def under(self, name: str) -> Shelf:
        """The same folder for another attack."""
        return replace(self, prefix=f"{self.prefix}{name}-")

    def parts(self, name: str, began: float, make: Callable[[], Iterable[Part]]) -> Iterator[Part]:
        """The parts of one stage: those kept, or those made now, which are kept once all of them are there."""
        found = self._read(name, load_candidates)
        if found is not None:
            yield from _unpacked(found, began)
            return
        made = []
        for part in make():
            made.append(part)
            yield part
        self._write(name, lambda path: save_candidates(_packed(made, began), path))

    def proofs(
        self, name: str, began: float, make: Callable[[], tuple[list[Part], bool]]
    ) -> tuple[list[Part], bool]:
        """The same, with whether every sample is proven."""
        found = self._read(name, load_candidates)
        if found is not None:
            return list(_unpacked(found, began)), found.facts["all_proven"]
        parts, all_proven = make()
        self._write(name, lambda path: save_candidates(_packed(parts, began, all_proven=all_proven), path))
        return parts, all_proven

    def candidates(self, name: str, make: Callable[[], Candidates]) -> Candidates:
        """All that an attack gave."""
        found = self._read(name, load_candidates)
        if found is None:
            found = make()
            self._write(name, lambda path: save_candidates(found, path))
        return found

    def search(self, target: Target, make: Callable[[], Search]) -> Search:
        """What the search for the start came to."""
        found = self._read("start", lambda path: _read_search(path, target))
        if found is None:
            found = make()
            self._write("start", lambda path: _write_search(found, path))
        return found

    @property
    def seconds(self) -> float:
        """What the kept parts took to make, by the last of them."""
        if self.folder is None:
            return 0.0
        kept = [path.stem.removeprefix(self.prefix) for path in self.folder.glob(f"{self.prefix}*.safetensors")]
        return max((self._read(name, _seconds) or 0.0 for name in kept), default=0.0)

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{self.prefix}{name}.safetensors"

    def _read(self, name: str, read: Callable[[Path], Any]) -> Any:
        path = self._path(name)
        if path is None or not path.is_file() or path.is_symlink():
            return None
        try:
            return read(path)
        except UnfitError:
            return None  # damaged: it is made again

    def _write(self, name: str, write: Callable[[Path], None]) -> None:
        """Whole or not at all: a kill may come at any moment. What a budget has cut short is not finished.

        Where the disk is full, the work goes on without.
        """
        if (path := self._path(name)) is None or is_over():
            return
        partial = path.with_suffix(".partial")
        try:
            self._mark(path.parent)
            write(partial)
            partial.chmod(PRIVATE_FILE)
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)

    def _mark(self, folder: Path) -> None:
        if not (mark := folder / KEY).is_file():
            folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
            mark.write_text(self.key, encoding="ascii")
            mark.chmod(PRIVATE_FILE)


NOWHERE = Shelf()


def open_shelf(folder: Path, key: str) -> Shelf:
    """The parts of this very work; those of any other go."""
    mark = folder / KEY
    if not mark.is_file() or mark.read_text(encoding="ascii", errors="replace") != key:
        shutil.rmtree(folder, ignore_errors=True)
    return Shelf(folder, key)


def _packed(parts: list[Part], began: float, **facts: Any) -> Candidates:
    """As candidates, for which there is a file; `known` says what each part told, `loss` what it made small."""
    known = [[name for name in OPTIONAL if getattr(part, name) is not None] for part in parts]
    facts |= {"known": known, "losses": [part.loss for part in parts], "seconds": time.perf_counter() - began}
    described = {"method": "parts", "settings": {}, "seed": 0, "base": False}
    return pool(parts or [Part("nothing", torch.zeros(0, 1))], described, facts)


def _unpacked(found: Candidates, began: float) -> Iterator[Part]:
    facts = found.facts
    for i, (names, loss) in enumerate(zip(facts["known"], facts["losses"], strict=True)):
        here = found.origin == i
        known = {name: getattr(found, name)[here] for name in names}
        yield Part(found.origins[i], found.x[here], **known, loss=loss, finished=began + facts["finished"][i])


def _seconds(path: Path) -> float:
    try:
        with safe_open(path, framework="pt") as file:
            return float(json.loads(file.metadata()["unfit"])["facts"]["seconds"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise UnfitError(f"{path}: {error}") from error


def _write_search(search: Search, path: Path) -> None:
    facts = {name: value for name, value in asdict(replace(search, start=None)).items() if name != "start"}
    start = search.start
    about = {"facts": facts, "start": start and {name: getattr(start, name) for name in OF_START}}
    write_tensors(path, {} if start is None else start.target.weights, {"unfit": json.dumps(about)})


def _read_search(path: Path, target: Target) -> Search:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["unfit"])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        told = about["start"]
        start = told and Start(replace(target, weights=weights), **told, trained=target)
        return Search(start, **about["facts"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise UnfitError(f"{path}: {error}") from error
