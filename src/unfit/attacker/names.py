"""The names that attacks and their settings go by. No PyTorch here: the command line lists them in its help."""

from __future__ import annotations

from typing import Final, Literal, get_args

MethodName = Literal["auto", "peel", "cone", "unmix", "kkt", "inversion", "weights", "diary"]
METHODS: Final[tuple[MethodName, ...]] = get_args(MethodName)
Solver = Literal["fast", "paper"]
Score = Literal["auto", "binary", "multiclass", "any"]
Sampler = Literal["random", "quasi", "tpe"]
