"""Unverified guesses at training samples, and where each came from. No training data here."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unfit.attacker.attacked_layer import AttackedLayer
from unfit.attacker.initial.found import InitialRecord
from unfit.base.errors import UnfitError, explained
from unfit.base.files import Strict, check_regular, new_file, write_tensors
from unfit.base.images import embedded, stretch, tiles
from unfit.base.notebook import AMBER, card, image, lead

PartKind = Literal["kkt", "unmixed", "agreed", "other"]
"""What made the guesses of a run: the KKT objective, unmixing, or what several runs of unmixing agree on."""
TENSORS = ("x", "origin", "label", "multiplier", "proven", "confidence")
SHOWN, SHOWN_ACROSS = 45, 15  # images in a notebook


MOST_VALUES = 2**31  # of all candidates: 8 GB
KINDS = {"x": "f", "origin": "i", "label": "if", "multiplier": "f", "proven": "bf", "confidence": "f"}


class Facts(BaseModel):
    """What every attack says was read off the weights, and how it went; some add facts of their own."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, strict=True)
    target: str  # sha256
    spectrum: list[float]
    noise_edge: Annotated[float, Field(ge=0)]
    rank: Annotated[int, Field(ge=0, lt=2**31)]
    estimated_num_samples: Annotated[int, Field(ge=0, lt=2**31)] | None
    status: str
    seconds: Annotated[float, Field(ge=0)]
    finished: list[float]  # seconds after which each run was done
    applies: bool = True  # whether the attack could be run on this model
    initial: InitialRecord | None = None  # the search for the initial weights; None: there was none


class Described(BaseModel):
    """What a file of candidates says made them."""

    model_config = ConfigDict(extra="allow", strict=True)
    method: str
    settings: dict[str, Any]
    seed: Annotated[int, Field(ge=0)]
    base: bool


class About(Strict):
    """The JSON in the header of a file of candidates."""

    origins: list[str]
    attack: dict[str, Any]
    facts: dict[str, Any]

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        Described.model_validate(self.attack)
        Facts.model_validate(self.facts)
        return self


@dataclass(frozen=True, eq=False)
class Candidates:
    """m guesses of the inputs as the model sees them (mean subtracted).

    `attack` says what made them (method, settings, seed); `facts` is what was read off the weights on the way.

    Example:
        >>> best = candidates[:10]  # always Candidates: by a slice, a position, positions or a mask
        >>> proven = candidates[candidates.proven]
        >>> images = best.images()
    """

    x: Tensor  # (m, *shape)
    origin: Tensor  # (m,): the run each came from, a position in `origins`
    origins: tuple[str, ...]
    label: Tensor  # (m,): the class the attack takes each for, −1 where it does not say
    multiplier: Tensor  # (m,): λ, how much of the weights each explains, 0 where it was not estimated
    proven: Tensor  # (m,), bool: has a certificate that needs no data
    confidence: Tensor  # (m,): probability of being a training sample, 0 where it was not estimated
    attack: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    layer: AttackedLayer | None = None  # what the attack worked on, until all surfaces are attacked

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, which: int | slice | Tensor | Sequence[int] | Sequence[bool]) -> Candidates:
        """Some of them, in this order; the facts stay those of the whole attack."""
        rows = torch.atleast_1d(torch.arange(len(self))[which])
        return replace(self, **{name: getattr(self, name)[rows] for name in TENSORS})

    def __repr__(self) -> str:
        """No values: they may be someone's."""
        shape = "×".join(map(str, self.x.shape[1:]))
        sure = f", {int(self.proven.sum())} with a proof" if self.proven.any() else ""
        return f"Candidates({len(self)} of shape {shape}, by {self.attack.get('method', 'unknown')}{sure})"

    def save(self, path: str | Path) -> None:
        """Write a file for `load_candidates`, and for `candidates` of an audit; one that is there is replaced."""
        with new_file(Path(path), force=True) as file:
            save_candidates(self, file)

    def images(self) -> Tensor:
        """The candidates as images: (m, c, h, w), each stretched to [0, 1]."""
        if self.x.ndim != 4:
            raise UnfitError(f"candidates of shape {tuple(self.x.shape[1:])} are not images: take them from `x`")
        return stretch(self.x)

    def _repr_html_(self) -> str:
        """What a notebook shows: what there is, and the first images."""
        sure = f", {int(self.proven.sum())} of them with a proof" if self.proven.any() else ""
        method, words = str(self.attack.get("method", "unknown")), f"{len(self)} candidates{sure}"
        top = lead(method, AMBER, "unverified: an audit says which are training samples", words)
        if self.x.ndim != 4 or not len(self):
            return card(top)
        rows = tiles(self.images()[:SHOWN], min(len(self), SHOWN_ACROSS), zoom=2)
        return card(top, image(embedded(Image.fromarray(np.concatenate(rows))), "the first candidates"))


@dataclass(frozen=True, eq=False)
class Part:
    """The guesses of one run. Here they return to the CPU, wherever they were computed."""

    name: str
    x: Tensor
    label: Tensor | None = None
    multiplier: Tensor | None = None
    proven: Tensor | None = None
    confidence: Tensor | None = None
    loss: float | None = None  # what the run itself made small; runs of one kind can be compared by it
    finished: float = field(default_factory=time.perf_counter)
    kind: PartKind = "other"

    def __post_init__(self) -> None:
        for name in ("x", "label", "multiplier", "proven", "confidence"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, value.cpu())

    def of(self, rows: Tensor) -> Part:
        """Some of them."""
        rows = rows.cpu()
        label, multiplier, proven, confidence = (
            None if value is None else value[rows]
            for value in (self.label, self.multiplier, self.proven, self.confidence)
        )
        x = self.x[rows]
        return replace(self, x=x, label=label, multiplier=multiplier, proven=proven, confidence=confidence)


def pool(
    parts: list[Part], attack: dict[str, Any], facts: dict[str, Any], layer: AttackedLayer | None = None
) -> Candidates:
    """Join the guesses of several runs. `facts` gets the seconds after which each run finished."""
    began = time.perf_counter() - facts["seconds"]
    facts = facts | {"finished": [round(max(0.0, part.finished - began), 3) for part in parts]}
    x = torch.cat([part.x for part in parts])
    sizes = torch.tensor([len(part.x) for part in parts])
    origin = torch.repeat_interleave(torch.arange(len(parts)), sizes)
    label, multiplier, proven, confidence = (
        torch.cat([_given(getattr(part, name), len(part.x), unknown) for part in parts])
        for name, unknown in (("label", -1), ("multiplier", 0.0), ("proven", False), ("confidence", 0.0))
    )
    names = tuple(part.name for part in parts)
    return Candidates(x, origin, names, label, multiplier, proven, confidence, attack, facts, layer)


def _given(values: Tensor | None, num: int, unknown: float) -> Tensor:
    return torch.full((num,), unknown) if values is None else values


def save_candidates(candidates: Candidates, path: Path) -> None:
    """One safetensors file: the tensors, and the rest as JSON in its header."""
    about = {"origins": candidates.origins, "attack": candidates.attack, "facts": candidates.facts}
    tensors = {name: getattr(candidates, name) for name in TENSORS}
    write_tensors(path, tensors, {"unfit": json.dumps(about, allow_nan=False)})


def load_candidates(path: str | Path) -> Candidates:
    """Read what `Candidates.save` or `unfit attack` wrote.

    Args:
        path: The file.

    Example:
        >>> candidates = unfit.load_candidates("found.safetensors")
    """
    path = Path(path)
    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            about = About.model_validate_json(file.metadata()["unfit"])
            tensors = {name: file.get_tensor(name) for name in TENSORS}
        _check_tensors(tensors, len(about.origins))
    except ValidationError as error:
        raise UnfitError(_no_candidates(path, explained(error))) from error
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise UnfitError(_no_candidates(path, str(error))) from error
    return Candidates(origins=tuple(about.origins), **tensors, attack=about.attack, facts=about.facts)


def _no_candidates(path: Path, why: str) -> str:
    return f"{path}: not a file of candidates ({why}); make one with `unfit attack`"


def _check_tensors(tensors: dict[str, Tensor], num_origins: int) -> None:
    for name, tensor in tensors.items():
        if _kind(tensor) not in KINDS[name]:
            raise ValueError(f"{name} has type {tensor.dtype}")
        if not tensor.ndim or (tensor.ndim > 1) != (name == "x"):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}")
        if not tensor.isfinite().all():
            raise ValueError("some candidates are not finite")
    if len({len(tensor) for tensor in tensors.values()}) > 1 or tensors["x"].numel() > MOST_VALUES:
        raise ValueError("its candidates and their origins do not fit together")
    if len(tensors["x"]) and not 0 <= int(tensors["origin"].min()) <= int(tensors["origin"].max()) < num_origins:
        raise ValueError("its candidates and their origins do not fit together")


def _kind(tensor: Tensor) -> str:
    return "b" if tensor.dtype == torch.bool else "f" if tensor.is_floating_point() else "i"
