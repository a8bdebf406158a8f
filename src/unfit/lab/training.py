"""What a training is asked for, and what happened on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from unfit.base.errors import UsageError
from unfit.lab.checkpoints import State

TIME_LIMIT = "time limit"  # the status of a training that can go on

Method = Literal["flow", "gd", "sgd"]
Loss = Literal["logistic", "ce", "l2", "l2.5", "huber"]


@dataclass(frozen=True)
class FitSettings:
    """How a target is trained. The defaults are H22's: 10⁶ epochs at lr 0.01 are a flow time of 10⁴.

    Args:
        method: `flow` (gradient flow, in hundreds of steps), `gd` or `sgd`.
        loss: `logistic` for one output, `ce` for several, or a regression to ±1: `l2`, `l2.5`, `huber`.
        weight_decay: λ of the penalty λ/2 · ‖θ‖².
        init: Standard deviation of the first layer's start; None: PyTorch's own.
        lr, epochs: Of `gd` and `sgd`.
        batch, momentum: Of `sgd`.
        flow_time: Where `flow` without weight decay stops: learning rate × epochs of the training it stands for.
        target_loss: Stop at this training loss instead.
        max_steps: At most so many steps of `flow`.
        seed: Everything random follows from it.

    Example:
        >>> settings = unfit.FitSettings(method="sgd", lr=0.1, epochs=200)
    """

    method: Method = "flow"
    loss: Loss = "logistic"
    weight_decay: float = 0.0
    init: float | None = 1e-4  # standard deviation of the first layer's start; None: the standard one
    lr: float = 0.01  # gd, sgd
    epochs: int = 10_000  # gd, sgd
    batch: int = 50  # sgd
    momentum: float = 0.9  # sgd
    flow_time: float = 1e4  # flow without weight decay stops here …
    target_loss: float | None = None  # … or here, if given
    max_steps: int = 20_000  # flow
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be {rule}, not {getattr(self, name)}"
            for name, rule, right in (
                ("weight_decay", "zero or more", 0 <= self.weight_decay < math.inf),
                ("init", "positive (or `standard`)", self.init is None or 0 < self.init < math.inf),
                ("lr", "positive", 0 < self.lr < math.inf),
                ("epochs", "at least 1", self.epochs >= 1),
                ("batch", "at least 1", self.batch >= 1),
                ("momentum", "in [0, 1)", 0 <= self.momentum < 1),
                ("flow_time", "positive", 0 < self.flow_time < math.inf),
                ("target_loss", "positive", self.target_loss is None or 0 < self.target_loss < math.inf),
                ("max_steps", "at least 1", self.max_steps >= 1),
                ("seed", "zero or more", self.seed >= 0),
            )
            if not right
        ]
        if problems:
            raise UsageError("; ".join(problems))


@dataclass
class Trace:
    """What happened on the way: (step, flow time, loss) and why it ended."""

    steps: int = 0
    flow_time: float = 0.0
    loss: float = math.inf
    status: str = "step limit"
    curve: list[tuple[int, float, float]] = field(default_factory=list)

    def add(self, loss: float, flow_step: float, steps: int = 1) -> None:
        self.steps += steps
        self.flow_time += flow_step
        self.loss = loss
        self.curve.append((self.steps, self.flow_time, loss))

    def end(self, status: str) -> Trace:
        self.status = status
        return self

    def state(self, numbers: dict[str, Any], **tensors: dict[str, Tensor]) -> State:
        """Where training stands: this trace, and all that the next step depends on."""
        named = {f"{part}.{name}": value for part, group in tensors.items() for name, value in group.items()}
        named["trace.curve"] = torch.tensor(self.curve, dtype=torch.float64).reshape(-1, 3)
        about = {"steps": self.steps, "flow_time": self.flow_time, "loss": self.loss}
        return State(self.steps, named, {"trace": about} | numbers)

    def go_on(self, kept: State) -> None:
        """From where that training stood."""
        about, curve = kept.numbers["trace"], kept.part("trace")["curve"].tolist()
        self.steps, self.flow_time, self.loss = about["steps"], about["flow_time"], about["loss"]
        self.curve = [(int(step), flow_time, loss) for step, flow_time, loss in curve]
