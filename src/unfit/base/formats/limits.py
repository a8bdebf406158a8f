"""Files come from anybody: every size is checked before memory is allocated, and damage is one clear line."""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from unfit.base.errors import UnfitError
from unfit.base.nets import MAX_PARAMETERS

T = TypeVar("T")
Weights = dict[str, Tensor]
CHECKPOINTS = "pass a run folder, a .safetensors file or a .pt state dict; `unfit formats` lists all kinds"
MAX_CHECKPOINT = 8 * MAX_PARAMETERS  # bytes: the largest model in float64
LONGEST = 300  # seconds that a rehearsal may take: HDF5 can follow damaged links for ever
MEMORY = Path("/proc/self/statm")  # its first number is the size of this process in pages
_BROKEN = (  # what PyTorch, zipfile, JSON and HDF5 raise for a damaged file
    *(RuntimeError, OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
    *(AssertionError, MemoryError, struct.error, zipfile.BadZipFile, zlib.error),
)


_KEPT: ContextVar[dict[tuple[str, Path], Any] | None] = ContextVar("_KEPT", default=None)


@contextmanager
def read_once() -> Iterator[None]:
    """In here each file is read once, however many look at it, and they share its tensors."""
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


def kept(what: str, path: Path, read: Callable[[Path], T]) -> T:
    """What `read` gave for this file, if it was read before inside of `read_once`."""
    found = _KEPT.get()
    if found is None:
        return read(path)
    if (what, path) not in found:
        found[what, path] = read(path)
    return found[what, path]


@contextmanager
def undamaged(path: Path, kind: str, *errors: type[Exception]) -> Iterator[None]:
    """What a damaged file raises becomes one line. `errors` are those of the format's own package."""
    try:
        yield
    except _BROKEN + errors as error:
        raise UnfitError(
            f"{path}: not a complete {kind} file ({type(error).__name__}: {str(error)[:200]}); was it cut short?"
        ) from error


def check_file(path: Path) -> None:
    """A regular file of a size that can be read: not a device, a pipe or a folder."""
    try:
        is_file = path.is_file()
    except OSError as error:  # a name that is too long
        raise UnfitError(f"cannot read {path}: {error.strerror}") from error
    if not is_file:
        raise UnfitError(f"{path}: no such checkpoint; {CHECKPOINTS}")
    check_size(path, "has", path.stat().st_size)


@contextmanager
def bounded(num_bytes: int) -> Iterator[None]:
    """At most this many bytes of memory, for a library that allocates what a damaged file claims. Linux only."""
    if not MEMORY.is_file():
        yield
        return
    import resource

    used = int(MEMORY.read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    limits = [used + num_bytes, *(each for each in before if each != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def rehearsed(path: Path, read: Callable[[], T]) -> T:
    """What `read` gives, done once before in a process of its own: a library in C may crash on a damaged file.

    There it has one thread and limited time. If processes cannot be forked, it is read at once.
    """
    if not hasattr(os, "fork"):
        return read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads, none of which the rehearsal needs
        child = os.fork()
    if child == 0:
        _rehearse(read)
    try:
        status = os.waitpid(child, 0)[1]
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        raise UnfitError(f"{path}: damaged: the library that reads such files ended with {name}")
    return read()


def _rehearse(read: Callable[[], object]) -> NoReturn:
    """Ends this process. What `read` raises, it will raise again."""
    import resource

    try:
        faulthandler.disable()  # nobody is to see a crash
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LONGEST)
        torch.set_num_threads(1)  # those of the first process are not here
        read()
    finally:
        os._exit(0)


def check_size(path: Path, verb: str, num_bytes: int) -> None:
    if num_bytes > MAX_CHECKPOINT:
        raise UnfitError(f"{path}: {verb} {num_bytes / 1e9:.1f} GB; the limit is {MAX_CHECKPOINT / 1e9:.0f} GB")


def check_zip(path: Path, archive: zipfile.ZipFile) -> None:
    check_size(path, "unpacks to", sum(entry.file_size for entry in archive.infolist()))


def check_shapes(path: Path, shapes: Iterable[Iterable[int]]) -> None:
    """A file of a few bytes can claim tensors of any size: with stride 0, or compressed."""
    if (total := sum(math.prod(shape) for shape in shapes)) > MAX_PARAMETERS:
        raise UnfitError(f"{path}: claims {total:,} parameters; the limit is {MAX_PARAMETERS:,}")


def ready(path: Path, net: nn.Module) -> nn.Module:
    """A model as it is used: float32, in eval mode, all of its values finite."""
    net = net.float().eval().requires_grad_(False)
    if bad := [name for name, value in net.state_dict().items() if not value.isfinite().all()]:
        raise UnfitError(f"{path}: {bad[0]} has values that are NaN or infinite")
    return net
