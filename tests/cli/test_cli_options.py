"""The command line before it computes: help without PyTorch, threads and device, names that are not understood."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import typer

from unfit import AuditRequest, Policy, UnfitError, read_source
from unfit.attacker.attacks import ATTACKS
from unfit.attacker.names import METHODS, Solver
from unfit.auditor.data_reading import DataReading
from unfit.base import threads as module
from unfit.base.device import device
from unfit.base.errors import UsageError
from unfit.base.threads import at_most, num_workers, threads
from unfit.cli.app import App, app
from unfit.cli.machine import computes

Run = Callable[..., tuple[int, str, str]]
COMPUTING = {  # with what they need to be understood
    "attack": ("model.pt", "--out", "found.safetensors"),
    "audit": ("model.pt", "--out", "audit"),
    "demo": (),
    "fit": ("--data", "faces", "--n", 4, "--out", "run"),
    "preflight": ("model.pt",),
    "reproduce": ("--list",),
    "find-init": ("model.pt", "--out", "initial.safetensors"),
    "sweep": ("model.pt", "--out", "sweep"),
}
HELP = """
import sys, typer
from contextlib import suppress
from unfit.cli import app, main
from unfit.base.overview import COMMANDS
names = [name for group in COMMANDS.values() for name in group]
for flag in ("-h", "--help"):
    for name in names:
        sys.argv = ["unfit", name, flag]
        with suppress(SystemExit):
            main()
    sys.argv = ["unfit", flag]
    with suppress(SystemExit):
        main()
sys.argv = ["unfit", "--version"]
with suppress(SystemExit):
    main()
slow = {"torch", "numpy", "scipy", "PIL", "jinja2", "matplotlib"} & sys.modules.keys()
assert not slow, slow
"""


def test_the_help_of_every_command_loads_nothing_that_is_slow() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=False)
    assert not done.stderr
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name in commands:
        assert done.stdout.count(f"Usage: unfit {name} ") == 2, name
    assert done.stdout.count("-h, --help") == 2 * len(commands) + 2


def test_a_command_and_its_help_have_one_declaration_of_names() -> None:
    assert tuple(dict.fromkeys(kind.model_fields["method"].default for kind in ATTACKS)) == METHODS
    solvers = [kind.model_fields["solver"].default for kind in ATTACKS if "solver" in kind.model_fields]
    assert solvers == list(get_args(Solver))


def test_options_of_an_audit_are_declared_once() -> None:
    """Each field of its data and policy is an option, with its words, its limit and its default."""
    command = typer.main.get_command(app).commands["audit"]  # type: ignore[attr-defined]
    options = {each.name: each for each in command.params}
    for settings in (DataReading, Policy):
        for name, field in settings.model_fields.items():
            words = re.sub(r"`(data|unseen)`", r"--\1", str(field.description))
            assert (options[name].opts, options[name].help) == ([f"--{name.replace('_', '-')}"], words)
            assert f"{name}: {field.description}" in str(settings.__doc__)
    schema = AuditRequest.model_json_schema()
    assert schema["properties"]["scale"]["description"] == DataReading.model_fields["scale"].description
    assert (options["max_leaked"].default, options["accept"].default, options["fpr"].default) == (0, None, 0.01)


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--max-leaked", "-1", "'--max-leaked': Input should be greater than or equal to 0"),
        ("--window", "5", "--window: unknown SSIM window 5; choose one of: 3, 7, 11"),
        ("--min-budget", "10x", "--min-budget: '10x' is not a time such as 60s, 10m or 1h"),
        ("--accept", "no-code", "--accept: Input should be 'holds-samples',"),
        ("--num-unseen", "0", "--num-unseen: Input should be greater than 0"),
        ("--std", "0.5,0", "--std: expected numbers above 0, found 0"),
        ("--input-shape", "3xq", "--input-shape: '3xq' is not a size such as 32 or 32x32"),
    ],
)
def test_what_settings_refuse_is_told_by_its_flag(run: Run, flag: str, value: str, says: str) -> None:
    code, _, error = run("audit", "model.pt", "--out", "audit", flag, value)
    assert (code, says in error) == (64, True), error


def test_what_computes_and_nothing_else_takes_threads_and_a_device() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for option in ("threads", "device"):
        having = {name for name, each in commands.items() if option in {p.name for p in each.params}}
        assert having == set(COMPUTING)


@pytest.mark.parametrize("name", COMPUTING)
def test_an_unknown_device_and_a_wrong_number_of_threads_are_refused_first(
    run: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for flag, value, says in (
        ("--device", "abacus", "--device is 'abacus'; choose one of cpu, cuda, or one GPU"),
        ("--threads", "0", "'--threads': Input should be greater than or equal to 1"),
        ("--threads", "two", "Invalid value for '--threads'"),
    ):
        code, _, error = run(name, *COMPUTING[name], flag, value)
        assert (code, says in error) == (64, True), error
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_cores", lambda: 8)
    monkeypatch.setattr(module, "_quota", lambda: None)
    monkeypatch.setattr(module.torch, "get_num_threads", lambda: 8)
    monkeypatch.setenv(module.VARIABLE, "4")


@pytest.mark.parametrize(
    ("given", "num"), [((), 4), (("--threads", "2"), 2), (("--threads", "6"), 6), (("--threads", "99"), 8)]
)
@pytest.mark.usefixtures("eight_cores")
def test_a_command_runs_within_what_it_was_told(given: tuple[str, ...], num: int) -> None:
    small, seen = App(), list[tuple[int, str]]()

    @small.command()
    @computes
    def show(name: str = "x") -> int:
        with threads():
            seen.append((num_workers(), str(device())))
        return 0

    typer.main.get_command(small).main([*given, "--device", "cpu"], standalone_mode=False)
    assert seen == [(num, "cpu")]
    assert num_workers() == 4  # as before


@pytest.mark.usefixtures("eight_cores")
def test_a_bound_in_python() -> None:
    with at_most(3):
        assert num_workers() == 3
        with at_most(None), threads():
            assert num_workers() == 3
    with pytest.raises(UsageError, match="`threads` must be at least 1, not 0"), at_most(0):
        pass


def test_the_flag_wins_over_the_environment(
    run: Run, face_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(module.VARIABLE, "many")
    words = ("attack", face_run, "--method", "weights", "--out", tmp_path / "found.safetensors")
    code, _, error = run(*words)
    assert (code, "UNFIT_THREADS is 'many'" in error) == (64, True)
    assert run(*words, "--threads", 1, "--device", "cpu")[0] == 0


def test_a_repeated_audit_may_use_other_threads(run: Run, face_page: Path, tmp_path: Path) -> None:
    words = ("audit", "--from", face_page, "--out", tmp_path / "again", "--threads", 1, "--device", "cpu")
    assert run(*words)[0] == 1
    code, _, error = run(*words[:-4], "--seed", 1)
    assert (code, "leave out --seed" in error) == (64, True)


@pytest.mark.parametrize("data", [(), ("--data", "npz:none.npz"), ("--data", "none.npz")])
def test_a_missing_model_is_reported_before_missing_data(run: Run, tmp_path: Path, data: tuple[str, ...]) -> None:
    code, _, error = run("audit", tmp_path / "model.pt", *data, "--out", tmp_path / "audit")
    assert (code, "model.pt: no such checkpoint" in error) == (2, True), error


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("train.npz", "npz:train.npz"),
        ("data/rows.CSV", "csv:data/rows.CSV"),
        ("rows.csv:label", "csv:rows.csv:label"),
        ("/x.npy", "npy:/x.npy"),
        ("rows.parquet", "parquet:rows.parquet"),
    ],
)
def test_a_bare_path_is_answered_with_its_source(run: Run, tmp_path: Path, name: str, offered: str) -> None:
    with pytest.raises(UsageError, match=f"write {offered}$"):
        read_source(name)
    code, _, error = run("fit", "--data", name, "--n", 4, "--out", tmp_path / "run")
    assert (code, f"write {offered}" in error) == (64, True)


def test_a_bare_path_of_an_audit_is_answered_too(run: Run, face_run: Path, tmp_path: Path) -> None:
    for given in (("--data", "rows.csv:label"), ("--unseen", "rows.csv:label")):
        code, _, error = run("audit", face_run, *given, "--out", tmp_path / "audit")
        assert (code, "write csv:rows.csv:label" in error) == (64, True), error


def test_a_path_of_an_unknown_kind_lists_all_sources() -> None:
    with pytest.raises(UnfitError, match=r"unknown data source 'train.xyz'; choose one of: faces, .*npz:FILE"):
        read_source("train.xyz")
