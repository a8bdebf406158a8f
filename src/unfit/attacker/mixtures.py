"""The first dense layer as mixtures of what feeds it: the inputs, or the maps of a convolution before it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.decay import read_decay
from unfit.attacker.features import Features, read_features
from unfit.attacker.span import AFTER_CLIFF, Span, live, read_span, visible_num_samples, visible_rank
from unfit.attacker.stationarity import Layers, Opaque, Stack
from unfit.base.errors import UnfitError
from unfit.base.nets import device, layers_of
from unfit.base.normal import kept_neurons, restricted
from unfit.base.target import Target

TYPICAL_STD = 0.25  # of a centred image
# Components have no scale. The protocol adds the mean image before it compares, and the mean face alone resembles
# many faces. A standard deviation well above that of centred images (0.1 to 0.3) keeps it from doing so.
CANDIDATE_STD = 1.0
EVEN = 0.6  # of the largest change, the median: 0.5 for equal inputs and uniform outgoing weights; Adam 0.63 to 1


@dataclass(frozen=True, eq=False)
class Mixtures:
    """Rows of `weight` are mixtures of maps of `shape`; the layers after it say how a map becomes an output."""

    target: Target
    base: Target | None  # the weights training started from, if they are known
    weight: Tensor  # (w, d)
    bias: Tensor | None
    shape: tuple[int, ...]
    conv: nn.Conv2d | None
    later: Layers  # none where what follows is not dense layers and ReLUs
    gates: tuple[Tensor, Tensor | None]  # weight and bias that decide which neurons are on: the target's own
    limits: tuple[float, float] | None  # of each value of a map
    start: Layers | None = None  # the base's dense layers, if there is a base
    decay: float = 1.0  # what weight decay left of the base: `weight` is W − decay · W₀
    found: list[Mixtures] = field(default_factory=list)  # the change since a start that an attack has found …
    told: dict[str, Any] = field(default_factory=dict)  # … and what it recorded of its search
    as_is: Mixtures | None = None  # of a normal form: the layer with all its neurons, which is attacked first

    @property
    def stack(self) -> Stack:
        """The attacked layer and what follows, as trained."""
        return _stack([self.gates, *self.later], self.target)

    @property
    def start_stack(self) -> Stack | None:
        """The same as training found it."""
        return None if self.start is None or self.base is None else _stack(self.start, self.base)

    @property
    def is_moment(self) -> bool:
        """Whether it is the moment of an optimiser, not a change of weights: see `read_moments`."""
        return self.base is self.target

    @property
    def decays_evenly(self) -> bool:
        """Whether weights are known not to have decayed: then each sample has one part in them and in the bias."""
        return self.decay == 1.0 and self.base is not None

    @property
    def relu(self) -> bool:
        """Whether a ReLU follows the attacked layer."""
        return self.target.architecture.tail is None or (self.target.whole is not None and self.target.whole.relu)

    @cached_property
    def span(self) -> Span:
        return read_span(self.weight)

    @cached_property
    def num_samples(self) -> int | None:
        """The size of the training set, where the spectrum shows it: see `visible_num_samples`."""
        num = visible_num_samples(self.span, self.weight, self.bias)
        if num is not None and self.is_adapter(num):
            return None
        if num is not None and self.conv is not None and self.bias is None:
            return self.span.rank  # maps of a convolution are not centred: no direction is lost
        return num

    @cached_property
    def estimated_num_samples(self) -> int | None:
        """The same where it is known that each sample entered the layer as one vector all through training.

        Behind layers that were trained too, and behind dropout, each step adds directions of its own. Steps that
        Adam scales for each weight are no sums over samples at all; moments are.
        """
        adaptive = self.target.has_adaptive_steps or is_even(self.weight)
        return self.num_samples if self.has_fixed_inputs and (self.is_moment or not adaptive) else None

    @cached_property
    def has_fixed_inputs(self) -> bool:
        """Whether nothing in front of the layer changed in training; without a base that is not known."""
        if self.conv is not None:
            return self.base is not None and not self.is_moment and _same_convolution(self.target, self.base)
        whole = self.target.whole
        if whole is None or not whole.has_prefix:
            return True
        if whole.has_dropout:
            return False
        if self.base is None or self.base.whole is None or self.base.whole is whole:
            return not self.target.has_parameters_in_front
        return whole.moved_since(self.base.whole) <= AFTER_CLIFF

    @cached_property
    def features(self) -> Features | None:
        """What the second layer says about pictures; None without a start, or where it says too little."""
        start, n = self.start_stack, self.num_samples
        if start is None or n is None or self.conv is not None or self.is_moment or not self.relu:
            return None
        return read_features(start, self.stack, self.decay, n)

    def is_adapter(self, num: int) -> bool:
        """Whether a later layer's change is of a rank below the number of samples: a merged update of low rank.

        Inputs stay as they are. What later layers see changes with each step, so plain steps add ever new ranks,
        up to the size of the layer, less one where a softmax makes the changes of all outputs sum to zero.
        """
        if self.start is None:
            return False
        pairs = zip(self.later, self.start[1:], strict=True)
        changes = (live(live(after - before).T) for (after, _), (before, _) in pairs)
        return any(0 < visible_rank(change) < min(num, min(change.shape) - 1) for change in changes)

    def facts(self) -> dict[str, Any]:
        """The target's hash and what its spectrum says; every attack records them."""
        return {
            "target": self.target.sha256,
            "decay": self.decay,
            "spectrum": self.span.values.tolist(),
            "noise_edge": self.span.edge,
            "rank": self.span.rank,
            "estimated_num_samples": self.estimated_num_samples,
        }

    def inputs(self, maps: Tensor) -> Tensor:
        """The inputs that these maps (m, d) come from, up to scale after a convolution: (m, *input shape)."""
        if self.conv is None:
            return maps.view(len(maps), *self.target.architecture.input_shape)
        return back_through(self.conv, maps.view(len(maps), *self.shape))


def read_mixtures(target: Target, base: Target | None = None) -> Mixtures:
    """The first dense layer, less what is left of the base's (the weights training started from)."""
    conv, dense = _layers(target)
    start, decay = None, 1.0
    weight, bias = dense[0]
    if base is not None:
        start = _layers(base)[1]
        decay, bias_decay = read_decay(dense[0], start[0])
        weight = weight - decay * start[0][0]
        bias = bias if bias is None or start[0][1] is None else bias - bias_decay * start[0][1]
    whole, architecture = target.whole, target.architecture
    is_positive = conv is not None or (whole is not None and whole.is_positive)
    shape = (whole and whole.map_shape) or (architecture.input_shape if conv is None else architecture.map_shape)
    limits = (0.0, torch.inf) if is_positive else target.input_range
    return Mixtures(target, base, weight, bias, shape, conv, dense[1:], dense[0], limits, start, decay)


def read_moments(target: Target) -> Mixtures:
    """The optimiser's moment of the first dense layer: a sum over samples, with no start in it.

    It is taken as the change from the target to itself: gates before and after are those of the weights at hand.
    Where decay is part of the gradient, the moment holds a multiple of the weights too, which is taken off.
    """
    assert target.moments is not None
    own, (weight, bias) = read_mixtures(target), target.moments
    scale = own.weight.norm() / weight.norm()  # moments are tiny; only their directions matter
    weight, bias = scale * weight.to(own.weight), None if bias is None else scale * bias.to(own.weight)
    c, bias_c = read_decay((weight, bias), own.gates, usual=0.0)
    weight = weight - c * own.weight
    bias = bias if bias is None or own.bias is None else bias - bias_c * own.bias
    return replace(own, base=target, weight=weight, bias=bias, start=[own.gates, *own.later])


def change_of_form(mixtures: Mixtures) -> Mixtures | None:
    """Of a normal form: the change since the initial weights that an attack has found for all its neurons.

    None if none were found, or if the form does more than leave neurons out. Generators fill whole layers, so the
    neurons of the form alone do not show the seed.
    """
    whole = mixtures.as_is
    if whole is None or not whole.found or (base := whole.found[0].base) is None:
        return None
    kept = kept_neurons(mixtures.target, whole.target)
    if kept is None:
        return None
    return read_mixtures(mixtures.target, replace(mixtures.target, weights=restricted(base.weights, kept)))


def check_base(mixtures: Mixtures) -> None:
    """Refuse a base that training did not start from: subtracting it must leave less noise than there was."""
    if mixtures.start is None or mixtures.is_moment or mixtures.span.ends:
        return
    left, before = mixtures.span.noise, read_span(mixtures.gates[0]).noise
    if left >= before:
        raise UnfitError(
            f"the `base` does not fit: the first layer less that of the base has more noise ({left:.2g}) than the "
            f"layer itself ({before:.2g}), so training did not start there; give the right base, or none"
        )


def is_even(change: Tensor) -> bool:
    """Whether most weights that changed did so by nearly as much as any: the first steps of Adam are all equal.

    Products of what neurons and inputs have are not, even if all inputs are equal: see `EVEN`.
    """
    sizes = change.abs().flatten()
    sizes = sizes[sizes > AFTER_CLIFF * sizes.max()]
    return len(sizes) > 0 and bool(sizes.median() > EVEN * sizes.max())


def _same_convolution(target: Target, base: Target) -> bool:
    return all(
        torch.equal(target.weights[name], base.weights[name]) for name in target.weights if "layer1" in name
    )


def _stack(layers: Layers, target: Target) -> Stack:
    return layers if target.architecture.tail is None else Opaque(layers[0], target.split)


def _layers(target: Target) -> tuple[nn.Conv2d | None, Layers]:
    """The convolution, if there is one, and the dense layers. A kernel as large as the inputs is a dense layer."""
    if target.architecture.tail is not None:
        bias = target.weights.get("layer1.bias")
        pair = target.weights["layer1.weight"].to(device()), None if bias is None else bias.to(device())
        return None, [pair]
    layers = layers_of(target.net().to(device()).requires_grad_(False))
    dense: Layers = [(layer.weight, layer.bias) for layer in layers if isinstance(layer, nn.Linear)]
    first = layers[0]
    if not isinstance(first, nn.Conv2d):
        return None, dense
    if first.kernel_size == target.architecture.input_shape[1:]:
        return None, [(first.weight.flatten(1), first.bias), *dense]
    return first, dense


def rescale(x: Tensor, std: float) -> Tensor:
    """Scale each candidate to this standard deviation."""
    return std * x / x.flatten(1).std(1).clamp_min(1e-12).view(-1, *[1] * (x.ndim - 1))


def back_through(conv: nn.Conv2d, maps: Tensor) -> Tensor:
    """The transposed convolution of the maps, each centred: their common level says nothing about the input.

    Inverting exactly would blow errors up, since trained kernels are few in effect; the transpose is the first
    step towards it, and on real maps better than any regularised inverse (docs/method.md).
    """
    assert not isinstance(conv.padding, str)
    return F.conv_transpose2d(maps - maps.mean((2, 3), keepdim=True), conv.weight, padding=conv.padding)
