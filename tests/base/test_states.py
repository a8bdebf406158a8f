"""Other states of a model in its file, under the keys of trainers and under unknown ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from unfit import Reading, UnfitError, load_target
from unfit.base.states import is_nested

Weights = dict[str, Tensor]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 2))


@cache
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return net()


@cache
def average() -> nn.Sequential:
    """The same, a little earlier."""
    torch.manual_seed(1)
    moved = copy.deepcopy(model())
    with torch.no_grad():
        for value in moved.parameters():
            value += 1e-3 * torch.randn_like(value)
    return moved


def under(prefix: str, module: nn.Module) -> Weights:
    return {prefix + name: value for name, value in module.state_dict().items()}


def averaged(module: nn.Module) -> Weights:
    """As PyTorch's `AveragedModel` saves it."""
    wrapped = torch.optim.swa_utils.AveragedModel(module)
    return dict(wrapped.state_dict())


def shadow() -> dict[str, Any]:
    return {"decay": 0.99, "shadow_params": [value.detach() for value in average().parameters()]}


def in_slot(name: str) -> dict[str, Any]:
    """Where optimisers keep slow or averaged weights of each parameter, beside their sums of gradients."""
    slots = {
        i: {name: value.detach(), "exp_avg": torch.randn_like(value), "exp_avg_sq": torch.rand_like(value)}
        for i, value in enumerate(average().parameters())
    }
    return {"state": slots, "param_groups": [{"params": list(slots)}]}


def flat_ema() -> Weights:
    """Names without dots, as buffers must be called."""
    return {f"model_ema.{name.replace('.', '')}": value for name, value in average().state_dict().items()}


FILES: dict[str, tuple[Callable[[], Any], str]] = {
    "timm": (
        lambda: {"state_dict": model().state_dict(), "state_dict_ema": average().state_dict()},
        "state_dict_ema",
    ),
    "lightning swa": (
        lambda: {
            "state_dict": under("model.", model()),
            "callbacks": {"StochasticWeightAveraging": {"average_model_state": under("model.", average())}},
        },
        "callbacks['StochasticWeightAveraging']['average_model_state']",
    ),
    "lightning weight averaging": (
        lambda: {"state_dict": under("net.", model()), "current_model_state": under("net.", average())},
        "current_model_state",
    ),
    "diffusers": (lambda: {"model": model().state_dict(), "ema": shadow()}, "ema['shadow_params']"),
    "averaged model": (
        lambda: {"model": model().state_dict(), "swa_model": averaged(average())},
        "swa_model",
    ),
    "fairseq": (
        lambda: {"model": model().state_dict(), "extra_state": {"ema": average().state_dict()}},
        "extra_state['ema']",
    ),
    "mean teacher": (lambda: under("student.", model()) | under("teacher.", average()), "teacher"),
    "ema within": (lambda: {"state_dict": under("net.", model()) | flat_ema()}, "state_dict.model_ema"),
    "best and last": (lambda: {"best": average().state_dict(), "last": model().state_dict()}, "best"),
    "lookahead": (
        lambda: {"model": model().state_dict(), "optimizer": in_slot("slow_buffer")},
        "optimizer['state'][…]['slow_buffer']",
    ),
    "averaged sgd": (
        lambda: {"model": model().state_dict(), "optimizer": in_slot("ax")},
        "optimizer['state'][…]['ax']",
    ),
    "unknown keys": (
        lambda: {"model": model().state_dict(), "x": {"y": [*average().state_dict().values()]}},
        "x['y']",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_second_state_is_found(tmp_path: Path, name: str) -> None:
    make, path = FILES[name]
    torch.save(make(), tmp_path / "model.pt")
    target = load_target(tmp_path / "model.pt", Reading(input_shape=(1, 8, 8)))
    assert torch.equal(target.weights["layer1.weight"], model().state_dict()["1.weight"])
    assert [state.name for state in target.states] == [path]
    for mine, theirs in zip(target.states[0].target.weights.values(), average().parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_with_the_code_of_the_model_its_average_is_left_out(tmp_path: Path) -> None:
    code = "import torch\nfrom torch import nn\n\ndef build():\n    return nn.Sequential(nn.Flatten(), "
    code += "nn.Linear(64, 12), nn.GELU(), nn.Linear(12, 2))\n"
    (tmp_path / "net.py").write_text(code, encoding="utf-8")
    torch.save(under("net.", model()) | under("ema.module.", average()), tmp_path / "model.pt")
    reading = Reading(model=f"{tmp_path / 'net.py'}:build", input_shape=(1, 8, 8))
    target = load_target(tmp_path / "model.pt", reading)
    assert [state.name for state in target.states] == ["ema"]
    assert torch.equal(target.states[0].target.weights["layer1.weight"], average().state_dict()["1.weight"])
    assert target.states[0].target.whole is not None


def test_a_folder_may_hold_an_average_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    for name, module in (("model", model()), ("ema", average())):
        save_file(
            {key: value.contiguous() for key, value in module.state_dict().items()},
            tmp_path / f"{name}.safetensors",
        )
    target = load_target(tmp_path, Reading(input_shape=(1, 8, 8)))
    assert [state.name for state in target.states] == ["ema.safetensors"]


def test_what_is_no_state_of_the_model_is_none(tmp_path: Path) -> None:
    """Sums of gradients, part of a state, another shape, values that are no numbers."""
    other = nn.Linear(64, 12).state_dict()
    broken = {name: value * torch.nan for name, value in average().state_dict().items()}
    slots = {
        i: {"exp_avg": torch.randn_like(v), "drift": torch.randn_like(v)}
        for i, v in enumerate(model().parameters())
    }
    entries = {"part": other, "broken": broken, "optimizer": {"state": slots, "param_groups": []}}
    torch.save({"model": model().state_dict(), **entries}, tmp_path / "model.pt")
    assert load_target(tmp_path / "model.pt", Reading(input_shape=(1, 8, 8))).states == ()


def test_two_nets_under_names_that_say_nothing_are_refused(tmp_path: Path) -> None:
    torch.save({"a": model().state_dict(), "b": average().state_dict()}, tmp_path / "model.pt")
    with pytest.raises(UnfitError, match="holds several models"):
        load_target(tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("a", "b", "nested"),
    [("ema", "ema.module", True), ("ema['x']", "ema", True), ("ema", "ema_2", False), ("", "ema", True)],
)
def test_nested_paths(a: str, b: str, nested: bool) -> None:
    assert is_nested(a, b) == is_nested(b, a) == nested
