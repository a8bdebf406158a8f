"""Files that are pickles, or hold one: `.pkl`, `.joblib`, compressed or not, and PyTorch's, zipped or older."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import mmap
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from unfit.base.formats.inert import CALLS, Inert, InertError, Name, Storage, as_bytes, plain, storage_of
from unfit.base.formats.kinds import LEGACY_PYTORCH
from unfit.base.formats.limits import MAX_CHECKPOINT, check_zip
from unfit.base.formats.pickles import Machine

MAPPED = 2**26  # bytes from which a file is mapped into memory instead of read
LEAST_UNPACKED, RATIO = 2**28, 100  # bytes that any file may unpack to, and times its own size
BLOCK = 2**22
MANY = 100_000  # pickles behind each other in one file
UNPACKING: tuple[type[Exception], ...] = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
LEGACY_PARTS = 5  # number, protocol, system, the object, and the keys of its storages
OPENERS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
    b"]\x00\x00": lzma.LZMAFile,
}


@dataclass
class Inside:
    """All that a file holds, as an inert tree; the classes and functions it names; what could not be read."""

    tree: Any
    names: set[str] = field(default_factory=set)
    unread: list[str] = field(default_factory=list)


def content_of(path: Path) -> memoryview:
    """The bytes of a file, unpacked where they are compressed; of a large one only what is looked at is read."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(6)
        file.seek(0)
        opener = next((each for mark, each in OPENERS.items() if start.startswith(mark)), None)
        most = min(max(LEAST_UNPACKED, RATIO * size), MAX_CHECKPOINT)
        if opener is not None:
            with opener(file) as unpacked:
                return memoryview(_limited(lambda: unpacked.read(BLOCK), most))
        if _is_zlib(start):
            return memoryview(_inflated(file, most))
        if size >= MAPPED:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        return memoryview(bytearray(file.read()))


def _is_zlib(start: bytes) -> bool:
    """joblib's default: a header of two bytes whose checksum is right."""
    return len(start) > 1 and start[0] == 0x78 and int.from_bytes(start[:2], "big") % 31 == 0


def _inflated(file: IO[bytes], most: int) -> bytearray:
    decoder = zlib.decompressobj()

    def read() -> bytes:
        if decoder.eof:
            return b""
        rest = decoder.unconsumed_tail or file.read(BLOCK)
        found = decoder.decompress(rest, BLOCK)
        if not found and not rest:
            raise EOFError("it ends before its compressed data do")
        return found or (read() if not decoder.eof else b"")

    return _limited(read, most)


def _limited(read: Callable[[], bytes], most: int) -> bytearray:
    found = bytearray()
    while part := read():
        found += part
        if len(found) > most:
            raise InertError(f"it unpacks to more than {most / 1e9:.1f} GB")
    return found


def read_pickles(data: memoryview) -> Inside:
    """One pickle, or several behind each other. What follows the last whole one is named as unread."""
    found: list[Any] = []
    names, unread, at = set[str](), list[str](), 0
    while at < len(data) and len(found) < MANY:
        machine = Machine(data, at, names)
        try:
            found.append(machine.run())
        except InertError as error:
            if not found:
                raise
            unread.append(f"{len(data) - at:,} bytes behind the first {len(found)} objects: {error}")
            break
        at = machine.at
    if not found:
        raise InertError("it is empty")
    return Inside(found[0] if len(found) == 1 else found, names, unread)


def read_torch(path: Path) -> Inside:
    """What `torch.save` wrote, of whatever classes."""
    data = content_of(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_zip(path, archive)
            return _of_zip(archive, data)
    if bytes(data[: len(LEGACY_PYTORCH)]) == LEGACY_PYTORCH:
        return _of_legacy(data)
    return read_pickles(data)


def _of_zip(archive: zipfile.ZipFile, data: memoryview) -> Inside:
    entries = {entry.filename: entry for entry in archive.infolist()}
    name = next((each for each in entries if each.rpartition("/")[2] == "data.pkl"), None)
    if name is None:
        raise InertError("there is no data.pkl in it")
    folder = name.removesuffix("data.pkl")
    order = f"{folder}byteorder"
    if order in entries and archive.read(order) != b"little":
        raise InertError("its values are in big-endian order")
    known: dict[str, Storage] = {}

    def stored(key: Any) -> Any:
        kind, place = _storage_key(key)
        if place not in known:
            entry = entries.get(f"{folder}data/{place}")
            if entry is None:
                raise InertError(f"there is no storage {place} in it")
            known[place] = storage_of(_member(archive, entry, data), kind)
        return Inert("torch.Storage", value=known[place])

    machine = Machine(memoryview(archive.read(name)), stored=stored)
    tree = machine.run()
    rest = {
        f"{each.removeprefix(folder)}": archive.read(each)
        for each in entries
        if "/extra/" in f"/{each}" and entries[each].file_size < LEAST_UNPACKED
    }
    return Inside([tree, rest] if rest else tree, machine.names)


def _storage_key(key: Any) -> tuple[Any, str]:
    if not isinstance(key, tuple) or len(key) < 3 or key[0] != "storage":
        raise InertError("a reference to something that is no storage")
    return key[1], str(key[2])


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, data: memoryview) -> Any:
    """The bytes in the file itself, if they are not compressed."""
    if entry.compress_type != zipfile.ZIP_STORED:
        return archive.read(entry)
    at = entry.header_offset
    if at < 0 or at + 30 > len(data) or bytes(data[at : at + 4]) != b"PK\x03\x04":
        raise InertError(f"{entry.filename} is not where it should be")
    begin = at + 30 + sum(struct.unpack("<HH", data[at + 26 : at + 30]))
    if begin + entry.file_size > len(data):
        raise InertError(f"{entry.filename} is cut short")
    return data[begin : begin + entry.file_size]


def _of_legacy(data: memoryview) -> Inside:
    """The storages come behind the object, so it is read twice: first to learn their types."""
    kinds: dict[str, Any] = {}

    def noted(key: Any) -> Any:
        if _is_class(key):
            return key[1]
        kind, place = _storage_key(key)
        kinds.setdefault(place, kind)
        return Inert("torch.Storage")

    at, begins, found = 0, [], []
    for _ in range(LEGACY_PARTS):
        machine = Machine(data, at, stored=noted)
        begins.append(at)
        found.append(machine.run())
        at = machine.at
    keys = found[-1]
    if not isinstance(keys, list):
        raise InertError("it does not list its storages")
    known: dict[str, Storage] = {}
    for key in map(str, keys):
        kind = kinds.get(key, Name("torch.ByteStorage"))
        if at + 8 > len(data):
            raise InertError("it ends before its values")
        num = struct.unpack("<q", data[at : at + 8])[0]
        width = storage_of(bytes(16), kind).values.element_size()
        if num < 0 or at + 8 + num * width > len(data):
            raise InertError("it ends before its values")
        known[key] = storage_of(data[at + 8 : at + 8 + num * width], kind)
        at += 8 + num * width

    def stored(key: Any) -> Any:
        return key[1] if _is_class(key) else Inert("torch.Storage", value=known.get(_storage_key(key)[1]))

    machine = Machine(data, begins[3], stored=stored)
    return Inside(machine.run(), machine.names)


def _is_class(key: Any) -> bool:
    """A module's class with its source, which older files keep next to it."""
    return isinstance(key, tuple) and len(key) > 1 and key[0] == "module" and isinstance(key[1], Name)


def _nested_storage(name: str, args: tuple[Any, ...]) -> Inert:
    """A storage of a module that was pickled: a file of PyTorch's in bytes, once and not one in the other."""
    raw = as_bytes(args[0])
    if b"_load_from_bytes" in raw:
        raise InertError("storages in each other")
    data = memoryview(bytearray(raw))
    if raw.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            found = plain(_of_zip(archive, data).tree)
    else:
        found = plain(_of_legacy(data).tree)
    return Inert("torch.Storage", value=found if isinstance(found, Storage) else None)


CALLS["torch._load_from_bytes"] = _nested_storage
