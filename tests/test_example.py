"""docs/example.md runs as it stands, and says what comes out."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[1] / "docs" / "example.md"
NUMBER = re.compile(r"\d+(?:\.\d+)?")
PLURAL = re.compile(r"(?<=\w)s\b")  # 1 shows a trace, 2 show traces: how many depends on the machine's rounding


def blocks() -> list[tuple[str, str]]:
    """(language, content) of the code blocks, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", EXAMPLE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture(scope="module")
def outcome() -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The names that the example leaves, and what it says beside what came out."""
    names: dict[str, Any] = {}
    pairs, printed = [], ""
    for language, content in blocks():
        if language == "python":
            with redirect_stdout(StringIO()) as out:
                exec(compile(content, str(EXAMPLE), "exec"), names)
            printed = out.getvalue()
        else:
            pairs.append((content, printed))
    return names, pairs


def test_it_says_what_comes_out(outcome: tuple[dict[str, Any], list[tuple[str, str]]]) -> None:
    assert len(outcome[1]) == sum(language == "text" for language, _ in blocks()) > 1
    for said, printed in outcome[1]:
        words, came = (PLURAL.sub("", NUMBER.sub("#", text)) for text in (said, printed))
        assert words == came
        for a, b in zip(NUMBER.findall(said), NUMBER.findall(printed), strict=True):
            assert float(a) == pytest.approx(float(b), rel=0.25, abs=3 if "." not in a else 0.05)


def test_what_it_promises_holds(outcome: tuple[dict[str, Any], list[tuple[str, str]]]) -> None:
    audit, control = outcome[0]["audit"], outcome[0]["control"]
    assert audit.verdict == "leak"
    assert audit.record.num_recovered >= 15
    assert control.verdict == "pass"
    assert len(audit.recovered) == audit.record.num_recovered
    assert set(audit.recovered) <= set(range(40))
