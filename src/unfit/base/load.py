"""From a path to a Target: what the file holds, what describes it, and the model's own code where it is needed."""

from __future__ import annotations

import math
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from torch import Tensor, nn

from unfit.base.contents import contents_of_file
from unfit.base.errors import NotApplicableError, UnfitError, UsageError
from unfit.base.files import Strict
from unfit.base.formats import read_model
from unfit.base.formats.folders import adapter_scale
from unfit.base.formats.kinds import kind_of
from unfit.base.formats.limits import Weights, check_file, read_once
from unfit.base.formats.pytorch import read_moments
from unfit.base.formats.tensors import without_wrappers
from unfit.base.guess import guess_net
from unfit.base.modules import as_base, as_target, base_from, load_into, with_contents
from unfit.base.target import NotPlainError, Target, fit_weights, infer_architecture, read_description
from unfit.base.updates import added, as_named, in_chain, is_list, refuse_differences

MAX_SIDE = 65_536  # of a picture: no format holds larger ones
MAX_DIGITS = 6  # of a size: a longer one is a mistake
ORDERED = ("pytorch", "npz")  # kinds of files that keep tensors in the order of a state dict
OPTIMISER = "optimizer.pt"  # what Hugging Face's trainer writes beside the weights
LORA = (".lora_A.weight", ".lora_B.weight")


def sizes(text: object) -> object:
    """`32x32` as (32, 32)."""
    if not isinstance(text, str):
        return (text,) if isinstance(text, int) else text
    parts = text.lower().split("x")
    if not all(part.isdecimal() and len(part) <= MAX_DIGITS for part in parts):
        raise ValueError(f"{text!r} is not a size such as 32 or 32x32")
    return tuple(map(int, parts))


def _shape(text: object) -> object:
    """`8x8` is a grey picture of one channel."""
    found = sizes(text)
    return (1, *found) if isinstance(found, tuple) and len(found) == 2 else found


def check_picture(shape: tuple[int, ...]) -> tuple[int, ...]:
    if min(shape) <= 0:
        raise ValueError(f"expected numbers above 0, found {min(shape)}")
    if max(shape) > MAX_SIDE and len(shape) > 1:
        raise ValueError(f"no picture is {max(shape)} wide or high")
    return shape


Shape = Annotated[
    tuple[int, ...], BeforeValidator(_shape), Field(min_length=1, max_length=3), AfterValidator(check_picture)
]


class Reading(Strict):
    """How a checkpoint becomes a net, where the file alone does not say.

    Args:
        model: The model's own code, `FILE.py:NAME`: what NAME() returns gets the checkpoint's tensors.
        layer: The name of the dense layer to attack; by default the first that sees each sample once.
        input_shape: The shape of one sample, such as (3, 32, 32) or "3x32x32".

    Example:
        >>> reading = unfit.Reading(input_shape="25x25")
    """

    model: str | None = None
    layer: str | None = None
    input_shape: Shape | None = None


def load_target(
    path: str | Path | None = None,
    reading: Reading | None = None,
    base: str | Path | None = None,
    update: str | Path | None = None,
) -> Target:
    """Load a checkpoint in any of the formats that `unfit formats` lists.

    A JSON file of the same name beside it describes the net. Without one the net must be a plain perceptron, whose
    layers follow from the shapes of its weights, or come with its code.

    Args:
        path: A file, a run folder, or a folder of Hugging Face's.
        reading: How the file becomes a net, where it does not say so itself.
        base: The weights that an adapter adapts or an update changes; only these need it here.
        update: In place of `path`, a client's differences to the base in federated learning.

    Example:
        >>> target = unfit.load_target("model.pt", unfit.Reading(input_shape="25x25"))
    """
    if problem := two_targets(path, base, update):
        raise UsageError(problem)
    reading = reading or Reading()
    published = Path(path or update or "")
    with read_once():
        target = _loaded(path, reading, base, update)
        target = with_contents(target, "file", lambda: contents_of_file(published))
        return _with_moments(target, published) if path else target


def _loaded(
    path: str | Path | None, reading: Reading, base: str | Path | None, update: str | Path | None
) -> Target:
    found = read_model(path) if path else _updated(base, update, reading)
    path = Path(path or base or "")
    if isinstance(found, nn.Module):
        return as_target(found, reading.input_shape, layer=reading.layer)
    if is_list(found):
        found = as_named(found, path, _like(reading, base))
    found = merged(found, path, base)
    if reading.model is not None:
        module = build_model(reading.model)
        load_into(module, found, str(path))
        return as_target(module, reading.input_shape, layer=reading.layer)
    about = (path / "target.safetensors" if path.is_dir() else path).with_suffix(".json")
    target = _described(found, path, about) if about.is_file() else _inferred(found, path, reading.input_shape)
    if reading.layer is None:
        return target
    return as_target(target.net(), target.sample_shape, target.input_range, reading.layer)


def _described(found: Weights, path: Path, about: Path) -> Target:
    architecture, input_range = read_description(about)
    return Target(architecture, fit_weights(found, architecture, path), input_range)


def _inferred(found: Weights, path: Path, input_shape: tuple[int, ...] | None) -> Target:
    """A plain perceptron by the shapes of its weights, or one with normalisation between its dense layers."""
    try:
        architecture = infer_architecture(found, path)
    except NotPlainError:
        net = guess_net(found)
        if net is None:
            raise
        return as_target(net, input_shape)
    if input_shape and math.prod(input_shape) == math.prod(architecture.input_shape):
        architecture = replace(architecture, input_shape=input_shape)  # 64 columns need not be a picture
    return Target(architecture, fit_weights(found, architecture, path))


def load_base(path: str | Path, target: Target) -> Target:
    """Load the weights that the target's training started from.

    Args:
        path: A file in any of the formats that `unfit formats` lists, or a run folder, which holds its own start.
        target: What was trained; the base must have its architecture.

    Example:
        >>> base = unfit.load_base("start.pt", unfit.load_target("model.pt"))
    """
    path = _start_file(path)
    found = read_model(path)
    if isinstance(found, nn.Module):
        base = as_base(found, target)
        assert base is not None
        return base
    found = as_named(found, path, without_wrappers(target.whole.tensors) if target.whole else target.weights)
    if target.whole is not None:
        return base_from(found, target, str(path))
    weights = fit_weights(found, target.architecture, path)
    refuse_differences(target.weights, weights)
    return Target(target.architecture, weights, target.input_range)


def _start_file(path: str | Path) -> Path:
    path = Path(path)
    is_run = any((path / name).is_file() for name in ("start.safetensors", "target.safetensors"))
    return path / "start.safetensors" if is_run else path


def build_model(code: str) -> nn.Module:
    """Run a user's own file and call the class or function in it that builds the model: `FILE.py:NAME`."""
    file, colon, name = code.rpartition(":")
    path = Path(file)
    if not colon or path.suffix != ".py":
        raise UsageError(f"cannot read `model` {code!r}; write FILE.py:NAME, where NAME() builds the model")
    if not path.is_file():
        raise UnfitError(f"{path}: no such file; `model` is FILE.py:NAME")
    found = _call(lambda: _run_file(path), f"{path} does not run")
    if not callable(build := found.get(name)):
        raise UnfitError(f"{path}: there is no class or function named {name!r}")
    net = _call(build, f"{path}: {name}() does not build a model")
    if not isinstance(net, nn.Module):
        raise UnfitError(f"{path}: {name}() gives a {type(net).__name__}, not a torch.nn.Module")
    return net


def _run_file(path: Path) -> dict[str, Any]:
    """What the file defines. What lies beside it can be imported, as when it is run."""
    sys.path.insert(0, str(path.parent.absolute()))
    try:
        return runpy.run_path(str(path), run_name=path.stem)
    finally:
        sys.path.pop(0)


def _call(action: Callable[[], Any], problem: str) -> Any:
    """A user's code may raise anything."""
    try:
        return action()
    except Exception as error:
        words = str(error).splitlines()[0] if str(error) else ""
        raise UnfitError(f"{problem}: {type(error).__name__}: {words}") from error


# Optimisers ---------------------------------------------------------------------------------------------------


def _with_moments(target: Target, path: Path) -> Target:
    """With the optimiser's moments, if they are kept in the file or beside it.

    What lies beside the weights is no part of them: where it cannot be read, the weights still can, and no audit
    passes on that. Behind a convolution that is attacked too, moments are not read.
    """
    file = path / OPTIMISER if path.is_dir() else path
    if not file.is_file() or kind_of(file, {}) != "pytorch" or target.architecture.conv is not None:
        return target
    try:
        check_file(file)
        return replace(target, moments=_moments(read_moments(file), target))
    except UnfitError as error:
        if file == path:
            raise
        return replace(target, unread=f"the optimiser's state was not read: {error}")


def _moments(found: Weights, target: Target) -> tuple[Tensor, Tensor | None] | None:
    """That of the attacked weight, and that of the bias behind it.

    Optimisers number parameters and do not name them. If several moments have the shape of the weight, none is
    taken.
    """
    weight, bias = target.weights["layer1.weight"], target.weights.get("layer1.bias")
    fitting = [int(key) for key, value in found.items() if value.shape == weight.shape and value.any()]
    if len(fitting) != 1:
        return None
    behind = found.get(str(fitting[0] + 1))
    has_bias = bias is not None and behind is not None and behind.shape == bias.shape
    return found[str(fitting[0])].float(), behind.float() if has_bias and behind is not None else None


# Updates ------------------------------------------------------------------------------------------------------


def two_targets(path: object, base: object, update: object) -> str | None:
    """What is wrong with what was given as the target, in words."""
    if path is None and update is None:
        return "what is to be attacked? Give a checkpoint, or an `update` with the `base` that it changes"
    if path is not None and update is not None:
        return "an `update` is added to the `base`, which gives the target: leave out the other checkpoint"
    if base is None and update is not None:
        return "an `update` holds differences: give the weights that it changes, as the `base`"
    return None


def _updated(base: str | Path | None, update: str | Path | None, reading: Reading) -> Weights:
    """The base with a client's differences added."""
    assert base is not None
    assert update is not None
    before, change = as_named(_tensors(_start_file(base)), base, _like(reading, None)), _tensors(update)
    like = _like(reading, base if is_list(change) else None) or before
    return added(before, as_named(change, update, like), update)


def _like(reading: Reading, base: str | Path | None) -> Weights | None:
    """What names the tensors of a list, in order: the model's own code, or the base if it has names itself."""
    if reading.model is not None:
        return without_wrappers(build_model(reading.model).state_dict())
    if base is None or is_list(found := _tensors(path := _start_file(base))):
        return None
    if (chain := in_chain(found)) is None and kind_of(path, {}) not in ORDERED:
        raise UnfitError(
            f"{path}: does not keep the order of its tensors, so they do not name those of a list; save the base "
            "with torch.save, or give the code that builds the model with `model`"
        )
    return chain or found


def _tensors(path: str | Path) -> Weights:
    found = read_model(path)
    if isinstance(found, nn.Module):
        raise UnfitError(f"{path}: a whole net; an update and what it changes must be tensors, as in a state dict")
    return found


# Adapters -----------------------------------------------------------------------------------------------------


def merged(found: Weights, path: Path, base: str | Path | None) -> Weights:
    """With each pair A, B of a low-rank adapter added to the weight that it adapts: W + s·B·A."""
    pairs = [name.removesuffix(LORA[0]) for name in found if name.endswith(LORA[0])]
    pairs = [name for name in pairs if name + LORA[1] in found]
    if not pairs:
        return found
    whole = {_plain(name): value for name, value in found.items() if not any(kind in name for kind in LORA)}
    if not all(f"{name}.weight" in whole for name in pairs):
        if base is None:
            raise NotApplicableError(f"{path}: an adapter alone; name the weights that it adapts with `base`")
        loaded = read_model(base)
        if isinstance(loaded, nn.Module):
            raise UnfitError(f"{base}: the base of an adapter must be tensors, not a whole net")
        whole = loaded | whole
    if missing := [name for name in pairs if f"{name}.weight" not in whole]:
        raise UnfitError(f"{path}: adapts {missing[0]}, which the base does not have")
    scale = adapter_scale(path) if path.is_dir() else 1.0
    for name in pairs:
        a, b = (found[name + kind] for kind in LORA)
        whole[f"{name}.weight"] = whole[f"{name}.weight"] + scale * (b.float() @ a.float())
    return whole


def _plain(name: str) -> str:
    """PEFT keeps what it adapts under another name."""
    return name.replace(".base_layer.", ".")
