"""However a command ends, it says so in one line, and no crash looks like a verdict."""

from __future__ import annotations

import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM

import numpy as np
import pytest
from PIL import Image

from unfit import Audit, Candidates
from unfit.attacker import stage_cache
from unfit.base import formats
from unfit.base.errors import clean

Run = Callable[..., tuple[int, str, str]]
FIT = ("fit", "--data", "circle", "--n", 20, "--arch", "20", "--method", "gd", "--epochs", 2)


def one_line(error: str) -> str:
    error = re.sub(r"unfit: \d+%, .* left; .*\n", "", error)  # how far it is, which is told where it takes long
    assert error.startswith("unfit: "), error
    assert error.count("\n") == 1, error
    assert "Traceback" not in error
    return error


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """No file may grow beyond so many bytes: what a full disk does to a process, without one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# What was not foreseen ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [MemoryError(), RecursionError("too\ndeep"), KeyError("x"), AssertionError()])
def test_what_nobody_foresaw_is_one_line_and_never_a_leak(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(formats, "format_table", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, _, words = run("formats")
    assert code == 2
    assert type(error).__name__ in one_line(words)
    (details,) = tmp_path.iterdir()
    assert str(details) in words
    assert stat.S_IMODE(details.stat().st_mode) == 0o600
    assert "in fail" in details.read_text()


def test_debug_shows_the_traceback_itself(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(formats, "format_table", lambda: 1 / 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("UNFIT_DEBUG", "1")
    code, _, words = run("formats")
    assert code == 2
    assert "Traceback" in words
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_written_the_line_is_there_all_the_same(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(formats, "format_table", lambda: 1 / 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    code, _, words = run("formats")
    assert code == 2
    assert "UNFIT_DEBUG=1" in one_line(words)


def test_a_reader_that_goes_away_and_a_full_disk_behind_standard_output_are_told() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "unfit", "formats"]
    with open("/dev/full", "w") as full:
        ends = {"Broken pipe": write, "No space left": full.fileno()}
        started = {
            words: subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True)
            for words, out in ends.items()
        }
    os.close(write)
    for words, process in started.items():
        error = process.communicate()[1]
        assert process.returncode == 2
        assert words in one_line(error)


# Full disks, and folders that vanish -------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 100])
def test_a_full_disk_ends_a_fit_in_one_line(run: Run, tmp_path: Path, room: int) -> None:
    with full_disk(room):
        code, _, words = run(*FIT, "--out", tmp_path / "run")
    assert code == 2
    assert "cannot write" in one_line(words)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_ends_an_audit_in_one_line_and_keeps_it_elsewhere(
    run: Run, face_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    words = ("audit", face_run, "--method", "weights", "--out", tmp_path / "audit")
    saved = Audit.save

    def save(audit: Audit, folder: Path) -> None:  # the disk of --out is full, that of the temp folder is not
        with full_disk(2**30 if tmp_path / "temp" in folder.parents else 1000):
            saved(audit, folder)

    monkeypatch.setattr(Audit, "save", save)
    code, _, error = run(*words)
    assert code == 2
    (kept,) = (tmp_path / "temp").iterdir()
    assert f"kept in {kept}" in one_line(error)
    assert {path.name for path in kept.iterdir()} >= {"audit.json", "index.html"}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert {path.name for path in tmp_path.iterdir()} == {"temp"}


def test_a_disk_that_fills_up_during_the_attack_does_not_end_an_audit(
    run: Run, face_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = stage_cache.save_candidates

    def save(found: Candidates, path: Path) -> None:  # there is no room for what would only be kept
        with full_disk(1000):
            saved(found, path)

    monkeypatch.setattr(stage_cache, "save_candidates", save)
    code, _, error = run("audit", face_run, "--method", "weights", "--out", tmp_path / "audit")
    assert (code, error) == (3, "")  # the weights as images are a baseline, which decides nothing
    assert [path.name for path in tmp_path.iterdir()] == ["audit"]


def test_an_audit_that_fails_at_once_leaves_nothing(run: Run, face_run: Path, tmp_path: Path) -> None:
    assert run("audit", face_run, "--candidates", tmp_path / "none", "--out", tmp_path / "audit")[0] == 2
    assert not list(tmp_path.iterdir())


def test_an_audit_whose_junit_file_cannot_be_written_says_where_it_is(
    run: Run, face_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    words = ("--method", "weights", "--out", tmp_path / "audit", "--junit", tmp_path / "file" / "x.xml")
    code, _, error = run("audit", face_run, *words)
    assert code == 2
    assert f"{tmp_path / 'audit'}" in one_line(error).split("is kept in")[1]
    assert (tmp_path / "audit" / "index.html").is_file()


def test_a_parent_that_vanishes_is_told(run: Run, tmp_path: Path) -> None:
    parent = tmp_path / "parent"

    def remove() -> None:
        while not (parent.is_dir() and any(parent.iterdir())):
            time.sleep(0.001)
        while parent.exists():  # it is written to meanwhile
            shutil.rmtree(parent, ignore_errors=True)

    thread = threading.Thread(target=remove)
    thread.start()
    code, _, words = run(*FIT[:-1], 3000, "--out", parent / "run")
    thread.join()
    assert code == 2
    assert "cannot write" in one_line(words)


# Names -------------------------------------------------------------------------------------------------------


def test_names_that_mean_something_elsewhere_are_ordinary(run: Run, tmp_path: Path) -> None:
    for name in ("a?b", "a%20b", "a#b", "a*b", "-", "é", "a b"):
        code, _, error = run(*FIT, "--out", tmp_path / name)
        assert (code, error) == (0, "")
        code, _, error = run("attack", tmp_path / name, "--method", "weights", "--out", tmp_path / f"{name}.x")
        assert (code, error) == (0, "")
    sweep = ("sweep", tmp_path / "a?b", "--solver", "fast", "--trials", 1, "--workers", 1)
    assert run(*sweep, "--out", tmp_path / "s?%20")[0] == 0
    (tmp_path / "s?%20" / ".DS_Store").write_text("mine")
    (tmp_path / "s?%20" / "trials" / ".DS_Store").write_text("mine")
    code, _, error = run(*sweep[:5], 2, *sweep[6:], "--out", tmp_path / "s?%20")
    assert (code, error) == (0, "")
    assert (tmp_path / "s?%20" / "trials" / ".DS_Store").read_text() == "mine"


def test_the_folder_one_is_in_can_be_replaced(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(*FIT, "--out", tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    code, _, error = run(*FIT, "--out", ".", "--force")
    assert (code, error) == (0, "")
    assert os.path.samefile(".", tmp_path / "here")
    assert (tmp_path / "here" / "fit.json").is_file()


@pytest.mark.parametrize("out", ["/", "..", "x/.."])
def test_an_output_needs_a_name(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = run(*FIT, "--out", out, "--force")
    assert code == 2
    assert "choose another --out" in one_line(error)
    assert not list(tmp_path.iterdir())


def test_a_class_whose_name_is_not_utf8_is_read(run: Run, tmp_path: Path) -> None:
    for label, name in enumerate((b"caf\xe9", b"tea\x1b[31m\n")):
        folder = Path(os.fsdecode(bytes(tmp_path / "images") + b"/" + name))
        folder.mkdir(parents=True)
        for i in range(4):
            pixels = np.random.default_rng([label, i]).integers(0, 255, (12, 12), np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.png")
    words, data = (*FIT[5:], "--n", 4, "--out", tmp_path / "run"), ("--data", f"images:{tmp_path / 'images'}")
    assert run("fit", *data, *words)[0] == 0
    words = ("--method", "weights", "--num-unseen", 4, "--no-redact", "--out", tmp_path / "audit")
    code, printed, error = run("audit", tmp_path / "run", *data, *words, "--junit", tmp_path / "j.xml")
    assert code == 3, error  # no baseline supports a pass
    assert (
        "\x1b" not in printed + (tmp_path / "j.xml").read_text() + (tmp_path / "audit" / "index.html").read_text()
    )


def test_clean_names_are_one_line_that_any_terminal_and_file_takes() -> None:
    assert clean("Zoë 日本") == "Zoë 日本"
    dirty = "a\x1b[31m\n\x00\udce9‮\u2028\x9b"
    assert clean(dirty) == r"a\x1b[31m\n\x00\udce9\u202e\u2028\x9b"
    assert clean(clean(dirty)) == clean(dirty)


def test_errors_reach_the_terminal_clean(run: Run, tmp_path: Path) -> None:
    code, _, error = run("preflight", tmp_path / "a\x1b[31m\x07b")
    assert code == 2
    assert "\x1b" not in error
    assert r"a\x1b[31m\x07b" in one_line(error)


# Signals -----------------------------------------------------------------------------------------------------


PATIENCE = 300  # seconds until a test gives up, however busy the machine is


STUCK = """
import numpy as np
from pathlib import Path
from signal import SIGINT, SIGTERM
from unfit.base.ends import ending
from unfit.base.files import new_folder
large = np.ones((6000, 6000))
with ending(), new_folder(Path({out!r}), False, ("x",)) as folder:
    (folder / "x").write_text("private")
    print(flush=True)
    while True:
        np.linalg.svd(large)  # half a minute in which Python itself hears no signal
        print("computed", flush=True)
"""


Begin = Callable[[list[str], Callable[[], bool]], "subprocess.Popen[str]"]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Start a command in a group of its own, and wait until it is ready. No process of it outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def begun(command: list[str], ready: Callable[[], bool]) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, **pipes, start_new_session=True)
        started.append(process)
        deadline = time.monotonic() + PATIENCE
        while not ready():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return process

    yield begun
    for process in started:
        with suppress(ProcessLookupError):  # the group is gone with its last process
            os.killpg(process.pid, SIGKILL)
        process.communicate()


def ended(process: subprocess.Popen[str], signal: int) -> tuple[str, str]:
    """Signal the whole group, as a terminal does: what it printed, and its last words."""
    os.killpg(process.pid, signal)
    printed, words = process.communicate(timeout=PATIENCE)
    return printed, one_line(words)


@pytest.mark.parametrize(("sent", "word", "code"), [(SIGINT, "interrupted", 130), (SIGTERM, "terminated", 143)])
def test_a_signal_ends_even_long_computations_before_they_are_done(
    begin: Begin, tmp_path: Path, sent: int, word: str, code: int
) -> None:
    out = tmp_path / "out"
    process = begin([sys.executable, "-c", STUCK.format(out=str(out))], (tmp_path / ".out-unfit/new/out/x").exists)
    time.sleep(0.5)
    printed, words = ended(process, sent)
    assert process.returncode == code
    assert words.startswith(f"unfit: {word}; ")
    assert "computed" not in printed
    assert not list(tmp_path.iterdir())


def test_an_interrupt_inside_exec_has_the_same_exit_code(tmp_path: Path) -> None:
    """As when dataclasses are being imported: `python -m` would die of the signal itself, after all was said."""
    inside = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    (tmp_path / "it.py").write_text(f"from unfit.base.ends import ending\nwith ending():\n    exec({inside!r})\n")
    ended = subprocess.run([sys.executable, "-m", "it"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert one_line(ended.stderr).startswith("unfit: interrupted; ")
    assert ended.returncode == 130


def test_an_interrupted_sweep_says_what_is_kept_and_its_workers_are_silent(
    run: Run, begin: Begin, tmp_path: Path
) -> None:
    run(*FIT, "--out", tmp_path / "run")
    command = [sys.executable, "-m", "unfit", "sweep", str(tmp_path / "run"), "--trials", "100", "--workers", "2"]
    process = begin([*command, "--out", str(tmp_path / "s")], (tmp_path / "s" / "begun.jsonl").exists)
    _, words = ended(process, SIGINT)  # while the workers load PyTorch
    assert process.returncode == 130
    assert re.fullmatch(r"unfit: interrupted; \d+ of 100 trials are done and kept, run the same .*\n", words)


def test_a_command_can_be_interrupted_while_it_loads(begin: Begin) -> None:
    process = begin([sys.executable, "-m", "unfit", "formats"], lambda: True)
    time.sleep(0.5)
    ended(process, SIGTERM)
    assert process.returncode == 143
