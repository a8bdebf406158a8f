"""Models as people have them: one file for each format, one way in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from unfit.base.errors import UnfitError
from unfit.base.formats.folders import read_adapter, read_folder, read_run
from unfit.base.formats.keras import read_h5, read_keras
from unfit.base.formats.kinds import REFUSED, SUFFIXES, kind_of
from unfit.base.formats.limits import CHECKPOINTS, Weights, check_file, kept
from unfit.base.formats.numpy import read_npz
from unfit.base.formats.onnx import read_onnx
from unfit.base.formats.pytorch import read_state_dict
from unfit.base.formats.sklearn import read_pickled, read_skops
from unfit.base.formats.tensors import read_safetensors, without_wrappers


@dataclass(frozen=True)
class Format:
    """A kind of file that can be read. `extra` is what must be installed for it: unfit[extra]."""

    kind: str
    name: str
    suffixes: tuple[str, ...]  # of a folder: the files it is known by
    extra: str | None
    gives: Literal["tensors", "model", "model or tensors"]
    read: Callable[[Path], Weights | nn.Module]


FORMATS = (
    Format("run", "run folder of `unfit fit`", ("target.safetensors",), None, "tensors", read_run),
    Format("safetensors", "safetensors", (".safetensors",), None, "tensors", read_safetensors),
    Format(
        "pytorch",
        "PyTorch state dict, alone or in a trainer's checkpoint",
        (".pt", ".pth", ".bin", ".ckpt", ".tar"),
        None,
        "tensors",
        read_state_dict,
    ),
    Format("npz", "NumPy arrays, by name or in the order of a state dict", (".npz",), None, "tensors", read_npz),
    Format("onnx", "ONNX", (".onnx",), "onnx", "model", read_onnx),
    Format("keras", "Keras", (".keras",), "keras", "model", read_keras),
    Format("hdf5", "Keras, whole model or weights", (".h5", ".hdf5"), "keras", "model or tensors", read_h5),
    Format("skops", "scikit-learn, saved with skops", (".skops",), None, "model", read_skops),
    Format(
        "pickle",
        "scikit-learn, saved with joblib or pickle, which is read and not run",
        (".joblib", ".pkl", ".pickle"),
        None,
        "model",
        read_pickled,
    ),
    Format("huggingface", "Hugging Face folder, sharded or not", ("config.json",), None, "tensors", read_folder),
    Format("peft", "PEFT adapter folder", ("adapter_config.json",), None, "tensors", read_adapter),
)


def format_table() -> list[Format]:
    """Every format, as `unfit formats` lists it."""
    return list(FORMATS)


def kind_of_model(path: Path) -> str | None:
    """The kind of a file or folder; its name decides only where the content does not."""
    return kind_of(path, {suffix: each.kind for each in FORMATS for suffix in each.suffixes} | SUFFIXES)


def check_model(path: Path) -> None:
    """Refuse what is not there, or too large, before anything else is done."""
    if not path.is_dir():
        check_file(path)


def read_model(path: str | Path) -> Weights | nn.Module:
    """Named tensors, or a model where the file also says how they are used. The content decides, not the suffix.

    A model is in eval mode, in float32, takes images with their channels first, and returns logits.
    """
    path = Path(path)
    check_model(path)
    kind = kind_of_model(path)
    if kind in REFUSED:
        raise UnfitError(f"{path}: this is {REFUSED[kind]}")
    found = next((each for each in FORMATS if each.kind == kind), None)
    if not found:
        what = "no weights in this folder" if path.is_dir() else "unknown kind of checkpoint"
        raise UnfitError(f"{path}: {what}; {CHECKPOINTS}")
    model = kept("model", path, found.read)
    return model if isinstance(model, nn.Module) else without_wrappers(model)
