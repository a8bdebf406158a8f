"""A bag of embeddings is a dense layer on counts of words, so `cone` gives whole texts back.

A bag adds up, or averages, the rows of the words of a text. So the change of its table is Σ_i c_i g_iᵀ: c_i are
the counts of text i, or its shares, and g_i is what training gave to it. Rows that did not move have no part in
that, so only the others are looked at. Counts have no order: a text comes back as its words and their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from unfit.attacker.attacked_layer import AttackedLayer
from unfit.attacker.candidates import Candidates
from unfit.attacker.embeddings import Pair
from unfit.attacker.method import Method
from unfit.attacker.moved import moved_rows
from unfit.attacker.span import Span, read_span
from unfit.base.errors import NotApplicableError
from unfit.base.nets import Architecture
from unfit.base.target import Target

STEPS = 10_000  # of training that each rounded the weights, at most: errors add up as their square root


@dataclass(frozen=True, eq=False)
class BagLayer(AttackedLayer):
    """The rows of a bag that moved, as the columns of a dense layer."""

    @cached_property
    def span(self) -> Span:
        """PyTorch's own initial rows have variance 1, so that rounding is large beside what texts add to them."""
        weight = self.gates[0].double()
        entry = float(weight.square().mean().sqrt()) * torch.finfo(torch.float32).eps / math.sqrt(12)
        return read_span(self.weight, entry * math.sqrt(STEPS) * sum(math.sqrt(side) for side in weight.shape))

    @property
    def relu(self) -> bool:
        """No ReLU follows the sums themselves, so nothing tells which samples a column stands for."""
        return False


def attack_bag(attack: Method, pairs: Sequence[Pair]) -> Candidates:
    """Counts of words, or shares of a text, as far as this attack finds them: (m, v)."""
    bags = [pair for pair in pairs if pair.table.pooling in ("mean", "sum")]
    if len(bags) != 1:
        raise NotApplicableError(
            f"{attack.title} needs one bag of embeddings that are added up, found {len(bags)}"
        )
    layer, ids = bag_layer(bags[0])
    found = attack.run(layer)
    x = torch.zeros(len(found), len(bags[0].table.weight))
    x[:, ids] = found.x
    return replace(
        found, x=x, label=torch.full((len(found),), -1), facts=found.facts | {"table": bags[0].table.name}
    )


def bag_layer(pair: Pair) -> tuple[BagLayer, torch.Tensor]:
    """The layer, and the ids of its columns."""
    after, before = pair.rows
    moved = moved_rows(after, before)
    if not moved.can_tell:
        raise NotApplicableError(f"{pair.table.name}: {moved.why}")
    ids = moved.rows.nonzero()[:, 0]
    if not len(ids):
        raise NotApplicableError(f"{pair.table.name}: no row moved: it was frozen, or training did not use it")
    architecture = Architecture((len(ids),), (), after.shape[1], (False,))
    target, base = (Target(architecture, {"layer1.weight": rows[ids].T.contiguous()}) for rows in (after, before))
    weight, initial = target.weights["layer1.weight"], base.weights["layer1.weight"]
    change, limits = weight - moved.factor * initial, (0.0, torch.inf)
    return (
        BagLayer(
            target,
            base,
            change,
            None,
            (len(ids),),
            None,
            [],
            (weight, None),
            limits,
            initial=[(initial, None)],
            decay=moved.factor,
        ),
        ids,
    )
