"""Unverified guesses at training samples, and where each came from. The attacker's side: no data here."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unfit.errors import UnfitError, UsageError

TENSORS = ("x", "origin", "label", "multiplier", "proven")


@dataclass(frozen=True, eq=False)
class Candidates:
    """m guesses of the inputs as the net sees them (mean subtracted).

    `attack` says what made them (method, settings, seed); `facts` is what was read off the weights on the way.
    """

    x: Tensor  # (m, *shape)
    origin: Tensor  # (m,): the run each came from, a position in `origins`
    origins: tuple[str, ...]
    label: Tensor  # (m,): the class the attack takes each for, −1 where it does not say
    multiplier: Tensor  # (m,): λ, how much of the weights each explains, 0 where it was not estimated
    proven: Tensor  # (m,), bool: has a certificate that needs no data
    attack: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, eq=False)
class Part:
    """The guesses of one run."""

    name: str
    x: Tensor
    label: Tensor | None = None
    multiplier: Tensor | None = None
    proven: Tensor | None = None


def pool(parts: list[Part], attack: dict[str, Any], facts: dict[str, Any]) -> Candidates:
    """The guesses of several runs as one list."""
    x = torch.cat([part.x for part in parts])
    sizes = torch.tensor([len(part.x) for part in parts])
    origin = torch.repeat_interleave(torch.arange(len(parts)), sizes)
    label = torch.cat([torch.full((len(p.x),), -1) if p.label is None else p.label for p in parts])
    multiplier = torch.cat([torch.zeros(len(p.x)) if p.multiplier is None else p.multiplier for p in parts])
    proven = torch.cat([torch.zeros(len(p.x), dtype=torch.bool) if p.proven is None else p.proven for p in parts])
    return Candidates(x, origin, tuple(part.name for part in parts), label, multiplier, proven, attack, facts)


def share_out(asked: int | None, default: int, classes: int) -> int:
    """How many candidates: as asked for, or about the default; equally many of each class."""
    if asked is None:
        return max(2, math.ceil(default / classes)) * classes
    if asked < 1 or asked % classes:
        raise UsageError(
            f"{asked} candidates cannot be shared out to {classes} classes; give a positive multiple of {classes}"
        )
    return asked


def describe(method: str, settings: Any = None, base: bool = False, **more: str) -> dict[str, Any]:
    """What made the candidates; `settings` is a dataclass with a seed, or None where there is nothing to set."""
    plain = json.loads(json.dumps(asdict(settings))) if settings else {}  # tuples become lists, as when read back
    return {"method": method, **more, "settings": plain, "seed": plain.get("seed", 0), "base": base}


def save_candidates(candidates: Candidates, path: Path) -> None:
    """One safetensors file: the tensors, and the rest as JSON in its header."""
    about = {"origins": candidates.origins, "attack": candidates.attack, "facts": candidates.facts}
    tensors = {name: getattr(candidates, name).contiguous() for name in TENSORS}
    save_file(tensors, path, metadata={"unfit": json.dumps(about, allow_nan=False)})


def load_candidates(path: Path) -> Candidates:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["unfit"])
            x, origin, label, multiplier, proven = (file.get_tensor(name) for name in TENSORS)
            origins = tuple(about["origins"])
        if {len(origin), len(label), len(multiplier), len(proven)} != {len(x)} or not set(origin.tolist()) <= set(
            range(len(origins))
        ):
            raise ValueError("its candidates and their origins do not fit together")
        if not (x.isfinite().all() and multiplier.isfinite().all()):
            raise ValueError("some candidates are not finite")
        return Candidates(x, origin, origins, label, multiplier, proven, about["attack"], about["facts"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise UnfitError(f"{path}: not a file of candidates ({error}); make one with `unfit attack`") from error
