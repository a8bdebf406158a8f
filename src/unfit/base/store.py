"""What can be resumed: finished parts of one piece of work, in a private folder that one process at a time writes.

A key says which work that is, so parts of other work are never used. A file appears whole or not at all, even if
the process is killed, the disk is full or the power fails. A list loses at most the line that was being written.
Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unfit.base.errors import UnfitError, listed
from unfit.base.files import Strict, check_regular, read_json, write_json, write_tensors
from unfit.base.reservation import OWNER, PARTIAL, PRIVATE_FILE, PRIVATE_FOLDER, emptied, opened, owned

Line = TypeVar("Line", bound=Strict)


@dataclass(frozen=True, eq=False)
class Saved:
    """Tensors, and what JSON can hold. The names of tensors have a prefix: `net.layer1.weight`."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors with this prefix, without it."""
        return {key.partition(".")[2]: value for key, value in self.tensors.items() if key.startswith(name + ".")}


@dataclass(frozen=True)
class Store:
    """Finished parts of one piece of work. The folder is there once it has one."""

    folder: Path
    work: str  # what it is, in a word
    key: dict[str, Any]  # all that the work follows from
    key_file: str = "key.json"
    lists: tuple[str, ...] = ()

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Around all that opens and writes, unless a folder around this one is owned."""
        with owned(self.folder, self.folder, [self.key_file]):
            yield

    def open(self) -> None:
        """Refuse parts of other work; remove what a kill has left unfinished."""
        if not self.folder.is_dir():
            return
        entries = [self.folder, *self.folder.iterdir()]
        if links := [path for path in entries if path.is_symlink()]:
            raise UnfitError(f"{links[0]} is a link, and what is written here must stay here")
        if (self.folder / self.key_file).exists():
            self._check_key()
        elif other := [path for path in entries[1:] if not path.name.endswith((OWNER, PARTIAL))]:
            raise UnfitError(f"{self.folder} has no {self.key_file}, but {other[0].name}")
        for path in self.folder.rglob(f"*{PARTIAL}"):
            path.unlink()
        for path in filter(Path.exists, (self.folder / name for name in self.lists)):
            check_regular(path)
            with opened(path, os.O_RDWR) as file:
                file.truncate(file.read().rfind(b"\n") + 1)

    def write(self, name: str, write: Callable[[Path], None]) -> None:
        if not (self.folder / self.key_file).exists():
            write_whole(self.folder / self.key_file, lambda path: write_json(path, self.key))
        write_whole(self.folder / name, write)

    def read(self, name: str) -> Saved | None:
        return read_saved(self.folder / name) if (self.folder / name).exists() else None

    def append(self, name: str, line: Strict) -> None:
        if not (self.folder / name).exists():
            self.write(name, Path.touch)
        with opened(self.folder / name, os.O_WRONLY | os.O_APPEND) as file:
            file.write(line.model_dump_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def clear(self) -> None:
        """Drop all that is here, its key last: a kill leaves no part without one."""
        if self.folder.is_symlink():
            self.folder.unlink()
        elif self.folder.is_dir():
            emptied(self.folder, [self.key_file])
            emptied(self.folder)

    def _check_key(self) -> None:
        try:
            there, here = _flat(read_json(self.folder / self.key_file)), _flat(self.key)
            names = [name for name in there | here if there.get(name) != here.get(name)]
            differ = [f"{name} ({there.get(name)} there, {here.get(name)} here)" for name in names]
        except RecursionError as error:
            raise UnfitError(f"{self.folder / self.key_file} is nested too deeply") from error
        if differ:
            raise UnfitError(f"{self.folder} holds another {self.work}, which differs in {listed(differ)}")


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """What is there is replaced once the new file is on the disk."""
    path.parent.mkdir(PRIVATE_FOLDER, exist_ok=True)
    handle, name = tempfile.mkstemp(PARTIAL, f".{path.name}.", path.parent)
    os.close(handle)
    partial = Path(name)
    try:
        write(partial)
        partial.chmod(PRIVATE_FILE)
        with partial.open("r+b") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    with suppress(OSError):  # some systems do not open folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_saved(path: Path, saved: Saved) -> None:
    tensors = {name: value.detach().cpu().clone() for name, value in saved.tensors.items()}  # some share memory
    write_tensors(path, tensors, {"unfit": json.dumps(saved.facts)})


def read_saved(path: Path, with_tensors: bool = True) -> Saved:
    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys() if with_tensors else ()
            return Saved(
                {name: file.get_tensor(name).clone() for name in names}, json.loads(file.metadata()["unfit"])
            )
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UnfitError(f"{path} is damaged: {error}") from error


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """What follows the last line break is being written, or was cut short."""
    check_regular(path)
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1] if path.exists() else [], 1):
        try:
            found.append(kind.model_validate_json(line))
        except ValidationError as error:
            raise UnfitError(f"{path}, line {number}: {error.errors()[0]['msg']}") from error
    return found


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
