"""Files are read by their content: what trainers and other libraries save, and what each other kind is told."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import sys
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import skops.io
import torch
from safetensors.torch import save_file
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, PolynomialFeatures, StandardScaler
from torch import Tensor, nn

from conftest import read_or_refused
from unfit.base.errors import UnfitError
from unfit.base.formats import format_table, read_model
from unfit.base.formats.folders import adapter_scale
from unfit.base.formats.sklearn import from_sklearn
from unfit.base.load import load_target

Weights = dict[str, Tensor]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict(fc1=nn.Linear(7, 5), act=nn.ReLU(), fc2=nn.Linear(5, 1)))


def weights(prefix: str = "") -> Weights:
    return {prefix + name: value for name, value in net().state_dict().items()}


def same(found: object, wanted: Weights) -> None:
    assert isinstance(found, dict)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def refused(path: Path, match: str) -> str:
    with pytest.raises(UnfitError, match=match) as caught:
        read_model(path)
    assert str(caught.value).startswith(str(path))
    assert "cut short" not in str(caught.value)
    return str(caught.value)


# What trainers save ----------------------------------------------------------------------------------------


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = net()
    optimiser = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 7)).sum().backward()
    optimiser.step()
    return model, optimiser


def lightning(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """The layout of a Lightning checkpoint."""
    return {
        "epoch": 3,
        "global_step": 120,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": OrderedDict((f"model.{name}", value) for name, value in model.state_dict().items()),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 4}}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.3), "best_k": {}}},
        "optimizer_states": [optimiser.state_dict()],
        "lr_schedulers": [],
        "hparams_name": "kwargs",
        "hyper_parameters": {"width": 5, "lr": 1e-3, "name": "mlp"},
    }


TRAINERS: dict[str, Callable[[nn.Module, torch.optim.Optimizer], Any]] = {
    "lightning": lightning,
    "tutorial": lambda model, optimiser: {
        "epoch": 3,
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimiser.state_dict(),
        "loss": torch.tensor(0.1),
    },
    "both": lambda model, optimiser: {
        "model": {f"module.{name}": value for name, value in model.state_dict().items()},
        "model_ema": {name: value * 0 for name, value in model.state_dict().items()},
        "optimizer": optimiser.state_dict(),
        "args": {"lr": 0.1},
    },
    "unheard-of": lambda model, optimiser: {
        "classifier": model.state_dict(),
        "opt": optimiser.state_dict(),
        "n": 1,
    },
    "nested": lambda model, optimiser: {"model": {"config": {}, "state_dict": model.state_dict()}},
    "wrapped": lambda model, optimiser: {
        f"module._orig_mod.model.net.{name}": value for name, value in model.state_dict().items()
    },
}


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("suffix", [".ckpt", ".pth.tar", ""])
def test_what_trainers_save_is_read(tmp_path, name, suffix):
    model, optimiser = trained()
    path = tmp_path / f"last{suffix}"
    torch.save(TRAINERS[name](model, optimiser), path)
    same(read_model(path), dict(model.state_dict()))
    assert load_target(path).architecture.hidden == (5,)


def test_only_what_all_names_share_is_a_wrapper(tmp_path):
    for given, wanted in (
        (weights("model."), weights()),
        (weights("encoder."), weights("encoder.")),
        (weights("model.") | {"loss.scale": torch.ones(1)}, weights("model.") | {"loss.scale": torch.ones(1)}),
        ({"model.weight": torch.ones(1, 3)}, {"model.weight": torch.ones(1, 3)}),  # a layer of this name
    ):
        save_file(given, tmp_path / "net.safetensors")
        same(read_model(tmp_path / "net.safetensors"), wanted)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"generator": weights(), "critic": weights()}, "holds several models: generator, critic; save the"),
        ({"epoch": 3, "optimizer": {"lr": 1}}, "not a state dict: found non-tensors epoch, optimizer"),
        ({"state_dict": {}}, "expected a state dict, found dict"),
        ({"model": [weights()]}, "not a state dict: found non-tensors model"),
    ],
)
def test_other_dicts_are_refused(tmp_path, content, match):
    torch.save(content, tmp_path / "net.pt")
    refused(tmp_path / "net.pt", match)


def test_a_dict_that_holds_itself_is_refused(tmp_path):
    content: dict[str, Any] = {"epoch": 1}
    content["model"] = content
    torch.save(content, tmp_path / "net.pt")
    refused(tmp_path / "net.pt", "nested too deeply")


def test_the_class_that_was_not_loaded_is_named(tmp_path):
    torch.save({"state_dict": weights(), "hparams": Path("x")}, tmp_path / "net.ckpt")
    refused(tmp_path / "net.ckpt", r"could run code, with pathlib\.\w+\); save only model.state_dict\(\)")
    torch.save(net(), tmp_path / "net.pt")
    refused(tmp_path / "net.pt", r"with torch\.nn\.modules\.container\.Sequential")


# Other kinds, by their content -----------------------------------------------------------------------------


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def exported_program(path: Path) -> None:
    program = torch.export.export(nn.Sequential(nn.Linear(4, 2)), (torch.randn(3, 4),))
    torch.export.save(program, path)


def torchscript(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(net()), path)


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "hello")


OTHERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "net.pt": (torchscript, "this is a TorchScript archive: it holds code"),
    "net.pt2": (exported_program, "a program that torch.export wrote.*give the code that builds the model"),
    "script.bin": (torchscript, "this is a TorchScript archive: it holds code"),
    "pickle.pt": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "no attack applies"),
    "evil.pkl": (lambda path: path.write_bytes(pickle.dumps(Evil(path.parent / "owned"))), "no attack applies"),
    "model.joblib": (lambda path: joblib.dump(MLPClassifier(), path), "no attack applies"),  # it is not fitted
    "small.joblib": (lambda path: joblib.dump(MLPClassifier(), path, compress=3), "no attack applies"),
    "x.npy": (lambda path: np.save(path, np.ones(3)), "this is a single NumPy array"),
    "x.gguf": (lambda path: path.write_bytes(b"GGUF" + bytes(60)), "this is a GGUF file"),
    "x.bin": (lambda path: path.write_bytes(b"GGUF" + bytes(60)), "this is a GGUF file"),
    "x.tflite": (lambda path: path.write_bytes(b"\x1c\x00\x00\x00TFL3" + bytes(60)), "TensorFlow Lite"),
    "x.zip": (zipped, "this is a zip archive of an unknown kind"),
    "net.pt.gz": (lambda path: path.write_bytes(gzip.compress(b"x" * 99)), "compressed file; unpack it"),
    "x.txt": (lambda path: path.write_text("hello"), "unknown kind of checkpoint"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_kinds_are_told_from_damaged_files(tmp_path, name):
    write, match = OTHERS[name]
    write(tmp_path / name)
    refused(tmp_path / name, match)
    assert not (tmp_path / "owned").exists()


def test_no_safetensors_file_is_taken_for_a_pickle(tmp_path):
    """Its first bytes are the length of its header: 640 are the first two bytes of a pickle."""
    value = torch.frombuffer(bytearray(b"\0\0\0."), dtype=torch.float32)
    for size in range(640):
        save_file({"fc.weight": value}, tmp_path / "net.safetensors", {"notes": "x" * size})
        content = (tmp_path / "net.safetensors").read_bytes()
        if content.startswith(b"\x80\x02"):
            break
    assert content[:2] == b"\x80\x02"
    assert content[-1:] == b"."
    same(read_model(tmp_path / "net.safetensors"), {"fc.weight": value})


@pytest.mark.parametrize(
    ("name", "match"),
    [("saved_model.pb", "TensorFlow SavedModel"), ("checkpoint", "TensorFlow checkpoint"), ("x", "no weights")],
)
def test_folders_of_tensorflow_are_named(tmp_path, name, match):
    (tmp_path / name).write_bytes(b"\x08\x01")
    refused(tmp_path, match)


@pytest.mark.parametrize("name", ["net.pt", "net.safetensors", "net.onnx"])
def test_only_regular_files_are_opened(tmp_path, name):
    os.mkfifo(tmp_path / name)  # opening it would wait for ever
    refused(tmp_path / name, "no such checkpoint")


# Folders ---------------------------------------------------------------------------------------------------


def sharded(folder: Path, **places: str) -> Path:
    """Two shards, the second layer in the second."""
    first = {name: value for name, value in weights("model.").items() if "fc1" in name}
    second = {name: value for name, value in weights("model.").items() if "fc2" in name}
    save_file(first, folder / "model-00001-of-00002.safetensors")
    save_file(second, folder / "model-00002-of-00002.safetensors")
    where = dict.fromkeys(first, "model-00001-of-00002.safetensors")
    where |= dict.fromkeys(second, "model-00002-of-00002.safetensors") | places
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def test_a_folder_of_hugging_face_is_read(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    refused(tmp_path, "no weights in this folder; expected model.safetensors or pytorch_model.bin")
    torch.save(weights("model."), tmp_path / "pytorch_model.bin")
    same(read_model(tmp_path), weights())
    save_file({"fc.weight": torch.ones(2, 3)}, tmp_path / "model.safetensors")
    same(read_model(tmp_path), {"fc.weight": torch.ones(2, 3)})


def test_shards_are_put_together(tmp_path):
    same(read_model(sharded(tmp_path)), {name: weights()[name] for name in sorted(weights())})


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "b/../../a.safetensors", "..", ""])
def test_shards_must_be_in_the_folder(tmp_path, name):
    (tmp_path / "inner").mkdir()
    save_file(weights(), tmp_path / "a.safetensors")
    sharded(tmp_path / "inner", **{"model.fc3.weight": name})
    with pytest.raises(UnfitError, match=r"is not a file of this folder|no such checkpoint"):
        read_model(tmp_path / "inner")


def test_a_tensor_that_no_shard_has_is_named(tmp_path):
    sharded(tmp_path, **{"model.fc3.weight": "model-00001-of-00002.safetensors"})
    with pytest.raises(UnfitError, match=r"1 tensors are in none of its files, such as model\.fc3\.weight"):
        read_model(tmp_path)


def test_shards_are_bounded_together(tmp_path, monkeypatch):
    sharded(tmp_path)
    sizes = [path.stat().st_size for path in tmp_path.glob("*.safetensors")]
    monkeypatch.setattr("unfit.base.formats.limits.MAX_CHECKPOINT", max(sizes))
    with pytest.raises(UnfitError, match=r"and its shards have 0\.0 GB; the limit is"):
        read_model(tmp_path)


def test_parameters_are_counted_over_all_shards(tmp_path, monkeypatch):
    sharded(tmp_path)
    monkeypatch.setattr("unfit.base.formats.limits.MAX_PARAMETERS", 45)  # the layers have 40 and 6
    with pytest.raises(UnfitError, match="claims 46 parameters; the limit is 45"):
        read_model(tmp_path)
    monkeypatch.setattr("unfit.base.formats.limits.MAX_PARAMETERS", 39)
    refused(tmp_path / "model-00001-of-00002.safetensors", "claims 40 parameters; the limit is 39")


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"weight_map": {"a": 3}}', '{"weight_map": []}'])
def test_a_bad_index_is_refused(tmp_path, content):
    sharded(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(UnfitError, match=r"index\.json"):
        read_model(tmp_path)


def test_an_adapter_has_the_names_of_its_base(tmp_path):
    pair = {"fc1.lora_A.weight": torch.ones(2, 7), "fc1.lora_B.weight": torch.ones(5, 2)}
    save_file(
        {f"base_model.model.{name}": value for name, value in pair.items()}, tmp_path / "adapter_model.safetensors"
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    same(read_model(tmp_path), pair)
    assert adapter_scale(tmp_path) == 2
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8, "use_rslora": True}))
    assert adapter_scale(tmp_path) == 4
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 0, "lora_alpha": 8}))
    with pytest.raises(UnfitError, match=r"adapter_config\.json"):
        adapter_scale(tmp_path)


# scikit-learn ----------------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(2, 3, size=(60, 5))


def fitted(model: Any, y: np.ndarray[Any, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y)


def mlp(activation: str = "relu", made: Any = MLPClassifier) -> Any:
    return made(hidden_layer_sizes=(6, 4), activation=activation, max_iter=4, random_state=0)


ESTIMATORS: dict[str, Callable[[], Any]] = {
    **{
        name: lambda name=name: fitted(mlp(name), np.arange(60) % 3)
        for name in ("relu", "tanh", "logistic", "identity")
    },
    "two": lambda: fitted(mlp(), np.arange(60) % 2),
    "labels": lambda: fitted(mlp(), (X[:, :3] > 2).astype(int)),
    "regression": lambda: fitted(mlp(made=MLPRegressor), X[:, :2]),
    "standard": lambda: fitted(make_pipeline(StandardScaler(), mlp()), np.arange(60) % 3),
    "centred": lambda: fitted(make_pipeline(StandardScaler(with_std=False), mlp()), np.arange(60) % 3),
    "scaled": lambda: fitted(make_pipeline(MinMaxScaler((-1, 2)), "passthrough", mlp()), np.arange(60) % 3),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_perceptrons_of_scikit_learn_are_nets(tmp_path, name):
    model = ESTIMATORS[name]()
    skops.io.dump(model, tmp_path / "model.skops")
    for found in (from_sklearn(model), read_model(tmp_path / "model.skops")):
        logits = found(torch.tensor(X).float())
        if name == "regression":
            assert np.allclose(logits, model.predict(X), atol=1e-4)
        elif name == "labels":
            assert np.allclose(logits.sigmoid(), model.predict_proba(X), atol=1e-5)
        else:
            assert logits.shape[1] == (1 if name == "two" else 3)
            p = logits.sigmoid() if name == "two" else logits.softmax(1)
            assert np.allclose(p[:, -1], model.predict_proba(X)[:, -1], atol=1e-5)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (lambda: MLPClassifier(), "MLPClassifier is not a fitted MLPClassifier or MLPRegressor"),
        (
            lambda: fitted(LogisticRegression(), np.arange(60) % 2),
            "LogisticRegression is not a fitted MLPClassifier",
        ),
        (
            lambda: fitted(make_pipeline(PolynomialFeatures(), mlp()), np.arange(60) % 2),
            "the pipeline's Polynomial",
        ),
        (
            lambda: fitted(mlp(made=MLPRegressor).set_params(loss="poisson"), X[:, 0] ** 2),
            "cannot read the activations",
        ),
    ],
)
def test_other_estimators_are_refused(tmp_path, model, match):
    with pytest.raises(UnfitError, match=match):
        from_sklearn(model())
    skops.io.dump(model(), tmp_path / "model.skops")
    refused(tmp_path / "model.skops", match)


def test_damaged_numbers_of_a_perceptron_are_refused_without_a_warning(tmp_path):
    model = fitted(mlp(), np.arange(60) % 2)
    model.coefs_[0] = np.full(model.coefs_[0].shape, 0x7F800001, np.uint32).view(np.float32)
    skops.io.dump(model, tmp_path / "model.skops")
    refused(tmp_path / "model.skops", "0.weight has values that are NaN or infinite")


def test_a_damaged_skops_file_is_read_or_refused(tmp_path):
    path = tmp_path / "model.skops"
    skops.io.dump(ESTIMATORS["standard"](), path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    outcomes = set()
    damaged = [
        {**parts, name: content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]}
        for name, content in parts.items()
        for at in range(7, len(content), max(len(content) // (100 if name == "schema.json" else 3), 7))
    ]
    for each in damaged:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in each.items():
                archive.writestr(name, content)
        outcomes.add(read_or_refused(path))
    assert outcomes == {"read", "refused"}


def test_an_array_that_claims_another_size_is_refused(tmp_path):
    path = tmp_path / "model.skops"
    skops.io.dump(ESTIMATORS["relu"](), path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content.replace(b"(5, 6)", b"(5, 9)"))
    with pytest.raises(UnfitError, match="in 240 bytes"):
        read_model(path)


# The list --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("package", "name", "extra"), [("onnx", "net.onnx", "onnx"), ("h5py", "net.h5", "keras")])
def test_a_missing_package_is_named(tmp_path, monkeypatch, package, name, extra):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / name).write_bytes(b"\x08\x07")
    refused(tmp_path / name, rf"needs {package}, which is not installed: pip install 'unfit\[{extra}\]'")


def test_the_command_lists_every_format(run):
    code, printed, _ = run("formats")
    assert code == 0
    assert len(printed.splitlines()) == len(format_table())
    for each in format_table():
        assert all(suffix in printed for suffix in each.suffixes)
        assert not each.extra or f"unfit[{each.extra}]" in printed
