"""The few layers that other formats have and PyTorch has not, and how layers become a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

L = TypeVar("L", bound=nn.Module)
Step = tuple[nn.Module, tuple[int, ...]]  # a layer and where its inputs come from: 0 is the input, i the i-th step


class Affine(nn.Module):
    """x · scale + shift, with constants: the normalisation of inputs."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class Sum(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class Product(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b


class Join(nn.Module):
    """Tensors side by side along an axis."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, self.axis)


class Graph(nn.Module):
    """Layers in the order in which they are run; skips are inputs from further back."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer for layer, _ in steps)
        self.sources = [sources for _, sources in steps]

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for layer, sources in zip(self.layers, self.sources, strict=True):
            values.append(layer(*(values[i] for i in sources)))
        return values[-1]


def as_net(steps: Sequence[Step]) -> nn.Module:
    """A plain chain is an `nn.Sequential`."""
    if all(sources == (i,) for i, (_, sources) in enumerate(steps)):
        return nn.Sequential(*(layer for layer, _ in steps))
    return Graph(steps)


def dense(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """`weight` as PyTorch has it: (outputs, inputs)."""
    if not weight.numel():
        raise ValueError("a dense layer without weights")
    layer = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0], bias=bias is not None)
    return _filled(layer, weight, bias)


def convolution(weight: Tensor, bias: Tensor | None, **settings: int | tuple[int, int]) -> nn.Conv2d:
    """`weight` as PyTorch has it: (outputs, inputs of a group, height, width)."""
    channels = weight.shape[1] * int(settings.get("groups", 1))  # type: ignore[arg-type]
    if min(channels, weight.numel()) <= 0:
        raise ValueError("a convolution without weights")
    layer = nn.utils.skip_init(
        nn.Conv2d, channels, weight.shape[0], tuple(weight.shape[2:]), bias=bias is not None, **settings
    )
    return _filled(layer, weight, bias)


def batch_norm(rank: int, mean: Tensor, variance: Tensor, scale: Tensor, shift: Tensor, eps: float) -> nn.Module:
    """In its inference form, of a batch of vectors (rank 2) or images (rank 4)."""
    layer = (nn.BatchNorm2d if rank == 4 else nn.BatchNorm1d)(len(mean), eps=eps)
    layer.load_state_dict(
        {
            "weight": scale,
            "bias": shift,
            "running_mean": mean,
            "running_var": variance,
            "num_batches_tracked": torch.tensor(0),
        }
    )
    return layer


def layer_norm(scale: Tensor, shift: Tensor, eps: float) -> nn.LayerNorm:
    return _filled(nn.LayerNorm(len(scale), eps=eps), scale, shift)


def _filled(layer: L, weight: Tensor, bias: Tensor | None) -> L:
    """Shapes that do not fit raise RuntimeError."""
    layer.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return layer
