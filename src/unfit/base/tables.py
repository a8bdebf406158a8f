"""Tables of a model: embeddings, of which each sample uses some rows: its words, its user, its categories."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from unfit.base.errors import UnfitError, UsageError, listed
from unfit.base.formats import read_model
from unfit.base.formats.limits import Weights
from unfit.base.formats.tensors import without_wrappers
from unfit.base.load import build_model
from unfit.base.modules import load_into
from unfit.base.reading import Reading

NAMED = re.compile(r"emb|^wte$|^wpe$|lookup|factors?$", re.IGNORECASE)  # what layers that look up rows are called
KEYS = ("weight", "embeddings", "table")  # what their tables are called; Keras: embeddings
POSITIONS = re.compile(r"pos|wpe", re.IGNORECASE)
TYPES = re.compile(r"type|segment", re.IGNORECASE)
MAX_CONFIG = 2**20  # bytes
TIED = "tie_word_embeddings"  # what `config.json` of Hugging Face calls it
WRITERS = ("CausalLM", "MaskedLM", "LMHead", "ForPreTraining", "ConditionalGeneration")  # models that write words


@dataclass(frozen=True, eq=False)
class Table:
    """Row i of `weight` (v, d) belongs to id i."""

    name: str
    weight: Tensor
    padding: int | None = None  # the row that never moves
    pooling: str | None = None  # of a bag: mean or sum of the rows
    shared: tuple[str, ...] = ()  # other parameters that are this tensor
    is_certain: bool = True  # that it is a table, and is shared with nothing: a file of tensors does not say so

    @property
    def kind(self) -> str:
        """What its ids are: positions, types of a segment, or words, users and categories, which are just ids."""
        last = self.name.rpartition(".")[2] or self.name
        if POSITIONS.search(last):
            return "position"
        return "segment" if TYPES.search(last) else "id"


def read_tables(path: str | Path, reading: Reading | None = None) -> list[Table]:
    """The tables in a file, or in a model that is built by its own code. None where there are none."""
    path, reading = Path(path), reading or Reading()
    found = read_model(path)
    if reading.model is not None and not isinstance(found, nn.Module):
        module = build_model(reading.model)
        load_into(module, found, str(path))
        found = module
    if isinstance(found, nn.Module):
        return tables_of(found, reading.layer)
    tables = tables_among(found, reading.layer)
    return [_checked(_with_config(each, path)) for each in tables]


def tables_of(module: nn.Module, layer: str | None = None) -> list[Table]:
    """Those that the layers of a model look rows up in; with `layer` that one alone."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    found = []
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            shared = tuple(other for other in names[id(part.weight)] if other != f"{name}.weight".lstrip("."))
            pooling = part.mode if isinstance(part, nn.EmbeddingBag) else None
            weight = part.weight.detach().cpu()
            found.append(_checked(Table(name, weight, part.padding_idx, pooling, shared)))
    return _chosen(found, layer)


def tables_among(weights: Weights, layer: str | None = None) -> list[Table]:
    """Matrices without a bias whose names say that they are tables, or the one that `layer` names."""
    found = []
    for key, value in without_wrappers(weights).items():
        name = _layer_of(key)
        is_matrix = value.ndim == 2 and value.is_floating_point() and value.numel() > 0
        if is_matrix and (name == layer or (NAMED.search(_last(name)) and f"{name}.bias" not in weights)):
            shared = tuple(
                other
                for other, its in weights.items()
                if other != key and its.shape == value.shape and torch.equal(its, value)
            )
            found.append(Table(name, value.detach(), shared=shared, is_certain=False))
    return _chosen(found, layer)


def _layer_of(key: str) -> str:
    name, _, last = key.rpartition(".")
    return name if name and last in KEYS else key


def _last(name: str) -> str:
    """The last part of a name that is not a number: those in a list have numbers."""
    return next((part for part in reversed(name.split(".")) if not part.isdecimal()), name)


def _chosen(found: list[Table], layer: str | None) -> list[Table]:
    if layer is None:
        return found
    chosen = [table for table in found if table.name == layer]
    if found and not chosen:
        names = listed([table.name for table in found])
        raise UsageError(f"there is no table named {layer!r}; `layer` is one of: {names}")
    return chosen


def _checked(table: Table) -> Table:
    if not table.weight.isfinite().all():
        raise UnfitError(f"{table.name} has values that are NaN or infinite")
    return replace(table, weight=table.weight.float())


def folder_of(path: Path) -> Path:
    """Where what describes a model lies: in it, or in the same folder."""
    return path if path.is_dir() else path.parent


def _with_config(table: Table, path: Path) -> Table:
    """Whether the description in the same folder says that the table is that of the output, too."""
    about = folder_of(path) / "config.json"
    if not about.is_file() or about.stat().st_size > MAX_CONFIG or table.kind != "id":
        return table
    try:
        said = json.loads(about.read_text("utf-8"))
    except ValueError:
        return table
    if not isinstance(said, Mapping):
        return table
    classes = said.get("architectures")
    writes = any(word in str(name) for name in (classes if isinstance(classes, list) else []) for word in WRITERS)
    if writes and said.get(TIED, True):
        return replace(table, shared=(*table.shared, "the output layer, as config.json says"))
    return table
