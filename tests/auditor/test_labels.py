"""Labels and shapes mean the same, whether samples come from a file or from Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from unfit import AuditRequest, Reading, UnfitError, load_target, read_source
from unfit.auditor import case as cases
from unfit.auditor.case import Case, case_of, read_case
from unfit.auditor.labels import read_labels
from unfit.auditor.samples import Subset
from unfit.base.errors import UsageError
from unfit.base.shapes import shapes_to_try

N, D = 12, 5
X = np.random.default_rng(0).normal(size=(2 * N, D)).astype(np.float32)
THREE = np.arange(2 * N) % 3
TWO = THREE % 2


def net(k: int, d: int = D) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(d, 7), nn.ReLU(), nn.Linear(7, k))


def from_files(folder: Path, module: nn.Module, x: Any, y: Any, **more: Any) -> Case:
    folder.mkdir(exist_ok=True)
    torch.save(module.state_dict(), folder / "model.pt")
    for name, at in (("a", slice(0, N)), ("b", slice(N, None))):
        np.savez(folder / f"{name}.npz", x=x[at], **({} if y is None else {"y": y[at]}))
    data, unseen = (f"npz:{folder}/{name}.npz" for name in "ab")
    return read_case(AuditRequest(target=folder / "model.pt", data=data, unseen=unseen, **more))


def from_python(model: nn.Module, x: Any, y: Any, **more: Any) -> Case:
    both = [x[at] if y is None else (x[at], y[at]) for at in (slice(0, N), slice(N, None))]
    return case_of(model, *both, **more)


def by_chance() -> np.ndarray:
    """Several labels, of which each private sample happens to have one."""
    y = np.eye(3, dtype=np.int64)[THREE]
    y[N:, 0] = 1
    return y


@pytest.mark.parametrize(
    ("y", "k", "names", "truth"),
    [
        (THREE, 3, ("0", "1", "2"), "classes"),
        (THREE.astype(float), 3, ("0", "1", "2"), "classes"),
        (THREE[:, None], 3, ("0", "1", "2"), "classes"),
        (TWO * 2, 3, ("0", "1", "2"), "classes"),  # nobody has class 1
        (THREE + 1, 3, ("1", "2", "3"), "classes"),
        (THREE + 8, 3, ("8", "9", "10"), "classes"),
        ((THREE + 8).astype(str), 3, ("8", "9", "10"), "classes"),  # in the order of numbers
        (np.array(["cat", "ant", "bee"])[THREE], 3, ("ant", "bee", "cat"), "classes"),
        (np.array(["01", "1", "2"])[THREE], 3, ("01", "1", "2"), "classes"),
        (np.eye(3)[THREE], 3, ("0", "1", "2"), "classes"),
        (np.eye(2)[TWO], 1, ("0", "1"), "classes"),
        (TWO == 1, 1, ("0", "1"), "classes"),
        (TWO == 1, 2, ("0", "1"), "classes"),
        (TWO * 2 - 1, 1, ("-1", "1"), "classes"),
        (np.array(["no", "yes"])[TWO], 1, ("no", "yes"), "classes"),
        (np.full(2 * N, -1), 1, ("-1", "1"), "classes"),
        (THREE * 10, 1, ("all",), "values"),
        (np.where(np.arange(2 * N) < N, THREE, TWO), 1, ("all",), "values"),  # unseen ones have but two numbers
        (THREE / 7, 1, ("all",), "values"),
        (X[:, :2], 2, ("all",), "values"),
        (np.stack([TWO, THREE == 0], 1), 2, ("all",), "labels"),
        (by_chance(), 3, ("all",), "labels"),
        (None, 3, ("all",), "nothing"),
    ],
)
def test_the_same_labels_mean_the_same(tmp_path: Path, y: Any, k: int, names: tuple[str, ...], truth: str) -> None:
    model = net(k)
    file, python = from_files(tmp_path / "f", model, X, y), from_python(model, X, y)
    assert (file.private.class_names, file.private.truth) == (names, truth)
    for a, b in ((file.private, python.private), (file.unseen, python.unseen)):
        assert (a.class_names, a.truth) == (b.class_names, b.truth)
        at = a.indices  # of files unseen samples are drawn, class by class
        assert torch.equal(a.y, b.y[at])
        assert (a.targets is None) == (b.targets is None)
        assert a.targets is None or (b.targets is not None and torch.equal(a.targets, b.targets[at]))


@pytest.mark.parametrize(
    ("y", "k", "says"),
    [
        (np.arange(2 * N) % 4 + 1, 3, "found labels 3, 4, expected 0, 1, 2|data have 4 classes, the model has 3"),
        (np.array([*"abcd"])[np.arange(2 * N) % 4], 3, r"4 classes( \(a, b, c, d\))?, the model has 3"),
        (np.eye(3)[THREE], 5, "3.*: pass one class .* each of the 5|the data have 3 classes, the model has 5"),
        (np.eye(3)[THREE], 1, "3.*: pass one class .* each of the 1|the data have 3 classes, the model has 2"),
        (X[:, :2], 3, "2.*: pass one class .* each of the 3|2 columns, the model 3 outputs"),
        (np.where(TWO == 1, "a", " "), 1, r"8 values of y are missing, the first at index \[0\]"),
        (np.where(TWO == 1, 1e300, 0), 1, r"4 values of y are not finite, the first at index \[1, 0\]"),
        (np.where(TWO == 1, np.nan, 0), 1, r"4 values of y are not finite, the first at index \[1\]"),
        (np.where(np.arange(2 * N) < N, THREE, THREE / 7), 3, "must have labels of one kind, or none"),
    ],
)
def test_labels_that_no_net_can_have_are_refused_both_ways(tmp_path: Path, y: Any, k: int, says: str) -> None:
    with pytest.raises(UnfitError, match=says):
        from_files(tmp_path / "f", net(k), X, y).check(11)
    with pytest.raises(UnfitError, match=says):
        from_python(net(k), X, y)


@pytest.mark.parametrize("nothing", [None, float("nan"), "", " "])
def test_a_missing_label_is_no_class(nothing: object) -> None:
    with pytest.raises(UnfitError, match=r"1 values of y are missing, the first at index \[1\]"):
        read_labels(np.array(["a", nothing, "b"], dtype=object), 3)


def test_an_empty_label_does_not_turn_numbers_into_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,0\n2,\n3,1\n")
    with pytest.raises(UnfitError, match=r"a.csv: 1 values of y are missing, the first at index \[1\]"):
        read_source(f"csv:{tmp_path}/a.csv:y")


def test_objects_are_numbers_or_text() -> None:
    assert read_labels(np.array([True, False], dtype=object), 2).names == ("0", "1")
    assert read_labels(np.array(["b", "a"], dtype=object), 2).classes.tolist() == [1, 0]
    with pytest.raises(UnfitError, match="y has type object"):
        read_labels(np.array([["a"], {}], dtype=object), 2)


# Shapes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "data", "weights", "tried"),
    [
        ((1, 8, 8), (64,), [(64,)], [(1, 8, 8)]),
        (None, None, [(1, 8, 8), (30,)], [(1, 8, 8), (30,)]),
        (None, (64,), [(1, 8, 8), (30,)], [(64,), (1, 8, 8)]),
        (None, (50,), [(2, 5, 5)], [(50,), (2, 5, 5)]),
        (None, (1, 4, 16), [(1, 8, 8)], [(1, 4, 16), (1, 8, 8)]),
        (None, (784,), [(1, 28, 28), (30,)], [(1, 28, 28), (784,)]),
        (None, (784,), [(784,)], [(784,), (1, 28, 28)]),
    ],
)
def test_which_shapes_are_tried(said: Any, data: Any, weights: Any, tried: Any) -> None:
    assert shapes_to_try(said, data, weights) == tried


@pytest.mark.parametrize("axes", [(64, 1), (1, 64)])
def test_a_column_is_a_vector_and_no_image(tmp_path: Path, axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random((2 * N, *axes), np.float32)
    case = from_python(net(3, 64), x, THREE)
    assert (case.private.shape, case.unseen.shape) == ((64,), (64,))
    assert case.inputs == f"as given, {axes[0]}×{axes[1]} values as vectors of 64"
    assert from_files(tmp_path / "f", net(3, 64), x, THREE).private.shape == (64,)
    assert from_python(net(3, 64), x, THREE, input_shape=(1, 8, 8)).private.shape == (1, 8, 8)


def test_a_net_that_takes_images_alone_gets_them_of_flat_rows_in_files_too(tmp_path: Path) -> None:
    text = "from torch import nn\n\n\ndef conv():\n    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), "
    (tmp_path / "net.py").write_text(
        text + "nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))\n"
    )
    names: dict[str, Any] = {}
    exec((tmp_path / "net.py").read_text(), names)
    x = np.random.default_rng(0).random((2 * N, 100), np.float32)  # a side that no layer tells
    model = names["conv"]()
    case = from_files(tmp_path, model, x, THREE, model=f"{tmp_path}/net.py:conv")
    assert case.originals is not None
    assert case.target.sample_shape == case.originals[0].shape == (1, 10, 10)
    assert from_python(model, x, THREE).target.sample_shape == (1, 10, 10)


def test_what_a_target_was_told_of_its_shape_is_kept(tmp_path: Path) -> None:
    torch.save(net(3, 64).state_dict(), tmp_path / "model.pt")
    x = np.random.default_rng(0).random((2 * N, 64), np.float32)
    for said, shape in (((1, 8, 8), (1, 8, 8)), (None, (64,))):
        target = load_target(tmp_path / "model.pt", Reading(input_shape=said))
        assert target.sample_shape == (1, 8, 8)  # of 64 values an attack alone makes squares
        assert case_of(target, (x[:N], THREE[:N]), (x[N:], THREE[N:])).private.shape == shape


def test_a_shape_that_does_not_fit_the_weights_is_refused(tmp_path: Path) -> None:
    torch.save(net(3, 64).state_dict(), tmp_path / "model.pt")
    with pytest.raises(
        UsageError, match=r"`input_shape` \(1, 2, 4\) does not fit the model, which takes \(1, 8, 8\)"
    ):
        load_target(tmp_path / "model.pt", Reading(input_shape=(1, 2, 4)))


# Reading once -------------------------------------------------------------------------------------------------


def test_members_and_samples_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def counted(name: str, function: Any) -> Any:
        return lambda *args: (done.append(name), function(*args))[1]

    monkeypatch.setattr(cases, "parse_json", counted("members", cases.parse_json))
    monkeypatch.setattr(cases, "read_source", counted("source", cases.read_source))
    monkeypatch.setattr(Subset, "take", counted("samples", Subset.take))
    (tmp_path / "members.json").write_text(json.dumps([*range(6)]))
    case = from_files(tmp_path, net(3), X, THREE, members=tmp_path / "members.json")
    assert len(case.private) == 6
    assert sorted(done) == ["members", "samples", "samples", "source", "source"]  # of private and of unseen ones


def test_a_request_reads_a_model_as_reading_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = AuditRequest(target="m.pt", model="net.py:build", layer="1", input_shape="8x8")
    assert isinstance(asked, Reading)
    reading = Reading(model="net.py:build", layer="1", input_shape="8x8")
    assert {name: getattr(asked, name) for name in Reading.model_fields} == reading.model_dump()
    assert asked.model == f"{tmp_path}/net.py:build"
