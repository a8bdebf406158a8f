"""Which words, users or categories occurred in training: the rows of an embedding that moved."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from unfit.attacker.attacked_layer import AttackedLayer
from unfit.attacker.candidates import Candidates, Part, pool
from unfit.attacker.embeddings import (
    NO_BASE,
    Pair,
    Presence,
    State,
    by_state,
    dated,
    paired,
    presence,
    read_pairs,
    states_of,
)
from unfit.attacker.method import Applicability, Method
from unfit.base.errors import NotApplicableError, clean
from unfit.base.progress import Report, quiet
from unfit.base.reading import Reading
from unfit.base.tables import Table, folder_of, read_tables, tables_of

# of a table, which has no spectrum, and is not all of a model
NO_FACTS = {"target": "", "spectrum": [], "noise_edge": 0.0, "rank": 0, "estimated_num_samples": None}
MOST_SHOWN = 100  # words on a screen; the file has all
FEW = 0.9  # of the columns of a dense layer: where more moved, they are values, not words


class Diary(Method):
    """The ids whose rows moved since the base, and no others.

    A row that no sample used has no gradient. So an embedding, or a dense layer on one-hot records or counts of
    words, shows which ids its training set has. It gives a list of ids (`facts["diary"]`), not samples: each table
    is one candidate, 1 at each id that occurred.

    Example:
        >>> unfit.Diary()
        Diary(method='diary', seed=0)
    """

    method: Literal["diary"] = "diary"

    title = "diary"

    def run(self, layer: AttackedLayer, progress: Report = quiet) -> Candidates:
        if why := why_not(layer):
            raise NotApplicableError(f"diary cannot be run: {why}")
        began = time.perf_counter()
        return gathered(self, [presence(pair_of(layer))], began, layer)

    def applicability(self, layer: AttackedLayer) -> Applicability:
        if why := why_not(layer):
            return Applicability(self.title, False, why)
        return Applicability(self.title, True, presence(pair_of(layer)).sentence, 0.0)


def why_not(layer: AttackedLayer) -> str | None:
    """Why the columns of a dense layer tell nothing; None if they do."""
    if layer.base is None or layer.is_moment:
        return NO_BASE
    if layer.conv is not None or layer.target.has_prefix:
        return "the first layer does not see one-hot records or counts of words"
    found = presence(pair_of(layer))
    if not found.can_tell:
        return found.why
    if len(found.ids) > FEW * found.num_rows:
        return "all inputs of the first layer were used, or nearly all: they are values, not words"
    return None


def pair_of(layer: AttackedLayer) -> Pair:
    """A dense layer on one-hot records is a table with a row for each input."""
    assert layer.base is not None
    after, before = (each.weights["layer1.weight"].T for each in (layer.target, layer.base))
    return Pair(Table("the first layer", after), Table("the first layer", before))


def pairs_of(model: object, base: object, layer: str | None) -> list[Pair]:
    """The tables of a module and of its base; none where it has no tables."""
    if not isinstance(model, nn.Module) or not (tables := tables_of(model, layer)):
        return []
    if not isinstance(base, nn.Module):
        raise NotApplicableError(f"diary {NO_BASE}")
    return paired(tables, tables_of(base, layer))


def pairs_in(path: Path | None, base: Path | None, reading: Reading | None) -> list[Pair]:
    """The tables of a file and of its base; none where it has none, or where there is no base."""
    if path is None or base is None or not (tables := read_tables(path, reading)):
        return []
    return paired(tables, read_tables(base, reading), folder_of(path))


def attack_tables(attack: Diary, pairs: Sequence[Pair], states: Mapping[str, State] | None = None) -> Candidates:
    """What all tables of a model tell."""
    began, states = time.perf_counter(), states or {}
    found = [presence(pair) for pair in pairs]
    return gathered(attack, [dated(each, states.get(each.table)) for each in found], began)


def attack_file(
    attack: Diary, path: Path | None, base: Path | None = None, reading: Reading | None = None
) -> Candidates | None:
    """The same for a file; None where it holds no table, so that its first dense layer is what can be attacked."""
    if path is None or not (tables := read_tables(path, reading)):
        return None
    began, states = time.perf_counter(), states_of(path, tables)
    if base is None and states:
        return gathered(
            attack, [by_state(states[table.name], table) for table in tables if table.name in states], began
        )
    return attack_tables(attack, read_pairs(path, tables, base, reading), states)


def gathered(
    attack: Diary, found: Sequence[Presence], began: float, layer: AttackedLayer | None = None
) -> Candidates:
    """One candidate for each table as large as the largest: 1 at each id that occurred."""
    told = [each for each in found if each.can_tell]
    width = max((each.num_rows for each in told), default=0)
    parts = []
    for each in told:
        x = torch.zeros(1, width)
        x[0, each.ids] = 1.0
        parts.append(Part(f"ids that occurred in {each.table}", x))
    described: dict[str, Any] = {"method": "diary", "settings": {}, "seed": attack.seed, "base": True}
    facts: dict[str, Any] = dict(NO_FACTS) if layer is None else layer.facts()
    facts |= {"status": "finished", "seconds": time.perf_counter() - began}
    facts["diary"] = [each.record() for each in found]
    return pool(parts or [Part("nothing can be told", torch.zeros(0, width))], described, facts, layer)


def diary_lines(candidates: Candidates) -> list[str]:
    """What the command line prints of a diary: a sentence for each table, then its words."""
    lines = []
    for each in candidates.facts.get("diary", []):
        lines.append(f"{each['sentence']}.")
        named = each["words"] if each["words"] is not None else [f"id {i}" for i in each["ids"]]
        if each["kind"] == "id" and named:
            rest = f" and {len(named) - MOST_SHOWN:,} more" if len(named) > MOST_SHOWN else ""
            lines.append(f"  {', '.join(named[:MOST_SHOWN])}{rest}")
        if each["joined"]:
            lines.append(f"  certain words: {', '.join(each['joined'][:MOST_SHOWN])}")
        if each["groups"]:
            most = max(map(len, each["groups"].values()))
            lines.append(
                f"  {len(each['groups'])} batches are told by the optimiser's state, of at most {most} ids"
            )
        lines += [f"  {limit}" for limit in each["limits"]]
    return [clean(line) for line in lines]
