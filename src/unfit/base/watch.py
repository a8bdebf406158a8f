"""Run a module on random inputs and watch its layers: what each received, in which order, and how often."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unfit.base.errors import NotApplicableError, UnfitError, listed
from unfit.base.shapes import image_shape, shapes_to_try, ways
from unfit.base.whole import ModelError, as_columns, run_model

Layer = nn.Linear | nn.Conv2d
PLAIN = (nn.ReLU, nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)  # dropout: off in eval mode
OF_SEQUENCES = (nn.RNNBase, nn.RNNCellBase, nn.Conv1d, nn.MultiheadAttention)  # layers that go through steps
PRODUCTS = {"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "addmm", "einsum", "tensordot"}  # of torch
NUM_PROBES = 16  # random inputs on which a rebuilt model must agree with the model
ROUNDING = 1e-4  # relative difference that float32 rounding may cause
USUAL_SIDES = (28, 32, 64, 96, 128, 224)  # of images, tried where the layers do not tell


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer with weights while the model ran."""

    layer: Layer
    name: str
    received: Tensor
    output: Tensor
    map_shape: tuple[int, ...] | None  # of the maps that were flattened to give what it received


@dataclass(frozen=True, eq=False)
class Run:
    """The model on random inputs: what its layers received, in order, and which other layers were called when."""

    module: nn.Module
    x: Tensor
    phi: Tensor
    axes: tuple[int, ...]  # of a sample as the model received it; `x` has the shape that samples have here
    calls: list[Call]
    others: list[tuple[int, str]]  # (how many of `calls` came before, kind of layer)
    products: list[tuple[int, str]]  # the same of parameters that the model's own code multiplies samples with


def possible_shapes(
    module: nn.Module, said: tuple[int, ...] | None, data: tuple[int, ...] | None
) -> list[tuple[int, ...]]:
    """The shapes of a sample that are tried, the likeliest first."""
    found = shapes_to_try(said, data, _shapes_of_layers(module))
    if not found:
        raise NotApplicableError("the model has no dense layer, and the attacks need one")
    return found


def _shapes_of_layers(module: nn.Module) -> list[tuple[int, ...]]:
    """Input shapes that fit the layer sizes; any layer may be the first, since modules() has no call order."""
    layers = [leaf for leaf in module.modules() if isinstance(leaf, Layer)]
    dense = [layer.in_features for layer in layers if isinstance(layer, nn.Linear)]
    if not dense:
        return []
    convs = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    before = [shape for conv in convs for d in dense if (shape := _before(conv, d))]
    usual = [(conv.in_channels, side, side) for conv in convs[:1] for side in USUAL_SIDES]
    # last, those that leave one value a channel: so does pooling, of images of any size
    kernels = {conv.kernel_size[0] - 2 * padding_of(conv) for conv in convs}
    maps, one = ([shape for shape in before if (shape[1] in kernels) == is_one] for is_one in (False, True))
    return [*maps, *usual, *one] or [image_shape(d) for d in dense]


def _before(conv: nn.Conv2d, d: int) -> tuple[int, ...] | None:
    """The square input shape for which the convolution gives d values, if there is one."""
    side = math.isqrt(d // conv.out_channels)
    whole = side > 0 and conv.out_channels * side * side == d
    return (conv.in_channels, *[side + conv.kernel_size[0] - 1 - 2 * padding_of(conv)] * 2) if whole else None


def padding_of(conv: nn.Conv2d) -> int:
    """On each side; 0 where it cannot be said in one number."""
    if isinstance(conv.padding, str):
        return (conv.kernel_size[0] - 1) // 2 if conv.padding == "same" else 0
    return conv.padding[0]


def run_on_random(module: nn.Module, shapes: list[tuple[int, ...]]) -> Run:
    """Run the model on random inputs, in the first shape that it accepts."""
    problems = list[tuple[ModelError, tuple[int, ...]]]()
    has_steps = any(isinstance(part, OF_SEQUENCES) for part in module.modules())
    for shape, axes in dict.fromkeys(way for each in shapes for way in ways(each, has_steps)):
        x = torch.randn(NUM_PROBES, *shape, generator=torch.Generator().manual_seed(0))
        try:
            return _watched(module, x, axes)
        except ModelError as error:
            if "required positional argument" in error.said:
                raise UnfitError(f"{error.said}: wrap the model in a module that takes samples alone") from None
            problems.append((error, axes))
    first, _ = problems[0]
    if tables := [name for name, part in module.named_modules() if isinstance(part, nn.Embedding)]:
        raise NotApplicableError(
            f"the model looks its inputs up in an embedding ({listed(tables)}), so they are whole numbers such as "
            "tokens, and attacks here reconstruct values. `unfit.audit_ids` audits the embedding: which of these "
            "numbers can be read off. To audit the layers behind the embedding, give a model "
            f"of these alone, and what the embedding makes of your samples as x. What it says itself: {first.said}"
        ) from first
    tried = listed([str(axes) for _, axes in problems])
    raise UnfitError(f"{first}; tried: {tried}; pass one sample’s shape as `input_shape`") from first


def _watched(module: nn.Module, x: Tensor, axes: tuple[int, ...]) -> Run:
    """Run it once, and write down the calls of its layers."""
    calls: list[Call] = []
    others: list[tuple[int, str]] = []
    last_maps: list[Tensor] = []
    names = {
        leaf: name or "the model"
        for name, leaf in module.named_modules()
        if (isinstance(leaf, Layer) or not list(leaf.children())) and "parametrizations" not in name.split(".")
    }

    def record(leaf: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(leaf, Layer):
            maps = next((tuple(m.shape[1:]) for m in last_maps if is_close(m, inputs[0])), None)
            calls.append(Call(leaf, names[leaf], inputs[0], output, maps))
        elif not isinstance(leaf, PLAIN):
            others.append((len(calls), type(leaf).__name__))
        if isinstance(output, Tensor) and output.ndim == 4:
            last_maps[:] = [output]

    hooks = [leaf.register_forward_hook(record) for leaf in names]
    try:
        with torch.no_grad(), _Products(module, calls) as products:
            phi = run_model(module, x.reshape(len(x), *axes))
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(phi, Tensor):
        words = f"it returns a {type(phi).__name__}: wrap it in a module that returns its outputs, one tensor"
        raise UnfitError(f"the model cannot be attacked: {words}")
    if not phi.ndim or len(phi) != len(x):
        error = ValueError(f"it returned {tuple(phi.shape)}, which is no row for each of {len(x)} samples")
        raise ModelError(error, x.reshape(len(x), *axes))
    return Run(module, x, as_columns(phi), axes, calls, others, products.found)


class _Products(TorchFunctionMode):
    """Finds dense layers that are no `nn.Linear`: samples times a parameter, in the code of the model itself.

    Or times what that code makes of a parameter first. Subclasses of `nn.Linear` that do so are told elsewhere.
    """

    def __init__(self, module: nn.Module, calls: list[Call]) -> None:
        super().__init__()
        self.calls, self.found = calls, list[tuple[int, str]]()
        self.layers = {name for name, part in module.named_modules() if isinstance(part, nn.Linear)}
        self.made = list[Tensor]()  # kept, so that nothing else gets their place in memory
        self.owners = {
            value.untyped_storage().data_ptr(): f"{name}.{key}".lstrip(".")
            for name, part in module.named_modules()
            if not type(part).__module__.startswith("torch.nn.")
            for key, value in part.named_parameters(recurse=False)
        }

    def __torch_function__(
        self, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        values = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, Tensor)]
        names = [self._owner(value) for value in values if value.ndim > 1]
        owned = [name for name in names if name]
        whose = owned[0].rpartition(".")[0] if owned else None
        of_samples, rows = (
            any(
                value.ndim in of and len(value) == NUM_PROBES and not name
                for value, name in zip(values, [*map(self._owner, values)], strict=True)
            )
            for of in (range(2, 9), (2,))
        )
        result = function(*args, **(kwargs or {}))
        if owned and rows and function.__name__ in PRODUCTS:
            self.found += [(len(self.calls), name) for name in owned]
        elif owned and not of_samples and whose not in self.layers and isinstance(result, Tensor):
            self.owners[result.untyped_storage().data_ptr()] = owned[0]
            self.made.append(result)
        return result

    def _owner(self, value: Tensor) -> str | None:
        return self.owners.get(value.untyped_storage().data_ptr())


def is_close(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding, ignoring the shape of a sample."""
    a, b = a.flatten(1), b.flatten(1)
    return a.shape == b.shape and bool((a - b).norm() <= ROUNDING * b.norm())
