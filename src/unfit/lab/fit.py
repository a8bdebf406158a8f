"""Train a target as the papers do, in hundreds of steps instead of a million.

Gradient steps move the rows of a dense first layer only inside the span of the inputs, and gradient
descent commutes with rotations. So for n < d the first layer is trained in an orthonormal basis of that
span (n numbers a neuron instead of d), exactly; what lies outside never sees the data and only decays.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from unfit.base import nets
from unfit.base.errors import UsageError
from unfit.base.nets import Architecture, device, initialise, margin, outputs
from unfit.base.progress import Report, quiet, reporting
from unfit.lab.checkpoints import Keeper, State
from unfit.lab.diagnostics import decay_residuals, kkt_residuals, layer_norms

# The flow
RELATIVE_STEP = 1.3e-3  # of ‖θ‖, a step of the flow; 26 times finer ends at the same loss, accuracy and spectrum
MAX_LOG_STEP = 0.5  # times ∇ log L: binds where gradients are small, as on the circle at first
MAX_RISE = 0.1  # of the loss in one step: where samples sit on kinks of the net, small rises are the way down
STEP_GROWTH = 1.1  # after each step that is kept, so a halved one is whole again after eight
SHORTEST_STEP = 1e-12  # times ∇ log L: float32 weights no longer move
LEAST_LOSS = 1e-37  # the smallest loss with a logarithm in float32
# Settling, with weight decay
FIRST_LR = 0.1  # where the search for a good one begins
LR_GROWTH, LR_AFTER_RISE, LR_AFTER_OVERFLOW = 1.01, 0.9, 0.5  # times the learning rate after each step
PIECE = 1 << 20  # values whose squares stay in the cache
NESTEROV = 3  # momentum k / (k + 3) after k steps without a restart
SETTLED_STEPS, SETTLED_GAIN = 100, 1e-4  # training ends when that many steps gain less than this share of the loss
# Descent
KEEP_EVERY = 100  # epochs between the copies that a diverging run falls back to
MAX_CURVE = 500  # points of the curve that are recorded, about
TIME_LIMIT = "time limit"  # the status of a training that can go on

Method = Literal["flow", "gd", "sgd"]
Loss = Literal["logistic", "ce", "l2", "l2.5", "huber"]


@dataclass(frozen=True)
class FitSettings:
    """How a target is trained. The defaults are H22's: 10⁶ epochs at lr 0.01 are a flow time of 10⁴.

    Args:
        method: `flow` (gradient flow, in hundreds of steps), `gd` or `sgd`.
        loss: `logistic` for one output, `ce` for several, or a regression to ±1: `l2`, `l2.5`, `huber`.
        weight_decay: λ of the penalty λ/2 · ‖θ‖².
        init: Standard deviation of the first layer's start; None: PyTorch's own.
        lr, epochs: Of `gd` and `sgd`.
        batch, momentum: Of `sgd`.
        flow_time: Where `flow` without weight decay stops: learning rate × epochs of the training it stands for.
        target_loss: Stop at this training loss instead.
        max_steps: At most so many steps of `flow`.
        seed: Everything random follows from it.

    Example:
        >>> settings = unfit.FitSettings(method="sgd", lr=0.1, epochs=200)
    """

    method: Method = "flow"
    loss: Loss = "logistic"
    weight_decay: float = 0.0
    init: float | None = 1e-4  # standard deviation of the first layer's start; None: the standard one
    lr: float = 0.01  # gd, sgd
    epochs: int = 10_000  # gd, sgd
    batch: int = 50  # sgd
    momentum: float = 0.9  # sgd
    flow_time: float = 1e4  # flow without weight decay stops here …
    target_loss: float | None = None  # … or here, if given
    max_steps: int = 20_000  # flow
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be {rule}, not {getattr(self, name)}"
            for name, rule, right in (
                ("weight_decay", "zero or more", 0 <= self.weight_decay < math.inf),
                ("init", "positive (or `standard`)", self.init is None or 0 < self.init < math.inf),
                ("lr", "positive", 0 < self.lr < math.inf),
                ("epochs", "at least 1", self.epochs >= 1),
                ("batch", "at least 1", self.batch >= 1),
                ("momentum", "in [0, 1)", 0 <= self.momentum < 1),
                ("flow_time", "positive", 0 < self.flow_time < math.inf),
                ("target_loss", "positive", self.target_loss is None or 0 < self.target_loss < math.inf),
                ("max_steps", "at least 1", self.max_steps >= 1),
                ("seed", "zero or more", self.seed >= 0),
            )
            if not right
        ]
        if problems:
            raise UsageError("; ".join(problems))


@dataclass
class Trace:
    """What happened on the way: (step, flow time, loss) and why it ended."""

    steps: int = 0
    flow_time: float = 0.0
    loss: float = math.inf
    status: str = "step limit"
    curve: list[tuple[int, float, float]] = field(default_factory=list)

    def add(self, loss: float, flow_step: float, steps: int = 1) -> None:
        self.steps += steps
        self.flow_time += flow_step
        self.loss = loss
        self.curve.append((self.steps, self.flow_time, loss))

    def end(self, status: str) -> Trace:
        self.status = status
        return self

    def state(self, numbers: dict[str, Any], **tensors: dict[str, Tensor]) -> State:
        """Where training stands: this trace, and all that the next step depends on."""
        named = {f"{part}.{name}": value for part, group in tensors.items() for name, value in group.items()}
        named["trace.curve"] = torch.tensor(self.curve, dtype=torch.float64).reshape(-1, 3)
        about = {"steps": self.steps, "flow_time": self.flow_time, "loss": self.loss}
        return State(self.steps, named, {"trace": about} | numbers)

    def go_on(self, kept: State) -> None:
        """From where that training stood."""
        about, curve = kept.numbers["trace"], kept.part("trace")["curve"].tolist()
        self.steps, self.flow_time, self.loss = about["steps"], about["flow_time"], about["loss"]
        self.curve = [(int(step), flow_time, loss) for step, flow_time, loss in curve]


@dataclass(frozen=True)
class Fit:
    """A trained net, the weights it started from, and the record that `fit.json` holds."""

    architecture: Architecture
    weights: dict[str, Tensor]
    start: dict[str, Tensor]
    record: dict[str, Any]
    resumed_at: int = 0  # steps of earlier calls


def fit(
    architecture: Architecture,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    settings: FitSettings | None = None,
    progress: Report | bool = quiet,
    keeper: Keeper | None = None,
) -> Fit:
    """Train a fresh net as the papers do.

    The record's `status` says so if training diverges; the weights are then those from before.

    Args:
        architecture: What `parse_architecture` gives.
        train: (x, y), as tensors, x already centred.
        test: (x, y), which the net is judged by.
        settings: How to train.
        progress: True shows a bar; a function is called with the fraction done and what is being done.
        keeper: Lets training be stopped and go on: the weights are the same as if it had not been.

    Example:
        >>> net = unfit.parse_architecture("50", (1, 25, 25), num_outputs=1)
        >>> fitted = unfit.fit(net, (x, y), (x_test, y_test), unfit.FitSettings(flow_time=1.0))
        >>> model = unfit.Target(net, fitted.weights)
    """
    settings, keeper = settings or FitSettings(), keeper or Keeper()
    _check_outputs(architecture, settings.loss)
    where = device()
    x, y = (t.to(where) for t in train)
    net = initialise(architecture, settings.init, settings.seed).to(where)
    start = _copy(net.state_dict())
    with keeper.training(_about(architecture, train, settings) if keeper.folder else {}):
        trainee = InSpan(net, x)
        if math.isfinite(trainee.objective(y, settings).item()):
            with reporting(progress, "training") as report:
                trace = _TRAIN[_schedule(settings)](trainee, y, settings, keeper, report)
        else:
            trace = Trace().end("diverged")  # before it began: inputs or start are too large
    net.load_state_dict(trainee.whole())
    record = _record(net, (x, y), (test[0].to(where), test[1].to(where)), trace, settings)
    record["seconds"] = round(keeper.seconds, 3)
    return Fit(architecture, _copy(net.state_dict()), start, record, keeper.kept.steps if keeper.kept else 0)


def _about(architecture: Architecture, train: tuple[Tensor, Tensor], settings: FitSettings) -> dict[str, Any]:
    """All that the trained weights depend on: a checkpoint that differs in any of it is of another training."""
    net = f"{architecture}, biases {''.join('01'[bias] for bias in architecture.biases)}"
    data = b"".join(part.cpu().numpy().tobytes() for part in train)
    code = b"".join(Path(str(module)).read_bytes() for module in (__file__, nets.__file__))
    hashes = {name: hashlib.sha256(part).hexdigest()[:12] for name, part in (("data", data), ("code", code))}
    return asdict(settings) | hashes | {"net": net, "torch": torch.__version__}


def data_loss(phi: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """The mean loss. The regression losses aim at −1 and +1, with one output a class if there are several."""
    if loss == "logistic":
        return F.softplus(-margin(phi, y)).mean()
    if loss == "ce":
        return F.cross_entropy(phi, y)
    hot = y[:, None] if phi.shape[1] == 1 else F.one_hot(y, phi.shape[1])
    residual = phi - (2 * hot - 1)
    if loss == "huber":
        return F.huber_loss(residual, torch.zeros_like(residual))
    return residual.abs().pow(2.0 if loss == "l2" else 2.5).mean()


class InSpan(nn.Module):
    """A net whose dense first layer lives in the span of x; `rest` is the norm of what lies outside it."""

    def __init__(self, net: nn.Sequential, x: Tensor) -> None:
        super().__init__()
        self.net, self.x = copy.deepcopy(net), x
        self.rest = nn.Parameter(x.new_zeros(()))
        first = self.net.get_submodule("layer1")
        self.inside = isinstance(first, nn.Linear) and len(x) < first.in_features
        if isinstance(first, nn.Linear) and self.inside:
            flat, weight = x.flatten(1), first.weight.detach()
            self.basis = torch.linalg.qr(flat.T.double())[0].to(x.dtype)  # (d, n)
            outside = weight - weight @ self.basis @ self.basis.T
            self.rest.data = outside.norm()
            self.direction = outside / outside.norm().clamp_min(1e-30)
            self.x = flat @ self.basis
            first.weight = nn.Parameter(weight @ self.basis)

    def loss(self, y: Tensor, settings: FitSettings, rows: Tensor | None = None) -> Tensor:
        """The mean, over all samples or some rows."""
        phi = self.net(self.x if rows is None else self.x[rows])
        return data_loss(phi, y if rows is None else y[rows], settings.loss)

    def objective(self, y: Tensor, settings: FitSettings, rows: Tensor | None = None) -> Tensor:
        """Mean loss + (weight_decay / 2) ‖θ‖², over all samples or some rows."""
        loss = self.loss(y, settings, rows)
        if settings.weight_decay:
            loss = loss + settings.weight_decay / 2 * _squares(self.parameters())
        return loss

    def whole(self) -> dict[str, Tensor]:
        """The weights in the space of the inputs again."""
        state = self.net.state_dict()
        if self.inside:
            state["layer1.weight"] = state["layer1.weight"] @ self.basis.T + self.rest * self.direction
        return _copy(state)


def _flow(trainee: InSpan, y: Tensor, settings: FitSettings, keeper: Keeper, progress: Report) -> Trace:
    """Gradient flow in log-loss time: the path of tiny-step GD, because ∇ log L points as ∇L does.

    A step η on log L is η / L of flow time, which for GD is lr × epochs. Its length is bounded relative to
    ‖θ‖; one that makes the loss rise by a tenth is taken back and halved, so this cannot diverge.
    """
    parameters = list(trainee.parameters())
    trace, relative, first = Trace(), RELATIVE_STEP, trainee.objective(y, settings).item()
    if kept := keeper.kept:
        trace.go_on(kept)
        trainee.load_state_dict(kept.part("net"))
        relative = kept.numbers["relative"]
    loss = trainee.objective(y, settings)

    def state() -> State:
        return trace.state({"relative": relative}, net=trainee.state_dict())

    while trace.steps < settings.max_steps:
        value = loss.item()
        if done := "loss underflow" if value < LEAST_LOSS else _flow_done(value, trace.flow_time, settings):
            return trace.end(done)
        gradient = torch.autograd.grad(loss.log(), parameters, allow_unused=True, materialize_grads=True)
        size, slope = (_squares(t).sqrt().item() for t in (parameters, gradient))
        step = min(relative * size / max(slope, 1e-30), MAX_LOG_STEP)
        _move(parameters, gradient, -step)
        loss = trainee.objective(y, settings)
        while not loss.item() <= value * (1 + MAX_RISE):
            _move(parameters, gradient, step / 2)
            step, relative = step / 2, relative / 2
            if step < SHORTEST_STEP:
                return trace.end("converged")
            loss = trainee.objective(y, settings)
        relative = min(STEP_GROWTH * relative, RELATIVE_STEP)
        trace.add(loss.item(), step / value)
        progress(_flow_fraction(trace, first, settings), f"loss {loss.item():.1e}")
        if keeper.over(state):
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


def _settle(trainee: InSpan, y: Tensor, settings: FitSettings, keeper: Keeper, progress: Report) -> Trace:
    """With weight decay the end is a stationary point, however it is reached: accelerated descent with restarts.

    Gradient descent would need 1 / (lr · weight_decay) steps, many thousands, to forget the start; Nesterov's
    momentum needs their square root. Whenever the loss rises, it goes back, restarts and shortens the step.
    What lies outside the span meets nothing but the decay, so its end is known: e^(−weight_decay · flow_time).

    The decay's own gradient, λθ, is taken by hand, and nothing as large as the weights is made anew at each step
    but the gradient of the loss: behind a convolution that saves a quarter of the time.
    """
    trainee.rest.data *= math.exp(-settings.weight_decay * settings.flow_time)
    trainee.rest.requires_grad_(False)
    parameters: list[Tensor] = [p for p in trainee.parameters() if p.requires_grad]
    trace, lr, age, last = Trace(), FIRST_LR, 0, math.inf
    if kept := keeper.kept:
        trace.go_on(kept)
        trainee.load_state_dict(kept.part("net"))
        lr, age, last = (kept.numbers[name] for name in ("lr", "age", "last"))
    old, here = ([p.detach().clone() for p in parameters] for _ in range(2))
    if kept:
        torch._foreach_copy_(old, [kept.part("old")[str(i)] for i in range(len(old))])

    def state() -> State:
        before = {str(i): value for i, value in enumerate(old)}
        return trace.state({"lr": lr, "age": age, "last": last}, net=trainee.state_dict(), old=before)

    while trace.steps < settings.max_steps:
        torch._foreach_copy_(here, parameters)
        with torch.no_grad():
            torch._foreach_lerp_(parameters, old, -age / (age + NESTEROV))  # away from where they were
        loss = trainee.loss(y, settings)
        value = loss.item() + settings.weight_decay / 2 * _size(trainee.parameters())
        if not value < last and age:
            torch._foreach_copy_([p.data for p in parameters], old)
            lr *= LR_AFTER_RISE if math.isfinite(value) else LR_AFTER_OVERFLOW
            age, last = 0, math.inf
            trace.steps += 1
            continue
        gradient = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            torch._foreach_mul_(parameters, 1 - lr * settings.weight_decay)
        _move(parameters, gradient, -lr)
        trace.add(value, lr)
        old, here, age, lr, last = here, old, age + 1, LR_GROWTH * lr, value
        if _settled(trace):
            return trace.end("converged")
        progress(trace.steps / settings.max_steps, f"loss {last:.4f}")
        if keeper.over(state):
            return trace.end(TIME_LIMIT)
    return trace


def _settled(trace: Trace) -> bool:
    """Whether the last steps have won next to nothing."""
    if len(trace.curve) <= SETTLED_STEPS:
        return False
    return trace.curve[-SETTLED_STEPS][2] - trace.loss < SETTLED_GAIN * trace.loss


def _descend(trainee: InSpan, y: Tensor, settings: FitSettings, keeper: Keeper, progress: Report) -> Trace:
    """Plain gradient descent (`gd`), or mini-batches with momentum (`sgd`)."""
    stochastic = settings.method == "sgd"
    momentum = settings.momentum if stochastic else 0.0
    optimiser = torch.optim.SGD(trainee.parameters(), lr=settings.lr, momentum=momentum)
    order = torch.Generator().manual_seed(settings.seed)
    trace, good, done = Trace(), _copy(trainee.state_dict()), 0
    if kept := keeper.kept:
        trace.go_on(kept)
        trainee.load_state_dict(kept.part("net"))
        good, done = kept.part("good"), kept.numbers["epochs"]
        order.set_state(kept.part("order")["state"])
        for name, parameter in trainee.named_parameters():
            if (buffer := kept.part("momentum").get(name)) is not None:
                optimiser.state[parameter]["momentum_buffer"] = buffer.to(parameter.device)

    def state() -> State:
        buffers = {name: optimiser.state[p].get("momentum_buffer") for name, p in trainee.named_parameters()}
        momenta = {name: buffer for name, buffer in buffers.items() if buffer is not None}
        random = {"state": order.get_state()}
        return trace.state({"epochs": done}, net=trainee.state_dict(), good=good, momentum=momenta, order=random)

    for epoch in range(done, settings.epochs):
        before = _copy(trainee.state_dict()) if epoch % KEEP_EVERY == 0 else good
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
        if keeper.over(state):
            return trace.end(TIME_LIMIT)
    if not math.isfinite(trainee.objective(y, settings).item()):
        trainee.load_state_dict(good)
        return trace.end("diverged")
    return trace.end("all epochs")


_TRAIN = {"flow": _flow, "settle": _settle, "gd": _descend, "sgd": _descend}


def _schedule(settings: FitSettings) -> str:
    return "settle" if settings.method == "flow" and settings.weight_decay else settings.method


def _check_outputs(architecture: Architecture, loss: Loss) -> None:
    if loss == "logistic" and architecture.num_outputs != 1:
        raise UsageError(f"logistic loss needs one output, this net has {architecture.num_outputs}: use ce")
    if loss == "ce" and architecture.num_outputs == 1:
        raise UsageError("ce needs an output for each class, this net has one: use logistic")


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


def _copy(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def _squares(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack([t.square().sum() for t in tensors]).sum()


def _size(tensors: Iterable[Tensor]) -> float:
    """‖θ‖², piece by piece: the squares of a large tensor at once would be another such tensor."""
    pieces = (piece for t in tensors for piece in t.detach().flatten().split(PIECE))
    return math.fsum(float(piece.square().sum()) for piece in pieces)


def _move(parameters: Sequence[Tensor], direction: Sequence[Tensor], step: float) -> None:
    with torch.no_grad():
        torch._foreach_add_(list(parameters), list(direction), alpha=step)
