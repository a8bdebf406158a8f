"""Pickles, read without running them: every instruction is followed on a stack of inert values.

Why an interpreter of our own. `pickletools` lists instructions and keeps no stack, so which array belongs to which
attribute would have to be worked out on top of it, at several times the cost. `pickle.Unpickler` with a
`find_class` that gives inert classes still calls what is on its stack, allocates what a damaged length or memo
number claims, and stops at the first thing it does not know. scikit-learn's files need more than either: joblib
puts raw arrays between the instructions. Here nothing on the stack can be called at all, a length is checked
against the bytes that are left before anything is cut out, and an instruction costs about a microsecond.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from typing import Any

from unfit.base.formats.inert import (
    Inert,
    InertError,
    Name,
    array_of,
    as_key,
    built,
    called,
    checked_shape,
    dtype_of,
    plain,
)

MAX_STEPS = 100_000_000  # instructions of one file: it has at most one per byte
MAX_NUMBER = 1024  # bytes of a whole number
MAX_NAME = 500  # characters of a class
MAX_NESTED = 64  # arrays of objects in each other, each of which is a pickle of its own
VIEWED = 4096  # bytes from which they are shown instead of copied
WRAPPER = "joblib.numpy_pickle.NumpyArrayWrapper"  # an array whose values follow this instruction
STOP, MARK = ord("."), object()


class Machine:
    """Reads one pickle. `names` collects every class and function that the file asks for."""

    def __init__(
        self,
        data: memoryview,
        at: int = 0,
        names: set[str] | None = None,
        stored: Callable[[Any], Any] | None = None,
        depth: int = 0,
    ) -> None:
        self.data, self.at, self.stored, self.depth = data, at, stored, depth
        self.names: set[str] = set() if names is None else names
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """The value that the pickle stands for; `at` is behind it then."""
        data, size, steps = self.data, len(self.data), 0
        try:
            while True:
                if self.at >= size:
                    raise InertError("it ends before its last instruction")
                code = data[self.at]
                self.at += 1
                if code == STOP:
                    return self.pop()
                step = STEPS.get(code)
                if step is None:
                    raise InertError(f"there is no instruction {code:#04x}")
                step(self)
                steps += 1
                if steps > MAX_STEPS:
                    raise InertError(f"it has more than {MAX_STEPS:,} instructions")
        except InertError:
            raise
        except (IndexError, struct.error, ValueError, OverflowError) as error:
            raise InertError(f"damaged at byte {self.at:,}") from error

    # What instructions need ----------------------------------------------------------------------------------

    def take(self, num: int) -> memoryview:
        if num < 0 or num > len(self.data) - self.at:
            raise InertError(f"{num:,} bytes at byte {self.at:,}, where {len(self.data) - self.at:,} are left")
        found = self.data[self.at : self.at + num]
        self.at += num
        return found

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> bytes:
        """Up to the next line break. Lines of old pickles are short, but for texts."""
        end, step = self.at, 256
        while end < len(self.data):
            found = bytes(self.data[end : end + step]).find(b"\n")
            if found >= 0:
                line = bytes(self.take(end + found - self.at))
                self.at += 1
                return line
            end += step
            step = min(2 * step, 2**20)
        raise InertError("a line without an end")

    def text(self, num: int) -> str:
        return str(self.take(num), "utf-8", "surrogatepass")

    def blob(self, num: int) -> bytes | memoryview:
        found = self.take(num)
        return found if num >= VIEWED else bytes(found)

    def pop(self) -> Any:
        found = self.stack.pop()
        if found is MARK:
            raise InertError("a mark where a value should be")
        return found

    def marked(self) -> list[Any]:
        """What is on the stack above the last mark."""
        stack = self.stack
        for i in range(len(stack) - 1, -1, -1):
            if stack[i] is MARK:
                found = stack[i + 1 :]
                del stack[i:]
                return found
        raise InertError("no mark on the stack")

    def name(self, module: str, qualified: str) -> Name:
        text = f"{module}.{qualified}"[:MAX_NAME]
        self.names.add(text)
        return Name(text)

    # What they do --------------------------------------------------------------------------------------------

    def call(self, function: Any, args: Any) -> None:
        args = args if isinstance(args, tuple) else (args,)
        self.stack.append(
            called(function.text, args) if isinstance(function, Name) else Inert("object", (function, *args))
        )

    def make(self, kind: Any, args: Any) -> None:
        """An object of a class: never a call."""
        self.stack.append(Inert(kind.text if isinstance(kind, Name) else "object", args))

    def build(self) -> None:
        state, target = self.pop(), self.stack[-1]
        if isinstance(target, Inert) and target.kind == WRAPPER:
            target.value = self.array(state)
        else:
            built(target, state)

    def array(self, state: Any) -> Any:
        """The values of an array of joblib's, which come next."""
        if not isinstance(state, dict):
            raise InertError("an array without a shape")
        kind, sides = dtype_of(state.get("dtype")), checked_shape(state.get("shape"))
        if kind is None:
            raise InertError("an array of a type that is not read")
        if kind.hasobject:
            if self.depth >= MAX_NESTED:
                raise InertError("arrays of objects too deep in each other")
            inner = Machine(self.data, self.at, self.names, self.stored, self.depth + 1)
            found = plain(inner.run())
            self.at = inner.at
            return found
        if state.get("numpy_array_alignment_bytes") is not None:
            self.take(self.number("<B"))
        size = kind.itemsize
        for side in sides:
            size *= side
        return array_of(self.take(size), kind, sides, state.get("order") == "F")

    def append(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, Inert):
            target.entries.extend(values)
        else:
            raise InertError(f"values appended to a {type(target).__name__}")

    def put(self, values: list[Any]) -> None:
        target = self.stack[-1]
        pairs = zip(values[::2], values[1::2], strict=True)
        if len(values) % 2:
            raise InertError("a key without a value")
        if isinstance(target, dict):
            for key, value in pairs:
                target[as_key(key)] = value
        elif isinstance(target, Inert):
            target.entries.extend(pairs)
        else:
            raise InertError(f"entries put into a {type(target).__name__}")

    def keep(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def again(self, place: int) -> None:
        if place not in self.memo:
            raise InertError(f"nothing was kept as number {place}")
        self.stack.append(self.memo[place])

    def outside(self, key: Any) -> None:
        self.stack.append(self.stored(key) if self.stored else Inert("persistent", (key,)))

    def whole(self, num: int) -> None:
        if num > MAX_NUMBER:
            raise InertError(f"a whole number of {num:,} bytes")
        self.stack.append(int.from_bytes(self.take(num), "little", signed=True))

    def decimal(self, line: bytes) -> None:
        text = line.strip().rstrip(b"L")
        if len(text) > MAX_NUMBER:
            raise InertError("a whole number of too many digits")
        try:
            self.stack.append({b"00": False, b"01": True}[text] if text in (b"00", b"01") else int(text))
        except ValueError as error:
            raise InertError("a number that is none") from error

    def real(self, line: bytes) -> None:
        try:
            self.stack.append(float(line[:MAX_NUMBER]))
        except ValueError as error:
            raise InertError("a number that is none") from error

    def quoted(self, line: bytes) -> None:
        try:
            self.stack.append(codecs.escape_decode(line.strip()[1:-1])[0].decode("latin-1"))
        except ValueError as error:
            raise InertError("a text that is none") from error

    def unicode(self, line: bytes) -> None:
        self.stack.append(str(line, "raw-unicode-escape"))

    def named(self, module: Any, qualified: Any) -> None:
        if not isinstance(module, str) or not isinstance(qualified, str):
            raise InertError("a class without a name")
        self.stack.append(self.name(module, qualified))

    def drop(self) -> None:
        self.stack.pop()

    def twice(self) -> None:
        self.stack.append(self.stack[-1])

    def grouped(self, num: int) -> None:
        self.stack.append(tuple([self.pop() for _ in range(num)][::-1]))

    def instance(self) -> None:
        """INST: the class stands in the instruction, its arguments behind the last mark."""
        kind = self.name(self.line().decode("utf-8", "replace"), self.line().decode("utf-8", "replace"))
        self.make(kind, tuple(self.marked()))

    def from_marked(self) -> None:
        """OBJ: the class is the first behind the last mark."""
        kind, *args = self.marked() or [None]
        self.make(kind, tuple(args))

    def new(self) -> None:
        args, kind = self.pop(), self.pop()
        self.make(kind, args)

    def new_with_names(self) -> None:
        names, args, kind = self.pop(), self.pop(), self.pop()
        self.make(kind, (args, names))

    def pair(self) -> None:
        value, key = self.pop(), self.pop()
        self.put([key, value])

    def pairs(self, values: list[Any]) -> dict[Any, Any]:
        if len(values) % 2:
            raise InertError("a key without a value")
        return {as_key(key): value for key, value in zip(values[::2], values[1::2], strict=True)}

    def add(self) -> None:
        values = self.marked()
        self.append(values)

    def reduce(self) -> None:
        args, function = self.pop(), self.pop()
        self.call(function, args)

    def stack_name(self) -> None:
        qualified, module = self.pop(), self.pop()
        self.named(module, qualified)

    def extension(self, num: int) -> None:
        self.stack.append(self.name("extension", str(num)))


Step = Callable[[Machine], Any]
STEPS: dict[int, Step] = {
    ord(code): step
    for code, step in {
        "(": lambda m: m.stack.append(MARK),
        "0": Machine.drop,
        "1": Machine.marked,
        "2": Machine.twice,
        "N": lambda m: m.stack.append(None),
        "\x88": lambda m: m.stack.append(True),
        "\x89": lambda m: m.stack.append(False),
        "K": lambda m: m.stack.append(m.number("<B")),
        "M": lambda m: m.stack.append(m.number("<H")),
        "J": lambda m: m.stack.append(m.number("<i")),
        "\x8a": lambda m: m.whole(m.number("<B")),
        "\x8b": lambda m: m.whole(m.number("<i")),
        "I": lambda m: m.decimal(m.line()),
        "L": lambda m: m.decimal(m.line()),
        "F": lambda m: m.real(m.line()),
        "G": lambda m: m.stack.append(m.number(">d")),
        "S": lambda m: m.quoted(m.line()),
        "T": lambda m: m.stack.append(str(m.take(m.number("<i")), "latin-1")),
        "U": lambda m: m.stack.append(str(m.take(m.number("<B")), "latin-1")),
        "V": lambda m: m.unicode(m.line()),
        "X": lambda m: m.stack.append(m.text(m.number("<I"))),
        "\x8c": lambda m: m.stack.append(m.text(m.number("<B"))),
        "\x8d": lambda m: m.stack.append(m.text(m.number("<Q"))),
        "C": lambda m: m.stack.append(m.blob(m.number("<B"))),
        "B": lambda m: m.stack.append(m.blob(m.number("<I"))),
        "\x8e": lambda m: m.stack.append(m.blob(m.number("<Q"))),
        "\x96": lambda m: m.stack.append(m.blob(m.number("<Q"))),
        ")": lambda m: m.stack.append(()),
        "]": lambda m: m.stack.append([]),
        "}": lambda m: m.stack.append({}),
        "\x8f": lambda m: m.stack.append([]),
        "t": lambda m: m.stack.append(tuple(m.marked())),
        "l": lambda m: m.stack.append(m.marked()),
        "\x91": lambda m: m.stack.append(m.marked()),
        "d": lambda m: m.stack.append(m.pairs(m.marked())),
        "\x85": lambda m: m.grouped(1),
        "\x86": lambda m: m.grouped(2),
        "\x87": lambda m: m.grouped(3),
        "a": lambda m: m.append([m.pop()]),
        "e": Machine.add,
        "\x90": Machine.add,
        "s": Machine.pair,
        "u": lambda m: m.put(m.marked()),
        "p": lambda m: m.keep(int(m.line()[:20])),
        "q": lambda m: m.keep(m.number("<B")),
        "r": lambda m: m.keep(m.number("<I")),
        "\x94": lambda m: m.keep(len(m.memo)),
        "g": lambda m: m.again(int(m.line()[:20])),
        "h": lambda m: m.again(m.number("<B")),
        "j": lambda m: m.again(m.number("<I")),
        "c": lambda m: m.named(m.line().decode("utf-8", "replace"), m.line().decode("utf-8", "replace")),
        "\x93": Machine.stack_name,
        "\x82": lambda m: m.extension(m.number("<B")),
        "\x83": lambda m: m.extension(m.number("<H")),
        "\x84": lambda m: m.extension(m.number("<i")),
        "R": Machine.reduce,
        "b": Machine.build,
        "i": Machine.instance,
        "o": Machine.from_marked,
        "\x81": Machine.new,
        "\x92": Machine.new_with_names,
        "P": lambda m: m.outside(m.line().decode("utf-8", "replace")),
        "Q": lambda m: m.outside(m.pop()),
        "\x80": lambda m: m.number("<B"),
        "\x95": lambda m: m.number("<Q"),
        "\x97": lambda m: m.stack.append(Inert("buffer")),
        "\x98": lambda m: None,
    }.items()
}
