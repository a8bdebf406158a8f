"""Errors that are shown to the user."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_LISTED = 5  # names in one message; the rest are counted


class UnfitError(Exception):
    """The input cannot be used. The message says what is wrong, where, and what to do."""

    exit_code = 2


class UsageError(UnfitError):
    """The request itself is wrong, such as an unknown name or an impossible number."""

    exit_code = 64


class NotApplicableError(UnfitError):
    """The attack does not cover this model. The model may be fine; the attack says nothing about it."""

    exit_code = 3  # inconclusive: what could not be checked must not pass


class NoAttackError(NotApplicableError):
    """No attack applies to this kind of model at all. A scan says what stands in it: that is `scan`."""

    def __init__(self, message: str, scan: object = None) -> None:
        super().__init__(message)
        self.scan = scan


class DataCheckError(UnfitError):
    """The samples are not what the model was trained on, or come in another form: an audit would say nothing."""

    exit_code = 3  # inconclusive: the model must not pass


def unknown(what: str, given: str, valid: Iterable[str]) -> UsageError:
    """An unknown name; the message lists the valid ones."""
    return UsageError(f"unknown {what} {given!r}; choose one of: {', '.join(valid)}")


def needs(package: str, extra: str, what: str = "this") -> UnfitError:
    """A package of an optional extra is missing; the message says how to install it."""
    return UnfitError(f"{what} needs {package}, which is not installed: pip install 'unfit[{extra}]'")


def listed(names: Sequence[object]) -> str:
    """The first few names, then how many more there are."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(map(str, names[:MAX_LISTED])) + more


def clean(text: str) -> str:
    """Text of unknown origin as one printable line: control characters and halves of surrogates are escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def clean_lines(text: str) -> str:
    """The same where lines are meant."""
    return "\n".join(map(clean, text.split("\n")))


def explained(error: ValidationError) -> str:
    """Everything that is wrong with a record, in one line."""
    problems = []
    for each in error.errors():
        place, words = ".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, ")
        problems.append(f"`{place}`: {words}" if place else words)
    return "; ".join(problems)
