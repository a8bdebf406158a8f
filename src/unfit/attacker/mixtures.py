"""The first dense layer as mixtures of what feeds it: the inputs, or the maps of a convolution before it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.span import Span, read_span, visible_num_samples
from unfit.base.nets import device, layers_of
from unfit.base.target import Target

TYPICAL_STD = 0.25  # of a centred image
# Components have no scale. The protocol adds the mean image before it compares, and the mean face alone resembles
# many faces. A standard deviation well above that of centred images (0.1 to 0.3) keeps it from doing so.
CANDIDATE_STD = 1.0


@dataclass(frozen=True, eq=False)
class Mixtures:
    """Rows of `weight` are mixtures of maps of `shape`; the layers after it say how a map becomes an output."""

    target: Target
    base: Target | None  # the weights training started from, if they are known
    weight: Tensor  # (w, d)
    bias: Tensor | None
    shape: tuple[int, ...]
    conv: nn.Conv2d | None
    later: list[tuple[Tensor, Tensor | None]]
    gates: tuple[Tensor, Tensor | None]  # weight and bias that decide which neurons are on: the target's own
    limits: tuple[float, float] | None  # of each value of a map
    start: list[tuple[Tensor, Tensor | None]] | None = None  # the base's dense layers, if there is a base

    @cached_property
    def span(self) -> Span:
        return read_span(self.weight)

    @cached_property
    def num_samples(self) -> int | None:
        """The size of the training set, where the spectrum shows it."""
        num = visible_num_samples(self.span, self.weight, self.bias)
        if num is not None and self.conv is not None and self.bias is None:
            return self.span.rank  # maps of a convolution are not centred: no direction is lost
        return num

    def facts(self) -> dict[str, Any]:
        """The target's hash and what its spectrum says; every attack records them."""
        return {
            "target": self.target.sha256,
            "spectrum": self.span.values.tolist(),
            "noise_edge": self.span.edge,
            "rank": self.span.rank,
            "estimated_num_samples": self.num_samples,
        }

    def inputs(self, maps: Tensor) -> Tensor:
        """The inputs that these maps (m, d) come from, up to scale after a convolution: (m, *input shape)."""
        maps = maps.view(len(maps), *self.shape)
        return maps if self.conv is None else back_through(self.conv, maps)


def read_mixtures(target: Target, base: Target | None = None) -> Mixtures:
    """The first dense layer, less that of the base (the weights training started from)."""
    conv, dense = _layers(target)
    start = None
    weight, bias = dense[0]
    if base is not None:
        start = _layers(base)[1]
        weight = weight - start[0][0]
        bias = bias if bias is None or start[0][1] is None else bias - start[0][1]
    shape = target.architecture.input_shape
    if conv is not None:
        shape = (conv.out_channels, *(side - conv.kernel_size[0] + 1 for side in shape[1:]))
    limits = (0.0, torch.inf) if conv is not None else target.input_range
    return Mixtures(target, base, weight, bias, shape, conv, dense[1:], dense[0], limits, start)


def _layers(target: Target) -> tuple[nn.Conv2d | None, list[tuple[Tensor, Tensor | None]]]:
    """The convolution, if there is one, and the dense layers. A kernel as large as the inputs is a dense layer."""
    layers = layers_of(target.net().to(device()).requires_grad_(False))
    dense: list[tuple[Tensor, Tensor | None]] = [
        (layer.weight, layer.bias) for layer in layers if isinstance(layer, nn.Linear)
    ]
    first = layers[0]
    if not isinstance(first, nn.Conv2d):
        return None, dense
    if first.kernel_size == target.architecture.input_shape[1:]:
        return None, [(first.weight.flatten(1), first.bias), *dense]
    return first, dense


def rescale(x: Tensor, std: float) -> Tensor:
    """Scale each candidate to this standard deviation."""
    return std * x / x.flatten(1).std(1).clamp_min(1e-12).view(-1, *[1] * (x.ndim - 1))


def back_through(conv: nn.Conv2d, maps: Tensor) -> Tensor:
    """The transposed convolution of the maps, each centred: their common level says nothing about the input.

    Inverting exactly would blow errors up, since trained kernels are few in effect; the transpose is the first
    step towards it, and on real maps better than any regularised inverse (docs/method.md).
    """
    return F.conv_transpose2d(maps - maps.mean((2, 3), keepdim=True), conv.weight)
