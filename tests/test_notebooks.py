"""The notebooks run, and print what they keep."""

from __future__ import annotations

from pathlib import Path

import pytest

import notebooks
from test_docs import check_printed

FOUND = sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))


def test_there_are_three() -> None:
    assert len(FOUND) == 3


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_keeps(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept, printed = notebooks.kept(path), notebooks.printed(path)
    assert any(kept)
    for said, came in zip(kept, printed, strict=True):
        check_printed(said, came)
