"""Whoever has a redacted audit, the weights and everybody's pictures cannot tell whose sample is whose."""

from __future__ import annotations

import base64
import io
import json
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit import Audit, AuditRequest, read_source
from unfit.auditor.case import read_case
from unfit.auditor.redact import FEWEST, redact
from unfit.auditor.report import write_report

Run = Callable[..., tuple[int, str, str]]


class Reader:
    """All that an attacker has: both files, the weights, and every face there is."""

    def __init__(self, audit: Audit, run: Path, folder: Path) -> None:
        audit.save(folder)
        write_report(audit.record, audit.arrays, folder)
        self.page = (folder / "index.html").read_text()
        self.record: dict[str, Any] = json.loads((folder / "audit.json").read_text())
        self.rows = self.record["samples"]
        case = read_case(AuditRequest(target=run))
        self.faces = read_source("faces").train.take(np.arange(200)).x
        self.members, self.mean = case.private.indices, case.private.mean
        self.net = case.target.net()

    def images(self, kind: str) -> Tensor:
        """From the page alone, one for each sample."""
        tag = re.search(rf'<img[^>]*id="sheet-{kind}"[^>]*>', self.page)[0]
        columns, width, height = (
            int(re.search(rf'data-{name}="(\d+)"', tag)[1]) for name in ("columns", "width", "height")
        )
        data = base64.b64decode(re.search(r'src="data:image/png;base64,([^"]+)"', tag)[1])
        sheet = np.asarray(Image.open(io.BytesIO(data)).convert("L"), dtype=np.float32)
        places = [divmod(i, columns) for i in range(len(self.rows))]
        cut = [sheet[r * height : (r + 1) * height, c * width : (c + 1) * width] for r, c in places]
        return torch.from_numpy(np.stack(cut))[:, None]

    def hits(self, distance: Tensor, truth: dict[str, int]) -> int:
        """The best assignment of rows to faces: how many are right."""
        rows, faces = linear_sum_assignment(distance.numpy())
        return sum(truth[self.rows[i]["index"]] == face for i, face in zip(rows, faces, strict=True))


def thumbnails(images: Tensor) -> Tensor:
    small = F.adaptive_avg_pool2d(images, 4).flatten(1)
    return F.normalize(small - small.mean(1, keepdim=True), dim=1)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What nobody else has: whose hash is whose."""
    known: dict[str, int] = {}
    module = __import__("unfit.auditor.redact", fromlist=["_hash"])
    original = module._hash

    def hashed(salt: bytes, index: int) -> str:
        known[name := original(salt, index)] = index
        return name

    monkeypatch.setattr(module, "_hash", hashed)
    return known


def distances(reader: Reader, audit: Audit) -> dict[str, Tensor]:
    """Rows × faces, for each way in. Of similarities, an attacker can compute the true ones."""
    centred = reader.faces - reader.mean
    outputs = reader.net(centred).detach()[:, 0]
    exact = torch.full((200,), 10.0)
    exact[reader.members] = torch.tensor([sample.similarity for sample in audit.record.samples])
    found = {
        f"{kind} thumbnails": -thumbnails(reader.images(kind)) @ thumbnails(reader.faces).T
        for kind in ("original", "reconstruction")
    }
    for name, values in (("output", outputs), ("similarity", exact)):
        told = torch.tensor([row[name] for row in reader.rows])
        found[name] = (told[:, None] - values).abs()
    return found


def test_the_attacker_of_this_test_succeeds_where_nothing_is_redacted(
    face_audit: Audit, face_run: Path, tmp_path: Path
) -> None:
    reader = Reader(face_audit, face_run, tmp_path)
    truth = {sample.index: sample.index for sample in face_audit.record.samples}
    hits = {name: reader.hits(each, truth) for name, each in distances(reader, face_audit).items()}
    assert min(hits.values()) > 10, hits


def test_nobody_is_found_by_pictures_outputs_or_similarities(
    face_audit: Audit, face_run: Path, tmp_path: Path, key: dict[str, int]
) -> None:
    """By chance a guess hits one of those with the same class and grade, which an audit has to tell."""
    hidden = redact(face_audit)
    reader = Reader(hidden, face_run, tmp_path)
    kinds = [(row["label"], row["grade"]) for row in reader.rows]
    chance = sum(1 / kinds.count(kind) for kind in kinds)
    hits = {name: reader.hits(each, key) for name, each in distances(reader, face_audit).items()}
    most = chance + 3 * chance**0.5
    assert max(hits.values()) <= most, (hits, chance)
    assert hits["original thumbnails"] <= 3  # the pictures tell not even that


def test_every_number_stands_for_several(face_audit: Audit) -> None:
    hidden = redact(face_audit)
    for name in ("output", "similarity", "ssim", "projection_similarity", "l2", "psnr", "ncc", "assigned"):
        values = [getattr(sample, name) for sample in hidden.record.samples]
        assert len(set(values)) <= len(values) / FEWEST
    for name in ("unseen_similarity", "unseen_output", "unseen_projection_similarity"):
        assert len(hidden.arrays[name].unique()) <= 2
    grades = [(sample.grade, sample.recovered, sample.label) for sample in hidden.record.samples]
    assert sorted(map(str, grades)) == sorted(
        str((sample.grade, sample.recovered, sample.label)) for sample in face_audit.record.samples
    )
    above = [sample.similarity > hidden.record.threshold for sample in hidden.record.samples]
    assert sum(above) == hidden.record.num_recovered


def test_of_vectors_no_value_and_no_name_is_written(face_audit: Audit, tmp_path: Path) -> None:
    """Names too: a vocabulary is made of what people wrote."""
    n, num_unseen = face_audit.record.num_samples, face_audit.record.num_unseen
    vectors = {"original": 1, "reconstruction": 2, "features": 3, "reconstructed_features": 4}
    arrays = {name: torch.full((n, 9), 0.7654321 + each) for name, each in vectors.items()}
    arrays["unseen"] = torch.full((num_unseen, 9), 0.7654321)
    record = face_audit.record.model_copy(update={"feature_names": ["Lovelace"] * 9})
    hidden = redact(Audit(record, face_audit.arrays | arrays))
    hidden.save(tmp_path)
    write_report(hidden.record, hidden.arrays, tmp_path)
    for path in tmp_path.iterdir():
        content = path.read_bytes()
        assert b"Lovelace" not in content
        assert b".76543" not in content
        for each in (*arrays.values(),):
            assert each[0].numpy().tobytes() not in content
    assert not any(hidden.arrays[name].any() for name in ("original", "reconstruction", "unseen"))


def test_what_it_writes_is_private_and_names_no_folder(run: Run, face_run: Path, tmp_path: Path) -> None:
    words = ("--method", "weights", "--out", tmp_path / "audit", "--junit", tmp_path / "junit.xml")
    assert run("audit", face_run, *words)[0] == 3  # no baseline supports a pass
    run("attack", face_run, "--method", "weights", "--out", tmp_path / "candidates")
    run("report", tmp_path / "audit")
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert len(modes) >= 7
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    for path in [*(tmp_path / "audit").iterdir(), tmp_path / "junit.xml"]:
        content = path.read_bytes()
        assert str(face_run.parent).encode() not in content
        assert str(tmp_path).encode() not in content
