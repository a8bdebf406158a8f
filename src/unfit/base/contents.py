"""What stands in a file or a live model apart from code: an attack reads one layer, a reader may read all of it.

Trainers keep more than weights: the last batch, a replay buffer, a bank of neighbours, a second model. All of
that is published with the file, so an audit has to look at it. Nothing here knows what a sample is.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unfit.base.errors import UnfitError
from unfit.base.formats.inert import Inert, Storage, plain
from unfit.base.formats.limits import Weights
from unfit.base.formats.optimisers import HOLDERS as OPTIMISERS
from unfit.base.formats.optimisers import MOMENTS
from unfit.base.formats.skops import dense_of

MAX_DEPTH = 32  # of containers inside each other: what people write has far fewer
MAX_ITEMS = 200_000  # tensors, strings and lists of numbers: a large model has thousands
MAX_NUMBERS = 20_000_000  # looked at in lists: Python takes a second for ten million
MAX_OVERLAP = 4  # times that tensors may show the same memory: tied weights do so once or twice
MAX_DENSE = 2**26  # values of a sparse tensor, written out
CUT = ", the storage it is cut from"
MAX_LABEL = 60  # characters of one key in a path: a key can be a whole text
MANY_TEXTS = 16  # strings in a list, or keys of a dict of numbers, from which on they are one item
NUMBERS = "fiub"  # kinds of NumPy's types: floats, whole numbers, bools
HELD = ("_parameters", "_buffers", "_modules")  # where a module keeps what is registered
AVERAGES = {"teacher", "ema", "swa", "best", "shadow", "momentum", "average", "avg", "old", "copy", "target"}
_INTERNAL = frozenset(vars(nn.Module()))  # hooks and switches that every module has
_STATE = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum", "acc_delta")


@dataclass(frozen=True, eq=False)
class Item:
    """One tensor, list of numbers, string or list of strings, and where it is, such as `replay['x']`."""

    path: str
    value: Tensor | str | tuple[str, ...]
    owner: str = ""  # the class of the object that it belongs to, where the file names one
    name: str = ""  # its path inside that object

    @property
    def num_values(self) -> int:
        """Numbers in it; of a string, its characters; of several, how many they are."""
        return self.value.numel() if isinstance(self.value, Tensor) else len(self.value)

    @property
    def texts(self) -> tuple[str, ...]:
        """Its strings."""
        return (
            () if isinstance(self.value, Tensor) else (self.value,) if isinstance(self.value, str) else self.value
        )


@dataclass(frozen=True)
class Place:
    """Where a value is: from the file's beginning, and from the object that it belongs to."""

    path: str = ""
    owner: str = ""
    name: str = ""

    def at(self, key: object) -> Place:
        """An entry of a container that is here."""
        step = _bracket(key)
        return replace(self, path=self.path + step if self.path else _label(key), name=self.name + step)

    def of(self, owner: str, name: object) -> Place:
        """An attribute of the object that is here."""
        label = _label(name)
        return Place(f"{self.path}.{label}".lstrip("."), owner, label)


# Objects ------------------------------------------------------------------------------------------------------


def contents_of(value: object) -> list[Item]:
    """Walk nested containers. Each is entered once, so one that holds itself ends, and so does one of many copies.

    A storage of which the tensors show only a part is added as a whole: a slice is saved with all it was cut from.
    """
    items: dict[object, Item] = {}
    for item in _walked(value):
        items.setdefault(_memory(item), item)
        if len(items) > MAX_ITEMS:
            raise UnfitError(f"it holds more than {MAX_ITEMS:,} things")
    return [*items.values(), *_hidden(items.values())]


def _memory(item: Item) -> object:
    """The same for two views of the same values: tied weights are saved under both of their names."""
    value = item.value
    if not isinstance(value, Tensor) or not value.numel():
        return item.path, isinstance(value, Tensor)
    return (value.data_ptr(), value.device, value.dtype, value.shape, value.stride())


@dataclass
class _Budget:
    """Numbers in lists that may still be looked at: lists in lists can stand for any number of them."""

    left: int = field(default=MAX_NUMBERS)

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise UnfitError(f"its lists hold more than {MAX_NUMBERS:,} numbers")


def _walked(value: object) -> Iterator[Item]:
    seen: set[int] = set()
    budget = _Budget()
    stack: list[tuple[Place, object, int]] = [(Place(), value, 0)]
    while stack:
        place, each, depth = stack.pop()
        if isinstance(each, str):
            yield Item(place.path, each, place.owner, place.name)
        if isinstance(each, str | int | float | complex | type(None)) or id(each) in seen:
            continue
        seen.add(id(each))
        each = _opened(each)
        tensor = _tensor(each)
        texts = _texts(each, place)
        if tensor is not None:
            yield Item(place.path, tensor, place.owner, place.name)
            continue
        if texts:
            yield Item(place.path, texts, place.owner, place.name)
        if numbers := _flat_numbers(each, budget):
            yield Item(place.path, torch.frombuffer(numbers, dtype=torch.float64), place.owner, place.name)
        elif not texts or isinstance(each, Mapping):
            inside = _children(each, place)
            if inside and depth >= MAX_DEPTH:
                raise UnfitError(f"it holds containers more than {MAX_DEPTH} deep in each other")
            stack += [(where, child, depth + 1) for where, child in reversed(inside)]


def _opened(value: object) -> object:
    """What an inert object stands for: an array, the values of a storage, a sparse matrix written out."""
    if isinstance(value, Inert):
        value = plain(value)
    if isinstance(value, Storage):
        return value.values
    if isinstance(value, Inert) and value.kind.startswith("scipy.sparse"):
        dense = dense_of(value, MAX_DENSE)
        return value if dense is None else dense
    return value


def _texts(value: object, place: Place) -> tuple[str, ...]:
    """The strings of an array, of a long list, or of the keys of a dict that counts or numbers them."""
    found: Iterable[object]
    if isinstance(value, np.ndarray) and value.dtype.kind in "US":
        found, least = value.ravel().tolist(), 1
    elif isinstance(value, Mapping):
        least = 1 if place.owner else MANY_TEXTS
        numbers = len(value) >= least and all(isinstance(each, int | float) for each in value.values())
        found = value if numbers or place.owner else ()
    elif isinstance(value, list | tuple | set | frozenset):
        found, least = value, MANY_TEXTS
    else:
        return ()
    texts = [each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in found]
    kept = tuple(each for each in texts if isinstance(each, str))
    return kept if len(kept) >= least and (isinstance(value, Mapping) or len(kept) == len(texts)) else ()


def _children(value: object, place: Place) -> list[tuple[Place, object]]:
    """What lies in a container, with its place."""
    if isinstance(value, nn.Module):
        held = {key: each for name in HELD for key, each in vars(value).get(name, {}).items()}
        held |= {key: each for key, each in vars(value).items() if key not in _INTERNAL and not _is_code(each)}
        return [(place.of(place.owner, key), each) for key, each in held.items()]
    if isinstance(value, Inert):
        return _attributes(value, place)
    if isinstance(value, Mapping):
        return [(place.at(key), each) for key, each in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(_named(place, i, each), child) for i, each in enumerate(value) for child in _step(each)]
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [(place.at(i), each) for i, each in enumerate(value.flat)]
    if isinstance(value, np.ndarray) and value.dtype.names:
        return [(place.at(name), np.ascontiguousarray(value[name])) for name in value.dtype.names]
    return []


def _attributes(value: Inert, place: Place) -> list[tuple[Place, object]]:
    """Of an object: its attributes, and what else it was built from. A module has its parts as attributes."""
    held = value.attributes
    if "_modules" in held and "_parameters" in held:
        parts = [plain(held.pop(name, {})) for name in HELD]
        for part in parts:
            held |= {str(key): each for key, each in part.items()} if isinstance(part, dict) else {}
        held = {key: each for key, each in held.items() if key not in _INTERNAL}
    found = [(place.of(value.kind, key), each) for key, each in held.items()]
    more = [] if held or value.state is None else [value.state]
    for i, each in enumerate([*value.args, *value.entries] if isinstance(value.args, tuple) else value.entries):
        found.append((replace(place, owner=value.kind, name="").at(i), each))
    for each in more:
        found += [(replace(place, owner=value.kind, name="").at("state"), each)]
    return found


def _is_step(value: object) -> bool:
    """A named part of a pipeline: ("svc", the object, …)."""
    return (
        isinstance(value, tuple | list)
        and len(value) > 1
        and isinstance(value[0], str)
        and isinstance(value[1], Inert)
    )


def _named(place: Place, i: int, value: object) -> Place:
    return place.at(value[0] if _is_step(value) else i)  # type: ignore[index]


def _step(value: object) -> Sequence[object]:
    return value[1:] if _is_step(value) else (value,)  # type: ignore[index]


def _is_code(value: object) -> bool:
    """A function or class. A module can be called too, but it has contents."""
    return callable(value) and not isinstance(value, nn.Module | Mapping | Tensor)


def _flat_numbers(value: object, budget: _Budget) -> array[float] | None:
    """All numbers of a list, of lists of lists, or of a record such as {"age": 41, "height": 1.8}, in order.

    None if anything else is in it. The shape of lists is not kept: the size of a sample tells it.
    """
    if not isinstance(value, list | tuple | Mapping) or not value:
        return None
    found = array("d")
    nested = not isinstance(value, Mapping)
    stack: list[Iterator[object]] = [iter(value.values() if isinstance(value, Mapping) else value)]
    while stack:
        for each in stack[-1]:
            if isinstance(each, int | float):
                budget.spend()
                found.append(_float(each))
            elif nested and isinstance(each, list | tuple) and each and len(stack) < MAX_DEPTH:
                budget.spend()
                stack.append(iter(each))
                break
            else:
                return None
        else:
            stack.pop()
    return found


def _float(value: float) -> float:
    """Whole numbers have no largest one in Python."""
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _tensor(value: object) -> Tensor | None:
    """A tensor, an array or bytes as a dense tensor with no more values than its storage has."""
    if isinstance(value, bytes | bytearray | memoryview):
        return torch.frombuffer(bytearray(value), dtype=torch.uint8) if len(value) else None
    if isinstance(value, np.ndarray):
        return _from_numpy(value) if value.dtype.kind in NUMBERS else None
    if not isinstance(value, Tensor) or value.is_meta or is_lazy(value):
        return None
    value = value.detach()
    if value.is_quantized:
        return value.int_repr()
    if value.layout != torch.strided:
        if value.numel() > MAX_DENSE:
            raise UnfitError(f"it holds a sparse tensor of {value.numel():,} values")
        return value.to_dense()
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return _storage(value)  # stride 0: a few values stand for any number
    return value


def _from_numpy(value: np.ndarray[Any, Any]) -> Tensor:
    """Without a copy where PyTorch can share the memory."""
    value = value[tuple(slice(0, 1) if step == 0 else slice(None) for step in value.strides)]
    kind = value.dtype.newbyteorder("=") if value.dtype.itemsize <= 8 else np.dtype(np.float64)
    shared = value.flags.writeable and value.dtype == kind and min(value.strides, default=0) >= 0
    return torch.from_numpy(value if shared else np.array(value, kind, order="C"))


def _storage(value: Tensor) -> Tensor:
    """All values that lie in the memory of a tensor, in a row."""
    num = value.untyped_storage().nbytes() // value.element_size()
    return value.as_strided((num,), (1,), 0)


def _hidden(items: Iterable[Item]) -> list[Item]:
    """Storages that hold more than the tensors in them show. Many views of one would take for ever to look at."""
    shown: Counter[int] = Counter()
    first: dict[int, tuple[str, Tensor]] = {}
    for item in items:
        if isinstance(item.value, Tensor) and item.value.device.type == "cpu":
            place = item.value.untyped_storage().data_ptr()
            shown[place] += item.value.numel() * item.value.element_size()
            first.setdefault(place, (item.path, item.value))
    sizes = {place: value.untyped_storage().nbytes() for place, (_, value) in first.items()}
    if any(shown[place] > MAX_OVERLAP * size for place, size in sizes.items()):
        raise UnfitError("it holds tensors that overlap many times")
    return [
        Item(f"{path}{CUT}", _storage(value))
        for place, (path, value) in first.items()
        if sizes[place] - shown[place] >= value.element_size()
    ]


def _label(key: object) -> str:
    text = str(key)
    return text if len(text) <= MAX_LABEL else text[: MAX_LABEL - 1] + "…"


def _bracket(key: object) -> str:
    return f"[{_label(key)!r}]" if isinstance(key, str) else f"[{_label(key)}]"


# Other models in the file ---------------------------------------------------------------------------------------


class Holder(Protocol):
    """What is asked of a `Target` here, which itself holds items."""

    @property
    def weights(self) -> Weights: ...
    @property
    def moments(self) -> Weights: ...
    @property
    def contents(self) -> tuple[Item, ...]: ...


def second_states(target: Holder) -> list[str]:
    """Where the file holds another copy of the model's weights with other values, such as `teacher` or `best`.

    Such a model was trained on the samples too, and no attack has looked at it. A copy has a tensor of each shape
    that the attacked part has. In one flat state the layers of one model look like that as well; there the name
    has to say so, or the part must be a model of several layers.
    """
    attacked = target.weights["layer1.weight"]
    shapes = Counter(tuple(value.shape) for value in target.weights.values())
    groups = _groups(item for item in target.contents if not is_optimisers(item.path))
    fitting = {
        name: weights
        for name, items in groups.items()
        if (weights := [v for v in items if v.shape == attacked.shape])
        and shapes <= Counter(tuple(value.shape) for value in items)
    }
    own = {name for name, weights in fitting.items() if any(_same(each, attacked) for each in weights)}
    if not own:
        return []  # the weights were computed from what is in the file, so nothing tells which state is theirs
    others = [name for name in fitting if name and name not in own]
    several = len(target.weights) > 2
    named = [name for name in others if _is_file_level(name) or several or is_average(name)]
    return [name for name in named if not any(is_under(name, other) for other in named if other != name)]


def unread_moments(target: Holder) -> list[str]:
    """Where the file holds an optimiser's running sums of the attacked weight's shape that were not read."""
    shape, read = target.weights["layer1.weight"].shape, target.moments.values()
    found = [
        item.path
        for item in target.contents
        if isinstance(item.value, Tensor)
        and item.value.shape == shape
        and _last(item.path) in MOMENTS
        and bool(item.value.any())
        and not any(item.value.shape == each.shape and torch.equal(item.value, each) for each in read)
    ]
    return list(dict.fromkeys(found))


def _groups(items: Iterable[Item]) -> dict[str, list[Tensor]]:
    """Tensors by the container they lie in, and by each dotted prefix of their names, such as `teacher.`."""
    found: dict[str, list[Tensor]] = {}
    for item in items:
        if not isinstance(item.value, Tensor) or item.path.endswith(CUT):
            continue
        container, name = _container(item.path)
        parts = name.split(".")
        prefixes = [f"{container}{'.' if container else ''}{'.'.join(parts[:i])}" for i in range(1, len(parts))]
        for group in (container, *prefixes):
            found.setdefault(group, []).append(item.value)
    return found


def _container(path: str) -> tuple[str, str]:
    """`teacher['fc.weight']` lies in `teacher` as `fc.weight`; `fc.weight` lies in the file itself, ``."""
    if path.endswith("']") and "['" in path:
        before, _, name = path[:-2].rpartition("['")
        return before, name
    if path.endswith("]"):
        before, _, name = path[:-1].rpartition("[")
        return before, name
    return "", path


def _last(path: str) -> str:
    return _container(path)[1]


def _is_file_level(group: str) -> bool:
    """A dict or list of its own in the file, not a prefix of names in one state."""
    return bool(group) and "." not in group.replace(".safetensors: ", "").replace(".bin: ", "")


def is_average(group: str) -> bool:
    """Whether a name says that this is another state of a model: an average, a teacher, the best so far."""
    return not AVERAGES.isdisjoint(re.split(r"[^a-z]+", group.lower()))


def is_under(path: str, other: str) -> bool:
    """Whether this path lies in the other."""
    return path.startswith((f"{other}.", f"{other}["))


def root_of(path: str) -> str:
    """`optimizer` of `optimizer['state'][0]`."""
    return path.partition("[")[0]


def is_optimisers(path: str) -> bool:
    """Whether this belongs to the state of an optimiser."""
    first = root_of(path).rpartition(": ")[2].lower()
    return first in OPTIMISERS or first.startswith("optim") or _last(path) in _STATE


def _same(value: Tensor, weight: Tensor) -> bool:
    """Equal to the float32 values that were attacked, in whatever type it was saved."""
    return bool(torch.equal(value.to(weight), weight))
