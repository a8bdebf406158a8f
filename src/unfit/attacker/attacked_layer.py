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
from unfit.base.device import device
from unfit.base.errors import UnfitError
from unfit.base.nets import layers_of
from unfit.base.normal import kept_neurons, restricted
from unfit.base.target import Target

TYPICAL_STD = 0.25  # of a centred image
# Components have no scale. The protocol adds the mean image before it compares, and the mean face alone resembles
# many faces. A standard deviation well above that of centred images (0.1 to 0.3) keeps it from doing so.
CANDIDATE_STD = 1.0
USUAL_BETAS = (0.9, 0.95, 0.8, 0.5, 0.99)  # of Adam's first moment and of SGD's momentum
MOST_STEPS = 100  # between two checkpoints that are tried …
SMALLEST_POWER = 1e-8  # … while more of the earlier sums is left than rounding
SKETCH = 300  # random mixtures of neurons, and of inputs, that tell how many directions are left
LEAST_SEEN = 3e-7  # of the largest direction: below lies rounding
EVEN = 0.6  # of the largest change, the median: 0.5 for equal inputs and uniform outgoing weights; Adam 0.63 to 1


@dataclass(frozen=True, eq=False)
class Interval:
    """A part of the training: the model before and after it, by weights or by its optimiser's running sums."""

    before: Target
    after: Target
    of_moments: bool = False


@dataclass(frozen=True, eq=False)
class AttackedLayer:
    """Rows of `weight` are mixtures of maps of `shape`; the layers after it say how a map becomes an output.

    Its tensors are on the chosen device. The target and the base stay as stored, on the CPU.
    """

    target: Target
    base: Target | None  # the weights training started from, if they are known
    weight: Tensor  # (w, d)
    bias: Tensor | None
    shape: tuple[int, ...]
    conv: nn.Conv2d | None
    later: Layers  # none where what follows is not dense layers and ReLUs
    gates: tuple[Tensor, Tensor | None]  # weight and bias that decide which neurons are on: the target's own
    limits: tuple[float, float] | None  # of each value of a map
    initial: Layers | None = None  # the base's dense layers, if there is a base
    decay: float = 1.0  # what weight decay left of the base: `weight` is W − decay · W₀
    is_moment: bool = False  # of an optimiser, not a change of weights: see `read_moments`
    intervals: tuple[Interval, ...] = ()  # of a change in several steps, whose neurons stand in a row: the steps
    # of a normal form: the layer with all its neurons as an attack worked on it, and what its search came to
    as_is: AttackedLayer | None = None
    told: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def stack(self) -> Stack:
        """The attacked layer and what follows, as trained; of several steps after the last one."""
        return _stack([self.gates, *self.later], self.intervals[-1].after if self.intervals else self.target)

    @cached_property
    def initial_stack(self) -> Stack | None:
        """The same as training found it."""
        return None if self.initial is None or self.base is None else _stack(self.initial, self.base)

    @cached_property
    def ends(self) -> list[tuple[Stack, Stack]]:
        """The model before and after each step of the change; none where what is before is not known."""
        if len(self.intervals) > 1:
            return [(_whole_stack(each.before), _whole_stack(each.after)) for each in self.intervals]
        return [] if self.initial_stack is None else [(self.initial_stack, self.stack)]

    @property
    def is_stacked(self) -> bool:
        """Whether its neurons are those of the model several times over, once for each step of the change."""
        return len(self.intervals) > 1

    @property
    def is_between(self) -> bool:
        """Whether it is a sum of gradients between two states, which the change of later layers is not."""
        return any(each.of_moments for each in self.intervals)

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
        """What the second layer says about images; None without initial weights, or where it says too little."""
        initial, n = self.initial_stack, self.num_samples
        if (
            initial is None
            or n is None
            or self.is_stacked
            or self.conv is not None
            or self.is_moment
            or self.is_between
            or not self.relu
        ):
            return None
        return read_features(initial, self.stack, self.decay, n)

    def is_adapter(self, num: int) -> bool:
        """Whether a later layer's change is of a rank below the number of samples: a merged update of low rank.

        Inputs stay as they are. What later layers see changes with each step, so plain steps add ever new ranks,
        up to the size of the layer, less one where a softmax makes the changes of all outputs sum to zero.
        """
        if self.initial is None:
            return False
        pairs = zip(self.later, self.initial[1:], strict=True)
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


def read_layer(target: Target, base: Target | None = None) -> AttackedLayer:
    """The first dense layer, less what is left of the base's (the weights training started from)."""
    conv, dense = _layers(target)
    initial, decay = None, 1.0
    weight, bias = dense[0]
    if base is not None:
        initial = _layers(base)[1]
        decay, bias_decay = read_decay(dense[0], initial[0])
        weight = weight - decay * initial[0][0]
        bias = bias if bias is None or initial[0][1] is None else bias - bias_decay * initial[0][1]
    whole, architecture = target.whole, target.architecture
    is_positive = conv is not None or (whole is not None and whole.is_positive)
    shape = (whole and whole.map_shape) or (architecture.input_shape if conv is None else architecture.map_shape)
    limits = (0.0, torch.inf) if is_positive else target.input_range
    return AttackedLayer(target, base, weight, bias, shape, conv, dense[1:], dense[0], limits, initial, decay)


def read_intervals(target: Target, intervals: tuple[Interval, ...]) -> AttackedLayer:
    """What training added in each of these steps, as one change of a layer with the neurons of all steps.

    Each step is a sum over the same samples, so all together are one, with a column for each sample that is zero
    wherever one of the steps has a zero. Steps are brought to one size of rounding: their own size says how much
    was learnt, and not how well it is known.
    """
    layers = [replace(_of_interval(each), intervals=intervals) for each in intervals]
    last = replace(layers[-1], target=target)
    if len(layers) == 1:
        return last
    scales = [1 / _rounding(each) for each in layers]
    scales = [scale / max(scales) for scale in scales]
    biases = [scale * each.bias for scale, each in zip(scales, layers, strict=True) if each.bias is not None]
    weight = torch.cat([scale * each.weight for scale, each in zip(scales, layers, strict=True)])
    decay = min((each.decay for each in layers), key=lambda value: -abs(value - 1))
    return replace(last, weight=weight, bias=torch.cat(biases) if biases else None, decay=decay)


def _of_interval(interval: Interval) -> AttackedLayer:
    if not interval.of_moments:
        return read_layer(interval.after, interval.before)
    layer = read_layer(interval.after, interval.before)
    weight, bias = gradients_between(interval)
    scale = layer.gates[0].norm() / weight.norm().clamp_min(torch.finfo().tiny)  # only their directions matter
    own = scale * weight.to(layer.weight)
    return replace(layer, weight=own, bias=None if bias is None else scale * bias.to(layer.weight), decay=1.0)


def gradients_between(interval: Interval) -> tuple[Tensor, Tensor | None]:
    """m(t+k) − βᵏ m(t): a weighted sum of the k gradients in between, exactly, whatever was made of them."""
    (before, bias_before), (after, bias_after) = interval.before.moment, interval.after.moment  # type: ignore[misc]
    factor = _power(before, after, interval)
    both = bias_before is not None and bias_after is not None
    bias = bias_after.double() - factor * bias_before.double() if both else None  # type: ignore[union-attr]
    return after.double() - factor * before.double(), bias


def _power(before: Tensor, after: Tensor, interval: Interval) -> float:
    """βᵏ, as both files say, or by what is left: the fewest directions, those of the samples in between.

    Any other number would leave a sum of gradients too, of more steps. A sketch of both sums tells enough.
    """
    (first_beta, first_step), (beta, step) = interval.before.fading, interval.after.fading
    if beta is not None and beta == first_beta and step is not None and first_step is not None:
        return float(beta ** max(0.0, step - first_step))
    random = torch.Generator().manual_seed(0)
    left, right = (torch.randn(min(SKETCH, side), side, generator=random).double() for side in before.shape)
    first, second = (left @ each.double().cpu() @ right.T for each in (before, after))
    betas = USUAL_BETAS if beta is None else (beta,)
    powers = [0.0, *(beta**k for beta in betas for k in range(1, MOST_STEPS + 1))]
    least = LEAST_SEEN * float(torch.linalg.svdvals(second)[0])

    def directions(power: float) -> float:
        return float(torch.linalg.svdvals(second - power * first).clamp_min(least).log().sum())

    return min((power for power in powers if power > SMALLEST_POWER or not power), key=directions)


def is_seen(interval: Interval) -> bool:
    """Whether the gradients in between are fewer than the layer has directions: then their spectrum ends."""
    return read_intervals(interval.after, (interval,)).span.ends


def _rounding(layer: AttackedLayer) -> float:
    """The size of an entry's error: what is left where the spectrum has ended, and no less than its last digit."""
    own = layer.weight if layer.intervals[0].of_moments else layer.gates[0]
    least = float(own.double().square().mean().sqrt()) * torch.finfo(torch.float32).eps
    return max(layer.span.noise, least) if layer.span.ends else least


def read_moments(target: Target) -> AttackedLayer:
    """The optimiser's moment of the first dense layer: a sum over samples, with no initial weights in it.

    It is taken as the change from the target to itself: gates before and after are those of the weights at hand.
    Where decay is part of the gradient, the moment holds a multiple of the weights too, which is taken off.
    """
    assert target.moment is not None
    own, (weight, bias) = read_layer(target), target.moment
    scale = own.weight.norm() / weight.norm()  # moments are tiny; only their directions matter
    weight, bias = scale * weight.to(own.weight), None if bias is None else scale * bias.to(own.weight)
    c, bias_c = read_decay((weight, bias), own.gates, usual=0.0)
    weight = weight - c * own.weight
    bias = bias if bias is None or own.bias is None else bias - bias_c * own.bias
    return replace(own, base=target, weight=weight, bias=bias, initial=[own.gates, *own.later], is_moment=True)


def change_of_form(layer: AttackedLayer) -> AttackedLayer | None:
    """Of a normal form: the change since the initial weights that were found for all its neurons.

    None if none were found, or if the form does more than leave neurons out. Generators fill whole layers, so the
    neurons of the form alone do not show the seed.
    """
    whole = layer.as_is
    if whole is None or whole.base is None:
        return None
    kept = kept_neurons(layer.target, whole.target)
    if kept is None:
        return None
    return read_layer(layer.target, replace(layer.target, weights=restricted(whole.base.weights, kept)))


def check_base(layer: AttackedLayer) -> None:
    """Refuse a base that holds other initial weights: subtracting it must leave less noise than there was."""
    if layer.initial is None or layer.is_moment or layer.span.ends:
        return
    left, before = layer.span.noise, read_span(layer.gates[0]).noise
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


def _whole_stack(target: Target) -> Stack:
    return _stack(_layers(target)[1], target)


def _stack(layers: Layers, target: Target) -> Stack:
    return layers if target.architecture.tail is None else Opaque(layers[0], target.split.on(device()))


def _layers(target: Target) -> tuple[nn.Conv2d | None, Layers]:
    """The convolution, if there is one, and the dense layers. A kernel as large as the inputs is a dense layer."""
    if target.architecture.tail is not None:
        bias = target.weights.get("layer1.bias")
        pair = target.weights["layer1.weight"].to(device()), None if bias is None else bias.to(device())
        return None, [pair]
    layers = layers_of(target.net().requires_grad_(False))
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
    step towards it, and on real maps better than any regularised inverse (docs/method-unmix.md).
    """
    assert not isinstance(conv.padding, str)
    return F.conv_transpose2d(maps - maps.mean((2, 3), keepdim=True), conv.weight, padding=conv.padding)
