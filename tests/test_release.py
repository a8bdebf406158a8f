"""What `make release` checks, and that what it builds would pass."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

import release
import unfit

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_what_is_built_is_ready(dist: Path) -> None:
    assert list(release.problems(dist)) == []
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith("/METADATA"))
        metadata = file.read(name).decode()
    assert f"Version: {unfit.__version__}\n" in metadata
    assert "Project-URL: " in metadata


def test_data_in_a_wheel_or_in_the_sources_is_refused(dist: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(dist, tmp_path / "dist")
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr("unfit/digits.npz", b"")
        file.writestr("tests/test_a.py", b"")
    with tarfile.open(source, "w:gz") as tar:
        tar.add(ROOT / "tests" / "conftest.py", "unfit/tests/conftest.py")
    assert list(release.problems(folder)) == [
        f"{wheel.name} holds tests/test_a.py",
        f"{wheel.name} holds unfit/digits.npz",
        f"{source.name} holds unfit/tests/conftest.py",
    ]
    wheel.unlink()
    assert f"{folder} has [] for one wheel of {unfit.__version__}" in list(release.problems(folder))


def test_another_version_in_any_file_is_refused(dist: Path, tmp_path: Path) -> None:
    for name in release.NAMED:
        shutil.copy(ROOT / name, tmp_path)
    assert list(release.problems(dist, tmp_path)) == []
    for name in release.NAMED:
        text = (ROOT / name).read_text("utf-8")
        (tmp_path / name).write_text(text.replace(unfit.__version__, "0.0.9"), encoding="utf-8")
        assert list(release.problems(dist, tmp_path)) == [f"{name} names version 0.0.9, not {unfit.__version__}"]
        (tmp_path / name).write_text(text, encoding="utf-8")


def test_the_readme_cites_what_the_citation_file_says() -> None:
    cited = read_yaml(ROOT / "CITATION.cff")
    entry = (ROOT / "README.md").read_text("utf-8").split("```bibtex")[1].split("```")[0]
    authors = " and ".join(f"{{{author['name']}}}" for author in cited["authors"])
    for line in (
        f"author = {{{authors}}},",
        f"title = {{{cited['title']}}},",
        f"version = {{{cited['version']}}}",
    ):
        assert f"  {line}\n" in entry


def test_the_workflow_and_the_hooks_run_what_is_there() -> None:
    workflow = read_yaml(ROOT / ".github" / "workflows" / "ci.yml")
    schema_of("github-workflows").validate(workflow)
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    wanted = {word for run in runs if run.startswith("make ") for word in run.split()[1:-1]}
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert wanted == {"lint", "test", "docs", "checked", "installed"}
    assert all(f"\n{name}: " in makefile for name in wanted)
    for repo in read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]:
        for hook in repo["hooks"]:
            assert hook["entry"].startswith(".venv/bin/")


def read_yaml(path: Path) -> Any:
    content = YAML(typ="safe").load(path)
    return {("on" if key is True else key): value for key, value in content.items()}


def schema_of(name: str) -> Any:
    spec = find_spec("check_jsonschema")
    assert spec is not None
    assert spec.origin
    file = Path(spec.origin).parent / "builtin_schemas" / "vendor" / f"{name}.json"
    schema = json.loads(file.read_text("utf-8"))
    return jsonschema.validators.validator_for(schema)(schema)
