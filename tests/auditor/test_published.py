"""The rest of a file: samples that stand in it verbatim, and what no attack read.

Each model here was trained on other samples than the private ones, so its weights give none of them away.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import unfit
from unfit import Audit, Policy, Reading, UnfitError
from unfit.auditor.calibration import p_more_often
from unfit.auditor.labels import ONE_CLASS
from unfit.auditor.redact import redact
from unfit.auditor.samples import Samples
from unfit.auditor.stored import Stored, stored_samples
from unfit.base.contents import contents_of

SHAPE = (1, 10, 10)
HELD = 9  # samples that a file holds
Pair = tuple[Tensor, Tensor]


def images(seed: int, num: int) -> Pair:
    """Smooth images; the label says which half is brighter."""
    random = torch.Generator().manual_seed(seed)
    x = nn.functional.interpolate(torch.rand(num, 1, 5, 5, generator=random), size=10, mode="bilinear")
    return x, (x[..., :5].mean((1, 2, 3)) > x[..., 5:].mean((1, 2, 3))).long()


PRIVATE, UNSEEN, OTHERS = images(1, 40), images(2, 40), images(3, 200)
RANDOM = torch.rand(40, *SHAPE, generator=torch.Generator().manual_seed(4))


def trained(data: Pair, seed: int) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(100, 24), nn.ReLU(), nn.Linear(24, 2))
    optimiser = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(data[0] - 0.5), data[1]).backward()
        optimiser.step()
    return net.state_dict()


@cache
def weights() -> dict[str, Tensor]:
    return trained(OTHERS, 0)


def audited(model: Any, **settings: Any) -> Audit:
    private, unseen = ((x - 0.5, y) for x, y in (PRIVATE, UNSEEN))
    return unfit.audit(model, private, unseen, attack=unfit.Weights(), **settings)


def audited_file(path: Path, **settings: Any) -> Audit:
    return audited(unfit.load_target(path, Reading(input_shape=SHAPE)), **settings)


def audited_with(folder: Path, **entries: Any) -> Audit:
    """Of a file that holds these entries beside the weights."""
    torch.save({"model_state_dict": weights(), **entries}, folder / "model.pt")
    return audited_file(folder / "model.pt")


# Nine files that passed -------------------------------------------------------------------------------------


class Model(nn.Module):
    """A perceptron that carries a bank, and may use it."""

    def __init__(self, bank: Tensor, use: str) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(100, 24), nn.ReLU(), nn.Linear(24, 2))
        self.net.load_state_dict(weights())
        self.register_buffer("bank", bank.flatten(1).clone())
        self.register_buffer("answers", torch.eye(2)[torch.arange(len(bank)) % 2])
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        if self.use == "soft":
            near = torch.softmax(-torch.cdist(x.flatten(1), self.bank), 1)
            return self.net(x) + 0.1 * near @ self.answers
        if self.use == "nearest":
            return self.net(x) + 0.1 * self.answers[torch.cdist(x.flatten(1), self.bank).argmin(1)]
        return self.net(x)


def in_last_batch(folder: Path, x: Tensor) -> Audit:
    return audited_with(folder, last_batch={"x": x, "y": torch.zeros(len(x))})


def in_replay(folder: Path, x: Tensor) -> Audit:
    return audited_with(folder, replay={i: {"state": each, "reward": 1.0} for i, each in enumerate(x)})


def in_list(folder: Path, x: Tensor) -> Audit:
    return audited_with(folder, examples=[each.clone() for each in x])


def in_numbers(folder: Path, x: Tensor) -> Audit:
    """8-bit values in Python's own lists."""
    return audited_with(folder, seen=[(255 * each).round().int().flatten().tolist() for each in x])


def normalised(folder: Path, x: Tensor) -> Audit:
    """In another type, with mean and deviation of training."""
    return audited_with(folder, cache=((x - 0.45) / 0.2).to(torch.bfloat16))


def in_header(folder: Path, x: Tensor) -> Audit:
    text = base64.b64encode(x.numpy().tobytes()).decode()
    save_file(weights(), folder / "model.safetensors", {"preview": text})
    return audited_file(folder / "model.safetensors")


def in_json(folder: Path, x: Tensor) -> Audit:
    text = json.dumps({"examples": [[round(v, 4) for v in each.flatten().tolist()] for each in x]})
    save_file(weights(), folder / "model.safetensors", {"about": text})
    return audited_file(folder / "model.safetensors")


def in_unused_buffer(folder: Path, x: Tensor) -> Audit:
    return audited(Model(x, "none"))


def in_nearest_neighbours(folder: Path, x: Tensor) -> Audit:
    return audited(Model(x - 0.5, "nearest"))


def in_soft_memory(folder: Path, x: Tensor) -> Audit:
    return audited(Model(x - 0.5, "soft"))


WAYS: dict[str, Callable[[Path, Tensor], Audit]] = {
    "last_batch['x']": in_last_batch,
    "replay[0]['state']": in_replay,
    "examples[0]": in_list,
    "seen": in_numbers,
    "cache": normalised,
    "metadata['preview']": in_header,
    "metadata['about']": in_json,
    "bank": in_unused_buffer,
    "bank (nearest)": in_nearest_neighbours,
    "bank (soft)": in_soft_memory,
}


@pytest.mark.parametrize("place", WAYS)
def test_training_samples_that_stand_in_the_file_are_a_leak(place: str, tmp_path: Path) -> None:
    record = WAYS[place](tmp_path, PRIVATE[0][:HELD].clone()).record
    path = place.partition(" (")[0]
    assert (record.verdict, record.attacker) == ("leak", "reads the file")
    assert record.reasons[0].startswith(f"9 of 40 training samples stand verbatim in the file, at `{path}`")
    assert "(0 of 40 unseen samples do)" in record.reasons[0]
    assert (record.file.num_stored, record.file.num_stored_unseen, record.file.places[0]) == (9, 0, path)
    assert [sample.stored for sample in record.samples] == [True] * HELD + [False] * 31
    assert all((sample.grade, sample.recovered) == ("exact", True) for sample in record.samples[:HELD])
    assert record.num_exact == 9 <= record.num_recognisable <= record.num_recovered


@pytest.mark.parametrize("place", WAYS)
def test_a_file_with_other_tensors_of_that_shape_is_no_leak(place: str, tmp_path: Path) -> None:
    for x in (RANDOM, OTHERS[0]):
        record = WAYS[place](tmp_path, x[:HELD].clone()).record
        assert record.verdict == "inconclusive"  # the attack is a baseline, which never passes
        told = [
            each for each in record.reasons if "through no dense layer" not in each
        ]  # as a bank receives samples
        assert not any("verbatim" in each or "not attacked" in each for each in told), told
        assert (record.file.num_stored, record.file.num_stored_unseen, record.num_exact) == (0, 0, 0)


def test_a_slice_is_saved_with_all_that_it_was_cut_from(tmp_path: Path) -> None:
    record = audited_with(tmp_path, shown=PRIVATE[0][:2]).record
    assert (record.verdict, record.file.num_stored) == ("leak", 40)


def test_a_model_that_passes_does_not_pass_with_a_batch_beside_it(tmp_path: Path) -> None:
    attack = unfit.Auto(seeds=0)
    private, unseen = ((x - 0.5, y) for x, y in (PRIVATE, UNSEEN))
    for entries in ({}, {"last_batch": PRIVATE[0][:1].clone()}):
        torch.save({"model_state_dict": weights(), **entries}, tmp_path / "model.pt")
        target = unfit.load_target(tmp_path / "model.pt", Reading(input_shape=SHAPE))
        record = unfit.audit(target, private, unseen, attack=attack).record
        assert (record.verdict == "leak") == bool(entries), record.reasons
    assert record.reasons[0].startswith("1 of 40 training samples stands verbatim")


# How it is judged -------------------------------------------------------------------------------------------


def test_records_that_unseen_ones_equal_as_often_are_no_leak_and_no_pass(tmp_path: Path) -> None:
    """Records of a few categories repeat: who stands in the file may be another person."""
    random = torch.Generator().manual_seed(0)
    x = nn.functional.one_hot(torch.randint(0, 4, (80, 14), generator=random), 4).flatten(1).float()
    model = nn.Sequential(nn.Linear(56, 20), nn.ReLU(), nn.Linear(20, 2))
    y = model(x).argmax(1)
    model.register_buffer("bank", torch.cat([x[:9], x[40:48]]))
    record = unfit.audit(model, (x[:40], y[:40]), (x[40:], y[40:]), attack=unfit.Weights()).record
    assert (record.verdict, record.num_exact) == ("inconclusive", 0)
    assert (record.file.num_stored, record.file.num_stored_unseen) == (9, 8)
    assert "9 of 40 training samples stand verbatim in the file, at `bank` (8 of 40 unseen" in record.reasons[0]


def test_a_file_that_holds_the_whole_data_set_is_a_leak(tmp_path: Path) -> None:
    """`torch.save` of a slice saves all that it was cut from, unseen samples among it."""
    record = audited_with(tmp_path, last=torch.cat([PRIVATE[0], UNSEEN[0]])[:3]).record
    assert (record.verdict, record.attacker, record.num_exact) == ("leak", "reads the file", 40)
    assert (record.file.num_stored, record.file.num_stored_unseen) == (40, 40)


def test_unseen_samples_in_the_file_are_no_leak_and_no_pass(tmp_path: Path) -> None:
    record = audited_with(tmp_path, bank=UNSEEN[0].clone()).record
    assert (record.verdict, record.num_exact) == ("inconclusive", 0)
    assert record.reasons[0].startswith("40 of 40 unseen samples stand verbatim in the file, at `bank`")


def test_a_few_unseen_samples_do_not_hide_many_training_samples(tmp_path: Path) -> None:
    record = audited_with(tmp_path, bank=torch.cat([PRIVATE[0][:20], UNSEEN[0][:2]])).record
    assert (record.verdict, record.num_exact, record.file.num_stored_unseen) == ("leak", 20, 2)


@pytest.mark.parametrize(("num", "n", "num_unseen", "m"), [(9, 40, 0, 40), (12, 40, 1, 60), (3, 10, 5, 10)])
def test_chance_is_fishers_exact_test(num: int, n: int, num_unseen: int, m: int) -> None:
    from scipy.stats import fisher_exact

    table = [[num, n - num], [num_unseen, m - num_unseen]]
    assert p_more_often(num, n, num_unseen, m) == pytest.approx(fisher_exact(table, "greater").pvalue)


@pytest.mark.parametrize(("limit", "verdict"), [(8, "leak"), (9, "inconclusive")])
def test_a_limit_counts_them_too(limit: int, verdict: str, tmp_path: Path) -> None:
    torch.save({"model_state_dict": weights(), "batch": PRIVATE[0][:9].clone()}, tmp_path / "model.pt")
    assert audited_file(tmp_path / "model.pt", policy=Policy(max_leaked=limit)).verdict == verdict


def test_they_are_a_leak_even_if_the_model_does_not_know_them(tmp_path: Path) -> None:
    wrong = (PRIVATE[0] - 0.5, 1 - PRIVATE[1])
    torch.save({"model_state_dict": weights(), "batch": PRIVATE[0][:9].clone()}, tmp_path / "model.pt")
    target = unfit.load_target(tmp_path / "model.pt", Reading(input_shape=SHAPE))
    unseen = (UNSEEN[0] - 0.5, 1 - UNSEEN[1])
    assert unfit.audit(target, wrong, unseen, attack=unfit.Weights()).verdict == "leak"
    with pytest.raises(UnfitError, match="right"):
        unfit.audit(target, wrong, unseen, attack=unfit.Weights(), policy=Policy(max_leaked=9))


def test_the_record_adds_up(tmp_path: Path) -> None:
    result = audited_with(tmp_path, batch=PRIVATE[0][:9].clone())
    record, similarity = result.record, result.arrays["similarity"]
    assert [sample.similarity for sample in record.samples] == pytest.approx(similarity.tolist())
    assert record.num_recovered == sum(sample.recovered for sample in record.samples)
    assert torch.equal(result.arrays["reconstruction"][:9], result.arrays["original"][:9])
    assert "publish the weights alone" in record.next_steps[0]
    assert "9 of 40 training images stand in this file, for anyone to read." in result.to_html()
    assert "9 of 40" in result.summary()


def test_entries_can_be_left_out_and_parts_of_the_model_cannot(tmp_path: Path) -> None:
    (step,) = audited(Model(PRIVATE[0][:9] - 0.5, "soft")).record.next_steps
    assert step.startswith("do not publish this model: it stores samples, at `bank`")


# What is told from what is not ------------------------------------------------------------------------------


def found_in(contents: Any, private: Tensor, unseen: Tensor) -> Stored:
    sets = tuple(
        Samples(x, torch.zeros(len(x), dtype=torch.long), torch.arange(len(x)), ONE_CLASS)
        for x in (private, unseen)
    )
    target = replace(unfit.as_target(nn.Linear(4, 2)), contents=tuple(contents_of(contents)))
    return stored_samples(target.contents, sets, sets, sets[0].mean)


def test_colours_may_come_last_and_be_normalised_channel_by_channel() -> None:
    x = torch.rand(60, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    private, unseen, others = x[:20].clone(), x[20:40].clone(), x[40:].clone()
    mean, std = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
    for kept in (((private[:5] - mean) / std), (255 * private[:5]).round().byte().permute(0, 2, 3, 1)):
        found = found_in({"kept": kept.contiguous()}, private, unseen)
        assert (found.private.sum(), found.unseen.sum(), found.rare.sum()) == (5, 0, 5)
    found = found_in(
        {"kept": others, "mean": private.mean(0), "pairs": (private[:10] + private[10:]) / 2}, private, unseen
    )
    assert (found.private.sum(), found.unseen.sum()) == (0, 0)


def test_records_that_repeat_by_themselves_are_told_from_those_that_do_not() -> None:
    random = torch.Generator().manual_seed(0)
    few, many = (
        nn.functional.one_hot(torch.randint(0, 3, (300, groups), generator=random), 3).flatten(1).float()
        for groups in (6, 60)
    )
    again = found_in({"table": few[100:].clone()}, few[:50].clone(), few[50:100].clone())
    assert again.private.sum() >= 5  # 200 records of 729 kinds
    assert not again.rare.any()
    once = found_in(
        {"table": many[100:].clone(), "batch": many[:1].clone()}, many[:50].clone(), many[50:100].clone()
    )
    assert (once.private.sum(), once.unseen.sum(), once.rare.sum()) == (1, 0, 1)


# What no attack read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["teacher", "best_state", "ema"])
def test_a_second_state_keeps_the_audit_from_passing(name: str, tmp_path: Path) -> None:
    """It was trained on the private samples, and nobody looked."""
    record = audited_with(tmp_path, **{name: trained(PRIVATE, 1)}).record
    assert record.verdict == "inconclusive"
    assert f"which were not attacked, at `{name}`" in record.reasons[0]
    assert "publish one copy of the weights alone" in record.next_steps[0]
    assert (record.file.rest[0].kind, record.file.rest[0].path) == ("second state", name)
    same = audited_with(tmp_path, **{name: {key: each.clone() for key, each in weights().items()}}).record
    assert not any("not attacked" in reason for reason in same.reasons)


def test_sums_of_gradients_under_another_name_keep_the_audit_from_passing(tmp_path: Path) -> None:
    record = audited_with(tmp_path, trainer={"exp_avg": torch.rand(24, 100)}).record
    assert (
        "sums of gradients of the optimiser, which were not attacked, at `trainer['exp_avg']`" in record.reasons[0]
    )
    assert record.verdict == "inconclusive"


def test_what_was_not_attacked_is_named_the_largest_first(tmp_path: Path) -> None:
    entries = {"table": torch.rand(7, 3), "note": "made in June", "codes": [1, 2, 3, 4], "larger": torch.rand(30)}
    rest = audited_with(tmp_path, **entries).record.file.rest
    assert [(each.path, each.kind, each.num_values) for each in rest] == [
        ("larger", "tensor", 30),
        ("table", "tensor", 21),
        ("codes", "tensor", 4),
        ("note", "text", 12),
    ]
    many = audited_with(tmp_path, **{f"t{i}": torch.rand(3) for i in range(80)}).record.file
    assert (len(many.rest), many.num_rest) == (50, 80)


def test_a_redacted_audit_keeps_counts_and_no_names(tmp_path: Path) -> None:
    """Keys can be names of patients."""
    entries = {
        "batch of Lovelace": PRIVATE[0][:9].clone(),
        "Lovelace": trained(PRIVATE, 1),
        "scan of Lovelace": torch.rand(9),
    }
    result = audited_with(tmp_path, **entries)
    assert "Lovelace" in result.to_json()
    bare = redact(result)
    assert not any("Lovelace" in text for text in (bare.to_json(), bare.to_html(), bare.summary()))
    assert bare.record.reasons[0].startswith("9 of 40 training samples stand verbatim in the file")
    assert (bare.record.file.num_places, bare.record.file.num_rest) == (1, 3)
    entries = {"Lovelace": trained(PRIVATE, 1), "Lovelace's": {"exp_avg": torch.rand(24, 100)}}
    unread = redact(audited_with(tmp_path, **entries))
    assert "Lovelace" not in unread.to_json()
    assert sum("were not attacked" in reason for reason in unread.record.reasons) == 2
