"""Reports for people who must sign: each question has an answer or *not tested*; no word of a record is markup."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from unfit import Audit
from unfit.auditor.record import DoubtRecord, UnreadSurface
from unfit.auditor.redact import redact
from unfit.auditor.report.criteria import DENY, NOT_TESTED, REVIEW, SOURCES, bound, findings, strongest
from unfit.auditor.report.pack import best_pairs, markdown, pack, rendered
from unfit.base.errors import UsageError

Run = Callable[..., tuple[int, str, str]]
HOSTILE = "#panic() <b> | *x* $y$ `z"


def edited(audit: Audit, **changes: object) -> Audit:
    return replace(audit, record=audit.record.model_copy(update=changes))


@pytest.mark.parametrize("audience", ["dpo", "tre", "auditor"])
def test_every_question_is_answered_from_a_field_or_not_tested(face_audit: Audit, audience: str) -> None:
    found = pack(face_audit.record, audience)  # type: ignore[arg-type]
    assert found.chapters
    for row in (row for chapter in found.chapters for row in chapter.rows):
        assert row.answer
        assert bool(row.fields) == (row.status != "not tested"), row.question
        for name in re.findall(r"\b[a-z]+(?:_[a-z0-9]+|\.[a-z_0-9]+)+", row.fields):
            place: object = face_audit.record
            for part in name.split("."):
                place = getattr(place, part)  # each field exists
    assert bool(found.findings) == (audience != "dpo")
    assert {source.name for source in SOURCES if audience in source.audiences} == {
        chapter.source for chapter in found.chapters
    }


def test_what_was_not_tested_is_never_called_answered(face_audit: Audit) -> None:
    nothing = edited(face_audit, num_candidates=0).record
    rows = [row for chapter in pack(nothing, "auditor").chapters for row in chapter.rows]
    assert all(
        row.status == "not tested" for row in rows if "econstruct" in row.question or "xtract" in row.question
    )
    assert {row.answer for row in rows if "property" in row.section} == {NOT_TESTED}
    assert "cannot" not in strongest(nothing)
    assert "nothing was searched" in strongest(nothing)
    left = edited(face_audit, surfaces_left=[UnreadSurface(name="tower", why="it is a convolution")]).record
    assert any("Tower: it is" in each for each in pack(left, "dpo").not_tested)
    assert any("tower" in each.finding and each.recommendation == DENY for each in findings(left))


def test_the_bound_is_for_each_person_and_not_a_mean(face_audit: Audit) -> None:
    low, high = bound(edited(face_audit, num_recognisable=0).record)
    assert (low, round(high, 4)) == (0.0, 0.0881)  # 1 − 0.025^(1/40), by hand
    best = max(face_audit.record.samples, key=lambda each: each.similarity)
    assert f"sample {best.index}: recognisable, similarity {best.similarity:.2f}" in strongest(face_audit.record)
    hidden = redact(face_audit).record
    assert not any(str(each.index) in strongest(hidden) for each in hidden.samples)


def test_no_finding_of_a_leak_or_of_no_verdict_may_be_released(face_audit: Audit) -> None:
    for verdict, wanted in (("leak", DENY), ("inconclusive", DENY), ("pass", REVIEW)):
        rows = findings(edited(face_audit, verdict=verdict).record)
        assert rows[0].recommendation == wanted
        assert {row.recommendation for row in rows} <= {DENY, REVIEW}
    doubt = DoubtRecord(code="no-base", reason="unknown", accepted=True)
    assert findings(edited(face_audit, verdict="pass", doubts=[doubt]).record)[0].recommendation == DENY


def test_a_report_in_three_forms_says_the_same(run: Run, face_page: Path, tmp_path: Path) -> None:
    for name in ("r.pdf", "r.md", "r.json"):
        code, printed, error = run("report", face_page / "audit.json", "--for", "dpo", "--out", tmp_path / name)
        assert (code, error) == (0, ""), error
        assert name in printed
    said = json.loads((tmp_path / "r.json").read_text())
    assert said["headline"] in (tmp_path / "r.md").read_text()
    made = (tmp_path / "r.pdf").read_bytes()
    assert made.startswith(b"%PDF-1.7")
    assert b"/StructTreeRoot" in made  # tagged
    assert b"pdfuaid" in made  # and says so: PDF/UA
    assert b"/Subtype/Image" not in made.replace(b" ", b"")
    assert run("report", face_page, "--for", "dpo", "--out", tmp_path / "r.pdf")[0] == 2  # it is there
    assert run("report", face_page, "--for", "tre", "--out", tmp_path / "r.pdf", "--force")[0] == 0


def test_images_only_if_asked_for(run: Run, face_page: Path, face_audit: Audit, tmp_path: Path) -> None:
    words = ("report", face_page, "--for", "auditor", "--images", "--out")
    assert run(*words, tmp_path / "r.pdf")[0] == 0
    assert b"/Subtype/Image" in (tmp_path / "r.pdf").read_bytes().replace(b" ", b"")
    assert "as PDF" in run(*words, tmp_path / "r.md")[2]
    with pytest.raises(UsageError, match="redacted"):
        best_pairs(redact(face_audit).record, face_audit.arrays)


def test_a_report_needs_both_what_it_is_for_and_a_file(run: Run, face_page: Path, tmp_path: Path) -> None:
    assert "--for and --out together" in run("report", face_page, "--for", "dpo")[2]
    code, _, error = run("report", face_page, "--for", "dpo", "--out", tmp_path / "r.doc")
    assert (code, ".pdf, .md, .json" in error) == (64, True)
    assert not (tmp_path / "r.doc").exists()


def test_words_of_a_record_are_never_markup(face_audit: Audit) -> None:
    hostile = edited(
        face_audit, reasons=[HOSTILE], data=HOSTILE, class_names=[HOSTILE, "b"], verdict="inconclusive"
    )
    text = markdown(pack(hostile.record, "tre"))
    assert "<b>" not in text
    assert r"\*x\*" in text
    rows = [line for line in text.splitlines() if line.startswith("| Verdict")]
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 3
    assert rendered(hostile.record, "tre", ".pdf").startswith(b"%PDF")


def test_a_report_is_the_same_each_time(face_audit: Audit) -> None:
    first, second = (rendered(face_audit.record, "dpo", ".pdf") for _ in range(2))
    assert first == second
    assert asdict(pack(face_audit.record, "dpo"))["made"].startswith("Made on ")
