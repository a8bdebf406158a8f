"""One process at a time writes an output, in a hidden folder beside it.

The folder is locked, and the system lifts the lock however its process ends. So what a dead process has left is
known to be dead, and the next one that writes the same output removes it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from unfit.base.errors import UnfitError

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600  # outputs show people's data: to this user, and nobody else
NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag
SUFFIX, OWNER, PARTS = "-unfit", "owner", "parts"
LONGEST_NAME = 200  # bytes, of the 255 that disks allow: what is longer is known by its hash
_open: dict[Path, Path] = {}  # the reservations of this process, each with its output


@contextmanager
def reserved(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield two places on the disk of `path`: one to write at, and one for what `path` was until now.

    They are deleted whatever happens; if `path` is not there then, what it was comes back. Finished parts of the
    work (`parts_of`) stay until they are dropped: whoever reserves the same path next finds them.
    """
    place = _place(path)
    lock = _take(place, path)
    try:
        _open[place] = path
        os.ftruncate(lock, 0)
        os.write(lock, f"process {os.getpid()}".encode())
        _clear(place, path)  # what a process that was killed has left
        (place / "new").mkdir(PRIVATE_FOLDER)
        yield place / "new" / path.name, _old(place)
    finally:
        _release(place, path)
        os.close(lock)


def parts_of(partial: Path) -> Path:
    """Where finished parts of the work on an output are kept; `partial` is where the output is written."""
    return next(place for place in _open if place in partial.parents) / PARTS


def drop_parts(partial: Path) -> None:
    """Once the work has come to its end."""
    shutil.rmtree(parts_of(partial), ignore_errors=True)


def remove_dead(folder: Path) -> None:
    """Whatever processes that were killed have left in a folder."""
    for place in folder.glob(f".*{SUFFIX}"):
        with reserved(place.with_name(place.name[1 : -len(SUFFIX)])):
            pass


def abandon() -> None:
    """Remove all that this process has begun: it is about to end without a word to those who write."""
    for place, path in list(_open.items()):
        with suppress(OSError):
            _release(place, path)


def opened(path: Path, flags: int) -> IO[bytes]:
    """A file of this user alone, which is not reached through a link."""
    mode = "ab" if flags & os.O_APPEND else "r+b"
    return open(os.open(path, flags | NO_LINKS, PRIVATE_FILE), mode)


def is_free(lock: int) -> bool:
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


def _old(place: Path) -> Path:
    return place / "old"


def _take(place: Path, path: Path) -> int:
    """The lock of a reservation, from now on of this process."""
    while True:
        _make_own(place)
        try:
            lock = os.open(place / OWNER, os.O_RDWR | os.O_CREAT | NO_LINKS, PRIVATE_FILE)
        except FileNotFoundError:
            continue  # the last owner has just removed it
        if not is_free(lock):
            owner = os.read(lock, 100).decode("ascii", "replace")
            os.close(lock)
            raise UnfitError(f"{owner} is writing {path} too: wait until it ends, or choose another `out`")
        if _is_at(lock, place / OWNER):
            return lock
        os.close(lock)


def _is_at(lock: int, path: Path) -> bool:
    """The last owner may have removed the file between its opening and its locking."""
    try:
        return os.path.samestat(os.fstat(lock), path.lstat())
    except FileNotFoundError:
        return False


def _make_own(place: Path) -> None:
    """A folder of this user alone. One that somebody else has put there is not used."""
    place.mkdir(PRIVATE_FOLDER, exist_ok=True)
    found = place.lstat()
    mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    names = os.listdir(place) if mine and stat.S_ISDIR(found.st_mode) else ["?"]
    if names and OWNER not in names:
        raise UnfitError(f"{place} is in the way, and not unfit's: remove it, or choose another `out`")
    place.chmod(PRIVATE_FOLDER)


def _clear(place: Path, path: Path) -> None:
    """Remove all but the lock. What was moved aside comes back if nothing has taken its place."""
    if os.path.lexists(_old(place)) and not os.path.lexists(path):
        _old(place).rename(path)
    for entry in place.iterdir():
        if entry.name == PARTS:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != OWNER:
            entry.unlink()


def _release(place: Path, path: Path) -> None:
    with suppress(FileNotFoundError):  # the folder around it may have vanished
        _clear(place, path)
        if not (place / PARTS).exists():
            (place / OWNER).unlink()
            place.rmdir()
    _open.pop(place, None)
