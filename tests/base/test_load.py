"""From files to targets: with the model's own code, by a guess, and adapters with what they adapt."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from conftest import Run
from unfit import Reading, UnfitError, as_target, audit, load_base, load_target, preflight, read_source
from unfit.base.errors import NotApplicableError, UsageError
from unfit.base.load import build_model
from unfit.base.nets import outputs

CODE = """
import beside
from torch import nn

def stack():
    body = nn.Conv2d(1, 4, 3, stride=2), nn.GELU(), nn.Flatten()
    return nn.Sequential(*body, nn.Linear(beside.WIDTH, 9), nn.ReLU(), nn.Linear(9, 2))

class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = stack()
    def forward(self, x):
        return self.model(x)

def breaks():
    raise KeyError("width")

def nothing():
    return 3
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("WIDTH = 36")
    file = tmp_path / "net.py"
    file.write_text(CODE)
    return file


@pytest.mark.parametrize("name", ["stack", "Wrapped"])
def test_the_models_own_code_says_how_its_weights_are_used(code: Path, tmp_path: Path, name: str) -> None:
    module = build_model(f"{code}:{name}")
    torch.save({"model_state_dict": module.state_dict(), "epoch": 3}, tmp_path / "net.ckpt")
    shape = (1, 8, 8)
    found = load_target(tmp_path / "net.ckpt", Reading(model=f"{code}:{name}", input_shape=shape))
    expected = as_target(module, shape)
    assert (found.sha256, found.architecture) == (expected.sha256, expected.architecture)
    assert load_base(tmp_path / "net.ckpt", found).sha256 == expected.sha256
    with pytest.raises(UnfitError, match=r"not a plain perceptron.*Give the code that builds it with `model`"):
        load_target(tmp_path / "net.ckpt")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("net.py:stuck", "no class or function named 'stuck'"),
        ("net.py:breaks", "breaks.. does not build a model: KeyError: 'width'"),
        ("net.py:nothing", "gives a int, not a torch.nn.Module"),
        ("gone.py:net", "no such file"),
        ("net.py", "write FILE.py:NAME"),
        ("bad.py:net", "does not run: SyntaxError"),
    ],
)
def test_what_is_wrong_with_the_code_is_said(code: Path, name: str, says: str) -> None:
    (code.parent / "bad.py").write_text("def net(:")
    with pytest.raises(UnfitError, match=says):
        build_model(f"{code.parent}/{name}")


def test_weights_that_do_not_fit_the_code_are_named(code: Path, tmp_path: Path) -> None:
    module = build_model(f"{code}:stack")
    weights = {name: value for name, value in module.state_dict().items() if name != "0.bias"}
    save_file(weights | {"9.bias": torch.zeros(2)}, tmp_path / "net.safetensors")
    with pytest.raises(UnfitError, match=r"do not fit the model: 0.bias is missing.*9.bias is not in the model"):
        load_target(tmp_path / "net.safetensors", Reading(model=f"{code}:stack"))


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
def test_normalisation_between_dense_layers_is_read_off_the_names(tmp_path: Path, norm: type[nn.Module]) -> None:
    net = nn.Sequential(
        nn.Linear(64, 20), norm(20), nn.ReLU(), nn.Linear(20, 10), norm(10), nn.ReLU(), nn.Linear(10, 3)
    )
    for value in net.state_dict().values():
        if value.is_floating_point():
            value.uniform_(0.5, 1.5)
    torch.save(net.state_dict(), tmp_path / "net.pt")
    target = load_target(tmp_path / "net.pt")
    assert norm.__name__ in str(target.architecture)
    x = torch.randn(5, 64)
    with torch.no_grad():
        assert torch.allclose(outputs(target.net(), x.view(5, 1, 8, 8)), net.eval()(x), rtol=1e-4)


def test_the_data_say_whether_64_columns_are_a_picture(tmp_path: Path) -> None:
    torch.save(nn.Sequential(nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 2)).state_dict(), tmp_path / "net.pt")
    assert load_target(tmp_path / "net.pt").architecture.input_shape == (1, 8, 8)
    assert load_target(tmp_path / "net.pt", Reading(input_shape=(64,))).architecture.input_shape == (64,)


def adapter(folder: Path) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """An adapter of the first layer, as PEFT saves it: the base's tensors, and the change that it makes."""
    base = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2)).state_dict()
    a, b = torch.randn(3, 12), torch.randn(8, 3)
    folder.mkdir()
    names = {"base_model.model.0.lora_A.weight": a, "base_model.model.0.lora_B.weight": b}
    save_file(names, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 3, "lora_alpha": 6}))
    return base, 2 * b @ a


def test_an_adapter_is_added_to_what_it_adapts(tmp_path: Path) -> None:
    base, change = adapter(tmp_path / "adapter")
    save_file(base, tmp_path / "base.safetensors")
    target = load_target(tmp_path / "adapter", base=tmp_path / "base.safetensors")
    initial = load_base(tmp_path / "base.safetensors", target)
    found = target.weights["layer1.weight"] - initial.weights["layer1.weight"]
    assert torch.allclose(found, change, atol=1e-5)
    with pytest.raises(NotApplicableError, match="an adapter alone; name the weights that it adapts with `base`"):
        load_target(tmp_path / "adapter")


def test_a_model_with_its_adapter_inside_is_merged(tmp_path: Path) -> None:
    base, _ = adapter(tmp_path / "adapter")
    inside = {name.replace("0.", "0.base_layer."): value for name, value in base.items()}
    pair = {"0.lora_A.weight": torch.eye(3, 12), "0.lora_B.weight": torch.ones(8, 3)}
    torch.save(inside | pair, tmp_path / "net.pt")
    found = load_target(tmp_path / "net.pt").weights["layer1.weight"]
    assert torch.allclose(found - base["0.weight"], torch.ones(8, 3) @ torch.eye(3, 12))


def trained_by_adam() -> tuple[nn.Sequential, torch.optim.Adam]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 2))
    optimiser = torch.optim.Adam(net.parameters())
    net(torch.randn(5, 20)).square().sum().backward()
    optimiser.step()
    return net, optimiser


@pytest.mark.parametrize("keeper", ["trainer", "Lightning", "Hugging Face"])
def test_the_state_of_an_optimiser_is_read_wherever_trainers_keep_it(tmp_path: Path, keeper: str) -> None:
    net, optimiser = trained_by_adam()
    path = tmp_path / "net.pt"
    if keeper == "trainer":
        torch.save({"model_state_dict": net.state_dict(), "optimizer_state_dict": optimiser.state_dict()}, path)
    elif keeper == "Lightning":
        torch.save({"state_dict": net.state_dict(), "optimizer_states": [optimiser.state_dict()]}, path)
    else:
        path = tmp_path
        save_file(net.state_dict(), path / "model.safetensors")
        (path / "config.json").write_text("{}")
        torch.save(optimiser.state_dict(), path / "optimizer.pt")
    moments = load_target(path).moment
    assert moments is not None
    assert torch.equal(moments[0], optimiser.state[net[0].weight]["exp_avg"])
    assert moments[1] is not None
    assert torch.equal(moments[1], optimiser.state[net[0].bias]["exp_avg"])


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        [[]],
        {"state": 3},
        {"state": {0: 3, "1": {}, 2: {"exp_avg": "much"}}},
        {"state": {0: {"exp_avg": torch.zeros(9, 20)}}},  # never stepped
        {"state": {0: {"exp_avg": torch.full((9, 20), torch.nan)}}},  # diverged
        {"state": {0: {"exp_avg": torch.ones(9, 20, dtype=torch.complex64)}}},
        {"state": {0: {"exp_avg": torch.ones(9, 20, dtype=torch.int64)}}},
        {"state": {0: {"exp_avg": torch.ones(9, 20)}, 1: {"momentum_buffer": torch.ones(9, 20)}}},  # which is it?
    ],
)
def test_what_is_not_the_state_of_an_optimiser_is_left_alone(tmp_path: Path, state: object) -> None:
    net, _ = trained_by_adam()
    torch.save({"model_state_dict": net.state_dict(), "optimizer": state}, tmp_path / "net.pt")
    assert load_target(tmp_path / "net.pt").moment is None


def test_the_state_of_an_optimiser_claims_no_more_than_the_file_holds(tmp_path: Path) -> None:
    net, _ = trained_by_adam()
    state = {"state": {0: {"exp_avg": torch.ones(1).expand(30_000, 30_000)}}}
    torch.save({"model_state_dict": net.state_dict(), "optimizer": state}, tmp_path / "net.pt")
    with pytest.raises(UnfitError):
        load_target(tmp_path / "net.pt")


def test_an_optimiser_that_cannot_be_read_hides_no_weights_and_lets_nothing_pass(tmp_path: Path) -> None:
    net, _ = trained_by_adam()
    save_file(net.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    torch.save({"state": {}, "args": argparse.Namespace(lr=0.1)}, tmp_path / "optimizer.pt")
    target = load_target(tmp_path)
    assert torch.equal(target.weights["layer1.weight"], net[0].weight)
    assert target.unread is not None
    assert any("optimiser's state was not read" in note for note in preflight(target).notes)
    x = torch.randn(40, 20)
    y = net(x).argmax(1)
    result = audit(target, (x[:20], y[:20]), (x[20:], y[20:]), attack="weights")
    assert target.unread in result.record.reasons


def test_the_command_line_and_python_see_the_same_net(code: Path, tmp_path: Path, run: Run) -> None:
    """An audit of a model that only its code explains, end to end."""
    faces = read_source("faces").train
    samples = faces.take(faces.balanced(60, 0))
    side = samples.shape[-1]
    x = samples.x.numpy()
    for name, rows in (("train", slice(0, None, 2)), ("unseen", slice(1, None, 2))):
        np.savez(tmp_path / f"{name}.npz", x=x[rows], y=samples.y.numpy()[rows])
    layers = f"nn.Flatten(), nn.Linear({side**2}, 50), nn.GELU(), nn.Linear(50, 1)"
    code.write_text(f"from torch import nn\ndef net():\n    return nn.Sequential({layers})\n")
    torch.manual_seed(0)
    net = build_model(f"{code}:net")
    own, y = samples.x[::2], samples.y[::2].float()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(300):
        loss = nn.functional.binary_cross_entropy_with_logits(net(own)[:, 0], y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.save(net.state_dict(), tmp_path / "net.pt")
    words = ("--data", f"npz:{tmp_path}/train.npz", "--unseen", f"npz:{tmp_path}/unseen.npz", "--seeds", 0)
    status, _, error = run(
        "audit", tmp_path / "net.pt", "--model", f"{code}:net", *words, "--out", tmp_path / "audit"
    )
    assert status == 3, error  # a GELU: without the initial weights nothing is certain
    record = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert record["target"]["sha256"] == as_target(net, samples.shape).sha256
    assert record["target"]["architecture"] == f"{side**2}-50-(GELU)-1"
    status, _, error = run("attack", tmp_path / "net.pt", "--layer", "9", "--out", tmp_path / "c.safetensors")
    assert status == UsageError.exit_code
    assert "no dense layer named '9'" in error


def test_an_estimator_of_scikit_learn_is_taken_as_it_is() -> None:
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = np.random.default_rng(0).normal(size=(30, 12)), np.arange(30) % 3
    model = make_pipeline(StandardScaler(), MLPClassifier((9,), max_iter=500, tol=1e-2, random_state=0)).fit(x, y)
    target = as_target(model)
    assert target.has_prefix  # the scaler: what comes back is what the perceptron saw
    seen = target.split.features(torch.from_numpy(x).float())
    probabilities = outputs(target.net(), seen).softmax(1).numpy()
    assert np.allclose(probabilities, model.predict_proba(x), atol=1e-5)
    with pytest.raises(UsageError, match=r"a Target \(`unfit.load_target` reads one of a file\), got str"):
        as_target("model.pt")  # type: ignore[arg-type]
