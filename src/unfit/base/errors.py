"""What a user sees when something they gave cannot be used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

SHOWN = 5  # offending things named in one message


class UnfitError(Exception):
    """The input cannot be used: the message says what is wrong, where, and what to do."""

    exit_code = 2


class UsageError(UnfitError):
    """The request itself is wrong: an unknown name or an impossible number."""

    exit_code = 64


class NotApplicableError(UnfitError):
    """The attack does not cover this net: nothing is wrong with it, and nothing was found out about it."""


def unknown(what: str, given: str, valid: Iterable[str]) -> UsageError:
    """An unknown name, with the valid ones."""
    return UsageError(f"unknown {what} {given!r}; choose one of: {', '.join(valid)}")


def listed(names: Sequence[object]) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(str, names[:SHOWN])) + more


def explained(error: ValidationError) -> str:
    """Everything that is wrong with a record, in one line."""
    problems = []
    for each in error.errors():
        place, words = ".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, ")
        problems.append(f"`{place}`: {words}" if place else words)
    return "; ".join(problems)
