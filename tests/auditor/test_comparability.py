"""Are private and unseen samples told apart exactly if they differ, and can thresholds be set class by class?"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from unfit import Samples
from unfit.auditor import comparability
from unfit.auditor.calibration import calibrate, calibrate_by_class, chance, chance_by_class
from unfit.auditor.comparability import LEVEL, compare_sets, near_copies
from unfit.base.budget import limited
from unfit.base.errors import UsageError


def images(n: int, seed: int, share: float = 0.5) -> Samples:
    """Smooth colour pictures in [0, 1], redder than blue and lighter on the right; the second class is darker."""
    random = torch.Generator().manual_seed(seed)
    y = (torch.arange(n) >= share * n).long()
    coarse = torch.rand(n, 3, 4, 4, generator=random) * torch.tensor([0.9, 0.8, 0.7]).view(3, 1, 1)
    x = torch.nn.functional.interpolate(coarse, size=12, mode="bilinear") * torch.linspace(0.8, 1, 12)
    return Samples(x * (1 - 0.3 * y).view(-1, 1, 1, 1), y, torch.arange(n), ("light", "dark"))


def vectors(n: int, seed: int) -> Samples:
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    x = torch.randn(n, 6, generator=random) * torch.tensor([1.0, 10, 100, 1, 1, 1]) + y[:, None]
    return Samples(x, y, torch.arange(n), ("a", "b", "c"))


@pytest.mark.parametrize("make", [images, vectors])
def test_sets_of_one_draw_are_left_alone(make: Callable[[int, int], Samples]) -> None:
    found = [compare_sets(make(40, 2 * seed), make(40, 2 * seed + 1), seed) for seed in range(100, 125)]
    assert all(each.comparable and each.within_classes and not each.reasons for each in found)
    # p-values of a test that is exact and not blind: uniform, as far as 25 of them can tell
    p_values = np.sort([each.p_value_within for each in found])
    assert np.abs(p_values - np.linspace(0, 1, 25)).max() < 0.33  # Kolmogorov and Smirnov's bound at 0.5%


def test_what_was_subtracted_from_both_sets_tells_nothing() -> None:
    """The mean of the private samples: where none of them has any ink they are zero, unseen ones need not be."""
    for seed in range(100, 110):
        x = torch.rand(80, 1, 12, 12, generator=torch.Generator().manual_seed(seed))
        x = torch.where(x > 0.97, x, 0)
        private, unseen = (replace(images(40, 0), x=part - x[:40].mean(0)) for part in x.split(40))
        assert compare_sets(private, unseen, seed).comparable


CHANGES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "brighter": (
        lambda x: x + 0.08,
        r"the mean of channel \d is 0\.\d+ in the private samples, 0\.\d+ in the unseen",
    ),
    "less contrast": (lambda x: x.mean((2, 3), keepdim=True) * 0.4 + 0.6 * x, "the spread of channel"),
    "half zeros": (
        lambda x: x * (torch.rand(x.shape, generator=torch.Generator().manual_seed(9)) < 0.5),
        "the share of lowest values of channel",
    ),
    "channels swapped": (lambda x: x.flip(1), "the mean of channel"),
    "mirrored": (lambda x: x.flip(3), r"a classifier .* tells private from unseen samples in [5-9]\d% of cases"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_sets_that_differ_are_told_apart_and_why(name: str) -> None:
    change, reason = CHANGES[name]
    private, unseen = images(80, 0), images(80, 1)
    found = compare_sets(replace(private, x=change(private.x)), unseen)
    assert not found.comparable
    assert not found.within_classes
    assert found.p_value < LEVEL
    assert torch.tensor([fact.z for fact in found.facts]).abs().diff().le(0).all()  # the most telling first
    assert any(re.search(reason, each) for each in found.reasons), found.reasons


def test_other_shares_of_classes_are_told_apart_from_other_samples() -> None:
    found = compare_sets(images(120, 0, share=0.8), images(120, 1))
    assert (found.comparable, found.within_classes) == (False, True)
    assert found.p_value == pytest.approx(5 * found.p_value_classes)  # its share of the level is a fifth
    assert found.p_value < LEVEL < found.p_value_within
    assert found.num_private == [96, 24]
    assert found.num_unseen == [60, 60]
    assert found.reasons == [
        "the classes have other shares: 96 of 120 private samples are of class 'light', but 60 of 120 unseen ones"
    ]


def test_a_class_without_unseen_samples_cannot_be_judged() -> None:
    found = compare_sets(images(60, 0), images(60, 1, share=1.0))
    assert (found.comparable, found.within_classes) == (False, False)
    assert compare_sets(images(60, 0, share=0.0), images(60, 1, share=1.0)).p_value_within == 1


def test_a_column_of_a_table_is_named() -> None:
    private, unseen = vectors(90, 0), vectors(90, 1)
    found = compare_sets(replace(private, x=private.x + torch.tensor([0, 0, 90.0, 0, 0, 0])), unseen)
    assert found.reasons[0].startswith("the mean of column 2 is 121 in the private samples, 12.7 in")
    wider = (private.x - private.y[:, None]) * torch.tensor([1, 1, 1, 3.0, 1, 1]) + private.y[:, None]
    assert compare_sets(replace(private, x=wider), unseen).reasons == [
        "the spread of column 3 is 2.68 in the private samples, 1.15 in the unseen ones"
    ]


def test_large_sets_are_thinned_and_still_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparability, "MOST_SAMPLES", 100)
    monkeypatch.setattr(comparability, "MOST_COMPARED", 30)
    monkeypatch.setattr(comparability, "MOST_VALUES", 27)
    private, unseen = images(300, 0), images(200, 1)
    assert len(comparability._thinned(private, np.random.default_rng(0))) == 100
    assert compare_sets(private, unseen).comparable
    assert not compare_sets(replace(private, x=private.x + 0.1), unseen).comparable


def test_neighbours_are_counted_and_each_sample_is_judged_by_all_others() -> None:
    private, unseen = (replace(vectors(12, seed), y=torch.zeros(12).long()) for seed in (0, 1))
    features = comparability.read_features(private, unseen, np.random.default_rng(0))
    sign = features.sign[features.compared]
    x = torch.cat([private.x, unseen.x]).double()
    x = ((x - x.mean(0)) / x.std(0)).numpy()[features.compared]
    near = [np.argsort(np.linalg.norm(x - x[i], axis=1))[1:4] for i in range(24)]
    expected = sum(sign[i] * sign[j] for i in range(24) for j in near[i])
    assert comparability.statistics(features, features.sign[None])[0, 2] == pytest.approx(expected)

    kernel = np.exp(-np.square(x[:, None] - x).sum(2) / 10)
    others = ~np.eye(24, dtype=bool)
    again = [
        kernel[i, at] @ np.linalg.solve(kernel[np.ix_(at, at)] + np.eye(23), sign[at])
        for i, at in enumerate(others)
    ]
    np.testing.assert_allclose(comparability.predictions(comparability._hat(kernel), sign[None])[0], again)


def test_copies_are_found_even_if_they_are_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparability, "MOST_COMPARED", 7)  # in blocks
    private, unseen = images(20, 0), images(20, 1)
    assert near_copies(private, unseen) == []
    x = unseen.x.clone()
    x[3], x[18] = private.x[5], (private.x[7] * 255).round() / 255
    x[9] = private.x[2] + 0.01 * torch.randn(3, 12, 12, generator=torch.Generator().manual_seed(0))
    assert near_copies(private, replace(unseen, x=x)) == [(5, 3), (2, 9), (7, 18)]
    black = replace(private, x=private.x * 0)
    assert len(near_copies(black, black)) == 20


def test_copies_of_vectors_are_closer_than_rounding() -> None:
    private = vectors(50, 0)
    assert near_copies(private, vectors(50, 1)) == []
    assert near_copies(private, replace(private, x=private.x.half().float())) == [(i, i) for i in range(50)]
    assert near_copies(private, replace(private, x=private.x * 1.01)) == []
    assert near_copies(private, replace(private, x=private.x + torch.tensor([0.05, 0, 0, 0, 0, 0]))) == []


# Thresholds by class ------------------------------------------------------------------------------------------


def test_a_budget_that_the_search_for_copies_would_not_keep_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    private, unseen = vectors(50, 0), vectors(50, 1)
    monkeypatch.setattr(comparability, "operations_per_second", lambda: 1e3)  # a very slow machine
    assert near_copies(private, unseen) == []
    with (
        limited(5.0),
        pytest.raises(UsageError, match=r"comparing 50 private with 50 unseen samples .* about 30 s"),
    ):
        near_copies(private, unseen)


def test_small_classes_share_the_common_threshold() -> None:
    similarity, y = torch.rand(60, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    assert calibrate_by_class(similarity, y, y[:30], 0.01).unique().tolist() == [calibrate(similarity, 0.01)]
    for num in (0, 1, 4, 30):
        assert chance_by_class(num, y, y[:30], 0.01) == pytest.approx(chance(num, 30, 60, 0.01))


def test_large_classes_have_their_own_thresholds() -> None:
    unseen_y = torch.tensor([0] * 10 + [1] * 20 + [2] * 3 + [3] * 4)
    similarity = torch.arange(37.0)
    thresholds = calibrate_by_class(similarity, unseen_y, torch.tensor([3, 2, 1, 0]), 0.1)
    assert thresholds.tolist() == [36, 36, 27, 8]  # one of 10, two of 20, none of the 7 others may pass
    assert calibrate_by_class(similarity[:30], unseen_y[:30], torch.tensor([1, 4]), 0.1).tolist() == [
        27,
        torch.inf,
    ]


def test_the_chance_by_class_is_that_of_all_orders() -> None:
    """Two classes of 2 private and 4 unseen samples each; one unseen sample of four may pass."""

    def numbers() -> list[
        int
    ]:  # of private samples above the second largest unseen one, for each order of the six
        return [sum(at > sorted(set(range(6)) - set(own))[-2] for at in own) for own in combinations(range(6), 2)]

    y = torch.tensor([0] * 4 + [1] * 4)
    sums = np.add.outer(numbers(), numbers()).ravel()
    for num in range(5):
        assert chance_by_class(num, y, y[2:6], 0.25) == pytest.approx((sums >= num).mean())


def test_another_mix_of_classes_is_no_leak_by_class() -> None:
    """Samples of class 1 resemble more candidates, and there are more of them among the private samples."""
    random = torch.Generator().manual_seed(0)
    private_y, unseen_y = torch.tensor([0] * 10 + [1] * 290), torch.tensor([0] * 900 + [1] * 100)
    own, unseen = (torch.rand(len(y), generator=random) + y for y in (private_y, unseen_y))
    together = int((own > calibrate(unseen, 0.01)).sum())
    assert chance(together, 300, 1000, 0.01) < 1e-4
    apart = int((own > calibrate_by_class(unseen, unseen_y, private_y, 0.01)).sum())
    assert chance_by_class(apart, unseen_y, private_y, 0.01) > 0.05


def test_sets_of_one_draw_and_unequal_sizes_are_comparable() -> None:
    """As many of each are compared pair by pair, and shuffles have to keep to that."""
    private, unseen = vectors(3000, 0), vectors(600, 1)
    assert compare_sets(private, unseen).p_value_within > 0.01
    assert not compare_sets(private, replace(unseen, x=unseen.x + 0.4)).comparable
