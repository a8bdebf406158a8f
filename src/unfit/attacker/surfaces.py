"""What an attacker can take from a file: its surfaces, each a sum over samples that can be attacked by itself.

A surface is one dense layer that sees each sample once, of one copy of the weights, with what is subtracted from
it. A model has one for each layer through which samples enter it (`base/entries.py`): the layers behind it receive
nothing that did not pass it, so a plain stack has one, and a model of two branches has two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Protocol, get_args

from unfit.attacker.attacked_layer import (
    AttackedLayer,
    Interval,
    is_seen,
    read_intervals,
    read_layer,
    read_moments,
)
from unfit.attacker.series import Series, read_series
from unfit.base.contents import unread_moments
from unfit.base.entries import entries
from unfit.base.errors import UnfitError
from unfit.base.modules import split_at
from unfit.base.normal import normal_form
from unfit.base.target import State, Target

Kind = Literal["gradients", "moments", "change", "copies", "weights", "normal form"]
KINDS: tuple[Kind, ...] = get_args(Kind)  # in order of promise
WORDS: dict[Kind, str] = {
    "gradients": "the optimiser's sums minus what is left of those of an earlier checkpoint: gradients alone",
    "moments": "the optimiser's running sums of gradients, which hold no initial weights",
    "change": "the weights minus those of the base, so that the initial weights cancel",
    "copies": "the weights minus other copies of them from the same training, so that the initial weights cancel",
    "weights": "the weights, with nothing subtracted",
    "normal form": "the weights without neurons that hide others, with nothing subtracted",
}


class Attempt(Protocol):
    """What an attack on one surface leaves for the next: `Candidates`, or an audit's pool of them."""

    @property
    def layer(self) -> AttackedLayer | None: ...

    @property
    def facts(self) -> dict[str, Any]: ...


@dataclass(frozen=True, eq=False)
class Surface:
    """One dense layer of one copy of the weights; `layer` is its name, empty for the first of a plain model."""

    kind: Kind
    layer: str
    target: Target  # the model as it is attacked here
    base: Target | None = None
    intervals: tuple[Interval, ...] = ()  # between copies of the weights from the same training
    read: AttackedLayer | None = None  # the layer less what is subtracted, where it was read before

    @property
    def name(self) -> str:
        """Unique within a model: `change of encoder.0`."""
        return f"{self.kind} of {self.layer}" if self.layer else self.kind

    @cached_property
    def attacked(self) -> AttackedLayer:
        """The layer less what is subtracted; read once for all attacks."""
        if self.kind == "moments":
            return read_moments(self.target)
        if self.intervals:
            return read_intervals(self.target, self.intervals)
        return self.read or read_layer(self.target, self.base)

    def after(self, done: Mapping[str, Attempt]) -> Surface:
        """A normal form with what the attack on all its neurons worked on; `done` has this by the layer's name."""
        if self.kind != "normal form" or self.layer not in done:
            return self
        whole = done[self.layer]
        return replace(self, read=replace(self.attacked, as_is=whole.layer, told=whole.facts.get("initial") or {}))


@dataclass(frozen=True)
class Unread:
    """A surface that is there and cannot be attacked, and why. No audit passes while there is one."""

    name: str
    why: str


@dataclass(frozen=True, eq=False)
class Surfaces:
    """All surfaces of a model, the most promising first, and those that cannot be attacked."""

    found: tuple[Surface, ...]
    unread: tuple[Unread, ...] = ()
    used: tuple[State, ...] = ()  # other copies of the weights that are attacked
    notes: tuple[str, ...] = ()  # about copies that tell nothing


def surfaces(target: Target, base: Target | None = None, read: AttackedLayer | None = None) -> Surfaces:
    """What can be taken from this model, with the base it was trained from if that is known.

    `read`: the layer that the target names, if it was read before. Its spectrum takes seconds.
    """
    (first, *others), unread = _at_each_entry(target)
    series = read_series(target, base, target.states)
    found = _of_layer(first, base, read)
    found += [surface for each in others for surface in _of_layer(each, _base_at(base, each, target))]
    if series.used:
        found += [surface for each in (first, *others) for surface in _of_copies(each, base, series, target)]
    found.sort(key=lambda surface: KINDS.index(surface.kind))  # stable: layers stay in the order of the model
    return Surfaces(tuple(found), tuple(unread), series.used, tuple(_on_copies(series)))


def weights_alone(found: Surfaces, why: str) -> Surfaces:
    """Where the optimiser's sums and other copies of the weights are not attacked, they are named as such."""
    others = [each for each in found.found if each.kind in ("gradients", "moments", "copies")]
    kept = tuple(each for each in found.found if each not in others)
    return replace(found, found=kept, unread=(*found.unread, *(Unread(each.name, why) for each in others)))


def only_first(found: Surfaces, why: str) -> Surfaces:
    """Where only one layer's weights are looked at, all else is named as not attacked."""
    bare = weights_alone(found, why)
    first, *others = bare.found
    return replace(bare, found=(first,), unread=(*bare.unread, *(Unread(each.name, why) for each in others)))


def _at_each_entry(target: Target) -> tuple[list[Target], list[Unread]]:
    """The target once for each layer through which samples enter it, as it is for the first."""
    if target.whole is None or not target.whole.has_bypass:
        return [target], []
    ways = entries(target.whole, first=target.whole.layer)
    targets, unread = [target], list[Unread]()
    for layer in ways.layers[1:]:
        try:
            targets.append(split_at(target, layer))
        except UnfitError as error:
            unread.append(Unread(f"weights of {layer}", str(error)))
    if ways.has_more:
        unread.append(
            Unread("other layers", "the outputs follow the samples by a way that leads through no dense layer")
        )
    return targets, unread


def _base_at(base: Target | None, at: Target, target: Target) -> Target | None:
    """The base split at the same layer; None where only the base of the layer that was asked for is known."""
    if base is None:
        return None
    known = base.whole is not None and target.whole is not None and base.whole.module is not target.whole.module
    return split_at(base, at.split.layer) if known else None


def _of_copies(at: Target, base: Target | None, series: Series, target: Target) -> list[Surface]:
    """The steps between all copies, with what is attacked at this layer."""
    steps = [*series.rounds, *(Interval(before, after) for before, after in pairwise(series.states))]
    pairs = [[_state_at(state, at, target) for state in (each.before, each.after)] for each in steps]
    intervals = tuple(Interval(before, after) for before, after in pairs if before and after)
    if not intervals:
        return []
    own = base if at is target else None
    found = [Surface("copies", layer_of(at), at, own, intervals)]
    sums = [each for each in intervals if each.before.moment is not None and each.after.moment is not None]
    return [*found, *(_gradients(at, sums) if sums else ())]


def _state_at(state: Target, at: Target, target: Target) -> Target | None:
    """A state of the target as it is attacked at this layer."""
    if at is target:
        return state
    return at if state is target else _base_at(state, at, target)


def _gradients(at: Target, intervals: Sequence[Interval]) -> Iterator[Surface]:
    """What the optimiser's sums say of the steps in between, where they were few enough to be seen."""
    seen = [each for each in (replace(each, of_moments=True) for each in intervals) if is_seen(each)]
    if seen:
        yield Surface("gradients", layer_of(at), at, None, tuple(seen))


def _on_copies(series: Series) -> Iterator[str]:
    """What is not attacked of other copies of the weights, and why."""
    if series.frozen:
        yield (
            f"other copies of the weights, {named(series.frozen)}, are equal to them in the attacked layer: it "
            "did not change in between, so they add nothing"
        )
    if series.foreign:
        yield (
            f"other weights of the same shape, {named(series.foreign)}, are of another training: the noise of "
            "the initial weights does not cancel; an audit does not pass on them"
        )


def named(states: Sequence[State]) -> str:
    """Where they stand, for a sentence from which keys can be taken again."""
    return f"at {', '.join(f'`{each.name}`' for each in states)}"


def layer_of(target: Target) -> str:
    """The name of the attacked layer; empty in a plain model, of which it is the first."""
    return target.whole.layer if target.whole else ""


def _of_layer(target: Target, base: Target | None, read: AttackedLayer | None = None) -> list[Surface]:
    """Its moments, and the change since its base; without one its weights, and their normal form if it differs."""
    layer = layer_of(target)
    found = [Surface("moments", layer, target)] if target.moment is not None else []
    if base is not None:
        return [*found, Surface("change", layer, target, base, read=read)]  # a base belongs to these neurons
    weights = Surface("weights", layer, target, read=read)
    form = normal_form(target)
    return [*found, weights, *([] if form is target else [Surface("normal form", layer, form)])]


def moments_left(surfaces: Surfaces) -> list[str]:
    """Where the file holds running sums of gradients for an attacked layer that were not read."""
    paths = [path for surface in surfaces.found for path in unread_moments(surface.target)]
    return list(dict.fromkeys(paths))
