"""ONNX's operators and the layers that compute them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unfit.base.formats.layers import Affine, Join, Product, Sum, batch_norm, convolution, dense, layer_norm

BATCH = -1  # the first axis of every tensor, as a Reshape names it
FLOATS = (1, 10, 11, 16)  # TensorProto.DataType: float32, float16, float64, bfloat16


@dataclass(frozen=True)
class Op:
    """A node of the graph: `kind` of its inputs is `output`."""

    kind: str
    inputs: tuple[str, ...]
    output: str
    settings: dict[str, Any]
    opset: int

    def __str__(self) -> str:
        return f"{self.output!r} ({self.kind})"


class CannotReadError(Exception):
    """An operator, or a setting of one, that has no layer here."""


@dataclass(frozen=True)
class Call:
    """An operator with the constants among its inputs (None: computed, or left out) and the rank of the other."""

    op: Op
    constants: tuple[Tensor | None, ...]
    rank: int
    batch: int  # the number of samples in one, if the exporter wrote it down

    def constant(self, i: int) -> Tensor:
        if (value := self.optional(i)) is None:
            raise CannotReadError(f"its input {i} is not a constant")
        return value

    def optional(self, i: int) -> Tensor | None:
        return self.constants[i] if i < len(self.constants) else None

    def must(self, **settings: Any) -> None:
        """Settings that have no layer here must have these values, or be left out."""
        for name, value in settings.items():
            if (found := self.op.settings.get(name, value)) != value:
                raise CannotReadError(f"{name}={found}")


def _gemm(call: Call) -> list[nn.Module]:
    call.must(transA=0)
    weight = _matrix(call.constant(1)) * call.op.settings.get("alpha", 1.0)
    weight = weight if call.op.settings.get("transB", 0) else weight.T
    bias = call.optional(2)
    if bias is not None:
        bias = (bias * call.op.settings.get("beta", 1.0)).flatten().expand(len(weight))
    return [dense(weight, bias)]


def _matmul(call: Call) -> list[nn.Module]:
    return [dense(_matrix(call.constant(1)).T, None)]


def _matrix(weight: Tensor) -> Tensor:
    if weight.ndim != 2:
        raise CannotReadError(f"its weights have shape {tuple(weight.shape)}")
    return weight


def _arithmetic(call: Call) -> list[nn.Module]:
    kind, constants = call.op.kind, [value for value in call.constants if value is not None]
    if not constants and kind in ("Add", "Mul"):
        return [Sum() if kind == "Add" else Product()]
    if not constants or (kind == "Div" and call.constants[0] is not None):
        raise CannotReadError("it divides or subtracts what is computed")
    (value,) = constants
    if value.ndim > call.rank or (value.ndim == call.rank and value.shape[0] != 1):
        raise CannotReadError(f"its constant has shape {tuple(value.shape)}")
    one, zero = torch.ones_like(value), torch.zeros_like(value)
    if kind == "Sub" and call.constants[0] is not None:
        return [Affine(-one, value)]
    return [
        {
            "Add": lambda: Affine(one, value),
            "Sub": lambda: Affine(one, -value),
            "Mul": lambda: Affine(value, zero),
            "Div": lambda: Affine(1 / value, zero),
        }[kind]()
    ]


def _scaler(call: Call) -> list[nn.Module]:
    """ai.onnx.ml: (x − offset) · scale"""
    offset, scale = (torch.tensor(call.op.settings[name]).double() for name in ("offset", "scale"))
    return [Affine(scale, -offset * scale)]


def _conv(call: Call) -> list[nn.Module]:
    weight, bias = call.constant(1), call.optional(2)
    if weight.ndim != 4:
        raise CannotReadError(f"its kernel has shape {tuple(weight.shape)}")
    padding, before = _padding(call, tuple(weight.shape[2:]))
    layer = convolution(
        weight,
        bias,
        stride=_pair(call, "strides"),
        padding=padding,
        dilation=_pair(call, "dilations"),
        groups=int(call.op.settings.get("group", 1)),
    )
    return [*before, layer]


def _pair(call: Call, name: str) -> tuple[int, int]:
    a, b = call.op.settings.get(name, (1, 1))
    return int(a), int(b)


def _padding(call: Call, kernel: tuple[int, ...]) -> tuple[tuple[int, int], list[nn.Module]]:
    """Equal padding on both sides belongs to the layer; other padding is a layer before it."""
    top, left, bottom, right = _pads(call, kernel)
    if min(top, left, bottom, right) < 0:
        raise CannotReadError("negative pads")
    if (top, left) == (bottom, right):
        return (top, left), []
    return (0, 0), [nn.ZeroPad2d((left, right, top, bottom))]


def _pads(call: Call, kernel: tuple[int, ...]) -> tuple[int, ...]:
    auto = bytes(call.op.settings.get("auto_pad", b"NOTSET")).decode()
    if not auto.startswith("SAME"):
        return tuple(call.op.settings.get("pads", (0, 0, 0, 0)))
    if _pair(call, "strides") != (1, 1):  # it would depend on the size of the input
        raise CannotReadError(f"auto_pad={auto} with a stride")
    total = [d * (k - 1) for d, k in zip(_pair(call, "dilations"), kernel, strict=True)]
    less, more = [t // 2 for t in total], [t - t // 2 for t in total]
    return (*less, *more) if auto == "SAME_UPPER" else (*more, *less)


def _pool(call: Call) -> list[nn.Module]:
    call.must(ceil_mode=0, storage_order=0)
    kernel = _pair(call, "kernel_shape")
    padding, before = _padding(call, kernel)
    if before:
        raise CannotReadError("uneven pads")
    stride = _pair(call, "strides")
    if call.op.kind == "MaxPool":
        return [nn.MaxPool2d(kernel, stride, padding, _pair(call, "dilations"))]
    call.must(dilations=[1, 1])
    return [
        nn.AvgPool2d(kernel, stride, padding, count_include_pad=bool(call.op.settings.get("count_include_pad")))
    ]


def _mean(call: Call) -> list[nn.Module]:
    """Over height and width: global average pooling."""
    axes = call.op.settings.get("axes", () if call.optional(1) is None else call.constant(1).tolist())
    if call.rank != 4 or sorted(int(axis) % 4 for axis in axes) != [2, 3]:
        raise CannotReadError(f"axes={list(axes)}")
    return [nn.AdaptiveAvgPool2d(1), *([] if call.op.settings.get("keepdims", 1) else [nn.Flatten()])]


def _batch_norm(call: Call) -> list[nn.Module]:
    call.must(training_mode=0, spatial=1)
    if call.rank not in (2, 4):
        raise CannotReadError(f"of tensors with {call.rank} axes")
    scale, shift, mean, variance = (call.constant(i) for i in (1, 2, 3, 4))
    return [batch_norm(call.rank, mean, variance, scale, shift, call.op.settings.get("epsilon", 1e-5))]


def _layer_norm(call: Call) -> list[nn.Module]:
    scale = call.constant(1)
    if call.op.settings.get("axis", -1) not in (-1, call.rank - 1) or scale.ndim != 1:
        raise CannotReadError("over several axes")
    shift = call.optional(2)
    return [
        layer_norm(
            scale, torch.zeros_like(scale) if shift is None else shift, call.op.settings.get("epsilon", 1e-5)
        )
    ]


def _reshape(call: Call) -> list[nn.Module]:
    """Within each sample; the batch stays what it is, even if the exporter wrote down its size."""
    shape = call.op.settings["shape"]
    if shape[0] not in (BATCH, 0, call.batch):
        raise CannotReadError(f"to the shape {shape}")
    if len(shape) == 2 and shape[1] != 0:
        return [nn.Flatten()]
    if len(shape) < 2 or min(shape[1:]) <= 0:
        raise CannotReadError(f"to the shape {shape}")
    return [nn.Flatten(), nn.Unflatten(1, shape[1:])]


def _flatten(call: Call) -> list[nn.Module]:
    call.must(axis=1)
    return [nn.Flatten()]


def _clip(call: Call) -> list[nn.Module]:
    low, high = (
        float(value) if (value := call.optional(i)) is not None else call.op.settings.get(name)
        for i, name in ((1, "min"), (2, "max"))
    )
    if low == 0 and high in (None, math.inf):
        return [nn.ReLU()]
    if low is None or high is None or low >= high:
        raise CannotReadError(f"to [{low}, {high}]")
    return [nn.ReLU6() if (low, high) == (0, 6) else nn.Hardtanh(low, high)]


def _softmax(call: Call) -> list[nn.Module]:
    """Before opset 13 it flattened its input."""
    axis = call.op.settings.get("axis", -1 if call.op.opset >= 13 else 1)
    if call.op.opset < 13 and call.rank != 2:
        raise CannotReadError(f"of tensors with {call.rank} axes")
    return [nn.Softmax(axis) if call.op.kind == "Softmax" else nn.LogSoftmax(axis)]


def _cast(call: Call) -> list[nn.Module]:
    if call.op.settings.get("to") not in FLOATS:
        raise CannotReadError("to whole numbers")
    return []


def _nothing(call: Call) -> list[nn.Module]:
    return []


def _gelu(call: Call) -> list[nn.Module]:
    kind = bytes(call.op.settings.get("approximate", b"none")).decode()
    if kind not in ("none", "tanh"):
        raise CannotReadError(f"approximate={kind}")
    return [nn.GELU(kind)]


def _leaky(call: Call) -> list[nn.Module]:
    return [nn.LeakyReLU(call.op.settings.get("alpha", 0.01))]


def _elu(call: Call) -> list[nn.Module]:
    return [nn.ELU(call.op.settings.get("alpha", 1.0))]


def _join(call: Call) -> list[nn.Module]:
    axis = call.op.settings.get("axis", 0)
    if axis == 0 or any(value is not None for value in call.constants):
        raise CannotReadError("of constants, or of samples")
    return [Join(axis)]


def _plain(layer: Callable[[], nn.Module]) -> Callable[[Call], list[nn.Module]]:
    return lambda call: [layer()]


LAYERS: dict[str, Callable[[Call], list[nn.Module]]] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _arithmetic),
    "Scaler": _scaler,
    "Conv": _conv,
    **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
    "GlobalAveragePool": _plain(lambda: nn.AdaptiveAvgPool2d(1)),
    "GlobalMaxPool": _plain(lambda: nn.AdaptiveMaxPool2d(1)),
    "ReduceMean": _mean,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Concat": _join,
    "Clip": _clip,
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    "Cast": _cast,
    **dict.fromkeys(("Identity", "Dropout"), _nothing),
    "Relu": _plain(nn.ReLU),
    "LeakyRelu": _leaky,
    "Gelu": _gelu,
    "Silu": _plain(nn.SiLU),
    "Tanh": _plain(nn.Tanh),
    "Sigmoid": _plain(nn.Sigmoid),
    "Elu": _elu,
    "Softplus": _plain(nn.Softplus),
    "HardSwish": _plain(nn.Hardswish),
}


RANKS: dict[str, Callable[[Call], int]] = {
    "Flatten": lambda call: 2,
    "Reshape": lambda call: len(call.op.settings["shape"]),
    "ReduceMean": lambda call: 4 if call.op.settings.get("keepdims", 1) else 2,
}


def layers_of(call: Call) -> list[nn.Module]:
    """The layers that compute an operator, one after the other: none for those that change nothing."""
    if call.op.kind not in LAYERS:
        raise CannotReadError("no layer for it is known here")
    return LAYERS[call.op.kind](call)


def rank_after(call: Call) -> int:
    """How many axes its output has, the batch included."""
    return RANKS[call.op.kind](call) if call.op.kind in RANKS else call.rank
