"""Small files that exhaust a machine, files that never end, and files whose structure is not what it says."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import struct
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from unfit import UnfitError, read_source
from unfit.attacker.candidates import load_candidates
from unfit.attacker.sweep.store import read_plan, read_status
from unfit.auditor.audit import load_audit, load_record
from unfit.auditor.sources import kind
from unfit.base.files import parse_json
from unfit.base.formats import read_model
from unfit.base.load import load_target
from unfit.base.nets import MAX_LAYERS
from unfit.lab.controls import fit_settings

Run = Callable[..., tuple[int, str, str]]
MOST_GROWTH = 300 * 2**10  # KiB, of the process: no bomb below has more than a few kilobytes
MOST_SECONDS = 5


@pytest.fixture
def cheap() -> Iterator[None]:
    """What is refused costs neither memory nor time."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_GROWTH
    assert time.process_time() - began < MOST_SECONDS


# Python batches ----------------------------------------------------------------------------------------------

TEXT = b"X" + struct.pack("<I", 100_000) + b"a" * 100_000
ENCODE = b"c_codecs\nencode\n"
PICKLES = {
    "memo index": b"\x80\x02Nr\xff\xff\xff\x1f.",
    "memo index, as text": b"Np99999999\n.",
    "punycode": b"\x80\x02" + ENCODE + TEXT + b"X\x08\x00\x00\x00punycode\x86R.",
    "encoded again and again": b"\x80\x02("
    + TEXT
    + b"q\x01"
    + (ENCODE + b"h\x01X\x06\x00\x00\x00latin1\x86R") * 20_000
    + b"l.",
    "nested tuples": b"\x80\x02)" + b"\x85" * 200_000 + b".",
    "nested tuples as a key": b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.",
    "nested lists": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
    "nested marks": b"\x80\x02" + b"(" * 200_000 + b".",
    "a list in itself": b"\x80\x02]q\x01h\x01a.",
    "a claim of bytes": b"\x80\x03B\xff\xff\xff\x7fabc.",
    "a claim of more bytes": b"\x80\x04\x8e" + b"\xff" * 8 + b".",
    "a number of many digits": b"I" + b"9" * 200_000 + b"\n.",
    "nothing": b"",
    "only a stop": b".",
    "pops nothing": b"0.",
    "a state for a dict": b"\x80\x02}}b.",
    "no such memo": b"\x80\x02h\x07.",
    "far too much to do": b"\x80\x02" + b"N0" * 1_100_000 + b".",
    "an extension": b"\x80\x02\x82\x01.",
    "a persistent id": b"Pabc\n.",
    "a class by its instance": b"(ios\nsystem\n.",
    "new objects": b"\x80\x02cnumpy\nndarray\n)\x81.",
}


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("name", PICKLES)
def test_pickles_that_exhaust_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "data_batch_1").write_bytes(PICKLES[name])
    with pytest.raises(UnfitError, match="data_batch_1: cannot be read"):
        read_source(f"cifar10:{tmp_path}")


def test_numbers_that_an_array_cannot_hold_are_refused(tmp_path: Path) -> None:
    for labels in ([2**70], [True], [[0]], [None], (0,), b"0", {b"a": 1}):
        content = {b"data": np.zeros((1, 3072), np.uint8), b"labels": labels}
        (tmp_path / "data_batch_1").write_bytes(pickle.dumps(content, 2))
        with pytest.raises(UnfitError, match=r"labels must be lists of whole numbers|cannot be read"):
            read_source(f"cifar10:{tmp_path}")


# Arrays and images -------------------------------------------------------------------------------------------


def npy(shape: tuple[int, ...], content: bytes = b"") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.getvalue() + content


@pytest.mark.usefixtures("cheap")
def test_an_npz_is_read_by_the_names_that_were_checked(tmp_path: Path) -> None:
    small = npy((4, 4), bytes(range(16)))
    with zipfile.ZipFile(tmp_path / "set.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", npy((2**20, 2**12), bytes(2**24)))  # numpy would take this one
        archive.writestr("x.npy", small)
    assert read_source(f"npz:{tmp_path / 'set.npz'}").train.raw.tolist() == np.arange(16).reshape(4, 4).tolist()


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("version", [b"\x02\x00", b"\x03\x00"])
def test_a_header_of_gigabytes_is_not_read(tmp_path: Path, version: bytes) -> None:
    initial = b"\x93NUMPY" + version + struct.pack("<I", 2**30)
    with zipfile.ZipFile(tmp_path / "set.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", initial + b" " * 2**24)
    (tmp_path / "x.npy").write_bytes(initial)
    for name in (f"npz:{tmp_path / 'set.npz'}", f"npy:{tmp_path / 'x.npy'}"):
        with pytest.raises(UnfitError, match="a header of 1,073,741,824 bytes"):
            read_source(name)


@pytest.mark.usefixtures("cheap")
def test_images_are_counted_before_they_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    for i in range(4):
        Image.new("1", (8000, 8000)).save(tmp_path / "a" / f"{i}.png")
    monkeypatch.setattr(kind, "MAX_SOURCE", 100 * 2**20)
    with pytest.raises(UnfitError, match=r"the limit is 0\.0976562 GiB, unless UNFIT_MAX_GIB"):
        read_source(f"images:{tmp_path}")
    assert read_source(f"images:{tmp_path}", resize=(8, 8)).train.raw.shape == (4, 1, 8, 8)


def test_the_limit_can_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNFIT_MAX_GIB", "8")
    assert kind._limit() == 8 * 2**30
    monkeypatch.setenv("UNFIT_MAX_GIB", "much")
    with pytest.raises(UnfitError, match="UNFIT_MAX_GIB"):
        kind._limit()


# What never ends ---------------------------------------------------------------------------------------------


def in_place(name: str) -> Callable[[Path], object]:
    return lambda path: read_source(name.format(path))


READERS: dict[str, Callable[[Path], object]] = {
    "npz": in_place("npz:{}"),
    "npy": in_place("npy:{}"),
    "csv": in_place("csv:{}"),
    "parquet": in_place("parquet:{}"),
    "model": read_model,
    "candidates": load_candidates,
    "record": load_record,
    "json": parse_json,
}


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a device", "folder"])
@pytest.mark.parametrize("name", READERS)
def test_only_regular_files_are_read(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(UnfitError):
        READERS[name](path)


def test_pipes_inside_folders_are_not_read(tmp_path: Path, face_page: Path) -> None:
    for name, read in (
        ("a/x.png", in_place("images:{}")),
        ("data_batch_1", in_place("cifar10:{}")),
        ("train-images-idx3-ubyte", in_place("mnist:{}")),
        ("arrays.safetensors", load_audit),
        ("sweep.json", read_plan),
        ("target.safetensors", read_model),
    ):
        folder = tmp_path / name.replace("/", "-")
        (folder / name).parent.mkdir(parents=True)
        os.mkfifo(folder / name)
        if name == "arrays.safetensors":
            (folder / "audit.json").write_bytes((face_page / "audit.json").read_bytes())
        with pytest.raises(UnfitError):
            read(folder)


def test_lists_of_a_sweep_are_regular_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unfit.attacker.sweep.store.read_plan", lambda folder: None)
    (tmp_path / "sweep.json").write_text("{}")
    os.mkfifo(tmp_path / "trials.jsonl")
    with pytest.raises(UnfitError, match="not a regular file"):
        read_status(tmp_path)


def test_a_strangers_run_does_not_train_controls_for_ever(tmp_path: Path) -> None:
    for settings in ({"epochs": 10**9}, {"max_steps": 10**9}):
        (tmp_path / "fit.json").write_text(json.dumps({"settings": settings}))
        with pytest.raises(UnfitError, match="more than 1,000,000 epochs or steps"):
            fit_settings(tmp_path)


def saved(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def test_a_tensor_that_repeats_one_value_is_refused(tmp_path: Path) -> None:
    wide = torch.zeros(1).expand(200, 1_000_000)
    path = saved(tmp_path / "a.pt", {"l1.weight": wide, "l2.weight": torch.zeros(1, 200)})
    assert path.stat().st_size < 10_000
    with pytest.raises(UnfitError, match=r"l1\.weight claims 200,000,000 values, more than the file holds"):
        load_target(path)


def test_tensors_that_share_their_values_are_read(tmp_path: Path) -> None:
    tied = torch.ones(4, 4)
    assert load_target(saved(tmp_path / "a.pt", {"a.weight": tied, "b.weight": tied})).architecture.hidden == (4,)


def test_thousands_of_layers_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {f"l{i}.weight": torch.ones(2, 2) for i in range(MAX_LAYERS + 2)})
    with pytest.raises(UnfitError, match=f"the limit is {MAX_LAYERS}"):
        load_target(path)


def test_deeply_nested_tuples_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt", {"a": torch.zeros(1)})
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(
                name, b"\x80\x02)" + b"\x85" * 200_000 + b"." if name.endswith("data.pkl") else content
            )
    with pytest.raises(UnfitError, match="expected a state dict, found tuple"):
        load_target(path)


def test_an_onnx_tensor_is_as_large_as_its_values(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    for side, error in ((20_000, "not a complete ONNX file"), (200_000, "claims 40,000,000,000 parameters")):
        huge = onnx.TensorProto(name="w", dims=[side, side], data_type=1, raw_data=b"\0" * 4)
        node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
        ends = [onnx.helper.make_tensor_value_info(name, 1, [None, side]) for name in "xy"]
        path = tmp_path / "a.onnx"
        onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", ends[:1], ends[1:], [huge])), path)
        with pytest.raises(UnfitError, match=error):
            load_target(path)
