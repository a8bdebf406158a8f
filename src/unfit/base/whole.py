"""A model around the one dense layer that is attacked: what runs before it, and what follows it.

The model is run as it is. A hook on the layer takes what enters it, or puts something else in its place. So it
does not matter how the model is written.
"""

from __future__ import annotations

import copy
import traceback
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from unfit.base.errors import UnfitError

AT_ONCE = 256  # samples in one batch: the maps of a deep body take megabytes each
HELD = 1e-5  # relative change of the outputs that is rounding
NUM_PROBES = 16  # random samples that tell whether two prefixes do the same
NOT_THEIRS = (Path(torch.__file__).parent, Path(__file__).parents[1])  # code that is not the model's own
AFFINE = 1e-9  # relative difference, in double precision, from values that are scaled and moved one by one


class _ReachedError(Exception):
    """The layer was called: what follows is not needed."""


@dataclass(frozen=True, eq=False)
class Whole:
    """A model, in eval mode, and the name of its attacked layer; an empty name is the model itself, not split."""

    module: nn.Module
    layer: str
    input_shape: tuple[int, ...]  # of one sample
    axes: tuple[int, ...]  # of one sample as the model wants it: a vector, say, or steps × values
    has_prefix: bool  # whether the layer sees anything but the samples themselves
    feature_shape: tuple[int, ...]  # of what enters the attacked part
    map_shape: tuple[int, ...] | None  # of the maps that it was before it was flattened
    is_positive: bool  # whether what enters is never negative
    relu: bool  # whether a ReLU follows the layer

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.module.state_dict().items()}

    @cached_property
    def dense(self) -> nn.Module:
        return self.module.get_submodule(self.layer)

    @cached_property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def on(self, where: torch.device) -> Whole:
        """The same on this device: a copy, or itself if it is there."""
        return self if self.device == where else replace(self, module=copy.deepcopy(self.module).to(where))

    @cached_property
    def scaling(self) -> tuple[Tensor, Tensor] | None:
        """Scale and shift (d,), float64, where the prefix does no more than normalise each value of a sample."""
        if not self.has_prefix or self.feature_shape != self.input_shape:
            return None
        probe = torch.randn(self.input_shape, generator=torch.Generator().manual_seed(0)).double()
        x = torch.stack([torch.zeros_like(probe), torch.ones_like(probe), probe])
        exact = replace(self, module=copy.deepcopy(self.module).double())
        shift, one, at_probe = exact.features(x).flatten(1)
        scale = one - shift
        fits = torch.allclose(scale * probe.flatten() + shift, at_probe, AFFINE, AFFINE)
        return (scale, shift) if fits and bool(scale.all()) else None

    @cached_property
    def has_dropout(self) -> bool:
        """Whether dropout in front of the layer changes what enters it in each step of training."""
        called: list[nn.Module] = []
        leaves = [part for part in self.module.modules() if isinstance(part, _DropoutNd) and part.p > 0]
        hooks = [leaf.register_forward_pre_hook(lambda leaf, inputs: called.append(leaf)) for leaf in leaves]
        try:
            self.features(torch.zeros(1, *self.input_shape))
        finally:
            for hook in hooks:
                hook.remove()
        return bool(called)

    def moved_since(self, before: Whole) -> float:
        """How far what enters the layer has moved, for random samples and relative to its size."""
        x = torch.randn(NUM_PROBES, *self.input_shape, generator=torch.Generator().manual_seed(0))
        now, then = self.features(x).double(), before.features(x).double()
        return float((now - then).norm() / then.norm().clamp_min(torch.finfo().tiny))

    def call(self, x: Tensor) -> Tensor:
        """Samples to outputs (n, k)."""
        return as_columns(run_model(self.module, x.reshape(len(x), *self.axes)))

    def features(self, x: Tensor) -> Tensor:
        """What enters the attacked part for these samples: (n, *feature shape)."""
        with torch.no_grad():
            found = torch.cat([self._entering(part.to(self.device)).cpu() for part in x.split(AT_ONCE)])
        return found.view(len(x), *self.feature_shape)

    def enter(self, x: Tensor) -> Tensor:
        """The same with gradients, for one batch."""
        return self._entering(x).view(len(x), *self.feature_shape)

    def finish(self, features: Tensor, sums: Tensor | None = None) -> Tensor:
        """The outputs for these features; for the layer's own `sums` (n, w) instead, if they are given.

        Behind a prefix the model runs on zeros, and these values take their place in the layer: on one sample, or
        on as many as there are if another part of the model receives them too, which then adds the same to all.
        Without a prefix it runs on the features, which are samples: a connection may lead around the layer.
        """
        if not self.layer:
            return self.call(features)
        samples = values = features.flatten(1)
        if self.has_prefix:
            samples = features.new_zeros(len(values) if self.has_bypass else 1, *self.input_shape)
        hooks = [self.dense.register_forward_pre_hook(lambda layer, inputs: (values,))]
        if sums is not None:
            hooks.append(self.dense.register_forward_hook(lambda layer, inputs, output: sums))
        try:
            return self.call(samples.view(len(samples), *self.input_shape))
        finally:
            for hook in hooks:
                hook.remove()

    @cached_property
    def has_bypass(self) -> bool:
        """Whether samples go by another way than through the attacked layer.

        The layer's output is held while the samples differ: what differs behind it, something else has seen.
        Another branch may add nothing to the outputs of random samples, so what later layers receive counts too.
        """
        x = torch.randn(2, *self.input_shape, generator=torch.Generator().manual_seed(0)).to(self.device)
        is_held, differing = list[nn.Module](), list[nn.Module]()

        def hold(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            is_held.append(layer)
            return output[:1].expand_as(output)

        def look(part: nn.Module, inputs: tuple[object, ...]) -> None:
            values = (each for each in inputs if isinstance(each, Tensor) and each.is_floating_point())
            if is_held and any(len(each) == len(x) and differs(each) for each in values if each.numel() > 1):
                differing.append(part)

        others = [part for part in self.module.modules() if not list(part.children()) and part is not self.dense]
        hooks = [self.dense.register_forward_hook(hold)]
        hooks += [each.register_forward_pre_hook(look) for each in others]
        try:
            with torch.no_grad():
                phi = self.call(x)
        finally:
            for hook in hooks:
                hook.remove()
        return bool(differing) or differs(phi)

    def _entering(self, x: Tensor) -> Tensor:
        found: list[Tensor] = []

        def stop(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            found.append(inputs[0])
            raise _ReachedError

        hook = self.dense.register_forward_pre_hook(stop)
        try:
            self.call(x)
        except _ReachedError:
            pass
        finally:
            hook.remove()
        return found[0]


class Rest(nn.Module):
    """What follows, as a model of its own: from what enters the attacked part to the outputs."""

    def __init__(self, whole: Whole) -> None:
        super().__init__()
        self.module, self.whole = whole.module, whole

    def forward(self, features: Tensor) -> Tensor:
        return self.whole.finish(features)


def run_model(module: nn.Module, x: Tensor) -> Any:
    """What the model returns; what its own code raises is told as the model's, with the call that raised it."""
    try:
        return module(x)
    except (_ReachedError, UnfitError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # whatever a user's code may raise
        raise ModelError(error, x) from error


class ModelError(UnfitError):
    """The model's own code raised an exception."""

    def __init__(self, error: Exception, x: Tensor) -> None:
        self.said = " ".join(str(error).split("\n")[:1])
        shape = "×".join(map(str, x.shape[1:]))
        super().__init__(
            f"the model’s own code raised {type(error).__name__}: {self.said} ({_where(error)}), when called with "
            f"{len(x)} samples of shape {shape}"
        )


def _where(error: Exception) -> str:
    """The last call that is not PyTorch's or ours, as a reader of the model would look it up."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not any(Path(each.filename).is_relative_to(path) for path in NOT_THEIRS)]
    if not own and not frames:
        return "in what it returned"
    frame = own[-1] if own else frames[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}: {frame.line}"


def differs(values: Tensor) -> bool:
    """Whether the rows (one per sample) are not all the same up to rounding."""
    most = HELD * float(values.nan_to_num().abs().max())
    return not torch.allclose(values, values[:1].expand_as(values), rtol=HELD, atol=most)


def as_columns(phi: Tensor) -> Tensor:
    """Outputs as (n, k), also if the model squeezes a single output."""
    return phi.unsqueeze(1) if phi.ndim == 1 else phi.flatten(1)
