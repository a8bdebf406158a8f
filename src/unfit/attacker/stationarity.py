"""Stationarity: what the weights of a converged model say about its training set. One residual, three scores.

At the end of training θ = Σ_i c_i ∂s(x_i)/∂θ for every layer (H22 eq. 2). The scores differ only in how a sample's
outputs are weighted: Σ_k g_ik ∂Φ_k(x_i)/∂θ with

  binary       g = λ y,               λ ≥ 0, y = ±1                      H22
  multiclass   g = λ (e_y − e_j),     λ ≥ 0, j the runner-up             B23; or all of them, by their softmax
  any          g = c,                 any sign, one for each output      B23, any loss with weight decay
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.names import Score
from unfit.base.errors import NotApplicableError, UsageError, unknown
from unfit.base.target import Target
from unfit.base.whole import Whole

RunnerUp = Literal["max", "soft"]
Weigh = Callable[[Tensor], Tensor]
"""From the outputs Φ (m, k) of the candidates to their weights g (m, k)."""
Layers = list[tuple[Tensor, Tensor | None]]
"""Dense layers with ReLUs in between."""

CANDIDATES_PER_DIRECTION = 3  # of the span; H22 takes two for each sample, but the number of samples is not known
SUPPORTED = (
    nn.Linear,
    nn.Conv2d,
    nn.ReLU,
    nn.Flatten,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Identity,
)


@dataclass(frozen=True, eq=False)
class Opaque:
    """A first dense layer, and whatever follows it."""

    first: tuple[Tensor, Tensor | None]
    whole: Whole


Stack = Layers | Opaque


def gate(z: Tensor, alpha: float) -> Tensor:
    """sigmoid(αz), which stands for a ReLU's derivative (H22 App. B.2); 0 where it is next to nothing.

    Products of three of these must not leave the normal numbers: arithmetic beyond them is so slow that an
    iteration of an attack took up to nine times as long.
    """
    return F.threshold(torch.sigmoid(alpha * z), torch.finfo(z.dtype).tiny ** 0.3, 0.0)  # float32: 4e-12


class SmoothReLU(torch.autograd.Function):
    """A ReLU whose derivative is sigmoid(αz), wherever a derivative is taken (H22 App. B.2)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, alpha: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.alpha = alpha
        return z.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        return gradients[0] * gate(z, ctx.alpha), None


def choose_score(score: Score, num_outputs: int) -> Score:
    """The score that fits the outputs, or an error that says which would."""
    if score not in get_args(Score):
        raise unknown("score", score, get_args(Score))
    if score == "auto":
        return "binary" if num_outputs == 1 else "multiclass"
    if (score == "binary") != (num_outputs == 1) and score != "any":
        fitting = "binary or any" if num_outputs == 1 else "multiclass or any"
        raise UsageError(f"the score {score} does not fit a net with {num_outputs} output(s); choose {fitting}")
    return score


def weigh(score: Score, label: Tensor, multiplier: Tensor, runner_up: RunnerUp = "max") -> Weigh:
    """The weights of the outputs. label: (m,) in 0..k−1 (unused for `any`); multiplier: (m,), for `any` (m, k)."""
    if score == "any":
        return lambda phi: multiplier.view_as(phi)
    if score == "binary":
        return lambda phi: ((2 * label - 1) * multiplier)[:, None]

    def margin_weights(phi: Tensor) -> Tensor:
        own = F.one_hot(label, phi.shape[1]).to(phi)
        others = phi.masked_fill(own.bool(), -torch.inf)
        # soft: the gradient of Φ_y − log Σ_{j≠y} exp Φ_j, which cross-entropy follows until one rival is left
        rival = others.softmax(1) if runner_up == "soft" else F.one_hot(others.argmax(1), phi.shape[1]).to(phi)
        return multiplier[:, None] * (own - rival)

    return margin_weights


def stationarity(net: nn.Module, x: Tensor, weights: Weigh, alpha: float) -> list[Tensor]:
    """‖θ_l − Σ_i g_i · ∂Φ(x_i)/∂θ_l‖² for each layer l, first to last   (H22 eq. 6; B23)."""
    layers = dense_layers(net)
    if layers is None:
        return general_stationarity(net, x, weights, alpha)
    return dense_stationarity(layers, x.flatten(1), weights, alpha)


def dense_stationarity(layers: Layers, x: Tensor, weights: Weigh, alpha: float) -> list[Tensor]:
    """The same for a perceptron, its gradients δ hᵀ written out: one backward pass instead of two."""
    inputs, sums, phi = forward(layers, x, alpha)
    delta = weights(phi)
    squares = []
    for i in reversed(range(len(layers))):
        weight, bias = layers[i]
        square = (weight - delta.T @ inputs[i]).square().sum()
        if bias is not None:
            square = square + (bias - delta.sum(0)).square().sum()
        squares.append(square)
        if i:
            delta = delta @ weight * gate(sums[i - 1], alpha)
    return squares[::-1]


def forward(layers: Layers, x: Tensor, alpha: float) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """The inputs of each layer, the sums before each ReLU, and Φ."""
    inputs, sums = [x], []
    for weight, bias in layers[:-1]:
        sums.append(F.linear(inputs[-1], weight, bias))
        inputs.append(SmoothReLU.apply(sums[-1], alpha))  # type: ignore[no-untyped-call]
    return inputs, sums, F.linear(inputs[-1], *layers[-1])


def first_signals(layers: Layers, sums: list[Tensor], g: Tensor, alpha: float) -> Tensor:
    """Σ_k g_k ∂Φ_k/∂z¹, the signal that reaches the first layer: (m, w)."""
    delta = g
    for i in reversed(range(1, len(layers))):
        delta = delta @ layers[i][0] * gate(sums[i - 1], alpha)
    return delta


def first_of(stack: Stack) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the first dense layer."""
    return stack.first if isinstance(stack, Opaque) else stack[0]


def outputs_of(stack: Stack, x: Tensor, alpha: float) -> Tensor:
    """Φ of maps (m, d): (m, k)."""
    if isinstance(stack, Opaque):
        return stack.whole.finish(x, F.linear(x, *stack.first))
    return forward(stack, x, alpha)[2]


def predicted(phi: Tensor) -> Tensor:
    """The classes that outputs (m, k) stand for."""
    return (phi[:, 0] > 0).long() if phi.shape[1] == 1 else phi.argmax(1)


def candidate_signals(stack: Stack, u: Tensor, label: Tensor, score: Score, alpha: float) -> Tensor:
    """∂s/∂z¹ of each candidate for multiplier 1: (m, q, w); `any` has one for each output, else q = 1."""
    if isinstance(stack, Opaque):
        return opaque_signals(stack, u, label, score)[:, None]
    layers = stack
    _, sums, phi = forward(layers, u, alpha)
    m, k = phi.shape
    if score != "any":
        g = weigh(score, label, torch.ones(m, device=u.device), "soft")(phi)
        return first_signals(layers, sums, g, alpha)[:, None]
    each = torch.eye(k, device=u.device)
    return torch.stack([first_signals(layers, sums, row.expand(m, k), alpha) for row in each], 1)


def opaque_signals(stack: Opaque, u: Tensor, label: Tensor, score: Score) -> Tensor:
    """∂s/∂z¹ through whatever follows, with the derivatives that it has: (m, w)."""
    sums = F.linear(u, *stack.first).detach().requires_grad_()
    phi = stack.whole.finish(u, sums)
    g = weigh(score, label, torch.ones(len(u), device=u.device), "soft")(phi.detach())
    (signals,) = torch.autograd.grad((phi * g).sum(), sums)
    return signals


def general_stationarity(net: nn.Module, x: Tensor, weights: Weigh, alpha: float) -> list[Tensor]:
    """The same for any model of supported layers, by differentiating through the gradient."""
    layers = [module for module in net.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    parameters = [list(layer.parameters()) for layer in layers]
    with smooth_relus(net, alpha):
        flat = [p.requires_grad_() for group in parameters for p in group]
        phi = net(x)
        gradients = iter(torch.autograd.grad(phi, flat, weights(phi), create_graph=True))
    return [
        torch.stack([(p.detach() - next(gradients)).square().sum() for p in group]).sum() for group in parameters
    ]


@contextmanager
def smooth_relus(net: nn.Module, alpha: float) -> Iterator[None]:
    """Give every nn.ReLU of the model the smooth derivative for a while."""
    relus = [module for module in net.modules() if isinstance(module, nn.ReLU)]
    try:
        for relu in relus:
            relu.forward = lambda z: SmoothReLU.apply(z, alpha)  # type: ignore[assignment, method-assign, no-untyped-call]
        yield
    finally:
        for relu in relus:
            del relu.__dict__["forward"]


def dense_layers(net: nn.Module) -> Layers | None:
    """Weights and biases of a plain perceptron; None for any other supported model."""
    _refuse(_unsupported(net))
    leaves = [module for module in net.modules() if not list(module.children())]
    plain = [module for module in leaves if not isinstance(module, nn.Flatten | nn.Identity)]
    kinds = [nn.Linear if i % 2 == 0 else nn.ReLU for i in range(len(plain))]
    if len(plain) % 2 == 0 or not all(map(isinstance, plain, kinds)):
        return None
    return [
        (layer.weight.detach(), None if layer.bias is None else layer.bias.detach())
        for layer in plain
        if isinstance(layer, nn.Linear)
    ]


def check_layers(target: Target) -> None:
    """Refuse a model that the objective does not cover, before a solver starts; one message lists everything."""
    if target.architecture.tail is not None:
        raise NotApplicableError(f"the KKT attack cannot be run: {uncovered(target)}")
    net = target.net()
    infinite = [name for name, p in net.named_parameters() if not p.isfinite().all()]
    _refuse(_unsupported(net) + [f"{name} has values that are NaN or infinite" for name in infinite])


def uncovered(target: Target) -> str:
    """Why stationarity cannot be written down for a model that was split."""
    return f"after the first dense layer it covers dense layers and ReLUs alone, not {target.architecture.tail}"


def _unsupported(net: nn.Module) -> list[str]:
    leaves = [(name, module) for name, module in net.named_modules() if not list(module.children())]
    return [f"{name or 'the net'} is {type(m).__name__}" for name, m in leaves if not isinstance(m, SUPPORTED)]


def _refuse(problems: list[str]) -> None:
    if problems:
        kinds = ", ".join(kind.__name__ for kind in SUPPORTED)
        raise NotApplicableError(f"the KKT attack cannot be run: {'; '.join(problems)}. Supported layers: {kinds}")


def num_candidates(asked: int | None, rank: int, score: Score, num_outputs: int) -> int:
    """As many as asked for, or some for each direction of the span; equally many for each class."""
    chosen = choose_score(score, num_outputs)
    return share_out(asked, CANDIDATES_PER_DIRECTION * rank, 1 if chosen == "any" else max(num_outputs, 2))


def strength(multiplier: Tensor) -> Tensor:
    """One number for each candidate: λ, or the sum of |multipliers| over its outputs."""
    return multiplier.flatten(1).abs().sum(1) if multiplier.ndim > 1 else multiplier


def share_out(asked: int | None, default: int, classes: int) -> int:
    """The number of candidates: what was asked for, or about the default; the same for each class."""
    if asked is None:
        return max(2, math.ceil(default / classes)) * classes
    if asked < 1 or asked % classes:
        raise UsageError(
            f"{asked} candidates cannot be divided equally among {classes} classes; give a multiple of {classes}"
        )
    return asked
