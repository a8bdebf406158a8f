from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from unfit import (
    Audit,
    AuditRequest,
    Auto,
    FitSettings,
    Inversion,
    Policy,
    Reading,
    Target,
    Unmix,
    attack,
    audit,
    draw,
    draw_unseen,
    fit_run,
    load_audit,
    load_target,
    read_source,
)
from unfit.auditor.case import private_set
from unfit.auditor.labels import ONE_CLASS
from unfit.auditor.samples import Samples
from unfit.base.errors import DataCheckError, UnfitError
from unfit.base.nets import initialise
from unfit.lab.runs import audit_run


def test_the_face_detector_gives_its_faces_back_and_nothing_else(face_audit: Audit) -> None:
    record = face_audit.record
    assert record.verdict == "leak"
    assert face_audit.exit_code == 1
    assert record.num_good >= 24
    assert record.num_good_unseen <= 1
    assert record.num_recovered_unseen == 0
    assert record.p_value < 1e-6


@pytest.mark.parametrize("with_state", [True, False])
def test_the_state_of_an_optimiser_gives_away_what_the_weights_hide(tmp_path: Path, with_state: bool) -> None:
    """Adam's steps hide samples in the weights, and its first moment is a plain sum of gradients."""
    source = read_source("faces")
    private = draw(source, 30, 0)
    unseen, x, y = draw_unseen(source, private, 60, 0), private.x - private.mean, private.y
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(625, 300), nn.ReLU(), nn.Linear(300, 2))
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    state = {"optimizer_state_dict": optimiser.state_dict()} if with_state else {}
    torch.save({"model_state_dict": net.state_dict(), **state}, tmp_path / "net.pt")
    target = load_target(tmp_path / "net.pt", Reading(input_shape=(1, 25, 25)))
    result = audit(target, (x, y), (unseen.x - private.mean, unseen.y), attack=Auto(seeds=0))
    found = result.record
    assert found.num_recognisable_unseen == 0
    assert not found.attack["base"]  # no start is known either way
    assert ("and the state of the optimiser" in result.to_html()) == with_state
    assert found.attacker == ("has the optimiser" if with_state else "blind")
    assert found.verdict == ("leak" if with_state else "inconclusive")


def test_a_checkpoint_with_its_optimiser_gives_away_no_less_than_its_weights_alone(tmp_path: Path) -> None:
    """Its moments and its weights give different samples away; an audit once told of the moments alone."""
    source = read_source("faces")
    private = draw(source, 20, 0)
    unseen, x, y = draw_unseen(source, private, 60, 0), private.x - private.mean, private.y
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(625, 300), nn.ReLU(), nn.Linear(300, 2))
    nn.init.normal_(net[1].weight, std=1e-4)  # type: ignore[arg-type]
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    found = {}
    for name, state in (("whole", {"optimizer_state_dict": optimiser.state_dict()}), ("alone", {})):
        torch.save({"model_state_dict": net.state_dict(), **state}, tmp_path / f"{name}.pt")
        target = load_target(tmp_path / f"{name}.pt", Reading(input_shape=(1, 25, 25)))
        done = audit(target, (x, y), (unseen.x - private.mean, unseen.y), attack=Unmix())
        assert done.verdict == "leak"
        found[name] = done
    alone, whole = found["alone"].record, found["whole"].record
    assert set(found["alone"].recognisable) <= set(found["whole"].recognisable)
    for name in ("similarity", "ssim"):  # rows come from the surface that a sample is best in
        told = [getattr(sample, name) for sample in whole.samples]
        assert told == pytest.approx(found["whole"].arrays[name].tolist())
    assert whole.num_recognisable == sum(
        each.grade is not None and each.grade != "trace" for each in whole.samples
    )
    assert whole.p_value >= alone.p_value  # two surfaces have twice the chance of a false find
    assert (whole.num_recognisable_unseen, alone.num_recognisable_unseen) == (0, 0)


def test_moments_that_an_attack_does_not_use_prevent_a_pass(tmp_path: Path) -> None:
    source = read_source("faces")
    private = draw(source, 20, 0)
    unseen, x, y = draw_unseen(source, private, 40, 0), private.x - private.mean, private.y
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(625, 60), nn.ReLU(), nn.Linear(60, 2))
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(30):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    torch.save({"model": net.state_dict(), "optimizer": optimiser.state_dict()}, tmp_path / "net.pt")
    target = load_target(tmp_path / "net.pt", Reading(input_shape=(1, 25, 25)))
    sets = (x, y), (unseen.x - private.mean, unseen.y)
    limit = Policy(max_leaked=20)  # so that nothing is a leak
    for given in (
        {"attack": Inversion(num_candidates=4, iterations=3)},
        {"candidates": attack(target, "weights")},
    ):
        done = audit(target, *sets, policy=limit, **given)
        assert done.verdict == "inconclusive"
        assert any(reason.startswith("moments were not attacked") for reason in done.record.reasons)


def test_repeated_samples_count_once(face_run: Path) -> None:
    """Copies lie next to each other, which made every leak with some inconclusive: "can be told apart"."""
    source, members = private_set(AuditRequest(target=face_run))
    unseen, mean = draw_unseen(source, members, len(members), 0), members.mean
    x, y = torch.cat([members.x, members.x[:20]]) - mean, torch.cat([members.y, members.y[:20]])
    done = audit(load_target(face_run), (x, y), (unseen.x - mean, unseen.y), attack=Unmix())
    assert (done.verdict, done.record.num_samples, done.record.num_repeated) == ("leak", 40, 20)
    assert done.record.comparability.comparable
    assert [sample.index for sample in done.record.samples] == list(range(40))


def test_the_mean_of_repeated_samples_is_that_of_all() -> None:
    """It is what the model's inputs were less, copies and all."""
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0], [4.0, 8.0]])
    samples = Samples(x, torch.zeros(3).long(), torch.arange(3), ONE_CLASS)
    assert samples.unique().indices.tolist() == [0, 2]
    assert torch.equal(samples.unique().mean, torch.tensor([[2.0, 4.0]]))
    assert samples.at(torch.tensor([0, 2])).unique().mean.tolist() == [[2.5, 5.0]]


def test_a_model_that_plainly_knows_its_samples_does_not_pass() -> None:
    """Trained on shifted and mirrored images, it shows none of them, and it is right about them alone."""
    source = read_source("mnist5k", "all")
    private = draw(source, 100, 0)
    unseen, x, y = draw_unseen(source, private, 100, 0), private.x, private.y
    random = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(400):
        down, across, mirrored = torch.randint(0, 5, (3,), generator=random).tolist()
        moved = x.roll((down - 2, across - 2), (2, 3))
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(moved.flip(3) if mirrored > 2 else moved), y).backward()
        optimiser.step()
    done = audit(net, (x, y), (unseen.x, unseen.y), attack=Unmix())
    assert done.verdict == "inconclusive"
    knows = done.record.signal_check.knows_p_value
    assert knows is not None
    assert knows < 1e-6
    assert any("knows these samples" in reason or "hold these samples" in reason for reason in done.record.reasons)
    halves = [(unseen.x[i::2], unseen.y[i::2]) for i in range(2)]  # each class in both
    control = audit(net, *halves, attack=Unmix())
    assert control.record.signal_check.knows_p_value is not None
    assert control.record.signal_check.knows_p_value > 0.05


def test_the_record_adds_up(face_audit: Audit) -> None:
    record, similarity = face_audit.record, face_audit.arrays["similarity"]
    assert record.num_samples == len(record.samples) == 40
    assert record.num_recovered == sum(sample.recovered for sample in record.samples)
    ssims = [sample.ssim for sample in record.samples]
    assert ssims == pytest.approx(face_audit.arrays["ssim"].tolist())
    assert record.num_good == sum(ssim > 0.4 for ssim in ssims if ssim is not None)
    assert record.num_recovered_high == sum(ssim > 0.6 for ssim in ssims if ssim is not None)
    assert ssims != [sample.similarity for sample in record.samples]
    assert record.threshold == pytest.approx(float(face_audit.arrays["unseen_similarity"].max()))
    assert [sample.similarity for sample in record.samples] == pytest.approx(similarity.tolist())
    assert len({sample.index for sample in record.samples}) == 40


def test_the_contract_of_audit_json(face_page: Path) -> None:
    content = json.loads((face_page / "audit.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    promised = (
        "schema_version verdict reasons num_samples num_good num_good_unseen num_recovered threshold fpr "
        "num_recovered_high num_exact estimated_num_samples seconds attack target versions samples"
    )
    assert set(promised.split()) <= content.keys()
    assert {"method", "settings", "seed"} <= content["attack"].keys()
    assert {"sha256", "architecture"} <= content["target"].keys()
    sample = "index label output similarity ssim assigned ncc psnr l2 projection_similarity"
    sample += " recovered exact grade stored"
    assert set(sample.split()) == content["samples"][0].keys()


def test_an_audit_survives_saving(face_audit: Audit, face_page: Path) -> None:
    again = load_audit(face_page)
    assert again.record == face_audit.record
    assert torch.equal(again.arrays["reconstruction"], face_audit.arrays["reconstruction"])


def test_a_folder_that_is_no_audit_is_refused(face_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UnfitError, match=r"audit\.json"):
        load_audit(face_run)
    (tmp_path / "audit.json").write_text('{"verdict": "fine"}')
    with pytest.raises(UnfitError, match="not an audit"):
        load_audit(tmp_path)


@pytest.mark.parametrize("scale", [1e-4, None])
def test_an_untrained_net_is_inconclusive(face_run: Path, scale: float | None) -> None:
    trained = load_target(face_run)
    net = initialise(trained.architecture, scale, seed=7)
    source, private = private_set(AuditRequest(target=face_run))
    untrained = Target(trained.architecture, {k: v.detach() for k, v in net.state_dict().items()})
    with pytest.raises(DataCheckError, match="where guessing gets 50%") as error:
        audit(untrained, private, draw_unseen(source, private, len(private), 0))
    assert error.value.exit_code == 3


def test_samples_of_another_net_are_not_recovered(face_run: Path) -> None:
    """The control that matters most: the attacked net never saw these 'private' samples."""
    source, members = private_set(AuditRequest(target=face_run))
    others = draw_unseen(source, members, 40, seed=5)
    rest = draw_unseen(source, members, None, seed=6)
    used = set(others.indices.tolist())
    fresh = [i for i, index in enumerate(rest.indices.tolist()) if index not in used]
    unseen = replace(rest, x=rest.x[fresh], y=rest.y[fresh], indices=rest.indices[fresh])
    result = audit(load_target(face_run), others, unseen)
    assert result.verdict == "pass"
    assert result.record.num_recovered <= 2
    assert result.record.num_recognisable <= result.record.num_recognisable_unseen  # some images share a black bar
    assert result.record.signal_check.p_value > 0.05
    assert "an attacker who has the weights and nothing else" in result.record.reasons[1]


def test_start_weights_show_the_number_of_samples(tmp_path: Path) -> None:
    fit_run(read_source("faces"), 20, tmp_path, FitSettings(init=None), arch="300-50")
    blind = audit_run(AuditRequest(target=tmp_path, attack=Auto(seeds=0)))
    known = audit_run(AuditRequest(target=tmp_path, base=tmp_path))
    assert (blind.record.attacker, known.record.attacker) == ("blind", "has the base")
    assert blind.record.estimated_num_samples is None
    assert known.record.estimated_num_samples == 20
    assert known.record.num_recovered > blind.record.num_recovered + 10
    found = audit_run(AuditRequest(target=tmp_path, attack=Auto(seeds=1000)))  # its seed is 0
    assert (found.record.attacker, found.record.num_exact) == (
        "computes the initial weights",
        known.record.num_exact,
    )
    assert found.record.initial is not None
    assert found.record.initial.seed == 0
    assert found.record.signal_check.p_value == known.record.signal_check.p_value


def test_shapes_and_classes_that_do_not_fit_are_all_named(face_run: Path) -> None:
    digits = read_source("mnist5k", "all")
    private = draw(digits, 20, 0)
    with pytest.raises(UnfitError, match=r"private samples have shape .* the unseen .* 10 classes"):
        audit(load_target(face_run), private, draw_unseen(digits, private, 20, 0))


def test_unseen_samples_that_were_trained_on_are_refused(face_run: Path) -> None:
    """They would set the threshold so high that nothing leaks."""
    private = private_set(AuditRequest(target=face_run))[1]
    with pytest.raises(UnfitError, match="40 of 40 unseen samples are private ones"):
        audit(load_target(face_run), private, private)


def test_a_source_that_changed_since_training_is_refused(face_run: Path, tmp_path: Path) -> None:
    members = json.loads((face_run / "members.json").read_text())
    members["indices"][0] = next(i for i in range(100) if i not in members["indices"])
    (tmp_path / "members.json").write_text(json.dumps(members))
    with pytest.raises(UnfitError, match="changed since"):
        private_set(AuditRequest(target=face_run, members=tmp_path / "members.json"))
