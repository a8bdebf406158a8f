"""Training with weight decay until nothing moves any more.

The end is a stationary point, however it is reached. Gradient descent would need 1 / (lr · weight_decay) steps,
many thousands, to forget its start; Nesterov's momentum needs their square root.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from unfit.base.progress import Report
from unfit.lab.checkpoints import Keeper, State
from unfit.lab.trainee import InMaps, InSpan, move
from unfit.lab.training import TIME_LIMIT, FitSettings, Trace

FIRST_LR = 0.1  # where the search for a good one begins
LR_GROWTH, LR_AFTER_RISE, LR_AFTER_OVERFLOW = 1.01, 0.9, 0.5  # times the learning rate after each step
PIECE = 1 << 20  # values whose squares stay in the cache
NESTEROV = 3  # momentum k / (k + 3) after k steps without a restart
SETTLED_STEPS, SETTLED_GAIN = 100, 1e-4  # training ends when that many steps gain less than this share of the loss
DENSE_STEPS, KERNEL_STEPS = 20, 2  # a turn: one step of the kernels takes as long as ten to twenty of the rest
SETTLED_TURNS = 10


class Accelerated:
    """Nesterov's momentum on loss + (weight_decay / 2) ‖θ‖². Whenever that rises, it goes back and restarts.

    The decay's own gradient, λθ, is taken by hand, and nothing as large as the weights is made anew at each step
    but the gradient of the loss: behind a convolution that saves a quarter of the time.
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

    def rotate(self, over: Tensor) -> None:
        """The first parameter has other coordinates now: so has where it was."""
        self.old[0] = self.old[0] @ over
        self._here[0] = torch.empty_like(self.old[0])

    @property
    def numbers(self) -> dict[str, Any]:
        return {"lr": self.lr, "age": self.age, "last": self.last}

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {str(i): value for i, value in enumerate(self.old)}

    def go_on(self, numbers: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.lr, self.age, self.last = (numbers[name] for name in ("lr", "age", "last"))
        torch._foreach_copy_(self.old, [tensors[str(i)] for i in range(len(self.old))])


def settle(trainee: InSpan, y: Tensor, settings: FitSettings, keeper: Keeper, progress: Report) -> Trace:
    """All weights together. What lies outside the span has a known end: e^(−weight_decay · flow_time)."""
    trainee.rest.data *= math.exp(-settings.weight_decay * settings.flow_time)
    trainee.rest.requires_grad_(False)
    trace, descent = Trace(), Accelerated(trainee.parameters(), settings.weight_decay)
    if kept := keeper.kept:
        trace.go_on(kept)
        trainee.load_state_dict(kept.part("net"))
        descent.go_on(kept.numbers, kept.part("old"))
    outside = settings.weight_decay / 2 * trainee.rest.item() ** 2

    def state() -> State:
        return trace.state(descent.numbers, net=trainee.state_dict(), old=descent.tensors)

    while trace.steps < settings.max_steps:
        lr = descent.lr
        if not descent.step(lambda: trainee.loss(y, settings), outside):
            trace.steps += 1
            continue
        trace.add(descent.last, lr)
        if _ends(trace, SETTLED_STEPS, state, settings, keeper, progress):
            break
    return trace


def settle_in_turns(trainee: InMaps, y: Tensor, settings: FitSettings, keeper: Keeper, progress: Report) -> Trace:
    """The dense layers behind a convolution, then its kernels, then the dense layers again.

    While the kernels rest, the dense layers are trained in the span of the maps, fifty times as fast. Nothing is
    left of what the dense layer had outside it, as after an endless training.
    """
    trace = Trace()
    if kept := keeper.kept:
        trace.go_on(kept)
        trainee.load_state_dict(kept.part("net"))
        trainee.basis, trainee.inputs = trainee.span()
    dense, kernels = (Accelerated(part, settings.weight_decay) for part in (trainee.dense, trainee.kernels))
    if kept:
        dense.go_on(kept.numbers["dense"], kept.part("dense"))
        kernels.go_on(kept.numbers["kernels"], kept.part("kernels"))

    def state() -> State:
        numbers = {"dense": dense.numbers, "kernels": kernels.numbers}
        return trace.state(numbers, net=trainee.state_dict(), dense=dense.tensors, kernels=kernels.tensors)

    while trace.steps < settings.max_steps:
        gone = 0.0
        rest = kernels.penalty
        for _ in range(DENSE_STEPS):
            gone += dense.lr * dense.step(lambda: trainee.loss_of_dense(y, settings), rest)
        rest = dense.penalty
        for _ in range(KERNEL_STEPS):
            kernels.step(lambda: trainee.loss(y, settings), rest)
        dense.rotate(trainee.follow())
        value = trainee.loss_of_dense(y, settings).item() + dense.penalty + kernels.penalty
        trace.add(value, gone, DENSE_STEPS + KERNEL_STEPS)
        if _ends(trace, SETTLED_TURNS, state, settings, keeper, progress):
            break
    return trace


def _ends(
    trace: Trace,
    points: int,
    state: Callable[[], State],
    settings: FitSettings,
    keeper: Keeper,
    progress: Report,
) -> bool:
    """Whether training ends here, because so many points of its curve stand still or its time is over."""
    if _settled(trace, points):
        trace.end("converged")
        return True
    progress(trace.steps / settings.max_steps, f"loss {trace.loss:.4f}")
    if keeper.over(state):
        trace.end(TIME_LIMIT)
        return True
    return False


def _settled(trace: Trace, points: int) -> bool:
    """Whether the last points of the curve have won next to nothing."""
    if len(trace.curve) <= points:
        return False
    return trace.curve[-points][2] - trace.loss < SETTLED_GAIN * trace.loss


def size(tensors: Iterable[Tensor]) -> float:
    """‖θ‖², piece by piece: the squares of a large tensor at once would be another such tensor."""
    pieces = (piece for t in tensors for piece in t.detach().flatten().split(PIECE))
    return math.fsum(float(piece.square().sum()) for piece in pieces)
