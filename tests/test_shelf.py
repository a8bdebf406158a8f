"""An audit that was killed goes on: what its attack has finished is not done again, and the result is the same."""

import stat
from pathlib import Path

import pytest
import torch

from unfit.attacker.attacks.auto import Auto
from unfit.attacker.attacks.unmix import Unmix
from unfit.auditor.audit import Audit
from unfit.auditor.request import AuditRequest
from unfit.auditor.sources import read_source
from unfit.base.files import new_folder
from unfit.base.reservation import parts_of
from unfit.lab.fit import FitSettings
from unfit.lab.runs import audit_run, fit_run

TIMES = {"seconds", "over_time", "start"}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """Trained from PyTorch's own start, so that there is a search for it too."""
    folder = tmp_path_factory.mktemp("run")
    settings = FitSettings(init=None, max_steps=300, method="gd", epochs=300, lr=0.1)
    fit_run(read_source("faces"), 12, folder, settings, "300-50")
    return folder


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


def content(audit: Audit) -> dict:
    return audit.record.model_dump(mode="json", exclude=TIMES)


def kept(out: Path) -> dict[str, float]:
    folder = out.with_name(f".{out.name}-unfit") / "parts"
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*")} if folder.exists() else {}


def test_a_stopped_audit_goes_on_and_ends_the_same(run, tmp_path):
    whole = audited(run, tmp_path / "whole", all_words := Stop())
    assert "seeds" in all_words.heard
    with pytest.raises(KeyboardInterrupt):
        audited(run, tmp_path / "out", Stop("comparing"))
    before = kept(tmp_path / "out")
    assert "form0-start.safetensors" in before
    assert len(before) > 2
    for path in (tmp_path / ".out-unfit").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    again = audited(run, tmp_path / "out", second := Stop())
    assert "seeds" not in second.heard
    assert "rank" not in second.heard
    assert content(again) == content(whole)
    for name, value in whole.arrays.items():
        torch.testing.assert_close(again.arrays[name], value, rtol=0, atol=0)
    assert again.record.seconds["attack"] >= 0.5 * whole.record.seconds["attack"]
    assert not kept(tmp_path / "out")
    assert not (tmp_path / ".out-unfit").exists()


def test_another_command_takes_nothing_from_it(run, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        audited(run, tmp_path / "out", Stop("comparing"))
    with pytest.raises(KeyboardInterrupt):
        audited(run, tmp_path / "out", second := Stop("seeds"), Auto(seeds=999))
    assert "seeds" in second.heard
    assert list(kept(tmp_path / "out")) == ["key"]


def test_a_damaged_part_is_made_again(run, tmp_path):
    attack = Unmix(iterations=5)
    with pytest.raises(KeyboardInterrupt):
        audited(run, tmp_path / "out", Stop("comparing"), attack)
    part = tmp_path / ".out-unfit" / "parts" / "form0-unmix.safetensors"
    part.write_bytes(part.read_bytes()[:-50])
    audited(run, tmp_path / "out", second := Stop(), attack)
    assert "rank" in second.heard
