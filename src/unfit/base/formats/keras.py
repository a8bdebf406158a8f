"""Keras files, read with h5py alone: `.keras`, whole models in `.h5`, and weights alone.

Keras has the channels of an image last, PyTorch first. A model takes them first: kernels are turned, and the rows
of a dense layer behind a flattened image are put in PyTorch's order.
"""

from __future__ import annotations

import io
import json
import mmap
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unfit.base.errors import UnfitError, listed, needs
from unfit.base.formats.layers import Affine, as_net, batch_norm, convolution, dense, layer_norm
from unfit.base.formats.limits import Weights, bounded, check_shapes, check_zip, ready, rehearsed, undamaged
from unfit.base.formats.numpy import NUMBERS
from unfit.base.formats.tensors import natural

Datasets = dict[str, list[Any]]  # of each layer, in Keras' order
Arrays = dict[str, list[Tensor]]
MAX_ATTRIBUTE = 2**28  # bytes that reading one may take: descriptions of models have kilobytes
HEAP = b"GCOL\x01\0\0\0"
IN_A_ROW = "only layers in a row are read"
BATCH_NORM = ("weight", "bias", "running_mean", "running_var")  # γ, β and the statistics, as Keras stores them


class CannotReadError(Exception):
    """A layer, or a setting of one, that has no counterpart here."""


def read_keras(path: Path) -> nn.Module:
    """A `.keras` archive: `config.json` has the layers, `model.weights.h5` their weights."""
    with undamaged(path, "Keras"), zipfile.ZipFile(path) as archive:
        check_zip(path, archive)
        config = json.loads(archive.read("config.json"))
        content = archive.read("model.weights.h5")
        return rehearsed(path, lambda: _read_archived(path, config, content))


def _read_archived(path: Path, config: dict[str, Any], content: bytes) -> nn.Module:
    with _opened(path, io.BytesIO(content)) as file:
        return _net(path, config, _read(path, _by_class(file, config)))


def read_h5(path: Path) -> Weights | nn.Module:
    """A whole model has its layers in `model_config`; weights alone do not say how they are used."""
    with undamaged(path, "Keras"):
        check_heaps(path)
        return rehearsed(path, lambda: _read_file(path))


def _read_file(path: Path) -> Weights | nn.Module:
    with _opened(path, path) as file:
        if "model_config" in file.attrs:
            config = json.loads(_attribute(file, "model_config"))
            return _net(path, config, _read(path, _by_name(_inner(file, "model_weights"))))
        return _as_weights(path, _read(path, _by_name(file) if "layer_names" in file.attrs else _all_groups(file)))


def _opened(path: Path, source: Path | io.BytesIO) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise needs("h5py", "keras", str(path)) from error
    return h5py.File(source, "r")


def check_heaps(path: Path) -> None:
    """Strings are objects in heaps, one behind the other. HDF5 follows damaged sizes for ever, so add them up."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = content.find(HEAP)
        while start >= 0:
            end = start + int.from_bytes(content[start + 8 : start + 16], "little")
            if end > len(content) or not _adds_up(content, start + 16, end):
                raise ValueError("a heap whose objects do not add up")
            start = content.find(HEAP, start + 1)


def _adds_up(content: mmap.mmap, at: int, end: int) -> bool:
    """Objects have a header of 16 bytes, and begin at multiples of 8. Number 0 is the rest, header included."""
    while at + 16 <= end:
        number, size = struct.unpack("<H6xQ", content[at : at + 16])
        if not number:
            return bool(at + size == end)
        at += 16 + -(-size // 8) * 8
    return at <= end


# Arrays ----------------------------------------------------------------------------------------------------


def _inner(group: Any, name: str) -> Any:
    """A member of the file itself: links can lead to other files."""
    import h5py

    for part in name.split("/"):
        if not isinstance(group.get(part, getlink=True), h5py.HardLink):
            raise ValueError(f"{name} leads elsewhere, or to nothing")
        group = group[part]
    return group


def _read(path: Path, datasets: Datasets) -> Arrays:
    """Values that the file itself holds."""
    every = [each for those in datasets.values() for each in those]
    check_shapes(path, (each.shape for each in every))
    if any(each.external or each.is_virtual for each in every):
        raise UnfitError(f"{path}: its values are in other files")
    if strange := [each.name for each in every if each.dtype.kind not in NUMBERS]:
        raise UnfitError(f"{path}: {strange[0]} does not hold numbers")
    return {name: [torch.tensor(each[()]) for each in those] for name, those in datasets.items()}


def _by_class(file: Any, config: dict[str, Any]) -> Datasets:
    """Keras 3 names groups by the classes of the layers: dense, dense_1, …"""
    place = _place(file)
    used: Counter[str] = Counter()
    found: Datasets = {}
    for layer in config["config"]["layers"]:
        kind = _snake_case(layer["class_name"])
        group = f"{kind}_{used[kind]}" if used[kind] else kind
        used[kind] += 1
        found[layer["config"]["name"]] = _variables(file, f"{place}/{group}")
    return found


def _place(file: Any) -> str:
    """The group of the layers in Keras 3; early versions had another."""
    return "layers" if "layers" in file else "_layer_checkpoint_dependencies"


def _snake_case(name: str) -> str:
    """BatchNormalization is batch_normalization, ReLU is re_lu, Conv2D is conv2d."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=.)(?=[A-Z][a-z])", "_", name).lower()


def _variables(file: Any, name: str) -> list[Any]:
    if name not in file or "vars" not in file[name]:
        return []
    group = _inner(file, f"{name}/vars")
    return [_inner(group, each) for each in sorted(group, key=natural)]


def _by_name(file: Any) -> Datasets:
    """Before Keras 3: a group for each layer, whose `weight_names` lead to its arrays."""
    found: Datasets = {}
    for name in map(_text, _attribute(file, "layer_names")):
        group = _inner(file, name)
        found[name] = [_inner(group, _text(each)) for each in _attribute(group, "weight_names")]
    return found


def _attribute(item: Any, name: str) -> Any:
    """A string of any length is stored with the length that it claims, for which HDF5 allocates memory."""
    with bounded(MAX_ATTRIBUTE):
        return item.attrs[name]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _all_groups(file: Any) -> Datasets:
    layers = _inner(file, _place(file))
    return {name: _variables(layers, name) for name in sorted(layers, key=natural)}


def _as_weights(path: Path, arrays: Arrays) -> Weights:
    """Under PyTorch's names and in its layout, where the shapes tell what they are."""
    named = [(layer, *each) for layer, values in arrays.items() for each in _named(values)]
    if not named:
        raise UnfitError(f"{path}: no weights in this file")
    return {f"{layer}.{kind}": value.float() for layer, kind, value in named}


def _named(values: list[Tensor]) -> list[tuple[str, Tensor]]:
    if len(values) in (1, 2) and values[0].ndim in (2, 4):
        return list(zip(("weight", "bias"), [_turned(values[0]), *values[1:]], strict=False))
    return list(zip(BATCH_NORM if len(values) == 4 else map(str, range(len(values))), values, strict=True))


def _turned(kernel: Tensor) -> Tensor:
    """(inputs, outputs) or (height, width, inputs, outputs), as PyTorch has them."""
    return (kernel.T if kernel.ndim == 2 else kernel.permute(3, 2, 0, 1)).contiguous()


# Layers ----------------------------------------------------------------------------------------------------


@dataclass
class Place:
    """Where in the model a layer stands: the shape of a sample as Keras has it, and the order of its features."""

    shape: tuple[int, ...]
    order: Tensor | None = None  # behind a flattened image: Keras' numbers of the features, in our order

    def features(self, values: Tensor) -> Tensor:
        """Per feature or channel, in our order, and broadcast over images."""
        values = values if self.order is None or values.numel() == 1 else values.flatten()[self.order]
        return values.reshape(-1, 1, 1) if len(self.shape) == 3 else values


@dataclass(frozen=True)
class Layer:
    kind: str
    settings: dict[str, Any]
    arrays: list[Tensor]

    def must(self, **settings: Any) -> None:
        """Settings that have no counterpart here must have these values, or be left out."""
        for name, value in settings.items():
            if (found := self.settings.get(name, value)) != value:
                raise CannotReadError(f"{name}={found}")

    def kernel(self) -> tuple[Tensor, Tensor | None]:
        """And the bias, if there is one. Quantised layers have more."""
        if len(self.arrays) != 1 + bool(self.settings.get("use_bias", True)):
            raise CannotReadError(f"{len(self.arrays)} arrays of weights")
        return self.arrays[0], self.arrays[1] if self.arrays[1:] else None

    def pair(self, name: str, default: tuple[int, int] = (1, 1)) -> tuple[int, int]:
        found = self.settings.get(name) or default
        a, b = (found, found) if isinstance(found, int) else found
        return int(a), int(b)


def _net(path: Path, config: dict[str, Any], arrays: Arrays) -> nn.Module:
    described = config["config"]["layers"]
    _must_be_a_chain(path, config)
    place = Place(_input_shape(path, described))
    layers: list[nn.Module] = []
    for each in described:
        name, kind = each["config"]["name"], each["class_name"]
        layer = Layer(kind, each["config"], arrays.get(name, []))
        try:
            layers += _layers(layer, place)
        except CannotReadError as error:
            raise UnfitError(f"{path}: cannot read the layer {name!r} ({kind}): {error}") from error
    while layers and isinstance(layers[-1], nn.Softmax | nn.Sigmoid):
        layers.pop()  # the model returns logits
    return ready(path, as_net([(layer, (i,)) for i, layer in enumerate(layers)]))


def _must_be_a_chain(path: Path, config: dict[str, Any]) -> None:
    kind, described = config["class_name"], config["config"]["layers"]
    if kind not in ("Sequential", "Functional", "Model"):
        raise UnfitError(f"{path}: a model of the class {kind}, whose code is not run; {IN_A_ROW}")
    names = [layer["config"]["name"] for layer in described]
    for before, name, layer in zip([None, *names], names, described, strict=False):
        if (sources := _sources(layer.get("inbound_nodes", []))) and sources != {before}:
            raise UnfitError(f"{path}: {name!r} takes its inputs from {listed(sorted(sources))}; {IN_A_ROW}")
    if (ends := _sources([[config["config"].get("output_layers", [])]])) and ends != {names[-1]}:
        raise UnfitError(f"{path}: its outputs are those of {listed(sorted(ends))}; {IN_A_ROW}")


def _sources(nodes: Any) -> set[str]:
    """The layers that tensors come from: [name, number of the node, number of the tensor]."""
    return set(re.findall(r'\["([^"]*)", \d+, \d+', json.dumps(nodes)))


def _input_shape(path: Path, described: list[Any]) -> tuple[int, ...]:
    first = described[0]
    build = first.get("build_config") or {}
    settings = first["config"]
    shape = settings.get("batch_shape") or settings.get("batch_input_shape") or build.get("input_shape")
    if (
        not shape
        or not all(isinstance(side, int) and side > 0 for side in shape[1:])
        or len(shape) not in (2, 3, 4)
    ):
        raise UnfitError(f"{path}: the shape of its inputs is not in the file, or not fixed: {shape}")
    return tuple(shape[1:])


def _layers(layer: Layer, place: Place) -> list[nn.Module]:
    if layer.kind not in LAYERS:
        raise CannotReadError("no counterpart for it is known here")
    layers = LAYERS[layer.kind](layer, place)
    activation = layer.settings.get("activation") if layer.kind in ("Dense", "Conv2D", "Activation") else None
    return layers + ([] if activation is None else _activation(activation))


def _activation(name: Any) -> list[nn.Module]:
    name = name.get("config") if isinstance(name, dict) else name
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise CannotReadError(f"the activation {name!r}")
    return [] if name == "linear" else [ACTIVATIONS[name]()]


def _dense(layer: Layer, place: Place) -> list[nn.Module]:
    if len(place.shape) != 1:
        raise CannotReadError(f"inputs of shape {place.shape}; flatten them first")
    kernel, bias = layer.kernel()
    if kernel.ndim != 2:
        raise CannotReadError(f"a kernel of shape {tuple(kernel.shape)}")
    kernel = kernel if place.order is None else kernel[place.order]
    place.shape, place.order = (kernel.shape[1],), None
    return [dense(kernel.T, bias)]


def _flatten(layer: Layer, place: Place) -> list[nn.Module]:
    layer.must(data_format="channels_last")
    size = int(np.prod(place.shape))
    if len(place.shape) == 3:
        place.order = torch.arange(size).reshape(place.shape).permute(2, 0, 1).flatten()
    place.shape = (size,)
    return [nn.Flatten()]


def _reshape(layer: Layer, place: Place) -> list[nn.Module]:
    """Only what keeps the order of the values: a vector as a grey image."""
    height, width, channels = (*layer.settings["target_shape"], 0, 0, 0)[:3]
    if len(place.shape) != 1 or place.order is not None or channels != 1 or min(height, width) < 1:
        raise CannotReadError(f"from {place.shape} to {layer.settings['target_shape']}")
    place.shape = (height, width, 1)
    return [nn.Unflatten(1, (1, height, width))]


def _conv(layer: Layer, place: Place) -> list[nn.Module]:
    layer.must(data_format="channels_last")
    kernel, bias = layer.kernel()
    stride, dilation = layer.pair("strides"), layer.pair("dilation_rate")
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel.shape[:2], strict=True)]
    pads = _same_pads(layer, place, reach, stride)
    _slide(place, reach, stride, pads, int(kernel.shape[3]))
    groups = int(layer.settings.get("groups", 1))
    made = convolution(_turned(kernel), bias, stride=stride, dilation=dilation, groups=groups)
    return [nn.ZeroPad2d(pads), made] if any(pads) else [made]


def _same_pads(layer: Layer, place: Place, reach: list[int], stride: tuple[int, int]) -> tuple[int, int, int, int]:
    """Left, right, top, bottom: the zeros that give ⌈side/stride⌉ outputs, the odd one at the end."""
    if len(place.shape) != 3:
        raise CannotReadError(f"inputs of shape {place.shape}")
    if layer.settings.get("padding", "valid") == "valid":
        return 0, 0, 0, 0
    layer.must(padding="same")
    sides = zip(place.shape, reach, stride, strict=False)
    height, width = (max((-(-side // s) - 1) * s + r - side, 0) for side, r, s in sides)
    return width // 2, width - width // 2, height // 2, height - height // 2


def _slide(
    place: Place, reach: list[int], stride: tuple[int, int], pads: tuple[int, int, int, int], channels: int
) -> None:
    """The shape after a window has moved over the image."""
    height = (place.shape[0] + pads[2] + pads[3] - reach[0]) // stride[0] + 1
    width = (place.shape[1] + pads[0] + pads[1] - reach[1]) // stride[1] + 1
    place.shape = (height, width, channels)


def _pool(layer: Layer, place: Place) -> list[nn.Module]:
    layer.must(data_format="channels_last")
    size = layer.pair("pool_size", (2, 2))
    stride = layer.pair("strides", size)
    pads = _same_pads(layer, place, list(size), stride)
    if any(pads):
        raise CannotReadError("padding")
    _slide(place, list(size), stride, pads, place.shape[2])
    return [nn.MaxPool2d(size, stride) if layer.kind == "MaxPooling2D" else nn.AvgPool2d(size, stride)]


def _global_pool(layer: Layer, place: Place) -> list[nn.Module]:
    layer.must(data_format="channels_last", keepdims=False)
    if len(place.shape) != 3:
        raise CannotReadError(f"inputs of shape {place.shape}")
    place.shape = place.shape[2:]
    return [nn.AdaptiveAvgPool2d(1) if "Average" in layer.kind else nn.AdaptiveMaxPool2d(1), nn.Flatten()]


def _pad(layer: Layer, place: Place) -> list[nn.Module]:
    layer.must(data_format="channels_last")
    (top, bottom), (left, right) = layer.settings["padding"]
    pads = (int(left), int(right), int(top), int(bottom))
    _slide(place, [1, 1], (1, 1), pads, place.shape[2])
    return [nn.ZeroPad2d(pads)]


def _last_axis(layer: Layer, place: Place) -> None:
    axis = layer.settings.get("axis", -1)
    if axis not in (-1, [-1], len(place.shape), [len(place.shape)]):
        raise CannotReadError(f"axis={axis}")


def _batch_norm(layer: Layer, place: Place) -> list[nn.Module]:
    _last_axis(layer, place)
    if len(place.shape) == 2:
        raise CannotReadError(f"inputs of shape {place.shape}")
    *learned, mean, variance = layer.arrays
    scale = learned.pop(0) if layer.settings.get("scale", True) else torch.ones_like(mean)
    shift = learned.pop(0) if layer.settings.get("center", True) else torch.zeros_like(mean)
    mean, variance, scale, shift = (place.features(each).flatten() for each in (mean, variance, scale, shift))
    return [batch_norm(len(place.shape) + 1, mean, variance, scale, shift, float(layer.settings["epsilon"]))]


def _layer_norm(layer: Layer, place: Place) -> list[nn.Module]:
    _last_axis(layer, place)
    layer.must(center=True, scale=True, rms_scaling=False)
    if len(place.shape) != 1:
        raise CannotReadError(f"inputs of shape {place.shape}")
    scale, shift = (place.features(each) for each in layer.arrays)
    return [layer_norm(scale, shift, float(layer.settings["epsilon"]))]


def _normalization(layer: Layer, place: Place) -> list[nn.Module]:
    """(x − mean) / max(standard deviation, ε), by feature or channel, or by one number."""
    layer.must(invert=False)
    if layer.settings.get("axis") is not None:
        _last_axis(layer, place)
    given = [layer.settings.get(name) for name in ("mean", "variance")]
    values = [torch.tensor(each).double() for each in given] if None not in given else layer.arrays[:2]
    mean, variance = (place.features(each.flatten()) for each in values)
    scale = 1 / variance.sqrt().clamp(min=EPSILON)
    return [Affine(scale, -mean * scale)]


def _rescaling(layer: Layer, place: Place) -> list[nn.Module]:
    scale, shift = (torch.tensor(layer.settings[name]).double() for name in ("scale", "offset"))
    return [Affine(place.features(scale), place.features(shift))]


def _relu(layer: Layer, place: Place) -> list[nn.Module]:
    if layer.settings.get("threshold") or (layer.settings.get("max_value") or 6) != 6:
        raise CannotReadError("a threshold, or a maximum other than 6")
    slope = float(layer.settings.get("negative_slope") or 0)
    if slope:
        layer.must(max_value=None)
        return [nn.LeakyReLU(slope)]
    return [nn.ReLU6() if layer.settings.get("max_value") else nn.ReLU()]


def _leaky(layer: Layer, place: Place) -> list[nn.Module]:
    """Its slope was called alpha before Keras 3."""
    return [nn.LeakyReLU(float(layer.settings.get("negative_slope", layer.settings.get("alpha", 0.3))))]


def _elu(layer: Layer, place: Place) -> list[nn.Module]:
    return [nn.ELU(float(layer.settings.get("alpha", 1.0)))]


def _softmax(layer: Layer, place: Place) -> list[nn.Module]:
    _last_axis(layer, place)
    return [nn.Softmax(1)]


def _nothing(layer: Layer, place: Place) -> list[nn.Module]:
    """In training only, or only a name."""
    return []


EPSILON = 1e-7  # keras.backend.epsilon()
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "linear": nn.Identity,
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "leaky_relu": lambda: nn.LeakyReLU(0.2),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softmax": lambda: nn.Softmax(1),
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "swish": nn.SiLU,
    "softplus": nn.Softplus,
}
LAYERS: dict[str, Callable[[Layer, Place], list[nn.Module]]] = {
    "Dense": _dense,
    "Conv2D": _conv,
    "Flatten": _flatten,
    "Reshape": _reshape,
    **dict.fromkeys(("MaxPooling2D", "AveragePooling2D"), _pool),
    **dict.fromkeys(("GlobalAveragePooling2D", "GlobalMaxPooling2D"), _global_pool),
    "ZeroPadding2D": _pad,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "Normalization": _normalization,
    "Rescaling": _rescaling,
    "ReLU": _relu,
    "LeakyReLU": _leaky,
    "ELU": _elu,
    "Softmax": _softmax,
    **dict.fromkeys(("InputLayer", "Activation", "Dropout", "SpatialDropout2D", "GaussianNoise"), _nothing),
}
