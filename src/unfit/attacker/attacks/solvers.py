"""Two solvers for the objective of kkt.py: the papers' own, kept as a yardstick, and a fast one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unfit.attacker.attacks.unmix import UnmixSettings, components, tellable
from unfit.attacker.candidates import Candidates, Part, describe, pool, share_out
from unfit.attacker.kinks import MAX_INPUTS, exact_multipliers, large, meeting_points
from unfit.attacker.mixtures import TYPICAL_STD, Mixtures, read_mixtures
from unfit.attacker.stationarity import (
    Layers,
    Score,
    candidate_signals,
    check_layers,
    choose_score,
    forward,
    predicted,
    stationarity,
    weigh,
)
from unfit.base.nets import device
from unfit.base.progress import Report, quiet
from unfit.base.target import Target

Solver = Literal["fast", "paper"]
DIVERGED = 1e3  # a loss so many times that of the start will not come back
GIVE_UP_AFTER, LEAST = 0.2, 1000  # a share of the iterations, and at least so many of them …
HOPELESS = 0.99  # … with this share of the weights still unexplained
POINTS = 10  # of the curve of a loss
RIDGE = 0.03  # of the multipliers' least squares, times its mean diagonal
FLOOR = 0.1  # of the mean multiplier: a candidate at 0 would have no signal and never move again
ACTIVE_SET_PASSES = 6
SETTLING = 20  # iterations before a run's first snapshot …
BETWEEN = 10  # … and from one to the next


@dataclass(frozen=True)
class PaperSettings:
    """H22's method with a published setting for CIFAR-10 (n=500); the papers draw 100 settings for each model."""

    score: Score = "auto"
    num_candidates: int | None = None  # default: three for each direction above the noise edge
    iterations: int = 50_000
    lr: float = 0.346
    lr_multiplier: float = 1e-4
    sigma: float = 4.5e-3  # of the start
    alpha: float = 21.7  # of the smooth derivative
    lambda_min: float = 0.494
    dtype: Literal["float64", "float32"] = "float64"
    seed: int = 0


@dataclass(frozen=True)
class FastSettings:
    """Short runs from a few starts; all snapshots on the way are pooled. Nothing here needs a sweep."""

    score: Score = "auto"
    num_candidates: int | None = None  # a run; default: three for each direction above the noise edge
    runs: int = 6
    iterations: int = 60
    alpha: float = 50.0
    damping: float = 0.03  # of the mean squared signal
    step: float = 0.3
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Iterate:
    """Where the papers' solver stands after `iteration` steps."""

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


def paper(target: Target, settings: PaperSettings | None = None, progress: Report = quiet) -> Candidates:
    """The papers' attack. A run that diverges ends there; its best iterate is kept and `facts` says so."""
    check_layers(target.net())
    return run_paper(target, read_mixtures(target), settings or PaperSettings(), progress)


def run_paper(
    target: Target,
    mixtures: Mixtures,
    settings: PaperSettings,
    progress: Report = quiet,
    give_up: bool = False,
) -> Candidates:
    """The same where the mixtures are known. `give_up`: a run that explains nothing for long ends early too.

    Losses are told relative to ‖θ‖², what no candidates at all would leave: the share of the weights unexplained.
    """
    began, facts = time.perf_counter(), mixtures.facts() | {"status": "finished"}
    whole = sum(float(weight.double().square().sum()) for weight in target.weights.values())
    patience = max(LEAST, int(GIVE_UP_AFTER * settings.iterations))
    iterates = paper_iterates(target, settings, facts["rank"])
    first = best = next(iterates).copy()
    curve = [(0, first.loss / whole)]
    for iterate in iterates:
        iteration, loss = iterate.iteration, iterate.loss / whole
        progress(iteration / settings.iterations, f"loss {loss:.4g}")
        if iterate.loss <= best.loss:
            best = iterate.copy()
        if not iterate.loss < DIVERGED * first.loss:
            facts["status"] = f"diverged after {iteration} iterations"
            break
        if iteration % max(1, settings.iterations // POINTS) == 0:
            curve.append((iteration, loss))
        if give_up and iteration == patience and best.loss > HOPELESS * whole:
            facts["status"] = f"pruned after {iteration} iterations"
            break
    facts |= {"iteration": best.iteration, "loss": best.loss / whole, "curve": curve}
    facts["seconds"] = time.perf_counter() - began
    label = None if best.multiplier.ndim > 1 else best.label.cpu()  # multipliers of any sign: no labels
    part = Part("kkt: paper", best.x.float().cpu(), label, strength(best.multiplier).float().cpu())
    return pool([part], describe("kkt", settings, solver="paper"), facts)


def paper_iterates(target: Target, settings: PaperSettings, rank: int) -> Iterator[Iterate]:
    """H22 eq. 8 by SGD with momentum 0.9, before each step and after the last.

    As in the papers' code the sum is divided by the number of candidates, the penalties are squared hinges, and
    multipliers have a learning rate of their own.
    """
    dtype = {"float64": torch.float64, "float32": torch.float32}[settings.dtype]
    net = target.net().to(device(), dtype).requires_grad_(False)
    k = target.architecture.num_outputs
    score = choose_score(settings.score, k)
    m = count(settings.num_candidates, rank, score, k)
    random = torch.Generator().manual_seed(settings.seed)
    shape = target.architecture.input_shape
    x = (settings.sigma * torch.randn(m, *shape, generator=random, dtype=dtype)).to(device()).requires_grad_()
    start = torch.rand(*((m, k) if score == "any" else (m,)), generator=random, dtype=dtype)
    multiplier = (2 * start - 1 if score == "any" else start).to(device()).requires_grad_()
    label = (torch.arange(m) % max(k, 2)).to(device())
    low, high = target.input_range or (-torch.inf, torch.inf)
    groups = [{"params": [x], "lr": settings.lr}, {"params": [multiplier], "lr": settings.lr_multiplier}]
    optimiser = torch.optim.SGD(groups, momentum=0.9)
    for iteration in range(settings.iterations + 1):
        loss = torch.stack(stationarity(net, x, weigh(score, label, multiplier / m), settings.alpha)).sum()
        if score != "any":
            loss = loss + 5 * (settings.lambda_min - multiplier).relu().square().sum()
        loss = loss + ((x - high).relu().square() + (low - x).relu().square()).mean()
        yield Iterate(iteration, float(loss.detach()), x, label, multiplier)
        x.grad, multiplier.grad = torch.autograd.grad(loss, [x, multiplier])
        optimiser.step()


def fast(
    target: Target, base: Target | None = None, settings: FastSettings | None = None, progress: Report = quiet
) -> Candidates:
    """The KKT attack in seconds: in the row space of the first dense layer, multipliers solved for exactly."""
    check_layers(target.net())
    return run_fast(target, read_mixtures(target, base), settings or FastSettings(), progress)


def run_fast(target: Target, mixtures: Mixtures, settings: FastSettings, progress: Report = quiet) -> Candidates:
    """The same where the mixtures are known. Its loss is the share of the first layer that it cannot explain."""
    began = time.perf_counter()
    parts = list(fast_parts(target, mixtures, settings, progress))
    losses = [part.loss for part in parts if part.loss is not None and part.name.startswith("kkt")]
    facts = mixtures.facts() | {"status": "finished", "loss": min(losses, default=1.0)}
    facts["seconds"] = time.perf_counter() - began
    progress(1.0, "pooled")
    nothing = Part("nothing above the noise edge", torch.zeros(0, *target.architecture.input_shape))
    described = describe("kkt", settings, mixtures.start is not None, solver="fast")
    return pool(parts or [nothing], described, facts)


def fast_parts(
    target: Target, mixtures: Mixtures, settings: FastSettings, progress: Report = quiet
) -> Iterator[Part]:
    """The candidates of each snapshot as it is taken, and after the first run the components of unmixing."""
    yield from kkt_parts(target, mixtures, settings, range(1), progress)
    if can_unmix(target, mixtures):
        progress(1 / (settings.runs + 1), "spectral components")
        yield from components(mixtures, UnmixSettings(seed=settings.seed))
    yield from kkt_parts(target, mixtures, settings, range(1, settings.runs), progress)


def can_unmix(target: Target, mixtures: Mixtures) -> bool:
    """Whether edges can tell the sources apart; behind a convolution some of them, and KKT runs find fewer."""
    return target.is_image and (mixtures.conv is not None or mixtures.span.rank <= tellable(mixtures.shape))


def kkt_parts(
    target: Target, mixtures: Mixtures, settings: FastSettings, runs: range, progress: Report = quiet
) -> Iterator[Part]:
    """The candidates of each snapshot of these runs; where inputs have few values, where kinks meet instead."""
    score = choose_score(settings.score, target.architecture.num_outputs)
    rank = mixtures.span.rank
    if mixtures.weight.shape[1] <= MAX_INPUTS and score == "binary" and mixtures.bias is not None:
        if 0 in runs:
            yield _from_kinks(mixtures, settings)
        return
    m = count(settings.num_candidates, rank, score, target.architecture.num_outputs)
    if rank < 2:
        return
    for run in runs:
        progress(run / (settings.runs + 1), f"run {run + 1} of {settings.runs}, {m} candidates")
        for iteration, loss, maps, label, multiplier in alternate(mixtures, score, m, settings, run):
            name = f"kkt: run {run + 1}, iteration {iteration}"
            known = None if score == "any" else label.cpu()
            yield Part(name, mixtures.inputs(maps).cpu(), known, multiplier.cpu(), loss=loss)


def alternate(
    mixtures: Mixtures, score: Score, m: int, settings: FastSettings, run: int
) -> Iterator[tuple[int, float, Tensor, Tensor, Tensor]]:
    """One run: gates and signals of the candidates, their exact multipliers, a damped least-squares step; again.

    Yields snapshots (iteration, loss, maps, label, multiplier): a run wanders through samples, and most of what it
    has come near at one time it has left at another. The loss is that before the last step.

    With the gates held, W1 = Σ c_i δ_i x_iᵀ is linear in x, so (AAᵀ + ρI)⁻¹ is the Gauss–Newton metric (A = cδ).
    What the gates themselves would gain is left out: following it from random starts ends in poor local minima.
    Multipliers are solved for and a box holds the inputs, so a run cannot run away.
    """
    span, rank = mixtures.span, mixtures.span.rank
    basis = span.right[:rank]  # (r, d)
    fitted, gates = mixtures.weight @ basis.T, mixtures.gates[0] @ basis.T
    layers: Layers = [(gates, mixtures.gates[1]), *mixtures.later]
    bias = mixtures.bias
    k = mixtures.later[-1][0].shape[0] if mixtures.later else len(mixtures.weight)
    label = (torch.arange(m) % max(k, 2)).to(fitted.device)
    u = random_starts(span.values[:rank].to(fitted), m, mixtures.weight.shape[1], settings.seed * 1000 + run)
    for iteration in range(1, settings.iterations + 1):
        signals = candidate_signals(layers, u, label, score, settings.alpha)  # (m, q, w)
        c = multipliers(signals, u, fitted, bias, score)  # (m, q)
        a = (c[..., None] * signals).sum(1)
        gram = a @ a.T
        gram.diagonal().add_(settings.damping * gram.diagonal().mean() + 1e-20)
        rest = fitted - a.T @ u
        moved = u + settings.step * torch.linalg.solve(gram, a @ rest)
        if not moved.isfinite().all():
            return  # the snapshots so far are kept
        u = moved
        if mixtures.limits and iteration % 5 == 1:
            u = (u @ basis).clamp(*mixtures.limits) @ basis.T
        if iteration == settings.iterations or (iteration >= SETTLING and iteration % BETWEEN == 0):
            yield iteration, _share(rest, fitted), u @ basis, label, strength(c)


def _share(rest: Tensor, whole: Tensor) -> float:
    """Of the whole, what the rest is: 1 if nothing is explained."""
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
    gram.diagonal().add_(RIDGE * gram.diagonal().mean() + 1e-20)
    if score == "any":
        return torch.linalg.solve(gram, product).view(m, q)
    active, c = torch.ones(m * q, dtype=torch.bool, device=u.device), product
    for _ in range(ACTIVE_SET_PASSES):
        c = torch.zeros_like(product)
        c[active] = torch.linalg.solve(gram[active][:, active], product[active])
        if (c >= 0).all():
            break
        active = c > 0
    return c.clamp_min(FLOOR * float(c.clamp_min(0).mean())).view(m, q)


def strength(multiplier: Tensor) -> Tensor:
    """One number for each candidate: λ, or the total size of the multipliers of its outputs."""
    return multiplier.flatten(1).abs().sum(1) if multiplier.ndim > 1 else multiplier


def count(num_candidates: int | None, rank: int, score: Score, num_outputs: int) -> int:
    """As asked for, or three for each direction of the span."""
    return share_out(num_candidates, 3 * rank, 1 if score == "any" else max(num_outputs, 2))


def _from_kinks(mixtures: Mixtures, settings: FastSettings) -> Part:
    assert mixtures.bias is not None
    x = meeting_points(*mixtures.gates, settings.num_candidates or 100, settings.seed)  # type: ignore[arg-type]
    layers: Layers = [mixtures.gates, *mixtures.later]
    label = predicted(forward(layers, x, settings.alpha)[2])
    signals = candidate_signals(layers, x, label, "binary", 2 * settings.alpha)[:, 0]
    multiplier = exact_multipliers(signals, x, mixtures.weight, mixtures.bias)
    kept = large(multiplier)
    rest = mixtures.weight - (multiplier[:, None] * signals)[kept].T @ x[kept]
    loss = _share(rest, mixtures.weight)
    x = mixtures.inputs(x[kept])
    return Part("kkt: kinks", x.cpu(), label[kept].cpu(), multiplier[kept].cpu(), loss=loss)
