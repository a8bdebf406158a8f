"""What every attack is: a value that holds its settings, says what it needs, and knows how to run."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import Field, model_validator

from unfit.attacker.attacked_layer import AttackedLayer
from unfit.attacker.candidates import Candidates, Part, pool
from unfit.attacker.stage_cache import NOWHERE, StageCache
from unfit.base.budget import is_over, limited
from unfit.base.errors import NotApplicableError
from unfit.base.files import Strict
from unfit.base.nets import Architecture
from unfit.base.progress import Report, quiet

UNFINISHED = "not finished"  # the status of candidates that more will be added to

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
class Applicability:
    """Whether an attack applies, why, and what it would take on this machine: estimates.

    `seconds` are of one core. `bytes` are of what the attack holds at most, besides the weights.
    """

    attack: str
    applies: bool
    why: str
    seconds: float | None = None
    bytes: float | None = None


class Method(Strict, ABC):
    """One attack with its settings. Everything random in it follows from the seed."""

    method: str = ""
    seed: Annotated[int, Field(ge=0)] = 0

    title: ClassVar[str]  # what tables and messages call it
    takes_base: ClassVar[bool] = True  # whether it can attack the change since a base

    @abstractmethod
    def run(self, layer: AttackedLayer, progress: Report = quiet) -> Candidates:
        """Attack. Where the attack cannot be run on this model it raises NotApplicableError, which says why."""

    def growing(
        self, layer: AttackedLayer, progress: Report = quiet, cache: StageCache = NOWHERE
    ) -> Generator[Candidates]:
        """The candidates so far whenever more is proven, then all of them. A caller who has enough closes it."""
        yield cache.candidates(self.method, lambda: self.run(layer, progress))

    @abstractmethod
    def applicability(self, layer: AttackedLayer) -> Applicability:
        """What preflight says about it."""

    def held(self, layer: AttackedLayer) -> float:
        """Bytes that it holds at most, besides the weights."""
        return self.applicability(layer).bytes or 0.0

    @property
    def limit(self) -> float | None:
        """Seconds, of an attack that can be cut short and was given a budget."""
        found: float | None = getattr(self, "budget", None)
        return found

    def knowing(self, num_samples: tuple[int, ...]) -> Self:
        """The same attack, which may use how many samples there were: their numbers are no secret."""
        return self

    def check(self, architecture: Architecture) -> None:
        """Refuse settings that do not fit such a model, before anything is computed."""

    def varies(self, architecture: Architecture) -> Parameters:
        """The settings that a sweep samples, with their ranges; none if there is nothing to vary."""
        return {}

    def vary(self, values: Values, seed: int) -> Self:
        """The same attack with these sampled settings."""
        return self.model_validate(self.model_dump() | values | {"seed": seed})

    def describe(self, layer: AttackedLayer) -> dict[str, Any]:
        """What the candidates record about the attack that made them."""
        plain = self.model_dump(mode="json", exclude={"method"})
        named = {"method": self.method} | ({"solver": plain.pop("solver")} if "solver" in plain else {})
        knows_initial = layer.initial is not None and not layer.is_moment
        return {**named, "settings": plain, "seed": self.seed, "base": knows_initial}


class Prover(Method):
    """An attack that proves samples, with a budget; `auto` runs it until every sample is proven."""

    @abstractmethod
    def why_not(self, layer: AttackedLayer) -> str | None:
        """Why nothing can be proven; None if something may be."""

    @abstractmethod
    def prove(self, layer: AttackedLayer, progress: Report = quiet) -> tuple[list[Part], bool]:
        """What is proven, then what is not; and whether nothing is left to find."""

    def run(self, layer: AttackedLayer, progress: Report = quiet) -> Candidates:
        began = time.perf_counter()
        if why := self.why_not(layer):
            raise NotApplicableError(f"{self.title} cannot be run: {why}")
        with limited(self.limit):
            parts, all_proven = self.prove(layer, progress)
            late = is_over()
        return gather(self, layer, parts, began, "out of budget" if late and not all_proven else "finished")


def gather(
    method: Method, layer: AttackedLayer, parts: list[Part], began: float, status: str = "finished", **facts: Any
) -> Candidates:
    """The candidates of all parts, with what the attack found out on the way."""
    nothing = Part("nothing above the noise edge", torch.zeros(0, *layer.target.architecture.input_shape))
    told = layer.facts() | {"status": status, "seconds": time.perf_counter() - began} | facts
    return pool(parts or [nothing], method.describe(layer), told, layer)


def inapplicable(method: Method, layer: AttackedLayer, why: NotApplicableError) -> Candidates:
    """No candidates, of an attack that does not cover this layer."""
    return gather(method, layer, [], time.perf_counter(), f"not applicable: {why}", applies=False)
