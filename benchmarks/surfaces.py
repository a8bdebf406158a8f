"""Models with several ways in: is the way that holds the samples attacked? python benchmarks/surfaces.py [seeds]

The private samples are in one branch, member or tower; the others were trained on other samples. Prints the verdict,
and how many samples are recognisable: in all, and from each layer through which samples enter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unfit import Unmix, audit, draw, draw_unseen, read_source

N, SHAPE, CUT = 20, (1, 25, 25), 5
Pair = tuple[Tensor, Tensor]


class Branches(nn.Module):
    """a(x) + 0.3 · b(x)"""

    def __init__(self, a: nn.Module, b: nn.Module) -> None:
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + 0.3 * self.b(x)


class Ensemble(nn.Module):
    def __init__(self, *members: nn.Module) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(0)


class Towers(nn.Module):
    """Each tower receives some of the rows of an image."""

    def __init__(self, top: nn.Module, bottom: nn.Module) -> None:
        super().__init__()
        self.top, self.bottom = top, bottom

    def forward(self, x: Tensor) -> Tensor:
        return self.top(x[:, :, :CUT]) + self.bottom(x[:, :, CUT:])


@dataclass(frozen=True)
class Sets:
    private: Pair
    others: Pair  # what the other parts of a model were trained on
    unseen: Pair


def sets(seed: int) -> Sets:
    source = read_source("faces")
    private = draw(source, N, seed)
    rest, mean = draw_unseen(source, private, 3 * N, seed), private.mean
    x, y = rest.x - mean, rest.y
    at = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return Sets((private.x - mean, private.y), (x[at[:N]], y[at[:N]]), (x[at[N:]], y[at[N:]]))


def trained(pair: Pair, seed: int) -> nn.Module:
    """From a small first layer, which leaves samples to be unmixed without a base."""
    torch.manual_seed(seed)
    d = pair[0][0].numel()
    net = nn.Sequential(nn.Flatten(), nn.Linear(d, 300), nn.ReLU(), nn.Linear(300, 2))
    nn.init.normal_(net[1].weight, std=1e-4)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(pair[0]), pair[1]).backward()
        optimiser.step()
    return net


def rows(pair: Pair, which: slice) -> Pair:
    return pair[0][:, :, which], pair[1]


def branches(data: Sets, seed: int) -> nn.Module:
    return Branches(trained(data.others, seed), trained(data.private, seed + 100))


def ensemble(data: Sets, seed: int) -> nn.Module:
    return Ensemble(trained(data.others, seed), trained(data.private, seed + 100))


def towers(data: Sets, seed: int) -> nn.Module:
    top, bottom = rows(data.others, slice(0, CUT)), rows(data.private, slice(CUT, None))
    return Towers(trained(top, seed), trained(bottom, seed + 100))


MODELS: dict[
    str, tuple[Callable[[Sets, int], nn.Module], tuple[str, str]]
] = {  # the second layer: private samples
    "two branches": (branches, ("a.1", "b.1")),
    "ensemble of two": (ensemble, ("members.0.1", "members.1.1")),
    "two towers": (towers, ("top.1", "bottom.1")),
}


def main(num: int) -> None:
    print(
        "| model | seed | verdict | recognisable, on unseen | layer of the others | layer of the private samples |"
    )
    print("|---" * 6 + "|")
    for name, (make, layers) in MODELS.items():
        for seed in range(num):
            data = sets(seed)
            found = audit(make(data, seed), data.private, data.unseen, attack=Unmix(), input_shape=SHAPE).record
            by_layer = {each.layer: str(each.num_recognisable) for each in found.surfaces}
            counts = f"{found.num_recognisable} / {found.num_recognisable_unseen}"
            cells = [name, str(seed), found.verdict, counts, *(by_layer[layer] for layer in layers)]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
