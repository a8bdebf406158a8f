"""The command line: parse into a value or a request, call, print.

Help, errors in the arguments and the version need no PyTorch, which takes seconds to load. So no module of this
package loads it when it is imported: options take their names and defaults from modules that do without it, and
each command imports what it runs in its own body.

app       the program itself: its groups and commands, their help, and the printer
machine   --threads and --device, for all commands that compute
options   options that several commands share
training, attacks, audits, scans, reports, reproduction   the commands, by what they are for
"""

from __future__ import annotations

import re
import sys
from typing import Any

import typer

from unfit.base.ends import end, ending
from unfit.base.errors import UnfitError, UsageError
from unfit.cli import attacks, audits, reports, reproduction, scans, training
from unfit.cli.app import app

COMMANDS = (training, attacks, audits, scans, reports, reproduction)  # their import adds the commands to the app


def main() -> None:
    """Run a command; errors are one message on standard error. Exit codes: docs/formats.md."""
    group = typer.main.get_command(app)
    with ending():
        try:  # not group(), which ends with exit code 1, a leak, if nobody reads standard output
            with group.make_context("unfit", sys.argv[1:]) as context:
                code = group.invoke(context)
        except typer.Exit as done:
            code = done.exit_code
        except UnfitError as error:
            end(with_flags(str(error), group), error.exit_code)
        except typer.TyperException as error:
            place = getattr(error, "ctx", None)
            end(f"{error.format_message()} (see `{_path(place)} --help`)", UsageError.exit_code)
    sys.exit(code)


def _path(context: typer.Context | None) -> str:
    """The command that was to be run, by its name."""
    return context.command_path if context else "unfit"


def with_flags(message: str, group: Any) -> str:
    """Errors name Python's arguments in backticks; a user of a command knows them by its flags."""
    command = group.commands.get(next(iter(sys.argv[1:]), ""))
    flags = [flag for each in (command.params if command else ()) for flag in each.opts if flag.startswith("--")]
    names = {flag.removeprefix("--").replace("-", "_"): flag for flag in flags}
    return re.sub(r"`(?:[a-z]\w*\.)?([a-z]\w*)(?:\.\d+)*`", lambda found: names.get(found[1], found[0]), message)
