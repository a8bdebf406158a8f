"""What an audit without a budget costs as things grow: seconds stated and taken, and the peak of memory.

    python benchmarks/growth.py [SIZE | SIZE:BUDGET ...]

SIZE is one of those below, or written out: 1x28x28,50,500 has 50 samples and 500 neurons. `budgets` stands for all
those of docs/scaling.md.

Nets are planted, not trained: W1 = Σ α_i x_iᵀ with random gates, on a small random start. So the data are known by
construction, and only the audit is measured. Each case runs in a process of its own. A budget, in seconds, is one of
the audit.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unfit import Auto, UnfitError, audit
from unfit.attacker.candidates import Candidates, Part
from unfit.attacker.method import gather
from unfit.auditor.case import case_of

RECTANGLES = 20  # in a picture
START = 0.1  # standard deviation of the start, where samples have values within ±0.5


@dataclass(frozen=True)
class Size:
    shape: tuple[int, int, int]
    n: int
    width: int
    num_candidates: int = 0  # 0: they are searched for


SIZES = {
    "usual": Size((3, 32, 32), 100, 1000),
    "samples": Size((3, 32, 32), 5000, 1000),
    "width": Size((3, 32, 32), 100, 4096),
    "64x64": Size((3, 64, 64), 100, 256),
    "128x128": Size((3, 128, 128), 100, 256),
    "224x224": Size((3, 224, 224), 100, 256),
    "candidates": Size((3, 32, 32), 100, 1000, 100_000),
}
BUDGETS = (
    "1x28x28,50,500:10",
    "1x28x28,500,500:10",
    "3x32x32,50,1000:10",
    "3x32x32,50,1000:30",
    "3x32x32,500,1000:30",
    "3x64x64,50,500:10",
    "3x64x64,50,500:30",
    "3x64x64,500,500:10",
    "3x64x64,500,500:30",
    "3x224x224,50,256:10",
    "3x224x224,50,256:60",
)


def size_of(text: str) -> Size:
    if text in SIZES:
        return SIZES[text]
    sides, n, width = text.split(",")
    channels, height, breadth = map(int, sides.split("x"))
    return Size((channels, height, breadth), int(n), int(width))


def pictures(n: int, shape: tuple[int, int, int], seed: int) -> Tensor:
    """Rectangles of random colours, one on top of the other: few edges, each where it is in no other picture."""
    random = torch.Generator().manual_seed(seed)
    x = torch.zeros(n, *shape)
    corners = torch.rand(n, RECTANGLES, 2, 2, generator=random).sort(-1).values * torch.tensor(shape[1:])[:, None]
    colours = torch.rand(n, RECTANGLES, shape[0], generator=random) - 0.5
    for picture, places, fills in zip(x, corners.long().tolist(), colours, strict=True):
        for ((top, bottom), (left, right)), fill in zip(places, fills, strict=True):
            picture[:, top : bottom + 1, left : right + 1] = fill[:, None, None]
    return x


def planted(size: Size, x: Tensor, y: Tensor) -> nn.Sequential:
    torch.manual_seed(0)
    first, last = nn.Linear(x[0].numel(), size.width), nn.Linear(size.width, 1, bias=False)
    gates = (torch.rand(size.n, size.width) < 0.5).float()
    signs = torch.where(torch.rand(size.width) < 0.5, -1.0, 1.0)
    columns = gates * signs * (2.0 * y[:, None] - 1)
    start = START * torch.randn_like(first.weight)
    first.weight.data = (start + columns.T @ x.flatten(1)) / x[0].numel()
    first.bias.data = columns.sum(0) / x[0].numel()
    last.weight.data = signs[None] / size.width**0.5
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last).requires_grad_(False)


def measure(name: str, budget: str) -> str:
    size = size_of(name)
    x, unseen = (pictures(size.n, size.shape, seed) for seed in (0, 1))
    net = planted(size, x, torch.arange(size.n) % 2)
    sets = [(each, (net(each)[:, 0] > 0).long()) for each in (x, unseen)]
    attack, given = Auto(seeds=0, budget=float(budget) if budget else None), None
    case = case_of(net, *sets)
    stated = attack.outlook(case.mixtures).seconds or 0.0
    if size.num_candidates:
        part = Part("given", torch.randn(size.num_candidates, *size.shape))
        given = gather(Auto(seeds=0), case.mixtures, [part], time.perf_counter())
    began, clock = time.process_time(), time.perf_counter()
    verdict = finished(net, sets, attack, given)
    took, wall = time.process_time() - began, time.perf_counter() - clock
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    limit = f", budget {budget} s" if budget else ""
    return f"{name}{limit}: stated {stated:.0f} s, processor {took:.0f} s, clock {wall:.0f} s, {peak:.1f} GiB, {verdict}"


def finished(net: nn.Sequential, sets: list[tuple[Tensor, Tensor]], attack: Auto, given: Candidates | None) -> str:
    if given is not None:
        return audit(net, *sets, candidates=given).verdict
    try:
        return audit(net, *sets, attack=attack).verdict
    except UnfitError as error:
        return f"refused: {error}"


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--one":
        name, _, seconds = sys.argv[2].partition(":")
        print(measure(name, seconds), flush=True)
    else:
        for each in BUDGETS if sys.argv[1:] == ["budgets"] else sys.argv[1:] or SIZES:
            subprocess.run([sys.executable, __file__, "--one", each], check=False)
