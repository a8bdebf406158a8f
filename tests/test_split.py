"""A random hold-out that an audit can use as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from unfit import UnfitError, read_source
from unfit.auditor.exchange import compare_sets
from unfit.auditor.split import label_values, split_part

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
    assert compare_sets(part.take(first[0]), part.take(first[1])).exchangeable


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
