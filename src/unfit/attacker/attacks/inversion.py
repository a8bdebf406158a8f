"""Baseline: model inversion, inputs that drive an output as far as it goes (H22 sec. 5.4)."""

from __future__ import annotations

import math
import time
from typing import Annotated, Literal, Self

import torch
from pydantic import AfterValidator, PositiveInt
from torch import Tensor

from unfit.attacker.candidates import Candidates, Part, share_out
from unfit.attacker.costs import operations_per_second, pass_operations
from unfit.attacker.method import Method, Outlook, Parameter, Parameters, Values, gather
from unfit.attacker.mixtures import Mixtures
from unfit.base.nets import Architecture, device, outputs
from unfit.base.progress import Report, quiet

NUM_STARTS = 1000  # about this many, unless a number is asked for: 40 times fewer than in the paper, in seconds
TELL_EVERY = 10  # iterations


def _rising(bounds: tuple[float, float]) -> tuple[float, float]:
    if not 0 < bounds[0] <= bounds[1]:
        raise ValueError("needs two positive numbers, the smaller one first")
    return bounds


LogUniform = Annotated[tuple[float, float], AfterValidator(_rising)]


class Inversion(Method):
    """One output: half of the starts maximise it, half minimise it. Several: each start maximises one class's.

    A baseline: it finds what a class looks like, and seldom a sample.

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
    sigma: LogUniform = (1e-7, 1.0)  # of the start, drawn likewise

    title = "inversion"
    takes_base = False

    def run(self, mixtures: Mixtures, progress: Report = quiet) -> Candidates:
        """All starts in one batch, by plain gradient ascent; the most extreme outputs come first.

        Its loss is how far outputs were driven, on average, with a minus.
        """
        began, target = time.perf_counter(), mixtures.target
        m, k = self.count(target.architecture), target.architecture.num_outputs
        net, shape = target.net().to(device()).requires_grad_(False), target.architecture.input_shape
        random = torch.Generator().manual_seed(self.seed)
        lr, sigma = (_log_uniform(m, *bounds, len(shape), random) for bounds in (self.lr, self.sigma))
        x = (sigma * torch.randn(m, *shape, generator=random)).to(device())
        lr = lr.to(x)
        label = torch.arange(m, device=x.device) % max(k, 2)
        for iteration in range(self.iterations):
            if iteration % TELL_EVERY == 0:
                progress(iteration / self.iterations, f"{m} starts")
            x.requires_grad_()
            (gradient,) = torch.autograd.grad(_driven(net(x), label).sum(), x)
            moved = x.detach() + lr * gradient
            x = moved.clamp(*target.input_range) if target.input_range else moved
        driven = _driven(outputs(net, x.detach()), label)
        order, loss = driven.argsort(descending=True), -float(driven.mean())
        part = Part("inversion", x.detach()[order].cpu(), label[order].cpu())
        return gather(self, mixtures, [part], began, loss=loss if math.isfinite(loss) else None)

    def count(self, architecture: Architecture) -> int:
        return share_out(self.num_candidates, NUM_STARTS, max(architecture.num_outputs, 2))

    def check(self, architecture: Architecture) -> None:
        self.count(architecture)

    def outlook(self, mixtures: Mixtures) -> Outlook:
        """Each iteration goes forward, and backward to the inputs."""
        architecture = mixtures.target.architecture
        ops = 2 * 2 * self.count(architecture) * pass_operations(architecture)
        return Outlook(self.title, True, "a baseline", self.iterations * ops / operations_per_second())

    def varies(self, architecture: Architecture) -> Parameters:
        """The ranges that single starts draw from by default, for all starts of a trial together."""
        return {
            name: Parameter(low=low, high=high, log=True)
            for name, (low, high) in (("lr", DEFAULT.lr), ("sigma", DEFAULT.sigma))
        }

    def vary(self, values: Values, seed: int) -> Self:
        return super().vary({name: (value, value) for name, value in values.items()}, seed)


DEFAULT = Inversion()


def _driven(phi: Tensor, label: Tensor) -> Tensor:
    """The output that each start drives up: ±Φ, or Φ of its class."""
    if phi.shape[1] == 1:
        return phi[:, 0] * (2 * label - 1)
    return phi.gather(1, label[:, None])[:, 0]


def _log_uniform(m: int, low: float, high: float, ndim: int, random: torch.Generator) -> Tensor:
    drawn = low * (high / low) ** torch.rand(m, generator=random)
    return drawn.view(-1, *[1] * ndim)
