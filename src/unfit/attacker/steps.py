"""When an id was last used, by Adam's running sums: ids of one batch share their step.

After a row was used once, s steps ago, with the gradient g, Adam's sums are m = (1 − β₁) β₁ˢ g and
v = (1 − β₂) β₂ˢ g². So m²/v = (1 − β₁)² / (1 − β₂) · (β₁²/β₂)ˢ in all columns, whatever g was, and s is a whole
number. Rows that were used several times have other ratios in each column. A row with v = 0 was never used, with
or without a base.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

OFF = 0.005  # of a step: how far the typical column may be from a whole number of them; rounding makes 10⁻⁵
FEW_COLUMNS = 4  # in fewer, a row that was used several times looks like one that was used once


def used_rows(second: Tensor) -> Tensor:
    """(v,): rows that any step used, by Adam's second moment (v, d). Decay that Adam scales counts as use."""
    return second.any(1)


def steps_ago(first: Tensor, second: Tensor, betas: tuple[float, float]) -> dict[int, int]:
    """By row: how many steps before the last one it was used, of rows that were used in one step alone."""
    if first.shape[1] < FEW_COLUMNS or not 0 < betas[0] ** 2 < betas[1] < 1:
        return {}
    ids = ((second != 0).all(1) & (first != 0).all(1)).nonzero()[:, 0]
    ratio = first[ids].double().square() / second[ids].double()
    now = (1 - betas[0]) ** 2 / (1 - betas[1])
    ago = torch.log(ratio / now) / math.log(betas[0] ** 2 / betas[1])
    whole = ago.median(1).values.round()
    sure = ((ago - whole[:, None]).abs().median(1).values < OFF) & (whole >= 0)
    return {int(i): int(s) for i, s in zip(ids[sure].tolist(), whole[sure].tolist(), strict=True)}


def grouped(ago: dict[int, int]) -> dict[int, list[int]]:
    """The ids of each step, the last step first."""
    groups: dict[int, list[int]] = {}
    for i, s in sorted(ago.items(), key=lambda item: (item[1], item[0])):
        groups.setdefault(s, []).append(i)
    return groups
