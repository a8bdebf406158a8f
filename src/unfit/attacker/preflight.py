"""Before an attack: which attacks apply to a target, why the others do not, and how long each would take.

Only weights are read; what they do not show is named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unfit.attacker.attacked_layer import AttackedLayer, read_layer, read_moments
from unfit.attacker.attacks import ATTACKS
from unfit.attacker.attacks.auto import Auto
from unfit.attacker.attacks.diary import Diary, pairs_in, pairs_of
from unfit.attacker.attacks.peel import PROVABLE
from unfit.attacker.embeddings import Pair, presence
from unfit.attacker.initial.find import forecast, search_initial_weights
from unfit.attacker.initial.found import Search
from unfit.attacker.initial.hunt import LIKELY
from unfit.attacker.invert import SLOWEST
from unfit.attacker.kinks import MAX_INPUTS
from unfit.attacker.method import Applicability
from unfit.attacker.surfaces import Surfaces, named, surfaces
from unfit.base.device import on_device
from unfit.base.errors import UnfitError, listed
from unfit.base.load import Checkpoint, load_base, load_target, with_checkpoints
from unfit.base.modules import Estimator, as_base, as_target
from unfit.base.notebook import AMBER, bullets, card, lead, table
from unfit.base.reading import Reading
from unfit.base.target import NotPlainError, Target, Weights
from unfit.base.threads import threads
from unfit.base.times import duration

FAR_BELOW = 0.1  # parameters / (inputs × samples): an audit may pass by that, if nothing else speaks against it
STANDARD = 0.1  # relative difference of the noise from that of standard initial weights
EQUAL = 0.05  # relative difference of layer norms that are equal for all purposes
SURE = 3.0  # standard deviations: a correlation of w neurons by chance has one of 1/√w
TRAINED = 0.6  # correlation of a neuron's weights in and out that plain gradient steps leave
A_MOMENT = 2.0  # seconds that the search with likely seeds may take, where there is no compiler
FEW_INPUTS = 100  # values of a vector: training sets are rarely smaller (measured at 5, 10 and 30: docs/method.md)
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

    architecture: str | None  # None: not a model that any attack covers
    num_parameters: int
    attacks: list[Applicability]
    notes: list[str]
    layers: list[Layer]
    spectrum: list[float]
    noise_edge: float | None
    rank: int | None
    estimated_num_samples: int | None

    @property
    def applies(self) -> bool:
        """Whether there is anything to attack; the baselines always run and say little."""
        return any(each.applies for each in self.attacks if each.attack in (Auto.title, Diary.title))

    @property
    def exit_code(self) -> int:
        return 0 if self.applies else 3

    def __repr__(self) -> str:
        applying = ", ".join(each.attack for each in self.attacks if each.applies) or "none"
        return f"Preflight({self.architecture or 'not covered'}; attacks that apply: {applying})"

    def _repr_html_(self) -> str:
        """What a notebook shows: whether there is anything to attack, by what, and what the weights show."""
        word = "applies" if self.applies else "not applicable"
        net = f"{self.architecture or 'a model that is not covered'}, {self.num_parameters:,} parameters"
        sentence = "Attackable." if self.applies else "Nothing to attack: an audit would be inconclusive."
        rows = [
            (each.attack, "yes" if each.applies else "no", each.why, duration(each.seconds))
            for each in self.attacks
        ]
        attacks = table(("attack", "applies", "why", "one core"), rows)
        return card(lead(word, AMBER, net, sentence), attacks, bullets(self.notes))

    def record(self) -> dict[str, Any]:
        """All of it as JSON has it; what `unfit preflight --json` prints."""
        return {"applies": self.applies, **asdict(self)}


def preflight(
    model: Target | nn.Module | Estimator,
    base: Target | nn.Module | Estimator | None = None,
    layer: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    device: str | None = None,
    num_samples: int | None = None,
    checkpoints: Sequence[Checkpoint] = (),
) -> Preflight:
    """Which attacks apply to a model, why the others do not, and how long each would take. Nothing is attacked.

    Without a base likely seeds of the initial weights are tried, which takes a second or two. If one fits, what is
    said is about the change since then, which is what `auto` would attack.

    Args:
        model: A `torch.nn.Module`, a scikit-learn perceptron, or the `Target` that `load_target` reads of a file.
        base: The weights that training started from, if they are known: then it is about the change.
        layer: The name of the dense layer to attack, if not the first that sees each sample once.
        input_shape: The shape of one sample, where the layers do not tell it.
        device: Where it is computed, and where attacks would be: `cpu`, `cuda` or `cuda:1`; by default on CUDA if
            there is a GPU.
        num_samples: How many samples the model was trained on, if known: parameters / (inputs × samples) says
            whether all of them could be reconstructed at all.
        checkpoints: Other checkpoints of the same training, in any order: files, folders of them, or models.

    Example:
        >>> found = unfit.preflight(model)
        >>> found.applies
        True
    """
    with threads(), on_device(device):
        pairs = pairs_of(model, base, layer) if base is not None else []
        try:
            target = with_checkpoints(as_target(model, input_shape, layer=layer), checkpoints)
            found = _before(target, as_base(base, target), num_samples)
        except UnfitError:
            if not pairs:
                raise
            assert isinstance(model, nn.Module)
            found = not_covered(dict(model.state_dict()))
        return with_tables(found, pairs)


def _before(target: Target, base: Target | None, num_samples: int | None) -> Preflight:
    if base is None and (search := _likely(target, num_samples)):
        assert search.initial is not None
        found = _before(target, search.initial.target, num_samples)
        return replace(found, notes=[f"{search.why}; all below is about the change since then", *found.notes])
    layer, layers = read_layer(target, base), _layers(target)
    notes = [
        _on_layer(target),
        *_on_surfaces(surfaces(target, base)),
        _on_moments(target),
        target.unread,
        _on_samples(layer),
        _on_few_inputs(layer),
        _on_room(layer),
        _on_ratio(layer, num_samples),
        _on_initial(layer),
        _on_base(layer),
        _on_seed(layer),
        _on_balance(layers),
        _on_optimiser(layer),
    ]
    return Preflight(
        str(target.architecture),
        target.num_parameters,
        [kind().applicability(layer) for kind in ATTACKS],
        [note for note in notes if note],
        layers,
        layer.span.values.tolist(),
        layer.span.edge,
        layer.span.rank,
        layer.estimated_num_samples,
    )


def _likely(target: Target, num_samples: int | None) -> Search | None:
    """A search with likely seeds that found the initial weights of a model that was trained since."""
    search = search_initial_weights(
        target, seeds=LIKELY, far=False, sizes=(num_samples,) if num_samples else (), budget=A_MOMENT
    )
    return search if search.initial is not None and search.initial.is_trained else None


def preflight_file(
    path: Path | None,
    base: Path | None = None,
    reading: Reading | None = None,
    update: Path | None = None,
    num_samples: int | None = None,
    checkpoints: Sequence[Path] = (),
) -> Preflight:
    """The same for a file, even if no attack covers its model; a file that cannot be read is an error."""
    pairs = pairs_in(path, base, reading)
    try:
        target = load_target(path, reading, base, update)
        initial = load_base(base, target) if base else None
        found = preflight(target, initial, num_samples=num_samples, checkpoints=checkpoints)
        return with_tables(found, pairs)
    except NotPlainError as error:
        return with_tables(not_covered(error.found), pairs)
    except UnfitError:
        if path is None or not pairs:
            raise
        return with_tables(not_covered({pair.table.name: pair.table.weight for pair in pairs}), pairs)


def with_tables(found: Preflight, pairs: Sequence[Pair]) -> Preflight:
    """The same with what the tables of the model tell, where there is a base to compare them with."""
    told = [presence(pair) for pair in pairs]
    if not told:
        return found
    applies = any(each.can_tell and each.kind == "id" for each in told)
    why = next((each.sentence for each in told if each.can_tell and each.kind == "id"), told[0].sentence)
    diary = Applicability(Diary.title, applies, why, 0.0)
    attacks = [diary if each.attack == Diary.title else each for each in found.attacks]
    sentences = [f"{each.sentence}{''.join(f'; {limit}' for limit in each.limits)}" for each in told]
    return replace(found, attacks=attacks, notes=[*sentences, *found.notes])


def not_covered(found: Weights) -> Preflight:
    """Say which kinds of layers in these tensors no attack covers."""
    kinds = _strange_kinds(found)
    why = "not covered: " + (", ".join(kinds) or "dense layers that do not chain")
    notes = [f"{kind} ({_some(names)}): {REASONS[kind]}" for kind, names in kinds.items()]
    if not kinds:
        notes = ["the dense layers do not chain: there are branches or skips, or their names have another order"]
    notes.append(
        "tensors alone do not define how they are connected. With the model's own code (`--model FILE.py:NAME`, "
        "or the module in Python) it is split at its first dense layer that sees each sample once, if it has one"
    )
    attacks = [Applicability(kind.title, False, why) for kind in ATTACKS]
    num = sum(value.numel() for value in found.values())
    return Preflight(None, num, attacks, notes, [], [], None, None, None)


REASONS = {
    "BatchNorm": "it mixes the samples of a batch, so the weights are not a sum over samples",
    "attention": "its weights serve all positions at once, so they are not sums over samples",
    "recurrent layer": "its weights serve all steps at once, so they are not sums over samples",
    "convolution": "attacks reach through one at most, the first layer",
    "normalisation": "it rescales each sample, which the attacks do not model",
    "embedding": "its inputs are ids, not values to reconstruct; with --base, diary tells which ids occurred",
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


def _on_layer(target: Target) -> str | None:
    """Which layer of a model that was split is attacked, and what an attack on it reconstructs."""
    if target.whole is None:
        return None
    whole, tail = target.whole, target.architecture.tail
    names = [name for name, leaf in whole.module.named_modules() if isinstance(leaf, nn.Linear)]
    others = [name for name in names if name != whole.layer]
    words = [f"the attacked layer is the dense layer {whole.layer}"]
    if whole.has_prefix:
        words.append(f"an attack reconstructs what enters it, {math.prod(whole.feature_shape)} values per sample")
        words.append(f"an audit turns these into images, in at most {SLOWEST:.0f} s more")
    if tail is not None:
        words.append(
            f"unmix applies whatever follows it ({tail}); kkt does not, because it needs dense layers and ReLUs"
        )
    if others:
        words.append(f"other layers that --layer can name: {listed(others)}")
    return "; ".join(words)


def _on_room(layer: AttackedLayer) -> str:
    """How many samples can be separated at all: by the layer's directions, and by H22's count of equations."""
    (w, d), architecture = layer.weight.shape, layer.target.architecture
    words = f"room: unmix and peel separate at most {min(w, d)} samples, one per direction of {w}×{d} weights"
    if architecture.tail is not None:
        return words
    p, size = architecture.num_parameters, math.prod(architecture.input_shape)
    words += f"; kkt has p = {p:,} equations for n·d unknowns (H22, Sec. 3.2)"
    if layer.estimated_num_samples is None:
        return f"{words}, more than unknowns up to n = {p // size:,}"
    return f"{words}: p/(d·n) = {p / (size * layer.estimated_num_samples):.2g}"


def _on_ratio(layer: AttackedLayer, num_samples: int | None) -> str:
    """Whether there are enough numbers in the model to determine all samples (Iurada et al. 2026)."""
    target = layer.target
    p, d = target.num_parameters, min(math.prod(target.sample_shape), layer.weight.shape[1])
    words = "to reconstruct all samples, parameters / (inputs × samples) must be well above 1"
    n = num_samples or layer.estimated_num_samples
    if n is None:
        return f"{words}: here that is {p / d:,.0f} / samples; give their number for the ratio itself"
    ratio = p / (d * n)
    far = "; far below, though single samples may still leak" if ratio <= FAR_BELOW else ""
    return f"{words}: here it is {p:,} / ({d:,} × {n:,}) = {ratio:.2g}{far}"


def _on_samples(layer: AttackedLayer) -> str:
    if layer.estimated_num_samples is not None:
        return (
            f"rank {layer.estimated_num_samples}: this is the number of training samples, if they are linearly "
            "independent, all were new to the model, and plain gradient steps made it; a merged adapter can "
            "look the same"
        )
    if layer.span.ends:
        return (
            f"rank {layer.span.rank}; an update of low rank such as a merged adapter looks like this, "
            f"{_other_ranks(layer)}: the number of samples is not visible"
        )
    if layer.span.rank < 2:
        return "number of samples: not visible; the noise of the initial weights hides everything"
    return (
        f"number of samples: not visible; {layer.span.rank} directions stand above the noise, so about "
        "this many samples can be unmixed"
    )


def _other_ranks(layer: AttackedLayer) -> str:
    """What else makes a change of such a rank."""
    if not layer.has_fixed_inputs:
        return "or a few steps with trained layers or dropout in front, each of which adds directions of its own"
    return "or more samples than inputs or neurons that fire, or Adam"


def _on_few_inputs(layer: AttackedLayer) -> str | None:
    """That no attack separates more samples than inputs, if there may be more and kinks do not help."""
    d = layer.weight.shape[1]
    if layer.num_samples is not None or len(layer.shape) > 1 or not MAX_INPUTS < d < FEW_INPUTS:
        return None
    return (
        f"few inputs: {d} or more samples span all {d} of them, and then no attack here separates single ones; if "
        "nothing is recovered from such a model, that proves little"
    )


def _on_initial(layer: AttackedLayer) -> str | None:
    """PyTorch initialises a layer of d inputs with values of variance 1 / 3d."""
    standard = 1 / math.sqrt(3 * layer.weight.shape[1])
    if layer.initial is not None or abs(layer.span.noise / standard - 1) > STANDARD:
        return None
    return (
        "the noise is that of PyTorch's initial weights, and hides most samples; with a base they can be attacked"
    )


def _on_surfaces(there: Surfaces) -> list[str]:
    """What else is attacked, and what is not, where a plain stack has nothing but its first layer."""
    notes = [f"{each.name}: not attacked, because {each.why}; an audit does not pass" for each in there.unread]
    notes += there.notes
    if there.used:
        words = f"other copies of the weights {named(there.used)}: the differences of two copies hold no initial"
        notes.insert(0, f"{words} weights, and an audit attacks them; publish one copy alone")
    if len(there.found) > 1:
        names = ", ".join(each.name for each in there.found)
        notes.insert(0, f"surfaces, each attacked by itself: {names}; all below is about the first layer")
    return notes


def _on_moments(target: Target) -> str | None:
    """What the state of an optimiser gives away, where the file holds it."""
    if target.moment is None:
        return None
    rank = read_moments(target).span.rank
    return (
        f"the file also holds its optimiser's state, a running sum of gradients with {rank} directions and no "
        "initial weights in it: an audit attacks that first; publish the weights alone"
    )


def _on_base(layer: AttackedLayer) -> str | None:
    """What knowing the weights that training started from would change."""
    if layer.initial is not None:
        return None
    words = "with a base the change alone is attacked: after plain gradient steps, one direction per sample"
    if layer.conv is not None or layer.bias is None or not layer.relu:
        return f"{words}, but without proofs, which need a dense layer with a bias and a ReLU behind it"
    return f"{words}, and up to about {int(PROVABLE * len(layer.weight))} samples can be exact"


def _on_seed(layer: AttackedLayer) -> str | None:
    """Whether the initial weights can be looked for, and how long that takes."""
    found = forecast(layer.target) if layer.initial is None else None
    if found is None:
        return None
    who = "`auto` looks for its seed" if found.is_early else "`unfit find-init` looks for its seed"
    seconds = f"{found.seconds():,.0f} s for all of them here"
    words = f"the initial weights may be found: {found.words}; {who}, {seconds}"
    return f"{words}; with them, the attack continues as with a base"


def _on_balance(layers: list[Layer]) -> str | None:
    """Gradient flow keeps ‖w_in‖² − ‖w_out‖² of each neuron, so training moves both together."""
    if len(layers) < 2:
        return None  # what follows is not known as weights
    norms = torch.tensor([layer.norm for layer in layers])
    if float(norms.max()) <= (1 + EQUAL) * float(norms.min()):
        return (
            "all layers have the same norm, as weight decay or endless training leaves them: "
            "the initial weights are gone"
        )
    strongest = max((layer.balance or 0.0 for layer in layers), default=0.0)
    chance = SURE / min((layer.shape[0] for layer in layers[:-1]), default=1) ** 0.5
    if strongest <= chance:
        return "neurons are not balanced: no sign of training, as in a new model or one trained briefly"
    if strongest < TRAINED:
        return f"neurons are weakly balanced ({strongest:.2f}): short training, or Adam"
    return f"neurons are balanced ({strongest:.2f}), as gradient steps leave them"


def _on_optimiser(layer: AttackedLayer) -> str:
    """Adam scales the step of each weight, so its updates are not sums of inputs. Does that show?"""
    if layer.estimated_num_samples is not None and layer.initial is not None:
        return "optimiser: plain gradient steps (GD, SGD, momentum), because the spectrum of the change ends"
    if layer.initial is not None and layer.span.ends:
        return "optimiser: not visible; plain gradient steps and Adam can both give a change of this rank"
    if layer.initial is not None:
        return (
            "optimiser: not plain gradient steps from this base alone; Adam, weight decay, other initial weights, "
            "or more samples than the layer has directions"
        )
    rank, most = layer.span.rank, len(layer.span.values)
    if rank > CROWDED * most:
        return (
            f"optimiser: {rank} of {most} directions stand out, from hundreds of samples or from Adam; "
            "the weights alone do not show which, and after Adam fewer samples are recovered"
        )
    return "optimiser: weights alone cannot rule out Adam, after which fewer samples are recovered"
