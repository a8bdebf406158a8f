"""What classes are known to hold, attribute by attribute: `known.json`. The first row that fits decides."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import TypeAdapter

from unfit.base.contents import Item, is_optimisers
from unfit.base.files import Strict

Holds = Literal[
    "rows",
    "words",
    "values",
    "bank",
    "centres",
    "labels",
    "indices",
    "per sample",
    "order statistics",
    "thresholds",
    "counts",
    "sums",
    "paths",
    "optimiser",
    "average",
    "code",
    "none",
]
Severity = Literal["high", "medium", "low", "note"]
SEVERITY: dict[Holds, Severity] = {
    **dict.fromkeys(("rows",), "high"),
    **dict.fromkeys(("words", "values", "bank", "centres", "optimiser", "code"), "medium"),
    **dict.fromkeys(
        ("labels", "indices", "per sample", "order statistics", "thresholds", "paths", "average"), "low"
    ),
    **dict.fromkeys(("counts", "sums", "none"), "note"),
}
LEAKS: tuple[Holds, ...] = ("rows", "words", "values")  # what makes exit code 1
OF_CLASSIFIERS = ("_label_encoder", "_label_binarizer", "label_binarizer_", "le_", "_le")  # of labels alone
MANY = 64  # numbers of what may be a bank
HOME = re.compile(r"(^|[\s\"'=:])(/home/|/Users/|[A-Za-z]:\\+Users\\)\w")  # a person's folder
PATHS = ("names of files, folders or people", "delete the entry")
OPTIMISER = ("running sums of gradients: they hold samples as weights do", "publish `state_dict()` alone")


class Row(Strict):
    """Attributes of some classes of one package. `*` stands for all."""

    package: str
    classes: tuple[str, ...]
    attributes: tuple[str, ...]
    holds: Holds
    purpose: str
    remedy: str


class Named(Strict):
    """Keys of dicts, and parts of modules, that are called like this."""

    words: str
    holds: Holds
    purpose: str
    remedy: str


class Table(Strict):
    rows: tuple[Row, ...]
    names: tuple[Named, ...]


@cache
def table() -> Table:
    text = files("unfit.auditor.scan").joinpath("known.json").read_text("utf-8")
    return TypeAdapter(Table).validate_json(text)


@cache
def row_of(owner: str, attribute: str) -> Row | None:
    """What is known of this attribute of this class."""
    package, short = owner.partition(".")[0], owner.rpartition(".")[2]
    for row in table().rows:
        fits = row.package == package and (row.classes == ("*",) or short in row.classes)
        if fits and any(each in ("*", attribute) or attribute.startswith(f"{each}[") for each in row.attributes):
            return row
    return None


def known_of(item: Item) -> tuple[Holds, str, str] | None:
    """What an item is known to hold, its purpose and the remedy; by class, or by its name alone."""
    if item.name == "classes_" and any(f"{each}." in item.path for each in OF_CLASSIFIERS):
        return None  # the names of the classes
    if row := row_of(item.owner, item.name):
        return None if row.holds == "none" else (row.holds, row.purpose, row.remedy)
    if item.owner.startswith(("sklearn.", "numpy.", "scipy.")):
        return None  # all that is known of these stands in the table
    if is_optimisers(item.path):
        return ("optimiser", *OPTIMISER)
    return by_name(item)


def by_name(item: Item) -> tuple[Holds, str, str] | None:
    """Banks of samples and paths, by how they are called; paths of a person by what they are."""
    if any(HOME.search(text) for text in item.texts):
        return ("paths", *PATHS)
    words = set(re.split(r"[^a-z_]+", item.path.lower()))
    words |= {part for word in words for part in word.split("_")}
    for row in table().names:
        if words.isdisjoint(row.words.split()):
            continue
        wants_text = row.holds == "paths"
        many = not item.texts and item.num_values >= MANY
        if (wants_text and item.texts) or (not wants_text and many):
            return row.holds, row.purpose, row.remedy
    return None
