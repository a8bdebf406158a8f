"""One small real run and its audit, made once and shared."""

from __future__ import annotations

from pathlib import Path

import pytest

from unfit import Audit, FitSettings, audit_run, fit_run, read_source
from unfit.report import write_report

DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def face_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A face detector trained on 40 embedded images."""
    folder = tmp_path_factory.mktemp("run")
    fit_run(read_source("faces"), 40, folder, FitSettings())
    return folder


@pytest.fixture(scope="session")
def face_audit(face_run: Path) -> Audit:
    return audit_run(face_run)


@pytest.fixture(scope="session")
def face_page(face_audit: Audit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the audit, its page in it."""
    folder = tmp_path_factory.mktemp("audit")
    face_audit.save(folder)
    write_report(face_audit, folder)
    return folder
