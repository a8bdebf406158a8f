"""A small part of benchmarks/zoo.py: verdicts on models that plain PyTorch code trained, their truth known."""

from __future__ import annotations

from pathlib import Path

import pytest

import zoo


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
def test_the_verdict_holds(name: str, verdict: str) -> None:
    entry = next(entry for entry in zoo.ZOO if entry.name == name)
    said, words = zoo.verdict(entry.ask(Path()))
    assert ("refused" if words.startswith("refused") else said) == verdict, words
    assert said != zoo.FORBIDDEN[entry.truth]
