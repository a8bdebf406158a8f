"""What every attack is: a value that holds its settings, says what it needs, and knows how to run."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import Field, model_validator

from unfit.attacker.candidates import Candidates, Part, pool
from unfit.attacker.mixtures import Mixtures
from unfit.base.budget import is_over, limited
from unfit.base.errors import NotApplicableError
from unfit.base.files import Strict
from unfit.base.nets import Architecture
from unfit.base.progress import Report, quiet

Value = bool | int | float | str | None
Values = dict[str, Any]
"""Sampled settings, by name."""


class Parameter(Strict):
    """What a sweep samples a setting from: a range, uniformly or by its logarithm, or choices."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[Value, ...] | None = None

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        is_range = self.low is not None and self.high is not None and self.low < self.high
        if is_range == (self.choices is not None) or (self.log and not (self.low or 0) > 0):
            raise ValueError("needs `choices`, or `low` < `high`, above 0 if `log`")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def at(self, point: float) -> Any:
        """The value at a point of [0, 1]."""
        if self.choices is not None:
            return self.choices[int(point * len(self.choices))]
        low, high = self.bounds
        value = low * (high / low) ** point if self.log else low + (high - low) * point
        return min(max(value, low), high)  # rounding must not lead out of the range


Parameters = dict[str, Parameter]


@dataclass(frozen=True)
class Outlook:
    """Whether an attack applies, why, and how long it would run on this machine (an estimate)."""

    attack: str
    applies: bool
    why: str
    seconds: float | None = None


class Method(Strict, ABC):
    """One attack with its settings. Everything random in it follows from the seed."""

    method: str = ""
    seed: Annotated[int, Field(ge=0)] = 0

    title: ClassVar[str]  # what tables and messages call it
    takes_base: ClassVar[bool] = True  # whether it can attack the change since a base

    @abstractmethod
    def run(self, mixtures: Mixtures, progress: Report = quiet) -> Candidates:
        """Attack. Where the attack cannot be run on this net it raises NotApplicableError, which says why."""

    @abstractmethod
    def outlook(self, mixtures: Mixtures) -> Outlook:
        """What preflight says about it."""

    @property
    def limit(self) -> float | None:
        """Seconds, of an attack that can be cut short and was given a budget."""
        found: float | None = getattr(self, "budget", None)
        return found

    def check(self, architecture: Architecture) -> None:
        """Refuse settings that do not fit such a net, before anything is computed."""

    def varies(self, architecture: Architecture) -> Parameters:
        """The settings that a sweep samples, with their ranges; none if there is nothing to vary."""
        return {}

    def vary(self, values: Values, seed: int) -> Self:
        """The same attack with these sampled settings."""
        return self.model_validate(self.model_dump() | values | {"seed": seed})

    def describe(self, mixtures: Mixtures) -> dict[str, Any]:
        """What the candidates record about the attack that made them."""
        plain = self.model_dump(mode="json", exclude={"method"})
        named = {"method": self.method} | ({"solver": plain.pop("solver")} if "solver" in plain else {})
        knows_start = mixtures.start is not None and not mixtures.is_moment
        return {**named, "settings": plain, "seed": self.seed, "base": knows_start}


class Prover(Method):
    """An attack that proves samples, with a budget; `auto` runs it until every sample is proven."""

    @abstractmethod
    def obstacle(self, mixtures: Mixtures) -> str | None:
        """Why nothing can be proven; None if something may be."""

    @abstractmethod
    def prove(self, mixtures: Mixtures, progress: Report = quiet) -> tuple[list[Part], bool]:
        """What is proven, then what is not; and whether nothing is left to find."""

    def run(self, mixtures: Mixtures, progress: Report = quiet) -> Candidates:
        began = time.perf_counter()
        if why := self.obstacle(mixtures):
            raise NotApplicableError(f"{self.title} cannot be run: {why}")
        with limited(self.limit):
            parts, all_proven = self.prove(mixtures, progress)
            late = is_over()
        return gather(self, mixtures, parts, began, "out of budget" if late and not all_proven else "finished")


def gather(
    method: Method, mixtures: Mixtures, parts: list[Part], began: float, status: str = "finished", **facts: Any
) -> Candidates:
    """The candidates of all parts, with what the attack found out on the way."""
    nothing = Part("nothing above the noise edge", torch.zeros(0, *mixtures.target.architecture.input_shape))
    told = mixtures.facts() | {"status": status, "seconds": time.perf_counter() - began} | facts
    return pool(parts or [nothing], method.describe(mixtures), told)
