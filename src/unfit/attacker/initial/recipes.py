"""How networks are initialised: which tensors are drawn in what order, by which generator and distribution.

Most recipes are tapes of draws. Played with a seed by the generator, a tape gives initial weights; read, it says
where in the stream each tensor's numbers stand.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.initial.twister import SIZE, Words
from unfit.base.modules import as_base
from unfit.base.nets import Architecture
from unfit.base.target import Target, Weights, tensor_shapes
from unfit.base.whole import Whole

Family = Literal["uniform", "normal"]
Reals = NDArray[np.float64]
Shapes = dict[str, tuple[int, ...]]
Origin = int | Words  # a seed, or all words of the generator's state
Draw = tuple[str, Family]  # a tensor, and what it is filled with; drawn again, it is replaced

HEADER = 24  # bytes before the words in PyTorch's state: the seed, how many words are left, which is next
BLOCK = 16  # PyTorch makes normal numbers from blocks of 16 uniform ones: 8 radii, 8 angles
PROBE = 20_260_101  # a seed that is played to see where a user's function draws
PROBED = 64  # numbers of a tensor that are looked for in the stream
SURE = 0.99  # their correlation with what stands there
MOST_PLAYED = 50_000_000  # numbers of the stream that are looked through


@dataclass(frozen=True)
class Generator:
    """A stream of numbers in [0, 1) that follows from a seed of 32 bits."""

    name: str
    stride: int  # outputs of MT19937 to a number; 0: another generator, of which only usual seeds are tried
    shift: int  # where in the first of them its high bits are
    numbers: Callable[[int, int], Reals]  # of a seed, the first so many


def _torch_numbers(seed: int, num: int, dtype: torch.dtype = torch.float32) -> Reals:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.empty(num, dtype=dtype).uniform_().double().numpy()


def set_torch(origin: Origin) -> None:
    """Bring PyTorch's generator on the CPU to where the initial weights begin."""
    torch.manual_seed(origin if isinstance(origin, int) else 0)
    if not isinstance(origin, int):
        state = torch.get_rng_state()
        words = torch.from_numpy(origin.astype(np.uint64).view(np.uint8))
        state[HEADER : HEADER + len(words)] = words
        torch.set_rng_state(state)


TORCH = Generator("PyTorch on the CPU (MT19937)", 1, 0, _torch_numbers)
DOUBLE = Generator(
    "PyTorch on the CPU in float64 (MT19937)", 2, -3, lambda seed, num: _torch_numbers(seed, num, torch.float64)
)
NUMPY = Generator(
    "NumPy's RandomState (MT19937)", 2, 8, lambda seed, num: np.random.RandomState(seed).random_sample(num)
)


@dataclass(frozen=True)
class Site:
    """Where in the stream the numbers of a tensor stand, counted in numbers."""

    tensor: str
    family: Family
    place: int
    std: float  # of its values; where the recipe does not say, that of PyTorch's own initialisation


@dataclass(frozen=True, eq=False)
class Recipe:
    """`draw(origin, skip)` gives the initial weights; `skip` numbers are drawn before them."""

    name: str
    generator: Generator
    draw: Callable[[Origin, int], Weights]
    sites: tuple[Site, ...]
    scaled: frozenset[str] = frozenset()  # tensors whose standard deviation the recipe does not say
    transposed: bool = False  # weights are drawn the other way round than PyTorch keeps them

    def flat(self, value: Tensor) -> Tensor:
        """A tensor's values in the order they are drawn in."""
        return value.T.flatten() if self.transposed and value.ndim == 2 else value.flatten()


def recipes(architecture: Architecture) -> list[Recipe]:
    """All that are tried, the likeliest first."""
    shapes = tensor_shapes(architecture)
    weights = [name for name in shapes if name.endswith("weight")]
    first = [name for name in shapes if name.startswith("layer1.")]
    default: list[Draw] = [(name, "uniform") for name in shapes]
    found = [_taped("PyTorch's default initial weights", TORCH, default, shapes)]

    def again(words: str, names: list[str], family: Family) -> Recipe:
        tape = default + [(name, family) for name in names]
        return _taped(f"PyTorch's default initial weights, then {words}", TORCH, tape, shapes, names)

    found.append(again("normal_ for the first layer", first, "normal"))
    found.append(again("normal_ for the first layer, its bias first", first[::-1], "normal"))
    families: tuple[Family, ...] = ("normal", "uniform")
    for family in families:
        found.append(again(f"{family}_ for all weights", weights, family))
        tape = [draw for name in weights for draw in _rebuilt(name, family, shapes)]
        found.append(_taped(f"{family}_ for each layer as it is built", TORCH, tape, shapes, weights))
    found.append(_taped("PyTorch's default initial weights in float64", DOUBLE, default, shapes))
    if not architecture.conv:
        found.append(_taped("scikit-learn's MLP", NUMPY, default, shapes, transposed=True))
    return found


def _rebuilt(weight: str, family: Family, shapes: Shapes) -> list[Draw]:
    """A layer's default draws, and its weight again."""
    bias = weight.removesuffix("weight") + "bias"
    return [(name, "uniform") for name in (weight, bias) if name in shapes] + [(weight, family)]


def _taped(
    name: str,
    generator: Generator,
    tape: list[Draw],
    shapes: Shapes,
    scaled: Iterable[str] = (),
    transposed: bool = False,
) -> Recipe:
    play = _play_numpy if generator is NUMPY else _play_torch

    def draw(origin: Origin, skip: int) -> Weights:
        return dict(play(generator, tape, shapes, origin, skip))

    return Recipe(name, generator, draw, _sites(generator, tape, shapes), frozenset(scaled), transposed)


def _sites(generator: Generator, tape: list[Draw], shapes: Shapes) -> tuple[Site, ...]:
    """Of each tensor's last draw."""
    place, found = 0, {}
    for name, family in tape:
        found[name] = Site(name, family, place, bound_of(generator, shapes, name) / math.sqrt(3))
        num = math.prod(shapes[name])
        if family == "normal" and num < BLOCK:
            break  # so few are made in pairs of doubles, and what follows stands elsewhere
        place += num + (BLOCK if family == "normal" and num % BLOCK else 0)  # the last block is drawn anew
    return tuple(found.values())


def _play_torch(
    generator: Generator, tape: list[Draw], shapes: Shapes, origin: Origin, skip: int
) -> Iterator[tuple[str, Tensor]]:
    """As nn.Linear and nn.Conv2d do, weight and bias; normal values have standard deviation 1."""
    dtype = torch.float64 if generator is DOUBLE else torch.float32
    with torch.random.fork_rng(devices=[]):
        set_torch(origin)
        torch.empty(skip, dtype=dtype).uniform_()
        for name, family in tape:
            value = torch.empty(shapes[name], dtype=dtype)
            bound = bound_of(generator, shapes, name)
            yield name, (value.normal_() if family == "normal" else value.uniform_(-bound, bound)).float()


def _play_numpy(
    generator: Generator, tape: list[Draw], shapes: Shapes, origin: Origin, skip: int
) -> Iterator[tuple[str, Tensor]]:
    """As scikit-learn does, weights with inputs first."""
    random = np.random.RandomState(origin if isinstance(origin, int) else None)
    if not isinstance(origin, int):
        random.set_state(("MT19937", origin, SIZE, 0, 0.0))
    random.random_sample(skip)
    for name, _ in tape:
        bound = bound_of(generator, shapes, name)
        drawn = torch.from_numpy(random.uniform(-bound, bound, shapes[name][::-1])).float()
        yield name, drawn.T.contiguous() if drawn.ndim == 2 else drawn


def bound_of(generator: Generator, shapes: Shapes, name: str) -> float:
    """Of the uniform numbers that fill a layer, its bias too."""
    shape = shapes[name.rpartition(".")[0] + ".weight"]
    return math.sqrt(6 / sum(shape)) if generator is NUMPY else 1 / math.sqrt(math.prod(shape[1:]))


def built(build: Callable[[], nn.Module], target: Target) -> Recipe:
    """A user's own function, which draws from PyTorch's generator; where it does is seen by playing it once."""

    def draw(origin: Origin, skip: int) -> Weights:
        with torch.random.fork_rng(devices=[]):
            set_torch(origin)
            torch.empty(skip).uniform_()
            module = build()
        initial = as_base(module, target)
        assert initial is not None
        return initial.weights

    played = draw(PROBE, 0)
    most = min(4 * sum(value.numel() for value in played.values()) + 1_000_000, MOST_PLAYED)
    stream = torch.from_numpy(TORCH.numbers(PROBE, most)).float()
    families: tuple[Family, ...] = ("uniform", "normal")
    found = (
        (name, family, _place(value, family, stream)) for name, value in played.items() for family in families
    )
    sites = tuple(
        Site(name, family, place, float(played[name].double().std()))
        for name, family, place in found
        if place is not None
    )
    return Recipe("the function that builds it", TORCH, draw, sites)


def drawn_anew(whole: Whole) -> Callable[[], nn.Module]:
    """A function that builds a model as most constructors do: its layers are drawn in the order of their names.

    PyTorch's own layers are: a `reset_parameters` of somebody else's may draw anything, or want arguments.
    """

    def build() -> nn.Module:
        module = copy.deepcopy(whole.module)
        for part in module.modules():
            draw = getattr(part, "reset_parameters", None)
            if type(part).__module__.startswith("torch.nn.modules.") and callable(draw):
                draw()
        return module

    return build


def _place(value: Tensor, family: Family, stream: Tensor) -> int | None:
    """Where in the stream the first numbers of a tensor stand; None if they do not."""
    if value.numel() < PROBED:
        return None
    numbers = torch.from_numpy(numbers_of(value.flatten(), family))[:PROBED].float()
    centred = numbers - numbers.mean()
    place = int(F.conv1d(stream[None, None], centred[None, None])[0, 0].argmax())
    pair = torch.stack([numbers, stream[place : place + PROBED]])
    return place if float(torch.corrcoef(pair)[0, 1]) > SURE else None


def numbers_of(values: Tensor, family: Family) -> Reals:
    """Rough numbers in [0, 1) that these values (m,) were made from.

    A block of 16 normal values is r cos θ and r sin θ, eight each; r² = −2 log(1 − u), θ = 2π u' (Box and Muller).
    """
    x = values.double().numpy()
    x = x / max(float(np.sqrt(np.mean(np.square(x)))), 1e-300)
    if family == "uniform":
        return x / 12**0.5 + 0.5
    x = x[: len(x) - len(x) % BLOCK].reshape(-1, 2, BLOCK // 2)
    radius, angle = -np.expm1(-np.square(x).sum(1) / 2), np.arctan2(x[:, 1], x[:, 0]) / (2 * np.pi) % 1
    return np.concatenate([radius, angle], 1).reshape(-1)
