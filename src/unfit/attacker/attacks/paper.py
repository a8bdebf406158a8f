"""The KKT attack as the papers run it, kept as a yardstick: SGD through the network's gradients, for hours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from unfit.attacker.attacked_layer import AttackedLayer
from unfit.attacker.attacks.fast import FastKKT
from unfit.attacker.candidates import Candidates, Part
from unfit.attacker.costs import operations_per_second, pass_operations
from unfit.attacker.method import Applicability, Method, Parameter, Parameters, Values, gather
from unfit.attacker.names import Score
from unfit.attacker.stationarity import (
    check_layers,
    choose_score,
    num_candidates,
    stationarity,
    strength,
    weigh,
)
from unfit.base.device import device
from unfit.base.nets import Architecture
from unfit.base.progress import Report, quiet
from unfit.base.target import Target

DIVERGED = 1e3  # times its first value: a loss so large does not fall again
GIVE_UP_AFTER, LEAST_ITERATIONS = 0.2, 1000  # a share of the iterations, and at least this many of them …
HOPELESS = 0.99  # … with this share of the weights still unexplained
CURVE_POINTS = 10
MULTIPLIER_PENALTY = 5.0  # α₂ of H22 eq. 8
MOMENTUM = 0.9  # H22 sec. 5.2

H22: Parameters = {  # App. B.2
    "lr": Parameter(low=1e-5, high=1, log=True),
    "sigma": Parameter(low=1e-6, high=1, log=True),
    "alpha": Parameter(low=10, high=500),
    "lambda_min": Parameter(low=1e-4, high=1, log=True),
}
B23: Parameters = H22 | {  # App. A, for several classes and for any loss
    "sigma": Parameter(low=1e-6, high=0.1, log=True),
    "lambda_min": Parameter(low=0.01, high=0.5),
}


class PaperKKT(Method):
    """H22's method with a setting published for CIFAR-10, n=500; the papers draw 100 settings for each model.

    A run that diverges ends there. Its best iterate is kept, and the candidates' status says so.

    Args:
        score: `binary`, `multiclass`, or `any` for a regression loss with weight decay; `auto`: by the outputs.
        num_candidates: Default: three for each direction above the noise.
        iterations: Steps of gradient descent.
        lr: Learning rate of the candidates.
        lr_multiplier: Learning rate of their multipliers.
        sigma: Standard deviation of the first candidates.
        alpha: Slope of the smooth derivative that stands for a ReLU's.
        lambda_min: The least multiplier.
        dtype: `float64` or `float32`.
        give_up: End a run early that has explained nothing for long.
        seed: Everything random follows from it.

    Example:
        >>> candidates = unfit.attack(model, unfit.PaperKKT(iterations=20))
    """

    method: Literal["kkt"] = "kkt"
    solver: Literal["paper"] = "paper"
    score: Score = "auto"
    num_candidates: PositiveInt | None = None  # default: three for each direction above the noise edge
    iterations: PositiveInt = 50_000
    lr: PositiveFloat = 0.346
    lr_multiplier: PositiveFloat = 1e-4
    sigma: NonNegativeFloat = 4.5e-3  # standard deviation of the first candidates
    alpha: PositiveFloat = 21.7  # slope of the smooth derivative
    lambda_min: NonNegativeFloat = 0.494
    dtype: Literal["float64", "float32"] = "float64"
    give_up: bool = False  # end a run early that has explained nothing for long

    title = "kkt with the papers' solver"
    takes_base = False

    def run(self, layer: AttackedLayer, progress: Report = quiet) -> Candidates:
        """Losses are told relative to ‖θ‖², what no candidates at all would leave: the share left unexplained."""
        began, target = time.perf_counter(), layer.target
        check_layers(target)
        whole = sum(float(weight.double().square().sum()) for weight in target.weights.values())
        patience = max(LEAST_ITERATIONS, int(GIVE_UP_AFTER * self.iterations))
        iterates = paper_iterates(target, self, layer.span.rank)
        first = best = next(iterates).copy()
        curve, status, pruned = [(0, first.loss / whole)], "finished", False
        for iterate in iterates:
            iteration, loss = iterate.iteration, iterate.loss / whole
            progress(iteration / self.iterations, f"loss {loss:.4g}")
            if iterate.loss <= best.loss:
                best = iterate.copy()
            if not iterate.loss < DIVERGED * first.loss:
                status = f"diverged after {iteration} iterations"
                break
            if iteration % max(1, self.iterations // CURVE_POINTS) == 0:
                curve.append((iteration, loss))
            if self.give_up and iteration == patience and best.loss > HOPELESS * whole:
                status, pruned = f"pruned after {iteration} iterations", True
                break
        found = {"pruned": pruned, "iteration": best.iteration, "loss": best.loss / whole, "curve": curve}
        return gather(self, layer, [best.part()], began, status, **found)

    def check(self, architecture: Architecture) -> None:
        num_candidates(self.num_candidates, 1, self.score, architecture.num_outputs)

    def applicability(self, layer: AttackedLayer) -> Applicability:
        runs = FastKKT(score=self.score).applicability_of_runs(layer)
        if not runs.applies:
            return Applicability(self.title, False, runs.why)
        seconds = self.seconds(layer.span.rank, layer.target.architecture)
        return Applicability(self.title, True, "one of its 100 settings", seconds)

    def seconds(self, rank: int, architecture: Architecture) -> float:
        """Double precision, and a derivative of a gradient: six passes, two operations for each multiplication."""
        m = num_candidates(self.num_candidates, rank, self.score, architecture.num_outputs)
        ops = 6 * 2 * m * pass_operations(architecture)
        return self.iterations * ops / operations_per_second(torch.float64)

    def varies(self, architecture: Architecture) -> Parameters:
        """The papers' own distributions."""
        if self.score == "any":  # multipliers of any sign have no least one
            return {name: parameter for name, parameter in B23.items() if name != "lambda_min"}
        return H22 if architecture.num_outputs == 1 else B23

    def vary(self, values: Values, seed: int) -> Self:
        return super().vary(values | {"give_up": True}, seed)


@dataclass(frozen=True, eq=False)
class Iterate:
    """Where the solver stands after `iteration` steps."""

    iteration: int
    loss: float
    x: Tensor
    label: Tensor
    multiplier: Tensor

    def copy(self) -> Iterate:
        """What the next step will not overwrite."""
        return Iterate(
            self.iteration, self.loss, *(t.detach().clone() for t in (self.x, self.label, self.multiplier))
        )

    def part(self) -> Part:
        """Its candidates; multipliers of any sign come without labels."""
        label = None if self.multiplier.ndim > 1 else self.label
        return Part("kkt: paper", self.x.float(), label, strength(self.multiplier).float(), kind="kkt")


def paper_iterates(target: Target, settings: PaperKKT, rank: int) -> Iterator[Iterate]:
    """H22 eq. 8 by SGD with momentum, before each step and after the last.

    As in the papers' code, with which the published settings were found: the sum is divided by the number of
    candidates, the penalties are squared hinges, summed over all values, and multipliers have a learning rate of
    their own. They start from U[0, 1], those of any sign from N(0, 1).
    """
    dtype = {"float64": torch.float64, "float32": torch.float32}[settings.dtype]
    net = target.net().to(dtype).requires_grad_(False)
    k = target.architecture.num_outputs
    score = choose_score(settings.score, k)
    m = num_candidates(settings.num_candidates, rank, score, k)
    random = torch.Generator().manual_seed(settings.seed)
    shape = target.architecture.input_shape
    x = (settings.sigma * torch.randn(m, *shape, generator=random, dtype=dtype)).to(device()).requires_grad_()
    size, drawn = ((m, k), torch.randn) if score == "any" else ((m,), torch.rand)
    multiplier = drawn(size, generator=random, dtype=dtype).to(device()).requires_grad_()
    label = (torch.arange(m) % max(k, 2)).to(device())
    bounds = target.input_range or (-torch.inf, torch.inf)
    groups = [{"params": [x], "lr": settings.lr}, {"params": [multiplier], "lr": settings.lr_multiplier}]
    optimiser = torch.optim.SGD(groups, momentum=MOMENTUM)
    for iteration in range(settings.iterations + 1):
        loss = torch.stack(stationarity(net, x, weigh(score, label, multiplier / m), settings.alpha)).sum()
        if score != "any":
            loss = loss + MULTIPLIER_PENALTY * least_multiplier(multiplier, settings.lambda_min)
        loss = loss + outside_box(x, *bounds)
        yield Iterate(iteration, float(loss.detach()), x, label, multiplier)
        x.grad, multiplier.grad = torch.autograd.grad(loss, [x, multiplier])
        optimiser.step()


def least_multiplier(multiplier: Tensor, lambda_min: float) -> Tensor:
    """Σ max(λ_min − λ_i, 0)²   (H22 eq. 7, squared as in the papers' code)."""
    return (lambda_min - multiplier).relu().square().sum()


def outside_box(x: Tensor, low: float, high: float) -> Tensor:
    """L_prior of H22 eq. 8: how far values lie outside the range of inputs, squared and summed."""
    return ((x - high).relu().square() + (low - x).relu().square()).sum()
