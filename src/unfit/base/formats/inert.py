"""What a file says of an object, without the object: the name of its class, its attributes, arrays, containers.

Nothing here is ever imported or called on behalf of a file. The few functions that files name to rebuild arrays
and containers (NumPy's, PyTorch's, `collections`) are known by name and done here by hand, with every size
checked against the bytes that are there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

MAX_ITEMSIZE = 2**16  # bytes of one value: a long string, or a record of many fields
MAX_DIMENSIONS = 32
_DTYPE = re.compile(r"[|<>=]?(?:[biufcSUVmM?O])\d{0,5}(?:\[\w{1,4}\])?")
NEW = ("__newobj__", "newObj", "__pyx_unpickle")  # what makes an object of the class that is its first argument
_CONTAINERS = {"set", "frozenset", "list", "tuple", "deque"}
_STORAGES: dict[str, torch.dtype] = {
    **{"DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16},
    **{"BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32},
    **{"ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8},
    **{"BoolStorage": torch.bool, "UntypedStorage": torch.uint8},
    **{"ComplexFloatStorage": torch.complex64, "ComplexDoubleStorage": torch.complex128},
    **{"QInt8Storage": torch.int8, "QUInt8Storage": torch.uint8, "QInt32Storage": torch.int32},
}


class InertError(ValueError):
    """The file contradicts itself: a size that is not there, a container that is none."""


@dataclass(frozen=True)
class Name:
    """A class or function that the file names, such as `sklearn.svm._classes.SVC`."""

    text: str

    @property
    def short(self) -> str:
        return self.text.rpartition(".")[2]


@dataclass(eq=False)
class Inert:
    """What an object was made of, by the file. Of an array or a tensor, `value` holds it."""

    kind: str
    args: Any = ()
    state: Any = None
    entries: list[Any] = field(default_factory=list)  # of a subclass of dict or list
    value: Any = None

    @property
    def attributes(self) -> dict[str, Any]:
        """Those of its `__dict__` and slots, where the state is these."""
        parts = self.state if isinstance(self.state, tuple) and len(self.state) == 2 else (self.state,)
        return {str(key): each for part in parts if isinstance(part, dict) for key, each in part.items()}

    @property
    def short(self) -> str:
        return self.kind.rpartition(".")[2]

    def __getattr__(self, name: str) -> Any:
        """An attribute that the file gives it: readers of estimators take objects and these alike."""
        if name.startswith("__") or name in ("state", "kind"):
            raise AttributeError(name)
        found = self.attributes
        if name not in found:
            raise AttributeError(name)
        value = plain(found[name])
        return [plain(each) for each in value] if isinstance(value, list) else value

    @property
    def saved_class(self) -> str:
        return self.short


def plain(value: Any) -> Any:
    """The array that an object stands for, or the value itself."""
    return value.value if isinstance(value, Inert) and value.value is not None else value


# Calls that are known -----------------------------------------------------------------------------------------


def called(name: str, args: Any) -> Any:
    """What such a call gives: arrays and containers where they are known, else an object of that name."""
    short = name.rpartition(".")[2]
    known = CALLS.get(f"{name.partition('.')[0]}.{short}")
    args = args if isinstance(args, tuple) else (args,)
    if short in NEW and args and isinstance(args[0], Name):
        return Inert(args[0].text, args[1:])
    if known is None:
        return Inert(name, args)
    try:
        return known(name, args)
    except (IndexError, TypeError, KeyError) as error:
        raise InertError(f"{name} with arguments it does not take: {error}") from error


def built(target: Any, state: Any) -> None:
    """The state of an object; with it an array is complete."""
    if not isinstance(target, Inert):
        if isinstance(target, dict) and isinstance(state, dict) and (rest := _without_versions(state)):
            target.setdefault("__dict__", rest)
        return
    if target.kind == "numpy.ndarray":
        target.value = _of_state(state)
    elif isinstance(target.value, Tensor):
        target.entries.append(state)  # what hangs on a tensor is kept, and its values too
        return
    target.state = state if target.kind != "numpy.ndarray" else None


def _without_versions(state: dict[Any, Any]) -> dict[Any, Any]:
    """A state dict of PyTorch's has the version of each module as its `_metadata`."""
    told = state.get("_metadata")
    plain_versions = isinstance(told, dict) and all(
        isinstance(each, dict) and set(each) <= {"version"} and all(isinstance(v, int) for v in each.values())
        for each in told.values()
    )
    return {key: each for key, each in state.items() if key != "_metadata" or not plain_versions}


def _container(name: str, args: tuple[Any, ...]) -> Any:
    content = args[0] if args else []
    return list(content) if isinstance(content, list | tuple) else [content]


def _mapping(name: str, args: tuple[Any, ...]) -> dict[Any, Any]:
    content = args[0] if args else None
    if isinstance(content, dict):
        return dict(content)
    pairs = content if isinstance(content, list) else []
    return {as_key(pair[0]): pair[1] for pair in pairs if isinstance(pair, list | tuple) and len(pair) == 2}


def as_key(key: Any) -> Any:
    """A key of a dict. Hashing tuples in tuples could take any depth of calls."""
    if isinstance(key, str | int | float | complex | bytes | type(None) | Name | Inert):
        return key
    if isinstance(key, tuple) and all(isinstance(each, str | int | float | type(None)) for each in key):
        return key
    if isinstance(key, tuple):
        return Inert("tuple", key)
    raise InertError(f"a {type(key).__name__} as the key of a dict")


def _encoded(name: str, args: tuple[Any, ...]) -> bytes:
    return str(args[0]).encode("latin-1", "replace")


def _bytes(name: str, args: tuple[Any, ...]) -> bytes:
    content = args[0] if args else b""
    return as_bytes(content)


def as_bytes(content: Any) -> bytes:
    """Bytes, as Python 2 wrote them too."""
    if isinstance(content, bytes | memoryview | bytearray):
        return bytes(content) if not isinstance(content, bytes) else content
    if isinstance(content, str):
        return content.encode("latin-1", "replace")
    return b""


def _reconstructed(name: str, args: tuple[Any, ...]) -> Inert:
    """What `object.__reduce_ex__` of old protocols names: class, base, and what the base is made of."""
    kind = args[0].text if isinstance(args[0], Name) else "object"
    found = Inert(kind)
    if len(args) > 2 and args[2] is not None:
        found.entries.append(args[2])
    return found


# NumPy --------------------------------------------------------------------------------------------------------


def _empty_array(name: str, args: tuple[Any, ...]) -> Inert:
    return Inert("numpy.ndarray")


def dtype_of(node: Any) -> np.dtype[Any] | None:
    """A type of NumPy's, as pickles describe it. None where it is of no kind that holds numbers or texts."""
    if isinstance(node, str):
        return np.dtype(node) if _DTYPE.fullmatch(node) else None
    if isinstance(node, Name):
        return dtype_of(np.dtype(node.short.rstrip("_")).str if node.short.rstrip("_") in _SCALARS else "")
    if not isinstance(node, Inert) or node.short != "dtype" or not isinstance(node.args, tuple) or not node.args:
        return None
    state = node.state if isinstance(node.state, tuple) else ()
    if len(state) >= 7 and state[3] and isinstance(state[4], dict):
        return _record(state)
    if len(state) >= 3 and state[2] is not None:
        return None  # values that are arrays themselves
    found = dtype_of(node.args[0]) if isinstance(node.args[0], str | Name) else None
    if found is not None and len(state) >= 2 and state[1] in ("<", ">"):
        found = found.newbyteorder(state[1])
    return found


_SCALARS = {
    *("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bool", "complex64", "complex128", "object"),
}


def _record(state: tuple[Any, ...]) -> np.dtype[Any] | None:
    """Fields side by side, as the nodes of trees are."""
    names, fields, size = state[3], state[4], state[5]
    if not isinstance(names, tuple) or len(names) > 1000 or not isinstance(size, int):
        return None
    entries = [fields.get(name) for name in names]
    if not all(isinstance(each, tuple) and len(each) >= 2 and isinstance(each[1], int) for each in entries):
        return None
    kinds = [dtype_of(each[0]) if _is_flat(each[0]) else None for each in entries if each is not None]
    if any(kind is None or kind.hasobject for kind in kinds) or not 0 < size <= MAX_ITEMSIZE:
        return None
    offsets = [each[1] for each in entries if each is not None]
    return np.dtype({"names": [*map(str, names)], "formats": kinds, "offsets": offsets, "itemsize": size})


def _is_flat(node: Any) -> bool:
    """A field that is a record itself is not read: it could be one in one in one."""
    state = node.state if isinstance(node, Inert) else None
    return not (isinstance(state, tuple) and len(state) > 3 and state[3])


def _of_state(state: Any) -> Any:
    if not isinstance(state, tuple) or len(state) < 4:
        raise InertError("an array without a shape")
    shape, kind, by_columns, raw = state[-4:]
    return array_of(raw, dtype_of(kind), shape, bool(by_columns))


def array_of(raw: Any, kind: np.dtype[Any] | None, shape: Any, by_columns: bool) -> Any:
    """An array of the bytes that are there, without a copy; of objects a list; None of a kind that is not read."""
    sides = checked_shape(shape)
    if isinstance(raw, list):
        return raw
    if kind is None or kind.hasobject or not 0 < kind.itemsize <= MAX_ITEMSIZE:
        return None
    data = raw if isinstance(raw, memoryview) else as_bytes(raw)
    if math.prod(sides) * kind.itemsize != len(data):
        raise InertError(f"an array of shape {sides} and type {kind} in {len(data):,} bytes")
    found = np.frombuffer(data, kind) if len(data) else np.zeros(0, kind)
    return found.reshape(sides, order="F" if by_columns else "C")


def checked_shape(shape: Any) -> tuple[int, ...]:
    sides = (shape,) if isinstance(shape, int) else tuple(shape) if isinstance(shape, tuple | list) else None
    if sides is None or len(sides) > MAX_DIMENSIONS:
        raise InertError("a shape that is none")
    if any(not isinstance(side, int) or isinstance(side, bool) or not 0 <= side < 2**48 for side in sides):
        raise InertError(f"a shape of {str(sides)[:80]}")
    return sides


def _scalar(name: str, args: tuple[Any, ...]) -> Any:
    kind = dtype_of(args[0])
    if kind is None or kind.hasobject or len(args) < 2:
        return args[1] if len(args) > 1 else None
    found = array_of(args[1], kind, (), by_columns=False)
    return None if found is None or kind.kind in "VmM" else found.item()


def _from_buffer(name: str, args: tuple[Any, ...]) -> Inert:
    raw = plain(args[0])
    return Inert("numpy.ndarray", value=array_of(raw, dtype_of(args[1]), args[2], args[3] == "F"))


# PyTorch ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Storage:
    """The values that tensors show, all of them, in a row."""

    values: Tensor


def storage_of(data: Any, kind: Any) -> Storage:
    """Whole values only: the bytes that are left over are dropped."""
    name = kind.short if isinstance(kind, Name) else str(kind)
    dtype = _STORAGES.get(name, torch.uint8)
    size = len(data) // dtype.itemsize * dtype.itemsize
    if not size:
        return Storage(torch.empty(0, dtype=dtype))
    view = data[:size]
    if not isinstance(view, memoryview) or view.readonly:
        view = bytearray(view)
    return Storage(torch.frombuffer(view, dtype=dtype))


def _tensor(name: str, args: tuple[Any, ...]) -> Any:
    """`_rebuild_tensor_v2(storage, offset, size, stride, …)`: within the storage, or the file is damaged."""
    storage, offset, size, stride = plain(args[0]), args[1], checked_shape(args[2]), checked_shape(args[3])
    if not isinstance(storage, Storage):
        return Inert(name, args)
    if not isinstance(offset, int) or offset < 0 or len(size) != len(stride):
        raise InertError("a tensor without a place in its storage")
    reach = offset + sum((side - 1) * step for side, step in zip(size, stride, strict=True)) + 1
    if math.prod(size) and reach > storage.values.numel():
        raise InertError(f"a tensor of shape {size} in a storage of {storage.values.numel():,} values")
    shown = storage.values.as_strided(size, stride, offset) if math.prod(size) else storage.values[:0]
    return Inert("torch.Tensor", value=shown)


def _parameter(name: str, args: tuple[Any, ...]) -> Any:
    return args[0]


CALLS: dict[str, Callable[[str, tuple[Any, ...]], Any]] = {
    **{f"{module}.{each}": _container for module in ("builtins", "__builtin__") for each in _CONTAINERS},
    **{f"{module}.dict": _mapping for module in ("builtins", "__builtin__")},
    **{f"{module}.bytearray": _bytes for module in ("builtins", "__builtin__")},
    **{f"{module}.bytes": _bytes for module in ("builtins", "__builtin__")},
    **{"collections.OrderedDict": _mapping, "collections.Counter": _mapping, "collections.deque": _container},
    "collections.defaultdict": lambda name, args: {},
    "_codecs.encode": _encoded,
    **{f"{module}._reconstructor": _reconstructed for module in ("copyreg", "copy_reg")},
    **{"numpy._reconstruct": _empty_array, "numpy.scalar": _scalar, "numpy._frombuffer": _from_buffer},
    **{"torch._rebuild_tensor_v2": _tensor, "torch._rebuild_tensor": _tensor},
    **{"torch._rebuild_parameter": _parameter, "torch._rebuild_parameter_with_state": _parameter},
    "torch._rebuild_qtensor": _tensor,
}
