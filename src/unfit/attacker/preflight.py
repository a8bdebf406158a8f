"""Before an attack: what applies to a target and what does not, why, and how long it would take.

The attacker's side: it looks at weights alone, and says what they cannot tell.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unfit.attacker.attacks.solvers import can_unmix
from unfit.attacker.attacks.unmix import UnmixSettings, run_ranks, tellable
from unfit.attacker.consensus import ROOMY
from unfit.attacker.costs import (
    inversion_seconds,
    kkt_seconds,
    operations_per_second,
    paper_seconds,
    peel_seconds,
    unmix_seconds,
)
from unfit.attacker.kinks import MAX_INPUTS
from unfit.attacker.mixtures import Mixtures, read_mixtures
from unfit.base.modules import HINTS, as_base, as_target
from unfit.base.target import NotPlainError, Target, Weights, load_base, load_target

PROVABLE = 0.25  # samples for each neuron of the first layer, up to which proofs were seen to work
STANDARD = 0.1  # relative difference of the noise from a standard start's
EQUAL = 0.05  # relative difference of layer norms that are equal for all purposes
TRAINED = 0.6  # correlation of a neuron's weights in and out that plain gradient steps leave
CROWDED = 1 / 3  # of all directions: more than a few hundred samples, or steps that are no sums of inputs
NAMES = ("auto", "peel", "unmix", "kkt", "kkt, papers' solver", "inversion", "weights")


@dataclass(frozen=True)
class Outlook:
    """Whether an attack applies, why, and for how long it would run on this machine (an estimate)."""

    attack: str
    applies: bool
    why: str
    seconds: float | None = None


@dataclass(frozen=True)
class Layer:
    """`balance`: correlation over its neurons of the squared norms of their weights in and out; None: the last."""

    shape: tuple[int, ...]
    norm: float
    balance: float | None


@dataclass(frozen=True)
class Preflight:
    """What can be said of a target before it is attacked."""

    architecture: str | None  # None: not a net that any attack covers
    num_parameters: int
    attacks: list[Outlook]
    notes: list[str]
    layers: list[Layer]
    spectrum: list[float]
    noise_edge: float | None
    rank: int | None
    estimated_num_samples: int | None

    @property
    def applies(self) -> bool:
        """Whether there is anything to attack; the baselines always run and say little."""
        return self.attacks[0].applies

    @property
    def exit_code(self) -> int:
        return 0 if self.applies else 3

    def record(self) -> dict[str, Any]:
        return {"applies": self.applies, **asdict(self)}


def preflight(model: Target | nn.Module, base: Target | nn.Module | None = None) -> Preflight:
    """Look at a target, or at its change since the base, and attack nothing."""
    target, began = as_target(model), time.perf_counter()
    mixtures, layers = read_mixtures(target, as_base(base, target)), _layers(target)
    notes = [_on_samples(mixtures), _on_start(mixtures), _on_balance(layers), _on_optimiser(mixtures)]
    reading = time.perf_counter() - began
    return Preflight(
        str(target.architecture),
        target.architecture.num_parameters,
        _outlooks(target, mixtures, reading),
        [note for note in notes if note],
        layers,
        mixtures.span.values.tolist(),
        mixtures.span.edge,
        mixtures.span.rank,
        mixtures.num_samples,
    )


def preflight_file(path: Path, base: Path | None = None) -> Preflight:
    """The same of a checkpoint, also of one that no attack covers; one that cannot be read is an error."""
    try:
        target = load_target(path)
    except NotPlainError as error:
        return not_covered(error.found)
    return preflight(target, load_base(base, target) if base else None)


def not_covered(found: Weights) -> Preflight:
    """What in these tensors no attack covers, each kind of layer once."""
    kinds = _strange_kinds(found)
    why = "not covered: " + (", ".join(kinds) or "dense layers that do not chain")
    notes = [f"{kind} ({_some(names)}): {REASONS[kind]}" for kind, names in kinds.items()]
    if "convolution" in kinds:
        notes.append("one plain convolution before dense layers is covered if a JSON file beside it describes it")
    if not kinds:
        notes = ["the dense layers do not chain: there are branches or skips, or their names have another order"]
    attacks = [Outlook(name, False, why) for name in NAMES]
    num = sum(value.numel() for value in found.values())
    return Preflight(None, num, attacks, notes, [], [], None, None, None)


REASONS = {
    "BatchNorm": HINTS["BatchNorm"],
    "attention": "its weights serve all positions at once, so they are no sums over samples",
    "recurrent layer": "its weights serve all steps at once, so they are no sums over samples",
    "convolution": "attacks reach through one at most, the first layer",
    "normalisation": "it rescales each sample, which the attacks do not model",
    "embedding": "its inputs are tokens, not values to reconstruct",
    "other tensor": "it belongs to no layer that is known here",
}


def _strange_kinds(found: Weights) -> dict[str, list[str]]:
    """The layers that are not dense, by kind."""
    layers: dict[str, Weights] = {}
    for key, value in found.items():
        name, _, part = key.rpartition(".")
        layers.setdefault(name, {})[part] = value
    kinds: dict[str, list[str]] = {}
    for name, parts in layers.items():
        for kind in dict.fromkeys(_kind(name.lower(), part.lower(), parts) for part in parts):
            if kind != "dense":
                kinds.setdefault(kind, []).append(name or next(iter(parts)))
    return kinds


def _kind(name: str, part: str, parts: Weights) -> str:
    """What layer a tensor belongs to, by its name and by the shape of the layer's weight."""
    if "running_mean" in parts:
        return "BatchNorm"
    words = f"{name}.{part}"
    if any(word in words for word in ("attn", "attention", "in_proj", "q_proj", "k_proj", "v_proj", "query")):
        return "attention"
    if part.startswith(("weight_ih", "weight_hh", "bias_ih", "bias_hh")):
        return "recurrent layer"
    if "emb" in words or part in ("cls_token", "wte", "wpe") or name.endswith(("wte", "wpe")):
        return "embedding"
    axes = parts["weight"].ndim if "weight" in parts and part in ("weight", "bias") else 0
    if axes > 2:
        return "convolution"
    return {1: "normalisation", 2: "dense"}.get(axes, "other tensor")


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _outlooks(target: Target, mixtures: Mixtures, reading: float) -> list[Outlook]:
    """In the order of NAMES: what `auto` would do, and each attack by itself."""
    speed, architecture = operations_per_second(), target.architecture
    peel, unmix, kkt = _peel(mixtures), _unmix(target, mixtures, speed), _kkt(target, mixtures, speed)
    enough = unmix.applies and mixtures.span.rank <= ROOMY * tellable(mixtures.shape)
    parts = [part for part in (peel, unmix, kkt) if part.applies and not (part is kkt and enough)]
    words = "does " + ", then ".join(part.attack for part in parts) if parts else unmix.why
    papers = paper_seconds(mixtures.span.rank, architecture) if kkt.applies else None
    return [
        Outlook("auto", bool(parts), words, _total(parts)),
        peel,
        unmix,
        replace(kkt, seconds=_total([kkt, unmix]) if kkt.applies else None),  # by itself it pools components too
        Outlook(NAMES[4], kkt.applies, "one of its 100 settings" if kkt.applies else kkt.why, papers),
        Outlook("inversion", True, "a baseline", inversion_seconds(architecture, speed)),
        Outlook("weights", True, "a baseline", reading),
    ]


def _total(parts: list[Outlook]) -> float | None:
    return sum(part.seconds or 0.0 for part in parts) if parts else None


def _peel(mixtures: Mixtures) -> Outlook:
    n, w = mixtures.num_samples, len(mixtures.weight)
    why = None
    if mixtures.start is None:
        why = "needs the weights training started from (--base)"
    elif mixtures.conv is not None:
        why = "the first layer is a convolution"
    elif mixtures.bias is None:
        why = "the first layer has no bias"
    elif n is None:
        why = "the change since the base has no visible end (see below)"
    elif n > PROVABLE * w:
        why = f"{n} samples are too many to prove at width {w}: about {int(PROVABLE * w)} can be"
    if why or n is None:
        return Outlook("peel", False, why or "")
    return Outlook("peel", True, f"up to {n} samples, each with a proof", peel_seconds(n, w))


def _unmix(target: Target, mixtures: Mixtures, speed: float) -> Outlook:
    rank, most = mixtures.span.rank, tellable(mixtures.shape)
    if rank < 2:
        return Outlook("unmix", False, "nothing stands above the noise of the start")
    if not target.is_image:
        return Outlook("unmix", False, "the inputs are vectors, which have no edges")
    if not can_unmix(target, mixtures):
        return Outlook("unmix", False, f"samples crowd: {rank} directions, and edges tell {most} apart")
    where = "behind the convolution" if mixtures.conv is not None else "above the noise"
    seconds = unmix_seconds(run_ranks(mixtures, UnmixSettings()), mixtures.shape, speed)
    return Outlook("unmix", True, f"{rank} directions {where}", seconds)


def _kkt(target: Target, mixtures: Mixtures, speed: float) -> Outlook:
    architecture, rank = target.architecture, mixtures.span.rank
    if mixtures.weight.shape[1] <= MAX_INPUTS and architecture.num_outputs == 1 and mixtures.bias is not None:
        return Outlook("kkt", True, "few inputs: where the neurons' kinks meet", 5.0)
    if rank < 2:
        return Outlook("kkt", False, "nothing stands above the noise of the start")
    seconds = kkt_seconds(rank, architecture, speed)
    return Outlook("kkt", True, f"random starts in {rank} directions", seconds)


def _layers(target: Target) -> list[Layer]:
    pairs = [
        (target.weights[f"layer{i}.weight"].double(), target.weights.get(f"layer{i}.bias"))
        for i in range(1, len(target.architecture.biases) + 1)
    ]
    into = [w.flatten(1).square().sum(1) + (0 if b is None else b.double().square()) for w, b in pairs]
    balances = [
        _correlation(into[i], following.view(len(following), len(into[i]), -1).square().sum((0, 2)))
        for i, (following, _) in enumerate(pairs[1:])
    ]
    return [
        Layer(tuple(w.shape), float(squares.sum().sqrt()), balance)
        for (w, _), squares, balance in zip(pairs, into, [*balances, None], strict=True)
    ]


def _correlation(a: Tensor, b: Tensor) -> float | None:
    a, b = a - a.mean(), b - b.mean()
    size = float(a.norm() * b.norm())
    return float(a @ b) / size if size > 0 else None


def _on_samples(mixtures: Mixtures) -> str:
    if mixtures.num_samples is not None:
        return f"trained on {mixtures.num_samples} samples: the spectrum ends there"
    if mixtures.span.rank < 2:
        return "number of samples: not visible; the noise of the start hides all"
    return f"number of samples: not visible; {mixtures.span.rank} directions stand above the noise"


def _on_start(mixtures: Mixtures) -> str | None:
    """PyTorch starts a layer of d inputs with values of variance 1 / 3d."""
    standard = 1 / math.sqrt(3 * mixtures.weight.shape[1])
    if mixtures.start is not None or abs(mixtures.span.noise / standard - 1) > STANDARD:
        return None
    return "the noise is that of PyTorch's standard start, and hides most samples; --base would uncover them"


def _on_balance(layers: list[Layer]) -> str:
    """Gradient flow keeps ‖w_in‖² − ‖w_out‖² of each neuron, so training moves both together."""
    norms = torch.tensor([layer.norm for layer in layers])
    if len(layers) > 1 and float(norms.max()) <= (1 + EQUAL) * float(norms.min()):
        return "all layers have the same norm, as weight decay or endless training leaves them: the start is gone"
    strongest = max((layer.balance or 0.0 for layer in layers), default=0.0)
    chance = 3 / min((layer.shape[0] for layer in layers[:-1]), default=1) ** 0.5
    if strongest <= chance:
        return "neurons are not balanced: no sign of training, as in a net just initialised"
    if strongest < TRAINED:
        return f"neurons are weakly balanced ({strongest:.2f}): short training, or Adam"
    return f"neurons are balanced ({strongest:.2f}), as gradient steps leave them"


def _on_optimiser(mixtures: Mixtures) -> str:
    """Adam scales each weight's step by itself: no sum of inputs comes out. What of that shows?"""
    if mixtures.start is not None and mixtures.span.ends:
        return "optimiser: plain gradient steps (GD, SGD, momentum), for the change ends after as many directions"
    if mixtures.start is not None:
        return (
            "optimiser: not plain gradient steps from this base alone; Adam, weight decay, another start, "
            "or more samples than the layer has directions"
        )
    rank, most = mixtures.span.rank, len(mixtures.span.values)
    if rank > CROWDED * most:
        return (
            f"optimiser: {rank} of {most} directions stand out, from hundreds of samples or from Adam; "
            "weights alone cannot tell which, and after Adam expect fewer"
        )
    return "optimiser: weights alone cannot rule Adam out; after Adam expect fewer"
