"""Outputs appear complete or not at all, and replace nothing but earlier outputs, and these only with `force`."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from unfit.base.errors import UnfitError, explained
from unfit.base.reservation import PRIVATE_FILE, PRIVATE_FOLDER, drop_parts, reserved

MAX_JSON = 256 * 2**20  # bytes: an audit of half a million samples

if TYPE_CHECKING:
    from torch import Tensor

Model = TypeVar("Model", bound=BaseModel)


class UnwritableError(UnfitError):
    """The system does not let us write there."""


class Strict(BaseModel):
    """The content of a file we write: immutable, without unknown fields or NaN."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """What is said of each field stands in its docstring, too."""
        said = {name: each.description for name, each in cls.model_fields.items()}
        told = [f"        {name}: {words}" for name, words in said.items() if words]
        if told and cls.__doc__:
            rule, mark, example = cls.__doc__.partition("    Example:")
            cls.__doc__ = "\n".join([rule.rstrip(), "", "    Args:", *told, "", mark + example])


# Outputs: one process at a time writes beside the final place, and moves what is whole there --------------------

Holds = Collection[str] | Mapping[str, "Holds"]
"""The files of an output; of a mapping, folders and what these hold. It is known by the first."""


Mark = tuple[int, bytes]
"""Where a kind of file has which bytes."""
SAFETENSORS = (8, b"{")


@contextmanager
def new_folder(path: Path, force: bool, holds: Holds) -> Iterator[Path]:
    """Yield a folder to fill; move it to `path` at the end, for this user's eyes alone.

    An existing folder is refused. `force` replaces it, but only if it is such an output and nothing else: a
    mistyped `out` must not delete anyone's home.
    """
    with _place_for(path.absolute(), force) as (path, partial, old):
        if os.path.lexists(path):
            _check_folder(path, holds)
        partial.mkdir(PRIVATE_FOLDER)
        yield partial
        drop_parts(partial)
        _make_private(partial)
        replaces_here = _is_here(path)
        if force and _kind(path) == "a folder":
            path.rename(old)
            if _foreign(old, holds):  # it came while this ran
                old.rename(path)
        if os.path.lexists(path):
            raise UnfitError(_put_beside(partial, path))
        partial.rename(path)  # if a folder appears just now, only an empty one would be replaced
        if replaces_here:
            os.chdir(path)


@contextmanager
def new_file(path: Path, force: bool, mark: Mark | None = None) -> Iterator[Path]:
    """Yield a file to write; move it to `path` at the end, for this user's eyes alone.

    `force` replaces one that is there, but with a `mark` only if that is a file of this kind.
    """
    with _place_for(path.absolute(), force) as (path, partial, _):
        before = _checked_file(path, mark)
        yield partial
        partial.chmod(PRIVATE_FILE)
        if before is None:
            _move_to_free(partial, path)
        elif _identity(path) == before:
            partial.replace(path)
        else:
            raise UnfitError(_put_beside(partial, path))


@contextmanager
def _place_for(path: Path, force: bool) -> Iterator[tuple[Path, Path, Path]]:
    """Yield the final path, where to write, and where to move the old output."""
    if path.name in ("", ".."):
        raise UnfitError(f"{path} has no name of its own to be written under: choose another `out`")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _identity(path)  # raises for a name that the disk does not take
        with reserved(path) as (partial, old):
            if os.path.lexists(path) and not force:
                raise UnfitError(f"{path} exists already: choose another `out`, or replace it with `force`")
            yield path, partial, old
    except OSError as error:
        raise UnwritableError(_reason(error, path)) from error


def kept(write: Callable[[Path], None], folder: Path) -> None:
    """Write into the folder; work that took hours is not lost because its disk is full."""
    try:
        write(folder)
    except (OSError, UnwritableError) as error:
        elsewhere = Path(tempfile.mkdtemp(prefix="unfit-"))
        write(elsewhere)
        _make_private(elsewhere)
        drop_parts(folder)
        raise UnfitError(f"{_reason(error, folder)}; the finished work is kept in {elsewhere}") from error


def _reason(error: Exception, path: Path) -> str:
    return f"cannot write {path}: {error.strerror or error}" if isinstance(error, OSError) else str(error)


def _move_to_free(partial: Path, path: Path) -> None:
    try:
        os.link(partial, path)  # unlike a move, it never replaces anything
    except FileExistsError:
        raise UnfitError(_put_beside(partial, path)) from None
    except OSError:  # a disk without hard links
        if os.path.lexists(path):
            raise UnfitError(_put_beside(partial, path)) from None
        partial.rename(path)


def _put_beside(partial: Path, path: Path) -> str:
    """Something is where the output was to go: leave it, and put the output beside it."""
    names = (path.with_name(f"{path.stem}-{i}{path.suffix}") for i in count(2))
    other = next(each for each in names if not os.path.lexists(each))
    partial.rename(other)
    return f"{path} has appeared or changed meanwhile and was left as it is; the finished work is kept in {other}"


def _checked_file(path: Path, mark: Mark | None) -> tuple[int, ...] | None:
    """What is there now, if it may be replaced: a file."""
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise UnfitError(f"{path} is {_kind(path)}, not a file: choose another `out`")
    if mark is not None and path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            file.seek(mark[0])
            if file.read(len(mark[1])) != mark[1]:
                raise UnfitError(f"{path} is a file of another kind, not such an output: choose another `out`")
    return _identity(path)


def _identity(path: Path) -> tuple[int, ...] | None:
    """Changes whenever the file is replaced or written to."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _check_folder(path: Path, holds: Holds) -> None:
    if path.is_symlink() or not path.is_dir():
        raise UnfitError(f"{path} is {_kind(path)}, not a folder: choose another `out`")
    if foreign := _foreign(path, holds):
        raise UnfitError(f"{path} contains {foreign!r}, which is not part of this output: choose another `out`")
    if any(path.iterdir()) and not (path / next(iter(holds), "")).exists():
        raise UnfitError(f"{path} has no {next(iter(holds))!r}, so it is no such output: choose another `out`")


def _foreign(path: Path, holds: Holds) -> str | None:
    """The first thing that is no part of such an output: by its name, or because it is of another kind."""
    for entry in sorted(path.iterdir()):
        inside = holds.get(entry.name) if isinstance(holds, Mapping) else None
        wanted = _kind(entry) == ("a folder" if inside is not None else "a file")
        if entry.name not in holds or not wanted:
            return entry.name
        if inside is not None and (deeper := _foreign(entry, inside)):
            return f"{entry.name}/{deeper}"
    return None


def _kind(path: Path) -> str:
    if path.is_symlink():
        return "a link"
    return "a folder" if path.is_dir() else "a file" if path.is_file() else "no regular file"


def _make_private(folder: Path) -> None:
    folder.chmod(PRIVATE_FOLDER)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(PRIVATE_FOLDER if path.is_dir() else PRIVATE_FILE)


def _is_here(path: Path) -> bool:
    """Is this the folder that one is in? Once it is replaced, one would be nowhere."""
    try:
        return os.path.samefile(path, os.curdir)
    except OSError:
        return False


def as_json(content: dict[str, Any]) -> str:
    """Indented and strict: NaN and Infinity are not JSON."""
    return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Half a surrogate, in the name of a file, is escaped as JSON does it; UTF-8 has no room for it."""
    path.write_text(as_json(content), encoding="utf-8", errors="backslashreplace")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: value.contiguous() for name, value in tensors.items()}, path, metadata)
    except SafetensorError as error:  # a full disk, for one
        raise OSError(str(error)) from error


def check_regular(path: Path) -> None:
    """A pipe or a device would never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UnfitError(f"{path} is not a regular file")


def parse_json(path: Path) -> Any:
    check_regular(path)
    try:
        if path.stat().st_size > MAX_JSON:
            raise UnfitError(f"{path}: more than {MAX_JSON >> 20} MiB are not a file of this kind")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnfitError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UnfitError(f"{path} is not JSON: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    content = parse_json(path)
    if not isinstance(content, dict):
        raise UnfitError(f"{path} must contain a JSON object, found {type(content).__name__}")
    return content


def read_as(model: type[Model], path: Path) -> Model:
    """Read a JSON file into a model; one error lists everything wrong with it."""
    try:
        return model.model_validate(read_json(path))
    except ValidationError as error:
        raise UnfitError(f"{path}: {explained(error)}") from error
