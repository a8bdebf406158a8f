"""Every block of code in the README and the docs is run or says why not; links and names in them exist."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pictures
import reference
import unfit
from unfit.auditor.record import Record
from unfit.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ELSEWHERE = {
    "docs/extending.md": "test_extending.py",
    "docs/gating.md": "test_gating.py",
}
SHOP = "docs/own-model.md"  # leaves a folder with models and samples, in which the pages below are run
IN_SHOP = (
    "docs/quickstart.md",
    "docs/publish.md",
    "docs/reading.md",
    "docs/initial-weights.md",
    "docs/papers.md",
    "docs/federated.md",
    "docs/embeddings.md",
    "docs/frameworks.md",
    "docs/own-attack.md",
)
README = "README.md"
DEMO = "unfit demo --out unfit-demo --force"  # what `make demo` runs

LANGUAGES = {"python", "sh"}  # what is run
OTHERS = {
    "bibtex",
    "none",
    "text",
    "diff",
    "json",
    "yaml",
    "dockerfile",
    "{toctree}",
    "{eval-rst}",
}  # what is only read
REASONS = {"it needs a cluster", "it needs files of your own", "it takes minutes"}
NOT_RUN = re.compile(r"\*Not run by the tests: (.*)\.\*\n\n\Z")
BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.M | re.S)
LEFT_OUT = "…"
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Block:
    language: str
    content: str
    reason: str | None  # why it is not run


@dataclass
class Shop:
    folder: Path
    names: dict[str, Any] = field(default_factory=dict)  # what Python blocks have defined


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found[1], found[2], marked[1] if (marked := NOT_RUN.search(text[: found.start()])) else None)
        for found in BLOCK.finditer(text)
    ]


# Running a page -----------------------------------------------------------------------------------------------


def run_page(page: Path, shop: Shop) -> None:
    """Run its blocks in order; a text block says what the block before it has printed, if there is one."""
    printed = None
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(shop.folder)
        for block in blocks(page):
            if block.language == "text" and printed is not None:
                check_printed(block.content, printed)
            elif block.language in LANGUAGES and block.reason is None:
                with redirect_stdout(StringIO()) as out:
                    (run_python if block.language == "python" else run_shell)(block.content, shop)
                printed = out.getvalue().replace(f"{shop.folder}/", "")


def run_python(content: str, shop: Shop) -> None:
    exec(compile(content, "a block of Python", "exec"), shop.names)


def run_shell(content: str, shop: Shop) -> None:
    above = ""
    for line in content.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            run_words(words, f"{above}{line}")
        above = "" if words else f"{line}\n"  # a comment of its own is about the next command


def run_words(words: list[str], line: str) -> None:
    if words[0] == "unfit":
        said = re.search(r"exit code (\d+)", line)
        code, errors = call(words)
        assert code == (int(said[1]) if said else 0), f"{line}: exit code {code}\n{errors}"
    elif words == ["make", "demo"]:
        assert f"$(BIN)/{DEMO}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
        run_words(DEMO.split(), line)
    elif words[0] == "make":
        assert set(words[1:]) <= targets(), line
    else:
        assert words[:2] == ["pip", "install"], f"neither run nor marked: {line}"
        wanted = {name for word in words for part in re.findall(r"\[(.*)\]", word) for name in part.split(",")}
        assert wanted <= extras(), line


def call(words: list[str]) -> tuple[int, str]:
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(StringIO()) as errors:
        patch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as end:
            main()
    return int(end.value.code or 0), errors.getvalue()


def check_printed(said: str, printed: str) -> None:
    """The same words; numbers that another machine's rounding may give. `…` stands for lines that are left out."""
    lines, skips = iter(printed.splitlines()), False
    for line in said.splitlines():
        if line == LEFT_OUT:
            skips = True
            continue
        came = next((each for each in lines if not skips or is_alike(line, each)), None)
        assert came is not None, f"not printed: {line}"
        assert is_alike(line, came), (line, came)
        for a, b in zip(NUMBER.findall(line), NUMBER.findall(came), strict=True):
            assert float(a) == pytest.approx(float(b), rel=0.25, abs=3 if "." not in a else 0.05), (line, came)
        skips = False
    assert skips or not list(lines), "more was printed"


def is_alike(said: str, printed: str) -> bool:
    return NUMBER.sub("#", said) == NUMBER.sub("#", printed)


def test_what_a_page_quotes_is_compared() -> None:
    check_printed("a 7\n…\nc\n", "a 7\nb\nb\nc\n")
    check_printed("a\n…\n", "a\nb\n")
    for said in ("a 40\n…\nc", "a 7\nc", "…\nd", "a 7\n…\nb"):
        with pytest.raises(AssertionError):
            check_printed(said, "a 7\nb\nc\n")


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def extras() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    made = Shop(tmp_path_factory.mktemp("shop"))
    run_page(ROOT / SHOP, made)
    return made


@pytest.mark.parametrize("name", IN_SHOP)
def test_pages_run_as_they_stand(name: str, shop: Shop, tmp_path: Path) -> None:
    own = shutil.copytree(shop.folder, tmp_path / "shop")
    run_page(ROOT / name, Shop(own, dict(shop.names)))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    found = blocks(page)
    assert {block.language for block in found} <= LANGUAGES | OTHERS
    for block in found:
        if block.language in LANGUAGES and name_of(page) not in (README, SHOP, *IN_SHOP, *ELSEWHERE):
            assert block.reason in REASONS
        assert block.reason in {None, *REASONS}


# Names, links, commands ---------------------------------------------------------------------------------------


def test_each_equation_names_a_function_that_exists() -> None:
    text = (ROOT / "docs" / "method-equations.md").read_text(encoding="utf-8")
    rows = text[text.index("| equation | from | function |") :].split("\n\n")[0].splitlines()[2:]
    assert len(rows) > 15
    for row in rows:
        found = re.findall(r"`unfit\.([\w.]+)\.(\w+)`", row.rsplit("|", 2)[1])
        assert found, row
        assert all(callable(getattr(import_module(f"unfit.{module}"), name)) for module, name in found), row


def test_the_reference_has_every_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r":: unfit\.(\w+)$", text, re.M)) == sorted(dir(unfit))


def test_every_field_of_the_record_has_a_row_and_no_other() -> None:
    text = (ROOT / "docs" / "audit-json.md").read_text(encoding="utf-8")
    table = text[text.index("| field | meaning |") :].split("\n\n")[0]
    firsts = "".join(row.split("|")[1] for row in table.splitlines()[2:])
    assert sorted(re.findall(r"`(\w+)`", firsts)) == sorted(Record.model_fields)


def headings(page: Path) -> set[str]:
    """What the headings of a page are linked by: lower case, without signs, hyphens for spaces."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^()\s]+)\)", text):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        there = page.parent / path if path else page
        assert there.resolve().is_relative_to(ROOT), link
        assert there.is_file(), link
        assert not anchor or anchor in headings(there), link


def test_the_readme_fits_and_its_test_command_is_the_one_that_must_pass() -> None:
    assert len((ROOT / README).read_text(encoding="utf-8").splitlines()) < 90
    found = [block.content for block in blocks(ROOT / README) if block.language == "sh"]
    lines = [line for content in found for line in content.splitlines()]
    assert max(map(len, lines)) <= 100
    must_pass = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert {"make test", "make docs"} <= set(must_pass)
    assert "make test" in {line.partition("#")[0].strip() for line in lines}


def test_the_readme_runs_and_its_picture_is_what_the_demo_recovers(shop: Shop, tmp_path: Path) -> None:
    own = shutil.copytree(shop.folder, tmp_path / "shop")
    run_page(ROOT / README, Shop(own, dict(shop.names)))
    made = np.asarray(pictures.strip(unfit.load_audit(own / "unfit-demo" / "audit")), float)
    with Image.open(pictures.STRIP) as image:
        there = np.asarray(image.convert("RGB"), float)
    assert made.shape == there.shape
    assert np.abs(made - there).mean() < 2, "run `python benchmarks/pictures.py`"


def test_the_reference_of_the_command_line_is_what_the_commands_say() -> None:
    text = reference.CLI.read_text(encoding="utf-8")
    assert text == reference.page(text), "run `make reference`, and commit docs/cli.md"
