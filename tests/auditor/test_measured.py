"""What verdicts quote was measured: of the code as it is, on samples that are known, and nobody typed it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import page
import proofs
from unfit.attacker.candidates import Part
from unfit.auditor import measured
from unfit.lab import measurement

NOWHERE = Path()  # tables need no files


@pytest.fixture(scope="module")
def section() -> page.Section:
    return next(section for section in page.stored() if section.title == proofs.TITLE)


@pytest.fixture(scope="module")
def now() -> dict[str, str]:
    """The modules that decide a proof, as they are. To find them, all of them are parsed."""
    return proofs.measured()


def test_proofs_are_decided_by_the_code_that_was_measured(section: page.Section) -> None:
    assert not proofs.stale(section.code), proofs.stale(section.code)


@pytest.mark.parametrize("name", ["attacker/attacks/peel.py", "attacker/one_hot.py"])
def test_other_code_is_noticed_with_the_command_that_measures_it(
    name: str, now: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proofs, "measured", lambda: now | {name: "changed"})
    told = proofs.stale(now)
    assert f"measured with other code ({name} changed)" in told
    assert "`python benchmarks/proofs.py DATA RESULTS`" in told
    assert "half an hour on one idle core" in told


def test_code_that_is_new_or_gone_is_noticed(now: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "measured", lambda: now)
    fewer = {name: each for name, each in now.items() if name != "attacker/span.py"}
    assert "(attacker/span.py changed)" in proofs.stale(fewer)
    assert "(attacker/gone.py changed)" in proofs.stale(now | {"attacker/gone.py": "0"})
    assert not proofs.stale(now)


def test_all_that_decides_a_proof_is_measured_and_nothing_else(now: dict[str, str]) -> None:
    names = set(now)
    assert {
        f"attacker/{name}.py"
        for name in ("attacks/peel", "attacks/cone", "change", "gates", "sparse", "one_hot", "duals", "span")
    } <= names
    assert {f"attacker/{name}.py" for name in ("attacked_layer", "decay", "features", "edges")} <= names
    assert not names & {"attacker/candidates.py", "attacker/method.py", "attacker/attacks/auto.py"}
    assert all(name.startswith("attacker/") for name in names)


def test_the_package_holds_what_is_stored(section: page.Section) -> None:
    packaged = json.loads(page.MEASURED.read_text("utf-8"))
    assert packaged == page.quoted(), "run `make results`, and commit src/unfit/auditor/measured.json"
    assert packaged[measured.FALSE_PROOFS] == section.counts == measured.measured()[measured.FALSE_PROOFS]


def test_what_is_stored_adds_up(section: page.Section) -> None:
    counts = section.counts
    at_most = proofs.upper(int(counts["num_false"]), int(counts["num_exact"]))
    assert counts["at_most"] == pytest.approx(at_most)
    assert counts["first_seed"] == proofs.FIRST
    (table,) = (part for part in section.content if isinstance(part, measurement.Table))
    total = dict(zip(table.columns, table.rows[-1], strict=True))
    assert (total["exact"], total["of these false"]) == (str(counts["num_exact"]), str(counts["num_false"]))


def test_other_counts_reach_the_package(
    section: page.Section, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STORED", "README", "MEASURED"):
        monkeypatch.setattr(page, name, tmp_path / name)
    monkeypatch.setattr(page, "DOCS", tmp_path)
    for each in (
        section.model_copy(update={"counts": {"num_exact": 7}}),
        page.Section(title="No counts", place=2, content=[["w"]]),
    ):
        measurement.store(each, each.file)
    page.render()
    assert json.loads(page.MEASURED.read_text("utf-8")) == {measured.FALSE_PROOFS: {"num_exact": 7}}


def test_a_sentence_quotes_the_measurement_and_its_bound_is_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"num_exact": 1500, "num_false": 2, "at_most": 0.0041912, "confidence": 0.95}
    monkeypatch.setattr(measured, "measured", lambda: {measured.FALSE_PROOFS: counts})
    words = "2 of 1,500 exact reconstructions were wrong: at most 0.42%, with 95% confidence"
    assert words in measured.false_proofs()


# The rule --------------------------------------------------------------------------------------------------------


def test_a_proof_is_right_within_two_percent_scale_included() -> None:
    x = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    found = torch.stack([x[0], 1.01 * x[1], 1.03 * x[1], -x[2], x[2] + 0.01])
    assert proofs.are_right(found, x).tolist() == [True, True, False, False, True]


def test_errors_are_those_of_the_reconstruction_not_of_the_comparison() -> None:
    x = torch.randn(40, 3000, generator=torch.Generator().manual_seed(0))
    assert float(proofs.compare(x, x)[0].max()) < 1e-6
    assert proofs.compare((1 + 1e-4) * x, x)[0].numpy() == pytest.approx(1e-4, rel=0.01)


def test_whole_numbers_are_identical_when_rounded() -> None:
    x = torch.zeros(1, 3001)
    x[0, :3000] = 2
    off = x.clone()
    off[0, 3000] = 1  # 0.9% of its length, and another record
    assert float(proofs.compare(off, x)[0]) < proofs.ERROR
    assert proofs.are_right(torch.cat([x + 0.003, off]), x).tolist() == [True, False]


def test_right_proofs_count_once_and_false_ones_always(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(proofs, "nets", lambda *_: (None, None, (x, None)))

    def found(*_: object) -> Iterator[tuple[str, Part]]:
        flags = torch.tensor([True, True, False])
        yield "peel", Part("proven", torch.stack([x[0], 2 * x[1], x[2]]), proven=flags)
        yield "cone", Part("proven", x[:2], proven=flags[:2])
        yield "cone", Part("not proven", x)

    monkeypatch.setattr(proofs, "candidates", found)
    row = proofs.prove("plain", 0, NOWHERE)
    assert [title for title, _ in row["right"]] == ["peel", "cone"]
    assert [title for title, _ in row["false"]] == ["peel"]
    counts = proofs.count([row])
    assert (counts["num_exact"], counts["num_false"], counts["num_models_false"]) == (3, 1, 1)


def test_a_run_resumes_and_does_not_mix_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results.jsonl"
    monkeypatch.setattr(
        proofs, "prove", lambda kind, seed, _: {"kind": kind, "seed": seed, "right": [["peel", 0.0]], "false": []}
    )
    rows = proofs.measure(NOWHERE, results, 1, "now")
    assert [row["kind"] for row in rows] == list(proofs.KINDS)
    assert {row["seed"] for row in rows} == {proofs.FIRST}
    results.write_text("".join(results.read_text().splitlines(keepends=True)[:4]))  # stopped
    assert proofs.measure(NOWHERE, results, len(proofs.KINDS) + 1, "now")[: len(rows)] == rows
    assert len(proofs.read(results)) == 2 * len(rows)
    with pytest.raises(SystemExit, match="other code"):
        proofs.measure(NOWHERE, results, 1, "later")


def test_a_small_model_gives_proofs_and_none_is_false() -> None:
    row = proofs.prove("one-hot", proofs.FIRST, NOWHERE)
    assert row["right"]
    assert not row["false"]


def test_the_bound_is_clopper_and_pearsons() -> None:
    assert proofs.upper(0, 3000) == pytest.approx(3 / 3000, rel=0.01)
    assert proofs.upper(1, 100) == pytest.approx(0.0466, abs=1e-4)
    assert proofs.upper(0, 0) == proofs.upper(2, 2) == 1
