"""What a file is, by its content: names lie, and a file of another kind is not a damaged one."""

from __future__ import annotations

import zipfile
from pathlib import Path

from unfit.base.errors import UnfitError

NUM_BYTES = 16  # of the beginning; no mark below is longer
LEGACY_PYTORCH = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")  # the number that torch.save wrote before zips
MARKS = {
    b"\x89HDF\r\n\x1a\n": "hdf5",
    LEGACY_PYTORCH: "pytorch",
    b"GGUF": "gguf",
    b"\x93NUMPY": "numpy",
    b"\x1f\x8b": "compressed",
    b"7z\xbc\xaf": "compressed",
    b"BZh": "compressed",
    b"\xfd7zXZ": "compressed",
}
REFUSED = {
    "torchscript": "a TorchScript archive: it holds code and the weights, and nothing is run here; "
    "load it with torch.jit.load and save its state_dict()",
    "gguf": "a GGUF file, which holds a quantised language model; no attack covers these",
    "numpy": "a single NumPy array; save a state dict, a .safetensors file, or all arrays with numpy.savez",
    "compressed": "a compressed file; unpack it first",
    "tflite": "a TensorFlow Lite model; save the Keras model as .keras or .h5 instead",
    "savedmodel": "a TensorFlow SavedModel, which holds code; save the Keras model as .keras or .h5 instead",
    "tensorflow": "a TensorFlow checkpoint; save the Keras model as .keras or .h5 instead",
    "pt2": "a program that torch.export wrote, a graph without the module; save its weights, "
    "torch.save(program.state_dict, 'model.pt'), and give the code that builds the model with `model`; "
    "or export it as ONNX",
    "zip": "a zip archive of an unknown kind; `unfit formats` lists what can be read",
}
FOLDERS = {  # by a file in them
    "target.safetensors": "run",
    "adapter_config.json": "peft",
    "config.json": "huggingface",
    "saved_model.pb": "savedmodel",
    "checkpoint": "tensorflow",
}
SUFFIXES = {  # of what is refused
    ".pb": "savedmodel",
    ".index": "tensorflow",
}


def kind_of(path: Path, suffixes: dict[str, str]) -> str | None:
    """The kind of a file or folder, or None. `suffixes` decide only where the content does not."""
    if path.is_dir():
        return next((kind for name, kind in FOLDERS.items() if (path / name).is_file()), None)
    try:
        start, end = _ends(path)
    except OSError as error:
        raise UnfitError(f"cannot read {path}: {error.strerror}") from error
    found = next((kind for mark, kind in MARKS.items() if start.startswith(mark)), None)
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < path.stat().st_size:
        found = "safetensors"  # first: a header of 640 bytes begins like a pickle
    elif start.startswith(b"PK"):
        found = _archive(path)
    elif start[4:8] == b"TFL3":
        found = "tflite"
    elif not found and start[:1] == b"\x80" and start[1:2] <= b"\x05" and end == b".":  # PROTO … STOP
        found = "pickle"
    if found == "compressed" and suffixes.get(path.suffix.lower()) == "pickle":
        found = "pickle"  # joblib compresses
    return found or suffixes.get(path.suffix.lower()) or ("zip" if zipfile.is_zipfile(path) else None)


def _ends(path: Path) -> tuple[bytes, bytes]:
    with path.open("rb") as file:
        start = file.read(NUM_BYTES)
        file.seek(max(path.stat().st_size - 1, 0))
        return start, file.read(1)


def _archive(path: Path) -> str | None:
    """None if it is damaged or of no kind that is known."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return None
    last = {name.rpartition("/")[2] for name in names}
    if "constants.pkl" in last and any("/code/" in f"/{name}" for name in names):
        return "torchscript"
    if "archive_format" in last or "serialized_exported_program.json" in last:
        return "pt2"
    if "data.pkl" in last:
        return "pytorch"
    if "model.weights.h5" in names and "config.json" in names:
        return "keras"
    if "schema.json" in names:
        return "skops"
    return "npz" if names and all(name.endswith(".npy") for name in names) else None
