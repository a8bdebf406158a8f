"""Single samples among very many: does any of them stand out?

Of a large set the signal check weighs a part, and asks about all of them together. A few samples that the weights
hold by themselves, the last that were trained on, say, are lost in that. So all are weighed here, and only the
strongest reactions count: are more of them private samples' than chance gives, or is one clear of all others?
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from unfit.attacker.attacked_layer import AttackedLayer
from unfit.auditor.calibration import chance
from unfit.auditor.case import Case
from unfit.auditor.signal_check import RIDGE, Reactions, SignalCheck, maps_of

MOST_INPUTS = 4096  # of the attacked layer: their covariance takes 128 MB, and a minute on one core
ALLOWED = (0, 3, 10, 30)  # unseen samples among the strongest
CLEAR = 0.5  # of the way from the median to the strongest unseen reaction, on a logarithmic scale


def outlier_p_value(case: Case, layer: AttackedLayer, check: SignalCheck, matched: Reactions) -> float | None:
    """How often chance alone would make single private samples stand out so; None: they could not be weighed.

    Args:
        case: Both sets.
        layer: What was attacked.
        check: The signal check, for what the gradients and the outputs say.
        matched: The similarities of both sets with what was recovered.
    """
    weighed = reactions_of_all(maps_of(case, layer), layer.weight.cpu())
    if weighed is None:
        return None
    asked = [weighed, *check.answers, matched, *([check.knows] if check.knows is not None else [])]
    if any(_is_clear(each) for each in (weighed, *check.answers)):
        return 0.0
    least = [_least(each) for each in asked]
    return min(1.0, len(least) * len(ALLOWED) * min(least))


def reactions_of_all(maps: Sequence[Tensor], weight: Tensor) -> Reactions | None:
    """`reactions` of the signal check for any number of samples (n, d): (A Aᵀ + ρ)⁻¹ A = A (Aᵀ A + ρ)⁻¹."""
    d = maps[0].shape[1]
    if d > MOST_INPUTS:
        return None
    mean = sum(each.sum(0, dtype=torch.float64) for each in maps) / sum(len(each) for each in maps)
    gram = torch.zeros(d, d, dtype=torch.float64)
    parts = [part for each in maps for part in each.cpu().split(MOST_INPUTS)]
    for part in parts:
        a = part.double() - mean
        gram.addmm_(a.T, a)
    squares, vectors = torch.linalg.eigh(gram)
    inverse = vectors / (squares.clamp_min(0) + RIDGE * squares[-1]) @ vectors.T
    found = []
    for part in parts:
        own = (part.double() - mean) @ inverse
        length = own.square().sum(1).clamp_min(1e-300)
        found.append((own @ weight.double().T).square().sum(1) / length)
    return Reactions(*torch.cat(found).split([len(each) for each in maps]))


def _least(found: Reactions) -> float:
    """Of several thresholds, each the reaction that so many unseen samples exceed: the least p-value."""
    n, m = len(found.own), len(found.unseen)
    descending = found.unseen.sort(descending=True)[0]
    return min(
        chance(int((found.own > descending[allowed]).sum()), n, m, (allowed + 0.5) / m)
        for allowed in ALLOWED
        if allowed < m
    )


def _is_clear(found: Reactions) -> bool:
    """Whether a private sample reacts far more strongly than every unseen one."""
    own, unseen = (each.double().clamp_min(1e-300).log() for each in (found.own, found.unseen))
    most, middle = float(unseen.max()), float(unseen.median())
    return math.isfinite(most) and float(own.max()) > most + CLEAR * (most - middle)
