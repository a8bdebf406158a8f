"""A small part of benchmarks/zoo.py: verdicts on models that plain PyTorch code trained, their truth known."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("faces weight decay", "leak"),
        ("faces ten unseen", "leak"),
        ("faces strangers", "pass"),
        ("faces transposed", "refused"),
        ("faces against noise", "inconclusive"),
        ("untrained", "refused"),
        ("tabular base known", "leak"),
        ("tabular more samples than inputs", "inconclusive"),
    ],
)
def test_the_verdict_holds(name: str, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    import zoo

    entry = next(entry for entry in zoo.ZOO if entry.name == name)
    said, words = zoo.verdict(entry.ask(Path()))
    assert ("refused" if words.startswith("refused") else said) == verdict, words
    assert said != zoo.FORBIDDEN[entry.truth]
