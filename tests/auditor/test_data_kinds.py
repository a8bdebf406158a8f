"""Data as people have them: in Python, in files, with labels of any kind or none, as the model saw them."""

from __future__ import annotations

import csv
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

from unfit import AuditRequest, FitSettings, UnfitError, as_target, audit, draw, fit, read_source
from unfit.auditor.arrays import as_samples, opened, shape_of
from unfit.auditor.case import Case, case_of, private_set, read_case
from unfit.auditor.data_check import check_data, p_pairing
from unfit.auditor.labels import ONE_CLASS
from unfit.auditor.samples import Samples
from unfit.base.errors import DataCheckError, UsageError
from unfit.base.nets import Architecture, outputs
from unfit.base.target import Target, save_weights

Run = Callable[..., tuple[int, str, str]]
N, D = 60, 6
RANDOM = torch.Generator().manual_seed(0)
X = torch.randn(2 * N, D, generator=RANDOM)
Y = torch.arange(2 * N) % 3
COLUMNS = ["age", "height", "weight", "pulse", "sugar", "pressure"]


def mlp(d: int, k: int, width: int = 100) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(d, width), nn.ReLU(), nn.Linear(width, k))


def train(net: nn.Module, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """Gradient descent by hand: PyTorch takes seconds to load its optimisers."""
    parameters = list(net.parameters())
    for _ in range(600):
        for parameter, step in zip(parameters, torch.autograd.grad(loss(net(x), y), parameters), strict=True):
            parameter.data -= 0.1 * step
    return net


@pytest.fixture(scope="module")
def of_three() -> nn.Module:
    return train(mlp(D, 3), X[:N], Y[:N], nn.functional.cross_entropy)


# Python -------------------------------------------------------------------------------------------------------


class Pairs(Dataset[Any]):
    def __init__(self, named: bool = False) -> None:
        self.named = named

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return {"features": X[i], "label": int(Y[i])} if self.named else (X[i].numpy(), int(Y[i]))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return ((x, y) for x, y in zip(X[:N], Y[:N], strict=True))


class Columns:
    """As a data set of Hugging Face is: its columns by name."""

    column_names = ("id", "pixel_values", "label")

    def __init__(self) -> None:
        self.column_names = ["id", "pixel_values", "label"]  # type: ignore[assignment]

    def __getitem__(self, name: str) -> Any:
        return {"pixel_values": X[:N].tolist(), "label": Y[:N].tolist()}[name]


FRAME = pd.DataFrame(X[:N].numpy(), columns=COLUMNS)
ROWS = TensorDataset(X[:N], Y[:N])
KINDS: dict[str, Any] = {
    "arrays": (X[:N].numpy(), Y[:N].numpy()),
    "lists": (X[:N].tolist(), Y[:N].tolist()),
    "two in a list": [X[:N], Y[:N]],
    "frame": (FRAME, pd.Series(Y[:N].numpy())),
    "pairs": list(zip(X[:N], Y[:N].tolist(), strict=True)),
    "pairs of lists": list(zip(X[:N].tolist(), Y[:N].tolist(), strict=True)),
    "dict": {"x": X[:N], "y": Y[:N]},
    "dicts": [{"inputs": x, "target": y} for x, y in zip(X[:N], Y[:N], strict=True)],
    "columns": Columns(),
    "data set": Pairs(),
    "named data set": Pairs(named=True),
    "tensors": ROWS,
    "stream": Stream(),
    "loader": DataLoader(ROWS, batch_size=7),
    "shuffled loader": DataLoader(ROWS, batch_size=7, shuffle=True),
    "bfloat16": (X[:N].double(), Y[:N].to(torch.bfloat16)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_the_same_samples(kind: str) -> None:
    private, _ = as_samples(KINDS[kind], (X[N:], Y[N:]), (D,), 3)
    assert torch.allclose(private.x, X[:N])
    assert torch.equal(private.y, Y[:N])
    assert private.class_names == ("0", "1", "2")
    assert shape_of(opened(KINDS[kind])) == (D,)


def test_a_sampler_that_chooses_is_kept_and_shuffling_is_not() -> None:
    some = DataLoader(ROWS, batch_size=4, sampler=SubsetRandomSampler([5, 9, 2]))
    given = opened(some)
    assert not isinstance(given, Samples)
    assert sorted(given.x[:, 0].tolist()) == sorted(X[[5, 9, 2], 0].tolist())


@pytest.mark.parametrize("x", [X[:N], FRAME, (X[:N], None), [*X[:N]], TensorDataset(X[:N]), {"data": X[:N]}])
def test_labels_are_optional(x: Any) -> None:
    private, unseen = as_samples(x, X[N:], (D,), 3)
    assert torch.allclose(private.x, X[:N])
    assert (private.truth, private.class_names, private.targets) == ("nothing", ONE_CLASS, None)
    assert len(unseen) == N


def test_the_columns_of_a_table_keep_their_names() -> None:
    assert as_samples(FRAME, FRAME, (D,), 1)[0].feature_names == tuple(COLUMNS)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (FRAME.assign(age="old"), r"column 'age' is .*, not numbers; encode it as the model saw it"),
        ({"pictures": X}, "none of pictures is a name of x: use one of x, image"),
        ((X, Y, Y), r"expected x or \(x, y\), found 3 values"),
        ([(X[0], 1), (X[1],)], "some have a label and some have none"),
        (DataLoader(TensorDataset(X[:0])), "there are none"),
    ],
)
def test_what_cannot_be_taken_apart(given: Any, says: str) -> None:
    with pytest.raises(UnfitError, match=says):
        as_samples(given, X, (D,), 1)


@pytest.mark.parametrize(
    ("y", "k", "truth"),
    [
        (Y * 7.5, 1, "values"),
        (Y + 20, 1, "values"),  # more than two numbers for a single output
        (X[:, :2], 2, "values"),
        ((X[:, :3] > 0).long(), 3, "labels"),
        (nn.functional.one_hot(Y), 3, "classes"),
        (Y.clamp_max(1), 3, "classes"),  # one is absent
        (Y[:, None], 3, "classes"),
    ],
)
def test_what_y_says(y: Tensor, k: int, truth: str) -> None:
    private, _ = as_samples((X[:N], y[:N]), (X[N:], y[N:]), (D,), k)
    assert private.truth == truth
    if private.targets is not None:
        assert torch.allclose(private.targets, y[:N].reshape(N, -1).float())


def test_channels_last_are_detected_and_named() -> None:
    images = torch.rand(20, 3, 9, 8)
    last = images.permute(0, 2, 3, 1).numpy()
    net = nn.Sequential(nn.Flatten(), nn.Linear(216, 5), nn.ReLU(), nn.Linear(5, 2))
    case = case_of(net, last[:10], last[10:])
    assert torch.equal(case.private.x, images[:10])
    assert case.inputs == "as given, channels last made first"


@pytest.mark.parametrize(
    ("d", "shape"), [(64, (64,)), (100, (100,)), (768, (768,)), (784, (1, 28, 28)), (3072, (3, 32, 32))]
)
def test_flat_rows_are_vectors_unless_their_length_is_that_of_well_known_pictures(
    d: int, shape: tuple[int, ...]
) -> None:
    net, x = nn.Sequential(nn.Linear(d, 5), nn.ReLU(), nn.Linear(5, 1)), torch.rand(20, d)
    assert case_of(net, x[:10], x[10:]).private.shape == shape


def test_the_shape_can_be_said_and_a_convolution_says_it() -> None:
    x = torch.rand(20, 64)
    net = nn.Sequential(nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 1))
    for model in (net, as_target(net, (64,))):
        assert case_of(model, x[:10], x[10:], input_shape=(1, 8, 8)).private.is_image
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 1))
    assert case_of(conv, x[:10], x[10:]).private.shape == (1, 8, 8)


# Does the model fit? ------------------------------------------------------------------------------------------


def squared(phi: Tensor, y: Tensor) -> Tensor:
    return (phi - y).square().mean()


VALUES = torch.stack([X[:, 0], X[:, 2]], 1) + 0.7 * torch.randn(2 * N, 2, generator=RANDOM)
LABELS = torch.stack([X[:, 0] > 0, X[:, 1] + X[:, 2] > 0], 1).float()


@pytest.fixture(scope="module")
def regression() -> nn.Module:
    return train(mlp(D, 2, 300), X[:N], VALUES[:N], squared)


@pytest.fixture(scope="module")
def multi_label() -> nn.Module:
    return train(mlp(D, 2), X[:N], LABELS[:N], nn.functional.binary_cross_entropy_with_logits)


def case_from(model: nn.Module, y: Tensor, x: Tensor = X) -> Case:
    return case_of(model, (x[:N], y[:N]), (x[N:], y[N:]))


def test_a_regression_is_judged_by_the_variance_it_explains(regression: nn.Module) -> None:
    found = check_data(case_from(regression, VALUES))
    assert (found.fits, found.measure, found.chance) == (True, "variance explained", 0)
    assert found.private_accuracy is not None
    assert found.unseen_accuracy is not None
    assert found.private_accuracy > max(0.9, found.unseen_accuracy)
    rescaled = check_data(case_from(regression, VALUES * 1000 - 5))  # as it is before training standardises it
    assert rescaled.private_accuracy == pytest.approx(found.private_accuracy, abs=1e-3)
    net = regression(X[:N]).detach()
    share = 1 - (net - VALUES[:N]).square().mean(0) / VALUES[:N].var(0, correction=0)
    assert found.private_accuracy == pytest.approx(float(share.mean()), abs=0.02)


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (X, VALUES.flip(0), "explains .* of the variance of the private samples’ y, where guessing gets 0%"),
        (X, -VALUES, "explains 0% of the variance .*, where guessing gets 0%"),
        (X.roll(N, 0), VALUES.roll(N, 0), "but .* of the unseen ones: were the two swapped"),
    ],
)
def test_a_regression_on_other_data_is_refused(x: Tensor, y: Tensor, says: str, regression: nn.Module) -> None:
    with pytest.raises(DataCheckError, match=says):
        audit(regression, (x[:N], y[:N]), (x[N:], y[N:]))


def test_the_form_of_a_regression_s_data_is_found(regression: nn.Module) -> None:
    found = check_data(case_from(regression, VALUES, X * 30 + 100))
    assert not found.fits
    assert "with each value standardised the model explains 9" in (found.likely_cause or "")


def test_labels_are_judged_one_by_one(multi_label: nn.Module) -> None:
    found = check_data(case_from(multi_label, LABELS))
    assert (found.fits, found.measure) == (True, "accuracy per label")
    right = (multi_label(X[:N]) > 0) == (LABELS[:N] > 0)
    assert found.private_accuracy == pytest.approx(float(right.float().mean()), abs=1e-6)
    assert found.chance == pytest.approx(0.5, abs=0.1)
    others = check_data(case_from(multi_label, 1 - LABELS))
    assert not others.fits
    assert "gets 0% of the private samples’ labels right" in others.reasons[0]


def test_the_chance_of_a_pairing_is_that_of_any_order() -> None:
    a, b = torch.randn(300, 2, generator=RANDOM), torch.randn(300, 2, generator=RANDOM)
    sums = torch.stack([(a * b[torch.randperm(300, generator=RANDOM)]).sum() for _ in range(4000)])
    assert p_pairing(a, b) == pytest.approx(float((sums >= (a * b).sum()).float().mean()), abs=0.03)
    assert p_pairing(torch.ones(5, 1), torch.arange(5.0)[:, None]) == 1.0
    assert p_pairing(torch.arange(5.0)[:, None], torch.ones(5, 1)) == 0.0


def test_no_answer_is_the_label_of_any_sample(of_three: nn.Module) -> None:
    """Which has no variance, and once was a division by zero."""
    wide = mlp(D, 5)
    for parameter in wide[3].parameters():
        parameter.data[3:] = -100
    y = 3 + torch.arange(2 * N) % 2
    assert not check_data(case_from(wide, y)).fits


def test_without_labels_an_audit_runs_and_says_what_it_did_not_check(of_three: nn.Module) -> None:
    result = audit(of_three, X[:N], X[N:], attack="unmix")
    check = result.record.data_check
    assert (check.measure, check.private_accuracy, check.fits) == ("none", None, True)
    assert result.verdict == "inconclusive"
    assert any(reason.startswith("the samples have no labels") for reason in result.record.reasons)
    assert result.record.class_names == ["all"]
    assert "The samples have no labels" in result.to_html()
    phi = outputs(of_three, X[:N])
    assert torch.allclose(result.arrays["output"], phi.amax(1), atol=1e-5)


def test_an_audit_of_a_regression_runs(regression: nn.Module) -> None:
    result = audit(regression, (X[:N], VALUES[:N]), (X[N:], VALUES[N:]), attack="unmix")
    assert result.record.data_check.measure == "variance explained"
    assert result.to_html()


# Files --------------------------------------------------------------------------------------------------------


def write_csv(path: Path, header: list[str] | None, rows: list[list[Any]], delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([header] if header else [])
        writer.writerows(rows)
    return path


ROWS_OF_TEXT = [[1.5, 2, "b"], [3, -4e2, "a"], [5, 6, "b"]]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_with_a_header(tmp_path: Path, delimiter: str) -> None:
    path = write_csv(tmp_path / "a.csv", ["age", "size", "kind"], ROWS_OF_TEXT, delimiter)
    train = read_source(f"csv:{path}:kind").train
    assert train.raw.tolist() == [[1.5, 2], [3, -400], [5, 6]]
    assert (train.class_names, train.labels.tolist()) == (("a", "b"), [1, 0, 1])
    assert train.take([0]).feature_names == ("age", "size")


def test_a_table_without_a_header_or_labels(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", None, [[1, 2, 0.5], [3, 4, 1.5]])
    train = read_source(f"csv:{path}").train
    assert (train.raw.tolist(), train.class_names, train.feature_names) == (
        [[1, 2, 0.5], [3, 4, 1.5]],
        ONE_CLASS,
        None,
    )
    assert train.take([1]).truth == "nothing"
    by_place = read_source(f"csv:{path}:2").train
    assert by_place.take([1, 0]).targets.tolist() == [[1.5], [0.5]]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("content", "column", "says"),
    [
        ("a,b\n1,2\n3,x\n", "", "column 'b' is text .'x' in line 3.; encode it as the model saw it"),
        ("a,b\n1,\n", "", "column 'b' is empty in line 2; encode it"),
        ("a,b\n1,2\n1,2,3\n", "", "line 3 has 3 values, expected 2"),
        ("a,b\n1,nan\n", "", "1 values of x are not finite"),
        ("a,b\n1,2\n", ":c", "there is no column 'c'; it has a, b"),
        ("a,b\n", "", "contains no samples"),
        ("", "", "contains no samples"),
        ("a,b\n1,\x00\n\xff", "", "cannot be read|is text"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path: Path, content: str, column: str, says: str) -> None:
    (tmp_path / "a.csv").write_bytes(content.encode("latin-1"))
    with pytest.raises(UnfitError, match=f"a.csv: .*({says})"):
        read_source(f"csv:{tmp_path}/a.csv{column}")


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    FRAME.assign(kind=np.where(Y[:N] == 1, "one", "other")).to_parquet(path)
    train = read_source(f"parquet:{path}:kind").train
    np.testing.assert_allclose(train.raw, X[:N].numpy())
    assert (train.class_names, train.feature_names) == (("one", "other"), tuple(COLUMNS))
    with pytest.raises(UnfitError, match=r"column 'kind' is not of numbers .*; encode it as the model saw it"):
        read_source(f"parquet:{path}")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UnfitError, match="cannot be read"):
        read_source(f"parquet:{path}")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UnfitError, match=r"pip install 'unfit\[parquet\]'"):
        read_source(f"parquet:{path}")


@pytest.mark.parametrize("content", ["\n".join(COLUMNS), "\n".join(COLUMNS) + "\n", json.dumps(COLUMNS)])
def test_names_of_columns_from_a_file(tmp_path: Path, of_three: nn.Module, content: str) -> None:
    (tmp_path / "names").write_text(content)
    case = read_case(request(tmp_path, of_three, X, Y, feature_names=tmp_path / "names"))
    assert case.private.feature_names == tuple(COLUMNS)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"age", "`feature_names` has 1 names, the samples have 6 columns"),
        (b"[1, 2]", "expected a JSON list of names, all of them strings"),
        (b'["age"', "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (None, "does not exist"),
    ],
)
def test_names_of_columns_that_cannot_be_used(
    tmp_path: Path, of_three: nn.Module, content: bytes | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "names").write_bytes(content)
    with pytest.raises(UnfitError, match=says):
        read_case(request(tmp_path, of_three, X, Y, feature_names=tmp_path / "names"))


def test_names_of_columns_on_the_command_line(run: Run, tmp_path: Path, of_three: nn.Module) -> None:
    (tmp_path / "names").write_text("age")
    parts = [npz(tmp_path / f"{i}.npz", X[i::2], Y[i::2]) for i in (0, 1)]
    words = ("--data", parts[0], "--unseen", parts[1], "--feature-names", tmp_path / "names")
    code, _, said = run("audit", saved(of_three, tmp_path / "m.pt"), *words, "--out", tmp_path / "b")
    assert code == 64, said
    assert "--feature-names has 1 names, the samples have 6 columns" in said


def test_names_of_columns_are_those_of_tables(of_three: nn.Module) -> None:
    """Of pictures they would be wrong, and of features those of other columns."""
    both = (X[:N], Y[:N]), (X[N:], Y[N:])
    assert case_of(of_three, *both, feature_names=np.array(COLUMNS)).private.feature_names == tuple(COLUMNS)
    with pytest.raises(UsageError, match="features, which a model made"):
        case_of(of_three, *both, layer="3", feature_names=COLUMNS)
    table = (FRAME, Y[:N]), (FRAME + 1, Y[N:])
    assert case_of(of_three, *table).private.feature_names == tuple(COLUMNS)
    assert case_of(of_three, *table, layer="3").private.feature_names is None
    with pytest.raises(UsageError, match="these samples are images"):
        case_of(
            mlp(64, 3), *((x.repeat(1, 11)[:, :64].view(-1, 1, 8, 8), y) for x, y in both), feature_names=COLUMNS
        )


def test_two_files_of_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", X.numpy())
    np.save(tmp_path / "y.npy", VALUES.numpy())
    monkeypatch.chdir(tmp_path)
    source = read_source("npy:x.npy,y.npy")
    assert source.name == f"npy:{tmp_path}/x.npy,{tmp_path}/y.npy"
    taken = source.train.take([3])
    assert torch.equal(taken.x, X[3:4])
    assert torch.equal(taken.targets, VALUES[3:4])  # type: ignore[arg-type]
    assert read_source("npy:x.npy").train.take([0]).truth == "nothing"
    header = np.lib.format.magic(1, 0) + struct.pack("<H", 118)
    header += b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000000), }".ljust(117) + b"\n"
    (tmp_path / "x.npy").write_bytes(header)
    with pytest.raises(UnfitError, match="GiB of data; the limit is 2 GiB"):
        read_source("npy:x.npy")


def test_images_are_brought_to_one_size(tmp_path: Path) -> None:
    for i, size in enumerate(((40, 30), (20, 20))):
        Image.fromarray(np.full((*size, 3), 100 * i, np.uint8)).save(tmp_path / f"{i}.png")
    with pytest.raises(UnfitError, match=r"must have one size: .*; see `resize`"):
        read_source(f"images:{tmp_path}")
    train = read_source(f"images:{tmp_path}", resize=(9, 8)).train
    assert (train.raw.shape, train.class_names) == ((2, 3, 9, 8), ONE_CLASS)
    assert train.raw[:, 0, 0, 0].tolist() == [0, 100]
    with pytest.raises(UsageError, match="`resize` is for images:DIR"):
        read_source("faces", resize=(9, 8))


# The command line ---------------------------------------------------------------------------------------------


def npz(path: Path, x: Any, y: Any = None) -> str:
    np.savez(path, x=x, **({} if y is None else {"y": y}))
    return f"npz:{path}"


def saved(model: nn.Module, path: Path) -> Path:
    torch.save(model.state_dict(), path)
    return path


def request(tmp_path: Path, model: nn.Module, x: Tensor, y: Any, **more: Any) -> AuditRequest:
    data, unseen = (
        npz(tmp_path / f"{name}.npz", x[at], None if y is None else y[at])
        for name, at in (("a", slice(0, N)), ("b", slice(N, 2 * N)))
    )
    return AuditRequest(target=saved(model, tmp_path / "model.pt"), data=data, unseen=unseen, **more)


def test_a_class_that_no_sample_has_keeps_its_place(tmp_path: Path, of_three: nn.Module) -> None:
    """Labels 0 and 2 only, and unseen samples that lack one of them would once have been renumbered."""
    y = torch.where(Y == 1, 2, Y)
    case = read_case(request(tmp_path, of_three, X, y.numpy()))
    assert case.private.class_names == case.unseen.class_names == ("0", "1", "2")
    assert torch.equal(case.private.y, y[:N])
    assert set(case.unseen.y.tolist()) == {0, 2}


def test_unseen_classes_are_matched_by_name(tmp_path: Path, of_three: nn.Module) -> None:
    names = np.array(["ant", "bee", "cat"])[Y.numpy()]
    asked = request(tmp_path, of_three, X, names)
    extra = np.array(["aardvark"] * 5 + names[N + 5 :].tolist())
    npz(tmp_path / "b.npz", X[N:].numpy(), extra)
    case = read_case(asked)
    found = [names[N + i] for i in case.unseen.indices.tolist()]
    assert [case.unseen.class_names[label] for label in case.unseen.y] == found


@pytest.mark.parametrize("y", [None, VALUES.numpy()])
def test_files_and_arrays_are_the_same_case(tmp_path: Path, regression: nn.Module, y: Any) -> None:
    case = read_case(request(tmp_path, regression, X, y))
    again = case_of(regression, X[:N] if y is None else (X[:N], y[:N]), X[N:] if y is None else (X[N:], y[N:]))
    assert torch.equal(case.private.centred(case.mean).x, again.private.centred(again.mean).x)
    assert (case.private.truth, case.inputs) == (again.private.truth, "as they are")
    fits, also = check_data(case), check_data(again)
    assert (fits.private_accuracy, fits.p_value) == (pytest.approx(also.private_accuracy), also.p_value)


def test_whole_numbers_for_a_single_output_are_a_regression(tmp_path: Path) -> None:
    ages = (X[:, 0] * 10).round() + 40
    model = train(mlp(D, 1), X[:N], (ages[:N, None] - 40) / 10, squared)
    case = read_case(request(tmp_path, model, X, ages.long().numpy()))
    assert case.private.truth == "values"
    assert torch.equal(case.private.targets, ages[:N, None])  # type: ignore[arg-type]
    assert check_data(case).fits


@pytest.mark.parametrize(
    ("options", "seen", "words"),
    [
        ({}, lambda x: x, "as they are"),
        ({"as_is": True}, lambda x: x, "as they are"),
        ({"center": True}, lambda x: x - x[:N].mean(0), "minus the mean of the training samples"),
        ({"scale": "1/4"}, lambda x: x / 4, "times 0.25"),
        ({"mean": "0.5", "std": 0.25}, lambda x: (x - 0.5) / 0.25, "minus 0.5, divided by 0.25"),
        (
            {"scale": 2, "mean": (0.1, 0.2, 0.3), "std": "1,2,3"},
            lambda x: (
                (2 * x - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor([1.0, 2, 3])[:, None, None]
            ),
            "times 2, minus 0.1, 0.2, 0.3, divided by 1, 2, 3",
        ),
    ],
)
def test_the_net_sees_pictures_as_told(
    tmp_path: Path, options: dict[str, Any], seen: Callable[[Tensor], Tensor], words: str
) -> None:
    images = torch.randint(0, 256, (2 * N, 3, 8, 8), dtype=torch.uint8, generator=RANDOM)
    case = read_case(request(tmp_path, mlp(192, 2), images, None, **options))
    for samples, at in ((case.private, slice(0, N)), (case.unseen, None)):
        inputs = samples.centred(case.mean).x
        at = N + samples.indices if at is None else at
        assert torch.allclose(inputs, seen(images / 255)[at], atol=1e-5)
        assert float(samples.x.min()) >= -1e-6
        assert float(samples.x.max()) <= 1 + 1e-6
    assert case.inputs == words


def test_centred_pictures_may_have_any_range(tmp_path: Path) -> None:
    images = 8 * torch.rand(2 * N, 1, 8, 8, generator=RANDOM) - 3
    case = read_case(request(tmp_path, mlp(64, 2), images, None, center=True))
    assert torch.allclose(
        case.private.centred(case.mean).x, images[:N] - images[:N].mean(0, keepdim=True), atol=1e-5
    )
    assert (float(case.private.x.min()) >= 0, float(case.private.x.max()) <= 1 + 1e-6) == (True, True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"center": True, "mean": 0.5}, "`center` and `mean` contradict one another"),
        ({"as_is": True, "center": True}, "`center` and `as_is` contradict"),
        ({"std": "0.5,0"}, "expected numbers above 0, found 0"),
        ({"mean": "1,two"}, "'1,two' is not a number such as 0.5"),
        ({"scale": "1/0"}, "'1/0' is not a number"),
        ({"resize": "32by32"}, "'32by32' is not a size such as 32 or 32x32"),
        ({"input_shape": "0x8"}, "expected numbers above 0"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        AuditRequest(target="a", **options)


def test_numbers_for_other_channels_or_shapes_are_refused(tmp_path: Path, of_three: nn.Module) -> None:
    with pytest.raises(UsageError, match="`mean` has 2 numbers, the samples have 6 columns: one, or one for each"):
        read_case(request(tmp_path, of_three, X, Y.numpy(), mean="1,2"))
    with pytest.raises(UsageError, match=r"`input_shape` \(1, 2, 4\) does not fit the model, which takes \(6,\)"):
        read_case(request(tmp_path, of_three, X, Y.numpy(), input_shape="2x4"))


def test_the_shape_of_the_data_decides_what_the_inputs_are(tmp_path: Path) -> None:
    x, digits = torch.rand(2 * N, 64), torch.rand(2 * N, 784)
    cases = [
        read_case(request(tmp_path, mlp(each[0].numel(), 2, 5), each, None, **more))
        for each, more in (
            (x, {}),
            (x, {"input_shape": "8x8"}),
            (x.view(-1, 4, 16), {}),
            (digits, {}),
            (digits, {"input_shape": "784"}),
        )
    ]
    shapes = [(64,), (1, 8, 8), (1, 4, 16), (1, 28, 28), (784,)]
    assert [case.target.architecture.input_shape for case in cases] == shapes
    assert [case.private.shape for case in cases] == shapes


def test_a_flag_is_named_for_the_form_that_fits(run: Run, tmp_path: Path) -> None:
    """Trained on centred vectors far from zero; told nothing, the audit says what to tell it."""
    x = X + 100
    model = train(mlp(D, 3), x[:N] - x[:N].mean(0), Y[:N], nn.functional.cross_entropy)
    asked = request(tmp_path, model, x, Y.numpy())
    words = ("audit", asked.target, "--data", asked.data, "--unseen", asked.unseen, "--method", "unmix")
    code, _, error = run(*words, "--out", tmp_path / "out")
    assert code == 3
    assert "with the mean of the training samples subtracted" in error
    assert "pass --center" in error
    code, said, _ = run(*words, "--center", "--verbose", "--out", tmp_path / "out")
    assert code == 3  # 30 records of so few columns: nothing here can separate samples
    assert (
        "the model is taken to have received the samples minus the mean of the training samples; accuracy 1"
        in said
    )


def test_members_as_a_plain_list(tmp_path: Path, of_three: nn.Module) -> None:
    asked = request(tmp_path, of_three, X, Y.numpy(), members=tmp_path / "members.json")
    for content, says in (
        (list(range(0, N, 2)), None),
        ({"indices": [4, 2]}, None),
        ([1], "at least 2 items"),
        ([1, 2**63], "less than 9223372036854775808"),
        ([1, -5], "there is no sample -5"),
        ([1, "a"], "valid integer"),
        (7, "valid dictionary"),
    ):
        (tmp_path / "members.json").write_text(json.dumps(content))
        if says:
            with pytest.raises(UnfitError, match=says):
                private_set(asked)
        else:
            indices = content["indices"] if isinstance(content, dict) else content
            assert private_set(asked)[1].indices.tolist() == indices


def test_the_command_line_and_python_agree(run: Run, tmp_path: Path) -> None:
    """A net trained on normalised faces, from a folder of images of another size."""
    source = read_source("faces")
    members = draw(source, 20, 0).indices.tolist()
    raw = (source.train.raw[:, 0] * 255).astype(np.uint8)
    for i, image in enumerate(raw):
        folder = tmp_path / ("train" if i in members else "held") / ("face" if i < 100 else "other")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).resize((30, 30)).save(folder / f"{i:03}.png")
    x, y = zip(*(_images(tmp_path / part) for part in ("train", "held")), strict=True)
    x = tuple((each - 0.45) / 0.2 for each in x)
    architecture = Architecture((1, 20, 20), (500,), 1, (True, True))
    fitted = fit(architecture, (x[0], y[0]), (x[1], y[1]), FitSettings(init=None))
    save_weights(fitted.weights, tmp_path / "model.safetensors")
    save_weights(fitted.initial, tmp_path / "initial.safetensors")
    code, said, _ = run(
        *("audit", tmp_path / "model.safetensors", "--data", f"images:{tmp_path}/train"),
        *("--unseen", f"images:{tmp_path}/held", "--num-unseen", 180, "--method", "unmix"),
        *(
            "--base",
            tmp_path / "initial.safetensors",
            "--resize",
            20,
            "--mean",
            0.45,
            "--std",
            0.2,
            "--out",
            tmp_path / "out",
            "--no-redact",
            "--verbose",
        ),
    )
    assert "the samples minus 0.45, divided by 0.2; accuracy 100%" in said
    record = json.loads((tmp_path / "out" / "audit.json").read_text())
    order = torch.tensor([i for k in (0, 1) for i in (y[1] == k).nonzero()[:, 0].tolist()])
    model, initial = (Target(architecture, weights) for weights in (fitted.weights, fitted.initial))
    again = audit(model, (x[0], y[0]), (x[1][order], y[1][order]), attack="unmix", base=initial)
    assert (record["verdict"], code) == (again.verdict, again.exit_code) == ("leak", 1)
    assert record["num_recognisable"] == again.record.num_recognisable > 5
    assert record["threshold"] == pytest.approx(again.record.threshold, abs=1e-4)
    assert record["repeat"]["resize"] == [20, 20]


def _images(folder: Path) -> tuple[Tensor, Tensor]:
    """As someone's own code would read them."""
    found = [
        (path, label) for label, kind in enumerate(("face", "other")) for path in sorted((folder / kind).iterdir())
    ]
    x = [np.asarray(Image.open(path).resize((20, 20), Image.Resampling.BILINEAR)) / 255 for path, _ in found]
    return torch.tensor(np.stack(x), dtype=torch.float32)[:, None], torch.tensor([label for _, label in found])
