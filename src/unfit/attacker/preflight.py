"""Before an attack: which attacks apply to a target, why the others do not, and how long each would take.

Only weights are read; what they cannot tell is said.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unfit.attacker.attacks import ATTACKS
from unfit.attacker.attacks.peel import PROVABLE
from unfit.attacker.invert import SLOWEST
from unfit.attacker.kinks import MAX_INPUTS
from unfit.attacker.method import Outlook
from unfit.attacker.mixtures import Mixtures, read_mixtures, read_moments
from unfit.attacker.start.find import LIKELY, Search, forecast, search_start
from unfit.base.errors import listed
from unfit.base.load import Reading, load_base, load_target
from unfit.base.modules import Estimator, as_base, as_target
from unfit.base.notebook import AMBER, bullets, card, lead, table
from unfit.base.target import NotPlainError, Target, Weights
from unfit.base.threads import threads
from unfit.base.times import duration

STANDARD = 0.1  # relative difference of the noise from a standard start's
EQUAL = 0.05  # relative difference of layer norms that are equal for all purposes
SURE = 3.0  # standard deviations: a correlation of w neurons by chance has one of 1/√w
TRAINED = 0.6  # correlation of a neuron's weights in and out that plain gradient steps leave
A_MOMENT = 2.0  # seconds that the search with likely seeds may take, where there is no compiler
FEW_INPUTS = 100  # values of a vector: training sets are seldom smaller (measured at 5, 10 and 30: docs/method.md)
CROWDED = 1 / 3  # of all directions: more than a few hundred samples, or steps that are not sums of inputs


@dataclass(frozen=True)
class Layer:
    """`balance`: correlation over its neurons of the squared norms of their weights in and out; None: the last."""

    shape: tuple[int, ...]
    norm: float
    balance: float | None


@dataclass(frozen=True)
class Preflight:
    """What can be said about a target before it is attacked; a notebook shows it as a table."""

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

    def __repr__(self) -> str:
        applying = ", ".join(each.attack for each in self.attacks if each.applies) or "none"
        return f"Preflight({self.architecture or 'not covered'}; attacks that apply: {applying})"

    def _repr_html_(self) -> str:
        """What a notebook shows: whether there is anything to attack, by what, and what the weights show."""
        word = "applies" if self.applies else "not applicable"
        net = f"{self.architecture or 'not a net that is covered'}, {self.num_parameters:,} parameters"
        sentence = (
            "There is something to attack." if self.applies else "Nothing to attack: an audit would not tell."
        )
        rows = [
            (each.attack, "yes" if each.applies else "no", each.why, duration(each.seconds))
            for each in self.attacks
        ]
        attacks = table(("attack", "applies", "why", "about, here"), rows)
        return card(lead(word, AMBER, net, sentence), attacks, bullets(self.notes))

    def record(self) -> dict[str, Any]:
        """All of it as JSON has it; what `unfit preflight --json` prints."""
        return {"applies": self.applies, **asdict(self)}


@threads()
def preflight(
    model: Target | nn.Module | Estimator,
    base: Target | nn.Module | Estimator | None = None,
    layer: str | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> Preflight:
    """Which attacks apply to a model, why the others do not, and how long each would take. Nothing is attacked.

    Without a base the start is looked for with likely seeds, which takes a second or two. If it is found, what is
    said is about the change since then, which is what `auto` would attack.

    Args:
        model: A `torch.nn.Module`, a scikit-learn perceptron, or the `Target` that `load_target` reads of a file.
        base: The weights that training started from, if they are known: then it is about the change.
        layer: The name of the dense layer to attack, if not the first that sees each sample once.
        input_shape: The shape of one sample, where the layers do not tell it.

    Example:
        >>> found = unfit.preflight(model)
        >>> found.applies
        True
    """
    target = as_target(model, input_shape, layer=layer)
    if base is None and (search := _likely(target)):
        assert search.start is not None
        found = preflight(target, search.start.target)
        return replace(found, notes=[f"{search.why}; what follows is about the change since then", *found.notes])
    mixtures, layers = read_mixtures(target, as_base(base, target)), _layers(target)
    notes = [
        _on_layer(target),
        _on_moments(target),
        target.unread,
        _on_samples(mixtures),
        _on_few_inputs(mixtures),
        _on_room(mixtures),
        _on_start(mixtures),
        _on_base(mixtures),
        _on_seed(mixtures),
        _on_balance(layers),
        _on_optimiser(mixtures),
    ]
    return Preflight(
        str(target.architecture),
        _num_parameters(target),
        [kind().outlook(mixtures) for kind in ATTACKS],
        [note for note in notes if note],
        layers,
        mixtures.span.values.tolist(),
        mixtures.span.edge,
        mixtures.span.rank,
        mixtures.estimated_num_samples,
    )


def _likely(target: Target) -> Search | None:
    """A search with likely seeds that found the start of a net that was trained since."""
    search = search_start(target, seeds=LIKELY, far=False, budget=A_MOMENT)
    return search if search.start is not None and search.start.is_trained else None


def preflight_file(
    path: Path | None, base: Path | None = None, reading: Reading | None = None, update: Path | None = None
) -> Preflight:
    """The same for a file, even if no attack covers its net; a file that cannot be read is an error."""
    try:
        target = load_target(path, reading, base, update)
    except NotPlainError as error:
        return not_covered(error.found)
    return preflight(target, load_base(base, target) if base else None)


def not_covered(found: Weights) -> Preflight:
    """Say which kinds of layers in these tensors no attack covers."""
    kinds = _strange_kinds(found)
    why = "not covered: " + (", ".join(kinds) or "dense layers that do not chain")
    notes = [f"{kind} ({_some(names)}): {REASONS[kind]}" for kind, names in kinds.items()]
    if not kinds:
        notes = ["the dense layers do not chain: there are branches or skips, or their names have another order"]
    notes.append(
        "tensors alone do not say how they are connected. With the net's own code (`--model FILE.py:NAME`, or the "
        "module in Python) it is split at its first dense layer that sees each sample once, if it has one"
    )
    attacks = [Outlook(kind.title, False, why) for kind in ATTACKS]
    num = sum(value.numel() for value in found.values())
    return Preflight(None, num, attacks, notes, [], [], None, None, None)


REASONS = {
    "BatchNorm": "it mixes the samples of a batch, so the weights are not a sum over samples",
    "attention": "its weights serve all positions at once, so they are not sums over samples",
    "recurrent layer": "its weights serve all steps at once, so they are not sums over samples",
    "convolution": "attacks reach through one at most, the first layer",
    "normalisation": "it rescales each sample, which the attacks do not model",
    "embedding": "its inputs are tokens, not values to reconstruct",
    "other tensor": "it belongs to an unknown kind of layer",
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
    """The kind of layer a tensor belongs to, by its name and by the shape of the layer's weight."""
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


def _num_parameters(target: Target) -> int:
    """Of the whole model, not of its attacked part alone."""
    if target.whole is None:
        return target.architecture.num_parameters
    return sum(value.numel() for value in target.whole.module.parameters())


def _on_layer(target: Target) -> str | None:
    """Which layer of a model that was split is attacked, and what that means for what comes back."""
    if target.whole is None:
        return None
    whole, tail = target.whole, target.architecture.tail
    names = [name for name, leaf in whole.module.named_modules() if isinstance(leaf, nn.Linear)]
    others = [name for name in names if name != whole.layer]
    words = [f"attacked is the dense layer {whole.layer}"]
    if whole.has_prefix:
        words.append(f"what comes back is what enters it, {math.prod(whole.feature_shape)} values for each sample")
        words.append(f"an audit turns that into pictures, for at most {SLOWEST:.0f} s more")
    if tail is not None:
        words.append(
            f"what follows it ({tail}) is no obstacle to unmix, but to kkt, which needs dense layers and ReLUs"
        )
    if others:
        words.append(f"another one can be named as the layer: {listed(others)}")
    return "; ".join(words)


def _on_room(mixtures: Mixtures) -> str:
    """How many samples can be told apart at all: by the layer's directions, and by H22's count of equations."""
    (w, d), architecture = mixtures.weight.shape, mixtures.target.architecture
    words = f"room: unmix and peel tell at most {min(w, d)} samples apart: one a direction, {w}×{d} weights"
    if architecture.tail is not None:
        return words
    p, size = architecture.num_parameters, math.prod(architecture.input_shape)
    words += f"; kkt has p = {p:,} equations for n·d unknowns (H22, Sec. 3.2)"
    if mixtures.estimated_num_samples is None:
        return f"{words}, more than unknowns up to n = {p // size:,}"
    return f"{words}: p/(d·n) = {p / (size * mixtures.estimated_num_samples):.2g}"


def _on_samples(mixtures: Mixtures) -> str:
    if mixtures.estimated_num_samples is not None:
        return (
            f"rank {mixtures.estimated_num_samples}: as many training samples, if they are linearly independent, "
            "all were new to the net, and plain gradient steps made it; a merged adapter can look the same"
        )
    if mixtures.span.ends:
        return (
            f"rank {mixtures.span.rank}; an update of low rank such as a merged adapter looks like this, "
            f"{_other_ranks(mixtures)}: the number of samples is not visible"
        )
    if mixtures.span.rank < 2:
        return "number of samples: not visible; the noise of the start hides everything"
    return (
        f"number of samples: not visible; {mixtures.span.rank} directions stand above the noise, so about as "
        "many samples can be unmixed"
    )


def _other_ranks(mixtures: Mixtures) -> str:
    """What else makes a change of such a rank."""
    if not mixtures.has_fixed_inputs:
        return "or a few steps with trained layers or dropout in front, each of which adds directions of its own"
    return "or more samples than inputs or neurons that fire, or Adam"


def _on_few_inputs(mixtures: Mixtures) -> str | None:
    """That no attack tells more samples than inputs apart, where there may be more and kinks do not help."""
    d = mixtures.weight.shape[1]
    if mixtures.num_samples is not None or len(mixtures.shape) > 1 or not MAX_INPUTS < d < FEW_INPUTS:
        return None
    return (
        f"few inputs: {d} or more samples span all {d} of them, and then no attack here tells single ones apart; "
        "that nothing comes back says little about such a model"
    )


def _on_start(mixtures: Mixtures) -> str | None:
    """PyTorch starts a layer of d inputs with values of variance 1 / 3d."""
    standard = 1 / math.sqrt(3 * mixtures.weight.shape[1])
    if mixtures.start is not None or abs(mixtures.span.noise / standard - 1) > STANDARD:
        return None
    return "the noise is that of PyTorch's standard start, and hides most samples; a base would uncover them"


def _on_moments(target: Target) -> str | None:
    """What the state of an optimiser gives away, where the file holds it."""
    if target.moments is None:
        return None
    rank = read_moments(target).span.rank
    return (
        f"the file also holds its optimiser's state, a running sum of gradients with {rank} directions and no "
        "start in it: an audit attacks that first, as if the start were known; publish the weights alone"
    )


def _on_base(mixtures: Mixtures) -> str | None:
    """What knowing the weights that training started from would change."""
    if mixtures.start is not None:
        return None
    words = "with a base the change alone is attacked: after plain gradient steps, one direction for each sample"
    if mixtures.conv is not None or mixtures.bias is None or not mixtures.relu:
        return f"{words}, though without proofs, which need a dense layer with a bias and a ReLU behind it"
    return f"{words}, and up to about {int(PROVABLE * len(mixtures.weight))} samples can be proven"


def _on_seed(mixtures: Mixtures) -> str | None:
    """Whether the start can be looked for, and how long that takes."""
    found = forecast(mixtures.target) if mixtures.start is None else None
    if found is None:
        return None
    who = "`auto` looks for its seed" if found.is_early else "`unfit start` looks for its seed"
    seconds = f"{found.seconds():,.0f} s for all of them here"
    return f"the start may be found: {found.words}; {who}, {seconds}; with it, the attack goes on as with a base"


def _on_balance(layers: list[Layer]) -> str | None:
    """Gradient flow keeps ‖w_in‖² − ‖w_out‖² of each neuron, so training moves both together."""
    if len(layers) < 2:
        return None  # what follows is not known as weights
    norms = torch.tensor([layer.norm for layer in layers])
    if float(norms.max()) <= (1 + EQUAL) * float(norms.min()):
        return "all layers have the same norm, as weight decay or endless training leaves them: the start is gone"
    strongest = max((layer.balance or 0.0 for layer in layers), default=0.0)
    chance = SURE / min((layer.shape[0] for layer in layers[:-1]), default=1) ** 0.5
    if strongest <= chance:
        return "neurons are not balanced: no sign of training, as in a net just initialised or trained briefly"
    if strongest < TRAINED:
        return f"neurons are weakly balanced ({strongest:.2f}): short training, or Adam"
    return f"neurons are balanced ({strongest:.2f}), as gradient steps leave them"


def _on_optimiser(mixtures: Mixtures) -> str:
    """Adam scales the step of each weight, so its updates are not sums of inputs. Does that show?"""
    if mixtures.estimated_num_samples is not None and mixtures.start is not None:
        return "optimiser: plain gradient steps (GD, SGD, momentum), because the spectrum of the change ends"
    if mixtures.start is not None and mixtures.span.ends:
        return "optimiser: not visible; plain gradient steps and Adam can both give a change of this rank"
    if mixtures.start is not None:
        return (
            "optimiser: not plain gradient steps from this base alone; Adam, weight decay, another start, "
            "or more samples than the layer has directions"
        )
    rank, most = mixtures.span.rank, len(mixtures.span.values)
    if rank > CROWDED * most:
        return (
            f"optimiser: {rank} of {most} directions stand out, from hundreds of samples or from Adam; "
            "weights alone cannot tell which, and after Adam fewer samples come back"
        )
    return "optimiser: weights alone cannot rule out Adam, after which fewer samples come back"
