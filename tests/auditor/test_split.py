"""A random hold-out that an audit can use as it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from unfit import AuditRequest, UnfitError, read_source
from unfit.auditor.case import read_case
from unfit.auditor.comparability import compare_sets
from unfit.auditor.split import check_split, label_values, split_part

Run = Callable[..., tuple[int, str, str]]
RNG = np.random.default_rng(0)


@pytest.fixture
def source(tmp_path: Path) -> str:
    """Thirty samples of class 3, seventy of class 8, and each sample knows its position."""
    x = RNG.random((100, 4, 4)).astype(np.float32)
    x[:, 0, 0] = np.arange(100) / 100
    np.savez(tmp_path / "all.npz", x=x, y=np.repeat([3, 8], [30, 70]))
    return f"npz:{tmp_path / 'all.npz'}"


def test_both_parts_are_read_back(run: Run, source: str, tmp_path: Path) -> None:
    code, said, _ = run("split", source, "--unseen", "0.4", "--out", tmp_path / "parts")
    assert code == 0
    train, unseen = (f"npz:{tmp_path}/parts/{name}.npz" for name in ("train", "unseen"))
    assert said.splitlines() == [
        "60 samples to train on and 40 unseen ones; after training:",
        f"unfit audit MODEL --data {train} --unseen {unseen} --out AUDIT",
    ]
    whole = read_source(source).train
    parts = []
    for name in ("train", "unseen"):
        with np.load(tmp_path / "parts" / f"{name}.npz") as arrays:
            parts.append(dict(arrays))
    assert sorted(np.concatenate([part["index"] for part in parts])) == list(range(100))
    for name, part, counts in zip(("train", "unseen"), parts, ([18, 42], [12, 28]), strict=True):
        path = tmp_path / "parts" / f"{name}.npz"
        assert path.stat().st_mode & 0o777 == 0o600
        again = read_source(f"npz:{path}").train
        assert again.class_names == ("3", "8")
        assert np.bincount(again.labels).tolist() == counts
        np.testing.assert_array_equal(again.raw, whole.raw[part["index"]])
        np.testing.assert_array_equal(part["y"], np.repeat([3, 8], [30, 70])[part["index"]])


def test_parts_are_random_and_follow_from_the_seed(source: str) -> None:
    part = read_source(source).train
    first, again, other = (split_part(part, 0.5, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first[0], again[0])
    assert set(first[0]) != set(other[0])
    assert (np.diff(first[0]) < 0).any()  # shuffled: the first samples of a file are often of one class
    assert compare_sets(part.take(first[0]), part.take(first[1])).comparable


def test_pictures_stay_bytes_and_classes_keep_their_order(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=RNG.integers(0, 256, (40, 3, 8, 8), np.uint8), y=["zebra", "ant"] * 20)
    assert run("split", f"npz:{tmp_path}/a.npz", "--out", tmp_path / "parts")[0] == 0
    part = read_source(f"npz:{tmp_path}/parts/train.npz").train
    assert (part.raw.dtype, part.raw.shape, part.class_names) == (np.uint8, (20, 3, 8, 8), ("0", "1"))
    with np.load(tmp_path / "parts/train.npz") as arrays:
        index = arrays["index"]
    assert part.labels.tolist() == [1 if i % 2 == 0 else 0 for i in index]  # ant comes before zebra


@pytest.mark.parametrize(
    ("names", "values"),
    [(("-1", "1"), [-1, 1]), (("10", "2"), [0, 1]), (("False", "True"), [0, 1]), (("7", "9", "40"), [7, 9, 40])],
)
def test_labels_keep_their_numbers_and_their_order(names: tuple[str, ...], values: list[int]) -> None:
    assert label_values(names).tolist() == values


def test_every_class_is_in_both_parts(tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", x=np.zeros((12, 3)), y=[0] * 2 + [1] * 10)
    part = read_source(f"npz:{tmp_path}/few.npz").train
    for share in (0.05, 0.95):
        assert all(set(part.labels[at]) == {0, 1} for at in split_part(part, share, 0))


def test_what_cannot_be_split_is_refused(run: Run, source: str, tmp_path: Path) -> None:
    for share in ("0", "1", "-1", "nan"):
        code, _, error = run("split", source, "--unseen", share, "--out", tmp_path / "parts")
        assert (code, "--unseen is the share of samples to hold out" in error) == (64, True)
    np.savez(tmp_path / "one.npz", x=np.zeros((5, 3)), y=[0, 0, 0, 0, 9])
    with pytest.raises(UnfitError, match="too few samples of 9: a class needs two"):
        split_part(read_source(f"npz:{tmp_path}/one.npz").train, 0.5, 0)
    assert not (tmp_path / "parts").exists()
    assert run("split", source, "--out", tmp_path / "parts")[0] == 0
    assert "exists already" in run("split", source, "--out", tmp_path / "parts")[2]
    assert run("split", source, "--out", tmp_path / "parts", "--force")[0] == 0
    assert run("split", "npz:missing.npz", "--out", tmp_path / "other")[0] == 2


# Tables ----------------------------------------------------------------------------------------------------

ROWS = [
    f'p{i // 4},"{i}, a ""note""\nin two lines",{"" if i % 7 == 0 else i / 2},{("yes", "no")[i % 3 == 0]}\r\n'
    for i in range(80)
]
HEADER = "patient_id,note,dose,outcome\r\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(HEADER + "".join(ROWS), encoding="utf-8", newline="")
    return path


def test_rows_are_split_as_they_are_by_class(run: Run, table: Path, tmp_path: Path) -> None:
    """Text, empty cells, quotes and line ends: encoding comes later, with what was learnt from the one part."""
    code, said, _ = run("split", f"csv:{table}:outcome", "--unseen", "0.25", "--out", tmp_path / "parts")
    assert code == 0
    assert said.splitlines()[0] == "60 rows to train on and 20 unseen ones; encode both alike; after training:"
    manifest = json.loads((tmp_path / "parts/split.json").read_text())
    texts = []
    for part in ("train", "unseen"):
        about, path = manifest[part], tmp_path / "parts" / f"{part}.csv"
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read()
        assert text == HEADER + "".join(ROWS[i] for i in about["index"])
        assert about["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert path.stat().st_mode & 0o777 == 0o600
        assert sum(i % 3 == 0 for i in about["index"]) == {"train": 20, "unseen": 7}[part]
        texts += about["index"]
    assert sorted(texts) == list(range(80))


def test_rows_of_one_group_stay_together(run: Run, table: Path, tmp_path: Path) -> None:
    words = ("split", f"csv:{table}:outcome", "--by", "patient_id", "--out", tmp_path / "parts")
    assert run(*words)[0] == 0
    manifest = json.loads((tmp_path / "parts/split.json").read_text())
    patients = [{i // 4 for i in manifest[part]["index"]} for part in ("train", "unseen")]
    assert not patients[0] & patients[1]
    assert manifest["by"] == "patient_id"
    assert 30 <= manifest["unseen"]["num_samples"] <= 50
    assert "there is no column 'ward'" in run(*words[:3], "ward", *words[4:], "--force")[2]
    assert "is empty in rows 1, 8" in run(*words[:3], "dose", *words[4:], "--force")[2]


def test_parquet_stays_parquet(run: Run, tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = arrow.table({"text": ["a", None] * 20, "y": [0, 1, 1, 0] * 10})
    parquet.write_table(rows, tmp_path / "rows.parquet")
    assert run("split", f"parquet:{tmp_path}/rows.parquet:y", "--out", tmp_path / "parts")[0] == 0
    manifest = json.loads((tmp_path / "parts/split.json").read_text())
    for part in ("train", "unseen"):
        found = parquet.read_table(tmp_path / "parts" / f"{part}.parquet")
        assert found.equals(rows.take(manifest[part]["index"]))
        assert sum(found["y"].to_pylist()) == 10


def test_an_audit_checks_the_parts_of_a_split(run: Run, tmp_path: Path) -> None:
    rows = "".join(f"{RNG.random():.3f},{RNG.random():.3f},{i % 2}\n" for i in range(40))
    (tmp_path / "rows.csv").write_text("a,b,y\n" + rows)
    assert run("split", f"csv:{tmp_path}/rows.csv:y", "--out", tmp_path / "parts")[0] == 0
    train, unseen = (tmp_path / "parts" / f"{part}.csv" for part in ("train", "unseen"))
    check_split(train, unseen)
    with pytest.raises(UnfitError, match="were `data` and `unseen` swapped"):
        check_split(unseen, train)
    with pytest.raises(UnfitError, match="has for training, so it is no control"):
        check_split(train, train)
    train.write_text("a,b,y\n" + rows)
    with pytest.raises(UnfitError, match=r"train\.csv has changed since it was split"):
        check_split(train, unseen)
    model = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 2))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    words = ("--data", f"csv:{train}:y", "--unseen", f"csv:{unseen}:y", "--out", tmp_path / "audit")
    code, _, error = run("audit", tmp_path / "model.pt", *words)
    assert (code, "has changed since it was split" in error) == (2, True)


def test_all_unseen_samples_are_used_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    def source(name: str, counts: tuple[int, int]) -> str:
        y = np.repeat([0, 1], counts)
        np.savez(tmp_path / name, x=RNG.random((len(y), 6)).astype(np.float32), y=y)
        return f"npz:{tmp_path / name}"

    model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 2))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for private, unseen, used, left in (((10, 10), (30, 30), 60, 0), ((10, 10), (40, 30), 60, 10)):
        data, others = source("train.npz", private), source("unseen.npz", unseen)
        case = read_case(AuditRequest(target=str(tmp_path / "model.pt"), data=data, unseen=others))
        assert (len(case.unseen), case.num_left_out) == (used, left)
    request = AuditRequest(target=str(tmp_path / "model.pt"), data=data, unseen=others, num_unseen=20)
    assert len(read_case(request).unseen) == 20
