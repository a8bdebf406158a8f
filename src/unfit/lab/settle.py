"""Training with weight decay until nothing moves any more.

The end is a stationary point, however it is reached. Gradient descent would need 1 / (lr · weight_decay) steps,
many thousands, to forget its initial weights; Nesterov's momentum needs their square root.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from unfit.base.progress import Report
from unfit.base.store import Saved
from unfit.lab.checkpoint import TrainingCheckpoint
from unfit.lab.settings import FitSettings
from unfit.lab.trainee import InMaps, InSpan, copy_of, move, squares
from unfit.lab.training import TIME_LIMIT, Trace

FIRST_LR = 0.1  # where the search for a good one begins
LR_GROWTH, LR_AFTER_RISE, LR_AFTER_OVERFLOW = 1.01, 0.9, 0.5  # times the learning rate after each step
PIECE = 1 << 20  # values whose squares stay in the cache
NESTEROV = 3  # momentum k / (k + 3) after k steps without a restart
SETTLED_STEPS, SETTLED_GAIN = 100, 1e-4  # training ends when that many steps gain less than this share of the loss
DENSE_STEPS, KERNEL_STEPS = 20, 15  # a turn; with 5 for the kernels training takes half as long again
SETTLED_TURNS, SETTLED_GAIN_OF_TURNS = 3, 1e-3  # the layers' norms are then within 1% of where they would end


class Accelerated:
    """Nesterov's momentum on loss + (weight_decay / 2) ‖θ‖². Whenever that rises, it goes back and restarts.

    The decay's own gradient, λθ, is taken by hand, and nothing as large as the weights is made anew at each step
    but the gradient of the loss.
    """

    def __init__(self, parameters: Iterable[Tensor], weight_decay: float) -> None:
        self.parameters, self.weight_decay = [p for p in parameters if p.requires_grad], weight_decay
        self.lr, self.age, self.last = FIRST_LR, 0, math.inf
        self.old, self._here = ([p.detach().clone() for p in self.parameters] for _ in range(2))

    @property
    def penalty(self) -> float:
        """(weight_decay / 2) ‖θ‖²."""
        return self.weight_decay / 2 * size(self.parameters)

    def step(self, loss: Callable[[], Tensor], rest: float) -> bool:
        """One step; whether it went on. `rest` is what the objective has besides."""
        torch._foreach_copy_(self._here, self.parameters)
        with torch.no_grad():
            torch._foreach_lerp_(self.parameters, self.old, -self.age / (self.age + NESTEROV))  # away from there
        now = loss()
        value = now.item() + self.penalty + rest
        if not value < self.last and self.age:
            torch._foreach_copy_([p.data for p in self.parameters], self.old)
            self.lr *= LR_AFTER_RISE if math.isfinite(value) else LR_AFTER_OVERFLOW
            self.age, self.last = 0, math.inf
            return False
        gradient = torch.autograd.grad(now, self.parameters, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            torch._foreach_mul_(self.parameters, 1 - self.lr * self.weight_decay)
        move(self.parameters, gradient, -self.lr)
        self.old, self._here = self._here, self.old
        self.age, self.lr, self.last = self.age + 1, LR_GROWTH * self.lr, value
        return True

    @property
    def numbers(self) -> dict[str, Any]:
        return {"lr": self.lr, "age": self.age, "last": self.last}

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {str(i): value for i, value in enumerate(self.old)}

    def go_on(self, numbers: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.lr, self.age, self.last = (numbers[name] for name in ("lr", "age", "last"))
        torch._foreach_copy_(self.old, [tensors[str(i)] for i in range(len(self.old))])


def settle(
    trainee: InSpan, y: Tensor, settings: FitSettings, checkpoint: TrainingCheckpoint, progress: Report
) -> Trace:
    """All weights together. What lies outside the span has a known end: e^(−weight_decay · flow_time)."""
    trainee.rest.data *= math.exp(-settings.weight_decay * settings.flow_time)
    trainee.rest.requires_grad_(False)
    trace, descent = Trace(), Accelerated(trainee.parameters(), settings.weight_decay)
    if kept := checkpoint.kept:
        trace.go_on(kept)
        trainee.load_state_dict(kept.part("net"))
        descent.go_on(kept.facts, kept.part("old"))
    outside = settings.weight_decay / 2 * trainee.rest.item() ** 2

    def state() -> Saved:
        return trace.state(descent.numbers, net=trainee.state_dict(), old=descent.tensors)

    while trace.steps < settings.max_steps:
        lr = descent.lr
        if not descent.step(lambda: trainee.loss(y, settings), outside):
            trace.steps += 1
            continue
        trace.add(descent.last, lr)
        if _ends(trace, _gain(trace, SETTLED_STEPS) < SETTLED_GAIN, state, settings, checkpoint, progress):
            break
    return trace


def settle_in_turns(
    trainee: InMaps, y: Tensor, settings: FitSettings, checkpoint: TrainingCheckpoint, progress: Report
) -> Trace:
    """The dense layers behind a convolution, then its kernels, then the dense layers again, each by L-BFGS.

    While the kernels rest, the dense layers are trained in the span of the maps, where a step takes a twentieth of
    the time. Nothing is left of what the dense layer had outside it, as after an endless training. A turn depends
    on the weights alone, so they are all that is kept. There is no flow time, since no path is followed.
    """
    trace = Trace()
    if kept := checkpoint.kept:
        trace.go_on(kept)
        trainee.back_to(kept.part("net"))

    def state() -> Saved:
        return trace.state({}, net=copy_of(trainee.state_dict()))

    def objective(loss: Callable[[Tensor, FitSettings], Tensor]) -> Tensor:
        if checkpoint.over(lambda: before):  # within a turn too: it may take ten seconds
            raise LateError
        return loss(y, settings) + settings.weight_decay / 2 * squares(trainee.parameters())

    while trace.steps < settings.max_steps:
        before = state()
        try:
            _descend(trainee.dense, lambda: objective(trainee.loss_of_dense), DENSE_STEPS)
            _descend(trainee.kernels, lambda: objective(trainee.loss), KERNEL_STEPS)
            value = objective(trainee.loss).item()
        except LateError:
            trainee.back_to(before.part("net"))
            return trace.end(TIME_LIMIT)
        if not math.isfinite(value):
            trainee.back_to(before.part("net"))
            return trace.end("diverged")
        trainee.balance()
        trainee.follow()
        trace.add(value, 0.0, DENSE_STEPS + KERNEL_STEPS)  # before both, which can only lower it
        if _ends(
            trace, _gain(trace, SETTLED_TURNS) < SETTLED_GAIN_OF_TURNS, state, settings, checkpoint, progress
        ):
            break
    return trace


class LateError(Exception):
    """The time is over, in the middle of a turn."""


def _descend(parameters: list[nn.Parameter], objective: Callable[[], Tensor], steps: int) -> None:
    """This many steps of L-BFGS, from nothing but where the parameters are."""
    lbfgs = torch.optim.LBFGS(parameters, max_iter=steps, history_size=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        value = objective()
        for parameter, slope in zip(parameters, torch.autograd.grad(value, parameters), strict=True):
            parameter.grad = slope
        return value

    lbfgs.step(closure)
    for parameter in parameters:
        parameter.grad = None


def _ends(
    trace: Trace,
    settled: bool,
    state: Callable[[], Saved],
    settings: FitSettings,
    checkpoint: TrainingCheckpoint,
    progress: Report,
) -> bool:
    """Whether training ends here, because it has settled or its time is over."""
    if settled:
        trace.end("converged")
        return True
    progress(trace.steps / settings.max_steps, f"loss {trace.loss:.4f}")
    if checkpoint.over(state):
        trace.end(TIME_LIMIT)
        return True
    return False


def _gain(trace: Trace, points: int) -> float:
    """What so many points of the curve have won, as a share of the loss."""
    return (trace.curve[-points][2] - trace.loss) / trace.loss if len(trace.curve) > points else math.inf


def size(tensors: Iterable[Tensor]) -> float:
    """‖θ‖², piece by piece: the squares of a large tensor at once would be another such tensor."""
    pieces = (piece for t in tensors for piece in t.detach().flatten().split(PIECE))
    return math.fsum(float(piece.square().sum()) for piece in pieces)
