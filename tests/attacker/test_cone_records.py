"""One-hot records: all that a span holds are found, and only those that are samples for sure are proven."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from unfit.attacker.attacks import attack
from unfit.attacker.attacks.cone import Cone
from unfit.attacker.one_hot import (
    OneHot,
    all_records,
    are_borne_out,
    are_mixed,
    equal,
    find_groups,
    samples_among,
)

SIZES = (2, 3, 12, 14, 16)
CLEAR = 1e6  # how far values stand above the noise


def records(num: int, random: np.random.Generator, sizes: tuple[int, ...] = SIZES) -> np.ndarray:
    """Distinct ones."""
    drawn = np.stack([random.integers(size, size=4 * num) for size in sizes], 1)
    kept = np.unique(drawn, axis=0)
    return one_hot(random.permutation(kept)[:num], sizes)


def one_hot(chosen: np.ndarray, sizes: tuple[int, ...] = SIZES) -> np.ndarray:
    return np.concatenate([np.eye(size)[column] for size, column in zip(sizes, chosen.T, strict=True)], 1)


def mixed(samples: np.ndarray, random: np.random.Generator, off: float = 0.4, width: int = 200) -> np.ndarray:
    """A layer's change, with its bias: neurons that are off for a sample have nothing of it."""
    weights = random.normal(size=(width, len(samples))) * (random.random((width, len(samples))) >= off)
    change = weights @ np.column_stack([samples, np.ones(len(samples))])
    return change + random.normal(size=change.shape) / CLEAR


def one_hot_of(change: np.ndarray, rank: int) -> OneHot:
    neurons, sizes, right = np.linalg.svd(change, full_matrices=False)
    values = CLEAR * sizes[:rank, None] * right[:rank]
    scale, bias = np.ones(change.shape[1] - 1), values[:, -1]
    groups = find_groups(values[:, :-1], scale, bias)
    return OneHot(values[:, :-1], scale, bias, neurons[:, :rank], groups)


def chosen_rows(codes: OneHot, found: np.ndarray) -> set[tuple[float, ...]]:
    return set(map(tuple, codes.rows(found)[:, :-1].tolist()))


def test_groups_are_runs_of_columns_that_add_up_to_the_bias():
    random = np.random.default_rng(0)
    samples = records(12, random)
    beside = np.column_stack([samples[:, :5], random.normal(size=(12, 2)), samples[:, 5:]])
    used = beside.any(0)
    change = (
        CLEAR * np.linalg.qr(random.normal(size=(12, 12)))[0] @ np.column_stack([beside[:, used], np.ones(12)])
    )
    groups = find_groups(change[:, :-1], np.ones(used.sum()), change[:, -1])
    assert len(groups) == len(SIZES)
    assert (beside[:, used][:, np.concatenate(groups)] == samples[:, samples.any(0)]).all()


def test_all_records_of_a_span_are_found_and_no_others():
    random = np.random.default_rng(1)
    samples = records(16, random)
    samples = samples[:, samples.any(0)]
    codes = one_hot_of(mixed(samples, random), 16)
    basis = np.linalg.qr(np.column_stack([samples, np.ones(16)]).T)[0]
    every = np.array(list(product(*codes.groups)))
    rows = codes.rows(every)
    inside = np.linalg.norm(rows - rows @ basis @ basis.T, axis=1) < 1e-9
    found = all_records(codes)
    assert found is not None
    assert chosen_rows(codes, found) == chosen_rows(codes, every[inside])
    assert set(map(tuple, samples.tolist())) <= chosen_rows(codes, found)


def with_rival(random: np.random.Generator) -> np.ndarray:
    """Samples of which the first plus the second less the third is a record too, and none of them."""
    chosen = np.stack([random.integers(most, size=14) for most in (2, 3, 12, 12, 14)], 1)
    chosen[:3, :3] = chosen[0, :3]
    chosen[:3, 3:] = [[12, 14], [13, 15], [12, 15]]  # values that no other sample has
    samples = one_hot(chosen)
    return samples[:, samples.any(0)]


def test_neurons_tell_samples_from_rivals():
    random = np.random.default_rng(0)
    samples = with_rival(random)
    codes = one_hot_of(mixed(samples, random), len(samples))
    found = all_records(codes)
    assert found is not None
    assert len(found) > len(samples)
    mixing, kept = samples_among(codes, found)
    assert kept.all()
    assert chosen_rows(codes, found[mixing.which]) == set(map(tuple, samples.tolist()))


def test_where_no_neuron_is_off_rivals_cannot_be_told():
    random = np.random.default_rng(0)
    samples = with_rival(random)
    codes = one_hot_of(mixed(samples, random, off=0.0), len(samples))
    found = all_records(codes)
    assert found is not None
    mixing, kept = samples_among(codes, found)
    sure = chosen_rows(codes, found[mixing.which[kept]])
    assert sure == set(map(tuple, samples[3:].tolist()))


def test_a_sample_that_is_no_record_leaves_the_records_short():
    random = np.random.default_rng(2)
    samples = records(14, random)
    samples[0] = (samples[0] + records(1, random)[0]) / 2
    samples = samples[:, samples.any(0)]
    codes = one_hot_of(mixed(samples, random), 14)
    found = all_records(codes)
    assert found is None or samples_among(codes, found) is None


@pytest.mark.parametrize("share", [0, 0.3])
def test_mixtures_of_records_are_not_borne_out_by_neurons(share):
    random = np.random.default_rng(3)
    samples = records(14, random)
    samples = samples[:, samples.any(0)]
    seen = (1 - share) * samples + share * np.roll(samples, 1, 0)
    layer = random.normal(size=(300, seen.shape[1] + 1))
    on = (np.column_stack([seen, np.ones(14)]) @ layer.T > 0).T
    change = (random.normal(size=on.shape) * on) @ np.column_stack([seen, np.ones(14)])
    codes = one_hot_of(change + random.normal(size=change.shape) / CLEAR, 14)
    found = all_records(codes)
    assert found is not None
    mixing, kept = samples_among(codes, found)
    assert kept.all()  # the records span as much, whatever is mixed of them
    gates = (codes.rows(found[mixing.which]) @ layer.T > 0).T
    assert are_borne_out(mixing, gates, ~gates).all() == (share == 0)
    assert are_borne_out(mixing, gates, ~gates).any() == (share == 0)


def test_equal_finds_what_comparing_all_pairs_does():
    random = np.random.default_rng(0)
    left, right = random.random((2, 400)), random.random((2, 300))
    i, j = np.nonzero((np.abs(left[:, :, None] - right[:, None]) < 0.01).all(0))
    found = equal(left, right, 0.01)
    assert found is not None
    assert set(zip(*found, strict=True)) == set(zip(i, j, strict=True))
    assert len(i) > 30


def test_records_come_back_although_they_have_few_zeros():
    """40 samples use 58 inputs, so that 1.5 zeros a sample are more than there are."""
    random, sizes = np.random.default_rng(0), (2, 4, 6, 20, 26)
    x = torch.tensor(records(80, random, sizes), dtype=torch.float32)
    x, unseen = x[:40], x[40:]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(58, 160), nn.ReLU(), nn.Linear(160, 1))
    base = nn.Sequential(nn.Linear(58, 160), nn.ReLU(), nn.Linear(160, 1))
    base.load_state_dict(model.state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], (torch.arange(40) % 2).float()).backward()
        optimiser.step()
    found = attack(model, Cone(), base)
    assert sorted(found.x[found.proven].tolist()) == sorted(x.tolist())
    assert not any(row in unseen.tolist() for row in found.x.tolist())


def test_records_that_one_sample_is_a_mixture_of_are_found_out_by_their_strays():
    """Sample 0 is half of records 0 and 1, and record 1 is a sample too: both have half of what it taught."""
    random = np.random.default_rng(0)
    on = random.random((150, 20)) < 0.5
    learnt = np.where(on, random.normal(size=(150, 20)), 0)
    apart = are_mixed(learnt, ~on & (learnt != 0))
    assert not apart.any()
    learnt[:, 1] += learnt[:, 0]
    turned = (~on[:, 2]).nonzero()[0][:20]
    learnt[turned, 2] = random.normal(size=20)  # gates that training turned are no mixture
    assert are_mixed(learnt, ~on & (learnt != 0)).tolist() == [True, True] + [False] * 18
