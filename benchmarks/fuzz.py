"""Mutate every kind of file that is read, and read it: an answer or one `UnfitError`, never anything else.

    python benchmarks/fuzz.py [--count 1000] [--seed 0] [--only NAME]

Mutations know the structure of JSON and safetensors, and change single bytes of everything. A failure is printed with
the seed that makes it again; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import random
import shutil
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unfit import AuditRequest, FitSettings, attack, audit_run, fit_run, read_source, sweep
from unfit.attacker.attacks import Unmix
from unfit.attacker.candidates import save_candidates
from unfit.attacker.sweep.books import read_status
from unfit.auditor.audit import load_audit, load_record
from unfit.auditor.case import private_set
from unfit.auditor.compare import compare
from unfit.auditor.pool import given_pool
from unfit.auditor.report import write_report
from unfit.auditor.report.junit import junit
from unfit.auditor.report.notebook import show
from unfit.base.errors import UnfitError
from unfit.base.load import load_target
from unfit.lab.controls import fit_settings

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


def mutated(rng: random.Random, path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.8:
        return json.dumps(mutated_json(rng, json.loads(content))).encode()
    if path.suffix == ".jsonl" and rng.random() < 0.8:
        lines = content.splitlines()
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(mutated_json(rng, json.loads(lines[at]))).encode()
        return b"\n".join(lines) + b"\n"
    if path.suffix == ".safetensors" and rng.random() < 0.8:
        return mutated_safetensors(rng, content)
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
    junit(audit.record)


def compared(old: Path, new: Path) -> None:
    compare(load_record(old), load_record(new))
    compare(load_record(new), load_record(old))


def readers(folder: Path) -> dict[str, Reader]:
    """Everything is made once, small."""
    run, audit = folder / "run", folder / "audit"
    run.mkdir()
    audit.mkdir()
    fit_run(read_source("faces"), 20, run, FitSettings(method="gd", epochs=5), "20")
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
        **data_readers(folder / "data"),
    }


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
        "png": ("images/a/0.png", "images:{}/images"),
    }
    return {name: source_reader(folder / file, form.format(folder)) for name, (file, form) in sources.items()}


def source_reader(file: Path, name: str) -> Reader:
    return Reader(file, lambda: read_source(name))


def fuzz(name: str, reader: Reader, count: int, seed: int) -> dict[str, int]:
    """How often each unforeseen error came, by its last line of ours."""
    whole, found = reader.file.read_bytes(), {}
    for i in range(count):
        reader.file.write_bytes(whole)
        reader.file.write_bytes(mutated(random.Random(f"{name} {seed} {i}"), reader.file))
        try:
            reader.read()
        except UnfitError:
            pass
        except Exception as error:
            frames = [each for each in traceback.extract_tb(error.__traceback__) if "/unfit/" in each.filename]
            place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
            words = f"{type(error).__name__} in {place}: {str(error)[:100]!r}"
            key = f"{type(error).__name__} in {place}"
            if key not in found:
                print(f"{name}, {seed} {i}: {words}", flush=True)
            found[key] = found.get(key, 0) + 1
    reader.file.write_bytes(whole)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="of inputs, for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="the readers whose name begins like this")
    options = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, reader in readers(Path(folder)).items():
            if name.startswith(options.only):
                began = time.perf_counter()
                found = fuzz(name, reader, options.count, options.seed)
                failures += sum(found.values())
                print(
                    f"{name}: {options.count} inputs, {sum(found.values())} failures, "
                    f"{time.perf_counter() - began:.0f} s",
                    flush=True,
                )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
