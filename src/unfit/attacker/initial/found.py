"""What a search for the initial weights comes to, in memory and as a record."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from unfit.attacker.attacked_layer import AttackedLayer, read_layer
from unfit.base.files import Strict
from unfit.base.target import Target, Weights

SAME = 1e-6  # relative distance from the initial weights at which a network is untrained


@dataclass(frozen=True, eq=False)
class Drawn:
    """How initial weights were drawn, and how sure that is."""

    seed: int | None  # None: its state was solved for, and no seed of 32 bits gives it right before the network
    skip: int  # numbers that were drawn before the network
    generator: str
    rule: str
    correlation: float  # of the first layer with its initial weights
    log10_p: float  # that any other seed would fit so well, all that were tried counted


DRAWN = tuple(field.name for field in fields(Drawn))


class InitialRecord(Strict):
    """The search for the weights that training started from; the last fields are null unless they were found."""

    found: bool
    why: str
    num_tried: int  # seeds
    complete: bool
    seconds: float
    seed: int | None = None  # also None where the generator's state was solved for
    skip: int | None = None  # numbers drawn before the network
    generator: str | None = None
    rule: str | None = None
    correlation: float | None = None
    log10_p: float | None = None
    decay: float | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """As JSON that candidates keep: without the fields that only found initial weights have."""
        return self.model_dump(mode="json", exclude_unset=True)


@dataclass(frozen=True, eq=False)
class InitialWeights(Drawn):
    """The weights that training started from, and what they were drawn by. `target` is a base for any attack."""

    target: Target
    trained: Target

    def __repr__(self) -> str:
        drawn = "no seed" if self.seed is None else f"seed {self.seed}"
        return f"InitialWeights({drawn} of {self.generator}, {self.rule}, p < 1e{math.ceil(self.log10_p)})"

    @cached_property
    def change(self) -> AttackedLayer:
        """What training added to it."""
        return read_layer(self.trained, self.target)

    @property
    def decay(self) -> float:
        """What weight decay left of the initial weights: W = decay · W₀ + a sum over samples."""
        return self.change.decay

    @property
    def is_trained(self) -> bool:
        """Whether training changed anything: there is nothing to attack in initial weights."""
        pairs = [(self.trained.weights[name], value) for name, value in self.target.weights.items()]
        return any(float((a - b).norm()) > SAME * float(b.norm()) for a, b in pairs)


@dataclass(frozen=True, eq=False)
class Search:
    """What was tried and what came of it."""

    initial: InitialWeights | None
    num_tried: int  # seeds at the first place
    complete: bool  # all seeds that were asked for, at all places
    seconds: float
    why: str  # in words

    @property
    def record(self) -> InitialRecord:
        """What candidates and audits keep of it."""
        initial = self.initial
        drawn = (
            {} if initial is None else {name: getattr(initial, name) for name in DRAWN} | {"decay": initial.decay}
        )
        return InitialRecord(
            found=initial is not None,
            why=self.why,
            num_tried=self.num_tried,
            complete=self.complete,
            seconds=round(self.seconds, 3),
            **drawn,
        )

    @classmethod
    def of(cls, record: InitialRecord, weights: Weights, trained: Target) -> Search:
        """As it was, of its record and the weights that were found; without initial weights there are none."""
        drawn = {name: getattr(record, name) for name in DRAWN}
        initial = (
            InitialWeights(**drawn, target=replace(trained, weights=weights), trained=trained)
            if record.found
            else None
        )
        return cls(initial, record.num_tried, record.complete, record.seconds, record.why)
