from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from skimage.metrics import structural_similarity

from unfit.calibration import calibrate, chance
from unfit.match import (
    _distances_to,
    match,
    nearest,
    ssim,
    ssim_map,
    stretch,
)
from unfit.samples import Samples
from unfit.sources import read_source

FACES = read_source("faces").train


def faces(*indices: int) -> Samples:
    return FACES.take(np.array(indices))


def digits_like(n: int, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(1, 25, 25), (3, 32, 32), (1, 28, 40)])
def test_ssim_equals_scikit_images_inside_the_border(shape: tuple[int, ...]) -> None:
    a, b = digits_like(3, shape), 0.7 * digits_like(3, shape) + 0.3 * digits_like(3, shape, 1)
    ours = ssim_map(a, b, 11)[..., 5:-5, 5:-5].mean((1, 2, 3))
    theirs = [
        structural_similarity(
            x.numpy(),
            y.numpy(),
            channel_axis=0,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1.0,
        )
        for x, y in zip(a, b, strict=True)
    ]
    assert ours.tolist() == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize("window", [3, 7, 11])
def test_ssim_is_one_for_equal_images_symmetric_and_less_for_others(window: int) -> None:
    x = faces(0, 1, 150).x
    y = x.flip(0)
    assert ssim(x, x, window).tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    assert torch.allclose(ssim(x, y, window), ssim(y, x, window), atol=1e-5)
    assert ssim(x, y, window)[0] < 0.9


def test_windows_differ() -> None:
    x, y = faces(0, 1).x, faces(2, 3).x
    assert not torch.allclose(ssim(x, y, 3), ssim(x, y, 11), atol=1e-3)


def test_normalised_distance_is_the_correlation() -> None:
    a, b = torch.randn(4, 50, dtype=torch.float64), torch.randn(5, 50, dtype=torch.float64)
    distance = _distances_to(b, normalised=True)(a)
    correlation = torch.tensor(np.corrcoef(a.numpy(), b.numpy())[:4, 4:])
    assert torch.allclose(distance, 2 * 49 * (1 - correlation))


def test_the_sample_itself_at_any_scale_and_offset_is_a_perfect_match() -> None:
    samples = faces(0, 5, 120)
    mean = samples.mean
    found = match(samples.x - mean, samples, mean)
    assert torch.allclose(found.shown, stretch(samples.x), atol=1e-5)
    scaled = match(3 * (samples.x - mean) + 0.1, samples, mean)
    assert nearest(scaled.centred, samples.x - mean).tolist() == [0, 1, 2]


def test_the_vote_is_the_mean_of_all_candidates_nearly_as_near() -> None:
    sample = faces(0, 100)
    x, noise = (sample.x - sample.mean)[:1], torch.randn(2, 1, 25, 25, generator=torch.Generator().manual_seed(0))
    near = torch.cat([x + 0.1 * noise[:1], x - 0.1 * noise[:1]])
    both = match(torch.cat([near, noise[1:]]), sample, sample.mean, vote=1.5)
    assert torch.allclose(both.centred[0], x[0], atol=1e-5)
    alone = match(near[:1], sample, sample.mean)
    assert both.similarity[0] > alone.similarity[0]


def test_order_of_candidates_and_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = faces(*range(10), *range(110, 120))
    candidates = torch.randn(30, 1, 25, 25, generator=torch.Generator().manual_seed(1))
    whole = match(candidates, samples, samples.mean)
    assert torch.allclose(match(candidates.flip(0), samples, samples.mean).similarity, whole.similarity, atol=1e-5)
    monkeypatch.setattr("unfit.match.PAIRS_AT_ONCE", 70)
    assert torch.allclose(match(candidates, samples, samples.mean).similarity, whole.similarity, atol=1e-5)


def test_no_candidates_match_nothing() -> None:
    samples = faces(0, 100)
    assert match(torch.zeros(0, 1, 25, 25), samples, samples.mean).similarity.tolist() == [0, 0]


def test_vectors_are_compared_by_their_relative_error() -> None:
    circle = read_source("circle").train.take(np.arange(20))
    found = match(circle.x + 0.01, circle, torch.zeros(1, 2))
    assert (found.similarity > 0.97).all()
    assert (match(-circle.x[:1], circle, torch.zeros(1, 2)).similarity[0]) == 0


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=300), st.floats(0.001, 0.5))
def test_at_most_the_stated_share_of_unseen_samples_exceeds_the_threshold(values: list[float], fpr: float) -> None:
    unseen = torch.tensor(values)
    assert int((unseen > calibrate(unseen, fpr)).sum()) <= fpr * len(unseen)


def test_chance_agrees_with_simulation() -> None:
    rng = np.random.default_rng(0)
    n, num_unseen, fpr = 30, 100, 0.02
    values = rng.random((20_000, n + num_unseen))
    threshold = np.sort(values[:, n:])[:, -1 - int(fpr * num_unseen)]
    counts = (values[:, :n] > threshold[:, None]).sum(1)
    for r in (1, 2, 3):
        assert chance(r, n, num_unseen, fpr) == pytest.approx((counts >= r).mean(), abs=0.012)
    assert chance(0, n, num_unseen, fpr) == 1


def test_chance_of_all_members_above_all_unseen_is_one_in_all_orders() -> None:
    assert chance(5, 5, 5, 0.01) == pytest.approx(1 / math.comb(10, 5))
