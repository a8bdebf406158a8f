"""The papers' networks: d-…-k perceptrons and CONV(k, C)-…-k, with their initial scales."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unfit.base.errors import UsageError, unknown

MAX_PARAMETERS = 500_000_000  # 2 GB in float32; larger models are refused before memory is allocated
MAX_LAYERS = 500  # of a plain model: each costs milliseconds, and nobody trains more


@dataclass(frozen=True)
class Architecture:
    """Everything about a model except its weights. `conv` is (kernel, channels) of a first layer CONV(k, C).

    `tail` says what follows the first dense layer where that is more than ReLUs and dense layers. Then only the
    first layer is described here, and `hidden` is its width.
    """

    input_shape: tuple[int, ...]
    hidden: tuple[int, ...]
    num_outputs: int
    biases: tuple[bool, ...]  # one per layer
    conv: tuple[int, int] | None = None
    padding: int = 0  # of the convolution, on each side
    tail: str | None = None

    def __str__(self) -> str:
        padded = f",{self.padding}" if self.padding else ""
        first = "conv({},{}{})".format(*self.conv, padded) if self.conv else str(math.prod(self.input_shape))
        between = [f"({self.tail})"] if self.tail else []
        return "-".join([first, *map(str, self.hidden), *between, str(self.num_outputs)])

    @property
    def map_shape(self) -> tuple[int, ...]:
        """What enters the first dense layer: the inputs, or the maps of the convolution."""
        if not self.conv:
            return self.input_shape
        kernel, channels = self.conv
        return (channels, *(side + 2 * self.padding - kernel + 1 for side in self.input_shape[1:]))

    @property
    def layer_shapes(self) -> list[tuple[int, ...]]:
        """Each layer's weight shape, first to last."""
        shapes: list[tuple[int, ...]] = []
        width = math.prod(self.map_shape)
        if self.conv:
            kernel, channels = self.conv
            shapes.append((channels, self.input_shape[0], kernel, kernel))
        for out in self.hidden if self.tail else (*self.hidden, self.num_outputs):
            shapes.append((out, width))
            width = out
        return shapes

    @property
    def num_parameters(self) -> int:
        shapes = zip(self.layer_shapes, self.biases, strict=True)
        return sum(math.prod(shape) + shape[0] * bias for shape, bias in shapes)


def parse_architecture(
    text: str, input_shape: tuple[int, ...], num_outputs: int, biases: str = "first"
) -> Architecture:
    """A model of the papers, from text.

    Args:
        text: The hidden layers: "1000-1000" or "conv(3,32)-1000".
        input_shape: The shape of one sample.
        num_outputs: One for two classes, else one for each class.
        biases: "first" layer or all "hidden" layers (H22 sec. 5.3).

    Example:
        >>> str(unfit.parse_architecture("1000-1000", (3, 32, 32), num_outputs=1))
        '3072-1000-1000-1'
    """
    match = re.fullmatch(r"(?:conv\((\d{1,9}),(\d{1,9})\)-)?(\d{1,9}(?:-\d{1,9})*)", text.lower().replace(" ", ""))
    if not match:
        raise UsageError(f"cannot read the architecture {text!r}; write 1000-1000 or conv(3,32)-1000")
    if biases not in ("first", "hidden"):
        raise unknown("choice of `biases`", biases, ("first", "hidden"))
    hidden = tuple(map(int, match[3].split("-")))
    conv = (int(match[1]), int(match[2])) if match[1] else None
    if 0 in hidden or (conv and 0 in conv):
        raise UsageError(f"the architecture {text!r} has a layer of width 0; use 1 or more")
    if conv and (len(input_shape) != 3 or conv[0] > min(input_shape[1:])):
        raise UsageError(f"a {conv[0]}×{conv[0]} kernel does not fit inputs of shape {input_shape}")
    num_layers = len(hidden) + 1 + bool(conv)
    flags = tuple(i == 0 or (biases == "hidden" and i < num_layers - 1) for i in range(num_layers))
    architecture = Architecture(input_shape, hidden, num_outputs, flags, conv)
    if architecture.num_parameters > MAX_PARAMETERS:
        raise UsageError(f"{text} has {architecture.num_parameters:,} parameters; the limit is {MAX_PARAMETERS:,}")
    return architecture


def build(architecture: Architecture) -> nn.Sequential:
    """Build the model with layers `layer1`, `layer2`, … and PyTorch's initial weights (Kaiming, as the papers)."""
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    if not architecture.conv:
        modules["flatten"] = nn.Flatten()
    layers = list(zip(architecture.layer_shapes, architecture.biases, strict=True))
    for i, (shape, bias) in enumerate(layers, 1):
        if len(shape) == 4:
            modules[f"layer{i}"] = nn.Conv2d(shape[1], shape[0], shape[2], padding=architecture.padding, bias=bias)
        else:
            modules[f"layer{i}"] = nn.Linear(shape[1], shape[0], bias=bias)
        if i < len(layers):
            modules[f"relu{i}"] = nn.ReLU()
        if len(shape) == 4:
            modules["flatten"] = nn.Flatten()
    return nn.Sequential(modules)


def initialise(architecture: Architecture, first_scale: float | None, seed: int) -> nn.Sequential:
    """An untrained model. `first_scale` is the first layer's standard deviation; None keeps PyTorch's default."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = build(architecture)
        if first_scale is not None:
            for parameter in layers_of(net)[0].parameters():
                nn.init.normal_(parameter, std=first_scale)
    return net


def layers_of(net: nn.Module) -> list[nn.Module]:
    """The layers with weights, first to last."""
    return [module for module in net.modules() if isinstance(module, nn.Linear | nn.Conv2d)]


def outputs(net: nn.Module, x: Tensor, batch: int = 1000) -> Tensor:
    """Φ(x) without gradients, in batches: (n, k), computed where the model is and returned to where x is."""
    where = next(net.parameters(), x).device
    with torch.no_grad():
        return torch.cat([net(part.to(where)).to(x.device) for part in x.split(batch)])


def margin(phi: Tensor, y: Tensor) -> Tensor:
    """The score in the KKT conditions: y Φ (H22 eq. 1) or Φ_y − max_{j≠y} Φ_j (B23), for labels y in 0..k−1."""
    if phi.shape[1] == 1:
        return phi[:, 0] * (2 * y - 1)
    own = nn.functional.one_hot(y, phi.shape[1]).bool()
    return phi[own] - phi.masked_fill(own, -torch.inf).amax(1)
