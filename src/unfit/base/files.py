"""Outputs appear complete or not at all, and replace existing files only with `force`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from unfit.base.errors import UnfitError, explained

Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """The content of a file we write: immutable, without unknown fields or NaN."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


@contextmanager
def new_folder(path: Path, force: bool, holds: Collection[str]) -> Iterator[Path]:
    """Yield a folder to fill; move it to `path` at the end.

    An existing folder is refused. `force` replaces it, but only if it contains nothing besides `holds`: a mistyped
    `out` must not delete anyone's home.
    """
    with _beside(path.absolute(), force) as (partial, path, aside):
        if path.exists() and not path.is_dir():
            raise UnfitError(f"{path} is a file, not a folder: choose another `out`")
        if path.is_dir() and (others := sorted({entry.name for entry in path.iterdir()} - set(holds))):
            raise UnfitError(
                f"{path} contains {others[0]!r}, which is not part of this output: choose another `out`"
            )
        partial.mkdir()
        yield partial
        if path.is_dir():
            path.rename(aside)
        try:
            partial.rename(path)
        except BaseException:
            if aside.is_dir():
                aside.rename(path)
            raise


@contextmanager
def new_file(path: Path, force: bool) -> Iterator[Path]:
    """Yield a file to write; move it to `path` at the end."""
    with _beside(path.absolute(), force) as (partial, path, _):
        if path.is_dir():
            raise UnfitError(f"{path} is a folder, not a file: choose another `out`")
        yield partial
        partial.replace(path)


@contextmanager
def _beside(path: Path, force: bool) -> Iterator[tuple[Path, Path, Path]]:
    """Yield where to write, the final path, and where to move the old output.

    Both places are in a temporary folder on the same disk, which is deleted whatever happens.
    """
    try:
        if path.exists() and not force:
            raise UnfitError(f"{path} exists already: choose another `out`, or replace it with `force`")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
            yield Path(folder) / path.name, path, Path(folder) / ".old"
    except OSError as error:
        raise UnfitError(f"cannot write {path}: {error.strerror or error}") from error


def as_json(content: dict[str, Any]) -> str:
    """Indented and strict: NaN and Infinity are not JSON."""
    return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(as_json(content), encoding="utf-8")


def parse_json(path: Path) -> Any:
    try:
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
