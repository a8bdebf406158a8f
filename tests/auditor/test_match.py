from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.stats import beta
from skimage.filters import gaussian as gaussian_filter
from skimage.metrics import _structural_similarity, peak_signal_noise_ratio, structural_similarity

from unfit.auditor.arrays import as_samples
from unfit.auditor.calibration import calibrate, chance, roc
from unfit.auditor.match import (
    _distances_to,
    assign,
    edge_correlation,
    in_blocks,
    l2,
    match,
    nearest,
    psnr,
    ssim,
    ssim_map,
    stretch,
)
from unfit.auditor.probability import interval
from unfit.auditor.samples import Samples
from unfit.auditor.sources import read_source
from unfit.base.images import ncc

FACES = read_source("faces").train


def faces(*indices: int) -> Samples:
    return FACES.take(np.array(indices))


def digits_like(n: int, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("window", "shape", "dtype", "tolerance"),
    [
        (3, (1, 25, 25), torch.float64, 1e-9),
        (7, (3, 28, 40), torch.float64, 1e-9),
        (11, (3, 28, 40), torch.float64, 1e-9),
        (11, (1, 25, 25), torch.float32, 1e-6),
    ],
)
def test_ssim_equals_scikit_images_inside_the_border(
    window: int, shape: tuple[int, ...], dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scikit-image truncates its Gaussian at 3.5 σ, which is window 11; smaller windows truncate it earlier."""
    narrow = partial(gaussian_filter, truncate=window // 2 / 1.5)
    monkeypatch.setattr(_structural_similarity, "gaussian", lambda x, truncate, **kw: narrow(x, **kw))
    a, b = digits_like(3, shape), 0.7 * digits_like(3, shape) + 0.3 * digits_like(3, shape, 1)
    r = window // 2
    ours = ssim_map(a.to(dtype), b.to(dtype), window)[..., r:-r, r:-r].mean((1, 2, 3))
    theirs = [
        structural_similarity(
            x.numpy(),
            y.numpy(),
            win_size=window,
            channel_axis=0,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1.0,
        )
        for x, y in zip(a, b, strict=True)
    ]
    assert ours.tolist() == pytest.approx(theirs, abs=tolerance)


def test_ssim_is_one_for_equal_images_symmetric_and_less_for_others() -> None:
    x = faces(0, 1, 150).x
    y = x.flip(0)
    assert ssim(x, x).tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    assert torch.allclose(ssim(x, y), ssim(y, x), atol=1e-5)
    assert ssim(x, y)[0] < 0.9


def test_windows_differ() -> None:
    x, y = faces(0, 1).x, faces(2, 3).x
    assert not torch.allclose(ssim(x, y, 3), ssim(x, y, 11), atol=1e-3)


def test_correlation_of_edges_ignores_brightness_and_contrast_and_is_never_negative() -> None:
    x, y = faces(0, 1, 150).x, faces(2, 3, 151).x
    assert edge_correlation(3 * x + 0.2, x).tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    assert torch.allclose(edge_correlation(x, y), edge_correlation(y, x))
    assert edge_correlation(x, y).max() < 0.6
    assert edge_correlation(-x, x).tolist() == edge_correlation(torch.ones_like(x), x).tolist() == [0, 0, 0]
    a, b = (np.concatenate([np.diff(each[0, 0].numpy(), axis=axis).ravel() for axis in (0, 1)]) for each in (x, y))
    assert float(edge_correlation(x, y)[0]) == pytest.approx(
        max(0, a @ b / np.linalg.norm(a) / np.linalg.norm(b)), abs=1e-5
    )


def test_legible_digits_on_a_grey_background_are_similar_and_have_no_ssim() -> None:
    """Faint noise where a digit is black leaves it legible; SSIM averages over that background."""
    source = read_source("mnist5k", "all").train
    digits, others = (source.take(source.balanced(40, seed)) for seed in (0, 1))
    noise = 0.1 * torch.randn(digits.x.shape, generator=torch.Generator().manual_seed(0))
    found = match(digits.x - digits.mean + noise, digits, digits.mean)
    unseen = match(digits.x - digits.mean + noise, others, digits.mean)
    assert found.ssim is not None
    assert (found.ssim > 0.4).float().mean() < 0.2
    assert (found.similarity > 0.6).all()
    assert (unseen.similarity > 0.6).float().mean() < 0.1


def test_images_as_stored_and_minus_their_mean_are_graded_alike() -> None:
    digits = read_source("mnist5k").train
    private, unseen = (digits.take(digits.balanced(20, seed)) for seed in (0, 1))
    candidates = (
        private.x - private.mean + 0.3 * torch.randn(20, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    )
    sets = tuple((each.x - private.mean, each.y) for each in (private, unseen))
    for stored, arrays in zip((private, unseen), as_samples(*sets, private.shape, 1), strict=True):
        one, other = match(candidates, stored, private.mean), match(candidates, arrays, arrays.mean)
        assert torch.allclose(one.similarity, other.similarity, atol=1e-4)
        assert torch.allclose(one.assigned, other.assigned, atol=1e-4)
        assert one.ssim is not None
        assert other.ssim is not None
        assert (one.ssim - other.ssim).abs().min() > 0.03  # *good* depends on how samples are given


def test_vectors_have_no_ssim() -> None:
    samples = Samples(torch.rand(4, 6), torch.zeros(4, dtype=torch.int64), torch.arange(4), ("all",))
    for found in (match(samples.x[:2], samples, samples.mean), match(samples.x[:0], samples, samples.mean)):
        assert found.ssim is None
        assert found.by_papers is found.similarity


def test_normalised_distance_is_the_correlation() -> None:
    a, b = torch.randn(4, 50, dtype=torch.float64), torch.randn(5, 50, dtype=torch.float64)
    distance = _distances_to(in_blocks(b), normalised=True)(a)
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


@pytest.mark.parametrize(
    ("limit", "size"), [("auditor.match.PAIRS_AT_ONCE", 70), ("base.memory.VALUES_AT_ONCE", 3 * 2 * 625)]
)
def test_order_of_candidates_and_chunks_change_nothing(
    monkeypatch: pytest.MonkeyPatch, limit: str, size: int
) -> None:
    samples = faces(*range(10), *range(110, 120))
    candidates = torch.randn(30, 1, 25, 25, generator=torch.Generator().manual_seed(1))
    stage = torch.arange(30) // 15
    whole = match(candidates, samples, samples.mean, stage=stage)
    assert torch.allclose(match(candidates.flip(0), samples, samples.mean).similarity, whole.similarity, atol=1e-5)
    monkeypatch.setattr(f"unfit.{limit}", size)
    steps: list[float] = []
    split = match(
        candidates, samples, samples.mean, stage=stage, progress=lambda share, words: steps.append(share)
    )
    assert torch.allclose(split.over_time, whole.over_time, atol=1e-5)
    assert len(steps) > 6  # two or three samples at a time


def test_other_similarities_equal_the_libraries() -> None:
    a, b = digits_like(4, (3, 9, 9)), digits_like(4, (3, 9, 9), 1)
    theirs = [peak_signal_noise_ratio(y.numpy(), x.numpy(), data_range=1) for x, y in zip(a, b, strict=True)]
    assert psnr(a, b).tolist() == pytest.approx(theirs)
    assert psnr(a, a).tolist() == [100] * 4
    correlation = [np.corrcoef(x.flatten(), y.flatten())[0, 1] for x, y in zip(a, b, strict=True)]
    assert ncc(a, b).tolist() == pytest.approx(correlation)
    assert l2(a, b).tolist() == pytest.approx([float((x - y).norm()) for x, y in zip(a, b, strict=True)])
    assert ncc(torch.ones(1, 243), b[:1]).tolist() == [0]


@pytest.mark.parametrize(("n", "m"), [(7, 30), (12, 12), (9, 4)])
def test_assignment_is_scipys_where_all_candidates_are_near(n: int, m: int) -> None:
    cost = digits_like(n, (m,))
    taken = assign(*cost.topk(m, largest=False))
    rows, columns = linear_sum_assignment(cost)
    assert taken[rows].tolist() == columns.tolist()
    assert (taken < 0).sum() == max(0, n - m)


def test_samples_that_share_a_candidate_are_assigned_it_once() -> None:
    samples = faces(0, 1, 2, 120)
    x = samples.x - samples.mean
    found = match(x[:1], samples, samples.mean)
    assert (found.assigned > 0).sum() == 1
    assert found.assigned[0] == found.similarity[0]
    both = match(torch.cat([x[:1], x[1:2]]), samples, samples.mean, vote=1.0)
    assert both.assigned[:2].tolist() == pytest.approx(both.similarity[:2].tolist())


def test_a_constant_candidate_is_like_nothing() -> None:
    samples = faces(0, 120)
    flat = torch.full((1, 1, 25, 25), 0.3)
    noise = torch.randn(20, 1, 25, 25, generator=torch.Generator().manual_seed(0))
    assert (match(torch.cat([flat, noise]), samples, samples.mean).nearest > 0).all()


def test_after_each_stage_there_is_what_its_candidates_alone_would_give() -> None:
    samples = faces(*range(5), *range(110, 115))
    x = samples.x - samples.mean
    noise = torch.randn(20, 1, 25, 25, generator=torch.Generator().manual_seed(2))
    near = x + 0.1 * noise[10:]
    candidates, stage = torch.cat([noise[:10], near[:4], near]), torch.tensor([1] * 10 + [0] * 4 + [2] * 10)
    found = match(candidates, samples, samples.mean, stage=stage)
    assert found.over_time.shape == (3, 10)
    for last in range(3):
        alone = match(candidates[stage <= last], samples, samples.mean)
        assert torch.allclose(found.over_time[last], alone.similarity, atol=1e-4)
    assert torch.equal(found.over_time[-1], found.similarity)


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


@given(st.integers(1, 500), st.data())
def test_the_interval_is_clopper_and_pearsons(total: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, total))
    low, high = interval(count, total)
    assert low == pytest.approx(beta.ppf(0.025, count, total - count + 1) if count else 0)
    assert high == pytest.approx(beta.ppf(0.975, count + 1, total - count) if count < total else 1)


def test_the_roc_rises_from_nothing_to_all() -> None:
    false, true = roc(torch.tensor([0.9, 0.8, 0.3, 0.3]), torch.tensor([0.5, 0.3]))
    assert false.tolist() == [0, 0, 0, 0.5, 1]
    assert true.tolist() == [0, 0.25, 0.5, 0.5, 1]


def test_chance_agrees_with_simulation() -> None:
    rng = np.random.default_rng(0)
    n, num_unseen, fpr = 30, 100, 0.02
    values = rng.random((20_000, n + num_unseen))
    threshold = np.sort(values[:, n:])[:, -1 - int(fpr * num_unseen)]
    counts = (values[:, :n] > threshold[:, None]).sum(1)
    for r in (1, 2, 3):
        assert chance(r, n, num_unseen, fpr) == pytest.approx((counts >= r).mean(), abs=0.012)
    assert chance(0, n, num_unseen, fpr) == pytest.approx(1)


def test_chance_of_all_members_above_all_unseen_is_one_in_all_orders() -> None:
    assert chance(5, 5, 5, 0.01) == pytest.approx(1 / math.comb(10, 5))
