"""How a trained model fits the conditions that the attacks rest on. This needs the training data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.kinks import NNLS_PASSES
from unfit.base.nets import layers_of, margin

CHUNK = 64  # samples whose convolutional gradients are in memory at once
LEAST_EIGENVALUE = 1e-15  # of the largest: rounding in float64


def layer_norms(net: nn.Module) -> list[float]:
    """‖θ_l‖ of each layer, weights and biases together."""
    return [_squared_norm(layer) ** 0.5 for layer in layers_of(net)]


def kkt_residuals(net: nn.Module, x: Tensor, y: Tensor) -> list[float]:
    """‖θ_l − Σ_i λ_i ∂s(x_i)/∂θ_l‖ / ‖θ_l‖ of each layer at the true data, for the best λ ≥ 0   (H22 eqs. 2, 4).

    The λ are common to all layers and come from non-negative least squares in Gram form: only the n × n
    products of the samples' gradients are ever held, never the n × p Jacobian.
    """
    grams, products = _gradient_products(net, x, y)
    lam = _nnls_gram(np.sum(grams, 0), np.sum(products, 0))
    squares = np.array([_squared_norm(layer) for layer in layers_of(net)])
    fits = [lam @ gram @ lam - 2 * lam @ product for gram, product in zip(grams, products, strict=True)]
    return [_relative(square + fit, square) for fit, square in zip(fits, squares, strict=True)]


def decay_residuals(net: nn.Module, loss: Tensor, weight_decay: float) -> list[float]:
    """‖θ_l − Σ_i ℓ'_i ∂Φ(x_i)/∂θ_l‖ / ‖θ_l‖ with ℓ'_i = −(∂ℓ/∂Φ)(x_i) / weight_decay   (B23, any loss)."""
    layers = layers_of(net)
    gradients = iter(torch.autograd.grad(loss, [p for layer in layers for p in layer.parameters()]))
    residuals = []
    for layer in layers:
        pairs = ((p.detach(), next(gradients).double()) for p in layer.parameters())
        square = sum(float((p + gradient / weight_decay).square().sum()) for p, gradient in pairs)
        residuals.append(_relative(square, _squared_norm(layer)))
    return residuals


def _relative(square: float, whole: float) -> float:
    """√(square / whole); a layer of zeros has nothing left to explain."""
    return float(max(square / whole, 0.0) ** 0.5) if whole > 0 else 0.0


def _squared_norm(layer: nn.Module) -> float:
    return sum(float(p.detach().double().square().sum()) for p in layer.parameters())


def _gradient_products(net: nn.Module, x: Tensor, y: Tensor) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For each layer ⟨∂s_i, ∂s_j⟩ as (n, n) and ⟨θ_l, ∂s_i⟩ as (n,), where ∂s_i = ∂s(x_i)/∂θ_l."""
    layers = layers_of(net)
    inputs: dict[nn.Module, Tensor] = {}
    sums: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        inputs[layer], sums[layer] = args[0].detach(), out

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        score = margin(net(x), y).sum()
    finally:
        for hook in hooks:
            hook.remove()
    signals = torch.autograd.grad(score, [sums[layer] for layer in layers])
    pairs = [
        (_conv_products if isinstance(layer, nn.Conv2d) else _linear_products)(layer, inputs[layer], signal)
        for layer, signal in zip(layers, signals, strict=True)
    ]
    return [gram for gram, _ in pairs], [product for _, product in pairs]


def _linear_products(layer: nn.Module, h: Tensor, delta: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """A dense layer's gradient is δ hᵀ: ⟨δ_i h_iᵀ, δ_j h_jᵀ⟩ = ⟨δ_i, δ_j⟩ ⟨h_i, h_j⟩; a bias adds ⟨δ_i, δ_j⟩."""
    assert isinstance(layer, nn.Linear)
    h, delta, weight = h.double(), delta.double(), layer.weight.detach().double()
    gram = (delta @ delta.T) * (h @ h.T + (layer.bias is not None))
    product = (delta * (h @ weight.T)).sum(1)
    if layer.bias is not None:
        product = product + delta @ layer.bias.detach().double()
    return gram.cpu().numpy(), product.cpu().numpy()


def _conv_products(layer: nn.Module, h: Tensor, delta: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """A kernel is small, so its per-sample gradients Σ_p δ(p) patch(p)ᵀ may be written out, a chunk at a time."""
    assert isinstance(layer, nn.Conv2d)
    rows = []
    for h_part, delta_part in zip(h.split(CHUNK), delta.flatten(2).split(CHUNK), strict=True):
        patches = F.unfold(h_part, layer.kernel_size)
        rows.append((delta_part @ patches.transpose(1, 2)).flatten(1))
    gradient, theta = torch.cat(rows), layer.weight.detach().flatten()
    if layer.bias is not None:
        gradient = torch.cat([gradient, delta.flatten(2).sum(2)], 1)
        theta = torch.cat([theta, layer.bias.detach()])
    gradient, theta = gradient.double(), theta.double()
    return (gradient @ gradient.T).cpu().numpy(), (gradient @ theta).cpu().numpy()


def _nnls_gram(gram: np.ndarray, product: np.ndarray) -> np.ndarray:
    """argmin_{λ ≥ 0} λᵀKλ − 2 bᵀλ, by writing K = RᵀR and solving ‖Rλ − R⁻ᵀb‖; K may be singular."""
    from scipy.optimize import nnls  # here: it takes a second to load

    values, vectors = np.linalg.eigh(gram)
    # not cut off but raised: gradients of very different size make small eigenvalues that matter
    root = np.sqrt(values.clip(max(LEAST_EIGENVALUE * values[-1], 1e-300)))
    solution, _ = nnls(root[:, None] * vectors.T, vectors.T @ product / root, maxiter=NNLS_PASSES * len(gram))
    return np.asarray(solution)
