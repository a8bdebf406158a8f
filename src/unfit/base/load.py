"""From a path to a Target: what the file holds, what describes it, and the model's own code where it is needed."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from unfit.base.errors import NotApplicableError, UnfitError, UsageError
from unfit.base.formats import kind_of_model, read_model
from unfit.base.formats.folders import adapter_scale
from unfit.base.formats.kinds import kind_of
from unfit.base.formats.limits import Weights, check_file, read_once
from unfit.base.formats.optimisers import Moments, by_parameter, file_of, optimisers_of
from unfit.base.formats.tensors import natural, without_wrappers
from unfit.base.guess import guess_net
from unfit.base.held import contents_of_file
from unfit.base.modules import Estimator, as_base, as_target, base_from, load_into, with_contents
from unfit.base.reading import Reading
from unfit.base.states import states_in, without_averages
from unfit.base.target import (
    NotPlainError,
    State,
    Target,
    fit_weights,
    in_layers,
    infer_architecture,
    read_description,
)
from unfit.base.updates import added, as_named, in_chain, is_list, refuse_differences

ORDERED = ("pytorch", "npz")  # kinds of files that keep tensors in the order of a state dict
MOST_CHECKPOINTS = 100  # of a folder: more would take as much memory as a hundred models
LORA = (".lora_A.weight", ".lora_B.weight")


def load_target(
    path: str | Path | None = None,
    reading: Reading | None = None,
    base: str | Path | None = None,
    update: str | Path | None = None,
    data_shape: tuple[int, ...] | None = None,
) -> Target:
    """Load a checkpoint in any of the formats that `unfit formats` lists.

    A JSON file of the same name describes the model. Without one the model must be a plain perceptron, whose
    layers follow from the shapes of its weights, or come with its code.

    Args:
        path: A file, a run folder, or a folder of Hugging Face's.
        reading: How the file becomes a model, where it does not say so itself.
        base: The weights that an adapter adapts or an update changes; only these need it here.
        update: In place of `path`, a client's differences to the base in federated learning.
        data_shape: The shape of one sample of the data, where neither `reading` nor a description tells it.

    Example:
        >>> target = unfit.load_target("model.pt", unfit.Reading(input_shape="25x25"))
    """
    if problem := two_targets(path, base, update):
        raise UsageError(problem)
    reading = reading or Reading()
    published = Path(path or update or "")
    with read_once():
        target = _loaded(path, reading, base, update, data_shape)
        target = with_contents(target, "file", lambda: contents_of_file(published))
        target = replace(target, states=states_in(target))
        return _with_moments(target, published) if path else target


def _loaded(
    path: str | Path | None,
    reading: Reading,
    base: str | Path | None,
    update: str | Path | None,
    data_shape: tuple[int, ...] | None,
) -> Target:
    found = read_model(path) if path else _updated(base, update, reading)
    path = Path(path or base or "")
    if isinstance(found, nn.Module):
        return as_target(found, reading.input_shape, layer=reading.layer, data_shape=data_shape)
    if is_list(found):
        found = as_named(found, path, _like(reading, base))
    found = merged(found, path, base)
    if reading.model is not None:
        module = build_model(reading.model)
        if found.keys() != without_wrappers(module.state_dict()).keys():
            found = without_averages(found)
        load_into(module, found, str(path))
        return as_target(module, reading.input_shape, layer=reading.layer, data_shape=data_shape)
    found = without_averages(found)
    about = (path / "target.safetensors" if path.is_dir() else path).with_suffix(".json")
    said = reading.input_shape
    target = _described(found, path, about) if about.is_file() else _inferred(found, path, said, data_shape)
    target = target.for_shape(said, data_shape)
    if reading.layer is None:
        return target
    return as_target(target.net(), target.sample_shape, target.input_range, reading.layer)


def _described(found: Weights, path: Path, about: Path) -> Target:
    architecture, input_range = read_description(about)
    return Target(architecture, fit_weights(found, architecture, path), input_range, shape_is_told=True)


def _inferred(
    found: Weights, path: Path, said: tuple[int, ...] | None, data_shape: tuple[int, ...] | None
) -> Target:
    """A plain perceptron by the shapes of its weights, or one with normalisation between its dense layers."""
    try:
        architecture = infer_architecture(found, path)
    except NotPlainError:
        net = guess_net(found)
        if net is None:
            raise
        return as_target(net, said, data_shape=data_shape)
    return Target(architecture, fit_weights(found, architecture, path))


def load_base(path: str | Path, target: Target) -> Target:
    """Load the weights that the target's training started from.

    Args:
        path: A file in any of the formats that `unfit formats` lists, or a run folder, which holds them.
        target: What was trained; the base must have its architecture.

    Example:
        >>> base = unfit.load_base("initial.pt", unfit.load_target("model.pt"))
    """
    path = _initial_file(path)
    found = read_model(path)
    if isinstance(found, nn.Module):
        base = as_base(found, target)
        assert base is not None
        return base
    found = as_named(found, path, without_wrappers(target.whole.tensors) if target.whole else target.weights)
    if target.whole is not None:
        return base_from(found, target, str(path))
    weights = fit_weights(without_averages(found), target.architecture, path)
    refuse_differences(target.weights, weights)
    return Target(target.architecture, weights, target.input_range)


Checkpoint = str | Path | Target | nn.Module | Estimator
Round = tuple[str | Path, str | Path]
"""Of federated learning: the model that the client was sent, and its differences to that."""


def with_checkpoints(target: Target, checkpoints: Sequence[Checkpoint]) -> Target:
    """With other checkpoints of the same training: files, folders of Hugging Face's, models; in any order.

    A folder that holds `checkpoint-500`, `checkpoint-1000` and so on stands for all of these.
    """
    found = [each for given in checkpoints for each in _all_of(given)]
    states = [_checkpoint(each, i, target) for i, each in enumerate(found, 1)]
    return replace(target, states=(*target.states, *states))


def with_rounds(target: Target, rounds: Sequence[Round], reading: Reading | None = None) -> Target:
    """With other rounds of the same client: what it was sent in each, and its differences to that."""
    found = []
    for base, update in rounds:
        after = as_base(load_target(None, reading, base, update), target)
        assert after is not None
        state = State(Path(update).name, after, is_file=True, before=load_base(base, after))
        found.append(state)
    return replace(target, states=(*target.states, *found))


def _all_of(given: Checkpoint) -> list[Checkpoint]:
    """The checkpoints in a folder of them."""
    if not isinstance(given, str | Path) or not (path := Path(given)).is_dir() or kind_of_model(path) is not None:
        return [given]
    inside = sorted(path.glob("checkpoint*"), key=lambda each: natural(each.name))
    if not inside:
        raise UnfitError(f"{path}: neither a model nor a folder of checkpoints, `checkpoint-500` and the like")
    return list(inside[:MOST_CHECKPOINTS])


def _checkpoint(given: Checkpoint, number: int, target: Target) -> State:
    if not isinstance(given, str | Path):
        state = as_base(given, target)
        assert state is not None
        return State(f"checkpoint {number}", state, is_file=True)
    path = Path(given)
    with read_once():
        return State(path.name, _with_moments(load_base(path, target), path), is_file=True)


def _initial_file(path: str | Path) -> Path:
    path = Path(path)
    is_run = any((path / name).is_file() for name in ("initial.safetensors", "target.safetensors"))
    return path / "initial.safetensors" if is_run else path


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
    file = file_of(path) if path.is_dir() else path
    if file is None or kind_of(file, {}) != "pytorch" or target.architecture.conv is not None:
        return target
    try:
        check_file(file)
        optimisers = optimisers_of(file)
        fading = {(each.beta, each.step) for each in optimisers}
        told = fading.pop() if len(fading) == 1 else (None, None)
        return replace(target, moments=_moments(optimisers, target), fading=told)
    except UnfitError as error:
        if file == path:
            raise
        return replace(target, unread=f"the optimiser's state was not read: {error}")


def _moments(optimisers: Sequence[Moments], target: Target) -> Weights:
    """By the names of the target's parameters; a plain model has layers by number, whatever they were called."""
    found: Weights = {}
    for moments in optimisers:
        named = without_wrappers(moments.named)
        named = named if target.whole else in_layers(named)
        found |= by_parameter(replace(moments, named=named), target.parameters)
    return found


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
    before, change = as_named(_tensors(_initial_file(base)), base, _like(reading, None)), _tensors(update)
    like = _like(reading, base if is_list(change) else None) or before
    return added(before, as_named(change, update, like), update)


def _like(reading: Reading, base: str | Path | None) -> Weights | None:
    """What names the tensors of a list, in order: the model's own code, or the base if it has names itself."""
    if reading.model is not None:
        return without_wrappers(build_model(reading.model).state_dict())
    if base is None or is_list(found := _tensors(path := _initial_file(base))):
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
        raise UnfitError(f"{path}: a whole model; an update and its base must be tensors, as in a state dict")
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
            raise UnfitError(f"{base}: the base of an adapter must be tensors, not a whole model")
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
