"""What a release pipeline and a sceptic do with an audit: gate on it, compare it, repeat it, pass it on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import torch
from torch import Tensor, nn

from unfit import (
    Audit,
    AuditRequest,
    FitSettings,
    Policy,
    Target,
    UnfitError,
    Weights,
    attack,
    audit,
    audit_run,
    draw_unseen,
    fit_run,
    load_audit,
    load_target,
    read_source,
)
from unfit.attacker.attacked_layer import read_layer
from unfit.attacker.candidates import Part, pool
from unfit.auditor.calibration import chance
from unfit.auditor.case import private_set
from unfit.auditor.codes import MEANINGS, Code
from unfit.auditor.compare import compare
from unfit.auditor.evidence import most_samples
from unfit.auditor.grading import are_exact
from unfit.auditor.labels import ONE_CLASS
from unfit.auditor.measured import false_proofs
from unfit.auditor.record import DoubtRecord, Record
from unfit.auditor.redact import redact
from unfit.auditor.report import write_report
from unfit.auditor.report.card import card
from unfit.auditor.report.diff import page as diff_page
from unfit.auditor.report.junit import junit
from unfit.auditor.report.page import headline
from unfit.auditor.report.public import leaked_share
from unfit.auditor.report.sarif import sarif
from unfit.auditor.samples import Samples
from unfit.auditor.verdict import Attacked, Decision, Effort, Found, Sight, judge
from unfit.base.nets import initialise, parse_architecture
from unfit.lab.runs import repeat_audit

Run = Callable[..., tuple[int, str, str]]
SCHEMA = Path(__file__).parents[2] / "docs" / "audit.schema.json"


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    fit_run(read_source("faces"), 20, folder, FitSettings(), arch="200-50")
    return folder


def changed(record: Record, **fields: Any) -> Record:
    """As if the audit had ended otherwise."""
    return Record.model_validate(record.model_dump() | fields)


# The decision ----------------------------------------------------------------------------------------------


def found(traces: int, recognisable: int, proven: int, n: int, num_unseen: int, fpr: float = 0.01) -> Found:
    p_value = chance(traces, n, num_unseen, fpr)
    return Found(traces, max(recognisable, proven), proven, n, num_unseen, p_value)


def test_an_adapter_holds_no_more_samples_than_it_has_directions() -> None:
    """It once passed: four directions were taken to hold sixteen samples, as where noise hides the rest."""
    architecture = parse_architecture("80", (50,), 1)
    initial = Target(architecture, dict(initialise(architecture, None, 0).state_dict()))
    update = torch.randn(80, 4) @ torch.randn(4, 50)
    merged = initial.weights | {"layer1.weight": initial.weights["layer1.weight"] + update}
    adapted = read_layer(Target(architecture, merged), initial)
    assert most_samples(adapted) == 5
    noisy = replace(adapted, weight=adapted.weight + 0.1 * torch.randn(80, 50))
    assert most_samples(noisy) == 16


DONE = Effort("auto", "finished", 30.0, 500, rank=20, capacity=80, estimated=None, attacker="blind")
SILENT = Sight(signal_p_value=0.4, num_held=0)


def decided(found: Found, effort: Effort, sight: Sight, policy: Policy) -> Decision:
    """The decision on a single surface."""
    return judge([Attacked(found, effort, sight)], found, policy)


@pytest.mark.parametrize(
    ("counts", "effort", "sight", "policy", "verdict", "says"),
    [
        ((23, 9, 0), {}, {}, {}, "leak", "9 of 40 training samples are recognisable"),
        ((23, 9, 0), {}, {}, {"max_leaked": 9}, "pass", "within the limit of 9"),
        ((23, 9, 2), {}, {}, {"max_leaked": 8}, "leak", "9 of 40 training samples are recognisable or exact"),
        ((1, 0, 0), {}, {}, {}, "pass", "1 shows a trace"),
        ((0, 0, 1), {}, {}, {}, "leak", false_proofs()),
        ((0, 0, 1), {}, {}, {"max_leaked": 1}, "pass", "1 of 40"),
        # a trace is evidence of membership: it gates only if the policy says so
        ((23, 0, 0), {}, {}, {"fail_on": "trace"}, "leak", "23 of 40 training samples leave a trace"),
        ((23, 0, 0), {}, {"signal_p_value": 1e-9, "num_held": 40}, {}, "inconclusive", "traces of 23"),
        ((23, 9, 0), {}, {}, {"fail_on": "exact"}, "inconclusive", "nothing can be exact without"),
        ((23, 9, 0), {"attacker": "has the base"}, {}, {"fail_on": "exact"}, "pass", "0 of 40"),
        # too little effort
        ((23, 9, 0), {"status": "out of budget"}, {}, {}, "leak", "9 of 40"),  # little effort was enough
        ((0, 0, 0), {"status": "out of budget"}, {}, {}, "inconclusive", "out of budget"),
        ((0, 0, 0), {"status": "out of budget"}, {}, {"min_budget": 31.0}, "inconclusive", "asks for 31 s"),
        ((0, 0, 0), {"status": "out of budget"}, {}, {"min_budget": 30.0}, "pass", "0 of 40"),
        ((0, 0, 0), {"status": "diverged after 7 iterations"}, {}, {}, "inconclusive", "diverged"),
        ((0, 0, 0), {}, {}, {"min_budget": 3600.0}, "pass", "0 of 40"),  # it did all there is to do
        (
            (0, 0, 0),
            {"status": "not applicable: …", "applies": False},
            {},
            {},
            "inconclusive",
            "cannot be run",
        ),
        ((0, 0, 0), {"num_candidates": 0}, {}, {}, "inconclusive", "20 directions stand above the noise of the"),
        ((0, 0, 0), {"rank": 0}, {}, {}, "inconclusive", "nothing above its noise"),
        ((0, 0, 0), {"method": "weights"}, {}, {}, "inconclusive", "baseline"),
        # too little power
        ((0, 0, 0), {"capacity": 39}, {}, {}, "inconclusive", "separate about 39 samples"),
        ((0, 0, 0), {"rank": 81}, {}, {}, "inconclusive", "hold about 81 directions"),  # 40 of them were given
        (
            (0, 0, 0),
            {"estimated": 81},
            {},
            {},
            "inconclusive",
            "81 directions, and plain training on 40",
        ),
        ((0, 0, 0), {"estimated": 80}, {}, {}, "pass", "0 of 40"),
        (
            (0, 0, 0),
            {},
            {"signal_p_value": 0.04, "num_held": 7},
            {},
            "inconclusive",
            "may hold these samples: they react more to 7 of 40",
        ),
        (
            (0, 0, 0),
            {},
            {"signal_p_value": 0.001, "num_held": 7},
            {},
            "inconclusive",
            "weights hold these samples",
        ),
        (
            (0, 0, 0),
            {},
            {"signal_p_value": 0.04},
            {},
            "inconclusive",
            "may hold these samples: they react more to them",
        ),
        # a model that knows its samples gives membership away: no leak, and no pass
        (
            (0, 0, 0),
            {},
            {"knows_p_value": 1e-9, "accuracy": (1.0, 0.7)},
            {},
            "inconclusive",
            "100% right, 70% of unseen",
        ),
        ((0, 0, 0), {}, {"knows_p_value": 0.03}, {}, "inconclusive", "model may know these samples"),
        ((23, 9, 0), {}, {"knows_p_value": 1e-9}, {}, "leak", "9 of 40"),
        # a limit does not make a verdict better when the signal check exceeds it
        (
            (9, 0, 0),
            {},
            {"signal_p_value": 5e-19, "num_held": 40},
            {"fail_on": "trace", "max_leaked": 39},
            "inconclusive",
            "react more to 40 of 40",
        ),
        ((9, 0, 0), {}, {"num_held": 39}, {"fail_on": "trace", "max_leaked": 39}, "pass", "within the limit"),
        # one of fifty within chance must not read like a leak
        ((1, 1, 0), {}, {}, {}, "pass", "no more than chance gives"),
        # sets that cannot be compared say nothing, either way; a proof needs no comparison
        ((23, 9, 0), {}, {"differences": ["brighter"]}, {}, "inconclusive", "brighter"),
        ((0, 0, 0), {}, {"differences": ["brighter"]}, {}, "inconclusive", "brighter"),
        ((0, 0, 5), {}, {"differences": ["brighter"]}, {}, "leak", "5 of 40"),
    ],
)
def test_verdicts_by_counts_effort_sight_and_policy(
    counts: tuple[int, int, int],
    effort: dict[str, Any],
    sight: dict[str, Any],
    policy: dict[str, Any],
    verdict: str,
    says: str,
) -> None:
    tried, seen = replace(DONE, **effort), replace(SILENT, **sight)
    what = (found(*counts, 40, 40), tried, seen, Policy(**policy))
    decision = decided(*what)
    assert decision.verdict == verdict, decision.reasons
    assert any(says in reason for reason in decision.reasons), decision.reasons
    assert bool(decision.next_steps) == (verdict != "pass")


def test_exact_unseen_samples_must_be_fewer_than_chance_gives() -> None:
    """Where unseen samples are exact too, values repeat in the data or the model was trained on the control."""
    for exact, unseen, verdict in (
        (3, 0, "leak"),
        (3, 1, "inconclusive"),
        (12, 1, "leak"),
        (12, 12, "inconclusive"),
    ):
        what = replace(found(0, 0, exact, 40, 40), num_exact_unseen=unseen)
        decision = decided(what, DONE, SILENT, Policy())
        assert decision.verdict == verdict, decision.reasons
        assert (f"{unseen} of 40 unseen" in " ".join(decision.reasons)) == (verdict == "leak" or unseen > 0)


@pytest.mark.parametrize("attacker", ["blind", "computes the initial weights", "has the optimiser"])
def test_a_base_is_offered_to_whoever_gave_none(attacker: str) -> None:
    unclear = replace(SILENT, signal_p_value=1e-9, num_held=5)
    tried = replace(DONE, attacker=attacker, capacity=3)
    steps = decided(found(0, 0, 0, 40, 40), tried, unclear, Policy()).next_steps
    assert all("--base" in step for step in steps), steps
    steps = decided(found(0, 0, 0, 40, 40), replace(tried, base_given=True), unclear, Policy()).next_steps
    assert not any("--base" in step for step in steps), steps


def test_one_surface_is_enough_for_a_leak_and_all_are_needed_for_a_pass() -> None:
    nothing, much = found(0, 0, 0, 40, 40), found(23, 9, 0, 40, 40)
    quiet = Attacked(nothing, DONE, SILENT)
    leaking = Attacked(much, replace(DONE, attacker="has the optimiser"), SILENT)
    unclear = Attacked(nothing, replace(DONE, status="out of budget"), SILENT)
    assert judge([leaking, quiet], much, Policy()).verdict == "leak"
    assert judge([quiet, unclear], nothing, Policy()).verdict == "inconclusive"
    assert judge([quiet, quiet], nothing, Policy()).verdict == "pass"
    assert judge([unclear, unclear], nothing, Policy()).reasons == judge([unclear], nothing, Policy()).reasons


def test_too_few_samples_are_inconclusive_and_say_how_few() -> None:
    decision = decided(found(2, 2, 0, 2, 2), DONE, SILENT, Policy())
    assert (decision.verdict, "2 samples and 2 unseen ones" in decision.reasons[0]) == ("inconclusive", True)


def test_few_unseen_samples_say_how_many_would_do() -> None:
    """22 of 60 above all of 10 unseen ones: p = 0.016. That must not pass, and some more would judge it."""
    decision = decided(found(22, 22, 0, 60, 10), DONE, SILENT, Policy())
    assert decision.verdict == "inconclusive"
    enough = int(decision.reasons[0].rpartition(" unseen samples instead of 10")[0].split()[-1])
    assert chance(22, 60, enough, 0.01) < 0.01 <= chance(22, 60, enough - 1, 0.01)
    assert decision.next_steps == [f"audit again with --num-unseen {enough}"]


def test_the_rule_in_words_is_the_one_that_is_applied(face_audit: Audit) -> None:
    policy = Policy(fail_on="trace", max_leaked=3)
    assert policy.rule == "at most 3 training samples are leaving a trace or more, beyond chance"
    root = ElementTree.fromstring(junit(changed(face_audit.record, policy=policy.model_dump())))
    assert root[0].get("name") == policy.rule
    shown = replace(face_audit, record=changed(face_audit.record, policy=policy.model_dump())).to_html()
    assert policy.rule in shown


def test_a_net_that_the_attack_does_not_cover_is_inconclusive(face_run: Path, tmp_path: Path) -> None:
    norm = nn.BatchNorm1d(1)
    nn.init.constant_(norm.running_var, 4.0)  # type: ignore[arg-type]
    net = nn.Sequential(load_target(face_run).net(), norm).eval()
    source, private = private_set(AuditRequest(target=face_run))
    result = audit(net, private, draw_unseen(source, private, len(private), 0), attack="kkt")
    assert (result.verdict, result.exit_code) == ("inconclusive", 3)
    assert "BatchNorm1d" in result.record.reasons[0]
    result.save(tmp_path)
    again = load_audit(tmp_path)
    write_report(again.record, again.arrays, tmp_path)


def test_the_policy_is_read_from_the_command_line(run: Run, small_run: Path, tmp_path: Path) -> None:
    words = ("--method", "unmix", "--max-leaked", 40, "--fpr", 0.05, "--min-budget", "1m", "--num-unseen", 60)
    words += ("--accept", "budget", "--accept", "sets-differ")
    code, printed, _ = run("audit", small_run, *words, "--verbose", "--out", tmp_path / "audit")
    record = load_audit(tmp_path / "audit").record
    assert (code, record.verdict) == (0, "pass")
    assert record.policy == Policy(max_leaked=40, min_budget=60.0, fpr=0.05, accept=("budget", "sets-differ"))
    assert (record.fpr, record.num_unseen) == (0.05, 60)
    assert record.num_recovered_unseen == 3
    low, high = record.recovered_interval
    assert f"{low:.0%} to {high:.0%}" in printed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--fpr", 0), "--fpr"),
        (("--fpr", 1.5), "--fpr"),
        (("--min-budget", "soon"), "--min-budget: 'soon'"),
        (("--min-budget", "0s"), "--min-budget"),
        (("--min-budget", "inf"), "--min-budget: 'inf'"),
        (("--budget", "infh"), "'--budget': 'infh'"),
        (("--max-leaked", -1), "max-leaked"),
        (("--num-unseen", 1), "1 unseen samples"),
        (("--accept", "everything"), "holds-samples"),
        (("--from", "audit.json"), "either a TARGET, or --base and --update, or --from"),
    ],
)
def test_policies_that_cannot_be_meant(
    run: Run, face_run: Path, tmp_path: Path, words: tuple[object, ...], says: str
) -> None:
    code, _, error = run("audit", face_run, *words, "--out", tmp_path / "audit")
    assert (code, says in error) == (64, True)
    assert list(tmp_path.iterdir()) == []


# Proofs ----------------------------------------------------------------------------------------------------


def audit_of_proofs(x: Tensor, found: Tensor, proven: Tensor) -> list[bool]:
    """Which samples x (n, 1, 8, 8) an audit takes for proven, given these candidates of a net."""
    architecture = parse_architecture("20", tuple(x.shape[1:]), 1)
    target = Target(architecture, dict(initialise(architecture, None, 0).state_dict()))
    made = attack(target, "weights")
    candidates = pool([Part("planted", found, proven=proven)], made.attack, made.facts)
    unseen = images(len(x), seed=1)
    y, other = ((target.net()(each)[:, 0] > 0).long() for each in (x, unseen))  # the model knows its samples
    done = audit(target, (x, y), (unseen, other), candidates=candidates, policy=Policy(window=3))
    return [sample.exact for sample in done.record.samples]


def images(n: int, seed: int) -> Tensor:
    """Noise, each less its own mean: no two are alike."""
    x = torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return x - x.mean((1, 2, 3), keepdim=True)


def correlated(x: Tensor, correlation: Tensor) -> Tensor:
    """Pictures with just these correlations (n,) with the samples."""
    flat, other = x.flatten(1), images(len(x), seed=2).flatten(1)
    unit = nn.functional.normalize(flat)
    rest = nn.functional.normalize(other - (other * unit).sum(1, keepdim=True) * unit)
    return (correlation[:, None] * unit + (1 - correlation.square()).sqrt()[:, None] * rest).view_as(x)


def test_a_proof_counts_for_the_sample_it_shows_only() -> None:
    """Every sample has a nearest candidate; it must equal the sample, not resemble it, and have the proof."""
    x = images(6, seed=0)
    correlation = torch.tensor([0.5, 0.85, 0.95, 1.0, 1.0, -1.0])
    proven = torch.tensor([True, True, True, True, False, True])
    expected = [False, False, False, True, False, False]
    shown = correlated(x, correlation) * x.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    assert audit_of_proofs(x, shown, proven) == expected
    assert audit_of_proofs(x, 1.05 * shown, proven) == [False] * 6  # the scale is part of what a proof promises
    assert audit_of_proofs(x, 1.01 * shown, proven) == expected
    assert audit_of_proofs(x, x[:1], proven[:1]) == [True] + [False] * 5  # the nearest of all six
    assert audit_of_proofs(x, x, torch.zeros(6, dtype=torch.bool)) == [False] * 6


def vectors(x: Tensor) -> Samples:
    return Samples(x, torch.zeros(len(x)).long(), torch.arange(len(x)), ONE_CLASS, 0.0)


def exact(proven: Tensor, samples: Samples, scaled: bool = True) -> list[bool]:
    common = samples.x.mean(0, keepdim=True)
    return are_exact(proven, samples, torch.zeros_like(common), common, scaled).tolist()


def test_whole_numbers_are_exact_if_they_are_identical() -> None:
    """A long record differs from its neighbour by far less than 2% of its length."""
    x = torch.zeros(3, 4000)
    x[:, ::2] = 3.0
    x[1, 1] = 1.0
    x[2] = 0.0
    assert exact(x[:1], vectors(x)) == [True, False, False]
    assert exact(x[:1] + 0.01, vectors(x)) == [True, False, False]
    assert exact(x[:1], vectors(x + 0.5)) == [False] * 3


def test_alike_is_not_exact() -> None:
    """Samples with much in common are told apart by what sets them apart, as smooth images are."""
    x = 100 + torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    assert exact(x[:1], vectors(x)) == [True, False, False, False]
    assert exact(x.mean(0, keepdim=True), vectors(x)) == [False] * 4


def test_without_a_bias_a_proof_promises_no_scale() -> None:
    x = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    assert exact(3 * x[:2], vectors(x), scaled=False) == [True, True, False, False]
    assert exact(3 * x[:2], vectors(x)) == [False] * 4


@pytest.mark.parametrize("change", ["shifted", "blurred"])
def test_an_image_that_was_shifted_or_blurred_is_not_exact(change: str) -> None:
    faces = read_source("faces").train.take(range(12)).x
    moved = faces.roll(1, 3) if change == "shifted" else nn.functional.avg_pool2d(faces, 3, 1, 1)
    samples = Samples(moved, torch.zeros(12).long(), torch.arange(12), ONE_CLASS, 0.0)
    common = faces.mean(0, keepdim=True)
    assert not are_exact(faces, samples, torch.zeros_like(common), common, True).any()
    own = Samples(faces, torch.zeros(12).long(), torch.arange(12), ONE_CLASS, 0.0)
    assert are_exact(faces, own, torch.zeros_like(common), common, True).all()


# Calibration -----------------------------------------------------------------------------------------------


def test_what_was_found_when_ends_in_what_was_found(face_audit: Audit) -> None:
    points, record = face_audit.record.over_time, face_audit.record
    assert len(points) > 3
    assert [p.seconds for p in points] == sorted(p.seconds for p in points)
    assert [p.num_candidates for p in points] == sorted(p.num_candidates for p in points)
    last = points[-1]
    assert (last.num_candidates, last.num_recovered) == (record.num_candidates, record.num_recovered)
    assert last.num_recovered_unseen == record.num_recovered_unseen
    assert 0 < last.seconds <= record.seconds["attack"] + 0.01


def test_rates_need_unseen_samples_enough(face_audit: Audit, face_run: Path) -> None:
    assert face_audit.record.rates == []  # 40 unseen samples cannot show a rate of 1%
    record = audit_run(AuditRequest(target=face_run, attack=Weights(), num_unseen=120)).record
    assert [rate.fpr for rate in record.rates] == [0.01]
    (rate,) = record.rates
    assert (rate.num_recovered, rate.threshold) == (record.num_recovered, record.threshold)
    assert rate.interval == record.recovered_interval


def test_the_one_to_one_count_is_near_the_papers(face_audit: Audit) -> None:
    record = face_audit.record
    assert abs(record.num_assigned - record.num_recovered) <= 4
    assert all(0 <= sample.assigned <= 1 and -1 <= sample.ncc <= 1 for sample in record.samples)
    assert all(sample.psnr is not None and 0 < sample.psnr <= 100 for sample in record.samples)


def test_controls_find_nothing_and_baselines_less(run: Run, small_run: Path, tmp_path: Path) -> None:
    words = ("--method", "unmix", "--controls", "--baselines", "--out", tmp_path / "audit")
    printed = run("audit", small_run, *words)[1]
    record = load_audit(tmp_path / "audit").record
    assert [control.name for control in record.controls] == ["untrained model", "model trained on other samples"]
    assert all(control.num_recovered <= 2 for control in record.controls)
    assert record.controls[1].num_candidates > 20
    assert [baseline.method for baseline in record.baselines] == ["weights", "inversion"]
    assert "untrained model: recovered 0" in printed
    weights = (small_run / "target.safetensors", "--members", small_run / "members.json")
    code, printed, _ = run("audit", *weights, "--method", "unmix", "--controls", "--out", tmp_path / "bare")
    assert code == 1  # standard images, as above
    assert "net trained on other samples: not run" in printed


# The file --------------------------------------------------------------------------------------------------


def test_the_published_schema_is_that_of_the_code() -> None:
    ours = json.dumps(Record.model_json_schema(), indent=1, ensure_ascii=False) + "\n"
    assert SCHEMA.read_text() == ours, "write it anew: make schema"


def test_audits_follow_the_schema_and_wrong_ones_do_not(face_page: Path, face_audit: Audit) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    content = json.loads((face_page / "audit.json").read_text())
    jsonschema.validate(content, schema)
    jsonschema.validate(redact(face_audit).record.model_dump(mode="json"), schema)
    for wrong in ({"schema_version": 1}, {"verdict": "fine"}, {"num_good": "many"}, {"extra": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(content | wrong, schema)


@pytest.mark.parametrize(("version", "word"), [(2, "older"), (6, "newer")])
def test_another_version_is_refused(face_page: Path, tmp_path: Path, version: int, word: str) -> None:
    content = json.loads((face_page / "audit.json").read_text())
    (tmp_path / "audit.json").write_text(json.dumps(content | {"schema_version": version}))
    with pytest.raises(UnfitError, match=rf"schema_version {version}, this unfit reads 5.*{word}"):
        load_audit(tmp_path)


def test_junit_says_the_verdict(run: Run, small_run: Path, face_audit: Audit, tmp_path: Path) -> None:
    words = ("audit", small_run, "--method", "unmix", "--junit", tmp_path / "junit.xml")
    assert run(*words, "--out", tmp_path / "audit")[0] == 1
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "0")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "training samples are recognisable" in str(failure.get("message"))
    code, _, error = run(*words, "--out", tmp_path / "again")
    assert (code, "junit.xml exists already" in error) == (2, True)
    for verdict, kinds in (("pass", []), ("inconclusive", ["error"])):
        root = ElementTree.fromstring(junit(changed(face_audit.record, verdict=verdict, class_names=["<a>", "&"])))
        assert [child.tag for child in root[0]] == ["system-out", *kinds]


# Comparison ------------------------------------------------------------------------------------------------


def test_a_diff_fails_only_on_what_got_worse(face_audit: Audit) -> None:
    old = face_audit.record
    assert compare(old, old).changes == compare(old, old).regressions == []
    fewer = changed(old, num_recognisable=3)
    assert compare(old, fewer).exit_code == 0
    assert compare(old, fewer).changes == [f"recognisable or exact: {old.num_recognisable} → 3"]
    assert "before 3, allowed 0" in compare(fewer, old).regressions[0]
    allowed = changed(old, policy={"max_leaked": 30}, verdict="pass")
    assert compare(changed(fewer, verdict="pass"), allowed).regressions == []
    by_chance = changed(old, num_recognisable=1, p_value=0.5, verdict="pass")
    assert compare(changed(by_chance, num_recognisable=0), by_chance).regressions == []
    assert (
        "was pass, now it is inconclusive"
        in compare(by_chance, changed(by_chance, verdict="inconclusive")).regressions[0]
    )
    assert "40 samples are exact" in compare(old, changed(old, num_exact=40)).regressions[0]


def test_audits_that_cannot_be_compared_are_refused(run: Run, face_page: Path, tmp_path: Path) -> None:
    content = json.loads((face_page / "audit.json").read_text())
    others = {"hashes": content["hashes"] | {"private": "0" * 64}, "fpr": 0.05}
    similarity = {"similarity": content["similarity"] | {"window": 3}}
    (tmp_path / "new.json").write_text(json.dumps(content | others | similarity))
    code, _, error = run("diff", face_page / "audit.json", tmp_path / "new.json")
    assert code == 2
    assert all(word in error for word in ("private samples", "0.01 and 0.05", "window 3"))
    code, printed, _ = run("diff", face_page / "audit.json", face_page)
    assert (code, printed.strip()) == (0, "nothing changed")


def test_a_diff_has_a_page(run: Run, face_page: Path, face_audit: Audit, tmp_path: Path) -> None:
    before = changed(face_audit.record, num_recognisable=0, verdict="pass")
    text = diff_page(before, face_audit.record)
    assert "2 things got worse" in text
    assert "Do not publish this file." in text
    assert "the verdict was pass, now it is leak" in text.lower()
    assert "<script" not in diff_page(changed(before, reasons=["<script>"], class_names=["<script>", "b"]), before)
    code, printed, _ = run("diff", face_page, face_page, "--out", tmp_path / "d.html")
    assert (code, "Nothing got worse" in (tmp_path / "d.html").read_text()) == (0, True)
    assert "d.html" in printed
    assert run("diff", face_page, face_page, "--out", tmp_path / "d.html")[0] == 2


# Repetition ------------------------------------------------------------------------------------------------


def without_times(record: Record) -> dict[str, Any]:
    content = record.model_dump(exclude={"seconds", "date"})
    for entry in (*content["over_time"], *content["controls"], *content["baselines"]):
        del entry["seconds"]
    return content


def test_an_audit_repeats_itself(
    run: Run, small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small_run.parent)  # relative paths must work from anywhere later
    words = ("--method", "unmix", "--num-unseen", 80, "--seed", 3, "--no-redact")
    assert run("audit", small_run.name, *words, "--out", tmp_path / "first")[0] == 1
    monkeypatch.chdir(tmp_path)
    assert run("audit", "--from", "first/audit.json", "--no-redact", "--out", "second")[0] == 1
    first, second = (load_audit(tmp_path / name) for name in ("first", "second"))
    assert without_times(first.record) == without_times(second.record)
    assert all(torch.equal(first.arrays[name], second.arrays[name]) for name in first.arrays)
    code, _, error = run("audit", "--from", "first/audit.json", "--method", "kkt", "--out", "third")
    assert (code, "leave out --method" in error) == (64, True)


def test_a_base_is_found_again(small_run: Path) -> None:
    record = audit_run(AuditRequest(target=small_run, attack=Weights(), base=small_run)).record
    assert without_times(repeat_audit(record).record) == without_times(record)
    with pytest.raises(UnfitError, match="the base's weights differ"):
        repeat_audit(changed(record, hashes=record.hashes.model_dump() | {"base": "0"}))


def test_what_has_changed_since_is_not_repeated(face_audit: Audit) -> None:
    record = face_audit.record
    stale = changed(
        record,
        target=record.target.model_dump() | {"sha256": "0"},
        hashes=record.hashes.model_dump() | {"unseen": "0"},
    )
    with pytest.raises(UnfitError, match="the target's weights and the unseen samples differ"):
        repeat_audit(stale)
    with pytest.raises(UnfitError, match="made from arrays"):
        repeat_audit(changed(record, repeat=None))


# Privacy ---------------------------------------------------------------------------------------------------


def test_a_redacted_audit_has_no_picture_and_no_index(run: Run, small_run: Path, tmp_path: Path) -> None:
    # standard output is no terminal here, so this is the default
    run("audit", small_run, "--method", "unmix", "--out", tmp_path / "audit")
    hidden = load_audit(tmp_path / "audit")
    assert hidden.record.redacted
    indices = {sample.index for sample in hidden.record.samples}
    assert len(indices) == 20
    assert all(isinstance(index, str) and len(index) == 16 for index in indices)
    for name in ("original", "reconstruction", "unseen"):
        assert hidden.arrays[name].shape[1:] == (1, 25, 25)


def test_redaction_keeps_what_belongs_together_and_no_order(face_audit: Audit) -> None:
    once, twice = redact(face_audit), redact(face_audit)
    for audit_ in (once, twice):
        similarity = [sample.similarity for sample in audit_.record.samples]
        assert similarity == pytest.approx(audit_.arrays["similarity"].tolist())
        assert audit_.record.num_recovered == face_audit.record.num_recovered
    ours, theirs = ([sample.index for sample in audit_.record.samples] for audit_ in (once, twice))
    assert not set(ours) & set(theirs)  # another salt each time
    assert [sample.label for sample in once.record.samples] != [sample.label for sample in twice.record.samples]
    assert not face_audit.record.redacted


# Codes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effort", "sight", "code"),
    [
        ({}, {"signal_p_value": 0.001, "num_held": 7}, "holds-samples"),
        ({}, {"knows_p_value": 1e-9}, "holds-samples"),
        ({"capacity": 39}, {}, "too-many-samples"),
        ({"estimated": 81}, {}, "other-samples"),
        ({"status": "out of budget"}, {}, "budget"),
        ({"status": "diverged after 7 iterations"}, {}, "unfinished"),
        ({"method": "weights"}, {}, "unfinished"),
        ({"rank": 0}, {}, "sees-nothing"),
        ({"applies": False, "status": "not applicable: BatchNorm"}, {}, "not-covered"),
        ({}, {"differences": ["brighter"]}, "sets-differ"),
    ],
)
def test_a_reason_has_a_code_and_accepting_that_code_alone_makes_a_pass(
    effort: dict[str, Any], sight: dict[str, Any], code: Code
) -> None:
    what = found(0, 0, 0, 40, 40), replace(DONE, **effort), replace(SILENT, **sight)
    decision = decided(*what, Policy())
    assert (decision.verdict, [doubt.code for doubt in decision.doubts]) == ("inconclusive", [code])
    accepted = decided(*what, Policy(accept=(code,)))
    assert accepted.verdict == "pass"
    assert accepted.reasons[0] == f"the policy accepts {code}: {decision.reasons[0]}"
    assert not any("this holds against" in reason for reason in accepted.reasons)
    others = tuple(each for each in MEANINGS if each != code)
    assert decided(*what, Policy(accept=others)).verdict == "inconclusive"


def test_all_reasons_must_be_accepted_and_a_leak_never_is() -> None:
    unclear = replace(SILENT, signal_p_value=0.001, num_held=7)
    late = replace(DONE, status="out of budget")
    for accept, verdict in (
        (("budget",), "inconclusive"),
        (("holds-samples",), "inconclusive"),
        (("holds-samples", "budget"), "pass"),
    ):
        assert decided(found(0, 0, 0, 40, 40), late, unclear, Policy(accept=accept)).verdict == verdict
    assert decided(found(23, 9, 0, 40, 40), late, unclear, Policy(accept=tuple(MEANINGS))).verdict == "leak"


def test_what_was_accepted_shows_in_every_report(face_audit: Audit) -> None:
    doubt = DoubtRecord(code="holds-samples", reason="the weights hold these samples", accepted=False)
    open_ = changed(face_audit.record, verdict="inconclusive", doubts=[doubt], reasons=[doubt.reason])
    policy = Policy(accept=("holds-samples",))
    done = changed(
        face_audit.record,
        verdict="pass",
        policy=policy,
        reasons=[f"the policy accepts holds-samples: {doubt.reason}"],
        doubts=[doubt.model_copy(update={"accepted": True})],
    )
    for record in (open_, done):
        audit = Audit(record, face_audit.arrays)
        shown = [audit.summary(), audit.to_html(), audit.to_json(), junit(record), sarif(record), card(record)]
        assert all("holds-samples" in text for text in shown)
    assert json.loads(sarif(done))["runs"][0]["results"][0]["suppressions"][0]["status"] == "accepted"
    assert "suppressions" not in json.loads(sarif(open_))["runs"][0]["results"][0]
    assert 'failures="0" errors="0"' in junit(done)
    assert "the policy accepts that: holds-samples" in headline(done)
    assert leaked_share(done) is None
    assert compare(changed(open_, verdict="pass", doubts=[], reasons=[]), done).exit_code == 1
    schema = json.loads(SCHEMA.read_text())
    jsonschema.validate(done.model_dump(mode="json"), schema)


def test_the_page_on_gating_lists_every_code() -> None:
    page = (SCHEMA.parent / "gating.md").read_text(encoding="utf-8")
    assert all(f"| `{code}` | {MEANINGS[code]} |" in page for code in MEANINGS)
