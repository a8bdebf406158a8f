"""CC may hold a compiler with options, as makefiles have it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from unfit.attacker.initial.search import compiled

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    compiled.cache_clear()
    yield
    compiled.cache_clear()


@needs_compiler
@pytest.mark.parametrize("words", ["cc -m64", "cc -DNAME='a b'", "  cc  "])
def test_a_compiler_with_options_is_used(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setenv("CC", words)
    assert compiled() is not None


@pytest.mark.parametrize("words", ["no-such-compiler -m64", "cc 'unclosed", "", "   "])
def test_without_one_the_search_is_in_numpy(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setenv("CC", words)
    assert compiled() is None
