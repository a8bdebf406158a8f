"""docs/cli.md: what the commands say of themselves, below what a person wrote: python benchmarks/reference.py"""

from __future__ import annotations

from pathlib import Path

import typer

from unfit.base.overview import COMMANDS
from unfit.cli import app

CLI = Path(__file__).parents[1] / "docs" / "cli.md"
MARK = "<!-- `make reference` writes everything below this line. -->\n"
WIDTH = 96  # of a page of the site, in characters of code


def help_of(name: str) -> str:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    settings = {"terminal_width": WIDTH, "max_content_width": WIDTH, "help_option_names": ["-h", "--help"]}
    context = command.make_context(f"unfit {name}", [], resilient_parsing=True, **settings)
    return str(command.get_help(context)).strip()


def reference() -> str:
    """A section for each purpose, and in it the help of each command."""
    parts = [
        f"## {purpose}\n\n" + "\n".join(f"### unfit {name}\n\n```text\n{help_of(name)}\n```\n" for name in names)
        for purpose, names in COMMANDS.items()
    ]
    return "\n".join(parts)


def page(text: str) -> str:
    """The page, with what is below the mark written anew."""
    return f"{text.split(MARK)[0]}{MARK}\n{reference()}"


if __name__ == "__main__":
    CLI.write_text(page(CLI.read_text(encoding="utf-8")), encoding="utf-8")
