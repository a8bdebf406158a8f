"""Models trained here that tests in several rooms attack: on images of a source, and on generated records."""

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from unfit.auditor.samples import Samples, draw, draw_unseen
from unfit.auditor.sources import read_source
from unfit.base.formats.layers import Affine
from unfit.base.nets import parse_architecture
from unfit.base.target import Target
from unfit.lab.fit import fit
from unfit.lab.settings import FitSettings


@cache
def on_images(name: str, text: str, n: int, classes: str | None = None) -> tuple[Target, Target, Samples, Samples]:
    """A net after training and before, what it was trained on, and as much that it never saw."""
    source = read_source(name, classes)
    members = draw(source, n, 0)
    unseen = draw_unseen(source, members, n, 0)
    outputs = 1 if members.num_classes == 2 else members.num_classes
    architecture = parse_architecture(text, members.shape, outputs)
    centred, others = members.centred(members.mean), unseen.centred(members.mean)
    settings = FitSettings(init=None, loss="logistic" if outputs == 1 else "ce", flow_time=1e3)
    done = fit(architecture, (centred.x, centred.y), (others.x, others.y), settings)
    after, before = (Target(architecture, weights, (-1.0, 1.0)) for weights in (done.weights, done.initial))
    return after, before, members, unseen


def records(num: int, random: np.random.Generator, sizes: tuple[int, ...] = (2, 5, 30, 40, 50)) -> np.ndarray:
    """One-hot groups: three of them large, as places, occupations and years are."""
    return np.concatenate([np.eye(size)[random.integers(size, size=num)] for size in sizes], 1)


def counts(num: int, random: np.random.Generator) -> np.ndarray:
    """Words by Zipf's law."""
    often = 1 / np.arange(1, 201)
    return np.stack([random.multinomial(20, often / often.sum()) for _ in range(num)]).astype(float)


def features(num: int, random: np.random.Generator) -> np.ndarray:
    """Behind a ReLU: half of them zero."""
    return np.maximum(random.normal(size=(num, 150)), 0)


def mixed(num: int, random: np.random.Generator) -> np.ndarray:
    """Records beside three columns of any sign and size, as standardised ages or incomes."""
    return np.concatenate([records(num, random), random.normal(size=(num, 3)) * (0.3, 1.0, 5.0)], 1)


def only_real(num: int, random: np.random.Generator) -> np.ndarray:
    """Too few one-hot columns to tell samples apart, beside many real ones."""
    return np.concatenate([np.eye(5)[random.integers(5, size=num)], random.normal(size=(num, 145))], 1)


def dense(num: int, random: np.random.Generator) -> np.ndarray:
    return random.normal(size=(num, 150))


def positive(num: int, random: np.random.Generator) -> np.ndarray:
    """Never negative, but never zero either."""
    return random.random(size=(num, 150)) + 0.1


def steep(num: int, random: np.random.Generator) -> np.ndarray:
    """Some values are hardly more than the zeros beside them."""
    return np.maximum(random.normal(size=(num, 150)) - 0.7, 0) ** 4


KINDS = {make.__name__: make for make in (records, counts, features, mixed, only_real, dense, positive, steep)}
NUM = 20


@cache
def on_records(
    kind: str, standardises: bool = False, decay: float = 0.0
) -> tuple[nn.Sequential, nn.Module, Tensor, Tensor]:
    """A plain PyTorch loop: the model, what it was before, its samples, and as many that it never saw.

    decay: Of the weights alone, as is usual.
    """
    drawn = KINDS[kind](2 * NUM, np.random.default_rng(1))
    x, unseen = (torch.tensor(part, dtype=torch.float32) for part in (drawn[:NUM], drawn[NUM:]))
    y = torch.arange(NUM) % 2
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], 120), nn.ReLU(), nn.Linear(120, 40), nn.ReLU(), nn.Linear(40, 1))
    if standardises:
        spread = x.std(0).where(x.std(0) > 0, 1.0)
        model.insert(0, Affine(1 / spread, -x.mean(0) / spread))
    base = copy.deepcopy(model)
    weights, biases = ([p for p in model.parameters() if p.ndim == ndim] for ndim in (2, 1))
    groups = [{"params": weights, "weight_decay": decay}, {"params": biases}]
    optimiser = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    for _ in range(150):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.float())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model, base, x, unseen


def without_order(target: Target) -> Target:
    """The same net with its neurons in another order, so that no seed draws its initial weights."""
    weights = dict(target.weights)
    for name, axis in (("layer1.weight", 0), ("layer1.bias", 0), ("layer2.weight", 1)):
        weights[name] = weights[name].flip(axis)
    return replace(target, weights=weights)
