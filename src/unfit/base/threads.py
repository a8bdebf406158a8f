"""How many threads work at once, decided in one place.

The matrices here are small. Shared out between threads, each product waits for the slowest of them, and on a
machine with other work that takes up to ninety times as long as one thread alone. So every product runs on one
thread, and what can be done independently (runs of an attack, ranges of seeds) is spread over a few workers.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController

from unfit.base.errors import UsageError

VARIABLE = "UNFIT_THREADS"
CGROUP = Path("/sys/fs/cgroup/cpu.max")  # quota and period in microseconds, or `max`

T = TypeVar("T")
R = TypeVar("R")

_workers: ContextVar[int | None] = ContextVar("workers", default=None)
_most: ContextVar[int | None] = ContextVar("most", default=None)


@contextmanager
def threads(num: int | None = None) -> Iterator[None]:
    """In here every product runs on one thread, and up to `num` workers share what is independent.

    Without `num` there are as many as this process may use: the least of its cores, the quota of its cgroup, the
    threads that PyTorch was told to use, and what `at_most` says, or else UNFIT_THREADS. PyTorch and BLAS have
    their threads back afterwards.
    """
    if _workers.get() is not None and num is None:
        yield  # an outer call has decided
        return
    before = torch.get_num_threads()
    token = _workers.set(num or usable(before))
    torch.set_num_threads(1)
    try:
        with ThreadpoolController().limit(
            limits=1
        ):  # finds the libraries that are loaded by now, in a millisecond
            yield
    finally:
        _workers.reset(token)
        torch.set_num_threads(before)


@contextmanager
def at_most(num: int | None) -> Iterator[None]:
    """In here no more than `num` workers share the work, whatever UNFIT_THREADS says; None: as that says."""
    if num is not None and num < 1:
        raise UsageError(f"`threads` must be at least 1, not {num}")
    token = _most.set(_most.get() if num is None else num)
    try:
        yield
    finally:
        _most.reset(token)


def usable(told: int) -> int:
    """Threads that may be busy at once, where PyTorch was told to use `told`."""
    limits = [told, _cores(), _quota(), _asked()]
    return max(1, int(min(each for each in limits if each is not None)))


def _cores() -> int:
    """Those that this process may run on, which a container or `taskset` can restrict."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quota() -> int | None:
    """Whole cores of processor time that a cgroup grants; None without a limit."""
    try:
        quota, period = CGROUP.read_text().split()
        return max(1, math.floor(int(quota) / int(period)))
    except (OSError, ValueError):  # another system, or `max`
        return None


def _asked() -> int | None:
    if (most := _most.get()) is not None:
        return most
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{VARIABLE} is {text!r}, not a number of threads such as 2")
    return int(text)


def num_workers() -> int:
    """How many pieces of work may run at once here."""
    return _workers.get() or usable(torch.get_num_threads())


def spread(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """The results of independent pieces of work in their order, some of them computed ahead by other workers.

    Each piece sees the time limit of its caller. If the caller stops asking, what has not begun is dropped.
    """
    num = num_workers()
    if num == 1:
        yield from map(work, items)
        return
    waiting = deque[Future[R]]()
    # OpenMP keeps its number for each thread
    with ThreadPoolExecutor(num, initializer=torch.set_num_threads, initargs=(1,)) as crew:
        try:
            for item in items:
                waiting.append(crew.submit(copy_context().run, work, item))
                if len(waiting) > num:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            crew.shutdown(wait=True, cancel_futures=True)
