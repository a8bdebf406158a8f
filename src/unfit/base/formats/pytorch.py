"""`.pt`, `.pth`, `.bin`, `.ckpt`: state dicts, and what trainers save around them."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unfit.base.errors import UnfitError, listed
from unfit.base.formats.limits import Weights, check_shapes, check_zip, kept, undamaged

HOLDERS = ("state_dict", "model_state_dict", "model_state", "model", "net", "network", "module", "weights")
CURRENT = ("last", "latest", "current", "student", "online")  # of several states of one model: the one in training
MAX_DEPTH = 4  # of dicts inside each other; a pickle can hold a dict that holds itself
ALONE = "save only model.state_dict(), or use .safetensors"


def read_state_dict(path: Path) -> Weights:
    weights = _tensors(path, read_content(path))
    check_shapes(path, (value.shape for value in weights.values()))
    check_storage(path, weights)
    return weights


def read_content(path: Path) -> Any:
    """All that was saved, in the containers it was saved in. Its tensors may claim more than the file holds."""
    return kept("content", path, _content)


def _content(path: Path) -> Any:
    """`weights_only` refuses all but tensors and plain containers, so a malicious pickle does not run."""
    try:
        with undamaged(path, "PyTorch"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols, which the user cannot change
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    check_zip(path, archive)
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnfitError(
            f"{path}: contains more than tensors, so it was not loaded "
            f"(it could run code{_culprit(error)}); {ALONE}"
        ) from error


def check_storage(path: Path, weights: Weights) -> None:
    """With stride 0 a few bytes stand for any number of values, which the first copy would write out."""
    for name, value in weights.items():
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise UnfitError(
                f"{path}: {name} claims {value.numel():,} values, more than the file holds of it; {ALONE}"
            )


def _culprit(error: pickle.UnpicklingError) -> str:
    """The class or function that the file asks for, in the words of PyTorch's error."""
    found = re.search(r"(?:GLOBAL|class|global) ([A-Za-z_][\w.]*\.\w+)", str(error))
    return f", with {found[1]}" if found else ""


def _tensors(path: Path, content: Any) -> Weights:
    """The one mapping of tensors, next to optimiser states, epochs and settings."""
    for _ in range(MAX_DEPTH):
        if not isinstance(content, dict) or not content:
            raise UnfitError(
                f"{path}: expected a state dict, found {type(content).__name__}; save model.state_dict()"
            )
        if all(is_plain(value) for value in content.values()):
            return {str(key): value.detach() for key, value in content.items()}
        content = _inside(path, content)
    raise UnfitError(f"{path}: its dicts are nested too deeply; {ALONE}")


def _inside(path: Path, content: dict[Any, Any]) -> Any:
    if known := [key for key in HOLDERS if isinstance(content.get(key), dict)]:
        return content[known[0]]
    nets = [key for key, value in content.items() if _is_state_dict(value)]
    if len(nets) == 1:
        return content[nets[0]]
    if current := [key for key in nets if key in CURRENT] if _are_alike(content[key] for key in nets) else []:
        return content[current[0]]
    if nets:
        raise UnfitError(f"{path}: holds several models: {listed(nets)}; save the state dict of one")
    others = [str(key) for key, value in content.items() if not is_plain(value)]
    raise UnfitError(f"{path}: not a state dict: found non-tensors {listed(others)}; save model.state_dict()")


def _is_state_dict(value: object) -> bool:
    return isinstance(value, dict) and bool(value) and all(is_plain(each) for each in value.values())


def _are_alike(nets: Iterable[dict[Any, Tensor]]) -> bool:
    """Whether these are states of one model."""
    return len({tuple(value.shape for value in net.values()) for net in nets}) == 1


def is_plain(value: object) -> bool:
    """A dense tensor with values: not sparse, not on `meta`."""
    return isinstance(value, Tensor) and value.layout == torch.strided and value.device.type == "cpu"
