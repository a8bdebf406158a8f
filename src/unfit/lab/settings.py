"""What a training is asked for, with its defaults. No PyTorch here: the command line shows them in its help."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from unfit.base.errors import UsageError

Training = Literal["flow", "gd", "sgd"]
Loss = Literal["logistic", "ce", "l2", "l2.5", "huber"]


@dataclass(frozen=True)
class FitSettings:
    """How a target is trained. The defaults are H22's: 10⁶ epochs at lr 0.01 are a flow time of 10⁴.

    Args:
        method: `flow` (gradient flow, in hundreds of steps), `gd` or `sgd`.
        loss: `logistic` for one output, `ce` for several, or a regression to ±1: `l2`, `l2.5`, `huber`.
        weight_decay: λ of the penalty λ/2 · ‖θ‖².
        init: Standard deviation of the first layer's initial weights; None: PyTorch's own.
        lr, epochs: Of `gd` and `sgd`.
        batch, momentum: Of `sgd`.
        flow_time: Where `flow` without weight decay stops: learning rate × epochs of the training it stands for.
        target_loss: Stop at this training loss instead.
        max_steps: At most this many steps of `flow`.
        seed: Everything random follows from it.

    Example:
        >>> settings = unfit.FitSettings(method="sgd", lr=0.1, epochs=200)
    """

    method: Training = "flow"
    loss: Loss = "logistic"
    weight_decay: float = 0.0
    init: float | None = 1e-4  # standard deviation of the first layer's initial weights; None: the standard one
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
