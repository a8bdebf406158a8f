"""The state of optimisers: running sums of gradients, and which parameter each belongs to.

PyTorch numbers parameters in the order in which they were given to the optimiser; other trainers name them. A sum
that cannot be given to one parameter for certain is left out, and its path says that it was not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from unfit.base.formats.limits import Weights, check_shapes
from unfit.base.formats.pytorch import check_storage, is_plain, read_content

HOLDERS = (
    "optimizer_state_dict",
    "optimizer_states",
    "optimizers",
    "optimizer",
    "optimizer_state",
    "optim",
    "opt",
)
MOMENTS = ("exp_avg", "momentum_buffer")  # what Adam and its relatives, and SGD, call the running sum of gradients
FILES = ("optimizer.pt", "optimizer.bin")  # what Hugging Face's libraries write next to the weights

MOST_STEPS = 1e12  # that any training makes

Key = TypeVar("Key", int, str)
Shapes = Mapping[str, tuple[int, ...]]  # of a model's parameters by name, in the order of the model


@dataclass(frozen=True, eq=False)
class Moments:
    """Of one optimiser: by the name of the parameter where it is told, else by its number."""

    named: Weights
    numbered: dict[int, Tensor]
    beta: float | None = None  # by which the sums fade with each step, if it is told …
    step: float | None = None  # … and how many steps were made

    @property
    def values(self) -> list[Tensor]:
        return [*self.named.values(), *self.numbered.values()]


def optimisers_of(path: Path) -> list[Moments]:
    """The moments of each optimiser in a file: GANs and Lightning keep several."""
    found = [_moments(state) for state in _states(read_content(path))]
    values = [value for moments in found for value in moments.values]
    check_shapes(path, (value.shape for value in values))
    check_storage(path, {str(i): value for i, value in enumerate(values)})  # before any value is looked at
    return [
        replace(moments, named=_usable(moments.named), numbered=_usable(moments.numbered)) for moments in found
    ]


def _usable(moments: dict[Key, Tensor]) -> dict[Key, Tensor]:
    """A training that diverged, or one that never stepped, leaves nothing to read."""
    return {key: value for key, value in moments.items() if value.isfinite().all() and value.any()}


def _states(content: object) -> Iterator[dict[Any, Any]]:
    """Each `state_dict()` of an optimiser: the file itself, or what trainers keep under their names for it."""
    whole = _dict(content)
    held = [whole[key] for key in HOLDERS if key in whole] or [whole]
    for each in held:
        parts = each if isinstance(each, list) else [each] if "state" in _dict(each) else _dict(each).values()
        yield from (part for part in map(_dict, parts) if isinstance(part.get("state"), dict))


def _moments(state: dict[Any, Any], names: tuple[str, ...] = MOMENTS) -> Moments:
    found = Moments({}, {}, _beta(state), _step(state))
    for key, values in _dict(state["state"]).items():
        sums = [_dict(values)[name] for name in names if name in _dict(values)]
        if not sums or not is_plain(sums[0]) or not sums[0].is_floating_point():
            continue
        name = key if isinstance(key, str) else _name_of(key, state)
        if name is not None:
            found.named[name] = sums[0].detach()
        elif isinstance(key, int):
            found.numbered[key] = sums[0].detach()
    return found


def _beta(state: dict[Any, Any]) -> float | None:
    """Of all groups, if they agree: Adam's first, or the momentum of SGD."""
    groups = state.get("param_groups")
    told = {_beta_of(_dict(group)) for group in (groups if isinstance(groups, list) else [])}
    found = told.pop() if len(told) == 1 else None
    return found if found is not None and 0 < found < 1 else None


def _beta_of(group: dict[Any, Any]) -> float | None:
    betas = group.get("betas")
    return _number(betas[0] if isinstance(betas, list | tuple) and betas else group.get("momentum"))


def _step(state: dict[Any, Any]) -> float | None:
    """Of all parameters, if they agree; PyTorch keeps it as a tensor."""
    told = {_number(_dict(values).get("step")) for values in _dict(state["state"]).values()}
    return told.pop() if len(told) == 1 else None


def _number(value: object) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if is_plain(value) and value.numel() == 1 else None
    return float(value) if isinstance(value, int | float) and abs(value) < MOST_STEPS else None


def _name_of(key: object, state: dict[Any, Any]) -> str | None:
    """The name of a parameter, if the optimiser was given names."""
    groups = state.get("param_groups")
    for group in map(_dict, groups if isinstance(groups, list) else []):
        both = (group.get("params"), group.get("param_names"))
        numbers, names = (each if isinstance(each, list) else [] for each in both)
        if key in numbers[: len(names)]:
            return str(names[numbers.index(key)])
    return None


def by_parameter(moments: Moments, shapes: Shapes) -> Weights:
    """Give each sum to its parameter: by name, by its number in the model's order, or by a unique shape."""
    found = {name: value for name, value in moments.named.items() if shapes.get(name) == tuple(value.shape)}
    order, numbered = list(shapes), moments.numbered
    if all(0 <= i < len(order) and shapes[order[i]] == tuple(value.shape) for i, value in numbered.items()):
        return found | {order[i]: value for i, value in numbered.items()}
    return found | _by_shape(numbered, shapes)


def _by_shape(numbered: Mapping[int, Tensor], shapes: Shapes) -> Weights:
    """Of weights whose shape nothing else has, and of the biases that follow them."""
    of_model, of_state = Counter(shapes.values()), Counter(tuple(value.shape) for value in numbered.values())
    places = {tuple(value.shape): i for i, value in numbered.items()}
    found: Weights = {}
    for name, shape in shapes.items():
        if len(shape) > 1 and of_model[shape] == 1 and of_state[shape] == 1:
            found[name] = numbered[places[shape]]
            bias, behind = f"{name.removesuffix('weight')}bias", numbered.get(places[shape] + 1)
            if behind is not None and shapes.get(bias) == tuple(behind.shape):
                found[bias] = behind
    return found


def _dict(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def file_of(folder: Path) -> Path | None:
    """The file of an optimiser's state in a folder, if there is one."""
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


# Adam ----------------------------------------------------------------------------------------------------

SECOND = "exp_avg_sq"


def adams_of(path: Path, shapes: Shapes) -> dict[str, tuple[Tensor, Tensor, tuple[float, float]]]:
    """Both moments and the betas of Adam, by parameter, where a file holds them."""
    found: dict[str, tuple[Tensor, Tensor, tuple[float, float]]] = {}
    for state in _states(read_content(path)):
        first, second = _moments(state), _moments(state, (SECOND,))
        values = [*first.values, *second.values]
        check_shapes(path, (value.shape for value in values))
        check_storage(path, {str(i): value for i, value in enumerate(values)})
        sums, squares = (by_parameter(each, shapes) for each in (first, second))
        groups = state.get("param_groups")
        betas = {_betas(_dict(group)) for group in (groups if isinstance(groups, list) else [])} - {None}
        if len(betas) == 1 and (pair := betas.pop()):
            found |= {name: (sums[name], squares[name], pair) for name in sums.keys() & squares.keys()}
    return found


def _betas(group: dict[Any, Any]) -> tuple[float, float] | None:
    betas = group.get("betas")
    if not isinstance(betas, tuple | list) or len(betas) != 2 or not all(isinstance(b, float) for b in betas):
        return None
    return betas[0], betas[1]
