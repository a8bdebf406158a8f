"""One small real run and its audit, made once and shared."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch: tests run side by side, a core each
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

from unfit import Audit, AuditRequest, FitSettings, UnfitError, audit_run, fit_run, read_source
from unfit.auditor.report import write_report
from unfit.base.formats import read_model

Run = Callable[..., tuple[int, str, str]]
DATA = Path(__file__).parents[2] / "shared" / "data"


def read_or_refused(path: Path) -> str:
    """What reading a model of this file comes to; anything but these two is a crash."""
    try:
        read_model(path)
    except UnfitError:
        return "refused"
    return "read"


@pytest.fixture(scope="session")
def face_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A face detector trained on 40 embedded images."""
    folder = tmp_path_factory.mktemp("run")
    fit_run(read_source("faces"), 40, folder, FitSettings())
    return folder


@pytest.fixture(scope="session")
def face_audit(face_run: Path) -> Audit:
    return audit_run(AuditRequest(target=face_run))


@pytest.fixture(scope="session")
def face_page(face_audit: Audit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the audit, its page in it."""
    folder = tmp_path_factory.mktemp("audit")
    face_audit.save(folder)
    write_report(face_audit.record, face_audit.arrays, folder)
    return folder


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line as a user calls it: exit code, standard output, standard error."""

    from unfit.cli import main

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["unfit", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return call
