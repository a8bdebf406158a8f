"""What can be resumed is whole, belongs to this work alone and has one writer, also after `kill -9`."""

from __future__ import annotations

import json
import os
import platform
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from unfit.base.errors import UnfitError
from unfit.base.files import Strict
from unfit.base.reservation import OWNER, PARTIAL, is_owned
from unfit.base.store import Saved, Store, read_lines, read_saved, write_saved, write_whole

KEY = {"seed": 0, "settings": {"lr": 0.1}}
SAVED = Saved({"net.a": torch.arange(3.0), "net.b": torch.ones(2, 2), "old.a": torch.zeros(1)}, {"steps": 7})


class Line(Strict):
    number: int


def store(folder: Path, **key: Any) -> Store:
    return Store(folder / "store", "sweep", KEY | key, "plan.json", ("lines.jsonl",))


def filled(folder: Path) -> Store:
    made = store(folder)
    with made.owned():
        made.write("state.safetensors", lambda path: write_saved(path, SAVED))
        made.append("lines.jsonl", Line(number=1))
        made.write("trials/1.txt", lambda path: path.write_text("one") and None)
    return made


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    made = filled(tmp_path)
    found = made.read("state.safetensors")
    assert found is not None
    assert found.facts == read_saved(made.folder / "state.safetensors", with_tensors=False).facts == {"steps": 7}
    assert {name: value.tolist() for name, value in found.part("net").items()} == {
        "a": [0, 1, 2],
        "b": [[1, 1], [1, 1]],
    }
    assert made.read("other.safetensors") is None
    assert read_lines(made.folder / "lines.jsonl", Line) == [Line(number=1)]
    assert json.loads((made.folder / "plan.json").read_text()) == KEY


def test_it_is_for_its_user_alone_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = filled(tmp_path).folder
    finally:
        os.umask(before)
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    files = dict.fromkeys(("plan.json", "state.safetensors", "lines.jsonl", "1.txt"), 0o600)
    assert found == {"store": 0o700, "trials": 0o700} | files


def test_without_a_part_nothing_is_left(tmp_path: Path) -> None:
    with store(tmp_path).owned():
        store(tmp_path).open()
    assert not list(tmp_path.iterdir())


# One writer ----------------------------------------------------------------------------------------------------

OWN = """
import sys, time
from pathlib import Path
sys.path.insert(0, {here!r})
import test_store
with test_store.store(Path({place!r})).owned():
    print("owned", flush=True)
    time.sleep(60)
"""


def test_of_two_processes_the_second_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    code = OWN.format(here=str(Path(__file__).parent), place=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "owned\n"
        assert is_owned(tmp_path / "store")
        words = f"process {process.pid} on {platform.node()} is writing .*store too: wait until it ends"
        with pytest.raises(UnfitError, match=words), store(tmp_path).owned():
            pytest.fail("two at once")
        process.kill()
    assert (tmp_path / "store" / OWNER).exists()  # what the dead one has left
    assert not is_owned(tmp_path / "store")
    filled(tmp_path).open()


def test_a_folder_of_the_users_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o755)
    (tmp_path / "store" / "thesis.tex").write_text("mine")
    with pytest.raises(UnfitError, match="in the way"), store(tmp_path).owned():
        pytest.fail("taken")
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["thesis.tex"]
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o755


# One work ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ({"seed": 1}, r"seed \(0 there, 1 here\)"),
        ({"settings": {"lr": 0.2}}, r"settings\.lr \(0\.1 there, 0\.2 here\)"),
        ({"more": True}, r"more \(None there, True here\)"),
    ],
)
def test_other_work_is_refused_with_what_differs_and_can_be_dropped(
    tmp_path: Path, key: dict[str, Any], words: str
) -> None:
    filled(tmp_path)
    other = store(tmp_path, **key)
    with other.owned():
        with pytest.raises(UnfitError, match=f"holds another sweep, which differs in {words}$"):
            other.open()
        other.clear()
        other.open()
        assert other.read("state.safetensors") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a":' * 20_000 + b"1" + b"}" * 20_000])
def test_a_key_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    made = filled(tmp_path)
    (made.folder / "plan.json").write_bytes(content)
    with pytest.raises(UnfitError):
        made.open()


@pytest.mark.parametrize("name", ["plan.json", "lines.jsonl", "trials", ""])
def test_links_are_refused(tmp_path: Path, name: str) -> None:
    made = filled(tmp_path)
    (made.folder / name).rename(tmp_path / "mine")
    (made.folder / name).symlink_to(tmp_path / "mine")
    with pytest.raises(UnfitError, match="is a link"):
        made.open()
    made.clear()
    assert (tmp_path / "mine").exists()


# Cut short -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 8, 40, -1])
def test_a_file_cut_short_is_an_error(tmp_path: Path, kept: int) -> None:
    made = filled(tmp_path)
    path = made.folder / "state.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    for with_tensors in (True, False):
        with pytest.raises(UnfitError, match=r"state\.safetensors is damaged"):
            read_saved(path, with_tensors)


@pytest.mark.parametrize("kept", [0, 1, 5, -1])
def test_a_last_line_cut_short_is_removed(tmp_path: Path, kept: int) -> None:
    made, path = filled(tmp_path), tmp_path / "store" / "lines.jsonl"
    path.write_bytes(path.read_bytes() + b'{"number":2}\n'[:kept])
    assert read_lines(path, Line) == [Line(number=1)]
    made.open()
    made.append("lines.jsonl", Line(number=3))
    assert path.read_bytes() == b'{"number":1}\n{"number":3}\n'


def test_a_pipe_does_not_hold_anyone_up(tmp_path: Path) -> None:
    made = filled(tmp_path)
    for name in ("lines.jsonl", "state.safetensors"):
        (made.folder / name).unlink()
        os.mkfifo(made.folder / name)
    for read in (made.open, lambda: made.read("state.safetensors")):
        with pytest.raises(UnfitError, match="not a regular file"):
            read()


def test_a_full_disk_leaves_the_file_of_before(tmp_path: Path) -> None:
    made = filled(tmp_path)

    def full(path: Path) -> None:
        path.write_bytes(b"half")
        with open("/dev/full", "w") as file:
            file.write("x")

    with pytest.raises(OSError, match="No space left"):
        made.write("state.safetensors", full)
    assert read_saved(made.folder / "state.safetensors", with_tensors=False).facts == {"steps": 7}
    assert not list(made.folder.rglob(f"*{PARTIAL}"))


# Killed --------------------------------------------------------------------------------------------------------


def killed(change: Callable[[], object], before: int) -> int:
    """The exit code of a process that dies right before one of its changes of the disk."""
    child = os.fork()
    if not child:
        left = before

        def watch(event: str, _: object) -> None:
            nonlocal left
            if event in ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "tempfile.mkstemp"):
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1

        sys.addaudithook(watch)
        try:
            change()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def again(folder: Path) -> None:
    """One more state, and one more line."""
    made = store(folder)
    with made.owned():
        made.open()
        made.write("state.safetensors", lambda path: write_saved(path, Saved(SAVED.tensors, {"steps": 8})))
        made.append("lines.jsonl", Line(number=2))


def test_killed_before_any_change_of_the_disk_it_resumes(tmp_path: Path) -> None:
    """A state of before or the new one, whole lines, and no trace of the dead process after the next."""
    codes = []
    for change in range(60):
        folder = tmp_path / str(change)
        folder.mkdir()
        filled(folder)
        codes.append(killed(lambda folder=folder: again(folder), change))  # type: ignore[misc]
        made = store(folder)
        found = made.read("state.safetensors")
        assert found is not None
        assert found.facts["steps"] in (7, 8)
        with made.owned():
            made.open()
            numbers = [line.number for line in read_lines(made.folder / "lines.jsonl", Line)]
        assert numbers in ([1], [1, 2])
        names = {path.name for path in made.folder.rglob("*")}
        assert names == {"plan.json", "state.safetensors", "lines.jsonl", "trials", "1.txt"}
        if codes[-1] == 0:
            break
    assert codes[0] == -signal.SIGKILL
    assert codes[-1] == 0
    assert (found.facts["steps"], numbers) == (8, [1, 2])


def test_killed_while_it_is_made_or_dropped_it_can_be_made_again(tmp_path: Path) -> None:
    def dropped(folder: Path) -> None:
        with store(folder).owned():
            store(folder).clear()

    for step in (filled, dropped):
        for change in range(60):
            folder = tmp_path / f"{step.__name__}{change}"
            folder.mkdir()
            if step is dropped:
                filled(folder)
            code = killed(lambda step=step, folder=folder: step(folder), change)  # type: ignore[misc]
            again(folder)
            if code == 0:
                break
        assert code == 0
        assert change > 3


def test_a_file_is_on_the_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    flush, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append("flush"), flush(file))[1])
    monkeypatch.setattr(Path, "replace", lambda path, to: (calls.append("replace"), replace(path, to))[1])
    write_whole(tmp_path / "a", Path.touch)
    assert calls == ["flush", "replace", "flush"]
