"""docs/extending.md is true: one file and one name, and the whole program knows the new attack."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import unfit

PACKAGE = Path(unfit.__file__).parent
GUIDE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
FILE, LINE = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the attack of the guide in it."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(PACKAGE, folder / "unfit", ignore=shutil.ignore_patterns("__pycache__"))
    attacks = folder / "unfit" / "attacker" / "attacks"
    (attacks / "directions.py").write_text(FILE, encoding="utf-8")
    source = (attacks / "__init__.py").read_text(encoding="utf-8")
    (line,) = re.findall(r"^Attack = .*$", source, re.MULTILINE)
    importing = "from unfit.attacker.attacks.directions import Directions\n"
    first = source.index("from unfit.attacker")
    changed = source[:first] + importing + source[first:].replace(line, LINE.strip())
    (attacks / "__init__.py").write_text(changed, encoding="utf-8")
    return folder


def call(extended: Path, *words: object) -> str:
    environment = os.environ | {"PYTHONPATH": str(extended)}
    command = [sys.executable, "-m", "unfit", *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 3), done.stderr
    return done.stdout


def test_it_is_thirty_lines() -> None:
    assert len(FILE.splitlines()) <= 32


def test_the_command_line_audits_and_preflight_know_it(extended: Path, face_run: Path, tmp_path: Path) -> None:
    words = ("--method", "directions", "--num-candidates", 40)
    printed = call(extended, "attack", face_run, *words, "--out", tmp_path / "c.safetensors")
    assert "40 candidates" in printed
    call(extended, "audit", face_run, *words, "--no-redact", "--out", tmp_path / "audit")
    record = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert record["attack"]["settings"] == {"num_candidates": 40, "seed": 0}
    assert record["repeat"]["attack"] == {"method": "directions", "num_candidates": 40, "seed": 0}
    call(extended, "audit", "--from", tmp_path / "audit", "--out", tmp_path / "again")
    assert "directions" in call(extended, "preflight", face_run)
