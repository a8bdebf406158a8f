"""The target of an attack: weights, architecture, and what an attacker may assume. It holds no training data."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from unfit.base.contents import Item
from unfit.base.device import device
from unfit.base.errors import UnfitError, UsageError
from unfit.base.files import read_as, write_json, write_tensors
from unfit.base.formats.limits import Weights as Weights
from unfit.base.formats.tensors import natural
from unfit.base.nets import MAX_LAYERS, MAX_PARAMETERS, Architecture, build
from unfit.base.shapes import image_shape, sample_shape, shapes_to_try
from unfit.base.whole import Rest, Whole

SECOND_MOMENTS = ("exp_avg_sq", "square_avg", "acc_delta")  # of Adam and its relatives, RMSprop, Adadelta
MAX_PADDING = 1000  # of a convolution: more pads any image with more than itself


class NotPlainError(UnfitError):
    """The checkpoint is intact, but no attack covers it without a description. `found` holds the tensors."""

    exit_code = 3  # inconclusive: the audit could not check this model, so it must not pass

    def __init__(self, message: str, found: Weights) -> None:
        super().__init__(message)
        self.found = found


@dataclass(frozen=True, eq=False)
class State:
    """Another state of the same model: from its file, or another checkpoint of the training."""

    name: str  # where it stands: a key in the file, or a file
    target: Target
    is_file: bool = False
    before: Target | None = None  # of a round of federated learning: the model that the client was sent


@dataclass(frozen=True, eq=False)
class Target:
    """A trained model as published: all of it, or what follows the prefix of a larger model (`whole`).

    `input_range` bounds each input value; None if unknown.
    """

    architecture: Architecture
    weights: Weights
    input_range: tuple[float, float] | None = None
    whole: Whole | None = None  # the model around it, where the architecture is not all there is
    moments: Weights = field(default_factory=dict)  # the optimiser's running sums of gradients, by parameter
    fading: tuple[float | None, float | None] = (None, None)  # by which β these fade, and after how many steps
    unread: str | None = None  # what lies beside the weights and may hold samples too, and why it was not read
    contents: tuple[Item, ...] = ()  # all that the file or the live model holds, the weights among it
    states: tuple[State, ...] = ()  # other states of the same model, in its file or given beside it
    shape_is_told: bool = False  # by its user or a description; weights alone tell only the number of inputs

    def __repr__(self) -> str:
        return f"Target({self.architecture}, sha256 {self.sha256[:12]})"

    def net(self) -> nn.Module:
        """From what enters the attacked part to the outputs, on the chosen device; the target's tensors stay."""
        if self.architecture.tail is not None:
            return Rest(self.split.on(device()))
        with torch.device("meta"):  # no random weights are drawn
            net = build(self.architecture)
        net.load_state_dict({name: value.clone() for name, value in self.weights.items()}, assign=True)
        return net.to(device()).eval()

    @property
    def split(self) -> Whole:
        """The model around the attacked part, where there is one."""
        assert self.whole is not None
        return self.whole

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters by name, in the order in which an optimiser is given them."""
        if self.whole is None:
            return tensor_shapes(self.architecture)
        return {name: tuple(value.shape) for name, value in self.whole.module.named_parameters()}

    @property
    def moment(self) -> tuple[Tensor, Tensor | None] | None:
        """The optimiser's running sums for the attacked weight and its bias, where the file holds them."""
        layer = "layer1" if self.whole is None else self.whole.layer
        weight = self.moments.get(f"{layer}.weight")
        return None if weight is None else (weight.float(), _as_floats(self.moments.get(f"{layer}.bias")))

    @property
    def is_image(self) -> bool:
        return len(self.architecture.input_shape) == 3

    @property
    def num_parameters(self) -> int:
        """Of the whole model, not of its attacked part alone."""
        if self.whole is None:
            return self.architecture.num_parameters
        return sum(value.numel() for value in self.whole.module.parameters())

    @property
    def has_prefix(self) -> bool:
        """Whether samples become something else before they enter the attacked part."""
        return self.whole is not None and self.whole.has_prefix

    @property
    def is_complete(self) -> bool:
        """Whether it has all neurons of the model around it: a normal form may lack some."""
        return self.whole is None or self.whole.dense.weight.shape == self.weights["layer1.weight"].shape

    @property
    def has_parameters_in_front(self) -> bool:
        """Whether the model has parameters besides those of the attacked part; they are taken to be in front."""
        own = sum(value.numel() for value in self.weights.values())
        return self.whole is not None and sum(each.numel() for each in self.whole.module.parameters()) > own

    @property
    def has_adaptive_steps(self) -> bool:
        """Whether the file tells that its optimiser scaled the step of each weight by itself, as Adam does."""
        return any(name in item.path for item in self.contents for name in SECOND_MOMENTS)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return self.whole.input_shape if self.whole is not None else self.architecture.input_shape

    @property
    def taken_shape(self) -> tuple[int, ...]:
        """The axes of a sample as the model itself takes it."""
        return self.sample_shape if self.whole is None else self.whole.axes

    def for_shape(self, said: tuple[int, ...] | None, offered: tuple[int, ...] | None = None) -> Target:
        """The same for samples of another shape, where it minds the number of values alone.

        Args:
            said: What the user says of the shape: it must fit.
            offered: What the data say: it is taken if it fits, and if nothing better tells the shape.
        """
        own = self.sample_shape
        said, offered = (sample_shape(each) if each else each for each in (said, offered))
        if said is not None and self.whole is not None and math.prod(said) == math.prod(own):
            said = own  # steps of values, of which a sample here is the vector
        if self.architecture.conv or self.whole is not None:  # it was run on such samples
            fitting = [own]
        else:
            asked = shapes_to_try(said, None if self.shape_is_told else offered, [own])
            fitting = [shape for shape in asked if math.prod(shape) == math.prod(own)] or [own]
        if said is not None and said not in fitting:
            raise UsageError(f"`input_shape` {said} does not fit the model, which takes {own}")
        told, architecture = self.shape_is_told or said is not None, self.architecture
        if fitting[0] != own:
            architecture = replace(architecture, input_shape=fitting[0])
        return replace(self, architecture=architecture, shape_is_told=told)

    @cached_property
    def sha256(self) -> str:
        """Hash of the weights, independent of the file format; of a larger model, of all its tensors."""
        digest = hashlib.sha256()
        all_of_it = {f"whole.{name}": value for name, value in self.whole.tensors.items()} if self.whole else {}
        for name, value in sorted((self.weights | all_of_it).items()):
            digest.update(name.encode() + value.cpu().numpy().tobytes())
        return digest.hexdigest()


def _as_floats(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.float()


Positive = Annotated[int, Field(gt=0, le=MAX_PARAMETERS)]


class _ArchitectureFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    input_shape: Annotated[tuple[Positive, ...], Field(min_length=1, max_length=3)]
    hidden: tuple[Positive, ...]
    num_outputs: Positive
    biases: tuple[bool, ...]
    conv: tuple[Positive, Positive] | None = None
    padding: Annotated[int, Field(ge=0, le=MAX_PADDING)] = 0


class _TargetFile(BaseModel):
    """`target.json`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    architecture: _ArchitectureFile
    input_range: tuple[float, float] | None = None


def save_target(target: Target, folder: Path) -> None:
    """Write `target.safetensors` and `target.json` to a folder."""
    save_weights(target.weights, folder / "target.safetensors")
    about = asdict(target.architecture)
    assert about.pop("tail") is None
    content = {"architecture": about, "input_range": target.input_range}
    write_json(folder / "target.json", content)


def save_weights(weights: Weights, path: Path) -> None:
    write_tensors(path, weights)


def infer_architecture(found: Weights, path: Path) -> Architecture:
    """Infer a perceptron's layers from its weight shapes. Inputs that fit a square image are taken as one."""
    problems = [
        f"{name} has shape {tuple(value.shape)}" for name, value in found.items() if not _is_dense(name, value)
    ]
    order = layer_order(found)
    if not order:
        problems.append(
            "its weight matrices do not chain: the inputs of each layer must be the outputs of the previous one"
        )
    if problems:
        raise NotPlainError(
            f"{path}: not a plain perceptron: {'; '.join(problems)}. "
            "Give the code that builds it with `model`, or describe it in "
            f"{path.with_suffix('.json').name} in the same folder (see docs/formats.md)",
            found,
        )
    shapes = [found[f"{name}.weight"].shape for name in order]
    hidden = tuple(int(shape[0]) for shape in shapes[:-1])
    biases = tuple(f"{name}.bias" in found for name in order)
    return Architecture(image_shape(int(shapes[0][1])), hidden, int(shapes[-1][0]), biases)


def fit_weights(found: Weights, architecture: Architecture, path: Path | str) -> Weights:
    """The tensors in float32, named `layer1.weight`, …; one error lists everything wrong with them."""
    if architecture.num_parameters > MAX_PARAMETERS:
        raise UnfitError(f"{path}: {architecture.num_parameters:,} parameters; the limit is {MAX_PARAMETERS:,}")
    if (num := len(architecture.biases)) > MAX_LAYERS:
        raise UnfitError(f"{path}: {num:,} layers in a row; the limit is {MAX_LAYERS}")
    wanted = tensor_shapes(architecture)
    if found.keys() != wanted.keys():
        found = in_layers(found)
    problems = [f"{name} is missing" for name in wanted.keys() - found.keys()]
    problems += [f"{name} is not part of {architecture}" for name in found.keys() - wanted.keys()]
    for name in sorted(wanted.keys() & found.keys()):
        value, shape = found[name], wanted[name]
        if tuple(value.shape) != shape:
            problems.append(f"{name} has shape {tuple(value.shape)}, expected {shape}")
        elif not value.is_floating_point():
            problems.append(f"{name} has type {value.dtype}, expected floats")
        elif bad := int((~torch.isfinite(value.to(torch.float32))).sum()):
            problems.append(f"{name} has {bad} values that are NaN or infinite")
    if problems:
        raise UnfitError(f"{path}: the weights cannot be used: " + "; ".join(sorted(problems)))
    return {name: found[name].to(torch.float32).contiguous() for name in wanted}


def in_layers(found: Weights) -> Weights:
    """The tensors named `layer1.weight`, …, whatever the layers are called, where their order is plain."""
    places = {name: f"layer{i}" for i, name in enumerate(layer_order(found), 1)}
    return {_renamed(key, places): value for key, value in found.items()}


def _renamed(key: str, places: dict[str, str]) -> str:
    layer, dot, kind = key.rpartition(".")
    return places.get(layer, layer) + dot + kind


def tensor_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Of each tensor by its name, in the order in which PyTorch builds them."""
    wanted: dict[str, tuple[int, ...]] = {}
    for i, (shape, bias) in enumerate(zip(architecture.layer_shapes, architecture.biases, strict=True), 1):
        wanted[f"layer{i}.weight"] = shape
        if bias:
            wanted[f"layer{i}.bias"] = shape[:1]
    return wanted


def _is_dense(name: str, value: Tensor) -> bool:
    return value.ndim == {"weight": 2, "bias": 1}.get(name.rpartition(".")[2], -1) and value.numel() > 0


def layer_order(found: Weights) -> list[str]:
    """Names of dense layers in an order that chains: as stored, or sorted by the numbers in the names."""
    names = [key.rpartition(".")[0] for key in found if key.endswith(".weight")]
    for order in (names, sorted(names, key=natural)):
        shapes = [found[f"{name}.weight"].shape for name in order]
        if all(len(s) == 2 for s in shapes) and all(a[0] == b[1] for a, b in pairwise(shapes)):
            return order
    return []


def read_description(path: Path) -> tuple[Architecture, tuple[float, float] | None]:
    content = read_as(_TargetFile, path)
    fields = content.architecture.model_dump()
    architecture = Architecture(**fields)
    num_layers = len(architecture.hidden) + 1 + bool(architecture.conv)
    if len(architecture.biases) != num_layers:
        found = len(architecture.biases)
        raise UnfitError(
            f"{path}: architecture.biases: expected {num_layers} values (one per layer), found {found}"
        )
    if architecture.conv and (
        len(fields["input_shape"]) != 3 or architecture.conv[0] > min(fields["input_shape"][1:])
    ):
        raise UnfitError(
            f"{path}: a kernel of size {architecture.conv[0]} does not fit inputs of shape {fields['input_shape']}"
        )
    if content.input_range and content.input_range[0] >= content.input_range[1]:
        raise UnfitError(f"{path}: input_range: expected low < high, found {content.input_range}")
    return architecture, content.input_range
