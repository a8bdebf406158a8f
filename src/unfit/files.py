"""Outputs appear whole or not at all, and never over something that was there without being told to."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unfit.errors import UnfitError


@contextmanager
def new_folder(path: Path, force: bool, holds: Collection[str]) -> Iterator[Path]:
    """A folder to fill, moved to `path` when all is done.

    An existing one is refused, or with `force` replaced, if it holds nothing but the files named in `holds`:
    a mistyped `--out ~` must not cost anyone a home.
    """
    path = path.absolute()
    _refuse_existing(path, force)
    if path.exists() and not path.is_dir():
        raise UnfitError(f"{path} is a file, a folder was to be written there: choose another --out")
    if path.is_dir() and (others := sorted({entry.name for entry in path.iterdir()} - set(holds))):
        raise UnfitError(
            f"{path} holds {others[0]!r}, which was not written by this command: choose another --out"
        )
    with _beside(path) as partial:
        partial.chmod(0o755)
        yield partial
        if path.is_dir():
            shutil.rmtree(path)
        partial.rename(path)


@contextmanager
def new_file(path: Path, force: bool) -> Iterator[Path]:
    """A file to write, moved to `path` when it is whole."""
    path = path.absolute()
    _refuse_existing(path, force)
    if path.is_dir():
        raise UnfitError(f"{path} is a folder, a file was to be written there: choose another --out")
    with _beside(path) as folder:
        yield folder / path.name
        os.replace(folder / path.name, path)


def _refuse_existing(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise UnfitError(f"{path} exists already: choose another --out, or --force to replace it")


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A temporary folder on the same disk, so that the last move is atomic; gone again whatever happens."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    except OSError as error:
        raise UnfitError(f"cannot write to {path.parent}: {error.strerror}") from error
    try:
        yield partial
    except OSError as error:
        raise UnfitError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Readable, and strict: NaN and Infinity are not JSON."""
    path.write_text(json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnfitError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UnfitError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UnfitError(f"{path} must hold a JSON object, found a {type(content).__name__}")
    return content


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
