"""The KKT attack in seconds: in the row space of the first dense layer, with multipliers solved for exactly."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from unfit.attacker.attacked_layer import TYPICAL_STD, AttackedLayer
from unfit.attacker.attacks.unmix import JOINED, Unmix, can_unmix
from unfit.attacker.candidates import Candidates, Part
from unfit.attacker.consensus import not_too_smooth
from unfit.attacker.costs import seconds_of
from unfit.attacker.kinks import MAX_INPUTS, exact_multipliers, large, meeting_points
from unfit.attacker.method import Applicability, Method, Parameter, Parameters, gather
from unfit.attacker.names import Score
from unfit.attacker.stationarity import (
    Layers,
    candidate_signals,
    check_layers,
    choose_score,
    forward,
    num_candidates,
    predicted,
    strength,
    uncovered,
)
from unfit.base.budget import is_over
from unfit.base.memory import FLOAT
from unfit.base.nets import Architecture
from unfit.base.progress import Report, quiet, split
from unfit.base.threads import num_workers, spread

MULTIPLIER_RIDGE = 0.03  # of the multipliers' least squares, times its mean diagonal: it keeps near-copies apart
LEAST_MULTIPLIER = 0.1  # of the mean: a candidate at 0 would have no signal and never move again
ACTIVE_SET_PASSES = 6  # of non-negative least squares; later passes drop hardly any multiplier
SETTLING = 20  # iterations before a run's first snapshot …
BETWEEN = 10  # … and from one to the next
BOX_EVERY = 5  # iterations: the box is held by going through the inputs and back, which costs as much as a step
SEEDS_OF_A_RUN = 1000  # run r of seed s starts from seed 1000 s + r, so no two runs begin alike
NUM_KINKS = 100  # meeting points, unless a number is asked for: H22's number of candidates on the circle
KINK_SLOPE = 2  # times `alpha`: at a kink the gates decide, so they are taken sharper
NO_SIGNAL = 1e-20  # added to a diagonal: candidates without any signal must not make it singular
SIGNAL_COPIES = 6  # of what a candidate makes of each neuron: sums, gates, signals, and products with them
GRAM_COPIES = 5  # of the matrix of all candidates with each other: a few products, and those that are solved for
KINK_SECONDS = 5.0  # measured on the circle (docs/results.md)


class FastKKT(Method):
    """Short runs from a few starts; all snapshots on the way are pooled. Nothing here needs a sweep.

    The defaults were chosen on CIFAR-10, n=100 and n=500, two and ten classes (docs/results.md): a factor of
    three in `alpha`, `damping` or `step` changes the counts by a few.

    Args:
        score: `binary`, `multiclass`, or `any` for a regression loss with weight decay; `auto`: by the outputs.
        num_candidates: Of a run; default: three for each direction above the noise.
        runs: Starts.
        iterations: Of each run.
        alpha: Slope of the smooth derivative that stands for a ReLU's.
        damping: Of the least-squares steps, in units of the mean squared signal.
        step: Share of the way to where the equations of an iteration would be solved.
        seed: Everything random follows from it.

    Example:
        >>> candidates = unfit.attack(model, unfit.FastKKT(runs=2))
    """

    method: Literal["kkt"] = "kkt"
    solver: Literal["fast"] = "fast"
    score: Score = "auto"
    num_candidates: PositiveInt | None = None  # a run; default: three for each direction above the noise edge
    runs: PositiveInt = 6  # their snapshots gave more than the ends of sixteen (docs/method-kkt.md)
    iterations: PositiveInt = 60
    alpha: PositiveFloat = 50.0  # slope of the smooth derivative
    damping: PositiveFloat = 0.03  # of the mean squared signal
    step: PositiveFloat = 0.3  # of the whole way to where this iteration's equations would be solved

    title = "kkt"

    def run(self, layer: AttackedLayer, progress: Report = quiet) -> Candidates:
        """Its loss is the share of the first layer that it cannot explain."""
        began = time.perf_counter()
        check_layers(layer.target)
        parts = list(self.parts(layer, progress))
        losses = [part.loss for part in parts if part.loss is not None and part.kind == "kkt"]
        progress(1.0, "pooled")
        pooled = not_too_smooth(parts, layer)
        return gather(self, layer, pooled, began, loss=min(losses, default=1.0))

    def parts(self, layer: AttackedLayer, progress: Report = quiet) -> Iterator[Part]:
        """The candidates of each snapshot as it is taken, and after the first run the components of unmixing."""
        unmix = Unmix(seed=self.seed)
        first, second, third = split(progress, (1, 1, self.runs - 1))
        yield from self.snapshots(layer, range(1), first)
        if can_unmix(layer):
            yield from unmix.components(layer, second)
        yield from self.snapshots(layer, range(1, self.runs), third)

    def snapshots(self, layer: AttackedLayer, runs: range, progress: Report = quiet) -> Iterator[Part]:
        """The candidates of each snapshot of these runs; with few inputs, the points where kinks meet instead."""
        architecture = layer.target.architecture
        score = choose_score(self.score, architecture.num_outputs)
        if has_kinks(layer, score):
            if 0 in runs:
                yield self._from_kinks(layer)
            return
        m = num_candidates(self.num_candidates, layer.span.rank, score, architecture.num_outputs)
        if layer.span.rank < 2 or layer.is_stacked:
            return

        def snapshots(run: int) -> list[Part]:
            return [] if is_over() else list(self._of_run(layer, score, m, run))

        progress(0, f"{len(runs)} runs, {m} candidates each")
        for i, parts in enumerate(spread(snapshots, runs), 1):
            progress(i / len(runs), f"run {i} of {len(runs)}, {m} candidates")
            yield from parts

    def _of_run(self, layer: AttackedLayer, score: Score, m: int, run: int) -> Iterator[Part]:
        for iteration, loss, maps, label, multiplier in alternate(layer, score, m, self, run):
            name = f"kkt: run {run + 1}, iteration {iteration}"
            known = None if score == "any" else label
            yield Part(name, layer.inputs(maps), known, multiplier, loss=loss, kind="kkt")

    def _from_kinks(self, layer: AttackedLayer) -> Part:
        weight, bias = layer.gates
        assert layer.bias is not None
        assert bias is not None
        x = meeting_points(weight, bias, self.num_candidates or NUM_KINKS, self.seed)
        layers: Layers = [layer.gates, *layer.later]
        label = predicted(forward(layers, x, self.alpha)[2])
        signals = candidate_signals(layers, x, label, "binary", KINK_SLOPE * self.alpha)[:, 0]
        multiplier = exact_multipliers(signals, x, layer.weight, layer.bias)
        kept = large(multiplier)
        rest = layer.weight - (multiplier[:, None] * signals)[kept].T @ x[kept]
        loss = _share(rest, layer.weight)
        x = layer.inputs(x[kept])
        return Part("kkt: kinks", x, label[kept], multiplier[kept], loss=loss, kind="kkt")

    def check(self, architecture: Architecture) -> None:
        num_candidates(self.num_candidates, 1, self.score, architecture.num_outputs)

    def applicability(self, layer: AttackedLayer) -> Applicability:
        runs, unmix = self.applicability_of_runs(layer), Unmix(seed=self.seed).applicability(layer)
        if runs.applies and unmix.applies:
            return replace(
                runs,
                seconds=(runs.seconds or 0.0) + (unmix.seconds or 0.0),
                bytes=(runs.bytes or 0.0) + (unmix.bytes or 0.0),
            )
        return runs

    def applicability_of_runs(self, layer: AttackedLayer) -> Applicability:
        """Without the components of unmixing."""
        architecture, rank = layer.target.architecture, layer.span.rank
        if architecture.tail is not None:
            return Applicability(self.title, False, uncovered(layer.target))
        if has_kinks(layer, choose_score(self.score, architecture.num_outputs)):
            return Applicability(self.title, True, "few inputs: where the neurons' kinks meet", KINK_SECONDS)
        if layer.is_stacked:
            return Applicability(self.title, False, "it explains one change, and these are several")
        if rank < 2:
            return Applicability(self.title, False, "nothing stands above the noise of the initial weights")
        seconds, held = self.seconds(rank, architecture), self.bytes(rank, architecture)
        return Applicability(self.title, True, f"random candidates in {rank} directions", seconds, held)

    def seconds(self, rank: int, architecture: Architecture) -> float:
        """Each iteration takes signals of the candidates through all layers, and their multipliers.

        In operations: forward, back and the rest, two Gram matrices, and a few solves of 2/3 m³ each.
        """
        m = num_candidates(self.num_candidates, rank, self.score, architecture.num_outputs)
        (w, _), *others = (shape for shape in architecture.layer_shapes if len(shape) == 2)
        later = sum(map(math.prod, others))
        ops = 6 * m * (rank * w + later) + 4 * m**2 * w + 5 * m**3
        iterations = self.runs * self.iterations
        return seconds_of("kkt", iterations * ops, iterations)

    def bytes(self, rank: int, architecture: Architecture) -> float:
        """The candidates of all snapshots; signals through all layers and Gram matrices of runs under way."""
        m = num_candidates(self.num_candidates, rank, self.score, architecture.num_outputs)
        chosen = choose_score(self.score, architecture.num_outputs)
        each = m * (architecture.num_outputs if chosen == "any" else 1)
        snapshots = 1 + max(0, self.iterations - SETTLING) // BETWEEN
        candidates = self.runs * snapshots * m * math.prod(architecture.input_shape)
        run = SIGNAL_COPIES * each * sum(architecture.hidden) + GRAM_COPIES * each**2
        return FLOAT * (JOINED * candidates + num_workers() * run)

    def varies(self, architecture: Architecture) -> Parameters:
        """Around its defaults, by a factor of two to three both ways."""
        return {
            "alpha": Parameter(low=15, high=150, log=True),
            "damping": Parameter(low=0.01, high=0.1, log=True),
            "step": Parameter(low=0.1, high=0.6),
        }


def has_kinks(layer: AttackedLayer, score: Score) -> bool:
    """Whether there are few enough inputs to find the points where kinks meet."""
    return layer.weight.shape[1] <= MAX_INPUTS and score == "binary" and layer.bias is not None


def alternate(
    layer: AttackedLayer, score: Score, m: int, settings: FastKKT, run: int
) -> Iterator[tuple[int, float, Tensor, Tensor, Tensor]]:
    """One run: gates and signals of the candidates, their exact multipliers, a damped least-squares step; again.

    Yields snapshots (iteration, loss, maps, label, multiplier): a run wanders through samples, and most of what it
    has come near at one time it has left at another. The loss is that before the last step.

    With the gates held, W1 = Σ c_i δ_i x_iᵀ is linear in x, so (AAᵀ + ρI)⁻¹ is the Gauss–Newton metric (A = cδ).
    What the gates themselves would gain is left out: followed from random candidates it ends in poor local minima.
    Multipliers are solved for and a box holds the inputs, so a run cannot run away.
    """
    span, rank = layer.span, layer.span.rank
    basis = span.right[:rank]  # (r, d)
    fitted, gates = layer.weight @ basis.T, layer.gates[0] @ basis.T
    layers: Layers = [(gates, layer.gates[1]), *layer.later]
    bias = layer.bias
    k = layer.later[-1][0].shape[0] if layer.later else len(layer.weight)
    label = (torch.arange(m) % max(k, 2)).to(fitted.device)
    seed = settings.seed * SEEDS_OF_A_RUN + run
    u = random_starts(span.values[:rank].to(fitted), m, layer.weight.shape[1], seed)
    for iteration in range(1, settings.iterations + 1):
        signals = candidate_signals(layers, u, label, score, settings.alpha)  # (m, q, w)
        c = multipliers(signals, u, fitted, bias, score)  # (m, q)
        a = (c[..., None] * signals).sum(1)
        gram = a @ a.T
        gram.diagonal().add_(settings.damping * gram.diagonal().mean() + NO_SIGNAL)
        rest = fitted - a.T @ u
        moved = u + settings.step * torch.linalg.solve(gram, a @ rest)
        if not moved.isfinite().all() or is_over():
            return  # the snapshots so far are kept
        u = moved
        if layer.limits and iteration % BOX_EVERY == 1:
            u = (u @ basis).clamp(*layer.limits) @ basis.T
        if iteration == settings.iterations or (iteration >= SETTLING and iteration % BETWEEN == 0):
            yield iteration, _share(rest, fitted), u @ basis, label, strength(c)


def _share(rest: Tensor, whole: Tensor) -> float:
    """The share of the whole that is left unexplained."""
    return float(rest.square().sum() / whole.square().sum())


def random_starts(values: Tensor, m: int, d: int, seed: int) -> Tensor:
    """Random points of the row space, spread as the mixtures are: (m, r)."""
    random = torch.Generator().manual_seed(seed)
    u = torch.randn(m, len(values), generator=random).to(values) * values
    return TYPICAL_STD * math.sqrt(d) * u / u.norm(dim=1, keepdim=True).clamp_min(1e-12)


def multipliers(signals: Tensor, u: Tensor, weight: Tensor, bias: Tensor | None, score: Score) -> Tensor:
    """argmin_c ‖[W1 | b1] − Σ c δ [u; 1]ᵀ‖² + ridge: (m, q). λ ≥ 0: drop the negative ones, solve again."""
    m, q, w = signals.shape
    flat, x = signals.reshape(m * q, w), u.repeat_interleave(q, 0)
    gram = (flat @ flat.T) * (x @ x.T + (bias is not None))
    product = (flat * (x @ weight.T + (0 if bias is None else bias))).sum(1)
    gram.diagonal().add_(MULTIPLIER_RIDGE * gram.diagonal().mean() + NO_SIGNAL)
    if score == "any":
        return torch.linalg.solve(gram, product).view(m, q)
    active, c = torch.ones(m * q, dtype=torch.bool, device=u.device), product
    for _ in range(ACTIVE_SET_PASSES):
        c = torch.zeros_like(product)
        c[active] = torch.linalg.solve(gram[active][:, active], product[active])
        if (c >= 0).all():
            break
        active = c > 0
    return c.clamp_min(LEAST_MULTIPLIER * float(c.clamp_min(0).mean())).view(m, q)
