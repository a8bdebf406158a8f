"""Outputs are whole or not there, nothing is replaced unasked, and killing the process changes none of it."""

from __future__ import annotations

import errno
import os
import platform
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from unfit.base.errors import UnfitError
from unfit.base.files import SAFETENSORS, kept, new_file, new_folder, read_json, write_json
from unfit.base.reservation import parts_of

HOLDS = ("a.json", "b.json")
Tree = dict[str, str | None]


def tree(folder: Path) -> Tree:
    """Everything under a folder, hidden or not: the text of each file, None for a folder."""
    found = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_text() for path in found}


def fill(folder: Path, text: str) -> None:
    for name in HOLDS:
        (folder / name).write_text(text)


@contextmanager
def folder_filled(path: Path, force: bool = False) -> Iterator[None]:
    with new_folder(path, force, HOLDS) as partial:
        fill(partial, "new")
        yield


@contextmanager
def file_written(path: Path, force: bool = False) -> Iterator[None]:
    with new_file(path, force) as partial:
        partial.write_text("new")
        yield


Writing = Callable[..., AbstractContextManager[None]]
both = pytest.mark.parametrize("writing", [folder_filled, file_written])
NEW = {folder_filled: {"out": None, "out/a.json": "new", "out/b.json": "new"}, file_written: {"out": "new"}}


def old(writing: Writing, path: Path) -> None:
    if writing is file_written:
        path.write_text("old")
    else:
        path.mkdir()
        fill(path, "old")


# In the end ------------------------------------------------------------------------------------------------


@both
def test_an_output_appears_when_it_is_whole(tmp_path, writing):
    with writing(tmp_path / "out"):
        assert not (tmp_path / "out").exists()
    assert tree(tmp_path) == NEW[writing]


@both
def test_folders_above_are_made(tmp_path, writing):
    with writing(tmp_path / "x" / "y" / "out"):
        pass
    assert tree(tmp_path / "x" / "y") == NEW[writing]


@both
def test_relative_paths_are_relative_to_where_the_work_began(tmp_path, writing, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with writing(Path("out")):
        (tmp_path / "elsewhere").mkdir()
        os.chdir(tmp_path / "elsewhere")
    assert tree(tmp_path) == {"elsewhere": None, **NEW[writing]}


@both
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_an_output_is_for_the_eyes_of_its_user_alone(tmp_path, writing, umask):
    before = os.umask(umask)
    try:
        with writing(tmp_path / "out"):
            pass
    finally:
        os.umask(before)
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == ({True: 0o700, False: 0o600} if writing is folder_filled else {False: 0o600})


@both
def test_a_failure_leaves_nothing(tmp_path, writing):
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as caught, writing(tmp_path / "out"):
        raise error
    assert caught.value is error
    assert tree(tmp_path) == {}


@both
def test_a_failure_leaves_the_old_output(tmp_path, writing):
    old(writing, tmp_path / "out")
    before = tree(tmp_path)
    with pytest.raises(RuntimeError), writing(tmp_path / "out", True):
        raise RuntimeError
    assert tree(tmp_path) == before


@both
def test_a_full_disk_is_told(tmp_path, writing):
    match = r"cannot write .*out: No space left on device"
    with pytest.raises(UnfitError, match=match), writing(tmp_path / "out"), open("/dev/full", "w") as full:
        full.write("x")
    assert tree(tmp_path) == {}


# What is there already -------------------------------------------------------------------------------------


@both
def test_an_existing_output_is_refused_before_any_work(tmp_path, writing):
    old(writing, tmp_path / "out")
    before, match = tree(tmp_path), "out exists already: choose another `out`, or replace it with `force`"
    with pytest.raises(UnfitError, match=match), writing(tmp_path / "out"):
        pytest.fail("work has begun")
    assert tree(tmp_path) == before


@both
def test_force_replaces_it(tmp_path, writing):
    old(writing, tmp_path / "out")
    with writing(tmp_path / "out", True):
        assert "old" in tree(tmp_path).values()
    assert tree(tmp_path) == NEW[writing]


@pytest.mark.parametrize("foreign", [".ssh/key", "a.json.bak"])
def test_force_does_not_replace_a_folder_with_anything_else_in_it(tmp_path, foreign):
    old(folder_filled, tmp_path / "out")
    path = tmp_path / "out" / foreign
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    before, name = tree(tmp_path), foreign.split("/")[0]
    match = f"out contains '{name}', which is not part of this output: choose another `out`"
    with pytest.raises(UnfitError, match=match), folder_filled(tmp_path / "out", True):
        pytest.fail("work has begun")
    assert tree(tmp_path) == before


def test_force_replaces_an_empty_folder_and_half_of_an_output(tmp_path):
    (tmp_path / "out").mkdir()
    with folder_filled(tmp_path / "out", True):
        pass
    (tmp_path / "out" / HOLDS[1]).unlink()
    with folder_filled(tmp_path / "out", True):
        pass
    assert tree(tmp_path) == NEW[folder_filled]


def test_force_does_not_replace_a_folder_that_only_has_such_a_name_in_it(tmp_path):
    """Somebody's own `index.html` is not an audit: the file that it is known by is missing."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / HOLDS[1]).write_text("mine")
    with pytest.raises(UnfitError, match=f"has no '{HOLDS[0]}'"), folder_filled(tmp_path / "out", True):
        pytest.fail("work has begun")
    assert (tmp_path / "out" / HOLDS[1]).read_text() == "mine"


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_force_replaces_kinds_not_only_names(tmp_path, kind):
    old(folder_filled, tmp_path / "out")
    path = tmp_path / "out" / HOLDS[1]
    path.unlink()
    (tmp_path / "mine").write_text("mine")
    if kind == "folder":
        path.mkdir()
        (path / "main.py").write_text("mine")
    elif kind == "link":
        path.symlink_to(tmp_path / "mine")
    else:
        os.mkfifo(path)
    with pytest.raises(UnfitError, match=f"contains '{HOLDS[1]}'"), folder_filled(tmp_path / "out", True):
        pytest.fail("work has begun")
    assert os.path.lexists(path)


def test_force_looks_into_folders_of_an_output(tmp_path):
    holds = {"run": HOLDS}
    with new_folder(tmp_path / "out", False, holds) as partial:
        (partial / "run").mkdir()
        fill(partial / "run", "old")
    with new_folder(tmp_path / "out", True, holds) as partial:
        (partial / "run").mkdir()
        fill(partial / "run", "new")
    (tmp_path / "out" / "run" / "main.py").write_text("mine")
    with pytest.raises(UnfitError, match=r"contains 'run/main\.py'"), new_folder(tmp_path / "out", True, holds):
        pytest.fail("work has begun")
    assert (tmp_path / "out" / "run" / "main.py").read_text() == "mine"


@pytest.mark.parametrize("force", [True, False])
@both
def test_links_are_not_replaced(tmp_path, writing, force):
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    with pytest.raises(UnfitError, match="is a link" if force else "exists"), writing(tmp_path / "out", force):
        pytest.fail("work has begun")
    assert (tmp_path / "out").is_symlink()


# What comes while it is written ----------------------------------------------------------------------------


@both
@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("kind", ["file", "folder", "empty folder", "link"])
def test_what_appears_meanwhile_is_left_and_the_work_is_kept_beside_it(tmp_path, writing, force, kind):
    out = tmp_path / "out"
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(UnfitError, match=r"out has appeared .* kept in .*out-2"), writing(out, force):  # noqa: PT012
        if kind == "file":
            out.write_text("mine")
        elif kind == "link":
            out.symlink_to(tmp_path / "elsewhere")
        else:
            out.mkdir()
            if kind == "folder":
                (out / "thesis.tex").write_text("mine")
        if force and kind == "empty folder" and writing is folder_filled:
            (out / "thesis.tex").write_text("mine")  # an empty one may be replaced
        before = tree(out) if out.is_dir() else None
    assert tree(out) == before if before is not None else out.read_text() == "mine"
    assert tree(tmp_path)["out-2" if writing is file_written else "out-2/a.json"] == "new"
    assert not [name for name in tree(tmp_path) if name.startswith(".")]


@both
def test_what_is_changed_meanwhile_is_not_replaced(tmp_path, writing):
    old(writing, tmp_path / "out")
    changed = tmp_path / "out" if writing is file_written else tmp_path / "out" / "thesis.tex"
    with pytest.raises(UnfitError, match="kept in"), writing(tmp_path / "out", True):
        changed.write_text("mine, changed")
    assert changed.read_text() == "mine, changed"
    assert "new" in tree(tmp_path).values()


@both
@pytest.mark.parametrize("force", [True, False])
def test_of_two_on_one_output_the_second_is_refused_at_the_start(tmp_path, writing, force):
    words = rf"process {os.getpid()} on {platform.node()} is writing .*out too: wait until it ends"
    with writing(tmp_path / "out"), pytest.raises(UnfitError, match=words), writing(tmp_path / "out", force):
        pytest.fail("work has begun")
    assert tree(tmp_path) == NEW[writing]


def test_a_hidden_folder_that_is_somebody_elses_is_not_used(tmp_path):
    for name, content in ((".a-unfit", "thesis.tex"), (".b-unfit", None)):
        (tmp_path / "theirs").mkdir(exist_ok=True)
        if content:
            (tmp_path / name).mkdir()
            (tmp_path / name / content).write_text("mine")
        else:
            (tmp_path / name).symlink_to(tmp_path / "theirs")
        with pytest.raises(UnfitError, match="is in the way"), new_file(tmp_path / name[1], False):
            pytest.fail("work has begun")
    assert (tmp_path / ".a-unfit" / "thesis.tex").read_text() == "mine"
    assert not list((tmp_path / "theirs").iterdir())


@pytest.mark.parametrize("force", [True, False])
def test_a_file_is_never_replaced_by_a_folder_nor_a_folder_by_a_file(tmp_path, force):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    before = tree(tmp_path)
    match = "is a {}, not a {}: choose another `out`" if force else "exists already"
    with pytest.raises(UnfitError, match=match.format("file", "folder")), folder_filled(tmp_path / "file", force):
        pass
    with pytest.raises(UnfitError, match=match.format("folder", "file")), file_written(tmp_path / "folder", force):
        pass
    assert tree(tmp_path) == before


@both
def test_a_place_that_cannot_be_written_to_is_told(tmp_path, writing):
    (tmp_path / "file").write_text("mine")
    match = r"cannot write .*file.*: (Not a directory|File exists)"
    with pytest.raises(UnfitError, match=match), writing(tmp_path / "file" / "out"):
        pass
    with pytest.raises(UnfitError, match=r"cannot write .*/proc"), writing(Path("/proc/out")):
        pass


@both
def test_a_name_too_long_for_the_disk_is_told(tmp_path, writing):
    with pytest.raises(UnfitError, match="File name too long"), writing(tmp_path / ("x" * 300)):
        pass


# Killed ----------------------------------------------------------------------------------------------------

WRITERS = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {here!r})
import test_files

left = None  # changes of the disk until it dies; None: it does not
def watch(event, args):
    global left
    if left is not None and event in ("os.remove", "os.rmdir", "os.rename", "shutil.rmtree"):
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

sys.addaudithook(watch)
for line in sys.stdin:
    writing, place, changes = line.split()
    child = os.fork()
    if not child:
        with getattr(test_files, writing)(Path(place) / "out", True):
            print(os.getpid(), flush=True)
            if changes == "never":
                time.sleep(60)
            left = int(changes)  # all work is done but the last moves
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def writers() -> Iterator[subprocess.Popen[str]]:
    """A process that starts another for each line it is told: that one writes over `out` with force."""
    code = WRITERS.format(here=str(Path(__file__).parent))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        yield process
        process.stdin.close()
    assert process.returncode == 0


def begun(writers: subprocess.Popen[str], writing: Writing, place: Path, dies_before: int | str) -> int:
    """The id of a process that has written everything, but not yet moved it."""
    writers.stdin.write(f"{writing.__name__} {place} {dies_before}\n")
    return int(writers.stdout.readline())


@both
def test_a_process_killed_while_it_writes_leaves_the_old_output(tmp_path, writing, writers):
    old(writing, tmp_path / "out")
    before = tree(tmp_path)
    os.kill(begun(writers, writing, tmp_path, "never"), signal.SIGKILL)
    assert int(writers.stdout.readline()) == -signal.SIGKILL
    left = tree(tmp_path)
    assert {name: left[name] for name in before} == before
    assert all(name in before or name.startswith(".out-") for name in left)  # what was begun, under another name
    with writing(tmp_path / "out", True):  # the next one removes it
        pass
    assert tree(tmp_path) == NEW[writing]


@both
def test_a_process_killed_before_any_of_its_last_moves_leaves_the_old_output_or_the_new(
    tmp_path, writing, writers
):
    """Whenever it dies, `out` is whole, or between two moves not there: then both are, under other names."""
    whole = [{name: text and kind for name, text in NEW[writing].items()} for kind in ("old", "new")]
    num_files = len([text for text in NEW[writing].values() if text])
    codes = []
    for changes in range(12):
        place = tmp_path / str(changes)
        place.mkdir()
        old(writing, place / "out")
        begun(writers, writing, place, changes)
        codes.append(int(writers.stdout.readline()))
        left = tree(place)
        seen = {name: text for name, text in left.items() if not name.startswith(".")}
        texts = list(left.values())
        if seen:
            assert seen in whole, f"killed before change {changes}"
        else:
            assert texts.count("old") == texts.count("new") == num_files, f"killed before change {changes}"
            with pytest.raises(UnfitError, match="exists already"), writing(place / "out"):
                pass
            assert tree(place) == whole[0]  # what was moved aside has come back
    assert (codes[0], codes[-1]) == (-signal.SIGKILL, 0)
    assert tree(place) == NEW[writing]


# JSON ------------------------------------------------------------------------------------------------------


def test_json_has_no_nan_and_no_infinity(tmp_path):
    for bad in (float("nan"), -float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write_json(tmp_path / "x.json", {"deep": [1.0, {"down": bad}]})
    assert tree(tmp_path) == {}


def test_json_comes_back(tmp_path):
    content = {"ε": [1, 2.5, None, True], "nested": {"a": "ü"}}
    write_json(tmp_path / "x.json", content)
    assert read_json(tmp_path / "x.json") == content
    assert "ε" in (tmp_path / "x.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b'{"a": 1', "x.json is not JSON"),
        (b'{"a": "\xff"}', "x.json is not JSON"),
        (b"[1, 2]", "x.json must contain a JSON object, found list"),
        (b'{"a":' + b"[" * 100_000, "x.json is not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "x.json is not JSON"),
    ],
)
def test_files_that_are_not_json_objects_are_refused(tmp_path, content, match):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UnfitError, match=match):
        read_json(tmp_path / "x.json")


def test_a_missing_json_file_is_told(tmp_path):
    with pytest.raises(UnfitError, match=r"cannot read .*x.json: No such file"):
        read_json(tmp_path / "x.json")
    with pytest.raises(UnfitError, match="Is a directory"):
        read_json(tmp_path)


def test_only_a_reservation_loses_its_parts(tmp_path: Path) -> None:
    """What stands beside it and has the same name is the user's."""
    (tmp_path / "parts").mkdir()
    with pytest.raises(UnfitError, match="kept in"), new_file(tmp_path / "a", False) as file:
        kept(full_at(file.parent), file.parent)
    assert (tmp_path / "parts").is_dir()
    with new_folder(tmp_path / "b", False, ["x"]) as folder:
        parts_of(folder).mkdir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "parts"]


def full_at(folder: Path) -> Callable[[Path], None]:
    def write(place: Path) -> None:
        if place == folder:
            raise OSError(errno.ENOSPC, "No space left on device")

    return write


def test_force_replaces_no_file_of_another_kind(tmp_path: Path) -> None:
    mine, path = tmp_path / "thesis.tex", tmp_path / "a.safetensors"
    mine.write_text("years of work")
    with pytest.raises(UnfitError, match="another kind"), new_file(mine, True, SAFETENSORS):
        pass
    assert mine.read_text() == "years of work"
    for text in ("", "12345678{}"):
        path.write_text(text)
        with new_file(path, True, SAFETENSORS) as file:
            file.write_text("new")
        assert path.read_text() == "new"
