"""Training on real images: in the span as in the whole space, to the asked end, and failing without a crash."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from unfit.auditor.samples import draw, draw_unseen
from unfit.auditor.sources import read_source
from unfit.base.errors import UsageError
from unfit.base.nets import build, initialise, layers_of, margin, outputs, parse_architecture
from unfit.lab.fit import Fit, fit
from unfit.lab.settings import FitSettings
from unfit.lab.settle import FIRST_LR, LR_AFTER_RISE, LR_GROWTH, NESTEROV
from unfit.lab.trainee import InMaps, data_loss, squares

Pairs = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
F = torch.nn.functional
LOSSES = [("logistic", 1), ("l2", 1), ("l2.5", 1), ("huber", 1), ("ce", 3), ("l2", 3), ("huber", 3)]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Nets this small are slower with more, much slower where others work too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drawn(n: int, k: int = 1, num_unseen: int = 30) -> Pairs:
    """n centred samples and some unseen ones: faces or not, or digits of the first k classes."""
    source = read_source("faces") if k == 1 else read_source("mnist5k", str(k))
    members = draw(source, n, 0)
    unseen = draw_unseen(source, members, num_unseen, 0).centred(members.mean)
    members = members.centred(members.mean)
    return (members.x, members.y), (unseen.x, unseen.y)


def trained(pairs: Pairs, text: str = "20-10", k: int = 1, biases: str = "first", **settings: Any) -> Fit:
    architecture = parse_architecture(text, tuple(pairs[0][0].shape[1:]), k, biases)
    return fit(architecture, *pairs, FitSettings(**settings))


def distance(a: Tensor, b: Tensor, scale: Tensor) -> float:
    return ((a - b).norm() / scale.norm()).item()


@contextmanager
def seconds(limit: int) -> Iterator[None]:
    """Work that does not end fails, instead of holding everything up."""

    def over(*_: object) -> None:
        raise AssertionError(f"still running after {limit} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(limit)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# Flow ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faces() -> Pairs:
    return drawn(20)


@pytest.fixture(scope="module")
def flown(faces) -> Fit:
    return trained(faces, "100-100")


def test_flow_fits_every_face_and_stops_at_the_asked_time(flown):
    record = flown.record
    assert (record["train_accuracy"], record["status"]) == (1.0, "flow time")
    assert 1e4 <= record["flow_time"] < 1.1e4
    assert record["margin"]["min"] > 5
    assert record["test_accuracy"] > 0.6


def test_along_the_flow_time_and_steps_rise_and_the_loss_falls(flown):
    for (step, time, loss), (next_step, next_time, next_loss) in pairwise(flown.record["curve"]):
        assert step < next_step
        assert time < next_time
        assert next_loss <= loss * (1 + 1e-5)  # up to rounding
    assert flown.record["curve"][0][2] > 1000 * flown.record["curve"][-1][2]


def test_the_record_describes_the_returned_weights(flown, faces):
    net = build(flown.architecture)
    net.load_state_dict(flown.weights)
    (x, y), (x_test, y_test) = faces
    margins, test_margins = margin(outputs(net, x), y), margin(outputs(net, x_test), y_test)
    record = flown.record
    assert record["loss"] == pytest.approx(F.softplus(-margins).mean().item(), rel=1e-5)
    assert record["test_loss"] == pytest.approx(F.softplus(-test_margins).mean().item(), rel=1e-5)
    assert record["test_accuracy"] == pytest.approx((test_margins > 0).double().mean().item())
    assert record["margin"]["min"] == pytest.approx(margins.min().item())
    assert record["margin"]["max"] == pytest.approx(margins.max().item())
    norms = [math.sqrt(sum(p.detach().square().sum() for p in layer.parameters())) for layer in layers_of(net)]
    assert record["layer_norms"] == pytest.approx(norms, rel=1e-5)
    assert record["seconds"] > 0
    assert record["steps"] >= record["curve"][-1][0]
    json.dumps(record, allow_nan=False)


def test_the_first_layer_moves_in_the_span_of_the_inputs_only(flown, faces):
    change = (flown.weights["layer1.weight"] - flown.initial["layer1.weight"]).double()
    flat = faces[0][0].flatten(1).double()
    basis = torch.linalg.svd(flat, full_matrices=False)[2][:19]  # centred: one less than 20
    assert distance(change @ basis.T @ basis, change, change) < 1e-4
    assert distance(change @ basis[:-1].T @ basis[:-1], change, change) > 1e-3  # and needs all of it


def test_the_start_is_the_fresh_net_of_the_seed(flown):
    fresh = initialise(flown.architecture, 1e-4, 0).state_dict()
    assert flown.initial.keys() == fresh.keys() == flown.weights.keys()
    assert all(torch.equal(flown.initial[name], fresh[name]) for name in fresh)


def test_training_leaves_a_smaller_residual_than_none(flown, faces):
    barely = trained(faces, "100-100", flow_time=1e-3).record["kkt_residuals"]
    assert sum(flown.record["kkt_residuals"]) < 0.7 * sum(barely)


@pytest.mark.parametrize(("loss", "time"), [("logistic", 20.0), ("l2", 1.0)])
def test_flow_is_the_limit_of_small_steps(loss, time):
    few = drawn(8)
    flow = trained(few, "20", loss=loss, flow_time=time, init=0.01)
    steps = trained(few, "20", loss=loss, method="gd", lr=time / 1000, epochs=1000, init=0.01)
    assert steps.record["flow_time"] == pytest.approx(time)
    assert flow.record["flow_time"] == pytest.approx(time, rel=0.03)
    assert flow.record["loss"] == pytest.approx(steps.record["loss"], rel=0.1)
    assert steps.record["loss"] < 0.5 * steps.record["curve"][0][2]
    for name, value in steps.weights.items():
        assert distance(flow.weights[name], value, value - steps.initial[name]) < 0.05


@pytest.mark.parametrize("seed", [0, 2])
def test_flow_of_a_regression_loss_does_not_stop_half_way(faces, seed):
    """Its loss is of the size of rounding errors in the outputs, long before the asked time."""
    record = trained(faces, "30-30", loss="l2", init=None, flow_time=100.0, seed=seed).record
    assert (record["status"], record["flow_time"]) == ("flow time", pytest.approx(100, rel=0.1))


@pytest.mark.parametrize("method", ["flow", "gd"])
def test_training_stops_at_the_target_loss(faces, method):
    record = trained(faces, method=method, target_loss=0.05, lr=0.3, epochs=5000).record
    assert record["status"] == "target loss"
    assert 0.03 < record["loss"] <= 0.05
    assert record["curve"][-1][2] <= 0.08


def test_flow_stops_after_so_many_steps(faces):
    record = trained(faces, max_steps=7).record
    assert (record["status"], record["steps"]) == ("step limit", 7)


@pytest.mark.parametrize("end", [{"target_loss": 1e-44}, {"flow_time": 1e300}])
def test_flow_ends_where_the_loss_is_too_small_for_a_number(end):
    with seconds(30):
        found = trained(drawn(4), "30", **end)
    json.dumps(found.record, allow_nan=False)
    assert found.record["train_accuracy"] == 1.0
    assert all(value.isfinite().all() for value in found.weights.values())


# The span and the whole space ------------------------------------------------------------------------------


def plainly(initial: dict[str, Tensor], found: Fit, pairs: Pairs, settings: FitSettings) -> dict[str, Tensor]:
    """Torch's own loop over the whole net, full batches."""
    (x, y), _ = pairs
    net = build(found.architecture)
    net.load_state_dict(initial)
    momentum = settings.momentum if settings.method == "sgd" else 0.0
    optimiser = torch.optim.SGD(net.parameters(), settings.lr, momentum, weight_decay=settings.weight_decay)
    for _ in range(settings.epochs):
        optimiser.zero_grad()
        data_loss(net(x), y, settings.loss).backward()
        optimiser.step()
    return net.state_dict()


@pytest.mark.parametrize(
    ("n", "k", "text", "biases", "settings"),
    [
        (20, 1, "30-20", "first", {}),
        (20, 1, "30-20", "hidden", {"weight_decay": 0.05}),
        (20, 1, "30", "first", {"init": None, "weight_decay": 0.2}),
        (20, 1, "30", "first", {"init": None, "loss": "l2"}),
        (21, 3, "30-20", "hidden", {"init": None, "loss": "ce", "weight_decay": 0.05}),
        (20, 1, "30-20", "first", {"init": None, "method": "sgd", "batch": 20, "weight_decay": 0.01}),
        (8, 1, "conv(5,3)-10", "hidden", {"init": None, "weight_decay": 0.05}),
    ],
)
def test_training_in_the_span_is_training_in_the_whole_space(n, k, text, biases, settings):
    pairs, settings = drawn(n, k), {"method": "gd", "lr": 0.1, "epochs": 60, "init": 0.01, **settings}
    found = trained(pairs, text, k, biases, **settings)
    expected = plainly(found.initial, found, pairs, FitSettings(**settings))
    for name, value in expected.items():
        assert distance(found.weights[name], value, value) < 1e-5, name
        assert distance(found.initial[name], value, value) > 1e-3, name  # it has moved


def test_with_as_many_samples_as_inputs_training_is_plain():
    source = read_source("circle")
    points = draw(source, 20, 0)
    pairs = (points.x, points.y), (points.x, points.y)
    settings = {"method": "gd", "lr": 0.1, "epochs": 100, "init": 0.5}
    found = trained(pairs, "30", **settings)
    for name, value in plainly(found.initial, found, pairs, FitSettings(**settings)).items():
        assert distance(found.weights[name], value, value) < 1e-5, name


@pytest.mark.parametrize("method", ["flow", "gd"])
def test_outside_the_span_weights_only_decay(faces, method):
    settings = {"method": method, "weight_decay": 0.01, "init": None, "lr": 0.1, "epochs": 50, "flow_time": 100.0}
    found = trained(faces, "30", **settings)
    flat = faces[0][0].flatten(1).double()
    basis = torch.linalg.qr(flat.T)[0]
    before, after = (w["layer1.weight"].double() for w in (found.initial, found.weights))
    before, after = before - before @ basis @ basis.T, after - after @ basis @ basis.T
    left = (after.norm() / before.norm()).item()
    expected = math.exp(-0.01 * 100) if method == "flow" else (1 - 0.1 * 0.01) ** 50
    assert left == pytest.approx(expected, rel=1e-5)
    assert distance(after, left * before, after) < 1e-5


# Losses, methods, nets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "k"), LOSSES)
@pytest.mark.parametrize("settings", [{"flow_time": 100.0}, {"weight_decay": 3e-3}], ids=["flow", "decay"])
def test_every_loss_fits_its_samples(loss, k, settings):
    record = trained(drawn(12, k), "40-20", k, loss=loss, init=0.01, **settings).record
    assert record["train_accuracy"] == 1.0
    assert record["status"] in ("flow time", "converged")
    assert record["loss"] < 0.1
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize(("loss", "k"), LOSSES)
def test_the_mean_loss_is_its_formula(loss, k):
    phi = torch.randn(9, k, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(9) % max(k, 2)
    wanted = [[1.0 if (y_i == j if k > 1 else y_i) else -1.0 for j in range(k)] for y_i in y.tolist()]
    rows = list(zip(phi.tolist(), wanted, y.tolist(), strict=True))
    off = [abs(p - w) for row, goal, _ in rows for p, w in zip(row, goal, strict=True)]
    each = {
        "logistic": lambda: [math.log1p(math.exp(-w * p)) for [p], [w], _ in rows],
        "ce": lambda: [math.log(sum(map(math.exp, row))) - row[label] for row, _, label in rows],
        "l2": lambda: [r**2 for r in off],
        "l2.5": lambda: [r**2.5 for r in off],
        "huber": lambda: [r**2 / 2 if r < 1 else r - 0.5 for r in off],
    }[loss]()
    assert data_loss(phi, y, loss).item() == pytest.approx(math.fsum(each) / len(each), rel=1e-12)


@pytest.mark.parametrize("settings", [{"flow_time": 30.0}, {"method": "sgd", "epochs": 40, "batch": 5}])
def test_a_convolutional_net_fits_its_samples(settings):
    found = trained(drawn(12), "conv(3,8)-20", init=None, **settings)
    assert found.record["train_accuracy"] == 1.0
    assert found.weights["layer1.weight"].shape == (8, 1, 3, 3)
    assert len(found.record["kkt_residuals"]) == 3


def test_batches_are_steps(faces):
    record = trained(faces, method="sgd", init=None, lr=0.02, epochs=30, batch=6, momentum=0.5).record
    assert (record["status"], record["steps"]) == ("all epochs", 30 * 4)
    assert record["flow_time"] == pytest.approx(30 * 4 * 0.02 / (1 - 0.5))
    assert len(record["curve"]) == 30
    assert record["curve"][-1][2] < 0.5 * record["curve"][0][2]


@pytest.mark.parametrize(("loss", "decay"), [("logistic", 0.01), ("l2", 0.03)])
def test_with_weight_decay_flow_settles_in_a_stationary_point(loss, decay):
    settings = {"loss": loss, "weight_decay": decay, "init": 0.05}
    record, early = (trained(drawn(8), "20", max_steps=steps, **settings).record for steps in (20_000, 5))
    assert (record["status"], early["status"]) == ("converged", "step limit")
    assert max(record["kkt_residuals"]) < 0.1
    assert max(early["kkt_residuals"]) > 0.5


def accelerated(found: Fit, pairs: Pairs, settings: FitSettings) -> tuple[dict[str, Tensor], int]:
    """Nesterov's steps with restarts as they are written down, all through autograd; and the restarts."""
    (x, y), _ = pairs
    net = build(found.architecture)
    net.load_state_dict(found.initial)
    weights = list(net.parameters())
    old, lr, age, last, restarts = [w.detach().clone() for w in weights], FIRST_LR, 0, math.inf, 0
    for _ in range(settings.max_steps):
        here = [w.detach().clone() for w in weights]
        with torch.no_grad():
            for w, h, o in zip(weights, here, old, strict=True):
                w += age / (age + NESTEROV) * (h - o)
        squares = sum(w.square().sum() for w in weights)
        loss = data_loss(net(x), y, settings.loss) + settings.weight_decay / 2 * squares
        with torch.no_grad():
            if not loss.item() < last and age:
                for w, o in zip(weights, old, strict=True):
                    w.copy_(o)
                lr, age, last, restarts = LR_AFTER_RISE * lr, 0, math.inf, restarts + 1
                continue
        slopes = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for w, slope in zip(weights, slopes, strict=True):
                w -= lr * slope
        old, age, lr, last = here, age + 1, LR_GROWTH * lr, loss.item()
    return net.state_dict(), restarts


def test_settling_without_copies_is_settling_as_written_down():
    (x, y), (unseen, labels) = drawn(12)
    pairs = (x[:, :, ::8, ::8], y), (unseen[:, :, ::8, ::8], labels)  # 16 inputs …
    pairs = (torch.cat([pairs[0][0], 0.9 * pairs[0][0]]), torch.cat([y, y])), pairs[1]  # … and 24 samples: no span
    settings = {"init": None, "weight_decay": 0.01, "max_steps": 60}
    found = trained(pairs, "20-10", **settings)
    expected, restarts = accelerated(found, pairs, FitSettings(**settings))
    assert restarts > 0
    for name, value in expected.items():
        assert distance(found.weights[name], value, value) < 1e-4, name
        assert distance(found.initial[name], value, value) > 1e-2, name  # it has moved


@pytest.mark.parametrize("arch", ["conv(3,4)-20-10", "conv(25,4)-40"])  # more and fewer maps than samples
def test_behind_a_convolution_turns_end_where_nothing_moves(arch):
    decay = 1e-3
    (x, y), unseen = drawn(12)
    found = trained(((x, y), unseen), arch, init=None, weight_decay=decay)
    assert found.record["status"] == "converged"
    assert found.record["train_accuracy"] == 1
    norms = found.record["layer_norms"]  # a layer can be scaled against the next one: at the end they balance
    assert max(norms) < 1.03 * min(norms)
    net = build(found.architecture)
    net.load_state_dict(found.weights)
    slopes = torch.autograd.grad(data_loss(net(x), y, "logistic"), list(net.parameters()))
    for weight, slope in zip(net.parameters(), slopes, strict=True):  # ∇L = −λθ, but for samples on kinks
        assert distance(slope, -decay * weight, decay * weight) < 0.4
    net.load_state_dict(found.initial)
    before = torch.autograd.grad(data_loss(net(x), y, "logistic"), list(net.parameters()))
    assert all(distance(s, -decay * w, decay * w) > 1 for w, s in zip(net.parameters(), before, strict=True))


def test_to_follow_the_maps_changes_no_output():
    torch.manual_seed(0)
    (x, y), _ = drawn(12)
    net = initialise(parse_architecture("conv(3,4)-20", tuple(x.shape[1:]), 1), None, 0)
    trainee, settings = InMaps(net, x), FitSettings()
    expected = data_loss(net(x), y, "logistic").item()
    assert trainee.loss(y, settings).item() == pytest.approx(expected, rel=1e-5)
    assert trainee.loss_of_dense(y, settings).item() == pytest.approx(expected, rel=1e-5)
    with torch.no_grad():
        for kernel in trainee.kernels:
            kernel += torch.randn_like(kernel)
    moved, before = trainee.loss(y, settings).item(), trainee.dense[0].norm().item()
    assert abs(moved - expected) > 1e-3
    trainee.follow()
    assert trainee.loss_of_dense(y, settings).item() == pytest.approx(moved, rel=1e-5)
    assert trainee.loss(y, settings).item() == pytest.approx(moved, rel=1e-5)
    assert trainee.dense[0].norm().item() < before
    net.load_state_dict(trainee.whole())
    assert data_loss(net(x), y, "logistic").item() == pytest.approx(moved, rel=1e-5)


def test_turns_that_leave_the_numbers_end_with_what_there_was():
    (x, y), unseen = drawn(12)
    found = trained(((1e7 * x, y), unseen), "conv(3,4)-20", init=None, weight_decay=1e-3, loss="l2.5")
    assert found.record["status"] == "diverged"
    assert all(weight.isfinite().all() for weight in found.weights.values())


@pytest.mark.parametrize("biases", ["first", "hidden"])
def test_to_balance_changes_no_output_and_leaves_the_least_weights(biases):
    (x, y), _ = drawn(12)
    net = initialise(parse_architecture("conv(3,4)-20-10", tuple(x.shape[1:]), 1, biases), None, 0)
    trainee, settings = InMaps(net, x), FitSettings()
    with torch.no_grad():
        trainee.dense[0][3] = 0  # a neuron that nothing enters
    loss, size = trainee.loss(y, settings).item(), squares(trainee.parameters()).item()
    for _ in range(20):  # a layer has two neighbours
        trainee.balance()
    assert trainee.loss(y, settings).item() == pytest.approx(loss, rel=1e-5)
    assert squares(trainee.parameters()).item() < 0.9 * size
    conv, *dense = layers_of(trainee.net)
    for one, two in pairwise(dense):
        into = sum(p.detach().reshape(len(p), -1).square().sum(1) for p in one.parameters())
        assert torch.allclose(into[into > 0], two.weight.detach().square().sum(0)[into > 0], rtol=1e-2)
    into = squares(conv.parameters()).item()
    assert into == pytest.approx(squares([dense[0].weight]).item(), rel=1e-2)


def test_stronger_decay_leaves_smaller_weights(faces):
    norms = [sum(trained(faces, "30", weight_decay=decay).record["layer_norms"]) for decay in (1e-3, 1e-2)]
    assert norms[1] < 0.9 * norms[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"flow_time": 10.0},
        {"weight_decay": 0.01, "max_steps": 100},
        {"method": "sgd", "batch": 6, "epochs": 20, "init": None},
    ],
)
def test_a_fit_depends_on_its_seed_alone(faces, settings):
    first, other = (trained(faces, seed=seed, **settings) for seed in (0, 1))
    torch.manual_seed(123)
    again = trained(faces, seed=0, **settings)
    assert all(torch.equal(first.weights[name], again.weights[name]) for name in first.weights)
    for one in (first, again, other):
        del one.record["seconds"]
    assert first.record == again.record
    assert first.record["loss"] != other.record["loss"]


@pytest.mark.parametrize(
    "settings",
    [
        {"flow_time": 100.0},
        {"target_loss": 0.01},
        {"weight_decay": 0.01},
        {"method": "gd", "epochs": 20},
        {"method": "sgd", "epochs": 5},
    ],
)
def test_progress_is_told_as_a_fraction(faces, settings):
    told: list[tuple[float, str]] = []
    architecture = parse_architecture("20-10", (1, 25, 25), 1)
    fit(architecture, *faces, FitSettings(**settings), lambda fraction, words: told.append((fraction, words)))
    assert len(told) > 4
    assert all(0 <= fraction <= 1 for fraction, _ in told)
    assert len({fraction for fraction, _ in told}) > 4
    assert all("loss" in words for _, words in told)


# What goes wrong -------------------------------------------------------------------------------------------


def usable(found: Fit) -> bool:
    json.dumps(found.record, allow_nan=False)
    return all(value.isfinite().all() for value in found.weights.values())


@pytest.mark.parametrize("lr", [1e2, 1e4, 1e6, 1e12, 1e20, 1e38])
@pytest.mark.parametrize("loss", ["logistic", "l2.5"])
@pytest.mark.parametrize("method", ["gd", "sgd"])
def test_steps_of_any_size_give_finite_weights_and_a_valid_record(faces, lr, loss, method):
    assert usable(trained(faces, method=method, loss=loss, lr=lr, epochs=30, init=None))


@pytest.mark.parametrize("epochs", [1, 2, 50])
@pytest.mark.parametrize("lr", [1e12, 1e38])
def test_divergence_is_told(faces, lr, epochs):
    found = trained(faces, method="gd", loss="l2", lr=lr, epochs=epochs, init=None)
    assert usable(found)
    assert found.record["status"] == "diverged"


@pytest.mark.parametrize("loss", ["logistic", "l2", "l2.5"])
@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("settings", [{"max_steps": 120}, {"weight_decay": 1e-3, "max_steps": 120}])
@pytest.mark.parametrize("init", [1e-4, None, 100.0])
def test_inputs_and_starts_of_any_size_give_finite_weights_and_a_valid_record(faces, loss, scale, settings, init):
    pairs = tuple((scale * x, y) for x, y in faces)
    assert usable(trained(pairs, loss=loss, init=init, **settings))


@pytest.mark.parametrize("decay", [1.0, 100.0])
@pytest.mark.parametrize("method", ["flow", "gd"])
@pytest.mark.parametrize("loss", ["logistic", "l2"])
def test_a_net_that_decays_to_nothing_has_a_valid_record(faces, decay, method, loss):
    settings = {"lr": 0.5 / decay, "epochs": 500, "max_steps": 1000}
    assert usable(trained(faces, weight_decay=decay, method=method, loss=loss, **settings))


@pytest.mark.parametrize(
    ("name", "values", "rule"),
    [
        ("weight_decay", [-1e-9, math.inf, math.nan], "zero or more"),
        ("init", [0.0, -1.0, math.inf, math.nan], "positive (or `standard`)"),
        ("lr", [0.0, -0.1, math.inf, math.nan], "positive"),
        ("epochs", [0, -5], "at least 1"),
        ("batch", [0], "at least 1"),
        ("momentum", [-0.1, 1.0, math.nan], "in [0, 1)"),
        ("flow_time", [0.0, math.inf, math.nan], "positive"),
        ("target_loss", [0.0, -1.0, math.nan], "positive"),
        ("max_steps", [0], "at least 1"),
        ("seed", [-1], "zero or more"),
    ],
)
def test_settings_refuse_impossible_numbers(name, values, rule):
    for value in values:
        with pytest.raises(UsageError) as caught:
            FitSettings(**{name: value})
        assert str(caught.value) == f"{name} must be {rule}, not {value}"


def test_settings_list_everything_that_is_wrong():
    with pytest.raises(UsageError) as caught:
        FitSettings(lr=0.0, epochs=0, seed=-1, momentum=2.0)
    named = [problem.split()[0] for problem in str(caught.value).split("; ")]
    assert named == ["lr", "epochs", "momentum", "seed"]


@pytest.mark.parametrize(
    ("loss", "k", "match"),
    [
        ("logistic", 3, "logistic loss needs one output, this model has 3: use ce"),
        ("ce", 1, "ce needs an output for each class, this model has one: use logistic"),
    ],
)
def test_losses_that_do_not_suit_the_outputs_are_refused(loss, k, match):
    with pytest.raises(UsageError, match=match):
        trained(drawn(12, k), "5", k, loss=loss)
