"""Unverified guesses at training samples, and where each came from. The attacker's side: no data here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unfit.errors import UnfitError


@dataclass(frozen=True, eq=False)
class Candidates:
    """m guesses of the inputs as the net sees them (mean subtracted).

    `attack` says what made them (method, settings, seed); `facts` is what was read off the weights on the way.
    """

    x: Tensor  # (m, *shape)
    origin: Tensor  # (m,): the run each came from, a position in `origins`
    origins: tuple[str, ...]
    attack: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.x)


def pool(parts: list[tuple[str, Tensor]], attack: dict[str, Any], facts: dict[str, Any]) -> Candidates:
    """The guesses of several runs as one list; `parts` pairs a run's name with its guesses."""
    x = torch.cat([part for _, part in parts])
    sizes = torch.tensor([len(part) for _, part in parts])
    origin = torch.repeat_interleave(torch.arange(len(parts)), sizes)
    return Candidates(x, origin, tuple(name for name, _ in parts), attack, facts)


def save_candidates(candidates: Candidates, path: Path) -> None:
    """One safetensors file: the tensors, and the rest as JSON in its header."""
    about = {"origins": candidates.origins, "attack": candidates.attack, "facts": candidates.facts}
    tensors = {"x": candidates.x.contiguous(), "origin": candidates.origin}
    save_file(tensors, path, metadata={"unfit": json.dumps(about, allow_nan=False)})


def load_candidates(path: Path) -> Candidates:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["unfit"])
            x, origin, origins = file.get_tensor("x"), file.get_tensor("origin"), tuple(about["origins"])
        if len(x) != len(origin) or not set(origin.tolist()) <= set(range(len(origins))):
            raise ValueError("its candidates and their origins do not fit together")
        if not x.isfinite().all():
            raise ValueError("some candidates are not finite")
        return Candidates(x, origin, origins, about["attack"], about["facts"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise UnfitError(f"{path}: not a file of candidates ({error}); make one with `unfit attack`") from error
