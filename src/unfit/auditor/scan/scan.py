"""Scan one file, folder of one model, or live object: what is it known to hold, and what of one's own samples?"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unfit.auditor.arrays import Arrays
from unfit.auditor.comparability import compare_sets
from unfit.auditor.labels import no_labels
from unfit.auditor.published import SIGNIFICANT, beyond_chance
from unfit.auditor.samples import Samples
from unfit.auditor.scan.compare import MISSING, Known, Mask, hashes, patterns_held, rows_held
from unfit.auditor.scan.data import Side, side_of
from unfit.auditor.scan.findings import Finding, ScanRecord, base_name, is_leak_by_class, ordered, running, shown
from unfit.auditor.scan.forms import forms_of, word_patterns
from unfit.auditor.scan.known import SEVERITY, Holds, known_of
from unfit.auditor.scan.overlap import Overlap, overlap_of
from unfit.auditor.stored import Stored, stored_samples
from unfit.base.contents import Item
from unfit.base.held import Held, held_by, held_in

MOST_PAIRS = 2.0**31  # rows of one array and samples that are compared for nearness: a few seconds
MOST_COMPARED = 2**22  # values of both sets that are checked for being alike
CHUNK = 2**23  # values of an array at once
READ_BLOCK = 2**22


def scan(
    model: Any, private: Arrays | None = None, unseen: Arrays | None = None, *, examples: bool = False
) -> ScanRecord:
    """What stands in a file, or in a live model, in plain sight?

    Args:
        model: A path, a fitted estimator or pipeline of scikit-learn, or a `torch.nn.Module`.
        private: What it was fitted on: arrays, a table, or a list of texts. Without it, the scan goes by classes.
        unseen: Samples of the same kind that it never saw: the control.
        examples: Show a row, word or value of each finding. They are somebody's.

    Returns:
        All findings, the worst first; `exit_code` is 1 if private samples, words or values are among them.

    Example:
        >>> found = unfit.scan("model.pt", private=x, unseen=x_test)
        >>> found.exit_code  # 1 if private samples, words or values stand in it
        0
    """
    began = time.perf_counter()
    own, other = (None if each is None else side_of(each) for each in (private, unseen))
    if isinstance(model, str | Path):
        path = Path(model)
        return scanned(held_in(path), str(model), file_facts(path), own, other, examples, began)
    return scanned(held_by(model), type(model).__name__, (0, None), own, other, examples, began)


def scanned(
    held: Held,
    name: str,
    file: tuple[int, str | None],
    own: Side | None,
    other: Side | None,
    examples: bool,
    began: float,
) -> ScanRecord:
    """The record of what a file holds."""
    unread = list(held.unread)
    groups = _groups(held.items)
    if own is None:
        findings = [group.by_class(examples) for group in groups if group.known]
        banks = (group.items[0].path for group in groups if group.known and group.holds == "bank")
        unread += [
            f"`{path}` may hold samples, by its name: compare it with the private samples" for path in banks
        ]
    else:
        matches = match(held.items, own, other)
        findings, unmatched = _compared(groups, matches, own, other, examples)
        unread += unmatched
    if names := running(sorted(held.names)):
        findings.append(_code(names))
    return ScanRecord(
        file=name,
        sha256=file[1],
        num_bytes=file[0],
        num_items=len(held.items),
        num_private=None if own is None else own.num,
        num_unseen=None if other is None else other.num,
        findings=ordered(findings),
        unread=tuple(unread),
        seconds=time.perf_counter() - began,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


# What classes are known to hold -------------------------------------------------------------------------------


@dataclass
class Group:
    """Items of one class and attribute, such as the categories of all columns."""

    known: tuple[Holds, str, str] | None
    items: list[Item] = field(default_factory=list)

    @property
    def holds(self) -> Holds:
        return self.known[0] if self.known else "bank"

    def by_class(self, examples: bool) -> Finding:
        assert self.known is not None
        texts = sum(len(each.texts) for each in self.items)  # the keys of a dict count, and not their numbers too
        num = texts or sum(_num_rows(each) if self.holds == "rows" else each.num_values for each in self.items)
        return self.finding(num, is_leak_by_class(self.holds), examples)

    def finding(self, num: int, is_private: bool, examples: bool) -> Finding:
        assert self.known is not None
        holds, purpose, remedy = self.known
        first = self.items[0]
        return Finding(
            holds=holds,
            path=first.path,
            num_places=len(self.items),
            owner=first.owner,
            num=num,
            is_private=is_private,
            basis="by class" if first.owner else "by name",
            severity=SEVERITY[holds],
            example=_example(first) if examples else None,
            purpose=purpose,
            remedy=remedy,
        )


def _num_rows(item: Item) -> int:
    return len(item.value) if isinstance(item.value, Tensor) and item.value.ndim > 1 else 1


def _groups(items: Sequence[Item]) -> list[Group]:
    found: dict[object, Group] = {}
    for item in items:
        known = known_of(item)
        place = item.path[: len(item.path) - len(item.name)] if item.owner else ""
        key: object = (known, item.owner, base_name(place), base_name(item.name)) if item.owner else item.path
        if known is not None and known[0] == "optimiser":
            key = known
        found.setdefault(key, Group(known)).items.append(item)
    return list(found.values())


def _example(item: Item) -> str:
    if item.texts:
        return shown(item.texts[0])
    assert isinstance(item.value, Tensor)
    first = item.value[0] if item.value.ndim > 1 and len(item.value) else item.value
    return shown(", ".join(f"{each:g}" for each in first.flatten()[:20].tolist()))


def _code(names: Sequence[str]) -> Finding:
    return Finding(
        holds="code",
        path=", ".join(names[:5]),
        owner="",
        num=len(names),
        is_private=False,
        basis="by name",
        severity="medium",
        purpose="loading the file calls these; tools made for this look closer",
        remedy="do not load it; ask for safetensors, skops or ONNX",
    )


# With the data ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Matches:
    """Which samples stand in which item, and which of them chance would not put there."""

    by_item: dict[int, Mask]  # by the identity of the item: (n + m,)
    beyond: Mask  # (n,)


def match(items: Sequence[Item], own: Side, other: Side | None) -> Matches:
    """Compare every array with all samples."""
    x = own.x if other is None or own.x.shape[1] != other.x.shape[1] else np.concatenate([own.x, other.x])
    num, total = own.num, own.num + (0 if other is None else other.num)
    by_item: dict[int, Mask] = {}
    rare = np.zeros(total, dtype=bool)
    if x.shape[1] > 1 and len(x) == total:
        forms = [Known(each) for each in forms_of(x, num, items)]
        for item in items:
            for rows, is_half in _matrices(item, {form.x.shape[1] for form in forms}):
                here, few = rows_held(rows, forms, is_half)
                _add(by_item, item, here)
                rare |= few
        near = _near(items, own, other)
        for item, mask in near.by_item:
            _add(by_item, item, mask.numpy())
        rare[:num] |= near.rare.numpy()
    elif not x.shape[1] and own.texts:
        texts = [*own.texts, *(other.texts if other else ())]
        samples = np.array([*own.samples, *(own.num + i for i in (other.samples if other else ()))])
        for pattern in word_patterns(texts, items):
            for item in items:
                for rows, _ in _matrices(item, {pattern.shape[1]}):
                    # short texts share their words with others: these are never too rare for chance
                    here = np.zeros(total, dtype=bool)
                    here[samples[patterns_held(rows, pattern)]] = True
                    _add(by_item, item, here)
    if x.shape[1] and _repeats(x, by_item, items, own):
        rare[:] = False
    return Matches(by_item, _beyond(by_item, rare, own, other))


def _repeats(x: npt.NDArray[np.float64], by_item: dict[int, Mask], items: Sequence[Item], own: Side) -> bool:
    """Whether samples repeat so often that chance alone may have put the private ones into the file.

    Columns that depend on each other make a row look rare that is not: what repeats among the samples tells.
    """
    from scipy.special import bdtrc

    numbers, counts = np.unique(hashes(np.nan_to_num(x, nan=MISSING)), return_inverse=True, return_counts=True)[1:]
    share = float((counts[numbers] > 1).mean())
    if not by_item or not share or len(own.shape) == 3:  # an image that equals another is the same image
        return False
    tensors = [item.value for item in items if id(item) in by_item and isinstance(item.value, Tensor)]
    rows = max((len(each) for each in tensors if each.ndim), default=len(x))
    chance = 1 - (1 - share) ** max(1.0, rows / len(x))
    found = int(np.logical_or.reduce([mask[: own.num] for mask in by_item.values()]).sum())
    return float(bdtrc(found - 1, own.num, chance)) >= SIGNIFICANT


def _add(by_item: dict[int, Mask], item: Item, here: Mask) -> None:
    if here.any():
        by_item[id(item)] = by_item[id(item)] | here if id(item) in by_item else here


def _matrices(item: Item, sizes: Collection[int]) -> Iterator[tuple[npt.NDArray[np.float64], bool]]:
    """An array as rows, along its first axis and, if such rows have the size of a sample, along its second.

    A large one comes in parts.
    """
    value = item.value
    if not isinstance(value, Tensor) or value.ndim < 2 or value.is_complex() or not value.numel():
        return
    is_half = value.dtype in (torch.float16, torch.bfloat16)
    flat = value.flatten(1)
    for rows in (flat, flat.T) if value.ndim == 2 and len(value) in sizes else (flat,):
        if rows.shape[1] > 1:
            for part in rows.split(max(1, CHUNK // rows.shape[1])):
                yield part.double().numpy(force=True), is_half


def _near(items: Sequence[Item], own: Side, other: Side | None) -> Stored:
    sets = _samples(own), _samples(other if other is not None else Side(own.x[:0], shape=own.shape))
    return stored_samples(items, sets, sets, torch.zeros_like(sets[0].x[:1]), MOST_PAIRS)


def _samples(side: Side) -> Samples:
    x = torch.from_numpy(np.nan_to_num(side.x)).float()
    x = x.reshape(len(x), *side.shape) if len(side.shape) == 3 else x
    labels = no_labels(len(x))
    return Samples(x, torch.from_numpy(labels.classes), torch.arange(len(x)), labels.names, shift=0.0)


def _beyond(by_item: dict[int, Mask], rare: Mask, own: Side, other: Side | None) -> Mask:
    """By the rule of audits: more often than unseen ones, or too rare."""
    num, total = own.num, own.num + (other.num if other else 0)
    found = np.zeros(total, dtype=bool)
    for mask in by_item.values():
        found |= mask
    if not found.any():
        return found[:num]
    private, unseen = (torch.from_numpy(each) for each in (found[:num], found[num:]))
    stored = Stored(private, unseen, private & torch.from_numpy(rare[:num]), [], [], [])
    return beyond_chance(stored, len(own.shape) == 3, _alike(own, other))[0].numpy()


def _alike(own: Side, other: Side | None) -> bool:
    """Whether counts of both sets may be compared."""
    if other is None or own.x.shape[1] != other.x.shape[1]:
        return False
    if not own.x.shape[1]:
        return True
    if own.x.size + other.x.size > MOST_COMPARED or min(own.num, other.num) < 2:
        return False
    return bool(compare_sets(_samples(own), _samples(other)).comparable)


def _compared(
    groups: Sequence[Group], matches: Matches, own: Side, other: Side | None, examples: bool
) -> tuple[list[Finding], list[str]]:
    """Findings by comparison where there are any, by class where there are none; and what was not matched."""
    found, unmatched = list[Finding](), list[str]()
    alike = cache(lambda: _alike(own, other))
    for group in groups:
        is_told = group.holds in ("values", "words") and group.known is not None
        here = _rows_finding(group, matches, own, other, examples)
        overlap = None if here else overlap_of(group.items, own, other, is_told)
        if overlap is not None and overlap.is_beyond_chance and alike():
            here = _overlap_finding(group, overlap, examples)
        if here is not None:
            found.append(here)
        elif group.known:
            found.append(group.by_class(examples).model_copy(update={"is_private": False}))
            if why := _unmatched(group, overlap):
                unmatched.append(f"`{group.items[0].path}` {why}")
    return found, unmatched


def _unmatched(group: Group, overlap: Overlap | None) -> str | None:
    """Why a class that stores samples is not cleared."""
    if group.holds == "rows":
        return (
            "holds rows of samples, but none of those that were given: it was fitted on others, or on a form of "
            "them that is not known"
        )
    return overlap.unsure if overlap is not None and group.holds in ("values", "words") else None


def _rows_finding(group: Group, matches: Matches, own: Side, other: Side | None, examples: bool) -> Finding | None:
    here = np.zeros(own.num + (other.num if other else 0), dtype=bool)
    for item in group.items:
        here |= matches.by_item.get(id(item), np.zeros_like(here))
    private = here[: own.num] & matches.beyond
    if not private.any() or (other and here[own.num :].mean() > private.mean()):
        return None
    first = next(item for item in group.items if id(item) in matches.by_item)
    known = group.known if group.known and group.holds in ("rows", "bank", "centres") else None
    purpose, remedy = (known[1], known[2]) if known else ("not known", "publish the model without this entry")
    return Finding(
        holds="rows",
        path=first.path,
        num_places=sum(id(item) in matches.by_item for item in group.items),
        owner=first.owner,
        num=int(private.sum()),
        num_unseen=None if other is None else int(here[own.num :].sum()),
        of=own.num,
        is_private=True,
        basis="compared",
        severity="high",
        example=_row(own, int(np.flatnonzero(private)[0])) if examples else None,
        purpose=purpose,
        remedy=remedy,
    )


def _row(own: Side, i: int) -> str:
    """A sample as it was given."""
    return shown(", ".join(f"{each:g}" for each in own.x[i][:20]) if own.x.shape[1] else own.texts[i])


def _overlap_finding(group: Group, overlap: Overlap, examples: bool) -> Finding:
    first = group.items[0]
    known = group.known or (overlap.holds, "not known", "delete the entry")
    return Finding(
        holds=overlap.holds,
        path=first.path,
        num_places=len(group.items),
        owner=first.owner,
        num=overlap.num,
        num_unseen=overlap.num_unseen,
        of=overlap.of,
        is_private=True,
        basis="compared",
        severity="medium",
        example=shown(overlap.example) if examples else None,
        purpose=known[1],
        remedy=known[2],
    )


# Files --------------------------------------------------------------------------------------------------------


def file_facts(path: Path) -> tuple[int, str | None]:
    """The size and hash of a file; a folder has no hash."""
    return _size(path), _sha256(path)


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.iterdir() if each.is_file()) if path.is_dir() else 0


def _sha256(path: Path) -> str | None:
    if not path.is_file():
        return None
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BLOCK):
            digest.update(block)
    return digest.hexdigest()
