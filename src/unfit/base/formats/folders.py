"""Folders: runs of `unfit fit`, and what Hugging Face's libraries write, whole models or PEFT adapters."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from unfit.base.errors import UnfitError
from unfit.base.files import read_json
from unfit.base.formats.limits import Weights, check_file, check_shapes, check_size, undamaged
from unfit.base.formats.pytorch import read_state_dict
from unfit.base.formats.tensors import natural, read_safetensors, without_wrappers

MODELS = ("model.safetensors", "pytorch_model.bin")
ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
MAX_JSON = 100_000_000  # bytes: an index has a line for each tensor


def read_run(folder: Path) -> Weights:
    """A folder that `unfit fit` wrote."""
    return _read_one(folder, ("target.safetensors",))


def read_folder(folder: Path) -> Weights:
    """`model.safetensors` or `pytorch_model.bin`, or their shards. `config.json` names code, which is not run."""
    for name in MODELS:
        if (index := folder / f"{name}.index.json").is_file():
            return _read_shards(index)
    return _read_one(folder, MODELS)


def read_adapter(folder: Path) -> Weights:
    """The pairs `….lora_A.weight` and `….lora_B.weight`, under the names that the base has."""
    return without_wrappers(_read_one(folder, ADAPTERS), ("base_model.model.",))


def adapter_scale(folder: Path) -> float:
    """What B·A is multiplied with before it is added to the weights: α/r, or α/√r for rank-stabilised LoRA."""
    content = _read_small(folder / "adapter_config.json")
    with undamaged(folder / "adapter_config.json", "PEFT"):
        rank, alpha = int(content["r"]), float(content["lora_alpha"])
        return alpha / (math.sqrt(rank) if content.get("use_rslora") else rank)


def _read_one(folder: Path, names: tuple[str, ...]) -> Weights:
    found = [folder / name for name in names if (folder / name).is_file()]
    if not found:
        raise UnfitError(f"{folder}: no weights in this folder; expected {' or '.join(names)}")
    return _read_file(found[0])


def _read_file(path: Path) -> Weights:
    check_file(path)
    return read_safetensors(path) if path.suffix == ".safetensors" else read_state_dict(path)


def _read_shards(index: Path) -> Weights:
    """The index maps each tensor to its file. A name that leads out of the folder is refused."""
    places = _read_small(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise UnfitError(f"{index}: expected `weight_map`, from the names of tensors to files")
    names = sorted(set(places.values()), key=natural)
    if bad := [name for name in names if Path(name).name != name or "\\" in name]:
        raise UnfitError(f"{index}: {bad[0]!r} is not a file of this folder")
    shards = [index.parent / name for name in names]
    for shard in shards:
        check_file(shard)  # before their sizes are asked for
    check_size(index, "and its shards have", sum(shard.stat().st_size for shard in shards))
    found: Weights = {}
    for shard in shards:
        found |= _read_file(shard)
        check_shapes(index, (value.shape for value in found.values()))
    if missing := places.keys() - found.keys():
        raise UnfitError(f"{index}: {len(missing)} tensors are in none of its files, such as {min(missing)}")
    return {name: found[name] for name in sorted(found, key=natural)}


def _read_small(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_JSON:
        raise UnfitError(f"{path}: too large for a list of tensors")
    return read_json(path)
