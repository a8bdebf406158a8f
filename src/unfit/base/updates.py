"""Federated learning: what a client sends back, as tensors of the model that it was sent.

Weights are given as the target, differences as an update. Which of the two a file holds is said, not guessed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unfit.base.errors import UnfitError, UsageError, listed
from unfit.base.formats.limits import Weights
from unfit.base.target import layer_order

LISTED = re.compile(r"arr_(\d{1,9})")  # what numpy.savez calls arrays that have no names
# Differences are as good as orthogonal to the weights, or point against them where these decay, so they are
# further from the weights than zero is. New weights are near the old ones.
NEAR = 0.5


def apply_update(model: nn.Module, update: Mapping[str, Any] | Sequence[Any]) -> nn.Module:
    """A copy of the global model with a client's differences added: what to attack, with the global model as base.

    Args:
        model: What the server sent, a `torch.nn.Module`.
        update: New weights less old ones, as arrays or tensors: a list in the order of `model.state_dict()`, or a
            mapping with its names. What a mapping leaves out has not changed.

    Example:
        >>> differences = [0.01 * value for value in global_model.state_dict().values()]
        >>> target = unfit.apply_update(global_model, differences)
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"expected a torch.nn.Module, got {type(model).__name__}")
    own = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    given = update if isinstance(update, Mapping) else {f"arr_{i}": value for i, value in enumerate(update)}
    change = {str(name): _tensor(str(name), value) for name, value in given.items()}
    updated = copy.deepcopy(model)
    updated.load_state_dict(added(own, as_named(change, "the update", own), "the update"))
    return updated


def _tensor(name: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnfitError(f"the update: {name} is not an array of numbers") from error


def is_list(found: Weights) -> bool:
    return bool(found) and all(LISTED.fullmatch(name) for name in found)


def as_named(found: Weights, path: str | Path, like: Weights | None) -> Weights:
    """A list of arrays under the names of `like`, in that order; without these, those of a plain perceptron."""
    if not is_list(found):
        return found
    if missing := [f"arr_{i}" for i in range(len(found)) if f"arr_{i}" not in found]:
        raise UnfitError(f"{path}: a list of {len(found)} arrays without {missing[0]}")
    arrays = [found[f"arr_{i}"] for i in range(len(found))]
    names = _dense_names(arrays, path) if like is None else list(like)
    if len(names) != len(arrays):
        raise UnfitError(
            f"{path}: a list of {len(arrays)} arrays, but the model has {len(names)} tensors ({listed(names)}); "
            "a list holds all of its state_dict(), in this order"
        )
    named = dict(zip(names, arrays, strict=True))
    places = {name: f"arr_{i}, for {name}," for i, name in enumerate(names)}
    _refuse(path, [] if like is None else _misshapen(named, like, places))
    return named


def in_chain(found: Weights) -> Weights | None:
    """A plain perceptron's tensors in the order of its state dict, which files may not keep; else None."""
    order = [f"{layer}.{kind}" for layer in layer_order(found) for kind in ("weight", "bias")]
    chain = {name: found[name] for name in order if name in found}
    return chain if chain and len(chain) == len(found) else None


def _dense_names(arrays: list[Tensor], path: str | Path) -> list[str]:
    """Matrices are the weights of dense layers, and a vector behind one is its bias."""
    names: list[str] = []
    for i, array in enumerate(arrays):
        is_bias = bool(names) and names[-1].endswith("weight") and array.shape == arrays[i - 1].shape[:1]
        if array.ndim != 2 and not is_bias:
            raise UnfitError(
                f"{path}: a list of arrays does not name its layers, and arr_{i}, of shape {tuple(array.shape)}, "
                "does not fit a plain perceptron; give the code that builds the model with `model`, or a `base` "
                "whose tensors have names"
            )
        num = sum(name.endswith("weight") for name in names)
        names.append(f"layer{num}.bias" if is_bias else f"layer{num + 1}.weight")
    return names


def added(base: Weights, update: Weights, path: str | Path) -> Weights:
    """The base's tensors with the differences added; the others as they are."""
    unknown = [f"{name} is not in the base" for name in update if name not in base]
    known = {name: value for name, value in update.items() if name in base}
    _refuse(path, unknown + _misshapen(known, base, {name: name for name in known}))
    _refuse_weights(base, update, path)
    return base | {name: _sum(base[name], value) for name, value in update.items()}


def _sum(value: Tensor, change: Tensor) -> Tensor:
    """In float64; rounded once, to float32 or better: a difference is smaller than what float16 keeps."""
    kind = torch.promote_types(value.dtype, torch.float32) if value.is_floating_point() else value.dtype
    return (value.double() + change.double()).to(kind)


def refuse_differences(target: Weights, base: Weights) -> None:
    """Differences are small compared with the weights that they change, and have nothing of their direction."""
    new, old = _in_a_row(target, base)
    along = abs(float(new @ old)) / max(float(new.norm() * old.norm()), 1e-300)
    if new.norm() < NEAR * old.norm() and along < NEAR:
        raise UnfitError(
            "the target looks like differences to the `base`, not like weights: its tensors are "
            f"{float(new.norm() / old.norm()):.0%} as large and point elsewhere; give them as an `update`"
        )


def _in_a_row(*sets: Weights) -> list[Tensor]:
    """All values of each set that are no whole numbers, as one vector, by the names of the first."""
    names = [name for name, value in sets[0].items() if value.is_floating_point()]
    return [
        torch.cat([torch.zeros(0).double(), *(each[name].double().flatten() for name in names)]) for each in sets
    ]


def _refuse_weights(base: Weights, update: Weights, path: str | Path) -> None:
    names = [name for name in update if base[name].is_floating_point()]
    change, old = _in_a_row({name: update[name] for name in names}, base)
    if not change.any():
        raise UnfitError(f"{path}: all differences are zero: nothing was trained")
    apart = float((change - old).norm() / old.norm())
    if apart < NEAR:
        raise UnfitError(
            f"{path}: an `update` holds differences, new weights less old ones, but these are weights themselves "
            f"(within {apart:.0%} of the base): give them as the target, not as an `update`"
        )


def _misshapen(found: Weights, like: Weights, places: dict[str, str]) -> list[str]:
    return [
        f"{places[name]} has shape {tuple(value.shape)}, the model's {tuple(like[name].shape)}"
        for name, value in found.items()
        if value.shape != like[name].shape
    ]


def _refuse(path: str | Path, problems: list[str]) -> None:
    if problems:
        raise UnfitError(f"{path}: the tensors do not fit the model: {listed(problems)}")
