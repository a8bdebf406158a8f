"""`.skops`: JSON and arrays, read as an inert tree. Needs neither skops nor scikit-learn."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import numpy as np

from unfit.base.formats.inert import Inert, InertError, Name, as_key, plain
from unfit.base.formats.numpy import read_any

MAX_DEPTH = 150  # of nodes in each other: Python itself calls no deeper than a thousand times
JSON = ("JsonNode",)
MANY = ("ListNode", "TupleNode", "SetNode")


class Skops:
    """The tree of one archive. What stands in it twice is read once."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        self.names: set[str] = set()
        self.known: dict[int, Any] = {}

    def read(self) -> Any:
        schema = json.loads(self.archive.read("schema.json"))
        return self.value(schema, 0)

    def value(self, node: Any, depth: int) -> Any:
        """What a node stands for. One of no known kind is an object with all that is in it."""
        if depth > MAX_DEPTH:
            raise InertError("its nodes are nested too deeply")
        if not isinstance(node, dict):
            return [self.value(each, depth + 1) for each in node] if isinstance(node, list) else node
        if "__loader__" not in node:
            return {key: self.value(each, depth + 1) for key, each in node.items()}
        number = node.get("__id__")
        if node["__loader__"] == "CachedNode" and number in self.known:
            return self.known[number]
        found = self.made(node, depth + 1)
        if isinstance(number, int):
            self.known.setdefault(number, found)
        return found

    def made(self, node: dict[str, Any], depth: int) -> Any:
        loader, content = node["__loader__"], node.get("content")
        kind = f"{node.get('__module__', '')}.{node.get('__class__', '')}"
        if loader in JSON:
            return json.loads(content) if isinstance(content, str) else content
        if loader in MANY and isinstance(content, list):
            return [self.value(each, depth) for each in content]
        if loader in ("DictNode", "DefaultDictNode", "OrderedDictNode"):
            return self.mapping(node, content, depth)
        if loader == "NdArrayNode" and isinstance(content, list):
            return [self.value(each, depth) for each in content]
        if isinstance(node.get("file"), str):
            return self.member(node["file"], kind)
        if loader in ("TypeNode", "FunctionNode"):
            self.names.add(kind)
            return Name(kind)
        self.names.add(kind)
        found = Inert(kind)
        if isinstance(number := node.get("__id__"), int):
            self.known[number] = found
        self.fill(found, node, depth)
        return found

    def mapping(self, node: dict[str, Any], content: Any, depth: int) -> dict[Any, Any]:
        """Keys are texts in JSON; `key_types` has their types."""
        if not isinstance(content, dict):
            raise InertError("a dict without entries")
        values = {key: self.value(each, depth) for key, each in content.items()}
        return {as_key(key): each for key, each in values.items()}

    def fill(self, found: Inert, node: dict[str, Any], depth: int) -> None:
        """Attributes where the content is a dict of these; all else that the node holds as well."""
        inside = {
            key: self.value(each, depth)
            for key, each in node.items()
            if isinstance(each, dict | list) and not key.startswith("__")
        }
        content = inside.pop("content", None)
        state = content if isinstance(content, dict) else {} if content is None else {"content": content}
        for name in ("state", "attrs"):  # what objects with a `__reduce__` of their own keep in these
            if isinstance(held := state.get(name), dict):
                state = {**{key: each for key, each in state.items() if key != name}, **held}
        found.state = {**state, **inside}

    def member(self, name: str, kind: str) -> Any:
        """An array, a sparse matrix or bytes in the archive."""
        data = self.archive.read(name)
        if name.endswith(".npz"):
            return sparse_of(data, kind)
        return read_any(data) if name.endswith(".npy") else data


def sparse_of(data: bytes, kind: str) -> Inert:
    """The parts of a matrix of SciPy's, as pickles of it have them."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(each.file_size for each in archive.infolist()) > 2**31:
            raise InertError("a sparse matrix of more than 2 GiB")
        parts = {name.removesuffix(".npy"): read_any(archive.read(name)) for name in archive.namelist()}
    shape = parts.get("shape")
    if isinstance(shape, np.ndarray):
        parts["_shape"] = tuple(int(side) for side in shape.flat[:2])
    return Inert(
        kind if "csr" in kind or "csc" in kind or "coo" in kind else "scipy.sparse.csr_matrix", state=parts
    )


def dense_of(node: Inert, most: int) -> np.ndarray[Any, Any] | None:
    """A compressed sparse matrix written out; None where it would have more values than `most`, or is damaged."""
    held = {name: plain(each) for name, each in node.attributes.items()}
    data, indices, indptr = (held.get(name) for name in ("data", "indices", "indptr"))
    shape = held.get("_shape", held.get("shape"))
    if not isinstance(shape, tuple) or len(shape) != 2 or not all(isinstance(side, int) for side in shape):
        return None
    if not (isinstance(data, np.ndarray) and isinstance(indices, np.ndarray) and isinstance(indptr, np.ndarray)):
        return None
    if not data.ndim == indices.ndim == indptr.ndim == 1:
        return None
    along, across = shape if "csc" not in node.kind else shape[::-1]
    sound = data.dtype.kind in "fiub" and indices.dtype.kind in "iu" and indptr.dtype.kind in "iu"
    if not sound or min(shape) < 0 or along * across > most or len(indptr) != along + 1:
        return None
    starts = indptr.astype(np.int64)
    counts = starts[1:] - starts[:-1]
    if len(indices) != len(data) or (counts < 0).any() or counts.sum() != len(data):
        return None
    if len(indices) and (indices.min() < 0 or indices.max() >= across):
        return None
    found = np.zeros((along, across), np.float64 if data.dtype.kind != "f" else data.dtype.newbyteorder("="))
    found[np.repeat(np.arange(along), counts), indices.astype(np.int64)] = data
    return found if "csc" not in node.kind else found.T
