"""Exact recovery from the weights before and after training: every proof is right, and nothing else is proven."""

from functools import cache

import pytest
import torch
from torch import Tensor

from unfit.attacker.attacks import attack
from unfit.attacker.attacks.peel import (
    PeelSettings,
    drop_mixtures,
    find_columns,
    fit_columns,
    num_zeros,
    peel,
    proof_bar,
    purify,
    read_change,
    sharpen,
)
from unfit.attacker.candidates import load_candidates, save_candidates
from unfit.attacker.mixtures import read_mixtures
from unfit.auditor.audit import audit
from unfit.auditor.report.page import page
from unfit.auditor.samples import Samples, draw, draw_unseen
from unfit.auditor.sources import read_source
from unfit.base.nets import initialise, parse_architecture
from unfit.base.target import Target
from unfit.lab.fit import FitSettings, fit


@cache
def trained(name: str, text: str, n: int, classes: str | None = None) -> tuple[Target, Target, Samples, Samples]:
    """A net after training and before, what it was trained on, and as much that it never saw."""
    source = read_source(name, classes)
    members = draw(source, n, 0)
    unseen = draw_unseen(source, members, n, 0)
    outputs = 1 if members.num_classes == 2 else members.num_classes
    architecture = parse_architecture(text, members.shape, outputs)
    centred, others = members.centred(members.mean), unseen.centred(members.mean)
    settings = FitSettings(init=None, loss="logistic" if outputs == 1 else "ce", flow_time=1e3)
    done = fit(architecture, (centred.x, centred.y), (others.x, others.y), settings)
    after, before = (Target(architecture, weights, (-1.0, 1.0)) for weights in (done.weights, done.start))
    return after, before, members, unseen


def errors(found: Tensor, members: Samples) -> tuple[Tensor, Tensor]:
    """For each candidate the relative distance to the nearest member, and which that is."""
    x = members.centred(members.mean).x.flatten(1)
    nearest = (torch.cdist(found.flatten(1), x) / x.norm(dim=1)).min(1)
    return nearest.values, nearest.indices


@pytest.mark.parametrize(
    ("name", "text", "n"), [("faces", "400-100", 10), ("mnist5k", "1000-100", 20), ("mnist5k", "500", 12)]
)
def test_every_sample_comes_back_exactly_with_its_label(name, text, n):
    target, start, members, _ = trained(name, text, n)
    found = attack(target, "unmix", start)
    distance, which = errors(found.x, members)
    assert found.proven.all()
    assert len(found) == n
    assert distance.max() < 0.02
    assert sorted(which.tolist()) == list(range(n))  # each once
    assert torch.equal(found.label, members.y[which])


def test_ten_classes_come_back_too():
    target, start, members, _ = trained("mnist5k", "500-100", 30, "all")
    found = attack(target, "unmix", start)
    distance, which = errors(found.x[found.proven], members)
    assert len(distance) >= 25
    assert (distance < 0.02).sum() >= 25
    assert distance.max() < 0.3
    assert torch.equal(found.label[found.proven], members.y[which])


def test_what_is_proven_with_too_many_samples_for_the_width_is_still_right():
    target, start, members, _ = trained("mnist5k", "100-50", 30)
    part = peel(read_change(read_mixtures(target, start)), PeelSettings(rounds=3))
    assert part is None or errors(part.x, members)[0].max() < 0.3


def test_nothing_is_proven_without_the_right_start():
    target, start, _, _ = trained("faces", "400-100", 10)
    other = Target(target.architecture, dict(initialise(target.architecture, None, 5).state_dict()), (-1.0, 1.0))
    assert not attack(target, "unmix").proven.any()
    assert not attack(target, "unmix", other).proven.any()
    assert not attack(start, "unmix", start).proven.any()  # never trained


def test_nothing_is_proven_when_the_gates_belong_to_other_neurons():
    """The control of the proof itself: the same change, its neurons in another order than the gates'."""
    target, start, _, _ = trained("mnist5k", "400-100", 20)
    change = read_change(read_mixtures(target, start))
    order = torch.randperm(len(change.rows), generator=torch.Generator().manual_seed(1))
    shuffled = type(change)(change.rows[order], change.space[order], change.shape, change.start, change.end)
    part = peel(shuffled, PeelSettings(rounds=3))
    assert part is None


def test_the_bar_lies_above_chance_and_below_the_truth():
    target, start, members, _ = trained("mnist5k", "400-100", 20)
    change = read_change(read_mixtures(target, start))
    x = members.centred(members.mean).x.flatten(1)
    zeros = num_zeros(find_columns(change, x, 20))
    assert change.n == 20
    assert 20 < proof_bar(change, PeelSettings()) < zeros.min()


@pytest.fixture
def planted():
    """Columns with exact zeros, the space they span, and the net's view of it that `sharpen` reads."""
    random = torch.Generator().manual_seed(0)
    columns = torch.randn(12, 300, generator=random, dtype=torch.float64)
    off = torch.rand(12, 300, generator=random) < 0.4
    off[1] = off[0] ^ (torch.rand(300, generator=random) < 0.05)  # two alike samples
    columns[off] = 0
    space = torch.linalg.qr(columns.T)[0]
    target, start, _, _ = trained("faces", "400-100", 10)
    change = read_change(read_mixtures(target, start))
    return columns, off, type(change)(columns.T, space, change.shape, change.start, change.end)


def test_a_column_is_found_from_gates_that_are_partly_wrong(planted):
    columns, off, change = planted
    random = torch.Generator().manual_seed(1)
    wrong = off ^ (torch.rand(off.shape, generator=random) < 0.1)
    prior = torch.where(wrong, 0.9, 0.1)
    signals = (columns + 0.5 * torch.randn(columns.shape, generator=random)).float()
    found = fit_columns(change.space.float(), prior, signals, 20)
    cosine = torch.nn.functional.cosine_similarity(found.double(), columns).abs()
    assert (cosine > 0.999).sum() >= 11
    sharp = torch.stack([sharpen(change, column) for column in found[cosine > 0.999]])
    assert torch.nn.functional.cosine_similarity(sharp, columns[cosine > 0.999]).abs().min() > 1 - 1e-6


def test_a_mixture_of_two_alike_columns_is_no_proof(planted):
    columns, _, change = planted
    mixture = columns[0] + 0.5 * columns[1]
    pure = purify(change, mixture)
    cosine = torch.nn.functional.cosine_similarity(pure[None], columns).abs()
    assert cosine.max() > 0.999
    alone = purify(change, columns[5])
    assert torch.equal(alone, columns[5])
    kept = drop_mixtures(torch.cat([columns, mixture[None]]))
    assert len(kept) == 12
    assert not torch.isclose(kept, mixture).all(1).any()


def test_the_audit_and_its_page_say_what_is_proven():
    target, start, members, unseen = trained("faces", "400-100", 10)
    done = audit(target, members, unseen, method="unmix", base=start, window=3)
    assert done.record.num_proven == 10
    assert done.record.estimated_num_samples == 10
    assert all(sample.proven for sample in done.record.samples)
    text = page(done)
    assert "Proven" in text
    assert "certificate" in text
    plain = audit(target, members, unseen, method="weights", window=3)
    assert plain.record.num_proven == 0
    assert not any(sample.proven for sample in plain.record.samples)


def test_proofs_survive_the_file(tmp_path):
    target, start, _, _ = trained("faces", "400-100", 10)
    found = attack(target, "unmix", start)
    save_candidates(found, tmp_path / "found.safetensors")
    assert torch.equal(load_candidates(tmp_path / "found.safetensors").proven, found.proven)
