"""Several states of one training: which belong to it, in which order, and the intervals between them.

Two states hold the same initial weights, so their difference is a sum over samples with none in it, for whichever
two, and a sample's part in it is zero on each neuron that was off for it in between. Between neighbours in time
most neurons were off, so the order matters to how much is found, and not to what is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from unfit.attacker.attacked_layer import Interval, read_layer
from unfit.attacker.span import read_span
from unfit.base.errors import UnfitError
from unfit.base.target import State, Target

OTHER_RUN = 0.9  # of a state's noise that is left when another is subtracted: 0 for one training, √2 for two


@dataclass(frozen=True, eq=False)
class Series:
    """States of one training, in order: its base first if that is known, and the target among them."""

    states: tuple[Target, ...]
    rounds: tuple[Interval, ...]  # of federated learning, each from what the client was sent
    used: tuple[State, ...]  # those that tell something
    frozen: tuple[State, ...] = ()  # those with the target's own values in the attacked layer
    foreign: tuple[State, ...] = ()  # those of another training


def read_series(target: Target, base: Target | None, states: Sequence[State]) -> Series:
    """The states of the target's training in order; a checkpoint of another training is refused."""
    frozen, used, foreign = list[State](), list[State](), list[State]()
    known = [target] if base is None else [base, target]
    for state in states:
        if any(_is_equal(state.target, each) for each in known):
            frozen.append(state)
        elif is_of_one_training(target, state.target):
            used.append(state)
            known.append(state.target)
        else:
            foreign.append(state)
    if names := [state.name for state in foreign if state.is_file]:
        raise UnfitError(
            f"{names[0]}: not a checkpoint of the same training: the first layer minus that of the target has as "
            "much noise as the layer itself, so both did not begin with the same initial weights; leave it out"
        )
    ordered = in_order([target, *(state.target for state in used if state.before is None)], base)
    rounds = tuple(Interval(state.before, state.target) for state in used if state.before is not None)
    return Series(tuple(ordered), rounds, tuple(used), tuple(frozen), tuple(foreign))


def _is_equal(a: Target, b: Target) -> bool:
    own = [name for name in a.weights if name.startswith("layer1.")]
    return all(torch.equal(a.weights[name], b.weights[name]) for name in own)


def is_of_one_training(target: Target, other: Target) -> bool:
    """Whether subtracting the other state takes the noise of the initial weights off; or its spectrum ends."""
    between = read_layer(target, other)
    if between.span.ends:
        return True
    noise = min(read_span(each).noise for each in (between.gates[0], read_layer(other).weight))
    return between.span.noise < OTHER_RUN * noise


def in_order(states: Sequence[Target], base: Target | None = None) -> list[Target]:
    """As training passed through them: by the distance from the base, or from one of the two furthest apart.

    Of these two the earlier one has less of what training added, where both differ.
    """
    every = list(states) if base is None else [base, *states]
    points = torch.stack([each.weights["layer1.weight"].flatten().double() for each in every])
    apart = torch.cdist(points, points)
    first = 0 if base is not None else int(apart.argmax()) // len(points)
    found = [every[i] for i in apart[first].argsort().tolist()]
    return found if base is not None or len(found) < 2 else _forward(found)


def _forward(states: list[Target]) -> list[Target]:
    """With the larger share of the directions that changed at the end."""
    a, b = (each.weights["layer1.weight"].flatten(1).double() for each in (states[0], states[-1]))
    span = read_span(b - a)
    right = span.right[: max(1, span.rank)]
    return states if (b @ right.T).norm() >= (a @ right.T).norm() else states[::-1]
