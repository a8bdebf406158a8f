"""One form for all models that are the same function: what is written into weights to hide others goes.

Neurons can be added, copied, split and rescaled without any effect on the outputs, and a linear layer can be put
in front. All of that changes the first layer, which attacks read. So the model with it undone is attacked too.

An attacker has no samples. Which neurons fire is asked of random inputs, like the model's own in shape and range.
They lie in the box of all inputs, so a neuron that fires nowhere in the box never fires on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unfit.base.target import Target, Weights

Layers = list[tuple[Tensor, Tensor | None]]

UNREAD = 1e-6  # of what a layer adds to the next one: less is lost in rounding
COPY = 1e-10  # 1 − cosine of two neurons that are the same up to rounding …
ROUGHLY = 1e-4  # … and of those that may be, by float32
MATTERS = 0.1  # share of the first layer's squared weights: neurons with less hide nothing
UNEVEN = math.log(2)  # spread of the logarithm of the outgoing lengths: a factor of two hides nothing
MOSTLY = 0.9  # of the probes: a neuron that is on for more of them is taken to be always on
NUM_PROBES, FEWEST_PROBES = 256, 16
PROBE_VALUES = 2**24  # in all probes of a kind, 128 MB: fewer probes of large inputs
CENTRED = 0.3  # spread of images less their mean …
IN_RANGE = 0.25  # … and of images in a known range, as a share of its width


@dataclass(frozen=True, eq=False)
class Probes:
    """Random inputs (n, d): those that tell which neurons fire, and all kinds of what a model may be given."""

    usual: Tensor
    kinds: tuple[Tensor, ...]


def normal_form(target: Target) -> Target:
    """The same function of plausible inputs, in normal form; the target itself if that is the same.

    Neurons go that nothing reads or that never fire, copies become one, very uneven outgoing weights become equal,
    and a first layer whose neurons are always on is multiplied into the next. Plain models only.
    """
    architecture = target.architecture
    if architecture.conv or architecture.tail or not architecture.hidden:
        return target
    before = layers_of(target)
    after = normalised(before, probes(target))
    if after is before:
        return target
    hidden = tuple(len(weight) for weight, _ in after[:-1])
    biases = tuple(bias is not None for _, bias in after)
    changed = replace(architecture, hidden=hidden, biases=biases)
    return replace(target, architecture=changed, weights=_weights(after))


def probes(target: Target) -> Probes:
    """What may enter the first layer, by its shape and its range alone. The same each time.

    Images have most of their energy in low frequencies, as 1/f noise has. Where no range is known, inputs may be
    centred, which is usual, or positive.
    """
    whole = target.whole
    shape = (whole and whole.map_shape) or target.architecture.input_shape
    noise = _noise(shape).flatten(1)
    low, high = target.input_range or (-math.inf, math.inf)
    if math.isfinite(high - low):
        found = ((low + high) / 2 + IN_RANGE * (high - low) * noise).clamp(low, high)
        return Probes(found, (found,))
    is_image = len(shape) == 3
    centred = (CENTRED * noise).clamp(-1, 1) if is_image else noise
    positive = (0.5 + IN_RANGE * noise).clamp(0, 1) if is_image else noise.abs()
    if low >= 0 or (whole is not None and whole.is_positive):
        return Probes(positive, (positive,))
    return Probes(centred, (centred, positive))


def _noise(shape: tuple[int, ...]) -> Tensor:
    """(n, *shape), of root mean square 1 each: white, or 1/f of images."""
    num = max(FEWEST_PROBES, min(NUM_PROBES, PROBE_VALUES // math.prod(shape)))
    white = torch.randn(num, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if len(shape) == 3:
        height, width = shape[1:]
        down, across = torch.fft.fftfreq(height)[:, None], torch.fft.fftfreq(width)
        frequency = (down.square() + across.square()).sqrt().clamp_min(1 / max(height, width))
        white = torch.fft.ifft2(torch.fft.fft2(white) / frequency).real
    size = white.flatten(1).square().mean(1).sqrt()
    return white / size.view(-1, *[1] * len(shape))


def kept_neurons(form: Target, target: Target) -> list[int] | None:
    """Which neurons of the first layer a normal form kept; None if it did more than leave some out.

    Where it only left some out, these rows of any weights of the target, initial ones too, belong to the form.
    """
    places = {row: i for i, row in enumerate(_rows(target))}
    found = [places.get(row) for row in _rows(form)]
    kept = [i for i in found if i is not None]
    if len(kept) < len(found) or form.weights.keys() != target.weights.keys():
        return None
    same = restricted(target.weights, kept)
    return kept if all(torch.equal(same[name], value) for name, value in form.weights.items()) else None


def restricted(weights: Weights, kept: list[int]) -> Weights:
    """The weights of a plain model without the other neurons of its first layer."""
    parts = {name: weights[name][kept] for name in ("layer1.weight", "layer1.bias") if name in weights}
    return weights | parts | {"layer2.weight": weights["layer2.weight"][:, kept]}


def _rows(target: Target) -> list[bytes]:
    """Each neuron of the first layer, to be looked up."""
    weight, bias = target.weights["layer1.weight"], target.weights.get("layer1.bias")
    rows = weight if bias is None else torch.cat([weight, bias[:, None]], 1)
    return [row.tobytes() for row in rows.cpu().numpy()]


def normalised(layers: Layers, x: Probes) -> Layers:
    """All steps, and again where a layer went."""
    if len(layers) < 2:
        return layers
    single = _without_copies(layers)
    cleaned = _without_unread(single, x.usual)
    if _always_on(cleaned, x):
        return normalised(_folded(cleaned), x)
    share = 1 - float(cleaned[0][0].square().sum() / layers[0][0].square().sum())
    return _even(cleaned if single is not layers or share > MATTERS else layers)


def _without_unread(layers: Layers, x: Tensor) -> Layers:
    """Without neurons whose mean effect on the next layer is nothing: never on, or with no weight there."""
    (weight, bias), (following, after), *rest = layers
    active = _sums(weight, bias, x).clamp_min(0).mean(0)
    effect = active * following.norm(dim=0)
    kept = effect > UNREAD * effect.sum()
    if kept.all() or not kept.any():
        return layers
    return [(weight[kept], None if bias is None else bias[kept]), (following[:, kept], after), *rest]


def _without_copies(layers: Layers) -> Layers:
    """Neurons that are positive multiples of one another become one, with the sum of what they add."""
    (weight, bias), (following, after), *rest = layers
    size, unit = _directions(weight, bias)
    which = _first_alike(unit)
    firsts, place = which.unique(return_inverse=True)
    if len(firsts) == len(weight):
        return layers
    summed = following.new_zeros(len(following), len(firsts))
    summed.index_add_(1, place, following * (size / size[which]))
    kept = (weight[firsts], None if bias is None else bias[firsts])
    read = summed.norm(dim=0) > UNREAD * following.norm(dim=0).mean()  # copies may cancel
    if not read.any():
        return layers
    return [
        (kept[0][read], None if kept[1] is None else kept[1][read]),
        (summed[:, read], after),
        *rest,
    ]


def _directions(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The length of each neuron's weights with its bias, and their direction."""
    rows = weight if bias is None else torch.cat([weight, bias[:, None]], 1)
    size = rows.norm(dim=1).clamp_min(1e-300)
    return size, rows / size[:, None]


def _first_alike(unit: Tensor) -> Tensor:
    """For each row the first one that is the same, which may be itself."""
    rough = unit.float()
    if not ((rough @ rough.T).fill_diagonal_(0) > 1 - ROUGHLY).any():
        return torch.arange(len(unit))  # the usual case, at half the cost
    same = unit @ unit.T > 1 - COPY
    same.fill_diagonal_(True)
    return same.to(torch.uint8).argmax(1)


def _always_on(layers: Layers, x: Probes) -> bool:
    """Whether each neuron is on for nearly all probes of one kind: a bias that just suffices for data is too low
    for some of them.
    """
    if len(layers) < 3:
        return False
    return any(bool(((_sums(*layers[0], kind) > 0).double().mean(0) > MOSTLY).all()) for kind in x.kinds)


def _folded(layers: Layers) -> Layers:
    """Without the first layer, which is linear where the inputs are: (V W, V b + c)."""
    (weight, bias), (following, after), *rest = layers
    shift = None if bias is None else following @ bias
    total = after if shift is None else shift if after is None else shift + after
    return [(following @ weight, total), *rest]


def _even(layers: Layers) -> Layers:
    """With outgoing weights of length 1, where scales were moved from one layer to the other.

    Training makes what a neuron reads and what it writes large together. Moving a scale makes one larger and the
    other smaller, so that outgoing lengths differ more than their products with the incoming ones.
    """
    (weight, bias), (following, after), *rest = layers
    size, read = following.norm(dim=0), weight.norm(dim=1)
    if not ((size > 0) & (read > 0)).all():
        return layers
    spread = float(size.log().std())
    if spread < UNEVEN or float((size.log() + read.log()).std()) > spread:
        return layers
    return [(weight * size[:, None], None if bias is None else bias * size), (following / size, after), *rest]


def _sums(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, weight, bias)


def layers_of(target: Target) -> Layers:
    numbers = range(1, len(target.architecture.biases) + 1)
    biases = (target.weights.get(f"layer{i}.bias") for i in numbers)
    return [
        (target.weights[f"layer{i}.weight"].double(), None if bias is None else bias.double())
        for i, bias in zip(numbers, biases, strict=True)
    ]


def _weights(layers: Layers) -> dict[str, Tensor]:
    found = {}
    for i, (weight, bias) in enumerate(layers, 1):
        found[f"layer{i}.weight"] = weight.float().contiguous()
        if bias is not None:
            found[f"layer{i}.bias"] = bias.float().contiguous()
    return found
