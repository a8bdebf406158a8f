"""The pages of evidence are what their command renders; sections say if the code has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import headlines
import page
from page import Section, Watch, parse, take, write_section
from unfit.base.errors import UnfitError
from unfit.lab import measurement
from unfit.lab.measurement import Table, bare, hash_of, hashes, machine, older, store

LINES = [
    "Some words.",
    "",
    "| net | seconds | processor seconds | fit, s |",
    "|---|---|---|---|",
    "| a | 1 | 2 | 3 |",
    "",
    "An end.",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of its own, of sections of its own."""
    monkeypatch.setattr(page, "STORED", tmp_path / "stored")
    monkeypatch.setattr(page, "DOCS", tmp_path)
    monkeypatch.setattr(page, "README", tmp_path / "README.md")
    monkeypatch.setattr(page, "MEASURED", tmp_path / "measured.json")
    monkeypatch.setattr(page, "LOOK", 0.05)
    return tmp_path


SAY = "run `make results`, and commit what it writes"


@pytest.mark.parametrize("name", page.HEADS)
def test_each_page_is_what_the_command_renders(name: str) -> None:
    assert (page.DOCS / f"{name}.md").read_text("utf-8") == page.page(name), SAY


@pytest.mark.parametrize("path", [page.README, page.DOCS / "results.md"], ids=lambda path: path.name)
def test_each_number_of_the_readme_and_of_the_index_is_stored_or_says_that_it_is_older(path: Path) -> None:
    text = path.read_text("utf-8")
    assert headlines.MARKED.search(text)
    assert headlines.filled(text, page.stored()) == text, SAY


def test_every_section_is_on_one_page() -> None:
    texts = {name: page.page(name) for name in page.HEADS}
    assert set(page.PAGES.values()) < set(texts)
    for section in page.stored():
        assert [name for name, text in texts.items() if f"\n{section.text}" in text] == [section.page]


def headline(content: list[Table], code: dict[str, str]) -> tuple[str, ...]:
    section = Section(title="A race", place=1, code=code, content=content, counts={"num": 7})
    cells = (("a", "w"), ("b", "x", "y#1"), ("num",))
    (row,) = headlines.table(
        [headlines.Headline("has", "{2} models", "{0}", "{1}", "a-race", cells, "0")], [section], "docs/"
    ).rows
    return row


def test_a_headline_quotes_cells_and_says_if_they_are_older() -> None:
    content = [Table(columns=("", "v", "w", "y"), rows=(("a", "", "**5**", ""), ("b", "x", "", "3 (0.5)")))]
    row = headline(content, {"lab": hash_of("lab")})
    assert row == ("has", "7 models", "5", "0.5", "0", "[section](docs/reconstruction.md#a-race)")
    assert headline(content, {"lab": "0"})[-1].endswith(", *older*")
    assert headline(content, {})[-1].endswith(", *older*")  # nobody knows
    with pytest.raises(ValueError, match="too many"):
        headline([*content, Table(columns=("", "w"), rows=(("a", "6"),))], {})


def test_a_section_is_stored_and_rendered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "BUSY", 100)
    write_section("One", LINES, ("lab/fit.py",))
    write_section("Two", ["More."], ("lab",))
    write_section("One", [*LINES, "Again."], ("lab/fit.py",))  # in its old place
    text = (folder / "reconstruction.md").read_text("utf-8")
    assert text.index("## One") < text.index("Again.") < text.index("## Two")
    assert "\n".join(LINES) in text
    assert "Others kept" in text
    assert "Older" not in text


def test_a_section_older_than_the_code_says_so(folder: Path) -> None:
    now = Section(title="a", place=1, code={"lab": hash_of("lab")}, content=[["w"]])
    assert now.text == "## a\n\nw\n"
    old = now.model_copy(update={"code": {"lab": hash_of("lab"), "base": "0", "gone.py": "1"}})
    assert "\n*Older than the code: base, gone.py changed since.*\n" in old.text
    assert older(now, old) == ["Older than the code: base, gone.py changed since."]
    assert older(now) == []
    assert "may have changed" in now.model_copy(update={"code": {}}).text


def test_a_measurement_is_stored_whole_with_all_that_it_depends_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "BUSY", 100)
    write_section("One", LINES, ("lab", "base/nets.py"))
    (found,) = page.stored()
    assert found.code == hashes(("lab", "base/nets.py"))
    assert (found.machine, found.versions["torch"]) == (machine(), torch.__version__)
    assert found.seconds is not None
    before = found.file.read_bytes()

    def cut_short(path: Path, content: object) -> None:
        path.write_text("{")
        raise OSError("no space left")

    monkeypatch.setattr(measurement, "write_json", cut_short)
    with pytest.raises(UnfitError, match="cannot write"):
        store(found.model_copy(update={"place": 7}), found.file)
    assert found.file.read_bytes() == before


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    table = Table(columns=("", "loss"), rows=(("a", "|r|^2.5"),))
    assert table.lines == ["| | loss |", "|---|---|", r"| a | \|r\|^2.5 |"]
    assert parse(table.lines) == (table,)


def test_what_changes_no_number_changes_no_hash() -> None:
    code = 'def f(x):\n    """Say."""\n    return x + 1  # why\n'
    assert bare(code) == bare("# head\n\ndef f(x):\n    return x + 1\n")
    assert bare(code) != bare(code.replace("+", "-"))
    assert '"#abc"' in bare('colour = "#abc"\n')


def test_beside_others_no_seconds_are_stated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "BUSY", -1)
    write_section("One", LINES, ("lab",))
    assert "| net | processor seconds |\n|---|---|\n| a | 2 |" in (folder / "reconstruction.md").read_text("utf-8")
    before = (folder / "reconstruction.md").read_bytes()
    with pytest.raises(SystemExit, match="alone on the machine"):
        write_section("Race", LINES, ("lab",), timed=True)
    assert (folder / "reconstruction.md").read_bytes() == before


def test_others_are_told_from_oneself() -> None:
    """A process that computes is another's until it is waited for; then it was ours."""
    watch = Watch()
    burn = subprocess.Popen([sys.executable, "-c", "import time\nwhile time.process_time() < 0.6: pass"])
    os.waitid(os.P_PID, burn.pid, os.WEXITED | os.WNOWAIT)
    seen = watch.seconds
    burn.wait()
    assert seen - watch.seconds > 0.4
    assert watch.others >= 0


def keep(section: Section) -> None:
    store(section, section.file)


def test_what_is_written_by_hand_is_taken(folder: Path) -> None:
    keep(Section(title="One", place=1, date="2026-01-01", machine="m", content=[["before"]]))
    page.render()
    path = folder / "reconstruction.md"
    text = path.read_text("utf-8")
    path.write_text(text.replace("before", "after\n\n| a \\| b | c |\n|---|---|\n| 1 | |"), encoding="utf-8")
    take("One", ())
    (found,) = page.stored()
    assert found.content == (("after",), Table(columns=("a | b", "c"), rows=(("1", ""),)))
    assert (found.machine, found.code) == ("m", {})
    keep(Section(title="Two", place=2, content=[["by hand"]]))
    page.render()
    take("Two", ())
    assert page.stored()[1].content == (("by hand",),)  # and not what is said above it
    take("One", ["lab"])
    assert page.stored()[0].code == {"lab": hash_of("lab")}
    assert parse([]) == ()
