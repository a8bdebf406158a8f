"""Turn a user's `nn.Module` into a Target: extract its layers, rebuild it, and check that it behaves the same."""

from __future__ import annotations

import copy
import math
from collections import Counter
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from unfit.base.errors import UnfitError, UsageError
from unfit.base.nets import Architecture, outputs
from unfit.base.target import Target, fit_weights, picture_shape

Layer = nn.Linear | nn.Conv2d
Call = tuple[Layer, Tensor, Tensor]  # a layer, its input, its output
HARMLESS = (nn.ReLU, nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)  # dropout: off in eval mode
HINTS = {
    "BatchNorm": "it mixes the samples of a batch, so the weights are not a sum over samples",
    "Sigmoid": "between layers only ReLU is supported; drop a final sigmoid so that the net returns logits",
    "Softmax": "drop it so that the net returns logits",
}
NUM_PROBES = 16  # random inputs on which the rebuilt net must agree with the model
ROUNDING = 1e-4  # relative difference that float32 rounding may cause


def as_target(
    model: Target | nn.Module,
    input_shape: tuple[int, ...] | None = None,
    input_range: tuple[float, float] | None = None,
) -> Target:
    """Convert a trained module: dense layers with ReLUs in between, after at most one convolution.

    It does not matter how the module is written. It is run on random inputs, and each of its layers must receive
    what it would receive in such a net. `input_shape` is the shape of one sample; by default a square picture if
    the first layer has s² or 3s² inputs (s ≥ 8), else a vector. `input_range` bounds each input value, if known.
    """
    if isinstance(model, Target):
        return model
    if not isinstance(model, nn.Module):
        raise UsageError(f"expected a torch.nn.Module or a Target, got {type(model).__name__}")
    module = copy.deepcopy(model).cpu().float().eval()  # leave the user's module alone
    _refuse(_unsupported(module))
    shapes = [input_shape] if input_shape else _possible_shapes(module)
    if not shapes:
        raise UnfitError("the model cannot be attacked: it has no dense layer")
    x, calls, phi = _run(module, shapes)
    names = {layer: name or "the net" for name, layer in module.named_modules() if isinstance(layer, Layer)}
    _refuse(_misfits(calls, names, x, phi))
    target = _rebuild([layer for layer, _, _ in calls], tuple(x.shape[1:]), input_range)
    if not _close(outputs(target.net(), x), phi):
        raise UnfitError("the model cannot be attacked: its layers alone do not reproduce its outputs")
    return target


def as_base(base: Target | nn.Module | None, target: Target) -> Target | None:
    """Convert the weights that training started from; they must have the target's architecture."""
    if base is None:
        return None
    base = as_target(base, target.architecture.input_shape, target.input_range)
    if base.architecture != target.architecture:
        raise UnfitError(
            f"the base is {base.architecture}, the model {target.architecture}: "
            "`base` must be the weights that this model's training started from"
        )
    return base


def _unsupported(module: nn.Module) -> list[str]:
    """Name every layer that no attack covers."""
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
    """A user's module without weights, such as a reshape, is accepted too: running it shows what it does."""
    own = not type(leaf).__module__.startswith("torch.") and not list(leaf.parameters())
    return own or (isinstance(leaf, (*HARMLESS, Layer)) and not isinstance(leaf, LazyModuleMixin))


def _hint(leaf: nn.Module) -> str:
    return next((f" ({hint})" for kind, hint in HINTS.items() if kind in type(leaf).__name__), "")


def _odd_convolution(leaf: nn.Module) -> str | None:
    if not isinstance(leaf, nn.Conv2d):
        return None
    plain = leaf.stride == (1, 1) and leaf.padding in ((0, 0), "valid") and leaf.dilation == (1, 1)
    square = leaf.kernel_size[0] == leaf.kernel_size[1] and leaf.groups == 1
    return None if plain and square else "a stride, padding, dilation, groups or a non-square kernel"


def _possible_shapes(module: nn.Module) -> list[tuple[int, ...]]:
    """Input shapes that fit the layer sizes; any layer may be the first, since modules() has no call order."""
    layers = [leaf for leaf in module.modules() if isinstance(leaf, Layer)]
    dense = [layer.in_features for layer in layers if isinstance(layer, nn.Linear)]
    shapes = [_before(layer, d) for layer in layers if isinstance(layer, nn.Conv2d) for d in dense]
    return [shape for shape in shapes if shape] or [picture_shape(d) for d in dense]


def _before(conv: nn.Conv2d, d: int) -> tuple[int, ...] | None:
    """The square input shape for which the convolution gives d values, if there is one."""
    side = math.isqrt(d // conv.out_channels)
    whole = side > 0 and conv.out_channels * side * side == d
    return (conv.in_channels, *[side + conv.kernel_size[0] - 1] * 2) if whole else None


def _run(module: nn.Module, shapes: list[tuple[int, ...]]) -> tuple[Tensor, list[Call], Tensor]:
    """Random inputs in the first shape that the module accepts, the calls of its layers, and its outputs."""
    calls: list[Call] = []

    def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, Layer)
        calls.append((layer, inputs[0], output))

    for layer in module.modules():
        if isinstance(layer, Layer):
            layer.register_forward_hook(record)
    problems = []
    for shape in shapes:
        x = torch.randn(NUM_PROBES, *shape, generator=torch.Generator().manual_seed(0))
        for seen in (x, x.flatten(1)):  # some modules expect flat pictures
            calls.clear()
            try:
                with torch.no_grad():
                    phi = module(seen)
            except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
                problems.append(f"{shape}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
                continue
            return x, calls, _as_columns(phi)
    raise UnfitError(
        f"the model does not accept inputs of shape {problems[0]}; pass one sample's shape as `input_shape`"
    )


def _as_columns(phi: object) -> Tensor:
    """Outputs as (n, k), also if the module squeezes a single output."""
    if not isinstance(phi, Tensor):
        raise UnfitError(f"the model cannot be attacked: it returns a {type(phi).__name__}, not a tensor")
    return phi.unsqueeze(1) if phi.ndim == 1 else phi


def _misfits(calls: list[Call], names: dict[Layer, str], x: Tensor, phi: Tensor) -> list[str]:
    """Where the module is not a perceptron: each layer must receive the ReLU of the previous layer's output."""
    if not calls:
        return ["it does not call a dense layer"]
    counts = Counter(names[layer] for layer, _, _ in calls)
    problems = [f"{name} is used {count} times" for name, count in counts.items() if count > 1]
    if not _close(calls[0][1], x):
        problems.append(f"{names[calls[0][0]]} does not receive the raw inputs (preprocess outside the model)")
    for (previous, _, output), (layer, received, _) in pairwise(calls):
        if not _close(received, output.relu()):
            problems.append(
                f"{names[layer]} does not receive the ReLU of {names[previous]} "
                "(is there another activation, pooling or a skip connection?)"
            )
        if isinstance(layer, nn.Conv2d):
            problems.append(f"{names[layer]} is a convolution; only the first layer may be one")
    if not _close(phi, calls[-1][2]):
        problems.append(f"the model changes the outputs of {names[calls[-1][0]]} (return the logits)")
    if isinstance(calls[-1][0], nn.Conv2d):
        problems.append(f"{names[calls[-1][0]]} is a convolution; the last layer must be dense")
    return problems


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding, ignoring the shape of a sample."""
    a, b = a.flatten(1), b.flatten(1)
    return a.shape == b.shape and bool((a - b).norm() <= ROUNDING * b.norm())


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
            "Supported: dense layers with ReLUs in between, after at most one plain convolution"
        )
