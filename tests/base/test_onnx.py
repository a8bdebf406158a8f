"""ONNX files become the net that they were exported from; what cannot be read is named."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from conftest import read_or_refused
from unfit.base.errors import NotApplicableError, UnfitError
from unfit.base.formats import read_model


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def exported(net: nn.Module, x: Tensor, path: Path, opset: int = 20, dynamic: bool = True) -> Path:
    axes = {"x": {0: "n"}} if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is deprecated; the other one needs another package
        torch.onnx.export(net, (x,), path, dynamo=False, input_names=["x"], opset_version=opset, dynamic_axes=axes)
    return path


def shaken(net: nn.Module) -> nn.Module:
    """Statistics and scales of normalisations as training leaves them, not 0 and 1."""
    generator = torch.Generator().manual_seed(1)
    for name, value in net.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=generator) + (0.5 if "var" in name else -0.5))
    return net.eval()


class Block(nn.Module):
    """What people write in `forward`: normalised inputs, a skip, a view."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.grouped = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1)) / 0.25
        x = nn.functional.relu6(self.norm(self.conv(x)))
        x = nn.functional.avg_pool2d(x + torch.relu(self.grouped(x)), 2)
        return self.head(x.view(x.size(0), -1))


class AsPicture(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(-1, 1, 4, 4)


ACTIVATIONS = [
    nn.ReLU(),
    nn.LeakyReLU(0.2),
    nn.Tanh(),
    nn.Sigmoid(),
    nn.ELU(0.7),
    nn.GELU(),
    nn.SiLU(),
    nn.Softplus(),
]
NETS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    **{type(each).__name__: (nn.Sequential(nn.Linear(6, 5), each, nn.Linear(5, 3)), (6,)) for each in ACTIVATIONS},
    "flat": (nn.Sequential(nn.Flatten(), nn.Linear(12, 5, bias=False), nn.ReLU(), nn.Linear(5, 1)), (3, 2, 2)),
    "norms": (
        nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 2)),
        (6,),
    ),
    "dropout": (
        nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 2)),
        (6,),
    ),
    "cnn": (
        nn.Sequential(
            *(nn.Conv2d(2, 4, 3, padding=(1, 0)), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(4, 6, (2, 1), dilation=2), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            nn.Linear(6, 3),
        ),
        (2, 9, 9),
    ),
    "padded pools": (
        nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1), nn.Flatten(), nn.Linear(2 * 3 * 3, 2)),
        (2, 11, 11),
    ),
    "uneven": (
        nn.Sequential(nn.Conv2d(1, 2, 2, padding="same"), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2)),
        (1, 4, 4),
    ),
    "unflattened": (
        nn.Sequential(AsPicture(), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)),
        (16,),
    ),
    "block": (Block(), (3, 8, 8)),
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(("opset", "dynamic"), [(20, True), (13, False)])
def test_the_net_is_the_same_function(tmp_path, name, opset, dynamic):
    net, shape = NETS[name]
    net = shaken(net)
    path = exported(
        net, random(2, *shape), tmp_path / "net.onnx", 17 if name == "norms" and opset < 17 else opset, dynamic
    )
    found = read_model(path)
    assert isinstance(found, nn.Module)
    assert not found.training
    x = random(7, *shape, seed=1)
    torch.testing.assert_close(found(x), net(x), rtol=1e-4, atol=1e-5)
    if name != "block":
        assert isinstance(found, nn.Sequential)


@pytest.mark.parametrize("last", [nn.Softmax(1), nn.LogSoftmax(1), nn.Sigmoid()])
def test_the_net_returns_logits(tmp_path, last):
    body = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    found = read_model(exported(nn.Sequential(body, last).eval(), random(2, 6), tmp_path / "net.onnx"))
    assert [type(layer).__name__ for layer in found] == ["Linear", "ReLU", "Linear"]
    torch.testing.assert_close(found(random(4, 6)), body(random(4, 6)))


@pytest.mark.parametrize("kind", ["three", "two", "scaled", "regression"])
def test_what_skl2onnx_writes_is_read(tmp_path, kind):
    skl2onnx = pytest.importorskip("skl2onnx")
    x = np.random.default_rng(0).normal(size=(60, 5))
    y = np.arange(60) % (2 if kind == "two" else 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        made = MLPRegressor if kind == "regression" else MLPClassifier
        mlp = made(hidden_layer_sizes=(4,), activation="tanh", max_iter=5, random_state=0)
        model = (make_pipeline(StandardScaler(), mlp) if kind == "scaled" else mlp).fit(x, y)
        content = skl2onnx.to_onnx(model, x[:1].astype(np.float32)).SerializeToString()
    (tmp_path / "net.onnx").write_bytes(content)
    net = read_model(tmp_path / "net.onnx")
    logits = net(torch.tensor(x).float())
    if kind == "regression":
        assert np.allclose(logits[:, 0], model.predict(x), atol=1e-5)
    else:
        p = logits.sigmoid() if kind == "two" else logits.softmax(1)
        assert np.allclose(p[:, -1], model.predict_proba(x)[:, -1], atol=1e-5)


# Graphs made by hand ---------------------------------------------------------------------------------------


def graph(
    path: Path,
    nodes: Sequence[Any],
    constants: dict[str, Any] | None = None,
    shape: Sequence[Any] = ("n", 4),
    **more: Any,
) -> Path:
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in more.get("outputs", ("y",))
    ]
    weights = [numpy_helper.from_array(np.float32(value), name) for name, value in (constants or {}).items()]
    onnx.save(helper.make_model(helper.make_graph(nodes, "net", [source], outputs, weights)), path)
    return path


def refused(path: Path, match: str) -> str:
    with pytest.raises(UnfitError, match=match) as caught:
        read_model(path)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


def test_matmul_and_add_are_one_layer(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["b", "h"], ["y"])]
    weight, bias = random(4, 3).numpy(), random(1, 3).numpy()
    net = read_model(graph(tmp_path / "net.onnx", nodes, {"w": weight, "b": bias}))
    assert [type(layer) for layer in net] == [nn.Linear]
    assert np.allclose(net(random(5, 4)), random(5, 4).numpy() @ weight + bias, atol=1e-6)


def test_a_sum_that_is_used_twice_stays_one(tmp_path):
    """The bias must not reach the other user of the product."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["a"]),
        helper.make_node("Mul", ["a", "h"], ["y"]),
    ]
    weight, bias = random(4, 3), random(3, seed=1)
    net = read_model(graph(tmp_path / "net.onnx", nodes, {"w": weight.numpy(), "b": bias.numpy()}))
    h = random(5, 4) @ weight
    torch.testing.assert_close(net(random(5, 4)), (h + bias) * h)


def test_a_gemm_has_factors(tmp_path):
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], alpha=2.0, beta=0.5)]
    net = read_model(graph(tmp_path / "net.onnx", nodes, {"w": random(4, 3).numpy(), "b": np.ones(3)}))
    torch.testing.assert_close(net(random(5, 4)), 2 * random(5, 4) @ random(4, 3) + 0.5)


@pytest.mark.parametrize("order", [("x", "s"), ("s", "x")])
def test_silu_is_known_in_any_order(tmp_path, order):
    nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", list(order), ["y"])]
    net = read_model(graph(tmp_path / "net.onnx", nodes))
    assert [type(layer) for layer in net] == [nn.SiLU]


@pytest.mark.parametrize("order", [("x", "g", "half"), ("half", "x", "g"), ("g", "half", "x")])
def test_gelu_is_known_in_any_order_and_nothing_else_is(tmp_path, order):
    nodes = [
        helper.make_node("Div", ["x", "root"], ["d"]),
        helper.make_node("Erf", ["d"], ["e"]),
        helper.make_node("Add", ["e", "one"], ["g"]),
        helper.make_node("Mul", list(order[:2]), ["m"]),
        helper.make_node("Mul", ["m", order[2]], ["y"]),
    ]
    constants = {"root": math.sqrt(2), "one": 1.0, "half": 0.5}
    net = read_model(graph(tmp_path / "net.onnx", nodes, constants))
    torch.testing.assert_close(net(random(5, 4)), nn.functional.gelu(random(5, 4)))
    for name in constants:
        refused(graph(tmp_path / "net.onnx", nodes, {**constants, name: 0.9}), r"'e' \(Erf\)")


@pytest.mark.parametrize(
    ("node", "match"),
    [
        (("LSTM", ["x"], {}), r"'y' \(LSTM\): no layer for it is known here"),
        (("Pow", ["x", "w"], {}), r"'y' \(Pow\)"),
        (("Gemm", ["x", "w"], {"transA": 1}), "transA=1"),
        (("Gemm", ["w", "x"], {}), "its input 1 is not a constant"),
        (("Flatten", ["x"], {"axis": 2}), "axis=2"),
        (("Div", ["w", "x"], {}), "divides"),
        (("Add", ["x", "w"], {}), r"its constant has shape \(4, 3\)"),
        (("Reshape", ["x", "five"], {}), r"to the shape \[5, 2\]"),
        (("Cast", ["x"], {"to": TensorProto.INT64}), "to whole numbers"),
        (("Conv", ["x", "w"], {}), r"its kernel has shape \(4, 3\)"),
        (("Relu", ["z"], {}), "is not computed from the model's input"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, node, match):
    kind, inputs, settings = node
    nodes = [helper.make_node(kind, inputs, ["y"], **settings)]
    if kind == "Cast":  # at the end it would be passed over
        nodes = [helper.make_node(kind, inputs, ["c"], **settings), helper.make_node("Relu", ["c"], ["y"])]
    refused(graph(tmp_path / "net.onnx", nodes, {"w": random(4, 3).numpy(), "five": [5, 2]}), match)


def test_several_outputs_are_refused(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Tanh", ["x"], ["z"])]
    path = graph(tmp_path / "net.onnx", nodes, outputs=("y", "z"))
    refused(path, "expected a model with one output, found y, z")


# Files -----------------------------------------------------------------------------------------------------


def dense_graph(path: Path) -> Path:
    return graph(path, [helper.make_node("Gemm", ["x", "w"], ["y"])], {"w": random(4, 300).numpy()})


def outside(path: Path, location: str = "net.data") -> Path:
    model = onnx.load(dense_graph(path))
    onnx.save(model, path, save_as_external_data=True, location="net.data", size_threshold=0)
    model = onnx.load(path, load_external_data=False)
    next(each for each in model.graph.initializer[0].external_data if each.key == "location").value = location
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_are_read_from_the_same_folder(tmp_path):
    net = read_model(outside(tmp_path / "net.onnx"))
    torch.testing.assert_close(net(random(5, 4)), random(5, 4) @ random(4, 300))
    for location in ("../net.data", "/etc/passwd", "sub/net.data"):
        refused(outside(tmp_path / "net.onnx", location), "are not in the same folder")
    outside(tmp_path / "net.onnx")
    (tmp_path / "net.data").write_bytes((tmp_path / "net.data").read_bytes()[:-1])
    with pytest.raises(UnfitError, match=r"net\.data: shorter than net\.onnx says"):
        read_model(tmp_path / "net.onnx")


def test_a_tensor_that_claims_too_much_is_refused(tmp_path):
    model = onnx.load(dense_graph(tmp_path / "net.onnx"))
    model.graph.initializer[0].dims[0] = 2**50
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    refused(tmp_path / "net.onnx", "claims .* parameters")


def test_values_that_are_not_numbers_are_refused(tmp_path):
    weight = random(4, 3).numpy()
    weight[1, 1] = np.nan
    refused(graph(tmp_path / "net.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight}), "NaN")


def test_a_damaged_file_is_read_or_refused(tmp_path):
    path = exported(shaken(Block()), random(2, 3, 8, 8), tmp_path / "net.onnx")
    content, outcomes = path.read_bytes(), set()
    damaged = [content[:size] for size in range(0, len(content), 97)]
    damaged += [
        content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :] for at in range(0, len(content), 13)
    ]
    for each in damaged:
        path.write_bytes(each)
        outcomes.add(read_or_refused(path))
    assert outcomes == {"read", "refused"}


@pytest.mark.filterwarnings("ignore")
def test_models_that_are_no_nets_are_refused_in_their_own_words(tmp_path: Path) -> None:
    skl2onnx = pytest.importorskip("skl2onnx")
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    for model, words in (
        (SVC(), "its support vectors are training samples"),
        (KNeighborsClassifier(), "the file holds the training samples unchanged"),
        (RandomForestClassifier(3), "an ensemble of trees, not a network"),
    ):
        path = tmp_path / "model.onnx"
        path.write_bytes(skl2onnx.to_onnx(model.fit(x, x[:, 0] > 0), x[:1]).SerializeToString())
        with pytest.raises(NotApplicableError, match=words):
            read_model(path)


def test_an_operator_with_several_outputs_is_named(tmp_path: Path) -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 12), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(self.first(x).relu().split([6, 6], dim=1)[1])
            return out

    path = exported(Halves(), random(1, 8), tmp_path / "model.onnx")
    with pytest.raises(UnfitError, match=r"cannot read .*\(Split\): an operator with several outputs"):
        read_model(path)
