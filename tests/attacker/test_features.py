"""Pictures cleaned by what the second layer learnt: nearer to the samples, or left alone."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.features import ROOM, Features, _share, misfit, read_features, refine

N, W, D = 12, 200, 60


def planted(seed: int = 0, hidden: int = 100) -> tuple[list, list, Tensor]:
    """Layers before and after training that gave each sample a direction of its own; and the samples."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    x, first, bias = normal(N, D), normal(W, D) / D**0.5, 0.1 * normal(W)
    second, last = normal(hidden, W) / W**0.5, (normal(1, hidden), None)
    h = F.linear(x, first, bias).clamp_min(0)
    initial = [(first, bias), (second, None), last]
    end = [(first + 1e-3 * normal(W, N) @ x, bias), (second + normal(hidden, N) @ h / W, None), last]
    return initial, end, x


def features_of(initial: list, end: list) -> Features:
    features = read_features(initial, end, 1.0, N)
    assert features is not None
    return features


def test_features_of_samples_fit_and_those_of_mixtures_do_not():
    initial, end, x = planted()
    features = features_of(initial, end)
    mixed = (x + x.roll(1, 0)) / 2**0.5
    assert misfit(features, x).max() < 0.1 * misfit(features, mixed).min()


def test_a_rough_picture_comes_nearer():
    initial, end, x = planted()
    basis = torch.linalg.svd(x, full_matrices=False)[2]
    foreign = torch.randn(N, N, generator=torch.Generator().manual_seed(1)) @ x
    rough = x + 0.5 * F.normalize(foreign, dim=1) * x.norm(dim=1, keepdim=True)
    better = refine(features_of(initial, end), rough, basis)
    assert F.cosine_similarity(rough, x).mean() < 0.93
    assert F.cosine_similarity(better, x).min() > 0.98
    assert torch.allclose(better.norm(dim=1), rough.norm(dim=1), rtol=1e-4)  # the same size
    assert torch.allclose(better @ basis.T @ basis, better, atol=1e-4)  # within the span


def test_what_decay_left_of_the_second_layer_is_taken_off():
    initial, end, x = planted()
    (second, _), decay = initial[1], 0.8
    decayed = [end[0], (end[1][0] - (1 - decay) * second, None), end[2]]
    knowing, not_knowing = (read_features(initial, decayed, c, N) for c in (decay, 1.0))
    assert knowing is not None
    assert not_knowing is not None
    assert misfit(knowing, x).max() < 0.1 * misfit(not_knowing, x).min()


def test_the_written_gradient_is_that_of_autograd():
    initial, end, x = planted()
    features = features_of(initial, end)
    (weight, bias), metric, u = initial[0], features.metric.double(), x.double().requires_grad_()
    share, half = _share(metric, u, weight.double(), bias.double())
    (gradient,) = torch.autograd.grad(share.sum(), u)
    assert torch.allclose(2 * half, gradient, atol=1e-12)


def test_nothing_is_read_where_the_second_layer_says_too_little():
    initial, end, _ = planted()
    assert read_features(initial, end, 1.0, W // ROOM + 1) is None  # too many samples for the first layer
    assert read_features(initial[::2], end[::2], 1.0, N) is None  # one hidden layer
    narrow = planted(hidden=N)
    assert read_features(*narrow[:2], 1.0, N) is None  # too many for the second
    unbiased = [[(layers[0][0], None), *layers[1:]] for layers in (initial, end)]
    assert read_features(*unbiased, 1.0, N) is None
