"""`.onnx`: the graph says how the weights are used, so it becomes a model. It is read with `onnx` alone."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unfit.base.errors import MAX_LISTED, NotApplicableError, UnfitError, listed, needs
from unfit.base.formats.layers import Affine, Step, as_net, dense
from unfit.base.formats.limits import check_file, check_shapes, check_size, ready, undamaged
from unfit.base.formats.operators import BATCH, FLOATS, Call, CannotReadError, Op, layers_of, rank_after

Constants = dict[str, Tensor]
UNKNOWN = 0  # a side that depends on the input
MAX_RANK = 8
EXTERNAL = 1  # TensorProto.DataLocation: the values are in another file
# after the logits: probabilities, and the label as scikit-learn's converter computes it
TAIL = ("Softmax", "LogSoftmax", "Sigmoid", "Identity", "Cast", "ZipMap", "Squeeze")
NEAR = 1e-4  # how well an exporter's constants, such as √2, must be met


def read_onnx(path: Path) -> nn.Module:
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise needs("onnx", "onnx", str(path)) from error
    with undamaged(path, "ONNX", DecodeError):
        model = onnx.load_model(path, load_external_data=False)
        if not model.graph.node:
            raise ValueError("it holds no graph")
        _refuse_others(path, {node.op_type for node in model.graph.node})
        constants = _constants(path, model.graph)
        ops = _ops(model, constants)
        inputs = [each for each in model.graph.input if each.name not in constants]
        if len(inputs) != 1:
            raise UnfitError(f"{path}: expected a model with one input, found {len(inputs)}")
        wanted = _needed(ops, _logits(path, model.graph, ops), inputs[0].name, constants)
        later = {name: node.op_type for node in model.graph.node for name in node.output[1:]}
        return ready(path, _net(path, wanted, inputs[0], constants, later))


# Models that are no networks. Each of these keeps training samples, or values of them, as they are.
SUPPORT_VECTORS = (
    "a support vector machine, not a network: its support vectors are training samples, stored unchanged"
)
TREES = "an ensemble of trees, not a network, whose thresholds lie between values of training samples"
LINEAR = "a linear model, which holds one mixture of all samples for each output"
OTHERS = {
    "SVMClassifier": SUPPORT_VECTORS,
    "SVMRegressor": SUPPORT_VECTORS,
    "TreeEnsembleClassifier": TREES,
    "TreeEnsembleRegressor": TREES,
    "LinearClassifier": LINEAR,
    "LinearRegressor": LINEAR,
}
NEIGHBOURS = "a search for nearest neighbours, not a network: the file holds the training samples unchanged"


def _refuse_others(path: Path, kinds: set[str]) -> None:
    """Models that are no networks, in their own words."""
    found = next((words for kind, words in OTHERS.items() if kind in kinds), None)
    if found is None and "TopK" in kinds and kinds & {"Scan", "CDist"}:
        found = NEIGHBOURS
    if found:
        raise NotApplicableError(
            f"{path}: this is {found}. No attack here reads it, so this is no pass; "
            "anyone who has the file may read what it stores"
        )


# Reading the file ------------------------------------------------------------------------------------------


def _constants(path: Path, graph: Any) -> Constants:
    """Weights, and what Constant nodes hold."""
    tensors = {each.name: each for each in graph.initializer}
    stored = [
        (node.output[0], each) for node in graph.node if node.op_type == "Constant" for each in node.attribute
    ]
    tensors |= {name: each.t for name, each in stored if each.name == "value"}
    check_shapes(path, (each.dims for each in tensors.values()))
    check_size(path, "and its external data have", sum(map(_external_size, tensors.values())))
    return {name: _tensor(path, each) for name, each in tensors.items()}


def _tensor(path: Path, stored: Any) -> Tensor:
    from onnx import numpy_helper

    if any(side < 0 for side in stored.dims):
        raise ValueError("a tensor with a negative side")
    if stored.data_location == EXTERNAL:
        stored.raw_data = _external(path, stored)
        stored.data_location = 0
    values = numpy_helper.to_array(stored)
    if values.dtype.kind not in "fiub" and stored.data_type not in FLOATS:
        return torch.empty(0)  # strings: class names, which no layer reads
    return torch.tensor(values.astype("float32" if stored.data_type in FLOATS else "int64"))


def _external_size(stored: Any) -> int:
    return int(_place(stored).get("length", 0)) if stored.data_location == EXTERNAL else 0


def _place(stored: Any) -> dict[str, str]:
    return {entry.key: entry.value for entry in stored.external_data}


def _external(path: Path, stored: Any) -> bytes:
    """Values in another file of its folder. A name that leads out of the folder is refused."""
    place = _place(stored)
    name, offset, length = place["location"], int(place.get("offset", 0)), int(place["length"])
    if Path(name).name != name:
        raise UnfitError(f"{path}: its external data {name!r} are not in the same folder")
    check_file(path.parent / name)
    with (path.parent / name).open("rb") as file:
        file.seek(offset)
        values = file.read(length)
    if len(values) != length or offset < 0:
        raise UnfitError(f"{path.parent / name}: shorter than {path.name} says; was it cut short?")
    return values


def _ops(model: Any, constants: Constants) -> dict[str, Op]:
    """By output. What is computed from constants alone becomes one."""
    from onnx import helper

    opset = max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0)
    ops: dict[str, Op] = {}
    for node in model.graph.node:
        settings = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        op = Op(node.op_type, tuple(node.input), node.output[0], settings, opset)
        if op.kind == "Constant":
            if op.output not in constants:
                constants[op.output] = torch.tensor(_plain_constant(settings))
        elif op.kind in ("Identity", "Transpose") and op.inputs[0] in constants:
            value = constants[op.inputs[0]]
            axes = settings.get("perm", range(value.ndim)[::-1])
            constants[op.output] = value if op.kind == "Identity" else value.permute(*axes)
        else:
            ops[op.output] = op
    return ops


def _plain_constant(settings: dict[str, Any]) -> Any:
    """`value_float`, `value_ints`, …"""
    found = [value for name, value in settings.items() if not name.endswith(("string", "strings"))]
    if len(found) != 1:
        raise ValueError("a constant without a value")
    return found[0]


# From its end to its beginning -----------------------------------------------------------------------------


def _logits(path: Path, graph: Any, ops: dict[str, Op]) -> str:
    """The one output, taken back to before its softmax or sigmoid. Whole numbers and strings are labels."""
    outputs = [each for each in graph.output if each.type.tensor_type.elem_type in (0, *FLOATS)]
    if len(outputs) != 1:
        names = [each.name for each in graph.output]
        raise UnfitError(f"{path}: expected a model with one output, found {listed(names)}")
    name = outputs[0].name
    for _ in ops:
        op = ops.get(name)
        if op and (op.kind in TAIL or _both_classes(op, ops)):
            name = op.inputs[-1]
    return name


def _both_classes(op: Op, ops: dict[str, Op]) -> bool:
    """scikit-learn's converter writes (1 − p, p) for two classes."""
    if op.kind != "Concat" or len(op.inputs) != 2:
        return False
    other = ops.get(op.inputs[0])
    return bool(other and other.kind == "Sub" and other.inputs[1] == op.inputs[1])


def _needed(ops: dict[str, Op], output: str, source: str, constants: Constants) -> list[Op]:
    """What computes `output`, in order: ONNX sorts its nodes."""
    wanted, found = {output}, []
    for name in reversed(ops):
        if name in wanted and name != source:
            found.append(_simpler(ops[name], ops, constants))
            wanted.update(found[-1].inputs)
    return found[::-1]


def _simpler(op: Op, ops: dict[str, Op], constants: Constants) -> Op:
    """One operator for what exporters write with several."""
    if op.kind == "Reshape":
        return replace(op, inputs=op.inputs[:1], settings={"shape": _shape(op.inputs[1], ops, constants)})
    if op.kind == "Mul":
        if x := _silu_input(op, ops):
            return replace(op, kind="Silu", inputs=(x,))
        if x := _gelu_input(op, ops, constants):
            return replace(op, kind="Gelu", inputs=(x,))
    return op


def _shape(name: str, ops: dict[str, Op], constants: Constants, depth: int = 4) -> list[int]:
    """The shape that a Reshape asks for; `x.view(x.size(0), -1)` computes it in four steps."""
    if name in constants:
        return [int(side) for side in constants[name].flatten()[:MAX_RANK]]
    op = ops[name]
    if op.kind == "Concat" and depth:
        parts = [_shape(each, ops, constants, depth - 1) for each in op.inputs[:MAX_RANK]]
        return [side for part in parts for side in part][:MAX_RANK]
    if op.kind in ("Unsqueeze", "Cast") and depth:
        return _shape(op.inputs[0], ops, constants, depth - 1)
    if op.kind == "Gather" and ops[op.inputs[0]].kind == "Shape" and int(constants[op.inputs[1]]) == 0:
        return [BATCH]
    return [UNKNOWN]


def _silu_input(op: Op, ops: dict[str, Op]) -> str | None:
    """x, if the operator computes x · sigmoid(x)."""
    pairs = (op.inputs, op.inputs[::-1])
    return next((x for x, y in pairs if _is(y, "Sigmoid", ops) and ops[y].inputs == (x,)), None)


def _gelu_input(op: Op, ops: dict[str, Op], constants: Constants) -> str | None:
    """x, if the operator computes x · ½ · (1 + erf(x/√2)), in whatever order."""
    names = [name for each in op.inputs for name in (ops[each].inputs if _is(each, "Mul", ops) else (each,))]
    factors = [name for name in names if name not in constants]
    if len(factors) != 2 or not _near(math.prod(float(constants[n].sum()) for n in names if n in constants), 0.5):
        return None
    return next((x for x, gate in (factors, factors[::-1]) if _is_gate(gate, x, ops, constants)), None)


def _is_gate(gate: str, x: str, ops: dict[str, Op], constants: Constants) -> bool:
    """1 + erf(x/√2)"""
    if not _is(gate, "Add", ops):
        return False
    erf = next((ops[name] for name in ops[gate].inputs if _is(name, "Erf", ops)), None)
    one = [constants[name] for name in ops[gate].inputs if name in constants]
    if not erf or len(one) != 1 or one[0].numel() != 1 or not _near(float(one[0]), 1):
        return False
    inner = ops.get(erf.inputs[0])
    if not inner or inner.kind not in ("Div", "Mul") or x not in inner.inputs:
        return False
    by = [float(constants[name]) for name in inner.inputs if name in constants and constants[name].numel() == 1]
    return (
        len(by) == 1 and inner.inputs[0] == x and _near(by[0], math.sqrt(2) ** (1 if inner.kind == "Div" else -1))
    )


def _is(name: str, kind: str, ops: dict[str, Op]) -> bool:
    return name in ops and ops[name].kind == kind


def _near(a: float, b: float) -> bool:
    return abs(a - b) < NEAR


# Layers ----------------------------------------------------------------------------------------------------


def _net(path: Path, wanted: list[Op], source: Any, constants: Constants, later: dict[str, str]) -> nn.Module:
    sides = source.type.tensor_type.shape.dim
    values, ranks, batch = {source.name: 0}, {source.name: len(sides)}, sides[0].dim_value if sides else 0
    uses = Counter(name for op in wanted for name in op.inputs)
    steps: list[Step] = []
    problems: list[str] = []
    for op in wanted:
        computed = [name for name in op.inputs if name and name not in constants]
        if not computed or any(name not in values for name in computed):
            strange = [f"{name!r} ({later[name]})" for name in computed if name in later]
            if strange:
                raise UnfitError(f"{path}: cannot read {listed(strange)}: an operator with several outputs")
            raise UnfitError(f"{path}: {op} is not computed from the model's input")
        call = Call(op, tuple(constants.get(name) for name in op.inputs), ranks[computed[0]], batch)
        sources = tuple(values[name] for name in computed)
        try:
            layers = layers_of(call)
        except CannotReadError as error:
            problems.append(f"{op}: {error}")
            layers = []
        ranks[op.output] = rank_after(call)
        if _is_bias(call, layers, steps, sources) and uses[computed[0]] == 1:
            steps[-1] = (_with_bias(steps[-1][0], layers[0]), steps[-1][1])
            layers = []
        for layer in layers:
            steps.append((layer, sources))
            sources = (len(steps),)
        values[op.output] = sources[0]
    if problems:
        raise UnfitError(f"{path}: cannot read {'; '.join(problems[:MAX_LISTED])}")
    if not steps:
        raise UnfitError(f"{path}: the graph has no layers")
    return as_net(steps)


def _is_bias(call: Call, layers: list[nn.Module], steps: list[Step], sources: tuple[int, ...]) -> bool:
    """MatMul and Add are one dense layer."""
    last = steps[-1][0] if steps and sources == (len(steps),) else None
    if call.op.kind != "Add" or not layers or not isinstance(last, nn.Linear) or last.bias is not None:
        return False
    shift = layers[0].shift if isinstance(layers[0], Affine) else torch.empty(0)
    return shift.numel() == last.out_features == shift.shape[-1]


def _with_bias(layer: nn.Module, shift: nn.Module) -> nn.Linear:
    assert isinstance(layer, nn.Linear)
    assert isinstance(shift, Affine)
    return dense(layer.weight, shift.shift.flatten())
