"""Keras files become the same function, its pictures with their channels first; what cannot be read is named."""

from __future__ import annotations

import io
import json
import os
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import read_or_refused
from unfit.base.errors import UnfitError
from unfit.base.formats import read_model


@pytest.fixture(scope="module", autouse=True)
def _keras() -> None:
    """Imported when it is needed: it takes seconds, and every worker collects this file."""
    global keras, layers
    os.environ["KERAS_BACKEND"] = "torch"
    os.environ["KERAS_HOME"] = str(Path(tempfile.gettempdir()) / "unfit-keras")  # not the user's settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras
        from keras import layers


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def shaken(model: Any) -> Any:
    """Statistics and scales as training leaves them, not 0 and 1."""
    rng = np.random.default_rng(0)
    for each in model.weights:
        if "count" not in each.path:
            each.assign(
                rng.uniform(0.5, 1.5, each.shape) if "var" in each.path else rng.normal(size=each.shape) / 2
            )
    return model


def conv() -> list[Any]:
    return [
        keras.Input((13, 12, 3)),
        layers.Rescaling(1 / 2, offset=-1),
        layers.Normalization(mean=[0.1, 0.2, 0.3], variance=[1.0, 2.0, 3.0]),
        layers.Conv2D(4, 3, padding="same", strides=2, activation="relu", name="first"),
        layers.BatchNormalization(),
        layers.Conv2D(6, (3, 2), groups=2, use_bias=False),
        layers.LeakyReLU(0.1),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.BatchNormalization(),
        layers.Dense(5, activation="gelu"),
        layers.Dropout(0.5),
        layers.Dense(3, activation="softmax", name="last"),
    ]


MODELS = {
    "perceptron": lambda: [
        keras.Input((7,)),
        layers.Dense(5, activation="relu"),
        layers.Dense(1, activation="sigmoid"),
    ],
    "conv": conv,
    "pooled": lambda: [
        keras.Input((8, 8, 2)),
        layers.ZeroPadding2D(((1, 0), (2, 1))),
        layers.Conv2D(3, 3, dilation_rate=2, padding="same"),
        layers.ReLU(max_value=6.0),
        layers.AveragePooling2D((2, 3), strides=2),
        layers.GlobalAveragePooling2D(),
        layers.LayerNormalization(),
        layers.Dense(2),
    ],
    "picture": lambda: [
        keras.Input((4, 5, 3)),
        layers.Flatten(),
        layers.Dense(4, activation="tanh"),
        layers.Dense(2),
    ],
    "rows": lambda: [keras.Input((4, 5)), layers.Flatten(), layers.Dense(4, activation="swish"), layers.Dense(2)],
    "reshaped": lambda: [
        keras.Input((20,)),
        layers.Reshape((4, 5, 1)),
        layers.Conv2D(2, 3),
        layers.Flatten(),
        layers.Dense(2),
    ],
}


def made(name: str) -> Any:
    return shaken(keras.Sequential(MODELS[name]()))


def logits(model: Any, x: Tensor) -> Tensor:
    """Keras' own outputs before the last activation."""
    model.layers[-1].activation = keras.activations.linear
    last = x.permute(0, 2, 3, 1) if x.ndim == 4 else x
    return model(last.contiguous(), training=False).detach()


def saved(model: Any, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_weights(path) if path.name.endswith(".weights.h5") else model.save(path)
    return path


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("name", MODELS)
def test_the_net_is_the_same_function(tmp_path, name, suffix):
    model = made(name)
    found = read_model(saved(model, tmp_path / f"net{suffix}"))
    assert isinstance(found, nn.Sequential)
    assert not found.training
    shape = model.input_shape[1:]
    x = random(6, *((shape[2], *shape[:2]) if len(shape) == 3 else shape))
    torch.testing.assert_close(found(x), logits(model, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_functional_chain_is_read_and_a_skip_is_refused(tmp_path, suffix):
    source = keras.Input((7,))
    hidden = layers.Dense(7, activation="relu")(source)
    chain = shaken(keras.Model(source, layers.Dense(2, name="end")(hidden)))
    found = read_model(saved(chain, tmp_path / f"net{suffix}"))
    torch.testing.assert_close(found(random(6, 7)), logits(chain, random(6, 7)), rtol=1e-4, atol=1e-5)
    skip = keras.Model(source, layers.Dense(2)(layers.Add(name="sum")([source, hidden])))
    refused(saved(skip, tmp_path / f"skip{suffix}"), "'sum' takes its inputs from dense.*, input_layer")
    two = keras.Model(source, [hidden, layers.Dense(2)(hidden)])
    refused(saved(two, tmp_path / f"two{suffix}"), "its outputs are those of")


def test_normalisation_learnt_from_data_is_read(tmp_path):
    normal = layers.Normalization()
    seen = np.random.default_rng(0).normal(3, 2, size=(50, 7)).astype("float32")
    seen[:, 2] = 4  # no variance: divided by Keras' smallest number instead
    normal.adapt(seen)
    model = keras.Sequential([keras.Input((7,)), normal, layers.Dense(2)])
    for path in (tmp_path / "net.keras", tmp_path / "net.h5"):
        found = read_model(saved(model, path))
        torch.testing.assert_close(found(random(6, 7)), logits(model, random(6, 7)), rtol=1e-4, atol=1e-5)


def test_weights_alone_are_named_tensors(tmp_path):
    model = made("conv")
    found = read_model(saved(model, tmp_path / "net.weights.h5"))
    assert list(found) == [
        *(f"batch_normalization.{kind}" for kind in ("weight", "bias", "running_mean", "running_var")),
        *(f"batch_normalization_1.{kind}" for kind in ("weight", "bias", "running_mean", "running_var")),
        *("conv2d.weight", "conv2d.bias", "conv2d_1.weight"),
        *("dense.weight", "dense.bias", "dense_1.weight", "dense_1.bias"),
    ]
    kernel = model.get_layer("last").kernel.value.detach()
    torch.testing.assert_close(found["dense_1.weight"], kernel.T)
    torch.testing.assert_close(
        found["conv2d.weight"][1, 2], model.get_layer("first").kernel.value.detach()[:, :, 2, 1]
    )


# Refused ---------------------------------------------------------------------------------------------------


def refused(path: Path, match: str) -> None:
    with pytest.raises(UnfitError, match=match) as caught:
        read_model(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("stack", "match"),
    [
        (lambda: [keras.Input((5, 4)), layers.LSTM(3)], r"layer 'lstm\w*' \(LSTM\): no counterpart"),
        (lambda: [keras.Input((5, 4)), layers.Dense(3)], r"inputs of shape \(5, 4\); flatten them first"),
        (lambda: [keras.Input((5,)), layers.Dense(3, activation="mish")], "the activation 'mish'"),
        (lambda: [keras.Input((5, 5, 1)), layers.MaxPooling2D(2, padding="same")], r"\(MaxPooling2D\): padding"),
        (lambda: [keras.Input((None,)), layers.Flatten()], "the shape of its inputs"),
        (lambda: [keras.Input((4, 6, 3)), layers.BatchNormalization(axis=1)], "axis=1"),
        (lambda: [keras.Input((12,)), layers.Reshape((2, 2, 3))], "from"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, stack, match):
    refused(saved(keras.Sequential(stack()), tmp_path / "net.keras"), match)


def with_weights(path: Path, change: Any) -> Path:
    """The archive again, its weights changed."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    memory = io.BytesIO(parts["model.weights.h5"])
    with h5py.File(memory, "r+") as file:
        change(file)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**parts, "model.weights.h5": memory.getvalue()}.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("link", "match"),
    [
        (h5py.ExternalLink("other.h5", "/x"), "leads elsewhere"),
        (h5py.SoftLink("/layers/dense_1/vars/0"), "leads elsewhere"),
    ],
)
def test_links_are_refused(tmp_path, link, match):
    def change(file: Any) -> None:
        del file["layers/dense/vars/0"]
        file["layers/dense/vars/0"] = link

    refused(with_weights(saved(made("perceptron"), tmp_path / "net.keras"), change), match)


def test_a_small_file_that_claims_a_huge_tensor_is_refused(tmp_path):
    def change(file: Any) -> None:
        del file["layers/dense/vars/0"]
        file.create_dataset("layers/dense/vars/0", (2**20, 2**20), "f4", chunks=(1, 1024), fillvalue=0)

    path = with_weights(saved(made("perceptron"), tmp_path / "net.keras"), change)
    assert path.stat().st_size < 100_000
    refused(path, "claims .* parameters; the limit is")


def test_values_in_other_files_are_refused(tmp_path):
    def change(file: Any) -> None:
        del file["layers/dense/vars/0"]
        file.create_dataset("layers/dense/vars/0", (7, 5), "f4", external=[("/etc/hostname", 0, 140)])

    refused(
        with_weights(saved(made("perceptron"), tmp_path / "net.keras"), change), "its values are in other files"
    )


@pytest.mark.parametrize("size", [0, 255, 2**40])
def test_a_heap_that_hdf5_would_walk_for_ever_is_refused(tmp_path, size):
    path = saved(made("perceptron"), tmp_path / "net.h5")
    content = bytearray(path.read_bytes())
    first = content.index(b"GCOL") + 16  # the header of its first object: a number, and its size after 8 bytes
    content[first : first + 16] = bytes([0 if size == 0 else 1, 0, 0, 0, 0, 0, 0, 0]) + size.to_bytes(8, "little")
    path.write_bytes(content)
    refused(path, "a heap whose objects do not add up")


@pytest.mark.parametrize("suffix", [".keras", ".h5", ".weights.h5"])
def test_a_damaged_file_is_read_or_refused(tmp_path, suffix):
    path = saved(made("perceptron"), tmp_path / f"net{suffix}")
    content, outcomes = path.read_bytes(), set()
    step = len(content) // 50
    damaged = [content[:size] for size in range(0, len(content), step)]
    damaged += [
        content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :] for at in range(0, len(content), step)
    ]
    for each in damaged:
        path.write_bytes(each)
        outcomes.add(read_or_refused(path))
    assert outcomes == {"read", "refused"}


READ = {  # by name, and the first entries of lists
    *("class_name", "config", "layers", "activation", "axis", "batch_shape", "data_format", "dilation_rate"),
    *("epsilon", "groups", "mean", "negative_slope", "padding", "pool_size", "scale", "strides", "use_bias"),
    *range(2),
}


def test_a_damaged_description_is_read_or_refused(tmp_path):
    """Every value of `config.json` replaced once."""
    path = saved(made("conv"), tmp_path / "net.keras")
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    config, outcomes = json.loads(parts["config.json"]), set()

    def places(node: Any) -> list[tuple[Any, Any]]:
        inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        return [place for key, value in inner for place in [(node, key), *places(value)]]

    for i, (node, key) in enumerate(places(config)):
        if key not in READ:
            continue
        before, node[key] = node[key], [None, -1, "x", [], {}, 1e300][i % 6]
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in {**parts, "config.json": json.dumps(config).encode()}.items():
                archive.writestr(name, content)
        node[key] = before
        outcomes.add(read_or_refused(path))
    assert outcomes == {"read", "refused"}
