"""Disguises: does the normal form undo them without samples? python benchmarks/disguises.py [kinds]

For each kind of inputs a small net is trained and disguised in eleven ways. The normal form asks random inputs which
neurons fire. Prints how many of the plain net's neurons it holds, and how many others; and the same where samples
are asked instead, those trained on and others, which no attacker has.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from unfit import as_target, draw, draw_unseen, read_source
from unfit.base.normal import Probes, layers_of, normalised, probes

WIDTH, NEXT, DECOYS = 200, 60, 300
Layers = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Inputs:
    private: Tensor
    y: Tensor
    others: Tensor
    input_range: tuple[float, float] | None = None


def images(name: str, n: int, centred: bool, known: bool = False) -> Inputs:
    source = read_source(name)
    private = draw(source, n, 0)
    mean = private.mean if centred else torch.zeros(())
    others = draw_unseen(source, private, 60, 0)
    return Inputs(private.x - mean, private.y, others.x - mean, (0.0, 1.0) if known else None)


def records() -> Inputs:
    x, y = load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor((x - x.mean(0)) / x.std(0)).float()[order], torch.tensor(y)[order]
    return Inputs(x[:40], y[:40], x[40:140])


KINDS: dict[str, Callable[[], Inputs]] = {
    "faces, centred": lambda: images("faces", 40, centred=True),
    "faces, range known": lambda: images("faces", 40, centred=False, known=True),
    "faces, range unknown": lambda: images("faces", 40, centred=False),
    "digits, centred": lambda: images("mnist5k", 40, centred=True),
    "digits, range known": lambda: images("mnist5k", 40, centred=False, known=True),
    "records, standardised": records,
}


def trained(inputs: Inputs, scale: float | None) -> Layers:
    torch.manual_seed(0)
    d, k = inputs.private[0].numel(), int(inputs.y.max()) + 1
    net = nn.Sequential(nn.Linear(d, WIDTH), nn.ReLU(), nn.Linear(WIDTH, NEXT), nn.ReLU(), nn.Linear(NEXT, k))
    for parameter in net[0].parameters() if scale else ():
        nn.init.normal_(parameter, std=scale or 0)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(400):
        optimiser.zero_grad()
        F.cross_entropy(net(inputs.private.flatten(1)), inputs.y).backward()
        optimiser.step()
    return [(net[i].weight.detach().double(), net[i].bias.detach().double()) for i in (0, 2, 4)]


# Each takes the layers, rows of length 1 for decoys, and samples that tell how far these fire --------------------

Disguise = Callable[[Layers, Tensor, Tensor], Layers]


def widened(layers: Layers, rows: Tensor, bias: Tensor, following: Tensor) -> Layers:
    (weight, own), (second, after), *rest = layers
    first = torch.cat([weight, rows]), torch.cat([own, bias])
    return [first, (torch.cat([second, following], 1), after), *rest]


def random_columns(num: int) -> Tensor:
    return torch.randn(NEXT, num, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def dead(layers: Layers, rows: Tensor, x: Tensor) -> Layers:
    return widened(layers, 5 * rows, torch.zeros(len(rows)), torch.zeros(NEXT, len(rows)))


def never_on(factor: float) -> Disguise:
    """Neurons that need `factor` times what the samples fire them with."""

    def disguise(layers: Layers, rows: Tensor, x: Tensor) -> Layers:
        most = (x @ rows.T).amax(0).clamp_min(1e-3)
        return widened(layers, 5 * rows, -5 * factor * most, random_columns(len(rows)))

    return disguise


def cancelling(layers: Layers, rows: Tensor, x: Tensor) -> Layers:
    columns = 0.1 * random_columns(len(rows))
    return widened(layers, 5 * rows.repeat(2, 1), torch.zeros(2 * len(rows)), torch.cat([columns, -columns], 1))


def twice(layers: Layers, rows: Tensor, x: Tensor) -> Layers:
    (weight, bias), (second, after), *rest = layers
    return widened([(weight, bias), (0.7 * second, after), *rest], 3 * weight, 3 * bias, 0.1 * second)


def rescaled(layers: Layers, rows: Tensor, x: Tensor) -> Layers:
    (weight, bias), (second, after), *rest = layers
    factor = 10 ** (2 * torch.rand(len(weight), generator=torch.Generator().manual_seed(0)).double() - 1)
    return [(weight * factor[:, None], bias * factor), (second / factor, after), *rest]


def behind_identity(factor: float) -> Disguise:
    """ReLU(x + `factor` × the largest of the samples' values), and decoys that nothing reads."""

    def disguise(layers: Layers, rows: Tensor, x: Tensor) -> Layers:
        (weight, bias), *rest = layers
        shift, few, d = float(factor * (-x).amax()), 20 * rows[:10], x.shape[1]
        first = torch.cat([torch.eye(d).double(), few]), torch.cat([torch.full((d,), shift), torch.zeros(10)])
        second = torch.cat([weight, torch.zeros(len(weight), 10)], 1), bias - shift * weight.sum(1)
        return [(first[0], first[1].double()), second, *rest]

    return disguise


DISGUISES: dict[str, tuple[str, Disguise]] = {
    "dead neurons": ("mixtures", dead),
    "never on, 20 × what fires them": ("mixtures", never_on(20)),
    "never on, 2 ×": ("mixtures", never_on(2)),
    "never on, 1.02 ×": ("mixtures", never_on(1.02)),
    "never on, noise, 5 ×": ("noise", never_on(5)),
    "never on, noise, 1.02 ×": ("noise", never_on(1.02)),
    "pairs that cancel": ("mixtures", cancelling),
    "split in two": ("mixtures", twice),
    "rescaled": ("mixtures", rescaled),
    "ReLU(x + 4 × max)": ("mixtures", behind_identity(4)),
    "ReLU(x + 1.02 × max)": ("mixtures", behind_identity(1.02)),
}


def decoys(kind: str, inputs: Inputs) -> Tensor:
    random = torch.Generator().manual_seed(0)
    if kind == "noise":
        rows = torch.randn(DECOYS, inputs.private[0].numel(), generator=random)
    else:
        rows = torch.randn(DECOYS, 10, generator=random) @ inputs.others.flatten(1)[:10]
    return F.normalize(rows, dim=1).double()


def held(form: Layers, plain: Layers) -> str:
    """How many neurons of the plain net a form holds, up to their scale, and how many others."""
    own, other = (F.normalize(torch.cat([w, b[:, None]], 1), dim=1) for w, b in (plain[0], form[0]))
    if own.shape[1] != other.shape[1]:
        return f"0 + {len(other)}"
    alike = own @ other.T > 1 - 1e-8
    return f"{int(alike.any(1).sum())} + {int((~alike.any(0)).sum())}"


def form_of(layers: Layers, inputs: Inputs, x: Tensor | None) -> Layers:
    target = as_target(as_module(layers), tuple(inputs.private.shape[1:]), input_range=inputs.input_range)
    asked = probes(target) if x is None else Probes(x, (x,))
    return [(weight, bias) for weight, bias in normalised(layers_of(target), asked) if bias is not None]


def as_module(layers: Layers) -> nn.Module:
    parts: list[nn.Module] = [nn.Flatten()]
    for weight, bias in layers:
        dense = nn.Linear(weight.shape[1], len(weight))
        dense.weight.data, dense.bias.data = weight.float(), bias.float()
        parts += [dense, nn.ReLU()]
    return nn.Sequential(*parts[:-1]).requires_grad_(False)


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or KINDS:
        inputs = KINDS[name]()
        x = torch.cat([inputs.private, inputs.others]).flatten(1).double()
        for scale in (1e-4, None):
            plain = trained(inputs, scale)
            left = len(form_of(plain, inputs, None)[0][0]), len(form_of(plain, inputs, x)[0][0])
            initial = "standard" if scale is None else f"{scale:g}"
            print(
                f"\n{name} ({math.prod(inputs.private.shape[1:])} inputs), start {initial}: plain {left[0]}, {left[1]}"
            )
            print("| disguise | random inputs | samples |\n|---|---|---|")
            for words, (kind, disguise) in DISGUISES.items():
                layers = disguise(plain, decoys(kind, inputs), x)
                found = [held(form_of(layers, inputs, each), plain) for each in (None, x)]
                print(f"| {words} | {found[0]} | {found[1]} |", flush=True)


if __name__ == "__main__":
    main()
