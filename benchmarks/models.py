"""Thirty models trained with other people's code: python benchmarks/models.py DATA [NAME …]

DATA holds cifar-10-batches-bin and mnist. Each model is trained by plain PyTorch, scikit-learn or Keras code, and asked about
twice: through `unfit.audit` with the object, and through the command line with the file that people would have saved, beside
the code of the net where the file alone does not say. Both must give the same answer. What was measured is kept in
runs/models, one file a model, and a run that was stopped goes on where it was. Prints the table of docs/models.md. One of
them needs `unfit[models]`, and is left out without it.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import model_code as code
from unfit import Auto, Policy, UnfitError, audit, draw, draw_unseen, preflight, read_source
from unfit.attacker.attacked_layer import read_layer
from unfit.base.modules import as_base, as_target
from unfit.cli import main as command_line

Pair = tuple[Tensor, Tensor]
RUNS = Path("runs/models")
CODE = Path(code.__file__)
SEEDS = Auto().seeds  # all that are tried by default
RANK = 8  # of the adapters
COUNTS = ("num_recovered", "num_recognisable", "num_exact", "num_recovered_unseen", "num_recognisable_unseen")


@dataclass(frozen=True)
class Specimen:
    """What is put to `unfit`: an object in Python, a file and options on the command line."""

    model: Any
    private: Pair
    unseen: Pair
    save: Callable[[Path], Path]  # writes into a folder, and says what the command is given
    code: str | None = None  # the function or class that builds the net
    base: nn.Module | None = None
    save_base: Callable[[Path], Path] | None = None
    window: int = 11


@dataclass(frozen=True)
class Entry:
    name: str
    about: str  # the first line of the table's row
    make: Callable[[Path], Specimen]


MODELS: dict[str, Entry] = {}


def entry(about: str) -> Callable[[Callable[[Path], Specimen]], Callable[[Path], Specimen]]:
    """Put a function into the zoo under its own name."""

    def add(make: Callable[[Path], Specimen]) -> Callable[[Path], Specimen]:
        MODELS[make.__name__] = Entry(make.__name__, about, make)
        return make

    return add


# Data ---------------------------------------------------------------------------------------------------------


@cache
def images(name: str, n: int, data: Path, classes: str | None = None, centred: bool = True) -> tuple[Pair, Pair]:
    """Private and unseen samples, equally many of each class, as the model sees them."""
    place = {"cifar10": f":{data / 'cifar-10-batches-bin'}", "mnist": f":{data / 'mnist'}"}.get(name, "")
    source = read_source(name + place, classes)
    private = draw(source, n, 0)
    unseen = draw_unseen(source, private, n, 0)
    mean = private.mean if centred else torch.zeros(())
    return (private.x - mean, private.y), (unseen.x - mean, unseen.y)


@cache
def digits(n: int = 50) -> tuple[Pair, Pair]:
    """scikit-learn's, 64 columns each."""
    from sklearn.datasets import load_digits

    x, y = (torch.tensor(each) for each in load_digits(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order].float() / 16, y[order]
    of_class = [(y == i).nonzero()[:, 0] for i in range(10)]
    first, second = (torch.cat([each[k : k + n // 10] for each in of_class]) for k in (0, n // 10))
    return (x[first], y[first]), (x[second], y[second])


def halves(sets: tuple[Pair, Pair]) -> tuple[Pair, Pair, Pair]:
    """The first half of the private samples as a public set, and as many of the others."""
    (x, y), (x_unseen, y_unseen) = sets
    odd, even = (torch.arange(len(x)) // 2 % 2 == part for part in (0, 1))
    return (x[odd], y[odd]), (x[even], y[even]), (x_unseen[even], y_unseen[even])


# Training -----------------------------------------------------------------------------------------------------


def seeded(build: Callable[[], nn.Module], seed: int = 7) -> Any:
    torch.manual_seed(seed)
    return build()


def loss_of(phi: Tensor, y: Tensor) -> Tensor:
    if y.is_floating_point():
        return nn.functional.mse_loss(phi, y.view(phi.shape))
    if y.ndim == 2:
        return nn.functional.binary_cross_entropy_with_logits(phi, y.float())
    if phi.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(phi[:, 0], y.float())
    if (phi >= 0).all() and torch.allclose(phi.sum(1), torch.ones(len(phi))):
        return nn.functional.nll_loss(phi.clamp_min(1e-12).log(), y)
    return nn.functional.cross_entropy(phi, y)


def train(
    net: Any,
    pair: Pair,
    steps: int = 300,
    kind: type[torch.optim.Optimizer] = torch.optim.SGD,
    batch: int | None = None,
    **settings: float,
) -> Any:
    """As anybody would write it."""
    default = {"lr": 0.05, "momentum": 0.9} if kind is torch.optim.SGD else {"lr": 1e-3}
    optimiser = kind([p for p in net.parameters() if p.requires_grad], **(default | settings))
    x, y = pair
    for _ in range(steps):
        chosen = torch.arange(len(x)) if batch is None else torch.randperm(len(x))[:batch]
        optimiser.zero_grad()
        loss_of(net(x[chosen]), y[chosen]).backward()
        optimiser.step()
    return net.eval()


def pretrained(build: Callable[[], nn.Module], sets: tuple[Pair, Pair], steps: int = 100) -> Any:
    public, private, unseen = halves(sets)
    base = train(seeded(build), public, steps)
    return base, private, unseen


# Files --------------------------------------------------------------------------------------------------------


def state_dict(net: nn.Module, name: str = "model.pt") -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        torch.save(net.state_dict(), folder / name)
        return folder / name

    return save


def safetensors(net: nn.Module, name: str = "model.safetensors") -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        save_file(net.state_dict(), folder / name)
        return folder / name

    return save


def onnx_of(net: nn.Module, x: Tensor) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        path, axes = folder / "model.onnx", {"x": {0: "n"}}
        torch.onnx.export(net, (x[:1],), path, dynamo=False, input_names=["x"], dynamic_axes=axes)
        return path

    return save


def plain(net: nn.Module, sets: tuple[Pair, Pair], code: str | None = None) -> Specimen:
    return Specimen(net, *sets, state_dict(net), code)


# Perceptrons --------------------------------------------------------------------------------------------------


@entry("perceptron, ReLU, SGD (`.pt`)")
def relu(data: Path) -> Specimen:
    sets = images("cifar10", 40, data)
    return plain(train(seeded(code.perceptron), sets[0]), sets)


@entry("… GELU (`.pt` and its code)")
def gelu(data: Path) -> Specimen:
    sets = images("cifar10", 40, data)
    return plain(train(seeded(code.gelu), sets[0]), sets, "gelu")


@entry("… LeakyReLU (`.pt` and its code)")
def leaky_relu(data: Path) -> Specimen:
    sets = images("cifar10", 40, data)
    return plain(train(seeded(code.leaky_relu), sets[0]), sets, "leaky_relu")


@entry("… Tanh (`.safetensors` and its code)")
def tanh(data: Path) -> Specimen:
    sets = images("cifar10", 40, data)
    net = train(seeded(code.tanh), sets[0])
    return Specimen(net, *sets, safetensors(net), "tanh")


@entry("… LayerNorm (`.pt` alone)")
def layer_norm(data: Path) -> Specimen:
    sets = images("cifar10", 40, data)
    return plain(train(seeded(lambda: code.normed(nn.LayerNorm)), sets[0]), sets)


@entry("… BatchNorm1d, batches of 20 (`.pt` alone)")
def batch_norm(data: Path) -> Specimen:
    sets = images("cifar10", 40, data)
    return plain(train(seeded(lambda: code.normed(nn.BatchNorm1d)), sets[0], batch=20), sets)


@entry("… dropout, Adam, batches (Lightning's `.ckpt`)")
def dropout(data: Path) -> Specimen:
    sets = images("mnist", 40, data)
    net = train(seeded(code.dropout), sets[0], kind=torch.optim.Adam, batch=20)

    def save(folder: Path) -> Path:
        tensors = {f"model.{name}": value for name, value in net.state_dict().items()}
        content = {"epoch": 3, "global_step": 300, "pytorch-lightning_version": "2.4.0", "state_dict": tensors}
        torch.save(content | {"optimizer_states": [{}], "hyper_parameters": {"lr": 1e-3}}, folder / "last.ckpt")
        return folder / "last.ckpt"

    return Specimen(net, *sets, save)


@entry("… SiLU and a skip (`.pt` and its code)")
def dense_skip(data: Path) -> Specimen:
    sets = images("cifar10", 40, data)
    return plain(train(seeded(code.DenseSkip), sets[0]), sets, "DenseSkip")


@entry("… softmax at the end (`.pt` and its code)")
def softmax(data: Path) -> Specimen:
    sets = images("cifar10", 40, data)
    return plain(train(seeded(code.softmax), sets[0]), sets, "softmax")


@entry("… normalises its inputs itself (`.pt` and its code)")
def normalised(data: Path) -> Specimen:
    sets = images("cifar10", 40, data, centred=False)
    net, x = seeded(code.Normalised), sets[0][0]
    net.mean, net.std = x.mean((0, 2, 3)).view(3, 1, 1), x.std((0, 2, 3)).view(3, 1, 1)
    return plain(train(net, sets[0], lr=0.02), sets, "Normalised")


@entry("… first layer split in two (`.pt` and its code)")
def split_in_two(data: Path) -> Specimen:
    sets = images("cifar10", 40, data)
    return plain(train(seeded(code.split_in_two), sets[0]), sets, "split_in_two")


@entry("… regression (ONNX)")
def regression(data: Path) -> Specimen:
    (x, _), (x_unseen, _) = images("cifar10", 40, data)
    y, y_unseen = (each.flatten(1).mean(1, keepdim=True) / x.flatten(1).mean(1).std() for each in (x, x_unseen))
    net = train(seeded(code.perceptron), (x, y), lr=0.01)
    return Specimen(net, (x, y), (x_unseen, y_unseen), onnx_of(net, x))


@entry("… three labels at once, weight decay (`.pt`)")
def multi_label(data: Path) -> Specimen:
    """Is it bright, is it red, is it an animal?"""
    (x, y), (x_unseen, y_unseen) = images("cifar10", 40, data)
    labels = [
        torch.stack(
            [(z.flatten(1).mean(1) > 0).long(), (z[:, 0] > z[:, 2]).float().mean((1, 2)).gt(0.5).long(), t], 1
        )
        for z, t in ((x, y), (x_unseen, y_unseen))
    ]
    net = train(seeded(lambda: code.perceptron(k=3)), (x, labels[0]), steps=600, lr=0.1, weight_decay=5e-3)
    return plain(net, ((x, labels[0]), (x_unseen, labels[1])))


@entry("… ten classes (Hugging Face folder, sharded)")
def ten_classes(data: Path) -> Specimen:
    sets = images("cifar10", 40, data, "all")
    net = train(seeded(lambda: code.perceptron(k=10)), sets[0])

    def save(folder: Path) -> Path:
        tensors = {f"model.{name}": value for name, value in net.state_dict().items()}
        names, shards = list(tensors), {}
        for i, part in enumerate((names[:2], names[2:]), 1):
            file = f"model-{i:05}-of-00002.safetensors"
            save_file({name: tensors[name] for name in part}, folder / file)
            shards |= dict.fromkeys(part, file)
        (folder / "config.json").write_text(json.dumps({"architectures": ["Perceptron"]}))
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
        return folder

    return Specimen(net, *sets, save)


# Pictures through other layers --------------------------------------------------------------------------------


@entry("a padded convolution, then dense, weight decay (`.pt` and its code)")
def padded_convolution(data: Path) -> Specimen:
    sets = images("mnist", 30, data)
    net = train(seeded(code.padded_convolution), sets[0], steps=300, weight_decay=1e-2)
    return plain(net, sets, "padded_convolution")


def trained_cnn(data: Path) -> tuple[nn.Module, tuple[Pair, Pair]]:
    sets = images("mnist", 40, data, "all")
    return train(seeded(code.conv_norm_pool), sets[0], lr=0.02), sets


@entry("convolution, BatchNorm, pooling, twice, then dense (`.pt` and its code)")
def conv_norm_pool(data: Path) -> Specimen:
    return plain(*trained_cnn(data), "conv_norm_pool")


@entry("the same (ONNX)")
def cnn_onnx(data: Path) -> Specimen:
    net, sets = trained_cnn(data)
    return Specimen(net, *sets, onnx_of(net, sets[0][0]))


@entry("residual net, global average pooling (`.pt` and its code)")
def resnet(data: Path) -> Specimen:
    sets = images("mnist", 40, data, "all")
    return plain(train(seeded(code.resnet), sets[0], steps=100), sets, "resnet")


@entry("vision transformer (`.pt` and its code)")
def transformer(data: Path) -> Specimen:
    sets = images("mnist", 40, data, "all")
    return plain(train(seeded(code.Transformer), sets[0], steps=100, kind=torch.optim.Adam), sets, "Transformer")


@entry("frozen convolutional body, new head, base known (`.pt` and its code)")
def frozen_body(data: Path) -> Specimen:
    base, private, unseen = pretrained(code.BodyAndHead, images("mnist", 80, data))
    base.body.requires_grad_(False)
    net = copy.deepcopy(base)
    for parameter, initial in zip(
        net.head.parameters(), seeded(code.BodyAndHead, 8).head.parameters(), strict=True
    ):
        parameter.data = initial.data.clone()
    base = copy.deepcopy(net)
    return Specimen(
        train(net, private), private, unseen, state_dict(net), "BodyAndHead", base, state_dict(base, "base.pt")
    )


@entry("EfficientNet-Lite0, new head, base known (`.pt` and its code)")
def lite_net(data: Path) -> Specimen:
    (x, y), (x_unseen, y_unseen) = images("cifar10", 40, data)
    x, x_unseen = (nn.functional.interpolate(each, scale_factor=2) for each in (x, x_unseen))
    net = seeded(code.LiteNet).eval()
    base = copy.deepcopy(net)
    with torch.no_grad():
        features = net.features(x)
    train(net.head, (features, y))
    return Specimen(
        net, (x, y), (x_unseen, y_unseen), state_dict(net), "LiteNet", base, state_dict(base, "base.pt")
    )


# Fine-tuned ---------------------------------------------------------------------------------------------------


def tuned(
    sets: tuple[Pair, Pair], build: Callable[[], nn.Module], kind: type[torch.optim.Optimizer], **settings: float
) -> Specimen:
    base, private, unseen = pretrained(build, sets)
    net = train(copy.deepcopy(base), private, 200, kind, **settings)
    return Specimen(net, private, unseen, state_dict(net), base=base, save_base=state_dict(base, "base.pt"))


@entry("fine-tuned by SGD, base known (`.pt`)")
def tuned_sgd(data: Path) -> Specimen:
    return tuned(images("cifar10", 80, data), code.perceptron, torch.optim.SGD)


@entry("fine-tuned by Adam, base known (`.pt`)")
def tuned_adam(data: Path) -> Specimen:
    return tuned(images("mnist", 80, data), code.digit_perceptron, torch.optim.Adam, lr=1e-4)


@entry("fine-tuned by AdamW, base known (`.pt`)")
def tuned_adamw(data: Path) -> Specimen:
    settings = {"lr": 1e-4, "weight_decay": 1e-2}
    return tuned(images("mnist", 80, data), code.digit_perceptron, torch.optim.AdamW, **settings)


class Adapted(nn.Module):
    """W + B·A, of which A and B are trained."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(RANK, layer.in_features) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.a.T @ self.b.T


@cache
def adapted(data: Path) -> tuple[nn.Sequential, nn.Sequential, dict[str, Tensor], Pair, Pair]:
    """The base, the merged model, and the adapter under the names that PEFT gives it."""
    base, private, unseen = pretrained(code.perceptron, images("cifar10", 80, data))
    merged, pairs = copy.deepcopy(base), {}
    net = copy.deepcopy(base).requires_grad_(False)
    for i in (1, 3):
        net[i] = Adapted(net[i])
    train(net, private, 300)
    for i in (1, 3):
        merged[i].weight.data += net[i].b.data @ net[i].a.data
        for name, value in (("A", net[i].a), ("B", net[i].b)):
            pairs[f"base_model.model.{i}.lora_{name}.weight"] = value.data.clone()
    return base, merged, pairs, private, unseen


@entry("low-rank adapters, merged, base known (`.pt`)")
def lora_merged(data: Path) -> Specimen:
    base, merged, _, private, unseen = adapted(data)
    return Specimen(merged, private, unseen, state_dict(merged), base=base, save_base=state_dict(base, "base.pt"))


@entry("low-rank adapters, alone, base known (PEFT folder)")
def lora_folder(data: Path) -> Specimen:
    base, merged, pairs, private, unseen = adapted(data)

    def save(folder: Path) -> Path:
        save_file(pairs, folder / "adapter_model.safetensors")
        about = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["1", "3"]}
        (folder / "adapter_config.json").write_text(json.dumps(about))
        return folder

    return Specimen(merged, private, unseen, save, base=base, save_base=lambda f: state_dict(base)(f.parent))


# Other libraries ----------------------------------------------------------------------------------------------


def fitted(sets: tuple[Pair, Pair], *before: Any) -> Any:
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline

    (x, y), _ = sets
    net = MLPClassifier((200,), solver="sgd", learning_rate_init=0.1, max_iter=300, alpha=1e-2, random_state=0)
    return (make_pipeline(*before, net) if before else net).fit(x.numpy(), y.numpy())


@entry("scikit-learn, digits (`.skops`)")
def sklearn_digits(data: Path) -> Specimen:
    import skops.io

    sets = digits()
    estimator = fitted(sets)

    def save(folder: Path) -> Path:
        skops.io.dump(estimator, folder / "model.skops")
        return folder / "model.skops"

    return Specimen(estimator, *sets, save)


@entry("scikit-learn, StandardScaler before it, digits (ONNX)")
def sklearn_onnx(data: Path) -> Specimen:
    from skl2onnx import to_onnx
    from sklearn.preprocessing import StandardScaler

    sets = digits()
    estimator = fitted(sets, StandardScaler())

    def save(folder: Path) -> Path:
        content = to_onnx(estimator, sets[0][0][:1].numpy(), options={"zipmap": False})
        (folder / "model.onnx").write_bytes(content.SerializeToString())
        return folder / "model.onnx"

    return Specimen(estimator, *sets, save)


@entry("Keras, weight decay (`.keras`; in Python the same net in PyTorch)")
def keras_file(data: Path) -> Specimen:
    os.environ["KERAS_BACKEND"] = "torch"
    os.environ.setdefault("KERAS_HOME", str(Path(tempfile.gettempdir()) / "unfit-keras"))
    import keras

    sets = images("mnist", 40, data, "all")
    (x, y), _ = sets
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Dense(width, activation, kernel_regularizer=keras.regularizers.L2(2e-3))
        for width, activation in ((300, "relu"), (10, "softmax"))
    ]
    model = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), *layers])
    model.compile(keras.optimizers.SGD(0.1, 0.9), "sparse_categorical_crossentropy")
    model.fit(x.permute(0, 2, 3, 1).numpy(), y.numpy(), batch_size=40, epochs=400, verbose=0)
    net = code.perceptron(d=code.DIGIT, widths=(300,), k=10)
    for layer, (kernel, bias) in zip((net[1], net[3]), (each.get_weights() for each in layers), strict=True):
        layer.weight.data, layer.bias.data = torch.tensor(kernel.T.copy()), torch.tensor(bias)

    def save(folder: Path) -> Path:
        model.save(folder / "model.keras")
        return folder / "model.keras"

    return Specimen(net.eval(), *sets, save)


@entry("TorchScript archive")
def torchscript(data: Path) -> Specimen:
    sets = images("mnist", 40, data)
    net = torch.jit.script(train(seeded(lambda: code.perceptron(d=code.DIGIT)), sets[0], steps=20))

    def save(folder: Path) -> Path:
        torch.jit.save(net, folder / "model.pt")
        return folder / "model.pt"

    return Specimen(net, *sets, save)


# Both ways ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """`words`: the reason, or the message of the refusal. `attack` and `processor` are seconds of this machine."""

    verdict: str
    words: str
    counts: dict[str, int] = field(default_factory=dict)
    codes: tuple[str, ...] = ()  # why there is no verdict
    attacker: str | None = None
    attack: float | None = None
    seconds: float = 0.0
    processor: float = 0.0  # what it takes where nothing runs beside it

    @property
    def said(self) -> tuple[str, dict[str, int]]:
        return f"{self.verdict} {' '.join(self.codes)}", self.counts


@dataclass(frozen=True)
class Clock:
    began: float = field(default_factory=time.perf_counter)
    began_processor: float = field(default_factory=time.process_time)

    def answer(self, record: dict[str, Any]) -> Answer:
        counts, attack = {name: record[name] for name in COUNTS}, record["seconds"]["attack"]
        codes = tuple(dict.fromkeys(each["code"] for each in record["doubts"]))
        words = (record["verdict"], record["reasons"][0], counts, codes, record["attacker"])
        return Answer(*words, attack, *self.read())

    def refused(self, words: str, code: int) -> Answer:
        return Answer(f"refused, exit code {code}", words, {}, (), None, None, *self.read())

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self.began, time.process_time() - self.began_processor


def in_python(specimen: Specimen) -> Answer:
    clock = Clock()
    try:
        found = audit(
            *(specimen.model, specimen.private, specimen.unseen),
            attack=Auto(seeds=SEEDS),
            base=specimen.base,
            policy=Policy(window=specimen.window),
        )
    except UnfitError as error:
        return clock.refused(str(error), error.exit_code)
    return clock.answer(found.record.model_dump(mode="json"))


def call(*words: object) -> tuple[int, str, str]:
    """The command as a user calls it: exit code, standard output, standard error."""
    before, printed, complaint = sys.argv, io.StringIO(), io.StringIO()
    sys.argv = ["unfit", *map(str, words)]
    try:
        with redirect_stdout(printed), redirect_stderr(complaint):
            command_line()
    except SystemExit as end:
        return int(end.code or 0), printed.getvalue(), complaint.getvalue().strip()
    finally:
        sys.argv = before
    raise AssertionError("the command line always exits")


def on_command_line(specimen: Specimen, folder: Path) -> tuple[Answer, dict[str, Any] | str]:
    """The answer, and what a preflight says before; its complaint if it has nothing to say."""
    (folder / "saved").mkdir()
    target = specimen.save(folder / "saved")
    how: list[object] = ["--model", f"{CODE}:{specimen.code}"] if specimen.code else []
    if specimen.save_base is not None:
        how += ["--base", specimen.save_base(folder / "saved")]
    for name, (x, y) in (("train", specimen.private), ("unseen", specimen.unseen)):
        np.savez(folder / f"{name}.npz", x=x.numpy(), y=y.numpy())
    shape = "x".join(map(str, specimen.private[0].shape[1:]))  # without data, 64 columns could be a picture
    code, printed, complaint = call("preflight", target, *how, "--input-shape", shape, "--json")
    before = json.loads(printed[printed.index("{") :]) if code in (0, 3) and "{" in printed else complaint
    given = ("--data", f"npz:{folder / 'train.npz'}", "--unseen", f"npz:{folder / 'unseen.npz'}")
    settings = ("--as-is", "--seeds", SEEDS, "--window", specimen.window, "--out", folder / "audit")
    clock = Clock()
    code, printed, complaint = call("audit", target, *how, *given, *settings)
    if (saved := folder / "audit" / "audit.json").is_file():
        return clock.answer(json.loads(saved.read_text())), before
    return clock.refused(complaint, code), before


def forecast(specimen: Specimen) -> dict[str, Any]:
    """What a preflight says in Python; where `auto` would look for the initial weights, with as many seeds as are tried here."""
    try:
        found = preflight(specimen.model, specimen.base, input_shape=tuple(specimen.private[0].shape[1:]))
        seconds = found.attacks[0].seconds
        if "search for the initial weights" in found.attacks[0].why:
            target = as_target(specimen.model, tuple(specimen.private[0].shape[1:]))
            seconds = Auto(seeds=SEEDS).applicability(read_layer(target, as_base(specimen.base, target))).seconds
    except UnfitError as error:
        return {"refused": str(error)}
    return {"auto": found.attacks[0].why, "rank": found.rank, "notes": found.notes, "seconds": seconds}


def measure(specimen: Specimen) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of exporters about what is deprecated
        own = in_python(specimen)
        other, said = on_command_line(specimen, Path(folder))
    return {
        "n": len(specimen.private[0]),
        "preflight": forecast(specimen),
        "preflight_command": said,
        "python": vars(own),
        "command": vars(other),
        "agree": own.said == other.said,
    }


# The table ----------------------------------------------------------------------------------------------------


def row(name: str, found: dict[str, Any]) -> str:
    own, before = found["python"], found["preflight"]
    counts, n = own["counts"], found["n"]
    came, verdict = "–", " ".join([own["verdict"], *(f"`{each}`" for each in own["codes"])])
    if counts:
        came = (
            f"{counts['num_recognisable']} of {n} recognisable ({counts['num_recognisable_unseen']} unseen), "
            f"{counts['num_exact']} exact"
        )
    said = before.get("refused", "").split(";")[0].split(". ")[0] or f"{before['auto']}; rank {before['rank']}"
    cells = [
        MODELS[name].about,
        said,
        verdict,
        came,
        f"{own['processor']:.0f}",
        "yes" if found["agree"] else "NO",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", default=[])
    given = parser.parse_args()
    torch.set_num_threads(1)
    RUNS.mkdir(parents=True, exist_ok=True)
    print(
        "| model (file) | preflight | verdict | recovered | processor seconds | command line agrees |\n|---|---|---|---|---|---|"
    )
    agreed = 0
    names = given.names or [
        name for name in MODELS if name != "lite_net" or find_spec("efficientnet_lite_pytorch")
    ]
    for name in names:
        kept = RUNS / f"{name}.json"
        if not kept.is_file():
            kept.write_text(json.dumps(measure(MODELS[name].make(given.data)), indent=1))
        found = json.loads(kept.read_text())
        agreed += found["agree"]
        print(row(name, found), flush=True)
    print(f"\n{agreed} of {len(names)} agree")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
