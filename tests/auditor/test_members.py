"""A run folder may be a stranger's: its `members.json` must not decide which files of this machine are read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from unfit import AuditRequest, FitSettings, UnfitError, fit_run, read_source
from unfit.auditor.case import private_set, read_case

OUTSIDE = "lies outside this folder; if you want it read, give it with `data`"


def write_set(path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.savez(path, x=rng.random((40, 1, 8, 8), np.float32), y=np.arange(40) % 2)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run`, trained on `set.npz` next to it."""
    folder = tmp_path_factory.mktemp("members")
    (folder / "run").mkdir()
    source = read_source(f"npz:{write_set(folder / 'set.npz')}")
    fit_run(source, 8, folder / "run", FitSettings(method="gd", epochs=5), "20")
    return folder


def members(run: Path, data: str) -> Path:
    """A run folder with only a list of members, of these data."""
    run.mkdir(exist_ok=True)
    (run / "members.json").write_text(json.dumps({"data": data, "indices": [0, 1, 2, 3]}))
    return run


def test_data_outside_the_folder_are_read_only_if_the_request_names_them(folder: Path) -> None:
    run, name = folder / "run", f"npz:{folder / 'set.npz'}"
    with pytest.raises(UnfitError, match=OUTSIDE) as error:
        read_case(AuditRequest(target=run))
    assert str(error.value).startswith(f"{run / 'members.json'}: it names {name}, which")
    case = read_case(AuditRequest(target=run, data=name))
    assert len(case.private) == 8
    assert case.inputs == "minus the mean of the training samples"  # it was trained by `fit`, which subtracts it


def test_a_list_of_members_elsewhere_is_no_better(folder: Path, tmp_path: Path) -> None:
    other = members(tmp_path / "other", f"npz:{folder / 'set.npz'}")
    with pytest.raises(UnfitError, match=OUTSIDE):
        private_set(AuditRequest(target=folder / "run", members=other / "members.json"))


def test_data_inside_the_folder_and_embedded_ones_need_no_word(tmp_path: Path) -> None:
    inside = members(tmp_path / "inside", f"npz:{tmp_path / 'inside' / 'set.npz'}")
    write_set(inside / "set.npz")
    assert len(private_set(AuditRequest(target=inside))[1]) == 4
    assert len(private_set(AuditRequest(target=members(tmp_path / "embedded", "faces")))[1]) == 4
    (tmp_path / "link").symlink_to(inside)
    assert len(private_set(AuditRequest(target=tmp_path / "link"))[1]) == 4


@pytest.mark.parametrize(
    "name",
    ["npz:{run}/../set.npz", "npz:{run}/link.npz", "npy:{run}/x.npy,{run}/../y.npy", "csv:{run}/link.csv:y"],
)
def test_a_detour_through_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_set(tmp_path / "set.npz")
    members(run, name.format(run=run))
    for link in ("link.npz", "link.csv"):
        (run / link).symlink_to(tmp_path / "set.npz")
    with pytest.raises(UnfitError, match=OUTSIDE):
        private_set(AuditRequest(target=run))


def test_a_folder_of_links_is_refused(tmp_path: Path) -> None:
    run = members(tmp_path / "run", f"images:{tmp_path / 'run' / 'pictures'}")
    (tmp_path / "diary").mkdir()
    (run / "pictures").mkdir()
    (run / "pictures" / "cats").symlink_to(tmp_path / "diary")
    with pytest.raises(UnfitError, match=OUTSIDE):
        private_set(AuditRequest(target=run))


def test_a_file_that_is_not_there_is_refused_alike(tmp_path: Path) -> None:
    """Otherwise the error would tell whether it exists."""
    for name in ("npz:/no/such/file.npz", "npz:\0", "images:/"):
        with pytest.raises(UnfitError, match=OUTSIDE):
            private_set(AuditRequest(target=members(tmp_path / "run", name)))
