"""Mutate every kind of file that is read, and read it: an answer or one `UnfitError`, never anything else.

    python benchmarks/fuzz.py [--count 1000] [--seed 0] [--only NAME]

Mutations know the structure of JSON, safetensors, archives, HDF5 and ONNX, and change single bytes of everything. An
input fails that raises anything else, ends the process, takes longer than SLOW seconds, or more than MUCH memory. A
failure is printed with the seed that makes it again; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import joblib
import numpy as np
import onnx
import pyarrow
import skops.io as skops_io
import torch
from onnx import helper, numpy_helper
from PIL import Image
from pyarrow import parquet
from safetensors.torch import save_file
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from unfit import AuditRequest, FitSettings, attack, audit_run, fit_run, read_source, sweep
from unfit.attacker.attacks import Unmix
from unfit.attacker.candidates import save_candidates
from unfit.attacker.sweep.store import read_status
from unfit.auditor.audit import load_audit, load_record
from unfit.auditor.case import private_set
from unfit.auditor.compare import compare
from unfit.auditor.pool import given_pool
from unfit.auditor.report import scan as scan_report
from unfit.auditor.report import write_report
from unfit.auditor.report.card import card
from unfit.auditor.report.junit import junit
from unfit.auditor.report.notebook import show
from unfit.auditor.report.sarif import sarif
from unfit.auditor.report.terminal import plain, show_audit
from unfit.auditor.scan.scan import scan
from unfit.base.errors import UnfitError
from unfit.base.files import write_tensors
from unfit.base.formats import keras, read_model
from unfit.base.held import held_in
from unfit.base.load import load_target
from unfit.lab.controls import fit_settings

SLOW = 20  # seconds for one input, on a busy machine: the files here have a few kilobytes
MUCH = 2**29  # bytes that the peak of memory may grow by
Failure = tuple[str, str]  # what went wrong, and the details
HOSTILE: list[Any] = [
    *(None, True, "", "\ud800", "a\x00\x1b[31m\u202e", "<script>alert(1)</script>", "x" * 10_000, "/etc/passwd"),
    *(0, -1, 2**31, 2**63, 2**64, 10**400, 1e308, -1e308, 5e-324, 0.5, float("nan"), float("inf")),
    *([], {}, [[]], [None] * 3, {"a": {"b": []}}, [0] * 1000, [1e308, -1e308]),
]


# Mutations ----------------------------------------------------------------------------------------------------


def mutated_json(rng: random.Random, content: Any) -> Any:
    """Another value somewhere, or something left out, doubled or renamed."""
    if isinstance(content, dict | list) and content and rng.random() < 0.85:
        copy = dict(content) if isinstance(content, dict) else list(content)
        key = rng.choice(list(copy)) if isinstance(copy, dict) else rng.randrange(len(copy))
        match rng.randrange(8):
            case 0:
                del copy[key]
            case 1 if isinstance(copy, list):
                copy.append(copy[key])
            case 1:
                copy[rng.choice(["", "x", "seed", "method"])] = copy.pop(key)
            case _:
                copy[key] = mutated_json(rng, copy[key])
        return copy
    if isinstance(content, int | float) and rng.random() < 0.3:
        return content + rng.choice([-1, 1, 0.5, 2**53])
    return rng.choice(HOSTILE)


def mutated_bytes(rng: random.Random, content: bytes) -> bytes:
    copy = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(copy) + 1)
        match rng.randrange(5):
            case 0:
                del copy[at:]
            case 1:
                copy[at : at + 1] = bytes([rng.randrange(256)])
            case 2:
                copy[at:at] = rng.randbytes(rng.choice([1, 4, 100]))
            case 3:
                copy[at : at + 4] = struct.pack("<I", rng.choice([0, 1, 2**31, 2**32 - 1]))
            case _:
                del copy[at : at + rng.choice([1, 4, 100])]
    return bytes(copy)


def mutated_safetensors(rng: random.Random, content: bytes) -> bytes:
    """The header and what is inside its JSON, or the values."""
    (size,) = struct.unpack("<Q", content[:8])
    header, values = json.loads(content[8 : 8 + size]), content[8 + size :]
    choice = rng.random()
    if choice < 0.4 and "__metadata__" in header:
        about = mutated_json(rng, json.loads(header["__metadata__"]["unfit"]))
        header["__metadata__"] = {"unfit": json.dumps(about)}
    elif choice < 0.8:
        name = rng.choice([each for each in header if each != "__metadata__"])
        retyped(rng, header[name])
    else:
        values = mutated_bytes(rng, values)[: len(values)].ljust(len(values), b"\xff")
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + values


def retyped(rng: random.Random, entry: dict[str, Any]) -> None:
    """Another type or shape for the same bytes."""
    begin, end = entry["data_offsets"]
    kind, width = rng.choice([("F32", 4), ("F64", 8), ("I64", 8), ("I32", 4), ("U8", 1), ("BOOL", 1), ("F16", 2)])
    if (end - begin) % width == 0:
        num = (end - begin) // width
        entry |= {"dtype": kind, "shape": rng.choice([[num], [1, num], [num, 1], [1, 1, num]])}
        if entry["shape"] == [1] and not num:
            entry["shape"] = [0]


def mutated_zip(rng: random.Random, content: bytes) -> bytes:
    """One member by its own kind, or left out, doubled or renamed; checksums are right."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    at = rng.randrange(len(members))
    name, value = members[at]
    match rng.randrange(10):
        case 0:
            del members[at]
        case 1:
            members.append(members[at])
        case 2:
            members[at] = rng.choice(["x", "../x", "/x", name.upper(), name + "/"]), value
        case _:
            members[at] = name, mutated(rng, Path(name).suffix, value)
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", rng.choice([0, zipfile.ZIP_DEFLATED])) as archive:
        warnings.simplefilter("ignore")  # about names that come twice
        for name, value in members:
            archive.writestr(name, value)
    return file.getvalue()


def mutated_npy(rng: random.Random, content: bytes) -> bytes:
    """Another type, shape or order in the header, of the same length."""
    (size,) = struct.unpack("<H", content[8:10])
    header = content[10 : 10 + size].decode()
    kind, side = rng.choice([">f", "<i", "|O", "<U", "<M", "|b", "<c"]), rng.choice(["(-", "(9,", "(0,", "(9**9,"])
    old, new = rng.choice([("<f", kind), ("False", "True "), ("(", side), ("shape", "shap\x00")])
    header = header.replace(old, new, 1)[:size].ljust(size)
    return content[:10] + header.encode() + content[10 + size :]


def mutated_h5(rng: random.Random, content: bytes) -> bytes:
    """An attribute or an array of another kind, one left out, or a link."""
    file = io.BytesIO(content)
    with h5py.File(file, "r+") as root:
        names: list[str] = []
        root.visit(names.append)
        group = root[rng.choice(names)] if rng.random() < 0.6 else root
        if len(group.attrs) and rng.random() < 0.7:
            name = rng.choice(sorted(group.attrs))
            group.attrs[name] = _other_attribute(rng, group.attrs[name])
        elif isinstance(group, h5py.Dataset):
            parent, name, old = group.parent, group.name, group[()]
            del parent[name]
            _put(rng, parent, name, old)
        elif len(group):
            del group[rng.choice(sorted(group))]
    return file.getvalue()


def _other_attribute(rng: random.Random, old: Any) -> Any:
    if isinstance(old, str | bytes) and rng.random() < 0.9:
        return json.dumps(mutated_json(rng, json.loads(old)))
    return rng.choice([0, -1.5, b"x", "layers", np.zeros((0,)), np.zeros((2, 2)), ["a", "b"], old])


def _put(rng: random.Random, parent: Any, name: str, old: Any) -> None:
    match rng.randrange(7):
        case 0:
            parent[name] = h5py.SoftLink(rng.choice(["/", name, "/nowhere"]))
        case 1:
            parent[name] = h5py.ExternalLink("other.h5", "/")
        case 2:
            parent.create_group(name)
        case 3:
            sides = rng.choice([(2**40,), (2**20, 2**20), (0,)])
            parent.create_dataset(name, sides, "f4", chunks=(1,) * len(sides), maxshape=(None,) * len(sides))
        case 4:
            parent[name] = old.astype(rng.choice(["f2", "f8", "i8", "S3", "c8", "b1"]))
        case 5:
            parent[name] = rng.choice([old[:-1], old.T, old[None], np.nan * old, np.asarray(b"text")])
        case _:
            parent[name] = np.asarray(rng.choice([0, b"x", 1e308]))


def mutated_onnx(rng: random.Random, content: bytes) -> bytes:
    """Another operator, input, attribute or shape in the graph, or a node or tensor less."""
    model = onnx.load_from_string(content)
    graph = model.graph
    node, tensor = rng.choice(list(graph.node)), rng.choice(list(graph.initializer))
    names = [name for each in graph.node for name in (*each.input, *each.output)] + ["", "nothing"]
    match rng.randrange(9):
        case 0:
            node.op_type = rng.choice(
                ["Gemm", "MatMul", "Add", "Relu", "Reshape", "Conv", "Loop", "Constant", "Cast"]
            )
        case 1:
            node.input[rng.randrange(len(node.input))] = rng.choice(names)
        case 2:
            node.output[0] = rng.choice(names)
        case 3:
            value = rng.choice([0, -1, 2**40, 1e308, "x", [1, 2], [2**62] * 8, []])
            name = rng.choice(["axis", "perm", "transA", "transB", "alpha", "kernel_shape", "to", "value"])
            node.attribute.append(helper.make_attribute(name, value, attr_type=None if value != [] else 7))
        case 4:
            tensor.dims[:] = rng.choice([[], [0], [-1], [2**31, 2**31], [1] * 40, [*tensor.dims, 1]])
        case 5:
            tensor.data_type = rng.randrange(30)
        case 6:
            graph.node.remove(node)
        case 7:
            tensor.name = rng.choice(names)
        case _:
            graph.node.insert(rng.randrange(len(graph.node)), node)
    return bytes(model.SerializeToString())


STRUCTURED: dict[str, Callable[[random.Random, bytes], bytes]] = {
    **dict.fromkeys((".zip", ".npz", ".pt", ".keras", ".skops"), mutated_zip),
    ".safetensors": mutated_safetensors,
    ".npy": mutated_npy,
    ".h5": mutated_h5,
    ".onnx": mutated_onnx,
}


def mutated(rng: random.Random, suffix: str, content: bytes) -> bytes:
    if suffix == ".json" and rng.random() < 0.8:
        return json.dumps(mutated_json(rng, json.loads(content))).encode()
    if suffix == ".jsonl" and rng.random() < 0.8:
        lines = content.splitlines()
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(mutated_json(rng, json.loads(lines[at]))).encode()
        return b"\n".join(lines) + b"\n"
    if suffix in STRUCTURED and rng.random() < 0.8:
        return STRUCTURED[suffix](rng, content)
    return mutated_bytes(rng, content)


# What is read -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """A file of a folder that is mutated, and what is done with it."""

    file: Path
    read: Callable[[], object]


def shown(folder: Path) -> None:
    """All that is made from an audit's folder."""
    audit = load_audit(folder)
    write_report(audit.record, audit.arrays, folder)
    show(audit.record, audit.arrays)
    for make in (junit, sarif, card):
        make(audit.record).encode()
    plain(show_audit(audit.record), 80).encode()


def compared(old: Path, new: Path) -> None:
    compare(load_record(old), load_record(new))
    compare(load_record(new), load_record(old))


def readers(folder: Path) -> dict[str, Reader]:
    """Everything is made once, small."""
    run, audit = folder / "run", folder / "audit"
    run.mkdir()
    audit.mkdir()
    rng = np.random.default_rng(0)
    np.savez(run / "set.npz", x=rng.random((40, 1, 8, 8), np.float32), y=np.arange(40) % 2)
    fit_run(read_source(f"npz:{run / 'set.npz'}"), 8, run, FitSettings(method="gd", epochs=5), "20")
    made = audit_run(AuditRequest(target=run, attack=Unmix()))
    made.save(audit)
    shutil.copytree(audit, folder / "other")
    target = load_target(run)
    save_candidates(attack(target, "weights"), folder / "candidates.safetensors")
    sweep(target, 2, folder / "sweep", Unmix(), workers=1)
    return {
        "audit.json, page": Reader(audit / "audit.json", lambda: shown(audit)),
        "audit.json, diff": Reader(folder / "other" / "audit.json", lambda: compared(audit, folder / "other")),
        "arrays": Reader(audit / "arrays.safetensors", lambda: shown(audit)),
        "candidates": Reader(
            folder / "candidates.safetensors", lambda: given_pool(folder / "candidates.safetensors", target).sha256
        ),
        "sweep.json": Reader(folder / "sweep" / "sweep.json", lambda: pooled(folder / "sweep", target)),
        "trials.jsonl": Reader(folder / "sweep" / "trials.jsonl", lambda: pooled(folder / "sweep", target)),
        "begun.jsonl": Reader(folder / "sweep" / "begun.jsonl", lambda: read_status(folder / "sweep").words),
        "trial": Reader(
            folder / "sweep" / "trials" / "00000.safetensors", lambda: pooled(folder / "sweep", target)
        ),
        "members.json": Reader(run / "members.json", lambda: private_set(AuditRequest(target=run))),
        "fit.json": Reader(run / "fit.json", lambda: fit_settings(run)),
        "target.json": Reader(run / "target.json", lambda: load_target(run)),
        "target": Reader(run / "target.safetensors", lambda: load_target(run)),
        "update": update_reader(folder / "update.npz", run),
        **checkpoint_readers(folder / "checkpoints"),
        **data_readers(folder / "data"),
        **scan_readers(folder / "scan"),
    }


class Hostile:
    """What a pickle of this would run, if anything ran."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def scan_readers(folder: Path) -> dict[str, Reader]:
    """Files of every kind that a scan reads as inert trees; none of them may run what it names.

    `read, …` is the reader alone, fast enough for very many inputs; `scan, …` compares and reports as well.
    """
    folder.mkdir()
    rng = np.random.default_rng(0)
    x, mark = rng.random((20, 4)), folder / "executed"
    model = make_pipeline(StandardScaler(), SVC()).fit(x, np.arange(20) % 2)
    words = make_pipeline(TfidfVectorizer(), KNeighborsClassifier(1)).fit(["one word", "other words"], [0, 1])
    net = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU())
    joblib.dump(model, folder / "model.joblib")
    joblib.dump(words, folder / "packed.joblib", compress=3)
    (folder / "old.pkl").write_bytes(pickle.dumps(words, 0))
    (folder / "new.pkl").write_bytes(pickle.dumps([model, Hostile(mark)], 5))
    torch.save([net, Hostile(mark)], folder / "net.pt")
    torch.save([net, Hostile(mark)], folder / "legacy.pth", _use_new_zipfile_serialization=False)
    skops_io.dump(words, folder / "words.skops")
    plain_files(folder, x)

    def whole(file: Path) -> None:
        record = scan(file, x[:10], x[10:])
        for render in (scan_report.text, scan_report.page, scan_report.sarif, scan_report.junit):
            render(record).encode()
        unrun()

    def alone(file: Path) -> None:
        held_in(file)
        unrun()

    def unrun() -> None:
        if mark.exists():
            raise AssertionError("a file was executed")

    files = sorted(folder.iterdir())
    ways: list[tuple[str, Callable[[Path], None]]] = [("scan", whole), ("read", alone)]
    return {f"{way}, {file.name}": Reader(file, partial(read, file)) for way, read in ways for file in files}


def plain_files(folder: Path, x: Any) -> None:
    """Kinds that are arrays and texts, each with samples."""
    texts = {"note": "one word", "unfit": json.dumps({"x": [1, 2]})}
    save_file({"kept": torch.from_numpy(x)}, folder / "kept.safetensors", texts)
    np.savez(folder / "kept.npz", x=x, names=np.array(["one", "two"]))
    np.save(folder / "kept.npy", np.array([{"x": x}, Hostile(folder / "executed")], dtype=object))
    with h5py.File(folder / "kept.h5", "w") as file:
        file["group/kept"] = x
        file["group"].attrs["words"] = ["one", "two"]
    kept = numpy_helper.from_array(x, "kept")
    node = helper.make_node("SVMClassifier", ["x"], ["y"], domain="ai.onnx.ml", support_vectors=x.ravel().tolist())
    onnx.save(helper.make_model(helper.make_graph([node], "g", [], [], [kept])), folder / "kept.onnx")
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"one": 0, "two": 1}}}))


def update_reader(file: Path, run: Path) -> Reader:
    np.savez(file, *(0.01 * np.ones(value.shape, np.float32) for value in load_target(run).weights.values()))
    return Reader(file, lambda: load_target(base=run, update=file))


def pooled(folder: Path, target: Any) -> None:
    pool = given_pool(folder, target)
    _ = pool.sha256, read_status(folder).words


def data_readers(folder: Path) -> dict[str, Reader]:
    rng = np.random.default_rng(0)
    for name in ("py", "bin", "idx", "images/a"):
        (folder / name).mkdir(parents=True)
    batch = {b"data": rng.integers(0, 255, (3, 3072), np.uint8), b"labels": [0, 1, 2]}
    (folder / "py" / "data_batch_1").write_bytes(pickle.dumps(batch, 2))
    (folder / "bin" / "data_batch_1.bin").write_bytes(rng.integers(0, 9, (3, 3073), np.uint8).tobytes())
    (folder / "idx" / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, 2, 3, 3) + bytes(18))
    (folder / "idx" / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 2) + bytes(2))
    np.savez(folder / "set.npz", x=rng.random((4, 5)), y=np.arange(4))
    np.save(folder / "x.npy", rng.random((4, 5)))
    (folder / "x.csv").write_text("a,b,c\n1,2,3\n4,5,6\n")
    parquet.write_table(pyarrow.table({"a": [1.0, 2.0], "b": [3.0, 4.0], "c": [0, 1]}), folder / "x.parquet")
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (6, 6, 3), np.uint8)).save(file, "PNG")
    (folder / "images" / "a" / "0.png").write_bytes(file.getvalue())
    sources = {
        "cifar, Python": ("py/data_batch_1", "cifar10:{}/py"),
        "cifar, binary": ("bin/data_batch_1.bin", "cifar10:{}/bin"),
        "idx": ("idx/train-images-idx3-ubyte", "mnist:{}/idx"),
        "npz": ("set.npz", "npz:{}/set.npz"),
        "npy": ("x.npy", "npy:{}/x.npy"),
        "csv": ("x.csv", "csv:{}/x.csv:c"),
        "parquet": ("x.parquet", "parquet:{}/x.parquet:c"),
        "png": ("images/a/0.png", "images:{}/images"),
    }
    return {name: source_reader(folder / file, form.format(folder)) for name, (file, form) in sources.items()}


LAYERS = (6, 4, 2)


def checkpoint_readers(folder: Path) -> dict[str, Reader]:
    """A net of three inputs … in every format, written by hand where its package is not needed for that."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    weights = [rng.random((b, a), np.float32) for a, b in pairwise(LAYERS)]
    biases = [rng.random(b, np.float32) for b in LAYERS[1:]]
    named = {
        f"{i}.{kind}": value for i in (0, 1) for kind, value in zip(KINDS, (weights[i], biases[i]), strict=True)
    }
    torch.save({name: torch.from_numpy(value) for name, value in named.items()}, folder / "net.pt")
    np.savez(folder / "net.npz", **named)
    write_onnx(folder / "net.onnx", named)
    write_keras(folder, weights, biases)
    write_skops(folder / "net.skops", weights, biases)
    files = ("net.pt", "net.npz", "net.onnx", "net.keras", "net.h5", "net.skops")
    return {f"checkpoint, {Path(name).suffix}": model_reader(folder / name) for name in files} | {
        "trainer's checkpoint": trainer_reader(folder / "trainer.pt"),
        "shards": shards_reader(folder / "shards", named),
        "adapter": adapter_reader(folder / "adapter", named),
    }


KINDS = ("weight", "bias")


def model_reader(file: Path) -> Reader:
    return Reader(file, lambda: read_model(file))


def trainer_reader(file: Path) -> Reader:
    """Weights, and the state of the optimiser that made them."""
    net = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    optimiser = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 6)).sum().backward()
    optimiser.step()
    torch.save({"model": net.state_dict(), "optimizer": optimiser.state_dict(), "epoch": 1}, file)
    return Reader(file, lambda: load_target(file))


def write_onnx(path: Path, named: dict[str, Any]) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "0.weight", "0.bias"], ["a"], transB=1),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Gemm", ["b", "1.weight", "1.bias"], ["y"], transB=1),
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in named.items()]
    ends = [
        helper.make_tensor_value_info(name, 1, ["n", size]) for name, size in (("x", LAYERS[0]), ("y", LAYERS[-1]))
    ]
    onnx.save(helper.make_model(helper.make_graph(nodes, "net", ends[:1], ends[1:], tensors)), path)


def write_keras(folder: Path, weights: list[Any], biases: list[Any]) -> None:
    first = {"class_name": "InputLayer", "config": {"name": "in", "batch_shape": [None, LAYERS[0]]}}
    dense = [
        {
            "class_name": "Dense",
            "config": {"name": f"d{i}", "units": LAYERS[i + 1], "activation": name, "use_bias": True},
        }
        for i, name in enumerate(("relu", "softmax"))
    ]
    config = {"class_name": "Sequential", "config": {"name": "net", "layers": [first, *dense]}}
    inner = io.BytesIO()
    with h5py.File(inner, "w") as new, h5py.File(folder / "net.h5", "w") as old:
        old.attrs["model_config"] = json.dumps(config)
        old.create_group("model_weights").attrs["layer_names"] = ["d0", "d1"]
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            group = old.create_group(f"model_weights/d{i}")
            group.attrs["weight_names"] = ["k", "b"]
            group["k"], group["b"] = weight.T, bias
            inside = new.create_group(f"layers/{('dense', 'dense_1')[i]}/vars")
            inside["0"], inside["1"] = weight.T, bias
    with zipfile.ZipFile(folder / "net.keras", "w") as archive:
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("model.weights.h5", inner.getvalue())


def write_skops(path: Path, weights: list[Any], biases: list[Any]) -> None:
    with zipfile.ZipFile(path, "w") as archive:

        def array(value: Any) -> dict[str, Any]:
            name, file = f"{len(archive.namelist())}.npy", io.BytesIO()
            np.save(file, value)
            archive.writestr(name, file.getvalue())
            return {"__class__": "ndarray", "__loader__": "NdArrayNode", "type": "numpy", "file": name}

        def several(values: list[Any]) -> dict[str, Any]:
            return {"__class__": "list", "__loader__": "ListNode", "content": [array(each) for each in values]}

        def text(value: str) -> dict[str, Any]:
            return {"__class__": "str", "__loader__": "JsonNode", "content": json.dumps(value)}

        inside = {"coefs_": several([each.T for each in weights]), "intercepts_": several(biases)}
        inside |= {"activation": text("relu"), "out_activation_": text("softmax")}
        state = {"__class__": "dict", "__loader__": "DictNode", "content": inside}
        schema = {"__class__": "MLPClassifier", "__loader__": "ObjectNode", "content": state}
        archive.writestr("schema.json", json.dumps(schema))


def shards_reader(folder: Path, named: dict[str, Any]) -> Reader:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for i, name in enumerate(named):
        write_tensors(folder / f"{i}.safetensors", {name: torch.from_numpy(named[name])})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: f"{i}.safetensors" for i, name in enumerate(named)}}))
    return Reader(index, lambda: read_model(folder))


def adapter_reader(folder: Path, named: dict[str, Any]) -> Reader:
    folder.mkdir()
    config = folder / "adapter_config.json"
    config.write_text(json.dumps({"r": 1, "lora_alpha": 2, "use_rslora": False, "base_model_name_or_path": "x"}))
    base = folder / "base.safetensors"
    write_tensors(base, {name: torch.from_numpy(value) for name, value in named.items()})
    pair = {"lora_A": torch.ones(1, LAYERS[0]), "lora_B": torch.ones(LAYERS[1], 1)}
    write_tensors(
        folder / "adapter_model.safetensors",
        {f"base_model.model.0.{name}.weight": value for name, value in pair.items()},
    )
    return Reader(config, lambda: load_target(folder, base=base))


def source_reader(file: Path, name: str) -> Reader:
    return Reader(file, lambda: read_source(name))


def fuzz(name: str, reader: Reader, count: int, seed: int) -> dict[str, int]:
    """How often each unforeseen error came, by its last line of ours."""
    whole, found, i = reader.file.read_bytes(), dict[str, int](), 0

    def tried(i: int) -> Failure | None:
        reader.file.write_bytes(mutated(random.Random(f"{name} {seed} {i}"), reader.file.suffix, whole))
        return failed(reader.read)

    while i < count:
        ends = [*in_a_child(tried, range(i, count), unrehearsed)]
        if isinstance(ends[-1], signal.Signals):  # it ended the child: once more, as it is read by everybody
            ends[-1] = next(in_a_child(tried, [i + len(ends) - 1]))
        for end in ends:
            failure = (end.name, "the process ended") if isinstance(end, signal.Signals) else end
            if failure and failure[0] not in found:
                print(f"{name}, {seed} {i}: {': '.join(failure)}", flush=True)
            if failure:
                found[failure[0]] = found.get(failure[0], 0) + 1
            i += 1
    reader.file.write_bytes(whole)
    return found


def unrehearsed() -> None:
    """HDF5 may crash, so `unfit` forks for each file and reads it there first. Here one child reads many files."""
    keras.rehearsed = lambda path, read: read()


def in_a_child(
    tried: Callable[[int], Failure | None], inputs: Iterable[int], first: Callable[[], None] = lambda: None
) -> Iterator[Failure | signal.Signals | None]:
    """What each input gives, until the last or until one has ended the child."""
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads, none of which the child needs
        child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            torch.set_num_threads(1)
            first()
            with open(theirs, "w", buffering=1) as lines:
                for i in inputs:
                    signal.setitimer(signal.ITIMER_PROF, 2 * SLOW)  # C does not listen to Python
                    lines.write(json.dumps(tried(i)) + "\n")
            os._exit(0)
        finally:
            os._exit(1)
    os.close(theirs)
    with open(ours) as lines:
        for line in lines:
            end = json.loads(line)
            yield end and tuple(end)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or status == 0, status
    if status:
        yield signal.Signals(os.WTERMSIG(status))


def failed(read: Callable[[], object]) -> Failure | None:
    """What went wrong, and the details; None after an answer or an `UnfitError`."""
    before = peak()
    signal.alarm(SLOW)
    try:
        read()
    except UnfitError:
        pass
    except (Exception, SlowError) as error:
        frames = [each for each in traceback.extract_tb(error.__traceback__) if "/unfit/" in each.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        return f"{type(error).__name__} in {place}", repr(str(error)[:100])
    finally:
        signal.alarm(0)
    grown = peak() - before
    if grown > MUCH:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    return ("memory", f"{grown / 2**20:.0f} MiB more") if grown > MUCH else None


def peak() -> int:
    """Bytes that this process has had in memory at most."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def processor() -> float:
    """Seconds of this process and of its children."""
    return sum(os.times()[:4])


class SlowError(BaseException):
    """No reader may catch it."""


def slow(_: int, frame: Any) -> None:
    raise SlowError(f"longer than {SLOW} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="of inputs, for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="the readers whose name begins like this")
    options = parser.parse_args()
    failures = 0
    signal.signal(signal.SIGALRM, slow)
    with tempfile.TemporaryDirectory() as folder:
        for name, reader in readers(Path(folder)).items():
            if name.startswith(options.only):
                began = processor()
                found = fuzz(name, reader, options.count, options.seed)
                failures += sum(found.values())
                took = f"{processor() - began:.0f} s"
                print(f"{name}: {options.count} inputs, {sum(found.values())} failures, {took}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
