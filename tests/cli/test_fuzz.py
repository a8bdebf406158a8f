"""A little of `make fuzz`: mutated files of every kind are read or refused; names in them are clean."""

from __future__ import annotations

import io
import json
import os
import random
import resource
import signal
import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import h5py
import numpy as np
import onnx
import pytest
from rich.console import Console

import fuzz
from unfit import Audit, UnfitError, attack
from unfit.attacker.candidates import load_candidates, save_candidates
from unfit.attacker.preflight import preflight_file
from unfit.auditor.audit import load_record
from unfit.auditor.report import notebook, write_report
from unfit.auditor.report.junit import junit
from unfit.auditor.report.sarif import sarif
from unfit.auditor.report.terminal import show
from unfit.base.formats import read_model
from unfit.base.load import load_target
from unfit.cli.app import Printer

COUNT = 15
HOSTILE = "<script>\x1b[31m\x00\n</script>"


def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    found = {name: fuzz.fuzz(name, reader, COUNT, 0) for name, reader in fuzz.readers(tmp_path).items()}
    assert len(found) == 56
    assert not any(found.values()), found


def test_the_fuzzer_sees_what_is_not_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": [1, 2]}')

    def read() -> None:
        if json.loads((tmp_path / "x.json").read_text()) != {"a": [1, 2]}:
            raise KeyError

    assert sum(fuzz.fuzz("x", fuzz.Reader(tmp_path / "x.json", read), 50, 0).values()) > 25


def test_the_fuzzer_outlives_what_it_reads(tmp_path: Path) -> None:
    """An input that ends the process is a failure, and the others are tried."""
    file, files = tmp_path / "x", [fuzz.mutated(random.Random(f"x 0 {i}"), "", b"xyz") for i in range(50)]
    file.write_bytes(b"xyz")

    def read() -> None:
        if len(file.read_bytes()) > 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        raise KeyError

    found = fuzz.fuzz("x", fuzz.Reader(file, read), 50, 0)
    longer = sum(len(each) > 3 for each in files)
    assert 5 < longer < 45
    assert found == {"SIGSEGV": longer, "KeyError in ?": 50 - longer}


# What it has found --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (None, "leads elsewhere, or to nothing"),
        (np.zeros((6, 4), np.complex64), "does not hold numbers"),
        (np.zeros((6, 4, 1), np.float32), "a kernel of shape"),
    ],
)
def test_a_keras_file_of_another_structure_says_what_is_wrong(tmp_path: Path, kernel, words: str) -> None:  # type: ignore[no-untyped-def]
    fuzz.checkpoint_readers(tmp_path / "c")
    with h5py.File(tmp_path / "c" / "net.h5", "r+") as file:
        del file["model_weights/d0/k"]
        if kernel is not None:
            file["model_weights/d0/k"] = kernel
    with pytest.raises(UnfitError, match=words):
        read_model(tmp_path / "c" / "net.h5")


def test_a_keras_archive_without_layers_is_refused(tmp_path: Path) -> None:
    fuzz.checkpoint_readers(tmp_path / "c")
    path, inner = tmp_path / "c" / "net.keras", io.BytesIO()
    h5py.File(inner, "w").close()
    with zipfile.ZipFile(path) as archive:
        config = archive.read("config.json")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", config)
        archive.writestr("model.weights.h5", inner.getvalue())
    with pytest.raises(UnfitError, match="0 arrays of weights"):
        read_model(path)


def test_a_string_in_hdf5_that_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    fuzz.checkpoint_readers(tmp_path / "c")
    path = tmp_path / "c" / "net.h5"
    with h5py.File(path) as file:
        size = len(file.attrs["model_config"])
    content = path.read_bytes()
    place = struct.pack("<IQ", size, content.index(b"GCOL"))  # a string is its length and the heap that holds it
    assert content.count(place) == 1
    path.write_bytes(content.replace(place, b"\xff" * 4 + place[4:]))
    before, limits = fuzz.peak(), resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(UnfitError, match="not a complete Keras file"):
        read_model(path)
    assert fuzz.peak() - before < 2**29
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


def test_a_file_that_crashes_hdf5_is_refused(tmp_path: Path) -> None:
    """One wrong byte, and HDF5 ends the process that reads it with a segmentation fault."""
    fuzz.checkpoint_readers(tmp_path / "c")
    path = tmp_path / "c" / "net.h5"
    content = path.read_bytes()
    at = content.index(b"weight_names\0\0\0\0\x19\x01") + 17  # the kind of a type of variable length
    path.write_bytes(content[:at] + b"\x5b" + content[at + 1 :])
    with pytest.raises(UnfitError, match="ended with SIGSEGV"):
        read_model(path)


def test_a_constant_of_onnx_without_a_value_is_refused(tmp_path: Path) -> None:
    fuzz.checkpoint_readers(tmp_path / "c")
    model = onnx.load(tmp_path / "c" / "net.onnx")
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["empty"]))
    onnx.save(model, tmp_path / "c" / "net.onnx")
    with pytest.raises(UnfitError, match="a constant without a value"):
        read_model(tmp_path / "c" / "net.onnx")


def test_a_shard_whose_name_is_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x" * 10_000}}))
    with pytest.raises(UnfitError, match="too long"):
        read_model(tmp_path)


def test_half_a_surrogate_reaches_page_and_log_escaped(face_audit: Audit, tmp_path: Path) -> None:
    record = face_audit.record
    target = record.target.model_copy(update={"sha256": "\ud800", "architecture": "\ud800"})
    hostile = record.model_copy(update={"target": target, "class_names": ["\ud800", "b"]})
    write_report(hostile, face_audit.arrays, tmp_path)
    assert "\\ud800" in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "\\ud800" in sarif(hostile).encode().decode()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attack": {}}, "`attack.method`"),
        ({"attack": {"method": 1, "settings": {}, "seed": 0, "base": False}}, "`attack.method`"),
        ({"seconds": {}}, "needs the seconds of `attack`"),
        ({"machine": {"cores": "many", "system": "", "processor": ""}}, "number of `cores`"),
        ({"verdict": "fine"}, "`verdict`"),
    ],
)
def test_an_audit_json_of_another_structure_says_what_is_wrong(
    face_page: Path, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    content = json.loads((face_page / "audit.json").read_text()) | change
    (tmp_path / "audit.json").write_text(json.dumps(content))
    with pytest.raises(UnfitError) as raised:
        load_record(tmp_path)
    assert words in str(raised.value) or words.replace("attack.", "") in str(raised.value)


def test_candidates_of_another_structure_say_what_is_wrong(face_run: Path, tmp_path: Path) -> None:
    good = attack(load_target(face_run), "weights")
    for change, words in (
        ({"origin": good.origin.double()}, "origin has type"),
        ({"label": good.label[:, None]}, "label has shape"),
        ({"x": good.x[:-1]}, "do not fit together"),
        ({"facts": good.facts | {"finished": {"a": 1}}}, "finished"),
        ({"facts": good.facts | {"rank": 10**30}}, "rank"),
        ({"attack": {}}, "method"),
    ):
        save_candidates(replace(good, **change), tmp_path / "c")
        with pytest.raises(UnfitError, match=words):
            load_candidates(tmp_path / "c")


# Names -------------------------------------------------------------------------------------------------------


def test_names_are_text_in_a_notebook(face_audit: Audit, face_run: Path) -> None:
    made = attack(load_target(face_run), "weights")
    hostile = replace(made, attack=made.attack | {"method": HOSTILE})
    assert "<script>" not in hostile._repr_html_().lower()
    assert "&lt;script&gt;" in hostile._repr_html_().lower()
    assert "<script>" not in notebook.show(
        face_audit.record.model_copy(update={"reasons": [HOSTILE]}), face_audit.arrays
    )


def test_junit_is_xml_whatever_the_names_are(face_audit: Audit) -> None:
    names = [HOSTILE, "\ud800\ufffe"]
    text = junit(face_audit.record.model_copy(update={"class_names": names, "reasons": names, "verdict": "leak"}))
    cases = ElementTree.fromstring(text.encode()).findall("testcase")
    assert cases[1].get("name") == r"<script>\x1b[31m\x00\n</script>"


def test_a_terminal_gets_no_control_characters(face_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = replace(preflight_file(face_run), notes=(HOSTILE,))
    console = Console(force_terminal=False)
    for part in show(found):
        console.print(part)
    Printer(markup=False).print(HOSTILE)
    assert "\x1b" not in capsys.readouterr().out
