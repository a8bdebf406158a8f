"""Where the samples enter a model: each dense layer that receives them by another way than through an earlier one.

A plain stack has one such layer, its first: all that the later ones receive came through it. Parallel branches,
towers and the members of an ensemble have one each. The rule is tested by running the model: the outputs of the
layers found so far are held equal for all samples, and a layer whose inputs still differ has a way of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from unfit.base.watch import NUM_PROBES
from unfit.base.whole import Whole, differs


@dataclass(frozen=True)
class Entries:
    """`layers`: names in the order in which the model calls them. `has_more`: whether something else than a dense
    layer receives the samples too: the outputs still differ when all of these are held, or none leads around."""

    layers: tuple[str, ...]
    has_more: bool


@dataclass
class _Seen:
    """One run: which dense layers received inputs that differ between samples, in the order of their calls."""

    differing: list[str] = field(default_factory=list)
    num_calls: Counter[str] = field(default_factory=Counter)


def entries(whole: Whole, first: str | None = None) -> Entries:
    """The dense layers through which samples enter this model, `first` before the others if it is given."""
    x = torch.randn(NUM_PROBES, *whole.input_shape, generator=torch.Generator().manual_seed(0)).to(whole.device)
    found = [first] if first else []
    while True:
        seen, still = _run_with_held(whole, x, found)
        new = [name for name in seen.differing if name not in found and seen.num_calls[name] == 1]
        if not new:
            alone = first is not None and len(found) == 1
            return Entries(tuple(found), still or (alone and whole.has_bypass))
        found.append(new[0])


def _run_with_held(whole: Whole, x: Tensor, held: Sequence[str]) -> tuple[_Seen, bool]:
    """Run the model with these layers' outputs equal for all samples; also whether its outputs differ then."""
    seen = _Seen()
    with torch.no_grad(), _watching(whole.module, len(x), seen), _holding(whole.module, held):
        phi = whole.call(x)
    return seen, differs(phi)


@contextmanager
def _watching(module: nn.Module, num: int, seen: _Seen) -> Iterator[None]:
    parts = module.named_modules()
    names: dict[nn.Module, str] = {part: name for name, part in parts if isinstance(part, nn.Linear)}

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        name = names[layer]
        seen.num_calls[name] += 1
        if inputs[0].shape[:-1] == (num,) and differs(inputs[0]):  # one vector per sample
            seen.differing.append(name)

    hooks = [layer.register_forward_pre_hook(note) for layer in names]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _holding(module: nn.Module, names: Sequence[str]) -> Iterator[None]:
    hooks = [
        module.get_submodule(name).register_forward_hook(
            lambda layer, inputs, output: output[:1].expand_as(output)
        )
        for name in names
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
