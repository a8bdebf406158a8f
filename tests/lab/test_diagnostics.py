"""Identities in float64: Gram products are the Jacobian's, and planted stationary points have residual 0."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from unfit.base.nets import Architecture, build, initialise, layers_of, margin, parse_architecture
from unfit.lab.diagnostics import _gradient_products, decay_residuals, kkt_residuals, layer_norms
from unfit.lab.trainee import data_loss

SHAPE = (2, 4, 4)
NETS = [
    *itertools.product(["7", "6-5"], ["first", "hidden"], [1, 3]),
    *itertools.product(["conv(2,3)-5", "conv(3,4)-4-4"], ["first", "hidden"], [1, 4]),
]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def fresh(text: str, biases: str = "first", k: int = 1, shape: tuple[int, ...] = SHAPE) -> nn.Sequential:
    """A net of moderate size, in float64."""
    net = initialise(parse_architecture(text, shape, k, biases), 0.5, 3)
    for layer in layers_of(net):
        layer.weight.data *= 3
    return net.double()


def own_labels(net: nn.Module, x: Tensor) -> Tensor:
    """As the net itself sees it: all margins are positive, so are many multipliers."""
    phi = net(x)
    return (phi[:, 0] > 0).long() if phi.shape[1] == 1 else phi.argmax(1)


def jacobian(net: nn.Module, scores: Tensor, layer: nn.Module) -> Tensor:
    """∂ score_i / ∂θ_l by autograd, one sample after the other: (n, parameters of the layer)."""
    parameters = list(layer.parameters())
    rows = [torch.autograd.grad(score, parameters, retain_graph=True) for score in scores]
    return torch.stack([parameters_to_vector(row) for row in rows])


def theta(layer: nn.Module) -> Tensor:
    return parameters_to_vector(layer.parameters()).detach()


# Gram form against the Jacobian ----------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "biases", "k"), NETS)
def test_residuals_are_those_of_least_squares_on_the_jacobian(text, biases, k):
    net, x = fresh(text, biases, k), random(9, *SHAPE)
    y = own_labels(net, x)
    y[:2] = (y[:2] + 1) % max(k, 2)  # two samples on the wrong side: their multipliers end at the bound 0
    layers = layers_of(net)
    jacobians = [jacobian(net, margin(net(x), y), layer) for layer in layers]
    whole = torch.cat([theta(layer) for layer in layers])
    lam = torch.from_numpy(nnls(torch.cat(jacobians, 1).T.numpy(), whole.numpy())[0])
    assert 2 < (lam > 0).sum() < len(x)
    expected = [
        ((theta(layer) - lam @ j).norm() / theta(layer).norm()).item()
        for layer, j in zip(layers, jacobians, strict=True)
    ]
    assert kkt_residuals(net, x, y) == pytest.approx(expected, rel=1e-6)
    assert max(expected) > 0.1  # nothing here is zero by chance


@pytest.mark.parametrize(("text", "biases", "k"), NETS)
def test_products_of_gradients_are_autograds(text, biases, k):
    net, x = fresh(text, biases, k), random(70, *SHAPE)  # more than one chunk
    y = torch.arange(70) % max(k, 2)
    grams, products = _gradient_products(net, x, y)
    scores = margin(net(x), y)
    for layer, gram, product in zip(layers_of(net), grams, products, strict=True):
        j = jacobian(net, scores, layer)
        torch.testing.assert_close(torch.from_numpy(gram), j @ j.T)
        torch.testing.assert_close(torch.from_numpy(product), j @ theta(layer))


@pytest.mark.parametrize("text", ["6-5", "20-20-20", "conv(2,3)-5"])
@pytest.mark.parametrize("k", [1, 3])
def test_without_biases_every_layer_times_its_gradient_is_the_score(text, k):
    architecture = parse_architecture(text, SHAPE, k)
    bias_free = replace(architecture, biases=(False,) * len(architecture.biases))
    net, x = initialise(bias_free, None, 0).double(), random(8, *SHAPE)
    y = torch.arange(8) % max(k, 2)
    scores = margin(net(x), y).detach()
    assert (scores.abs() > 1e-6).all()
    for product in _gradient_products(net, x, y)[1]:
        torch.testing.assert_close(torch.from_numpy(product), scores)


def test_the_layer_norms_count_weights_and_biases():
    net = fresh("6-5", "hidden")
    assert layer_norms(net) == pytest.approx([theta(layer).norm().item() for layer in layers_of(net)], rel=1e-12)


def test_nothing_is_left_on_the_net():
    net, x = fresh("conv(2,3)-5"), random(4, *SHAPE)
    kkt_residuals(net, x, own_labels(net, x))
    assert not any(layer._forward_hooks for layer in layers_of(net))
    assert all(p.grad is None for p in net.parameters())


# Planted stationary points ---------------------------------------------------------------------------------


def planted_kkt_point(bias: bool, num_outputs: int = 1) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A net 12-6-1 with θ = Σ λ_i y_i ∇Φ(x_i), exactly; with two outputs the margin is their difference.

    Classes lie around ±m. A neuron of positive v fires for the positive class only, and is a·u, u = Σ λ_i x_i
    over that class (with 1 appended to x_i for the bias); then v = Σ λ_i ⟨a u, x_i⟩ = a ‖u‖² = a if ‖u‖ = 1.
    The same holds for negative v and the other class, where the sign of v and that of y cancel.
    """
    centre, y = 2 * random(12, seed=1), torch.arange(10) % 2
    x = random(10, 12, seed=2) + torch.where(y[:, None] == 1, centre, -centre)
    seen = torch.cat([x, torch.ones(10, int(bias), dtype=x.dtype)], 1)
    scales = torch.tensor([0.5, 1.0, 1.7, -0.8, -1.0, -2.0], dtype=x.dtype)
    rows = []
    for a in scales:
        firing = (y == 1) if a > 0 else (y == 0)
        u = (firing * torch.linspace(0.2, 1.0, 10, dtype=x.dtype)) @ seen
        rows.append(a.abs() * u / u.norm())
        assert ((seen @ rows[-1] > 0) == firing).all()
    net = fresh("6", k=num_outputs, shape=(12,))
    first, last = layers_of(net)
    first.weight.data = torch.stack(rows)[:, :12]
    first.bias = nn.Parameter(torch.stack(rows)[:, 12]) if bias else None
    last.weight.data = scales[None] if num_outputs == 1 else torch.stack([-scales, scales]) / 2**0.5
    return net, x, y


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_outputs", [1, 2])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_planted_kkt_point_has_residual_zero_at_any_scale(bias, num_outputs, scale):
    net, x, y = planted_kkt_point(bias, num_outputs)
    for parameter in net.parameters():
        parameter.data *= scale
    assert (margin(net(x), y) > 0).all()
    assert max(kkt_residuals(net, x, y)) < 1e-6


@pytest.mark.parametrize("size", [0.01, 0.1])
def test_a_perturbed_kkt_point_has_a_residual_of_the_size_of_the_perturbation(size):
    net, x, y = planted_kkt_point(bias=True)
    weight = layers_of(net)[0].weight
    noise = random(*weight.shape, seed=3)
    weight.data += size * weight.norm() / noise.norm() * noise
    assert 0.1 * size < kkt_residuals(net, x, y)[0] < 1.1 * size


def test_other_data_and_wrong_labels_do_not_explain_the_weights():
    net, x, y = planted_kkt_point(bias=True)
    assert min(kkt_residuals(net, random(10, 12, seed=9), y)) > 0.2
    assert kkt_residuals(net, x, 1 - y) == pytest.approx([1.0, 1.0], abs=1e-6)


def settled(hidden: tuple[int, ...], k: int, loss: str, decay: float) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A float64 net at a smooth stationary point of the mean loss + decay / 2 ‖θ‖², by descent and L-BFGS.

    It starts with neurons that fire for one class each, so that no sample ends on the kink of a ReLU.
    """
    y = torch.arange(3 * max(k, 2)) % max(k, 2)
    centres = 2 * torch.linalg.qr(random(10, max(k, 2), seed=5))[0].T
    centres -= centres.mean(0)
    x = centres[y] + 0.3 * random(len(y), 10, seed=1)
    net = build(Architecture((10,), hidden, k, (True,) + (False,) * len(hidden))).double()
    layers = layers_of(net)
    layers[0].weight.data = centres[torch.arange(len(layers[0].weight)) % 2] / 2
    if hidden:
        layers[1].weight.data = 2.0 * (torch.arange(hidden[0])[None] % 2).double() - 1
    for seed, parameter in enumerate(net.parameters()):
        parameter.data += 0.05 * random(*parameter.shape, seed=seed)

    def objective() -> Tensor:
        net.zero_grad()
        total = data_loss(net(x), y, loss) + decay / 2 * sum(p.square().sum() for p in net.parameters())
        total.backward()
        return total

    descent = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(300):
        descent.step(objective)
    end = {"max_iter": 1000, "tolerance_grad": 1e-11, "tolerance_change": 0}
    torch.optim.LBFGS(net.parameters(), line_search_fn="strong_wolfe", **end).step(objective)
    return net, x, y


@pytest.mark.parametrize(
    ("hidden", "k", "loss"),
    [
        ((8,), 1, "logistic"),
        ((8,), 1, "l2"),
        ((8,), 1, "huber"),
        ((), 1, "l2.5"),
        ((), 3, "ce"),
        ((), 3, "l2"),
        ((), 3, "huber"),
    ],
)
@pytest.mark.parametrize("decay", [0.01, 0.03])
def test_a_converged_weight_decay_solution_has_decay_residual_zero(hidden, k, loss, decay):
    net, x, y = settled(hidden, k, loss, decay)
    assert (margin(net(x), y) > 0).all()
    assert max(decay_residuals(net, data_loss(net(x), y, loss), decay)) < 1e-6
    twice = decay_residuals(net, data_loss(net(x), y, loss), 2 * decay)
    assert twice == pytest.approx([0.5] * len(twice), rel=1e-5)  # then half of θ is explained


@pytest.mark.parametrize("decay", [0.01, 0.03])
def test_logistic_loss_with_weight_decay_ends_in_a_kkt_point(decay):
    net, x, y = settled((8,), 1, "logistic", decay)
    assert max(kkt_residuals(net, x, y)) < 1e-6


@pytest.mark.parametrize(
    ("loss", "k"), [("logistic", 1), ("l2", 1), ("l2.5", 1), ("huber", 1), ("ce", 3), ("l2", 3), ("huber", 3)]
)
@pytest.mark.parametrize("text", ["6-5", "conv(2,3)-5"])
def test_decay_residuals_are_the_sum_over_samples(text, loss, k):
    net, x, weight_decay = fresh(text, "hidden", k), random(7, *SHAPE), 0.3
    y = torch.arange(7) % max(k, 2)
    phi = net(x)
    (slopes,) = torch.autograd.grad(data_loss(phi, y, loss), phi, retain_graph=True)
    expected = []
    for layer in layers_of(net):
        columns = [jacobian(net, phi[:, j], layer) for j in range(k)]
        explained = sum(-slopes[:, j] / weight_decay @ columns[j] for j in range(k))
        expected.append(((theta(layer) - explained).norm() / theta(layer).norm()).item())
    found = decay_residuals(net, data_loss(net(x), y, loss), weight_decay)
    assert found == pytest.approx(expected, rel=1e-9)
    assert max(found) > 0.01


# Where products are singular or large ----------------------------------------------------------------------


@pytest.mark.parametrize("text", ["6-5", "conv(2,3)-5"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_duplicates_change_nothing(text, dtype):
    net, x = fresh(text), random(40, *SHAPE)
    y = own_labels(net, x)
    once = kkt_residuals(net, x, y)
    many = kkt_residuals(net.to(dtype), x.repeat(5, 1, 1, 1).to(dtype), y.repeat(5))
    assert many == pytest.approx(once, rel=1e-3)


@pytest.mark.parametrize("text", ["3-3", "conv(2,3)-3"])
def test_there_may_be_more_samples_than_parameters(text):
    net, x = fresh(text), random(250, *SHAPE)
    y = own_labels(net, x)
    expected = kkt_residuals(net, x, y)
    assert kkt_residuals(net.float(), x.float(), y) == pytest.approx(expected, rel=1e-2)


def test_a_dead_net_is_explained_by_nothing():
    net, x = fresh("6-5"), random(5, *SHAPE)
    for parameter in layers_of(net)[0].parameters():
        parameter.data = -parameter.abs()
    residuals = kkt_residuals(net, x.abs(), torch.arange(5) % 2)
    assert residuals == pytest.approx([1.0, 1.0, 1.0])


def test_five_hundred_samples_and_four_million_parameters_fit_in_two_gigabytes():
    """The Jacobian alone would take 8."""
    code = """
import resource, torch
from unfit.lab.diagnostics import kkt_residuals
from unfit.base.nets import Architecture, build, initialise, parse_architecture
torch.manual_seed(0)
net = initialise(parse_architecture("1000-1000", (3, 32, 32), 1), None, 0)
x = torch.randn(500, 3, 32, 32)
print(sum(p.numel() for p in net.parameters()), *kkt_residuals(net, x, torch.arange(500) % 2))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    # one thread: two that spin while they wait take fifty times longer for an eigh where others work too
    one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **one})
    first, peak_kb = done.stdout.splitlines()
    num_parameters, *residuals = map(float, first.split())
    assert num_parameters > 4e6
    assert len(residuals) == 3
    assert all(0 < residual <= 1.5 for residual in residuals)
    assert int(peak_kb) * 1024 < 2e9
