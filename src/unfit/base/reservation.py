"""One process at a time writes in a folder: where an output is made, or where a store is kept.

The folder is private and locked, and the system lifts the lock however its process ends. So the next process that
writes there knows that what it finds is left from a dead one, and removes it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from unfit.base.errors import UnfitError

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600  # outputs show people's data: to this user, and nobody else
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag
SUFFIX, OWNER, PARTS = "-unfit", ".unfit-owner", "parts"
PARTIAL = ".unfit-partial"  # the end of the name of a file that is being written
LONGEST_NAME = 200  # bytes, of the 255 that disks allow: what is longer is known by its hash
_open: dict[Path, Path] = {}  # the reservations of this process, each with its output


@contextmanager
def owned(folder: Path, output: Path, known_by: Collection[str]) -> Iterator[None]:
    """A private folder, made if need be, that no other process owns meanwhile; it goes if it is empty in the end.

    A folder with anything in it is used only if one of the names is there that ours are known by. The error of a
    second process names the first, and the `output` that both want.
    """
    lock = _take(folder, output, known_by)
    try:
        os.ftruncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {platform.node()}".encode())
        yield
    finally:
        _disown(folder)
        os.close(lock)


def is_owned(folder: Path) -> bool:
    """Whether a process owns it now."""
    try:
        with opened(folder / OWNER, os.O_RDWR) as lock:
            return not _is_free(lock.fileno())
    except OSError:
        return False


@contextmanager
def reserved(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield two places on the disk of `path`: one to write at, and one for what `path` was until now.

    They are deleted whatever happens; if `path` is not there then, what it was is restored. Finished parts of the
    work (`parts_of`) stay until they are dropped: the next process that reserves the path finds them.
    """
    place = _place(path)
    with owned(place, path, [PARTS]):
        try:
            _open[place] = path
            _clear(place, path)  # what a process that was killed has left
            (place / "new").mkdir(PRIVATE_FOLDER)
            yield place / "new" / path.name, place / "old"
        finally:
            with suppress(FileNotFoundError):  # the folder around it may have vanished
                _clear(place, path)
            _open.pop(place, None)


def parts_of(partial: Path) -> Path:
    """Where finished parts of the work on an output are kept; `partial` is where the output is written."""
    return next(place for place in _open if place in partial.parents) / PARTS


def drop_parts(partial: Path) -> None:
    """Once the work has come to its end."""
    shutil.rmtree(parts_of(partial), ignore_errors=True)


def abandon() -> None:
    """Remove all that this process has begun: it is about to end without a word to those who write."""
    for place, path in list(_open.items()):
        with suppress(OSError):
            _clear(place, path)
        _disown(place)


def opened(path: Path, flags: int) -> IO[bytes]:
    """A file of this user alone, which is not reached through a link."""
    mode = "ab" if flags & os.O_APPEND else "r+b"
    return open(os.open(path, flags | NO_LINKS, PRIVATE_FILE), mode)


def emptied(folder: Path, but: Collection[str] = ()) -> None:
    """Remove all but its lock and these names; links go, and what they lead to stays."""
    for entry in folder.iterdir():
        if entry.name in (OWNER, *but):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _is_free(lock: int) -> bool:
    """Lock an open file for this process, unless another one has it."""
    try:
        import fcntl
    except ImportError:  # on Windows no file can be removed while it is open, which stops a second process too
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _place(path: Path) -> Path:
    name = path.name
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return path.with_name(f".{name}{SUFFIX}")


def _take(folder: Path, output: Path, known_by: Collection[str]) -> int:
    """The lock of a folder, from now on of this process."""
    while True:
        _make_own(folder, known_by)
        try:
            lock = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT | NO_LINKS, PRIVATE_FILE)
        except FileNotFoundError:
            continue  # the last owner has just removed it
        if not _is_free(lock):
            owner = os.read(lock, 100).decode("utf-8", "replace")
            os.close(lock)
            raise UnfitError(f"{owner} is writing {output} too: wait until it ends, or write elsewhere")
        if _is_at(lock, folder / OWNER):
            return lock
        os.close(lock)


def _is_at(lock: int, path: Path) -> bool:
    """The last owner may have removed the file between its opening and its locking."""
    try:
        return os.path.samestat(os.fstat(lock), path.lstat())
    except FileNotFoundError:
        return False


def _make_own(folder: Path, known_by: Collection[str]) -> None:
    """A folder of this user alone. One that somebody else has put there is not used."""
    folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
    found = folder.lstat()
    mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    names = os.listdir(folder) if mine and stat.S_ISDIR(found.st_mode) else ["?"]
    whole = [name for name in names if not name.endswith(PARTIAL)]
    if whole and not {OWNER, *known_by}.intersection(whole):
        raise UnfitError(f"{folder} is in the way, and not unfit's: move it away, or write elsewhere")
    folder.chmod(PRIVATE_FOLDER)


def _disown(folder: Path) -> None:
    with suppress(OSError):  # it may have vanished, or hold what the next owner needs
        (folder / OWNER).unlink()
        folder.rmdir()


def _clear(place: Path, path: Path) -> None:
    """Remove all but the lock. What was moved aside is restored if nothing has taken its place."""
    old = place / "old"
    if os.path.lexists(old) and not os.path.lexists(path):
        old.rename(path)
    emptied(place, [PARTS])
