"""One attack on all that a file offers: each surface by itself, within one budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from unfit.attacker.attacked_layer import check_base
from unfit.attacker.candidates import TENSORS, Candidates
from unfit.attacker.costs import check_size
from unfit.attacker.method import Method, inapplicable
from unfit.attacker.surfaces import Surface, Unread, surfaces, weights_alone
from unfit.base.budget import limited, seconds_left
from unfit.base.errors import NotApplicableError, UsageError
from unfit.base.progress import Report, quiet, split
from unfit.base.target import Target
from unfit.base.threads import threads


@threads()
def run_attack(attack: Method, target: Target, base: Target | None, progress: Report = quiet) -> Candidates:
    """Attack each surface of the target within one budget; what is found on all of them, the surest first."""
    check_attack(attack, target, base)
    there = surfaces(target, base)
    if not attack.takes_base:
        there = weights_alone(there, f"{attack.title} attacks weights alone")
    done: list[tuple[Surface, Candidates]] = []
    whole: dict[str, Candidates] = {}
    with limited(attack.limit):
        for i, (surface, report) in enumerate(
            zip(there.found, split(progress, [1] * len(there.found)), strict=True)
        ):
            with limited(seconds_left() / (len(there.found) - i)):
                done.append((surface, _attacked(attack, surface.after(whole), report, is_first=i == 0)))
            if surface.kind == "weights":
                whole[surface.layer] = done[-1][1]
    return replace(joined(done, there.unread), layer=None)


def _attacked(attack: Method, surface: Surface, progress: Report, is_first: bool) -> Candidates:
    """The candidates of one surface; none, and why, of a further one that the attack does not cover."""
    layer = surface.attacked
    check_base(layer)
    check_size(layer, attack.held(layer))
    try:
        return attack.run(layer, progress)
    except NotApplicableError as error:
        if is_first:
            raise
        return inapplicable(attack, layer, error)


def joined(done: Sequence[tuple[Surface, Candidates]], unread: Sequence[Unread] = ()) -> Candidates:
    """The candidates of all surfaces that receive samples in one shape, with each surface's name in their origin.

    Another tower of a model may receive other columns. What was found there is counted, and `layer` gives it.
    """
    (_, first), *others = done
    if not others and not unread:
        return first
    alike = [(surface, each) for surface, each in done if each.x.shape[1:] == first.x.shape[1:]]
    origins = [f"{surface.name}: {name}" for surface, each in alike for name in each.origins]
    starts = accumulate((len(each.origins) for _, each in alike), initial=0)
    moved = [each.origin + start for (_, each), start in zip(alike, starts, strict=False)]
    tensors: dict[str, Any] = {
        name: torch.cat([getattr(each, name) for _, each in alike]) for name in TENSORS if name != "origin"
    }
    told = [
        {"name": surface.name, "num_candidates": len(each), "status": each.facts["status"]}
        for surface, each in done
    ]
    left = [{"name": each.name, "why": each.why} for each in unread]
    seconds = sum(each.facts["seconds"] for _, each in done)
    finished = [time for _, each in alike for time in each.facts["finished"]]
    facts = first.facts | {"surfaces": told, "surfaces_left": left, "seconds": seconds, "finished": finished}
    found = replace(first, **tensors, origin=torch.cat(moved), origins=tuple(origins), facts=facts)
    surest = torch.sort(found.proven + found.confidence, descending=True, stable=True).indices
    return found[surest]


def check_attack(attack: Method, target: Target, base: Target | None) -> None:
    """Refuse what this attack would not read, and settings that do not fit the model."""
    if base is not None and not attack.takes_base:
        raise UsageError(f"{attack.title} does not use `base`")
    attack.check(target.architecture)
