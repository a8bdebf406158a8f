"""scikit-learn's perceptrons: the object itself, or a `.skops` file, which is JSON and arrays, read as such."""

from __future__ import annotations

import zipfile
from pathlib import Path
from tokenize import TokenError  # what NumPy raises for a damaged header
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unfit.base.errors import NoAttackError, UnfitError
from unfit.base.formats.inert import plain
from unfit.base.formats.layers import Affine, dense
from unfit.base.formats.limits import check_shapes, check_zip, ready, undamaged
from unfit.base.formats.packed import UNPACKING, content_of, read_pickles
from unfit.base.formats.skops import Skops

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "logistic": nn.Sigmoid, "identity": nn.Identity}
LOGITS = ("softmax", "logistic", "identity")  # final activations: left out, so that the model returns logits


def from_sklearn(estimator: Any) -> nn.Module:
    """An `MLPClassifier` or `MLPRegressor`, fitted, alone or last in a pipeline of scalers, as a model."""
    return _net(Path(type(estimator).__name__), estimator)


def read_skops(path: Path) -> nn.Module:
    """Needs neither skops nor scikit-learn. Nothing is built but arrays, numbers and strings."""
    with undamaged(path, "skops", SyntaxError, TokenError), zipfile.ZipFile(path) as archive:
        check_zip(path, archive)
        return _net(path, Skops(archive).read())


def read_pickled(path: Path) -> nn.Module:
    """A perceptron of scikit-learn's in a pickle or a file of joblib, which is read and not run."""
    with undamaged(path, "pickle", *UNPACKING):
        return _net(path, plain(read_pickles(content_of(path)).tree))


def _net(path: Path, estimator: Any) -> nn.Module:
    *before, last = [step for _, step in getattr(estimator, "steps", [("", estimator)])]
    perceptron = _perceptron(path, last)  # first: of another estimator no pipeline is read
    layers = [layer for each in before for layer in _scaler(path, each)]
    return ready(path, nn.Sequential(*layers, *perceptron))


def _perceptron(path: Path, mlp: Any) -> list[nn.Module]:
    if not all(hasattr(mlp, name) for name in ("coefs_", "intercepts_", "activation", "out_activation_")):
        raise NoAttackError(
            f"{path}: {_kind(mlp)} is not a fitted MLPClassifier or MLPRegressor: no attack applies; `unfit scan` "
            "lists what stands in it"
        )
    if mlp.activation not in ACTIVATIONS or mlp.out_activation_ not in LOGITS:
        raise UnfitError(f"{path}: cannot read the activations {mlp.activation!r} and {mlp.out_activation_!r}")
    check_shapes(path, (np.shape(weight) for weight in mlp.coefs_))
    layers: list[nn.Module] = []
    for weight, bias in zip(mlp.coefs_, mlp.intercepts_, strict=True):
        layers += [dense(_tensor(weight).T, _tensor(bias)), ACTIVATIONS[mlp.activation]()]
    return layers[:-1]


def _scaler(path: Path, step: Any) -> list[nn.Module]:
    """(x − mean) / scale of a StandardScaler, x · scale + min of a MinMaxScaler."""
    kind = _kind(step)
    if kind == "StandardScaler":
        scale = 1 / _tensor(step.scale_) if step.with_std else torch.ones(1)
        return [Affine(scale, -_tensor(step.mean_) * scale if step.with_mean else torch.zeros(1))]
    if kind == "MinMaxScaler" and not step.clip:
        return [Affine(_tensor(step.scale_), _tensor(step.min_))]
    if kind in ("NoneType", "str"):  # `passthrough`
        return []
    raise UnfitError(
        f"{path}: cannot read the pipeline's {kind}; apply it to the samples, and save the perceptron"
    )


def _kind(thing: Any) -> str:
    """The class of an object, or of what a file says that it was."""
    return str(getattr(thing, "saved_class", type(thing).__name__))


def _tensor(value: Any) -> Tensor:
    with np.errstate(invalid="ignore"):  # damaged numbers are no numbers, and are refused where all weights are
        return torch.tensor(np.asarray(value, dtype=np.float64))
