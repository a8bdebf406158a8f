"""HDF5, ONNX, NumPy and text files as trees of arrays and texts: all that is in them, whatever it is for."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from unfit.base.errors import needs
from unfit.base.formats.inert import Inert, InertError
from unfit.base.formats.limits import check_shapes, check_zip
from unfit.base.formats.numpy import read_any

MAX_TEXT = 2**30  # bytes of a text file
MAX_MEMBERS = 200_000  # of an HDF5 file


def tree_of_npz(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        check_zip(path, archive)
        names = dict.fromkeys(archive.namelist())
        return {name.removesuffix(".npy"): read_any(archive.read(name)) for name in names}


def tree_of_text(path: Path) -> Any:
    """JSON as what it says; another text as its lines."""
    if path.stat().st_size > MAX_TEXT:
        raise InertError("a text of more than 1 GiB")
    text = path.read_text("utf-8", "replace")
    if path.suffix == ".json":
        return json.loads(text)
    return text.splitlines()


def tree_of_h5(path: Path, source: Path | io.BytesIO) -> Any:
    """Arrays, texts and attributes of all groups. Links are not followed."""
    try:
        import h5py
    except ImportError as error:
        raise needs("h5py", "keras", str(path)) from error
    found: dict[str, Any] = {}

    def visit(name: str, item: Any) -> None:
        if len(found) > MAX_MEMBERS:
            raise InertError(f"it has more than {MAX_MEMBERS:,} members")
        for key, value in _attributes(item).items():
            found[f"{name}@{key}" if name else f"@{key}"] = value
        if isinstance(item, h5py.Dataset) and not item.external and not item.is_virtual:
            check_shapes(path, [item.shape or ()])
            found[name] = _values(item[()])

    with h5py.File(source, "r") as file:
        visit("", file)
        file.visititems(visit)
    return found


def _attributes(item: Any) -> dict[str, Any]:
    return {str(key): _values(value) for key, value in item.attrs.items()}


def _values(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [_values(each) for each in value.flat]
    return value.item() if isinstance(value, np.generic) and value.dtype.kind in "fiub" else value


def tree_of_onnx(path: Path) -> Any:
    """Initialisers, what nodes carry (support vectors, thresholds, words), and the metadata."""
    try:
        import onnx
    except ImportError as error:
        raise needs("onnx", "onnx", str(path)) from error
    model = onnx.load_model(path, load_external_data=False)
    tensors = list(model.graph.initializer)
    check_shapes(path, (each.dims for each in tensors))
    found: dict[str, Any] = {each.name: _tensor(each) for each in tensors}
    for i, node in enumerate(model.graph.node):
        held = {each.name: _attribute(each) for each in node.attribute}
        found[f"node {i}"] = Inert(f"onnx.{node.op_type}", state=held)
    texts = {each.key: each.value for each in model.metadata_props}
    if model.doc_string:
        texts["doc_string"] = model.doc_string
    return found | ({"metadata": texts} if texts else {})


def _tensor(stored: Any) -> Any:
    from onnx import numpy_helper

    if stored.data_location == 1 or any(side < 0 for side in stored.dims):
        raise InertError(f"the values of {stored.name} are in another file")
    values = numpy_helper.to_array(stored)
    return [*map(str, values.flat)] if values.dtype == object else values


def _attribute(each: Any) -> Any:
    if each.floats:
        return np.array(each.floats, dtype=np.float32)
    if each.ints:
        return np.array(each.ints, dtype=np.int64)
    if each.strings:
        return [text.decode("utf-8", "replace") for text in each.strings]
    if each.HasField("t"):
        return _tensor(each.t)
    return each.s.decode("utf-8", "replace") if each.s else None
