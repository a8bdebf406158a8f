"""A user's own `nn.Module` as a Target: taken apart, rebuilt, and checked to behave the same."""

from __future__ import annotations

import copy
import math
from collections import Counter

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from unfit.base.errors import UnfitError, UsageError
from unfit.base.nets import Architecture, outputs
from unfit.base.target import Target, fit_weights, picture_shape

Layer = nn.Linear | nn.Conv2d
Call = tuple[Layer, Tensor, Tensor]  # a layer, what it was given, and what it made of it
HARMLESS = (nn.ReLU, nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)  # dropout: when evaluated
HINTS = {
    "BatchNorm": "it mixes the samples of a batch, so weights are no sums over samples",
    "Sigmoid": "only ReLU between layers is supported; at the end leave it out, so that the net gives logits",
    "Softmax": "leave it out, so that the net gives logits",
}
PROBES = 16  # random inputs that the rebuilt net must treat as the model does
SAME = 1e-4  # relative difference that rounding may make


def as_target(
    model: Target | nn.Module,
    input_shape: tuple[int, ...] | None = None,
    input_range: tuple[float, float] | None = None,
) -> Target:
    """A trained module as the attacks take it: dense layers with ReLUs between, behind at most one convolution.

    How the module is written does not matter: it is run on random inputs, and what its layers are given must be
    what such a net gives them. `input_shape`: of one sample; default: a square picture where the first layer has
    s² or 3s² inputs (s ≥ 8), else a vector. `input_range`: bounds of each input value, if they are known.
    """
    if isinstance(model, Target):
        return model
    if not isinstance(model, nn.Module):
        raise UsageError(f"expected a torch.nn.Module or a Target, got {type(model).__name__}")
    module = copy.deepcopy(model).cpu().float().eval()  # the user's own stays as it is
    _refuse(_unsupported(module))
    shapes = [input_shape] if input_shape else _possible_shapes(module)
    if not shapes:
        raise UnfitError("the model cannot be attacked: it has no dense layer")
    x, calls, phi = _run(module, shapes)
    names = {layer: name or "the net" for name, layer in module.named_modules() if isinstance(layer, Layer)}
    _refuse(_misfits(calls, names, x, phi))
    target = _rebuild([layer for layer, _, _ in calls], tuple(x.shape[1:]), input_range)
    if not _close(outputs(target.net(), x), phi):
        raise UnfitError("the model cannot be attacked: its layers alone do not give its outputs")
    return target


def as_base(base: Target | nn.Module | None, target: Target) -> Target | None:
    """The weights training started from, in the same architecture as the target's."""
    if base is None:
        return None
    base = as_target(base, target.architecture.input_shape, target.input_range)
    if base.architecture != target.architecture:
        raise UnfitError(f"the base is {base.architecture}, the model {target.architecture}: give its own start")
    return base


def _unsupported(module: nn.Module) -> list[str]:
    """Every layer that no attack covers, by name."""
    leaves = [(name or "the net", leaf) for name, leaf in module.named_modules() if not list(leaf.children())]
    problems = [
        f"{name} is {type(leaf).__name__}{_hint(leaf)}" for name, leaf in leaves if not _is_supported(leaf)
    ]
    problems += [f"{name} has {what}" for name, leaf in leaves if (what := _odd_convolution(leaf))]
    bad = [
        name
        for name, parameter in module.named_parameters()
        if not is_lazy(parameter) and not parameter.isfinite().all()
    ]
    return problems + [f"{name} has values that are NaN or infinite" for name in bad]


def _is_supported(leaf: nn.Module) -> bool:
    """Also a user's own module without weights, such as one that reshapes: what it does shows when it is run."""
    own = not type(leaf).__module__.startswith("torch.") and not list(leaf.parameters())
    return own or (isinstance(leaf, (*HARMLESS, Layer)) and not isinstance(leaf, LazyModuleMixin))


def _hint(leaf: nn.Module) -> str:
    return next((f" ({hint})" for kind, hint in HINTS.items() if kind in type(leaf).__name__), "")


def _odd_convolution(leaf: nn.Module) -> str | None:
    if not isinstance(leaf, nn.Conv2d):
        return None
    plain = leaf.stride == (1, 1) and leaf.padding in ((0, 0), "valid") and leaf.dilation == (1, 1)
    square = leaf.kernel_size[0] == leaf.kernel_size[1] and leaf.groups == 1
    return None if plain and square else "a stride, padding, dilation, groups or an oblong kernel"


def _possible_shapes(module: nn.Module) -> list[tuple[int, ...]]:
    """Input shapes by the sizes of the layers: any of them may be the first, whatever their order here."""
    layers = [leaf for leaf in module.modules() if isinstance(leaf, Layer)]
    dense = [layer.in_features for layer in layers if isinstance(layer, nn.Linear)]
    shapes = [_before(layer, d) for layer in layers if isinstance(layer, nn.Conv2d) for d in dense]
    return [shape for shape in shapes if shape] or [picture_shape(d) for d in dense]


def _before(conv: nn.Conv2d, d: int) -> tuple[int, ...] | None:
    """The square pictures whose maps have d values, if there are any."""
    side = math.isqrt(d // conv.out_channels)
    whole = side > 0 and conv.out_channels * side * side == d
    return (conv.in_channels, *[side + conv.kernel_size[0] - 1] * 2) if whole else None


def _run(module: nn.Module, shapes: list[tuple[int, ...]]) -> tuple[Tensor, list[Call], Tensor]:
    """Random inputs of the first of these shapes that it takes, the calls of its layers, and its outputs."""
    calls: list[Call] = []

    def keep(layer: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        assert isinstance(layer, Layer)
        calls.append((layer, given[0], made))

    for layer in module.modules():
        if isinstance(layer, Layer):
            layer.register_forward_hook(keep)
    problems = []
    for shape in shapes:
        x = torch.randn(PROBES, *shape, generator=torch.Generator().manual_seed(0))
        for seen in (x, x.flatten(1)):  # some modules take pictures as vectors
            calls.clear()
            try:
                with torch.no_grad():
                    phi = module(seen)
            except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
                problems.append(f"{shape}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
                continue
            return x, calls, _as_columns(phi)
    raise UnfitError(f"the model does not take inputs of shape {problems[0]}; give input_shape, that of a sample")


def _as_columns(phi: object) -> Tensor:
    """Outputs as (n, k); one output may come squeezed."""
    if not isinstance(phi, Tensor):
        raise UnfitError(f"the model cannot be attacked: it returns a {type(phi).__name__}, not a tensor")
    return phi.unsqueeze(1) if phi.ndim == 1 else phi


def _misfits(calls: list[Call], names: dict[Layer, str], x: Tensor, phi: Tensor) -> list[str]:
    """Where the run was not a perceptron's: each layer must be given the ReLU of what the one before made."""
    if not calls:
        return ["it calls no dense layer"]
    counts = Counter(names[layer] for layer, _, _ in calls)
    problems = [f"{name} is used {count} times" for name, count in counts.items() if count > 1]
    if not _close(calls[0][1], x):
        problems.append(f"{names[calls[0][0]]} is not given the inputs themselves (preprocess outside the model)")
    for i, (before, _, made) in enumerate(calls[:-1]):
        layer, given, _ = calls[i + 1]
        if not _close(given, made.relu()):
            problems.append(
                f"{names[layer]} is not given the ReLU of {names[before]} (another activation, pooling or a skip?)"
            )
        if isinstance(layer, nn.Conv2d):
            problems.append(f"{names[layer]} is a convolution, which only the first layer may be")
    if not _close(phi, calls[-1][2]):
        problems.append(f"the outputs are not those of {names[calls[-1][0]]} (let the net return its logits)")
    if isinstance(calls[-1][0], nn.Conv2d):
        problems.append(f"{names[calls[-1][0]]} is a convolution, the last layer must be dense")
    return problems


def _close(a: Tensor, b: Tensor) -> bool:
    """The same numbers up to rounding, whatever their arrangement in a sample."""
    a, b = a.flatten(1), b.flatten(1)
    return a.shape == b.shape and bool((a - b).norm() <= SAME * b.norm())


def _rebuild(layers: list[Layer], shape: tuple[int, ...], input_range: tuple[float, float] | None) -> Target:
    first = layers[0]
    conv = (first.kernel_size[0], first.out_channels) if isinstance(first, nn.Conv2d) else None
    widths = [layer.out_features for layer in layers if isinstance(layer, nn.Linear)]
    biases = tuple(layer.bias is not None for layer in layers)
    architecture = Architecture(shape, tuple(widths[:-1]), widths[-1], biases, conv)
    found = {
        f"layer{i}.{kind}": parameter.detach()
        for i, layer in enumerate(layers, 1)
        for kind, parameter in (("weight", layer.weight), ("bias", layer.bias))
        if parameter is not None
    }
    return Target(architecture, fit_weights(found, architecture, "the model"), input_range)


def _refuse(problems: list[str]) -> None:
    if problems:
        raise UnfitError(
            f"the model cannot be attacked: {'; '.join(problems)}. "
            "Supported: dense layers with ReLUs between, behind at most one plain convolution"
        )
