"""What happened on the way of a training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unfit.base.store import Saved

TIME_LIMIT = "time limit"  # the status of a training that can go on
OF_TRACE = ("steps", "flow_time", "loss")  # besides the curve


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

    def state(self, numbers: dict[str, Any], **tensors: dict[str, Tensor]) -> Saved:
        """Where training stands: this trace, and all that the next step depends on."""
        named = {f"{part}.{name}": value for part, group in tensors.items() for name, value in group.items()}
        named["trace.curve"] = torch.tensor(self.curve, dtype=torch.float64).reshape(-1, 3)
        return Saved(named, {name: getattr(self, name) for name in OF_TRACE} | numbers)

    def go_on(self, kept: Saved) -> None:
        """From where that training stood."""
        self.steps, self.flow_time, self.loss = (kept.facts[name] for name in OF_TRACE)
        curve = kept.part("trace")["curve"].tolist()
        self.curve = [(int(step), flow_time, loss) for step, flow_time, loss in curve]
