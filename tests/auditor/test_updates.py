"""Federated learning: a client's update is read from what frameworks send, and gives its samples away."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from conftest import Run
from unfit import Reading, Target, UnfitError, apply_update, draw, draw_unseen, load_base, load_target, read_source
from unfit.auditor.case import case_of
from unfit.auditor.data_check import check_data
from unfit.base.errors import UsageError

State = dict[str, Tensor]
N, BATCH, EPOCHS = 16, 4, 3


def build() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(625, 200), nn.ReLU(), nn.Linear(200, 1))


@pytest.fixture(scope="module")
def client() -> tuple[nn.Module, nn.Module, list[int]]:
    """A global model, what a client makes of it in mini-batches, and the client's faces."""
    own = draw(read_source("faces"), N, 0)
    torch.manual_seed(0)
    initial = build()
    model = copy.deepcopy(initial)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(N).split(BATCH):
            optimiser.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits
            loss(model(own.x[chosen])[:, 0], own.y[chosen].float()).backward()
            optimiser.step()
    return initial, model, own.indices.tolist()


def change(initial: nn.Module, model: nn.Module) -> State:
    old = initial.state_dict()
    return {name: value - old[name] for name, value in model.state_dict().items()}


def arrays(state: State) -> list[np.ndarray]:
    return [value.numpy() for value in state.values()]


WRITERS: dict[str, Callable[[Path, State], object]] = {
    "list.npz": lambda path, state: np.savez(path, *arrays(state)),
    "compressed.npz": lambda path, state: np.savez_compressed(path, *arrays(state)),
    "named.npz": lambda path, state: np.savez(path, **{name: value.numpy() for name, value in state.items()}),
    "state.pt": lambda path, state: torch.save(state, path),
    "state.safetensors": lambda path, state: save_file(state, path),
}


def same(found: Target, model: nn.Module) -> None:
    values = zip(found.weights.values(), model.state_dict().values(), strict=True)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-7) for a, b in values)


@pytest.mark.parametrize("name", WRITERS)
def test_every_form_of_an_update_gives_the_clients_model(tmp_path, client, name):
    initial, model, _ = client
    torch.save(initial.state_dict(), tmp_path / "global.pt")
    WRITERS[name](tmp_path / name, change(initial, model))
    same(load_target(base=tmp_path / "global.pt", update=tmp_path / name), model)


@pytest.mark.parametrize("name", WRITERS)
def test_new_weights_are_a_target_whatever_form_the_global_model_has(tmp_path, client, name):
    initial, model, _ = client
    np.savez(tmp_path / "client.npz", *arrays(model.state_dict()))
    WRITERS[name](tmp_path / name, initial.state_dict())
    target = load_target(tmp_path / "client.npz", base=tmp_path / name)
    same(target, model)
    same(load_base(tmp_path / name, target), initial)


def test_a_named_update_may_leave_out_what_did_not_change(tmp_path, client):
    initial, model, _ = client
    torch.save(initial.state_dict(), tmp_path / "global.pt")
    torch.save({"1.weight": change(initial, model)["1.weight"]}, tmp_path / "part.pt")
    found = load_target(base=tmp_path / "global.pt", update=tmp_path / "part.pt")
    assert torch.equal(found.weights["layer2.weight"], initial[3].weight)
    assert torch.allclose(found.weights["layer1.weight"], model[1].weight, rtol=0, atol=1e-7)


def test_an_update_to_a_model_in_float16_is_not_rounded_to_float16(client):
    initial, model, _ = client
    small = {name: value.half() for name, value in initial.state_dict().items()}
    from unfit.base.updates import added

    moved = added(small, change(initial, model), "update")["1.weight"] - small["1.weight"].float()
    assert torch.allclose(moved, change(initial, model)["1.weight"], rtol=0, atol=1e-7)


def test_a_list_holds_buffers_too(tmp_path):
    layers = "nn.Flatten(), nn.Linear(64, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 2)"
    (tmp_path / "net.py").write_text(f"from torch import nn\ndef net():\n    return nn.Sequential({layers})\n")
    reading = Reading(model=f"{tmp_path / 'net.py'}:net")
    torch.manual_seed(0)
    initial = nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 2))
    initial(torch.rand(9, 1, 8, 8))  # not its first round: a fresh BatchNorm changes nothing
    model = copy.deepcopy(initial)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.rand(9, 1, 8, 8)).sum().backward()
    optimiser.step()
    np.savez(tmp_path / "global.npz", *arrays(initial.state_dict()))
    np.savez(tmp_path / "update.npz", *arrays(change(initial, model)))
    updated = apply_update(initial, arrays(change(initial, model)))
    pairs = zip(updated.state_dict().values(), model.state_dict().values(), strict=True)
    assert all(torch.allclose(a, b) for a, b in pairs)
    assert updated[2].num_batches_tracked == 2
    assert not torch.equal(initial[1].weight, updated[1].weight)  # the global model is left as it was
    target = load_target(reading=reading, base=tmp_path / "global.npz", update=tmp_path / "update.npz")
    assert torch.allclose(target.weights["layer1.weight"], model[1].weight)
    base = load_base(tmp_path / "global.npz", target)
    assert torch.equal(base.weights["layer1.weight"], initial[1].weight)
    with pytest.raises(UnfitError, match=r"arr_2, of shape \(30,\), does not fit a plain perceptron.*`model`"):
        load_target(base=tmp_path / "global.npz", update=tmp_path / "update.npz")
    for name in ("state.pt", "named.npz"):
        WRITERS[name](tmp_path / name, initial.state_dict())
        found = load_target(base=tmp_path / name, update=tmp_path / "update.npz").weights["layer1.weight"]
        assert torch.allclose(found, model[1].weight)
    save_file(initial.state_dict(), tmp_path / "global.safetensors")
    with pytest.raises(UnfitError, match=r"does not keep the order of its tensors.*torch\.save"):
        load_target(base=tmp_path / "global.safetensors", update=tmp_path / "update.npz")


# Wrong files --------------------------------------------------------------------------------------------------


def swapped(state: State) -> list[np.ndarray]:
    first, second, *rest = arrays(state)
    return [second, first, *rest]


BAD: dict[str, tuple[Callable[[State, State], list[np.ndarray] | dict[str, object]], str]] = {
    "weights": (
        lambda old, new: arrays(new),
        r"are weights themselves \(within \d+% of the base\).*as the target",
    ),
    "too few": (lambda old, new: arrays(new)[:3], r"a list of 3 arrays, but the model has 4 tensors \(1.weight, "),
    "order": (
        lambda old, new: swapped(new),
        r"arr_0, for 1.weight, has shape \(200,\), the model's \(200, 625\), arr_1, for 1.bias, has shape",
    ),
    "name": (lambda old, new: {"5.weight": arrays(new)[0]}, "5.weight is not in the base"),
    "shape": (lambda old, new: {"1.weight": arrays(new)[0].T}, r"1.weight has shape \(625, 200\), the model's"),
    "hole": (lambda old, new: {"arr_0": arrays(new)[0], "arr_2": arrays(new)[1]}, "2 arrays without arr_1"),
    "zeros": (lambda old, new: [0 * each for each in arrays(new)], "all differences are zero"),
    "nan": (lambda old, new: [np.nan * each for each in arrays(new)], "NaN or infinite"),
    "text": (lambda old, new: {"1.bias": np.array(["a"] * 200)}, "1.bias has type <U1, expected numbers"),
    "objects": (lambda old, new: {"1.bias": np.array([None] * 200)}, "expected numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused_by_name(tmp_path, client, name):
    initial, model, _ = client
    make, match = BAD[name]
    made = make(initial.state_dict(), model.state_dict())
    np.savez(tmp_path / "update.npz", **made) if isinstance(made, dict) else np.savez(
        tmp_path / "update.npz", *made
    )
    torch.save(initial.state_dict(), tmp_path / "global.pt")
    with pytest.raises(UnfitError, match=match):
        load_target(base=tmp_path / "global.pt", update=tmp_path / "update.npz")


def test_a_small_file_cannot_claim_much(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**33,)})
    with zipfile.ZipFile(tmp_path / "update.npz", "w") as archive:
        archive.writestr("arr_0.npy", header.getvalue())
    with pytest.raises(UnfitError, match="claims 8,589,934,592 parameters"):
        load_target(tmp_path / "update.npz")


def test_python_refuses_the_same(client):
    initial, model, _ = client
    with pytest.raises(UnfitError, match="weights themselves"):
        apply_update(initial, model.state_dict())
    with pytest.raises(UnfitError, match="arr_1 is not an array of numbers"):
        apply_update(initial, [torch.zeros(1), object()])
    with pytest.raises(UsageError, match=r"expected a torch\.nn\.Module, got int"):
        apply_update(3, [])


# The whole way ------------------------------------------------------------------------------------------------


def test_an_update_gives_the_clients_faces_away(tmp_path, client, run: Run):
    initial, model, members = client
    np.savez(tmp_path / "global.npz", *arrays(initial.state_dict()))
    np.savez(tmp_path / "update.npz", *arrays(change(initial, model)))
    (tmp_path / "members.json").write_text(json.dumps(members))
    given = ("--base", tmp_path / "global.npz", "--update", tmp_path / "update.npz")
    code, out, _ = run("preflight", *given, "--json")
    assert (code, json.loads(out)["estimated_num_samples"]) == (0, N)
    data = ("--data", "faces", "--members", tmp_path / "members.json", "--num-unseen", 60)
    code, _, _ = run("audit", *given, *data, "--method", "peel", "--no-redact", "--out", tmp_path / "audit")
    found = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert code == 1
    assert found["num_recognisable"] >= 3 * N // 4  # not by SSIM: exact patches of background are like unseen ones
    assert found["num_recognisable_unseen"] == 0
    assert found["repeat"]["update"] == str(tmp_path / "update.npz")
    assert found["repeat"]["target"] is None
    torch.save(model.state_dict(), tmp_path / "client.pt")
    code, _, err = run("attack", tmp_path / "client.pt", *given, "--out", tmp_path / "candidates")
    assert code == 64
    assert "an --update is added to the --base, which gives the target: leave out the other checkpoint" in err
    code, _, err = run("audit", *given[2:], *data, "--out", tmp_path / "other")
    assert code == 64
    assert "give the weights that it changes, as the --base" in err


def test_a_single_step_need_not_have_taught_the_model_anything(client):
    """What the change is made of is private, whatever the accuracy; the same pictures upside down are not."""
    initial, _, _ = client
    source = read_source("faces")
    own = draw(source, N, 0)
    unseen = draw_unseen(source, own, 120, 0)
    model = copy.deepcopy(initial)
    nn.functional.binary_cross_entropy_with_logits(model(own.x)[:, 0], own.y.float()).backward()
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    fit = check_data(case_of(model, (own.x, own.y), (unseen.x, unseen.y), base=initial))
    assert (fit.private_accuracy, fit.fits) == (0.5, True)
    turned = case_of(model, (own.x.flip(2), own.y), (unseen.x.flip(2), unseen.y), base=initial)
    assert not check_data(turned).fits
    assert not check_data(
        case_of(model, (own.x, own.y), (unseen.x, unseen.y))
    ).fits  # nothing is known of a change


def test_the_members_of_a_base_are_not_those_of_its_update(tmp_path, client, run: Run, face_run: Path):
    """A run folder knows what the base was trained on. A client trained on something else."""
    state = load_target(face_run).weights
    save_file({name: 1e-3 * torch.rand(value.shape) for name, value in state.items()}, tmp_path / "u.safetensors")
    given = ("--base", face_run, "--update", tmp_path / "u.safetensors", "--out", tmp_path / "audit")
    code, _, err = run("audit", *given)
    assert code == 2
    assert "which data was it trained on?" in err


def test_differences_given_as_the_target_are_refused(client, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    initial, model, _ = client
    torch.save(change(initial, model), tmp_path / "update.pt")
    torch.save(initial.state_dict(), tmp_path / "global.pt")
    torch.save(model.state_dict(), tmp_path / "local.pt")
    load_base(tmp_path / "global.pt", load_target(tmp_path / "local.pt"))
    with pytest.raises(UnfitError, match="looks like differences to the `base`"):
        load_base(tmp_path / "global.pt", load_target(tmp_path / "update.pt"))
