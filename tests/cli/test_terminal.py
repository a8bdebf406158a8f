"""What a person sees in a terminal, and what a log gets where there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
import typer
from rich.console import Console

from unfit import Audit
from unfit.auditor.report.terminal import plain, printed, show_audit
from unfit.base import progress
from unfit.base.overview import COMMANDS, TRY
from unfit.cli.app import PURPOSES, app, purpose

Run = Callable[..., tuple[int, str, str]]
CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
GROUP = typer.main.get_command(app)


@pytest.mark.parametrize("columns", [80, 40])
def test_a_bar_shows_its_percentage_and_time_at_any_width_and_never_goes_back(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    with progress.bar("training on a hundred samples") as report:
        for fraction in (0.2, 0.6, 0.1, 0.7):
            report(fraction, "words " * 30)
            time.sleep(0.15)  # more than the pause between two pictures
    lines = CODES.sub("", capsys.readouterr().err).replace("\r", "\n").split("\n")
    bars = [line for line in lines if "%" in line]
    assert all(re.fullmatch(r"[━╸╺]+ +\d+% after \d:\d\d, [\d-]:[\d-]{2} left", line) for line in bars), bars
    shares = [int(line.split("%")[0].split()[-1]) for line in bars]
    assert shares == sorted(shares)
    assert {20, 60, 70} <= set(shares)
    assert max(map(len, lines)) <= columns
    assert any(line.startswith("training on a hundred samples: words") and line.endswith("…") for line in lines)


def test_without_a_terminal_there_are_lines_even_while_the_work_is_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LOG_EVERY", 0.2)
    with progress.bar("attacking") as report:
        report(0.4, "a long step\n\x1b[31m")
        time.sleep(0.7)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert re.fullmatch(r"unfit: 40%, 0:0\d left; attacking: a long step\\n\\x1b\[31m", lines[0]), lines


def test_what_needs_no_pytorch_does_not_load_it() -> None:
    code = (
        "import sys\nfrom contextlib import suppress\nfrom unfit.__main__ import main\n"
        "for words in ([], ['--help'], ['-h'], ['--version']):\n"
        "    sys.argv = ['unfit', *words]\n    with suppress(SystemExit):\n        main()\n"
        "assert 'torch' not in sys.modules and 'typer' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.stderr
    assert all(text in done.stdout for text in ("Try:", "Audit a model:", "0.1.0"))
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_overview_names_every_command_once_and_what_it_says_to_try_is_understood(run: Run) -> None:
    assert sorted(name for group in COMMANDS.values() for name in group) == sorted(GROUP.commands)
    assert len(TRY) == 5
    for line in TRY:
        _, name, *words = line.split()
        GROUP.commands[name].make_context(name, words)
    assert run()[0] == 64
    assert "Try:" in run()[1]
    assert "Attack it:" in run("--help")[1]


def test_every_option_is_described_and_stands_in_a_section() -> None:
    named = {name for names in PURPOSES.values() for name in names.split()}
    used = set()
    for command in GROUP.commands.values():
        for parameter in command.params:
            assert parameter.help, (command.name, parameter.name)
            assert parameter.param_type_name == "argument" or parameter.name in named, (
                command.name,
                parameter.name,
            )
            assert purpose(parameter) in ("Arguments", *PURPOSES)
            used.add(parameter.name)
    assert named - used == {"help"}


def test_the_help_of_a_command_is_grouped(run: Run) -> None:
    shown = run("audit", "--help")[1]
    found = [line.rstrip(":") for line in shown.splitlines() if re.fullmatch(r"\w+:", line)]
    assert found == ["Arguments", "Model", "Data", "Attack", "Policy", "Machines", "Output", "Also"]
    assert shown.index("Policy:") < shown.index("--fail-on") < shown.index("Output:")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("audit", "model.pt"), "Missing option '--out'. (see `unfit audit --help`)"),
        (("sweep", "--out", "c"), "Missing argument 'TARGET'. (see `unfit sweep --help`)"),
        (("attak",), "(see `unfit --help`)"),
    ],
)
def test_what_is_missing_names_the_help_of_its_command(run: Run, words: tuple[str, ...], says: str) -> None:
    code, _, error = run(*words)
    assert code == 64
    assert says in error


def test_the_verdict_has_its_colour_and_lines_break_at_spaces(face_audit: Audit) -> None:
    parts = show_audit(face_audit.record, verbose=True)
    console = Console(
        file=StringIO(), width=80, force_terminal=True, color_system="standard", legacy_windows=False
    )
    with console.capture() as capture:
        printed(console, parts)
    shown = capture.get()
    assert shown.startswith("\x1b[1;31mleak: 12 of 40 training images can be recovered from this file.")
    lines = CODES.sub("", shown).splitlines()
    assert max(map(len, lines)) <= 80
    words = plain(parts, 10_000).split()
    assert " ".join(lines).split() == words
    assert "an attacker who has the weights and nothing else" in " ".join(words)


def test_errors_break_at_spaces_on_a_terminal(tmp_path: Path) -> None:
    """Under a terminal of its own, as `script` gives one."""
    pty = pytest.importorskip("pty")
    main, side = pty.openpty()
    command = [sys.executable, "-c", "from unfit.base.ends import complain\ncomplain('words to read ' * 12)"]
    subprocess.run(command, stderr=side, env=os.environ | {"COLUMNS": "40"}, check=True)
    os.close(side)
    lines = os.read(main, 10_000).decode().split("\r\n")
    assert len(lines) > 4
    assert max(map(len, lines)) <= 40
    assert set(" ".join(lines).split()) == {"unfit:", "words", "to", "read"}


def test_what_matters_is_short_and_the_rest_can_be_asked_for(face_audit: Audit) -> None:
    short, whole = (
        plain(show_audit(face_audit.record, verbose), 10_000).splitlines() for verbose in (False, True)
    )
    assert [line.split("  ")[0] for line in short[1:]] == [
        "why",
        "",
        "next",
        "exact",
        "recognisable",
        "trace or more",
    ]
    assert all(", unseen " in line for line in short[-3:])
    assert short == [line for line in whole if line in short]
    assert {"signal check", "policy", "attack"} <= {line.split("  ")[0] for line in whole} - set(short)
    assert not any("signal_check" in line for line in whole)
