"""What the published file holds besides what is attacked: samples in plain sight, and what no attack reads.

Verbatim samples need no attack and no proof, so they are exact. All else that was not attacked is named. A second
copy of the weights and the optimiser's sums of gradients hold samples as the attacked weights do: while nobody has
looked at them, no audit passes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import get_args

import torch
from torch import Tensor

from unfit.attacker.surfaces import Surfaces, moments_left
from unfit.auditor.calibration import p_more_often
from unfit.auditor.case import Case
from unfit.auditor.match import MIN_ERROR
from unfit.auditor.record import FileRecord, Kind, SampleRecord, Unattacked
from unfit.auditor.stored import Stored, stored_samples
from unfit.auditor.verdict import Doubt, Verbatim
from unfit.base.contents import Item, is_optimisers, is_under, root_of, second_states
from unfit.base.states import is_nested
from unfit.base.target import Target

SIGNIFICANT = 0.001  # p-value below which stored samples are exact: the strongest word needs more than others
MOST_LISTED = 50  # places and unread items in a record: a large model has thousands of tensors
MOST_AXES = 4  # of a kernel
MOST_NAMED = 3  # in one sentence
ORDER = get_args(Kind)  # of what was not attacked
WEIGHTS_ALONE = (
    "publish the weights alone, without these entries: `model.state_dict()` in a file of its own, or safetensors; "
    "audit that file again"
)
ONE_COPY = "publish one copy of the weights alone, or audit each copy by itself"
NO_STATE = "publish the weights alone, without the state of the optimiser, and audit that file"


@dataclass(frozen=True, eq=False)
class Published:
    """What is known of a file before anything is attacked."""

    record: FileRecord
    private: Tensor  # bool (n,): private samples that stand in the file, beyond chance
    found: Doubt | None  # the samples that stand in it in words, and what to do about it
    doubts: Sequence[Doubt]

    @property
    def num_verbatim(self) -> int:
        return int(self.private.sum())

    def verbatim(self, num_exact: int, num_graded: int) -> Verbatim | None:
        """For the verdict, with the number of samples that are exact or of the policy's grade in whatever way."""
        if self.found is None or not self.num_verbatim:
            return None
        return Verbatim(self.found.reason, self.found.step, num_exact, num_graded)


def look_through(case: Case, comparable: bool, surfaces: Surfaces) -> Published:
    """Look for both sets of samples in all that the file holds, and name what will not be attacked.

    Args:
        case: The case as it was read: its forms do not know which moments are attacked.
        surfaces: What will be attacked.
        comparable: Whether private and unseen samples are alike, so that counts of both may be compared.

    Records repeat by themselves where they have a few categories. So they must stand in the file more often than
    unseen ones do, unless each is rare and no unseen one stands there. An image that equals another is the same
    image: it is a leak, also where the file holds the whole data set.
    """
    stored = stored_samples(case.target.contents, (case.private, case.unseen), case.given, case.mean)
    num, num_unseen = int(stored.private.sum()), int(stored.unseen.sum())
    copies = case.num_copies  # unseen samples that are left out because they equal private ones, so they count too
    more_beyond, p_value = beyond_chance(stored, case.given[0].is_image, comparable, copies)
    found = _in_words(case.target, stored) if num or num_unseen else None
    used = [state.name for state in surfaces.used if not state.is_file]
    states = [
        each
        for each in second_states(case.target)
        if not _is_attacked(each, case.target, surfaces) and not any(is_nested(each, name) for name in used)
    ]
    rest = list(unattacked(case.target, states, surfaces))
    record = FileRecord(
        num_items=len(case.target.contents),
        num_stored=num,
        num_stored_unseen=num_unseen,
        p_value=p_value,
        places=[item.path for item in stored.places[:MOST_LISTED]],
        num_places=len(stored.places),
        rest=rest[:MOST_LISTED],
        num_rest=len(rest),
    )
    doubts = [*([found] if found and not more_beyond.any() else []), *_doubts(case.target, states, surfaces)]
    return Published(record, more_beyond, found, doubts)


def beyond_chance(stored: Stored, is_image: bool, comparable: bool, copies: int = 0) -> tuple[Tensor, float]:
    """Which private samples are there more often than unseen ones, or are too rare for chance; the p-value."""
    num, num_unseen = int(stored.private.sum()), int(stored.unseen.sum())
    p_value = p_more_often(num, len(stored.private), num_unseen + copies, len(stored.unseen) + copies)
    repeats = not is_image and num_unseen > 0
    return stored.private if comparable and p_value < SIGNIFICANT else stored.rare & (not repeats), p_value


def _is_attacked(state: str, target: Target, surfaces: Surfaces) -> bool:
    """Whether what looks like a second state is a part of the model that is attacked itself."""
    layers = [surface.target.weights["layer1.weight"] for surface in surfaces.found]
    return any(_is_among(item, layers) for item in target.contents if is_under(item.path, state))


def _doubts(target: Target, states: Sequence[str], surfaces: Surfaces) -> Iterator[Doubt]:
    if states:
        words = "the file holds other weights of this model, which were not attacked,"
        yield Doubt(f"{words} {located(states)}", ONE_COPY)
    moments = moments_left(surfaces)
    if moments and target.unread is None:  # that would say why
        words = "the file holds sums of gradients of the optimiser, which were not attacked,"
        yield Doubt(f"{words} {located(moments)}", NO_STATE)


# Samples in plain sight ---------------------------------------------------------------------------------------


def with_stored(
    samples: Sequence[SampleRecord], arrays: dict[str, Tensor], stored: Tensor
) -> tuple[list[SampleRecord], dict[str, Tensor]]:
    """Both with the samples that stand in the file: they are exact, and nothing differs from them."""
    if not stored.any():
        return list(samples), arrays
    new: dict[str, object] = {"similarity": 1.0, "assigned": 1.0, "ncc": 1.0, "l2": 0.0}
    new |= {"recovered": True, "grade": "exact", "stored": True}
    of_images: dict[str, object] = {"ssim": 1.0, "psnr": -10 * math.log10(MIN_ERROR)}
    told = [
        each.model_copy(update=new | (of_images if each.psnr is not None else {})) if here else each
        for each, here in zip(samples, stored.tolist(), strict=True)
    ]
    shown = arrays["reconstruction"].clone()
    shown[stored] = arrays["original"][stored]
    similar: dict[str, Tensor] = {
        name: values.masked_fill(stored, 1.0) for name, values in arrays.items() if name in ("similarity", "ssim")
    }
    return told, {**arrays, "reconstruction": shown, **similar}


def _in_words(target: Target, stored: Stored) -> Doubt:
    """What stands in the file, and what helps: entries can be left out, but not parts of the model."""
    n, m = len(stored.private), len(stored.unseen)
    num, num_unseen = int(stored.private.sum()), int(stored.unseen.sum())
    items = stored.places or stored.unseen_places
    where = f"verbatim in the file, {located([item.path for item in items])}"
    if num:
        verb, does = "stands" if num == 1 else "stand", "does" if num_unseen == 1 else "do"
        reason = f"{num} of {n} training samples {verb} {where} ({num_unseen} of {m} unseen samples {does})"
    else:
        verb = "stands" if num_unseen == 1 else "stand"
        reason = f"{num_unseen} of {m} unseen samples {verb} {where}: there may be training samples among the rest"
    parts = [item.path for item in items if _is_among(item, _parts(target))]
    if not parts:
        return Doubt(reason, WEIGHTS_ALONE)
    return Doubt(
        reason, f"do not publish this model: it stores samples, {located(parts)}; build one that stores none"
    )


def located(paths: Sequence[str]) -> str:
    """Where something stands: `at` and the paths, in backticks."""
    few = ", ".join(f"`{path.replace('`', chr(39))}`" for path in paths[:MOST_NAMED])
    return f"at {few}" + (f" and {len(paths) - MOST_NAMED} more" if len(paths) > MOST_NAMED else "")


def without_paths(text: str) -> str:
    """The sentence without what `located` put into it: keys may be names of people."""
    return re.sub(r"\bat `[^`]*`(?:, `[^`]*`)*", "at an entry whose name was removed", text)


# What no attack reads -----------------------------------------------------------------------------------------


def unattacked(target: Target, states: Sequence[str], surfaces: Surfaces) -> list[Unattacked]:
    """All in the file but the attacked weights and moments, the most important first; a whole state as one."""
    weights = [value for surface in surfaces.found for value in surface.target.weights.values()]
    copies = [value for state in surfaces.used for value in _parts(state.target)]
    attacked = [*target.weights.values(), *weights, *target.moments.values(), *copies]
    parts = _parts(target)
    sizes: dict[tuple[Kind, str], int] = {}
    key: tuple[Kind, str]
    for item in target.contents:
        state = next((each for each in states if is_under(item.path, each)), None)
        if state is not None:
            key = ("second state", state)
        elif _is_among(item, attacked):
            continue
        elif is_optimisers(item.path):
            key = ("optimiser", root_of(item.path))
        elif not isinstance(item.value, Tensor):
            key = ("text", item.path)
        else:
            key = ("model" if _is_among(item, parts) else "tensor", item.path)
        sizes[key] = sizes.get(key, 0) + item.num_values
    ordered = sorted(sizes.items(), key=lambda each: (ORDER.index(each[0][0]), -each[1]))
    return [Unattacked(path=path, kind=kind, num_values=num) for (kind, path), num in ordered]


def _parts(target: Target) -> list[Tensor]:
    """All tensors that the model computes with."""
    return [*target.weights.values(), *(target.whole.tensors.values() if target.whole else ())]


def _is_among(item: Item, tensors: Sequence[Tensor]) -> bool:
    """Whether it is one of them, in whatever type and order of axes it was saved: libraries differ in both."""
    value = item.value
    if not isinstance(value, Tensor):
        return False
    orders = [tuple(range(value.ndim)), *(permutations(range(value.ndim)) if 1 < value.ndim <= MOST_AXES else ())]
    return any(
        each.shape == tuple(value.shape[axis] for axis in order) and _is_equal(value.permute(order), each)
        for each in tensors
        if each.numel() == value.numel()
        for order in dict.fromkeys(orders)
    )


def _is_equal(value: Tensor, other: Tensor) -> bool:
    """The first row tells most apart: large models have many layers of one shape."""
    first = (slice(0, 1),) * (value.ndim - 1)
    return all(torch.equal(a.to(b), b) for a, b in ((value[first], other[first]), (value, other)))
