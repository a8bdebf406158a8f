"""What every attack owes its callers, whichever it is: one contract, run over all methods there are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from trained import on_records
from unfit import (
    Audit,
    Candidates,
    FitSettings,
    Samples,
    Target,
    as_target,
    attack,
    audit,
    draw,
    draw_unseen,
    read_source,
)
from unfit.attacker.attacks import ATTACKS as KINDS
from unfit.attacker.candidates import TENSORS, Facts, load_candidates, save_candidates
from unfit.attacker.method import Method
from unfit.auditor.arrays import as_samples
from unfit.base.modules import as_base
from unfit.base.nets import parse_architecture
from unfit.base.progress import Report, quiet
from unfit.lab.fit import fit


def label(kind: type[Method]) -> str:
    fields = kind.model_fields
    return " ".join(str(fields[name].default) for name in ("method", "solver") if name in fields)


# A new attack is in this list by itself, with its defaults unless `SHORT` makes it shorter.
ATTACKS = {label(kind): kind for kind in KINDS}
SILENT = ("weights", "cone")  # one is done at once, the other takes seconds for few samples
PROVING = ("auto", "cone", "peel", "unmix")
SHORT: dict[str, dict[str, Any]] = {
    "kkt paper": {"num_candidates": 12, "iterations": 50, "lr": 0.01},
    "kkt fast": {"runs": 2},
    "inversion": {"num_candidates": 24, "iterations": 30},
}


def run(name: str, case: Case, seed: int = 0, progress: Report = quiet) -> Candidates:
    return attack(case.target, ATTACKS[name](seed=seed, **SHORT.get(name, {})), case.base, progress)


def audit_of(case: Case, candidates: Candidates | Path) -> Audit:
    return audit(case.target, case.private, case.unseen, candidates=candidates)


@dataclass(frozen=True, eq=False)
class Case:
    """A small trained net, and what the auditor has."""

    target: Target
    base: Target | None
    private: Samples
    unseen: Samples


NETS = {
    "binary": ("faces", None, "60-20"),
    "classes": ("mnist5k", "3", "60"),
    "conv": ("faces", None, "conv(3,4)-20"),
    "base": ("faces", None, "300-20"),
}
RECORDS = "records"  # never negative, with a base


@cache
def trained(kind: str) -> Case:
    if kind == RECORDS:
        model, base, x, unseen = on_records(kind)
        target, y = as_target(model), torch.arange(len(x)) % 2
        return Case(target, as_base(base, target), *as_samples((x, y), (unseen, y), (x.shape[1],), 1))
    name, classes, text = NETS[kind]
    source = read_source(name, classes)
    private = draw(source, 12, 0)
    unseen = draw_unseen(source, private, 12, 0)
    outputs = 1 if private.num_classes == 2 else private.num_classes
    architecture = parse_architecture(text, private.shape, outputs)
    train, test = (samples.centred(private.mean) for samples in (private, unseen))
    init = None if kind == "base" else 1e-4
    settings = FitSettings(loss="logistic" if outputs == 1 else "ce", init=init, flow_time=300)
    done = fit(architecture, (train.x, train.y), (test.x, test.y), settings)
    after, before = (Target(architecture, weights, (-1.0, 1.0)) for weights in (done.weights, done.initial))
    return Case(after, before if kind == "base" else None, private, unseen)


@dataclass(frozen=True, eq=False)
class Run:
    """What an attack found and what it told on the way."""

    found: Candidates
    told: list[tuple[float, str]]


@cache
def watched(name: str, kind: str) -> Run:
    told: list[tuple[float, str]] = []
    found = run(name, trained(kind), progress=lambda fraction, words: told.append((fraction, words)))
    return Run(found, told)


def found_by(name: str, kind: str) -> Candidates:
    return watched(name, kind).found


def is_random(candidates: Candidates) -> bool:
    return candidates.attack["method"] != "weights"


def applies(name: str, kind: str) -> bool:
    """Peel needs a base, which some do not take; the cone also inputs that are never negative, and the diary a
    table of embeddings (test_diary.py)."""
    if name in ("cone", "diary") or kind == RECORDS:
        return (name, kind) == ("cone", RECORDS)
    return ATTACKS[name].takes_base if kind == "base" else name != "peel"


PAIRS = [(name, kind) for name in ATTACKS for kind in (*NETS, RECORDS) if applies(name, kind)]
every_pair = pytest.mark.parametrize(("name", "kind"), PAIRS)
every_attack = pytest.mark.parametrize(("name", "kind"), dict(PAIRS[::-1]).items())  # on its first net


@every_pair
def test_candidates_are_inputs_of_the_net_and_each_has_an_origin(name, kind):
    case, found = trained(kind), found_by(name, kind)
    m, shape = len(found), case.target.architecture.input_shape
    assert m > 0
    assert (tuple(found.x.shape), found.x.dtype) == ((m, *shape), torch.float32)
    assert found.x.isfinite().all()
    assert {len(getattr(found, tensor)) for tensor in TENSORS} == {m}
    assert set(found.origin.tolist()) <= set(range(len(found.origins)))
    assert len(set(found.origins)) == len(found.origins)
    assert set(found.label.tolist()) <= set(range(-1, case.private.num_classes))
    assert found.multiplier.isfinite().all()
    assert ((found.confidence >= 0) & (found.confidence <= 1)).all()
    assert found.proven.dtype == torch.bool
    assert bool(found.proven.any()) == (case.base is not None and name in PROVING)


@every_pair
def test_an_attack_says_what_it_did_and_what_the_weights_told_it(name, kind):
    case, found = trained(kind), found_by(name, kind)
    assert found.attack["method"] == name.split()[0]
    assert (found.attack["seed"], found.attack["base"]) == (0, case.base is not None)
    assert isinstance(found.attack["settings"], dict)
    Facts.model_validate(found.facts)
    assert found.facts["target"] == case.target.sha256
    assert found.facts["status"] == "finished"
    assert found.facts["spectrum"] == sorted(found.facts["spectrum"], reverse=True)
    assert sum(value > found.facts["noise_edge"] for value in found.facts["spectrum"]) == found.facts["rank"] > 0
    assert len(found.facts["finished"]) == len(found.origins)
    assert all(0 <= seconds <= found.facts["seconds"] + 0.1 for seconds in found.facts["finished"])
    assert json.loads(json.dumps([found.attack, found.facts], allow_nan=False))[0] == found.attack


@every_attack
def test_candidates_follow_from_the_seed_and_nothing_else_changes(name, kind):
    """Neither PyTorch's own random numbers nor the target's weights, nor does it matter who watches."""
    case, first = trained(kind), found_by(name, kind)
    target = case.target
    before = {key: value.clone() for key, value in target.weights.items()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    again, other = run(name, case), run(name, case, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(target.weights[key], value) for key, value in before.items())
    assert all(torch.equal(getattr(again, tensor), getattr(first, tensor)) for tensor in TENSORS)
    assert again.origins == first.origins
    if not first.proven.all():  # what is proven does not depend on where the search began
        assert torch.equal(other.x, first.x) != is_random(first)
    assert other.attack["seed"] == 1


@every_attack
def test_candidates_come_back_from_their_file_bit_for_bit(name, kind, tmp_path):
    found = found_by(name, kind)
    save_candidates(found, tmp_path / "found.safetensors")
    read = load_candidates(tmp_path / "found.safetensors")
    for tensor in TENSORS:
        one, other = getattr(read, tensor), getattr(found, tensor)
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert (read.origins, read.attack) == (found.origins, found.attack)
    assert read.facts == json.loads(json.dumps(found.facts))


@every_pair
def test_an_attack_tells_how_far_it_is(name, kind):
    told = watched(name, kind).told
    assert all(0 <= fraction <= 1 for fraction, _ in told)
    assert all(isinstance(words, str) and words for _, words in told)
    assert bool(told) == (name not in SILENT)


@every_pair
def test_candidates_can_be_audited_from_memory_and_from_their_file(name, kind, tmp_path):
    case, found = trained(kind), found_by(name, kind)
    save_candidates(found, tmp_path / "found.safetensors")
    done, again = (audit_of(case, given) for given in (found, tmp_path / "found.safetensors"))
    assert (done.record.num_candidates, done.record.num_samples) == (len(found), len(case.private))
    assert done.record.attack == found.attack
    assert done.record.rank == found.facts["rank"]
    assert any(sample.exact for sample in done.record.samples) == bool(found.proven.any())
    assert done.verdict in ("pass", "leak", "inconclusive")
    assert [sample.similarity for sample in done.record.samples] == done.arrays["similarity"].tolist()
    assert torch.equal(done.arrays["reconstruction"], again.arrays["reconstruction"])
