"""An audit that was killed goes on: what its attack has finished is not done again, and the result is the same."""

import json
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unfit.attacker.attacks import auto
from unfit.attacker.attacks.auto import Auto
from unfit.attacker.attacks.unmix import Unmix
from unfit.auditor.audit import Audit
from unfit.auditor.request import AuditRequest
from unfit.auditor.sources import read_source
from unfit.base.files import new_folder
from unfit.base.reservation import parts_of
from unfit.cli import main
from unfit.lab.runs import audit_run, fit_run
from unfit.lab.settings import FitSettings

TIMES = {"date", "seconds", "over_time", "initial"}
START = "surface0-initial.safetensors"


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    """Trained from PyTorch's own start, so that there is a search for it too."""
    folder = tmp_path_factory.mktemp("run")
    settings = FitSettings(init=None, max_steps=300, method="gd", epochs=300, lr=0.1)
    fit_run(read_source("faces"), 12, folder, settings, "300-50")
    return folder


@pytest.fixture(scope="module")
def whole(target, tmp_path_factory) -> Path:
    """The audit that nobody stopped."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["unfit", *command(target, out)])
        with pytest.raises(SystemExit):
            main()
    return out


class Stop:
    """A report that is interrupted at some words, and notes all it heard."""

    def __init__(self, at: str = "never") -> None:
        self.at, self.heard = at, ""

    def __call__(self, fraction: float, words: str) -> None:
        self.heard += words + "\n"
        if self.at in words:
            raise KeyboardInterrupt


def audited(run: Path, out: Path, stop: Stop, attack=None) -> Audit:
    request = AuditRequest(target=str(run), attack=attack or Auto(seeds=1000))
    with new_folder(out, False, ("audit.json",)) as folder:
        return audit_run(request, stop, parts_of(folder))


def kept(out: Path) -> dict[str, float]:
    folder = out.with_name(f".{out.name}-unfit") / "parts"
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*")} if folder.exists() else {}


def command(run: Path, out: Path) -> list[str]:
    return ["audit", str(run), "--out", str(out), "--seeds", "1000", "--no-redact"]


def saved(out: Path) -> tuple[dict, bytes]:
    """All that an audit says and holds, apart from times."""
    record = json.loads((out / "audit.json").read_text())
    told = {name: value for name, value in record.items() if name not in TIMES}
    return told, (out / "arrays.safetensors").read_bytes()


def stopped(run: Path, out: Path, number: int) -> int:
    """The exit code of a real process that gets a signal in the middle of `auto`: with the initial weights."""
    process = subprocess.Popen([sys.executable, "-m", "unfit", *command(run, out)], stderr=subprocess.DEVNULL)
    while process.poll() is None and START not in kept(out):
        time.sleep(0.01)
    process.send_signal(number)
    return process.wait()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)])
def test_a_killed_audit_goes_on_and_ends_the_same(target, whole, tmp_path, run, monkeypatch, number, code):
    out = tmp_path / "out"
    assert stopped(target, out, number) == code
    assert START in kept(out)
    for path in (tmp_path / ".out-unfit", *(tmp_path / ".out-unfit").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    monkeypatch.delattr(auto, "search_initial_weights")  # a second search would end in an error
    run(*command(target, out))
    assert saved(out) == saved(whole)
    assert not (tmp_path / ".out-unfit").exists()


def test_another_command_takes_nothing_from_it(target, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        audited(target, tmp_path / "out", Stop("comparing"))
    with pytest.raises(KeyboardInterrupt):
        audited(target, tmp_path / "out", second := Stop("seeds"), Auto(seeds=999))
    assert "seeds" in second.heard
    assert not kept(tmp_path / "out")


def test_a_damaged_part_is_made_again(target, tmp_path):
    attack = Unmix(iterations=5)
    with pytest.raises(KeyboardInterrupt):
        audited(target, tmp_path / "out", Stop("comparing"), attack)
    part = tmp_path / ".out-unfit" / "parts" / "surface0-unmix.safetensors"
    part.write_bytes(part.read_bytes()[:-50])
    audited(target, tmp_path / "out", second := Stop(), attack)
    assert "rank" in second.heard
