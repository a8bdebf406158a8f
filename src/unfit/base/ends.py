"""How a command ends: whatever goes wrong is one line on standard error and an exit code that is no verdict."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from unfit.base.errors import UnfitError, clean

DEBUG = "UNFIT_DEBUG"  # set to anything, tracebacks are printed
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@contextmanager
def ending() -> Iterator[None]:
    """Whatever is raised inside ends the process; only `SystemExit` passes as it is."""
    try:
        yield
        sys.stdout.flush()  # not at exit, where Python would have its own words for a failure
    except UnfitError as error:
        end(str(error), error.exit_code)
    except KeyboardInterrupt:
        end("interrupted", INTERRUPTED)
    except Exception as error:
        end(_unforeseen(error), UnfitError.exit_code)


def end(message: str, code: int) -> None:
    complain(message)
    _drop_output()
    sys.exit(code)


def complain(message: str) -> None:
    """Lines of a list stay lines; nothing else in a message, such as a file's name, moves the cursor."""
    lines = "\n".join(map(clean, message.split("\n")))
    print(f"unfit: {lines}", file=sys.stderr)


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
