"""Forty small models with known truth: does the verdict hold? python benchmarks/zoo.py DATA [names]

DATA holds cifar-10-batches-bin and mnist. Every model is trained by the plain PyTorch or scikit-learn code below. Each
entry says what is true: *leaks* (the private samples were trained on, and an attack of ours takes some of them),
*strangers* (they were not), or *blind* (trained on, but nothing that is given lets the attack see them). A `pass` on the
first or the last and a `leak` on the second are failures. Prints a line for each model, then truth × verdict.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from unfit import Auto, Policy, UnfitError, audit, draw, read_source

Truth = Literal["leaks", "strangers", "blind"]
Pair = tuple[Tensor, Tensor]
SEEDS = 1 << 20  # the models are seeded with small numbers; trying all seeds takes minutes where none fits
FORBIDDEN = {"leaks": "pass", "strangers": "leak", "blind": "pass"}


@dataclass(frozen=True)
class Question:
    """What is put to `unfit.audit`."""

    model: nn.Module
    private: Pair
    unseen: Pair
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    name: str
    truth: Truth
    ask: Callable[[Path], Question]


ZOO: list[Entry] = []


def entry(truth: Truth) -> Callable[[Callable[[Path], Question]], Callable[[Path], Question]]:
    """Put a function into the zoo under its own name."""

    def add(ask: Callable[[Path], Question]) -> Callable[[Path], Question]:
        ZOO.append(Entry(ask.__name__.replace("_", " "), truth, ask))
        return ask

    return add


# Data ---------------------------------------------------------------------------------------------------------


@cache
def samples(name: str, n: int, data: Path, classes: str | None = None, seed: int = 0) -> Pair:
    """n samples, shuffled, so that any part of them is like any other."""
    place = {"cifar10": f":{data}", "mnist": f":{data / 'mnist'}"}.get(name, "")
    drawn = draw(read_source(name + place, classes), n, seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return drawn.x[order], drawn.y[order]


def parts(pair: Pair, *sizes: int) -> list[Pair]:
    return list(zip(*(tensor[: sum(sizes)].split(sizes) for tensor in pair), strict=True))


def seen(pair: Pair, mean: Tensor, std: float = 1.0) -> Pair:
    """As the model sees them: less the mean of the training set, over its spread."""
    return (pair[0] - mean) / std, pair[1]


def sets(name: str, n: int, data: Path, classes: str | None = None, others: int = 0) -> list[Pair]:
    """Training samples, unseen ones, and strangers if asked for: centred by what was trained on."""
    chosen = parts(samples(name, 2 * n + others, data, classes), n, n, others)
    mean = chosen[0][0].mean(0, keepdim=True)
    return [seen(each, mean) for each in chosen]


# Models and their training ------------------------------------------------------------------------------------


def mlp(d: int, *widths: int, seed: int = 0, first: float | None = None) -> nn.Sequential:
    """A perceptron with PyTorch's own start; `first`: another scale of the first layer's."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    for width in widths:
        layers += [nn.Linear(d, width), nn.ReLU()]
        d = width
    net = nn.Sequential(*layers[:-1])
    if first is not None:
        for parameter in net[1].parameters():
            nn.init.normal_(parameter, std=first)
    return net


def loss_of(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    phi = net(x)
    if phi.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(phi[:, 0], y.float())
    return nn.functional.cross_entropy(phi, y)


def train(
    net: nn.Module, pair: Pair, steps: int = 500, lr: float = 0.1, decay: float = 0.0, kind: str = "sgd"
) -> nn.Module:
    """Full batches, as anybody would write it."""
    optimisers = {
        "sgd": lambda p: torch.optim.SGD(p, lr=lr, momentum=0.9, weight_decay=decay),
        "adam": lambda p: torch.optim.Adam(p, lr=lr, weight_decay=decay),
        "adamw": lambda p: torch.optim.AdamW(p, lr=lr, weight_decay=decay),
    }
    optimiser = optimisers[kind]([p for p in net.parameters() if p.requires_grad])
    for _ in range(steps):
        optimiser.zero_grad()
        loss_of(net, *pair).backward()
        optimiser.step()
    return net.eval()


def copied(net: nn.Sequential) -> nn.Sequential:
    again = nn.Sequential(
        *[type(m)(m.in_features, m.out_features) if isinstance(m, nn.Linear) else m for m in net]
    )
    again.load_state_dict(net.state_dict())
    return again


def small_start(name: str, n: int, data: Path, classes: str | None = None, k: int = 1) -> list[Any]:
    """H22's kind of target: a small first layer, trained until all is right."""
    private, unseen, strangers = sets(name, n, data, classes, others=n)
    d = private[0][0].numel()
    model = train(mlp(d, 500, 200, k, first=1e-4), private, steps=600, lr=0.05)
    return [model, private, unseen, strangers]


def decayed(name: str, n: int, data: Path, kind: str = "sgd", lr: float = 0.1, decay: float = 0.01) -> list[Any]:
    """Weight decay until the initial weights are gone."""
    private, unseen, strangers = sets(name, n, data, others=n)
    model = train(mlp(private[0][0].numel(), 300, 300, 1), private, steps=1000, lr=lr, decay=decay, kind=kind)
    return [model, private, unseen, strangers]


def fine_tuned(name: str, n: int, data: Path, kind: str = "sgd", lr: float = 0.02) -> list[Any]:
    """A public model, trained on 400 samples, then fine-tuned on n others."""
    public, private, unseen, strangers = parts(samples(name, 400 + 3 * n, data), 400, n, n, n)
    mean = public[0].mean(0, keepdim=True)
    public, private, unseen, strangers = (seen(each, mean) for each in (public, private, unseen, strangers))
    base = train(mlp(public[0][0].numel(), 600, 100, 1), public, steps=200, lr=0.05)
    model = train(copied(base), private, steps=200, lr=lr, kind=kind)
    return [model, private, unseen, strangers, base]


# Trained on the private samples -------------------------------------------------------------------------------


@entry("leaks")
def faces_small_start(data: Path) -> Question:
    return Question(*small_start("faces", 40, data)[:3])


@entry("leaks")
def faces_weight_decay(data: Path) -> Question:
    return Question(*decayed("faces", 40, data)[:3])


@entry("leaks")
def faces_ten_unseen(data: Path) -> Question:
    model, private, unseen, _ = decayed("faces", 40, data)
    return Question(model, private, parts(unseen, 10)[0])


@entry("leaks")
def faces_convolution(data: Path) -> Question:
    private, unseen, _ = sets("faces", 20, data)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 23 * 23, 200), nn.ReLU(), nn.Linear(200, 1)
    )
    return Question(train(net, private, steps=400, lr=0.05, decay=0.01), private, unseen)


@entry("leaks")
def cifar_small_start(data: Path) -> Question:
    return Question(*small_start("cifar10", 50, data)[:3])


@entry("leaks")
def cifar_weight_decay(data: Path) -> Question:
    return Question(*decayed("cifar10", 50, data)[:3])


@entry("leaks")
def cifar_adam_with_decay(data: Path) -> Question:
    return Question(*decayed("cifar10", 50, data, "adam", 1e-3, 1e-3)[:3])


@entry("leaks")
def cifar_adam_small_start(data: Path) -> Question:
    private, unseen, _ = sets("cifar10", 50, data)
    return Question(train(mlp(3072, 500, 200, 1, first=1e-4), private, 300, 1e-3, kind="adam"), private, unseen)


@entry("leaks")
def cifar_ten_classes(data: Path) -> Question:
    return Question(*small_start("cifar10", 50, data, "all", 10)[:3])


@entry("leaks")
def mnist_small_start(data: Path) -> Question:
    return Question(*small_start("mnist", 50, data)[:3])


@entry("leaks")
def mnist_ten_classes(data: Path) -> Question:
    return Question(*small_start("mnist", 50, data, "all", 10)[:3])


@entry("leaks")
def cifar_fine_tuned_base_known(data: Path) -> Question:
    model, private, unseen, _, base = fine_tuned("cifar10", 50, data)
    return Question(model, private, unseen, {"base": base})


@entry("leaks")
def cifar_fine_tuned_base_not_given(data: Path) -> Question:
    return Question(*fine_tuned("cifar10", 50, data)[:3])


@entry("leaks")
def cifar_fine_tuned_wrong_base(data: Path) -> Question:
    model, private, unseen, _, _ = fine_tuned("cifar10", 50, data)
    return Question(model, private, unseen, {"base": mlp(3072, 600, 100, 1, seed=9)})


@entry("leaks")
def cifar_fine_tuned_by_adam(data: Path) -> Question:
    model, private, unseen, _, base = fine_tuned("cifar10", 50, data, "adam", 1e-4)
    return Question(model, private, unseen, {"base": base})


@entry("leaks")
def cifar_fine_tuned_half_precision(data: Path) -> Question:
    model, private, unseen, _, base = fine_tuned("cifar10", 50, data)
    return Question(model.half().float(), private, unseen, {"base": base})


@entry("leaks")
def mnist_fine_tuned_base_known(data: Path) -> Question:
    model, private, unseen, _, base = fine_tuned("mnist", 40, data)
    return Question(model, private, unseen, {"base": base})


@entry("leaks")
def mnist_fine_tuned_base_not_given(data: Path) -> Question:
    return Question(*fine_tuned("mnist", 40, data)[:3])


@entry("leaks")
def tabular_base_known(data: Path) -> Question:
    """Fewer samples than inputs: proofs work on any numbers."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(120, 60, generator=random) * torch.rand(60, generator=random)
    y = (x @ torch.randn(60, generator=random) > 0).long()
    base = mlp(60, 400, 50, 1)
    private, unseen, _ = parts((x, y), 30, 60, 30)
    return Question(train(copied(base), private, 200, 0.05), private, unseen, {"base": base})


# Trained on the private samples, but given wrongly, or beyond the attack --------------------------------------


@entry("blind")
def cifar_channels_last(data: Path) -> Question:
    model, private, unseen, _ = small_start("cifar10", 50, data)
    wrong = [(x.permute(0, 2, 3, 1).reshape(x.shape), y) for x, y in (private, unseen)]
    return Question(model, *wrong)


@entry("blind")
def faces_transposed(data: Path) -> Question:
    model, private, unseen, _ = small_start("faces", 40, data)
    return Question(model, *[(x.transpose(2, 3), y) for x, y in (private, unseen)])


@entry("blind")
def cifar_not_divided_by_255(data: Path) -> Question:
    model, private, unseen, _ = decayed("cifar10", 50, data)
    return Question(model, *[(255 * x, y) for x, y in (private, unseen)])


@entry("blind")
def mnist_labels_in_another_order(data: Path) -> Question:
    model, private, unseen, _ = small_start("mnist", 50, data, "all", 10)
    return Question(model, *[(x, 9 - y) for x, y in (private, unseen)])


@entry("blind")
def cifar_standard_start(data: Path) -> Question:
    private, unseen, _ = sets("cifar10", 50, data)
    return Question(train(mlp(3072, 500, 200, 1), private, 300, 0.02), private, unseen)


@entry("blind")
def cifar_adam_standard_start(data: Path) -> Question:
    private, unseen, _ = sets("cifar10", 50, data)
    return Question(train(mlp(3072, 500, 200, 1), private, 200, 1e-4, kind="adam"), private, unseen)


@entry("blind")
def mnist_two_thousand(data: Path) -> Question:
    private, unseen, _ = sets("mnist", 2000, data)
    return Question(train(mlp(784, 300, 1, first=1e-4), private, 300, 0.1), private, unseen)


@entry("blind")
def tabular_more_samples_than_inputs(data: Path) -> Question:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(400, 20, generator=random)
    y = (x @ torch.randn(20, generator=random) > 0).long()
    base = mlp(20, 100, 1)
    private, unseen = parts((x, y), 200, 200)
    return Question(train(copied(base), private, 300, 0.05), private, unseen, {"base": base})


@entry("blind")
def head_on_features(data: Path) -> Question:
    """Features behind a ReLU: non-negative, half of them zero."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(3072, 600), nn.ReLU())
    torch.manual_seed(3)
    for parameter in body.parameters():
        nn.init.normal_(parameter, std=0.03)
    x, y = samples("cifar10", 120, data)
    with torch.no_grad():
        features = body(x - x.mean(0, keepdim=True))
    private, unseen = parts((features, y), 60, 60)
    return Question(train(mlp(600, 300, 1, first=1e-4), private, 400, 0.05), private, unseen)


@entry("blind")
def scikit_learn_digits(data: Path) -> Question:
    """MLPClassifier with its defaults: Adam, 100 hidden neurons, Glorot's start."""
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    fitted = MLPClassifier(random_state=42, max_iter=300).fit(x[:100], y[:100])
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    for layer, weight, bias in zip((net[1], net[3]), fitted.coefs_, fitted.intercepts_, strict=True):
        layer.weight.data, layer.bias.data = torch.tensor(weight.T).float(), torch.tensor(bias).float()
    images = torch.tensor(x).view(-1, 1, 8, 8)
    pair = (images, torch.tensor(y))
    return Question(net.eval(), *parts(pair, 100, 100), {"policy": Policy(window=3)})


@entry("blind")
def dropout_adam(data: Path) -> Question:
    private, unseen, _ = sets("mnist", 100, data)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 1))
    return Question(train(net, private, 200, 1e-3, kind="adam"), private, unseen)


# Strangers ----------------------------------------------------------------------------------------------------


@entry("strangers")
def faces_strangers(data: Path) -> Question:
    model, _, unseen, strangers = small_start("faces", 40, data)
    return Question(model, strangers, unseen)


@entry("strangers")
def cifar_strangers(data: Path) -> Question:
    model, _, unseen, strangers = small_start("cifar10", 50, data)
    return Question(model, strangers, unseen)


@entry("strangers")
def cifar_strangers_weight_decay(data: Path) -> Question:
    model, _, unseen, strangers = decayed("cifar10", 50, data)
    return Question(model, strangers, unseen)


@entry("strangers")
def mnist_strangers(data: Path) -> Question:
    model, _, unseen, strangers = small_start("mnist", 50, data)
    return Question(model, strangers, unseen)


@entry("strangers")
def mnist_strangers_against_t10k(data: Path) -> Question:
    """Both unseen by the model, from the two files of one data set."""
    model, _, _, strangers = small_start("mnist", 200, data)
    mean = samples("mnist", 600, data)[0][:200].mean(0, keepdim=True)
    test = read_source(f"mnist:{data / 'mnist'}").test
    assert test is not None
    taken = test.take(test.balanced(200, 0))
    return Question(model, strangers, seen((taken.x, taken.y), mean))


@entry("strangers")
def cifar_strangers_half_zeros(data: Path) -> Question:
    model, _, unseen, strangers = small_start("cifar10", 50, data)
    x = strangers[0].clone()
    x[:, :, 16:] = 0
    return Question(model, (x, strangers[1]), unseen)


@entry("strangers")
def cifar_strangers_brighter(data: Path) -> Question:
    model, _, unseen, strangers = small_start("cifar10", 50, data)
    return Question(model, (strangers[0] + 0.15, strangers[1]), unseen)


@entry("strangers")
def mnist_strangers_other_classes(data: Path) -> Question:
    """Among the private ones twice as many of the odd digits."""
    model, _, unseen, strangers = small_start("mnist", 60, data)
    odd, even = (strangers[1] == label for label in (1, 0))
    chosen = torch.cat([odd.nonzero()[:, 0], even.nonzero()[:10, 0]])
    return Question(model, (strangers[0][chosen], strangers[1][chosen]), unseen)


@entry("strangers")
def cifar_fine_tuned_strangers(data: Path) -> Question:
    model, _, unseen, strangers, base = fine_tuned("cifar10", 50, data)
    return Question(model, strangers, unseen, {"base": base})


@entry("strangers")
def untrained(data: Path) -> Question:
    private, unseen, _ = sets("faces", 40, data)
    return Question(mlp(625, 300, 100, 1).eval(), private, unseen)


@entry("strangers")
def faces_against_noise(data: Path) -> Question:
    model, _, unseen, strangers = small_start("faces", 40, data)
    noise = torch.randn(unseen[0].shape, generator=torch.Generator().manual_seed(0)) * unseen[0].std()
    return Question(model, strangers, (noise, unseen[1]))


# The table ----------------------------------------------------------------------------------------------------


def main(data: Path, names: list[str]) -> int:
    torch.set_num_threads(1)  # two wait for each other where others work too, and these nets are small
    counts: Counter[tuple[str, str]] = Counter()
    failures = 0
    began = time.perf_counter()
    for each in ZOO:
        if names and not any(name in each.name for name in names):
            continue
        started = time.perf_counter()
        said, words = verdict(each.ask(data))
        wrong = said == FORBIDDEN[each.truth]
        failures += wrong
        counts[each.truth, said] += 1
        spent = time.perf_counter() - started
        print(
            f"{'WRONG ' if wrong else ''}{each.name}: {each.truth}, said {said} ({spent:.0f} s): {words}",
            flush=True,
        )
    print("\n| truth | leak | inconclusive | pass |\n|---|---|---|---|")
    for truth in FORBIDDEN:
        print(
            "| "
            + " | ".join([truth, *(str(counts[truth, said]) for said in ("leak", "inconclusive", "pass"))])
            + " |"
        )
    print(f"\n{sum(counts.values())} models, {failures} wrong, {time.perf_counter() - began:.0f} s")
    return failures


def verdict(question: Question) -> tuple[str, str]:
    """What the audit says; an error refuses to say anything, which is not a pass."""
    try:
        attack = Auto(seeds=SEEDS)
        done = audit(question.model, question.private, question.unseen, attack=attack, **question.more)
    except UnfitError as error:
        return "inconclusive", f"refused: {error}"
    return done.verdict, "; ".join(done.record.reasons)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    sys.exit(min(1, main(given.data, given.names)))
