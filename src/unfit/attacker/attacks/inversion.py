"""Baseline: model inversion, inputs that drive an output as far as it goes (H22 sec. 5.4)."""

from __future__ import annotations

import math
import time
from typing import Annotated, Literal, Self

import torch
from pydantic import AfterValidator, PositiveInt
from torch import Tensor, nn

from unfit.attacker.attacked_layer import AttackedLayer
from unfit.attacker.candidates import Candidates, Part
from unfit.attacker.costs import operations_per_second, pass_operations
from unfit.attacker.method import Applicability, Method, Parameter, Parameters, Values, gather
from unfit.attacker.stationarity import share_out
from unfit.base.device import device
from unfit.base.nets import Architecture, layers_of, outputs
from unfit.base.progress import Report, quiet

NUM_STARTS = 1000  # about this many, unless a number is asked for: 40 times fewer than in the paper, in seconds
TELL_EVERY = 10  # iterations
PIECES = 0.3  # of the iterations, on 1000-1000 with n=120: most starts hardly move or soon leave all kinks behind
BATCH = 1000  # starts whose layers stay in the cache


def _rising(bounds: tuple[float, float]) -> tuple[float, float]:
    if not 0 < bounds[0] <= bounds[1]:
        raise ValueError("needs two positive numbers, the smaller one first")
    return bounds


LogUniform = Annotated[tuple[float, float], AfterValidator(_rising)]


class Inversion(Method):
    """One output: half of the starts maximise it, half minimise it. Several: each start maximises one class's.

    A baseline: it finds what a class looks like, and rarely a sample.

    Args:
        num_candidates: Starts; default: about a thousand.
        iterations: Of each start.
        lr: Range that each start draws its learning rate from (H22 App. B.2).
        sigma: Range that each start draws its size from.
        seed: Everything random follows from it.

    Example:
        >>> candidates = unfit.attack(model, unfit.Inversion(num_candidates=10))
    """

    method: Literal["inversion"] = "inversion"
    num_candidates: PositiveInt | None = None  # default: about NUM_STARTS
    iterations: PositiveInt = 300  # the paper gives no number; these take seconds
    lr: LogUniform = (1e-6, 1.0)  # each start draws its own (H22 App. B.2)
    sigma: LogUniform = (1e-7, 1.0)  # of the first candidates, drawn likewise

    title = "inversion"
    takes_base = False

    def run(self, layer: AttackedLayer, progress: Report = quiet) -> Candidates:
        """Plain gradient ascent without bounds, as in H22; the most extreme outputs come first.

        Its loss is how far outputs were driven, on average, with a minus.
        """
        began, target = time.perf_counter(), layer.target
        m, k = self.count(target.architecture), target.architecture.num_outputs
        net, shape = target.net().requires_grad_(False), target.architecture.input_shape
        random = torch.Generator().manual_seed(self.seed)
        lr, sigma = (_log_uniform(m, *bounds, random).to(device()) for bounds in (self.lr, self.sigma))
        x = torch.randn(m, math.prod(shape), generator=random).to(device()) * sigma
        label = torch.arange(m, device=x.device) % max(k, 2)
        ascend = in_pieces if _is_dense(target.architecture) else step_by_step
        x = ascend(net, x.view(m, *shape), lr, label, self.iterations, progress)
        driven = _driven(outputs(net, x), label)
        order, loss = driven.argsort(descending=True), -float(driven.mean())
        part = Part("inversion", x[order], label[order])
        return gather(self, layer, [part], began, loss=loss if math.isfinite(loss) else None)

    def count(self, architecture: Architecture) -> int:
        return share_out(self.num_candidates, NUM_STARTS, max(architecture.num_outputs, 2))

    def check(self, architecture: Architecture) -> None:
        self.count(architecture)

    def applicability(self, layer: AttackedLayer) -> Applicability:
        return Applicability(self.title, True, "a baseline", self.seconds(layer.target.architecture))

    def seconds(self, architecture: Architecture) -> float:
        """A step goes forward, and backward to the inputs; a piece twice forward and once back, and W₁W₁ᵀ."""
        once = pass_operations(architecture)
        steps = 2 * once
        if _is_dense(architecture):
            width, inputs = architecture.layer_shapes[0]
            steps = round(PIECES * (3 * (once - width * inputs) + width**2))
        return 2 * self.count(architecture) * self.iterations * steps / operations_per_second()

    def varies(self, architecture: Architecture) -> Parameters:
        """The ranges that single starts draw from by default, for all starts of a trial together."""
        return {
            name: Parameter(low=low, high=high, log=True)
            for name, (low, high) in (("lr", DEFAULT.lr), ("sigma", DEFAULT.sigma))
        }

    def vary(self, values: Values, seed: int) -> Self:
        return super().vary({name: (value, value) for name, value in values.items()}, seed)


DEFAULT = Inversion()


def step_by_step(
    net: nn.Module, x: Tensor, lr: Tensor, label: Tensor, iterations: int, progress: Report = quiet
) -> Tensor:
    """This many steps of each start, for any model."""
    rates = lr.view(-1, *[1] * (x.ndim - 1))
    for iteration in range(iterations):
        if iteration % TELL_EVERY == 0:
            progress(iteration / iterations, f"{len(x)} starts")
        here = x.requires_grad_()
        (gradient,) = torch.autograd.grad(_driven(net(here), label).sum(), here)
        x = here.detach() + rates * gradient
    return x


def in_pieces(
    net: nn.Module, x: Tensor, lr: Tensor, label: Tensor, iterations: int, progress: Report = quiet
) -> Tensor:
    """The same through a dense model. It is linear until a neuron turns on or off: equal steps are taken at once.

    x moves within the rows of W₁, so z = W₁x + b₁ moves within those of W₁W₁ᵀ, and x itself is computed once, at
    the end: x + c W₁, where c is the sum of lr · ∂Φ/∂z.
    """
    first, *later = (layer for layer in layers_of(net) if isinstance(layer, nn.Linear))
    z = first(x.flatten(1))
    gram, moved, left = first.weight @ first.weight.T, torch.zeros_like(z), torch.full_like(label, iterations)
    while len(rows := left.nonzero()[:, 0]):
        progress(1 - float(left.sum()) / (iterations * len(x)), f"{len(x)} starts")
        for part in rows.split(BATCH):
            enters, on = _forward(later, z[part])
            step = lr[part] * _backward(later, on, label[part])
            way = step @ gram
            count = _until_one_turns(later, enters, on, way).ceil().clamp_min(1)  # it turns on the last of them
            count = torch.minimum(count, left[part].to(count))
            moved[part] += count[:, None] * step
            z[part] += count[:, None] * way
            left[part] -= count.to(left)
    return x + (moved @ first.weight).view_as(x)


def _forward(later: list[nn.Linear], z: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What enters each ReLU, and which of them are on; the last layer is not needed."""
    enters = [z]
    for layer in later[:-1]:
        enters.append(layer(enters[-1].relu()))
    return enters, [z > 0 for z in enters]


def _backward(later: list[nn.Linear], on: list[Tensor], label: Tensor) -> Tensor:
    """∂/∂z of the output that each start drives up."""
    *hidden, last = (layer.weight for layer in later)
    gradient = (2 * label[:, None] - 1) * last if len(last) == 1 else last[label]
    for weight, active in zip(reversed(hidden), reversed(on[1:]), strict=True):
        gradient = (gradient * active) @ weight
    return gradient * on[0]


def _until_one_turns(later: list[nn.Linear], enters: list[Tensor], on: list[Tensor], way: Tensor) -> Tensor:
    """How many times `way`, as a step of z, until the first neuron of any layer turns on or off."""
    first = torch.full_like(way[:, 0], torch.inf)
    for i, (z, active) in enumerate(zip(enters, on, strict=True)):
        way = way if i == 0 else (way * on[i - 1]) @ later[i - 1].weight.T
        towards = active == (way < 0)
        first = torch.minimum(first, torch.where(towards, -z / way, torch.inf).nan_to_num(torch.inf).amin(1))
    return first


def _is_dense(architecture: Architecture) -> bool:
    """And narrow enough that W₁W₁ᵀ is no larger than what it saves."""
    if architecture.conv or architecture.tail:
        return False
    width, inputs = architecture.layer_shapes[0]
    return width < 2 * inputs


def _driven(phi: Tensor, label: Tensor) -> Tensor:
    """The output that each start drives up: ±Φ, or Φ of its class."""
    if phi.shape[1] == 1:
        return phi[:, 0] * (2 * label - 1)
    return phi.gather(1, label[:, None])[:, 0]


def _log_uniform(m: int, low: float, high: float, random: torch.Generator) -> Tensor:
    return low * (high / low) ** torch.rand(m, 1, generator=random)
