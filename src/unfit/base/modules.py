"""Turn a user's `nn.Module` into a Target: find the dense layer to attack, what feeds it, and what follows it.

A model of dense layers with ReLUs in between, after at most one convolution, is rebuilt as a whole. Any other is
split at a dense layer. What comes before is its prefix: the attacks recover what enters the layer. What follows
matters only to attacks that use gates or stationarity.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unfit.base.contents import Item
from unfit.base.errors import NotApplicableError, UnfitError, UsageError, listed
from unfit.base.formats.sklearn import from_sklearn
from unfit.base.formats.tensors import without_wrappers
from unfit.base.held import held_by
from unfit.base.nets import MAX_PARAMETERS, Architecture, outputs
from unfit.base.target import Target, Weights, fit_weights
from unfit.base.watch import ROUNDING, Call, Layer, Run, is_close, padding_of, possible_shapes, run_on_random
from unfit.base.whole import Whole


class Estimator(Protocol):
    """A fitted `MLPClassifier` or `MLPRegressor` of scikit-learn, or a pipeline that ends in one."""

    def predict(self, X: Any) -> Any: ...  # noqa: N803


UNREADABLE: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (lambda part: ".quantized." in type(part).__module__, "quantised; give the model as it was before that"),
    (is_lazy, "no values yet; run the model once"),
    (lambda part: isinstance(part, Tensor) and part.is_meta, "no values (device meta); load the weights first"),
)


def as_target(
    model: Target | nn.Module | Estimator,
    input_shape: tuple[int, ...] | None = None,
    input_range: tuple[float, float] | None = None,
    layer: str | None = None,
    data_shape: tuple[int, ...] | None = None,
) -> Target:
    """Convert a trained module, however it is written: it is run on random inputs, and its layers are watched.

    Args:
        model: A `torch.nn.Module` or a fitted perceptron of scikit-learn; it is left as it is.
        input_shape: The shape of one sample; by default a square image if the first layer has s² or 3s² inputs
            (s ≥ 8), else a vector.
        input_range: Bounds of each input value, if they are known.
        layer: The name of the dense layer to attack; by default the first that sees each sample once.
        data_shape: The shape of the samples that there are. Without `input_shape` it is tried first, then others
            with the same number of values.

    Example:
        >>> target = unfit.as_target(model)
    """
    if isinstance(model, Target):
        return model
    given = model
    if is_sklearn(model):
        model = from_sklearn(model)
    if not isinstance(model, nn.Module):
        raise UsageError(
            "expected a torch.nn.Module, a fitted perceptron of scikit-learn or a Target "
            f"(`unfit.load_target` reads one of a file), got {type(model).__name__}"
        )
    _refuse(_broken(model))
    module = _copied(model).cpu().float().eval().requires_grad_(False)  # leave the user's module alone
    module.register_forward_hook(_logits)
    run = run_on_random(module, possible_shapes(module, input_shape, data_shape))
    if layer is None and (plain := _rebuilt(run, run.calls, tuple(run.x.shape[1:]), input_range)):
        found = plain
    else:
        found = _split(run, _position(run, layer), input_range)
    found = replace(found, shape_is_told=input_shape is not None)
    return with_contents(found, "model", lambda: held_by(given).items)


def split_at(target: Target, layer: str) -> Target:
    """The same model, attacked at another dense layer; what else its file holds stays with it."""
    whole = target.split
    run = run_on_random(whole.module, [whole.axes])
    split = _split(run, _position(run, layer), target.input_range)
    return replace(
        split,
        moments=target.moments,
        fading=target.fading,
        unread=target.unread,
        contents=target.contents,
        states=target.states,
        shape_is_told=target.shape_is_told,
    )


def with_contents(target: Target, what: str, read: Callable[[], list[Item]]) -> Target:
    """With all that the file or model holds. Where that cannot be read, the weights still can: it is noted."""
    try:
        return replace(target, contents=tuple(read()))
    except UnfitError as error:
        return replace(target, unread=f"the rest of the {what} was not read: {error}")


def is_sklearn(model: object) -> bool:
    """Whether this is an estimator of scikit-learn, which need not be installed."""
    return any(kind.__module__.startswith("sklearn.") for kind in type(model).__mro__)


def as_base(base: Target | nn.Module | Estimator | None, target: Target) -> Target | None:
    """Convert the weights that training started from; they must have the target's architecture."""
    if base is None:
        return None
    layer = target.whole.layer if target.whole else None
    base = _alone_as(target, as_target(base, target.taken_shape, target.input_range, layer))
    if base.architecture != target.architecture:
        raise UnfitError(
            f"the base is {base.architecture}, the model {target.architecture}: "
            "`base` must be the weights that this model's training started from"
        )
    return base


def _alone_as(target: Target, base: Target) -> Target:
    """A base whose BatchNorm is fresh looks plain, because that does nothing yet. Its first layer is compared."""
    has_more = target.architecture.tail is not None and base.architecture.tail is None
    same = has_more and all(
        name in base.weights and base.weights[name].shape == value.shape for name, value in target.weights.items()
    )
    if not same:
        return base
    weights = {name: base.weights[name] for name in target.weights}
    return replace(base, architecture=target.architecture, weights=weights)


def base_from(weights: Weights, target: Target, path: str) -> Target:
    """The base of a model that was split: the same model with these tensors, or those of the attacked part."""
    if weights.keys() == target.weights.keys():
        return replace(target, weights=fit_weights(weights, target.architecture, path))
    module = copy.deepcopy(target.split.module)
    load_into(module, weights, path)
    base = as_base(module, target)
    assert base is not None
    return base


def load_into(module: nn.Module, weights: dict[str, Tensor], path: str) -> None:
    """Put a checkpoint's tensors into a model; one error lists everything that does not fit."""
    own = module.state_dict()
    wanted = without_wrappers(own)  # as is done with a checkpoint's names
    problems = [f"{name} is missing" for name in wanted if name not in weights]
    problems += [f"{name} is not in the model" for name in weights if name not in wanted]
    problems += [
        f"{name} has shape {tuple(weights[name].shape)}, the model's {tuple(value.shape)}"
        for name, value in wanted.items()
        if name in weights and weights[name].shape != value.shape
    ]
    if problems:
        raise UnfitError(f"{path}: the weights do not fit the model: {listed(problems)}")
    module.load_state_dict({name: weights[short] for name, short in zip(own, wanted, strict=True)})


# What the model does ------------------------------------------------------------------------------------------


def _broken(module: nn.Module) -> list[str]:
    if isinstance(module, torch.jit.ScriptModule):
        return ["it is TorchScript, whose layers cannot be watched; load its state_dict() into the module itself"]
    parts = [*module.named_modules(), *module.named_parameters()]
    for is_unreadable, why in UNREADABLE:
        if names := [name for name, part in parts if is_unreadable(part)]:
            return [f"{listed(names)}: {why}"]
    if (total := sum(value.numel() for value in module.parameters())) > MAX_PARAMETERS:
        return [f"{total:,} parameters; the limit is {MAX_PARAMETERS:,}"]
    return [
        f"{name} has values that are NaN or infinite"
        for name, value in module.named_parameters()
        if not value.isfinite().all()
    ]


def _refuse(problems: list[str]) -> None:
    if problems:
        raise UnfitError(f"the model cannot be attacked: {listed(problems)}")


def _copied(module: nn.Module) -> nn.Module:
    """A copy, also of a module whose layers keep weights that they computed (weight norm, pruning)."""
    computed = (v for m in module.modules() for v in vars(m).values() if isinstance(v, Tensor) and not v.is_leaf)
    return copy.deepcopy(module, {id(value): value.detach() for value in computed})


def _logits(module: nn.Module, inputs: object, returned: object) -> object:
    """The outputs themselves, of a model that returns them in a dict as `logits`, or first of several things."""
    if isinstance(returned, Mapping):
        return returned.get("logits", returned)
    return returned[0] if isinstance(returned, tuple) and returned else returned


# A whole model of dense layers ----------------------------------------------------------------------------------


def _rebuilt(
    run: Run, calls: list[Call], shape: tuple[int, ...], input_range: tuple[float, float] | None
) -> Target | None:
    """The calls as dense layers with ReLUs in between, after at most one convolution, if they are such a model."""
    x = run.x if calls is run.calls else calls[0].received
    if not calls or not _is_plain(calls, x, run.phi):
        return None
    target = _from_layers([call.layer for call in calls], shape, input_range)
    return target if is_close(outputs(target.net(), x.view(-1, *shape)), calls[-1].output) else None


def _is_plain(calls: list[Call], x: Tensor, phi: Tensor) -> bool:
    """Each layer is called once and receives the ReLU of the one before; only the first may be a convolution."""
    if max(Counter(call.name for call in calls).values()) > 1 or not is_close(calls[0].received, x):
        return False
    first, *later = calls
    dense = [call for call in calls if isinstance(call.layer, nn.Linear)]
    return (
        all(call.received.shape[:-1] == phi.shape[:1] for call in dense)
        and (isinstance(first.layer, nn.Linear) or _is_simple(first.layer, x))
        and all(isinstance(call.layer, nn.Linear) for call in later)
        and all(is_close(b.received, a.output.relu()) for a, b in pairwise(calls))
        and isinstance(calls[-1].layer, nn.Linear)
        and _is_output(calls[-1].output, phi)
    )


def _is_simple(conv: nn.Conv2d, x: Tensor) -> bool:
    """Square, without stride, dilation or groups, and padded with as many zeros on each side."""
    square = conv.kernel_size[0] == conv.kernel_size[1] and conv.groups == 1
    dense = conv.stride == (1, 1) and conv.dilation == (1, 1) and conv.padding_mode == "zeros"
    odd = conv.padding == "same" and conv.kernel_size[0] % 2 == 0
    even = isinstance(conv.padding, str) or conv.padding[0] == conv.padding[1]
    return x.ndim == 4 and square and dense and even and not odd


def _is_output(logits: Tensor, phi: Tensor) -> bool:
    """The outputs themselves, or what a final softmax, log-softmax or sigmoid, passed over, makes of them."""
    final = (logits, logits.softmax(1), logits.log_softmax(1), logits.sigmoid())
    return any(is_close(phi, each) for each in final)


def _from_layers(layers: list[Layer], shape: tuple[int, ...], input_range: tuple[float, float] | None) -> Target:
    first = layers[0]
    conv = (first.kernel_size[0], first.out_channels) if isinstance(first, nn.Conv2d) else None
    padding = padding_of(first) if isinstance(first, nn.Conv2d) else 0
    widths = [layer.out_features for layer in layers if isinstance(layer, nn.Linear)]
    biases = tuple(layer.bias is not None for layer in layers)
    architecture = Architecture(shape, tuple(widths[:-1]), widths[-1], biases, conv, padding)
    found = {
        f"layer{i}.{kind}": parameter.detach()
        for i, layer in enumerate(layers, 1)
        for kind, parameter in (("weight", layer.weight), ("bias", layer.bias))
        if parameter is not None
    }
    return Target(architecture, fit_weights(found, architecture, "the model"), input_range)


# Any other model, split at a dense layer ----------------------------------------------------------------------


def _position(run: Run, layer: str | None) -> int:
    """Which of the calls is attacked: that of the layer of this name, or the first that sees each sample once."""
    dense = [i for i, call in enumerate(run.calls) if isinstance(call.layer, nn.Linear)]
    fitting = [i for i in dense if _sees_samples_once(run, i)]
    if layer is not None:
        named = [i for i in dense if run.calls[i].name == layer]
        if not named:
            names = listed(list(dict.fromkeys(run.calls[i].name for i in dense)))
            raise UsageError(f"the model calls no dense layer named {layer!r}; `layer` is one of: {names}")
        if named[0] not in fitting:
            raise NotApplicableError(f"{layer} {_SEVERAL_TIMES}")
        return named[0]
    if by_hand := [name for num, name in run.products if not fitting or num <= fitting[0]]:
        raise UnfitError(
            f"the model multiplies samples with {listed(by_hand)} in its own code, which the attacks would miss: "
            "write that layer as nn.Linear with the same weights; or name another with `layer`"
        )
    if not dense:
        raise NotApplicableError("the model calls no dense layer (nn.Linear), and the attacks need one")
    if not fitting:
        raise NotApplicableError(f"each of its dense layers {_SEVERAL_TIMES}")
    first = run.calls[fitting[0]]
    if _is_output(first.output, run.phi) and not _in_place(first.received, run.x):
        raise NotApplicableError(_few_directions(first))
    return fitting[0]


_SEVERAL_TIMES = (
    "is used several times for a sample, as attention and recurrence do, so its weights are not sums over samples"
)


def _sees_samples_once(run: Run, at: int) -> bool:
    call = run.calls[at]
    return call.received.shape[:-1] == run.x.shape[:1] and sum(c.name == call.name for c in run.calls) == 1


def _few_directions(call: Call) -> str:
    """Why a body with one dense layer behind it gives single samples away to no attack of ours."""
    k, d = call.layer.weight.shape[:2]
    return (
        f"the only dense layer that sees each sample once is the last one, {call.name}: its {k} × {d} weights "
        f"hold {k} mixtures of the features of all samples, one for each output, too few to take single samples "
        "from. No attack reads its other layers, so this is no pass; `layer` attacks the last one all the same"
    )


def _split(run: Run, at: int, input_range: tuple[float, float] | None) -> Target:
    """The model as a prefix and what follows it: rebuilt where that is plain, else its first layer alone."""
    call = run.calls[at]
    if not is_close(nn.functional.linear(call.received, call.layer.weight, call.layer.bias), call.output):
        kind = type(call.layer).__name__
        raise UnfitError(
            f"{call.name} ({kind}) does not multiply with its weight as it is: give a model that has nn.Linear "
            "there, with the weights that are in effect"
        )
    has_prefix = not is_close(call.received, run.x)
    shape = tuple((run.x if _in_place(call.received, run.x) else call.received).shape[1:])
    whole = Whole(
        module=run.module,
        layer=call.name,
        input_shape=tuple(run.x.shape[1:]),
        axes=run.axes,
        has_prefix=has_prefix,
        feature_shape=shape,
        map_shape=call.map_shape if has_prefix and len(shape) == 1 else None,
        is_positive=has_prefix and bool((call.received >= 0).all()),
        relu=True,
    )
    limits = None if has_prefix else input_range
    if plain := _rebuilt(run, run.calls[at:], shape, limits):
        return replace(plain, whole=whole)
    if not whole.has_bypass and not is_close(whole.finish(call.received), run.phi):
        raise NotApplicableError(
            f"the outputs do not follow from what {call.name} receives, though nothing leads around it: the model "
            "does not give the same outputs for the same inputs"
        )
    whole = replace(whole, relu=_relu_follows(whole, call))
    return replace(_first_alone(call, shape, run, at), input_range=limits, whole=whole)


def _in_place(received: Tensor, x: Tensor) -> bool:
    """Whether each value comes from the one in its place alone, as when inputs are normalised."""
    if received.flatten(1).shape != x.flatten(1).shape:
        return False
    a, b = (each.flatten(1) - each.flatten(1).mean(0) for each in (received, x))
    return bool((nn.functional.cosine_similarity(a, b, dim=0).abs() > 1 - ROUNDING).all())


def _first_alone(call: Call, shape: tuple[int, ...], run: Run, at: int) -> Target:
    assert isinstance(call.layer, nn.Linear)
    kinds = list(dict.fromkeys(kind for num, kind in run.others if num > at))
    tail = ", ".join(kinds) or "its own connections"
    biases, k = (call.layer.bias is not None,), run.phi.shape[1]
    architecture = Architecture(shape, (call.layer.out_features,), k, biases, tail=tail)
    found = {"layer1.weight": call.layer.weight.detach()}
    if call.layer.bias is not None:
        found["layer1.bias"] = call.layer.bias.detach()
    return Target(architecture, fit_weights(found, architecture, "the model"))


def _relu_follows(whole: Whole, call: Call) -> bool:
    """Whether a neuron whose sum is negative has no effect at all, and others have one."""
    sums = call.output.std() * torch.randn(call.output.shape, generator=torch.Generator().manual_seed(1))
    sums.requires_grad_()
    phi = whole.finish(call.received, sums)
    if not phi.requires_grad:
        raise NotApplicableError(
            "the model computes its outputs without gradients (`torch.no_grad`, `detach`), and attacks need them: "
            "leave that to its caller"
        )
    weights = torch.randn(phi.shape, generator=torch.Generator().manual_seed(2))
    (slope,) = torch.autograd.grad((phi * weights).sum(), sums, allow_unused=True)
    if slope is None:
        return False
    off, on = slope[sums < 0], slope[sums > 0]
    return not off.any() and bool(on.any())
