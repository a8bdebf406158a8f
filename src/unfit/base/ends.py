"""How a command ends: whatever goes wrong is one line on standard error and an exit code that is no verdict."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import textwrap
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from unfit.base.errors import UnfitError, clean, clean_lines
from unfit.base.reservation import abandon

DEBUG = "UNFIT_DEBUG"  # set to anything, tracebacks are printed
GRACE = 1.0  # seconds between a signal and the end, for what is in the middle of a computation
KEPT = "what was finished is kept, what was begun is removed; run the same command to go on"
SHOW_CURSOR = b"\x1b[?25h\n"  # a progress bar hides it, and would show it again if it could end as usual


class Terminated(KeyboardInterrupt):
    """SIGTERM: an interrupt with a word and an exit code of its own."""


SIGNALS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
ENDS = {KeyboardInterrupt: ("interrupted", 130), Terminated: ("terminated", 143)}  # 128 + the signal's number


@contextmanager
def ending() -> Iterator[None]:
    """Whatever is raised inside ends the process; only `SystemExit` passes as it is.

    An interrupt may say what is kept: `KeyboardInterrupt("3 trials are kept")`.
    """
    with _signals_heard():
        try:
            yield
            sys.stdout.flush()  # not at exit, where Python would have its own words for a failure
        except UnfitError as error:
            end(str(error), error.exit_code)
        except KeyboardInterrupt as error:
            word, code = next(ENDS[kind] for kind in type(error).__mro__ if kind in ENDS)
            exec("pass")  # or `python -m` remembers an interrupt in an earlier `exec`, and dies of that
            end(f"{word}; {str(error) or KEPT}", code)
        except Exception as error:  # the last resort: a crash must not look like a verdict
            end(_unforeseen(error), UnfitError.exit_code)


@contextmanager
def _signals_heard() -> Iterator[None]:
    """Signals raise in the main thread; where that is deep in a computation, another thread ends the process."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    chosen = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, _raise)]
    if not chosen or threading.current_thread() is not threading.main_thread():
        yield
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    left = threading.Event()
    for number in chosen:
        signal.signal(number, _raise)
    old = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_insist, args=(read, left), daemon=True).start()
    try:
        yield
    finally:
        left.set()
        signal.set_wakeup_fd(old)
        os.close(write)
        for number in chosen:
            signal.signal(number, before[number])


def _raise(number: int, frame: object) -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # a second one must not disturb how the first one ends
    raise SIGNALS[signal.Signals(number)]


def _insist(read: int, left: threading.Event) -> None:
    """End the process if a signal has not done so in time; a byte in the pipe is its number."""
    with open(read, "rb", buffering=0) as pipe:
        while number := pipe.read(1):
            if number[0] in SIGNALS and not left.wait(GRACE):
                word, code = ENDS[SIGNALS[signal.Signals(number[0])]]
                abandon()
                complain(f"{word}; {KEPT}")
                if os.isatty(2):
                    os.write(2, SHOW_CURSOR)
                os._exit(code)


def end(message: str, code: int) -> NoReturn:
    complain(message)
    _drop_output()
    sys.exit(code)


def complain(message: str) -> None:
    """Lines of a list stay lines; nothing else in a message, such as a file's name, moves the cursor."""
    print(_wrapped(f"unfit: {clean_lines(message)}"), file=sys.stderr)


def _wrapped(text: str) -> str:
    """At spaces, on a terminal; elsewhere lines stay whole."""
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size().columns
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(map(wrapper.fill, text.split("\n")))


def _unforeseen(error: Exception) -> str:
    """What happened, in one line, and where the rest is."""
    words = clean(f"{type(error).__name__}: {error}".removesuffix(": "))
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
        return words
    try:
        handle, path = tempfile.mkstemp(prefix="unfit-", suffix=".log")  # readable by this user alone
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return f"unexpected {words}; {DEBUG}=1 shows the details"
    return f"unexpected {words}; the details are in {path}"


def _drop_output() -> None:
    """What could not be written is not tried again at exit, which would change the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
