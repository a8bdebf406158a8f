"""`.safetensors`: named tensors, and texts in the header."""

from __future__ import annotations

import re
from pathlib import Path

from safetensors import SafetensorError, safe_open

from unfit.base.formats.limits import Weights, check_shapes, undamaged

WRAPPERS = ("module.", "_orig_mod.", "model.", "net.")  # DataParallel, torch.compile, Lightning modules


def read_safetensors(path: Path) -> Weights:
    with undamaged(path, "safetensors", SafetensorError), safe_open(path, framework="pt") as file:
        # the file is sorted by size; the numbers in the names give the order of the layers
        names = sorted(file.keys(), key=natural)
        check_shapes(path, (file.get_slice(name).get_shape() for name in names))
        return {name: file.get_tensor(name) for name in names}


def read_metadata(path: Path) -> dict[str, str]:
    """Texts that the author of the file put in its header."""
    with undamaged(path, "safetensors", SafetensorError), safe_open(path, framework="pt") as file:
        return dict(file.metadata() or {})


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts fc2 before fc10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,9})", name)]


def without_wrappers(weights: Weights, wrappers: tuple[str, ...] = WRAPPERS) -> Weights:
    """Take off what all names share, as often as they do: what wrapped the net when it was saved."""
    while shared := next((prefix for prefix in wrappers if _wraps(prefix, weights)), None):
        weights = {name.removeprefix(shared): value for name, value in weights.items()}
    return weights


def _wraps(prefix: str, weights: Weights) -> bool:
    """A layer itself may be called `model`: then nothing but `weight` would be left."""
    return bool(weights) and all(name.startswith(prefix) and "." in name[len(prefix) :] for name in weights)
