"""Other states of one model: averages, the best so far, a teacher, an optimiser's own copy, other checkpoints.

In a file they are found by their shapes: as many tensors as the model has, in its order or under its names. So
keys need not be known: timm's `state_dict_ema`, Lightning's `average_model_state` and `current_model_state`,
Diffusers' `shadow_params`, the `module.` of PyTorch's `AveragedModel`, fairseq's `ema`, Lookahead's `slow_buffer`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.base.contents import CUT, Item, is_average, is_optimisers
from unfit.base.errors import UnfitError
from unfit.base.formats.limits import Weights
from unfit.base.formats.optimisers import MOMENTS
from unfit.base.formats.tensors import without_wrappers
from unfit.base.modules import base_from
from unfit.base.target import SECOND_MOMENTS, State, Target, fit_weights, in_layers, tensor_shapes

IN_FOLDER = re.compile(r"([^\[\]']+\.(?:safetensors|bin|pt|pth|ckpt)): (.*)", re.DOTALL)  # FILE: what lies in it
ENTRY = re.compile(r"(.*)\[(?:'([^']*)'|(\d{1,9}))\]", re.DOTALL)  # `teacher['fc.weight']` or `shadow_params[3]`
COUNTER = "n_averaged"  # beside the weights in the state of PyTorch's `AveragedModel`
A_COPY = 0.5  # cosine with the weights, above which what an optimiser holds is a copy of them, and no gradient


@dataclass(frozen=True, eq=False)
class _Group:
    """Tensors that lie together, by their names in there, in the order of the file."""

    path: str
    tensors: Weights = field(default_factory=dict)


def states_in(target: Target) -> tuple[State, ...]:
    """Other states of the model in its own file, each once; also those with the same values."""
    weight = target.weights["layer1.weight"]
    found = [State(group.path, state) for group in _groups(target.contents) if (state := _state(group, target))]
    equal = [torch.equal(each.target.weights["layer1.weight"], weight) for each in found]
    if True not in equal:
        return ()  # the weights were computed from what is in the file, so nothing tells which state is theirs
    own = found.pop(equal.index(True))
    return tuple(_apart(found, own))


def _apart(states: Sequence[State], own: State) -> Iterator[State]:
    """A container and the one name in it under which all its tensors lie are one state."""
    seen = [own.name]
    for each in states:
        if not any(is_nested(each.name, name) for name in seen):
            seen.append(each.name)
            yield each


def is_nested(path: str, other: str) -> bool:
    """Whether one of these is the other, or lies in it."""
    short, long = sorted((path, other), key=len)
    return short == "" or long == short or long.startswith((f"{short}.", f"{short}["))


def _groups(items: Iterable[Item]) -> list[_Group]:
    """The tensors of each container, of each dotted prefix of their names, and of each slot of an optimiser."""
    found: dict[str, _Group] = {}
    for item in items:
        if isinstance(item.value, Tensor) and item.value.is_floating_point() and not item.path.endswith(CUT):
            for path, name in _places(item.path):
                found.setdefault(path, _Group(path)).tensors[name] = item.value
    return list(found.values())


def _places(path: str) -> Iterator[tuple[str, str]]:
    """Where this tensor may belong to a state, and its name there."""
    if is_optimisers(path):
        yield from _slot(path)
        return
    container, name = _split(path)
    yield container, name
    parts = name.split(".")
    for i in range(1, len(parts)):
        yield f"{container}{'.' if container else ''}{'.'.join(parts[:i])}", ".".join(parts[i:])


def _slot(path: str) -> Iterator[tuple[str, str]]:
    """`optimizer['state'][3]['slow_buffer']`: the values of one kind that an optimiser keeps of each parameter."""
    of_parameter, kind = _split(path)
    container, number = _split(of_parameter)
    if container and kind not in (*MOMENTS, *SECOND_MOMENTS):
        yield f"{container}[…]['{kind}']", number


def _split(path: str) -> tuple[str, str]:
    """The container and the name in it; a file of a folder is a container too."""
    if found := ENTRY.fullmatch(path):
        return found[1], found[2] if found[2] is not None else found[3]
    if found := IN_FOLDER.fullmatch(path):
        return found[1], found[2]
    return "", path


def _state(group: _Group, target: Target) -> Target | None:
    """The model with these tensors, if they are all that it has and of the same shapes; else None."""
    try:
        state = _plain(group, target) if target.whole is None else _around(group, target)
    except UnfitError:
        return None  # such as values that are NaN
    return None if state is not None and "[…]" in group.path and not _is_copy(state, target) else state


def _plain(group: _Group, target: Target) -> Target | None:
    wanted = tensor_shapes(target.architecture)
    named = in_layers(without_wrappers(group.tensors))
    if (weights := _fitting(named, group.tensors, wanted)) is None:
        return None
    return Target(target.architecture, fit_weights(weights, target.architecture, group.path), target.input_range)


def _around(group: _Group, target: Target) -> Target | None:
    """Of a model that was split. What is not trained, such as counters, is taken to be the same."""
    own = without_wrappers(target.split.tensors)
    of_floats = {name: tuple(value.shape) for name, value in own.items() if value.is_floating_point()}
    trained = dict(without_wrappers(dict(target.split.module.named_parameters())))
    of_parameters = {name: shape for name, shape in of_floats.items() if name in trained}
    for wanted in (of_floats, of_parameters):
        weights = _fitting(without_wrappers(group.tensors), group.tensors, wanted)
        if weights is not None:
            return base_from(own | weights, target, group.path)
    return None


def _fitting(named: Weights, in_order: Weights, wanted: dict[str, tuple[int, ...]]) -> Weights | None:
    """By name or, where names are unknown, in the order of the model."""
    if {name: tuple(value.shape) for name, value in named.items()} == wanted:
        return named
    if [tuple(value.shape) for value in in_order.values()] == list(wanted.values()):
        return dict(zip(wanted, in_order.values(), strict=True))
    return None


def _is_copy(state: Target, target: Target) -> bool:
    a, b = (each.weights["layer1.weight"].flatten() for each in (state, target))
    return bool(F.cosine_similarity(a, b, dim=0) > A_COPY)


# Flat files -----------------------------------------------------------------------------------------------------


def without_averages(found: Weights) -> Weights:
    """Of a flat state that holds a model twice, as `student.` and `teacher.`, the one that is no average."""
    found = {name: value for name, value in found.items() if name.rpartition(".")[2] != COUNTER}
    while prefix := next(_averages(found), None):
        found = {name: value for name, value in found.items() if not name.startswith(prefix)}
    return without_wrappers(found)


def _averages(found: Weights) -> Iterator[str]:
    """Prefixes that are called an average, with as many tensors of the same shapes as all others together."""
    parts = [name.split(".") for name in found]
    prefixes = dict.fromkeys(".".join(each[: i + 1]) + "." for each in parts for i in range(len(each) - 1))
    for prefix in filter(is_average, prefixes):
        inside = [value.shape for name, value in found.items() if name.startswith(prefix)]
        if inside == [value.shape for name, value in found.items() if not name.startswith(prefix)]:
            yield prefix
