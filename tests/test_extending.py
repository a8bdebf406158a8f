"""docs/extending.md is true: its first six changes, made in a copy of the package, work all together."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import unfit

PACKAGE = Path(unfit.__file__).parent
GUIDE = (Path(__file__).parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
CHANGES = re.findall(r"^`([\w/]+\.py)`:\n\n```(python|diff)\n(.*?)```", GUIDE, re.DOTALL | re.MULTILINE)
NEW = {path: text for path, kind, text in CHANGES if kind == "python"}
SEED, NUM, SIZE = 42, 20, 30


def changed(source: str, diff: str) -> str:
    """The source with each place of a diff changed."""
    for place in diff.split("@@\n"):
        lines = place.splitlines(keepends=True)
        old, new = ("".join(line[1:] for line in lines if line[0] != other) for other in "+-")
        assert source.count(old) == 1, f"docs/extending.md: not there, or not once:\n{old}"
        source = source.replace(old, new)
    return source


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with all changes of the guide in it."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(PACKAGE, folder / "unfit", ignore=shutil.ignore_patterns("__pycache__"))
    for name, kind, text in CHANGES:
        path = folder / "unfit" / name
        assert path.exists() == (kind == "diff"), name
        path.write_text(text if kind == "python" else changed(path.read_text("utf-8"), text), encoding="utf-8")
    return folder


def rows(seed: int) -> list[dict[str, object]]:
    x = np.random.default_rng(seed).normal(size=(NUM, SIZE)).round(3)
    return [{"x": each.tolist(), "y": "ab"[i % 2]} for i, each in enumerate(x)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as JSON, drawn with a seed of PCG64 and trained for a moment; its samples and unseen ones."""
    folder = tmp_path_factory.mktemp("files")
    for seed, name in enumerate(("private", "unseen")):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows(seed))), encoding="utf-8")
    model, random = nn.Sequential(nn.Linear(SIZE, 50), nn.ReLU(), nn.Linear(50, 1)), np.random.default_rng(SEED)
    for layer in (model[0], model[2]):
        bound = layer.in_features**-0.5
        drawn = random.uniform(-bound, bound, (layer.in_features, layer.out_features))
        layer.weight.data = torch.from_numpy(drawn.T.copy()).float()
        layer.bias.data.zero_()
    x, y = torch.tensor([row["x"] for row in rows(0)]), torch.arange(NUM) % 2
    for _ in range(200):
        loss = nn.functional.soft_margin_loss(model(x)[:, 0], 2.0 * y - 1)
        for parameter, slope in zip(
            model.parameters(), torch.autograd.grad(loss, model.parameters()), strict=True
        ):
            parameter.data -= 0.1 * slope
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    (folder / "model.lists").write_text(json.dumps(weights), encoding="utf-8")
    return folder


# All commands in one process: loading PyTorch takes longer than any of them.
CALLS = """
import json, sys
from unfit.cli import main

for code, words in json.loads(sys.argv[1]):
    sys.argv = ["unfit", *words]
    try:
        main()
    except SystemExit as end:
        assert end.code == code, (words, end.code)
"""


def call(extended: Path, *commands: tuple[int, list[object]]) -> str:
    """What the changed program prints; each command has the exit code that it must end with."""
    words = json.dumps([[code, list(map(str, command))] for code, command in commands])
    environment = os.environ | {"PYTHONPATH": str(extended), "COLUMNS": "200"}
    command = [sys.executable, "-c", CALLS, words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_each_of_the_six_is_a_page_at_most() -> None:
    assert len(NEW) == 5  # a similarity needs no file
    assert all(len(text.splitlines()) <= 32 for text in NEW.values())


def test_every_file_of_the_ten_changes_exists() -> None:
    table = re.findall(r"^\| \[.*", GUIDE, re.MULTILINE)
    named = re.findall(r"`([\w/]+(?:\.py|/))`", "".join(table))
    assert len(table) == 10
    assert [name for name in named if not (PACKAGE / name).exists()] == []


def test_all_six_work_together(extended: Path, files: Path, tmp_path: Path) -> None:
    model, attack = files / "model.lists", ["--method", "directions", "--num-candidates", 40]
    data = ["--data", f"jsonl:{files}/private.jsonl", "--unseen", f"jsonl:{files}/unseen.jsonl"]
    audit, again, csv = (tmp_path / name for name in ("audit", "again", "samples.csv"))
    printed = call(
        extended,
        (0, ["attack", model, *attack, "--out", tmp_path / "c.safetensors"]),
        (3, ["audit", model, *data, *attack, "--no-redact", "--csv", csv, "--out", audit]),
        (3, ["audit", "--from", audit, "--out", again]),
        (0, ["preflight", model]),
        (0, ["formats"]),
        (0, ["find-init", model, "--seeds", 100, "--out", tmp_path / "initial.safetensors"]),
        (64, ["split", "jsnl:x", "--out", tmp_path / "parts"]),
    )
    record = json.loads((audit / "audit.json").read_text())
    assert record["attack"]["settings"] == {"num_candidates": 40, "seed": 0}
    assert record["repeat"]["attack"] == {"method": "directions", "num_candidates": 40, "seed": 0}
    assert record["similarity"]["name"] == "cosine"
    assert "cosine of the angle" in (audit / "index.html").read_text()
    assert len(csv.read_text().splitlines()) == 1 + NUM
    assert (again / "audit.json").exists()
    for words in ("40 candidates", "directions", "lists of numbers by name", "jsonl:FILE"):
        assert words in printed
    assert f"seed {SEED} by NumPy's default_rng (PCG64)" in printed
