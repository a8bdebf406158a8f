"""Train a target as the papers do, in hundreds of steps instead of a million."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unfit.base import nets
from unfit.base.device import device, on_device
from unfit.base.errors import UsageError
from unfit.base.nets import Architecture, initialise, margin, outputs
from unfit.base.progress import Report, quiet, reporting
from unfit.base.store import Saved
from unfit.lab.checkpoint import TrainingCheckpoint
from unfit.lab.diagnostics import decay_residuals, kkt_residuals, layer_norms
from unfit.lab.settings import FitSettings, Loss
from unfit.lab.settle import settle, settle_in_turns
from unfit.lab.trainee import InMaps, InSpan, copy_of, data_loss, move, squares
from unfit.lab.training import TIME_LIMIT, Trace

# The flow
RELATIVE_STEP = 1.3e-3  # of ‖θ‖, a step of the flow; 26 times finer ends at the same loss, accuracy and spectrum
MAX_LOG_STEP = 0.5  # times ∇ log L: binds where gradients are small, as on the circle at first
MAX_RISE = 0.1  # of the loss in one step: where samples sit on kinks of the model, small rises are the way down
STEP_GROWTH = 1.1  # after each step that is kept, so a halved one is whole again after eight
SHORTEST_STEP = 1e-12  # times ∇ log L: float32 weights no longer move
LEAST_LOSS = 1e-37  # the smallest loss with a logarithm in float32
# Descent
KEEP_EVERY = 100  # epochs between the copies that a diverging run falls back to
MAX_CURVE = 500  # points of the curve that are recorded, about
CODE = ("fit", "settle", "trainee", "training")  # the modules beside this one that make the weights


@dataclass(frozen=True)
class Fit:
    """A trained model, its initial weights, and the record that `fit.json` holds."""

    architecture: Architecture
    weights: dict[str, Tensor]
    initial: dict[str, Tensor]
    record: dict[str, Any]
    resumed_at: int = 0  # steps of earlier calls


def fit(
    architecture: Architecture,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    settings: FitSettings | None = None,
    progress: Report | bool = quiet,
    checkpoint: TrainingCheckpoint | None = None,
    device: str | None = None,
) -> Fit:
    """Train a fresh model as the papers do.

    The record's `status` says so if training diverges; the weights are then those from before.

    Args:
        architecture: What `parse_architecture` gives.
        train: (x, y), as tensors, x already centred.
        test: (x, y), which the model is judged by.
        settings: How to train.
        progress: True shows a bar; a function is called with the fraction done and what is being done.
        checkpoint: Lets training be stopped and go on: the weights are the same as if it had not been.
        device: Where the model is trained: `cpu`, `cuda` or `cuda:1`; by default on CUDA if there is a GPU.

    Example:
        >>> net = unfit.parse_architecture("50", (1, 25, 25), num_outputs=1)
        >>> fitted = unfit.fit(net, (x, y), (x_test, y_test), unfit.FitSettings(flow_time=1.0))
        >>> model = unfit.Target(net, fitted.weights)
    """
    with on_device(device):
        return _fitted(
            architecture, train, test, settings or FitSettings(), progress, checkpoint or TrainingCheckpoint()
        )


def _fitted(
    architecture: Architecture,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    settings: FitSettings,
    progress: Report | bool,
    checkpoint: TrainingCheckpoint,
) -> Fit:
    _check_outputs(architecture, settings.loss)
    where = device()
    x, y = (t.to(where) for t in train)
    net = initialise(architecture, settings.init, settings.seed).to(where)
    initial = copy_of(net.state_dict())
    with checkpoint.training(_about(architecture, train, settings) if checkpoint.folder else {}):
        if _is_finite(net, (x, y), settings):
            with reporting(progress, "training") as report:
                weights, trace = _trained(net, (x, y), settings, checkpoint, report)
            net.load_state_dict(weights)
        else:
            trace = Trace().end("diverged")  # before it began: inputs or initial weights are too large
    record = _record(net, (x, y), (test[0].to(where), test[1].to(where)), trace, settings)
    record["seconds"] = round(checkpoint.seconds, 3)
    return Fit(architecture, copy_of(net.state_dict()), initial, record, checkpoint.num_steps)


def _about(architecture: Architecture, train: tuple[Tensor, Tensor], settings: FitSettings) -> dict[str, Any]:
    """All that the trained weights depend on: a checkpoint that differs in any of it is of another training."""
    net = f"{architecture}, biases {''.join('01'[bias] for bias in architecture.biases)}"
    data = b"".join(part.cpu().numpy().tobytes() for part in train)
    files = [Path(nets.__file__), *(Path(__file__).with_name(f"{module}.py") for module in CODE)]
    code = b"".join(file.read_bytes() for file in files)
    hashes = {name: hashlib.sha256(part).hexdigest()[:12] for name, part in (("data", data), ("code", code))}
    return asdict(settings) | hashes | {"net": net, "torch": torch.__version__}


def _is_finite(net: nn.Sequential, train: tuple[Tensor, Tensor], settings: FitSettings) -> bool:
    """Whether there is anything to descend from."""
    loss = data_loss(outputs(net, train[0]), train[1], settings.loss)
    penalty = squares(net.parameters()).item() if settings.weight_decay else 0.0
    return math.isfinite(loss.item() + penalty)


def _trained(
    net: nn.Sequential,
    train: tuple[Tensor, Tensor],
    settings: FitSettings,
    checkpoint: TrainingCheckpoint,
    report: Report,
) -> tuple[dict[str, Tensor], Trace]:
    x, y = train
    decays = settings.method == "flow" and settings.weight_decay > 0
    if decays and InMaps.fits(net):
        behind = InMaps(net, x)
        trace = settle_in_turns(behind, y, settings, checkpoint, report)
        return behind.whole(), trace
    trainee = InSpan(net, x)
    steps = settle if decays else _flow if settings.method == "flow" else _descend
    trace = steps(trainee, y, settings, checkpoint, report)
    return trainee.whole(), trace


def _flow(
    trainee: InSpan, y: Tensor, settings: FitSettings, checkpoint: TrainingCheckpoint, progress: Report
) -> Trace:
    """Gradient flow in log-loss time: the path of tiny-step GD, because ∇ log L points as ∇L does.

    A step η on log L is η / L of flow time, which for GD is lr × epochs. Its length is bounded relative to
    ‖θ‖; one that makes the loss rise by a tenth is taken back and halved, so this cannot diverge.
    """
    parameters = list(trainee.parameters())
    trace, relative, first = Trace(), RELATIVE_STEP, trainee.objective(y, settings).item()
    if kept := checkpoint.kept:
        trace.go_on(kept)
        trainee.load_state_dict(kept.part("net"))
        relative = kept.facts["relative"]
    loss = trainee.objective(y, settings)

    def state() -> Saved:
        return trace.state({"relative": relative}, net=trainee.state_dict())

    while trace.steps < settings.max_steps:
        value = loss.item()
        if done := "loss underflow" if value < LEAST_LOSS else _flow_done(value, trace.flow_time, settings):
            return trace.end(done)
        gradient = torch.autograd.grad(loss.log(), parameters, allow_unused=True, materialize_grads=True)
        size, slope = (squares(t).sqrt().item() for t in (parameters, gradient))
        step = min(relative * size / max(slope, 1e-30), MAX_LOG_STEP)
        move(parameters, gradient, -step)
        loss = trainee.objective(y, settings)
        while not loss.item() <= value * (1 + MAX_RISE):
            move(parameters, gradient, step / 2)
            step, relative = step / 2, relative / 2
            if step < SHORTEST_STEP:
                return trace.end("converged")
            loss = trainee.objective(y, settings)
        relative = min(STEP_GROWTH * relative, RELATIVE_STEP)
        trace.add(loss.item(), step / value)
        progress(_flow_fraction(trace, first, settings), f"loss {loss.item():.1e}")
        if checkpoint.over(state):
            return trace.end(TIME_LIMIT)
    return trace


def _flow_done(loss: float, flow_time: float, settings: FitSettings) -> str:
    if settings.target_loss is not None:
        return "target loss" if loss <= settings.target_loss else ""
    return "flow time" if flow_time >= settings.flow_time else ""


def _flow_fraction(trace: Trace, first: float, settings: FitSettings) -> float:
    if settings.target_loss is not None:
        done = math.log(first / max(trace.loss, LEAST_LOSS)) / max(math.log(first / settings.target_loss), 1e-9)
    else:
        done = math.log1p(trace.flow_time) / math.log1p(settings.flow_time)
    return min(max(done, 0.0), 1.0)


def _descend(
    trainee: InSpan, y: Tensor, settings: FitSettings, checkpoint: TrainingCheckpoint, progress: Report
) -> Trace:
    """Plain gradient descent (`gd`), or mini-batches with momentum (`sgd`)."""
    stochastic = settings.method == "sgd"
    momentum = settings.momentum if stochastic else 0.0
    optimiser = torch.optim.SGD(trainee.parameters(), lr=settings.lr, momentum=momentum)
    order = torch.Generator().manual_seed(settings.seed)
    trace, good, done = Trace(), copy_of(trainee.state_dict()), 0
    if kept := checkpoint.kept:
        trace.go_on(kept)
        trainee.load_state_dict(kept.part("net"))
        good, done = kept.part("good"), kept.facts["epochs"]
        order.set_state(kept.part("order")["state"])
        for name, parameter in trainee.named_parameters():
            if (buffer := kept.part("momentum").get(name)) is not None:
                optimiser.state[parameter]["momentum_buffer"] = buffer.to(parameter.device)

    def state() -> Saved:
        buffers = {name: optimiser.state[p].get("momentum_buffer") for name, p in trainee.named_parameters()}
        momenta = {name: buffer for name, buffer in buffers.items() if buffer is not None}
        random = {"state": order.get_state()}
        return trace.state({"epochs": done}, net=trainee.state_dict(), good=good, momentum=momenta, order=random)

    for epoch in range(done, settings.epochs):
        before = copy_of(trainee.state_dict()) if epoch % KEEP_EVERY == 0 else good
        shuffled = torch.randperm(len(y), generator=order).to(y.device)
        batches = shuffled.split(settings.batch) if stochastic else [None]
        losses = []
        for rows in batches:
            loss = trainee.objective(y, settings, rows)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        if not math.isfinite(sum(losses)):
            trainee.load_state_dict(good)
            return trace.end("diverged")
        good = before
        trace.add(sum(losses) / len(losses), settings.lr / (1 - momentum) * len(losses), len(losses))
        if settings.target_loss is not None and trace.loss <= settings.target_loss:
            return trace.end("target loss")
        done = epoch + 1
        progress(done / settings.epochs, f"loss {trace.loss:.1e}")
        if checkpoint.over(state):
            return trace.end(TIME_LIMIT)
    if not math.isfinite(trainee.objective(y, settings).item()):
        trainee.load_state_dict(good)
        return trace.end("diverged")
    return trace.end("all epochs")


def _check_outputs(architecture: Architecture, loss: Loss) -> None:
    if loss == "logistic" and architecture.num_outputs != 1:
        raise UsageError(f"logistic loss needs one output, this model has {architecture.num_outputs}: use ce")
    if loss == "ce" and architecture.num_outputs == 1:
        raise UsageError("ce needs an output for each class, this model has one: use logistic")


def _record(
    net: nn.Sequential,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    trace: Trace,
    settings: FitSettings,
) -> dict[str, Any]:
    (x, y), (x_test, y_test) = train, test
    phi, phi_test = outputs(net, x), outputs(net, x_test)
    margins = margin(phi, y)
    every = max(1, len(trace.curve) // MAX_CURVE)
    return {
        "status": trace.status,
        "steps": trace.steps,
        "loss": _finite(data_loss(phi, y, settings.loss)),
        "flow_time": trace.flow_time,
        "train_accuracy": (margins > 0).float().mean().item(),
        "test_accuracy": (margin(phi_test, y_test) > 0).float().mean().item(),
        "test_loss": _finite(data_loss(phi_test, y_test, settings.loss)),
        "margin": {
            "min": _finite(margins.min()),
            "median": _finite(margins.median()),
            "max": _finite(margins.max()),
        },
        "layer_norms": layer_norms(net),
        "kkt_residuals": _residuals(net, x, y, settings),
        "curve": trace.curve[::every],
    }


def _residuals(net: nn.Sequential, x: Tensor, y: Tensor, settings: FitSettings) -> list[float] | None:
    """Per layer. The regression losses have no margin: with weight decay B23's multipliers are the loss's own."""
    if settings.loss in ("logistic", "ce"):
        return kkt_residuals(net, x, y)
    if settings.weight_decay:
        return decay_residuals(net, data_loss(net(x), y, settings.loss), settings.weight_decay)
    return None


def _finite(value: Tensor) -> float | None:
    """A number that JSON can hold."""
    return value.item() if value.isfinite() else None
