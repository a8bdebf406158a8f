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


# All commands in one process: loading PyTorch takes longer than any of them.
CALLS = """
import json, sys
from unfit.cli import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["unfit", *words]
    try:
        main()
    except SystemExit as end:
        assert end.code in (0, 1, 3), (words, end.code)
"""


def call(extended: Path, *commands: tuple[object, ...]) -> str:
    environment = os.environ | {"PYTHONPATH": str(extended)}
    words = json.dumps([[str(word) for word in command] for command in commands])
    command = [sys.executable, "-c", CALLS, words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_thirty_lines() -> None:
    assert len(FILE.splitlines()) <= 32


def test_the_command_line_audits_and_preflight_know_it(extended: Path, face_run: Path, tmp_path: Path) -> None:
    words = ("--method", "directions", "--num-candidates", 40)
    printed = call(
        extended,
        ("attack", face_run, *words, "--out", tmp_path / "c.safetensors"),
        ("audit", face_run, *words, "--no-redact", "--out", tmp_path / "audit"),
        ("audit", "--from", tmp_path / "audit", "--out", tmp_path / "again"),
        ("preflight", face_run),
    )
    assert "40 candidates" in printed
    assert "directions" in printed.split("page:")[-1]  # of the preflight, which comes after the last page
    record = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert record["attack"]["settings"] == {"num_candidates": 40, "seed": 0}
    assert record["repeat"]["attack"] == {"method": "directions", "num_candidates": 40, "seed": 0}
    assert (tmp_path / "again" / "audit.json").exists()
