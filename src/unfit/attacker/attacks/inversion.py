"""Baseline: model inversion, inputs that drive an output as far as it goes (H22 sec. 5.4)."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from unfit.attacker.candidates import Candidates, Part, describe, pool, share_out
from unfit.attacker.mixtures import Mixtures, read_mixtures
from unfit.base.nets import device, outputs
from unfit.base.progress import Report, quiet
from unfit.base.target import Target

STARTS = 1000  # about so many, if no number is asked for


@dataclass(frozen=True)
class InversionSettings:
    """One output: half of the starts maximise it, half minimise it. Several: each start maximises one class's."""

    num_candidates: int | None = None  # default: STARTS
    iterations: int = 300
    lr: tuple[float, float] = (1e-6, 1.0)  # each start draws its own, log-uniform, as in the paper
    sigma: tuple[float, float] = (1e-7, 1.0)  # of the start, log-uniform too
    seed: int = 0


def inversion(target: Target, settings: InversionSettings | None = None, progress: Report = quiet) -> Candidates:
    """All starts in one batch, by plain gradient ascent; the most extreme outputs first."""
    return run_inversion(target, read_mixtures(target), settings or InversionSettings(), progress)


def run_inversion(
    target: Target, mixtures: Mixtures, settings: InversionSettings, progress: Report = quiet
) -> Candidates:
    """The same where the mixtures are known. Its loss is how far outputs were driven, on average, with a minus."""
    began = time.perf_counter()
    k = target.architecture.num_outputs
    m = share_out(settings.num_candidates, STARTS, max(k, 2))
    net, shape = target.net().to(device()).requires_grad_(False), target.architecture.input_shape
    random = torch.Generator().manual_seed(settings.seed)
    lr, sigma = (_log_uniform(m, *bounds, len(shape), random) for bounds in (settings.lr, settings.sigma))
    x = (sigma * torch.randn(m, *shape, generator=random)).to(device())
    lr = lr.to(x)
    label = torch.arange(m, device=x.device) % max(k, 2)
    for iteration in range(settings.iterations):
        if iteration % 10 == 0:
            progress(iteration / settings.iterations, f"{m} starts")
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(_driven(net(x), label).sum(), x)
        moved = x.detach() + lr * gradient
        x = moved.clamp(*target.input_range) if target.input_range else moved
    driven = _driven(outputs(net, x.detach()), label)
    order, loss = driven.argsort(descending=True), -float(driven.mean())
    facts = mixtures.facts() | {"status": "finished", "loss": loss if math.isfinite(loss) else None}
    facts["seconds"] = time.perf_counter() - began
    part = Part("inversion", x.detach()[order].cpu(), label[order].cpu())
    return pool([part], describe("inversion", settings), facts)


def _driven(phi: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """What each start drives up: ±Φ, or Φ of its class."""
    if phi.shape[1] == 1:
        return phi[:, 0] * (2 * label - 1)
    return phi.gather(1, label[:, None])[:, 0]


def _log_uniform(m: int, low: float, high: float, ndim: int, random: torch.Generator) -> torch.Tensor:
    drawn = low * (high / low) ** torch.rand(m, generator=random)
    return drawn.view(-1, *[1] * ndim)
