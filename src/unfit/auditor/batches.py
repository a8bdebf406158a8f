"""CIFAR's Python batches: pickles of a dict of names, lists of numbers, and one array of bytes.

Python's own unpickler runs code, and bounds neither memory nor depth: nine bytes can make it allocate gigabytes.
This one knows the few opcodes that such files have, makes nothing that is larger than the file, and calls nothing.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_STEPS = 2_000_000  # ten times those of the longest official file
MAX_LABEL = 2**31  # more is no label, and no int64 either
ARRAY = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
CLASSES = ("numpy ndarray", "numpy dtype", "_codecs encode", *ARRAY)
TEXT = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE")
OLD_TEXT = ("STRING", "BINSTRING", "SHORT_BINSTRING")  # of Python 2: bytes
PLAIN = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "NONE", "NEWTRUE", "NEWFALSE")
BYTES = ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8")
FLOATS = ("FLOAT", "BINFLOAT")
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
SIZES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass
class _Made:
    """What numpy would make: which class, of what, with which state. Nothing is called."""

    name: str
    args: tuple[Any, ...] = ()
    state: Any = None


@dataclass
class _Machine:
    """The stack of a pickle; a mark puts it aside and begins another."""

    room: int  # bytes that may still be encoded: text can be named again and again
    stack: list[Any] = field(default_factory=list)
    aside: list[list[Any]] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def since_mark(self) -> list[Any]:
        found, self.stack = self.stack, self.aside.pop()
        return found


def read_batch(path: Path) -> dict[bytes, Any]:
    """The dict in a batch. Raises ValueError for whatever else it holds."""
    content = path.read_bytes()
    machine = _Machine(room=2 * len(content))
    try:
        for step, (opcode, value, _) in enumerate(pickletools.genops(content)):
            if opcode.name == "STOP":
                break
            if step == MAX_STEPS:
                raise ValueError("far longer than such files are")
            _step(machine, opcode.name, value)
        found = machine.stack.pop()
    except IndexError:
        raise ValueError("not a complete pickle") from None
    if not isinstance(found, dict):
        raise ValueError("not a dict")
    return found


def pixels(content: dict[bytes, Any]) -> npt.NDArray[np.uint8]:
    match content.get(b"data"):
        case _Made(state=(_, (int(n), 3072), _Made(args=("u1" | b"u1", *_)), by_column, bytes(data))):
            return np.frombuffer(data, np.uint8).reshape((n, 3072), order="F" if by_column else "C")
    raise ValueError("the data are not rows of 3072 uint8 values")


def whole_numbers(content: dict[bytes, Any], keys: list[str]) -> npt.NDArray[np.int64]:
    """(n, k): a column for each key."""
    columns = [content.get(key.encode()) for key in keys]
    for key, column in zip(keys, columns, strict=True):
        if not isinstance(column, list) or not all(type(each) is int and abs(each) < MAX_LABEL for each in column):
            raise ValueError(f"{key} must be lists of whole numbers")
    if len({len(column or []) for column in columns}) > 1:
        raise ValueError(f"{' and '.join(keys)} have different lengths")
    return np.array(columns, np.int64).T


def names(content: dict[bytes, Any], key: str) -> list[str]:
    found = content.get(key.encode())
    if not isinstance(found, list) or not all(isinstance(each, bytes | str) for each in found):
        raise ValueError(f"{key} must be a list of names")
    return [each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in found]


def _step(machine: _Machine, name: str, value: Any) -> None:
    stack, memo = machine.stack, machine.memo
    match name:
        case "PROTO" | "FRAME":
            pass
        case "MARK":
            machine.aside.append(stack)
            machine.stack = []
        case "GET" | "BINGET" | "LONG_BINGET":
            if int(value) not in memo:
                raise ValueError("names what is not there")
            stack.append(memo[int(value)])
        case "PUT" | "BINPUT" | "LONG_BINPUT":
            memo[int(value)] = stack[-1]
        case "MEMOIZE":
            memo[len(memo)] = stack[-1]
        case "POP":
            stack.pop()
        case _ if name in (*PLAIN, *TEXT, *OLD_TEXT, *BYTES, *FLOATS):
            stack.append(_plain(name, value))
        case _:
            _build(machine, name, value)


def _plain(name: str, value: Any) -> Any:
    if name in OLD_TEXT:
        return value.encode("latin-1") if isinstance(value, str) else value
    return CONSTANTS.get(name, value)


def _build(machine: _Machine, name: str, value: Any) -> None:
    match name:
        case "EMPTY_DICT" | "EMPTY_LIST":
            machine.stack.append({} if name == "EMPTY_DICT" else [])
        case "DICT" | "LIST" | "TUPLE":
            items = machine.since_mark()
            machine.stack.append(
                items if name == "LIST" else tuple(items) if name == "TUPLE" else _entered({}, items)
            )
        case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
            items = [machine.stack.pop() for _ in range(SIZES[name])]
            machine.stack.append(tuple(reversed(items)))
        case "SETITEM" | "SETITEMS":
            items = machine.since_mark() if name == "SETITEMS" else _last_two(machine)
            _entered(machine.stack[-1], items)
        case "APPEND" | "APPENDS":
            items = machine.since_mark() if name == "APPENDS" else [machine.stack.pop()]
            _list(machine.stack[-1]).extend(items)
        case "GLOBAL" | "STACK_GLOBAL":
            found = " ".join(map(_name, _last_two(machine))) if name == "STACK_GLOBAL" else value
            if found not in CLASSES:
                raise ValueError(f"unfit refuses to load {str(found)[:100].replace(' ', '.')}")
            machine.stack.append(_Made(found))
        case "REDUCE":
            args, made = machine.stack.pop(), machine.stack.pop()
            machine.stack.append(_reduced(machine, made, args))
        case "BUILD":
            state = machine.stack.pop()
            if not isinstance(machine.stack[-1], _Made):
                raise ValueError("sets the state of what has none")
            machine.stack[-1].state = state
        case _:
            raise ValueError(f"unfit refuses the opcode {name}")


def _last_two(machine: _Machine) -> list[Any]:
    second, first = machine.stack.pop(), machine.stack.pop()
    return [first, second]


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a class without a name")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("appends to what is no list")
    return value


def _entered(found: Any, items: list[Any]) -> dict[Any, Any]:
    """Keys are names: of deep tuples even the hash would be too much."""
    if (
        not isinstance(found, dict)
        or not all(isinstance(key, bytes | str) for key in items[::2])
        or len(items) % 2
    ):
        raise ValueError("a dict whose keys are not names")
    for key, value in zip(items[::2], items[1::2], strict=True):
        found[key if isinstance(key, bytes) else key.encode("utf-8", "replace")] = value
    return found


def _reduced(machine: _Machine, made: Any, args: Any) -> Any:
    if not isinstance(made, _Made) or not isinstance(args, tuple):
        raise ValueError("calls what is no class")
    if made.name != "_codecs encode":
        return _Made(made.name, args)
    match args:
        case (str(text), "latin1" | "latin-1" | b"latin1"):  # bytes, as old protocols have them
            machine.room -= len(text)
            if machine.room < 0:
                raise ValueError("makes more bytes than it has")
            return text.encode("latin-1")
    raise ValueError("encodes as nothing but latin1 is")
