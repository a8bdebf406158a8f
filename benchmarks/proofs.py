"""How often is a proof wrong? python benchmarks/proofs.py DATA RESULTS [--proofs 10000] [--kinds faces,adapter] [--first 0]

Small nets are trained on few samples by the plain PyTorch code below, from a start that `peel` is given, and every proven
picture is compared with the samples. It is right if one of them has a correlation above 0.99 with it and lies within a
tenth of its own length. RESULTS gains a line of JSON for each net, and a run goes on where the last one ended. DATA holds
cifar-10-batches-bin and mnist. About three proofs a second on one core.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from scipy.stats import beta
from torch import Tensor, nn

from unfit import attack, draw, read_source
from unfit.auditor.samples import Source
from unfit.base.errors import NotApplicableError
from zoo import Pair, copied, loss_of, mlp

CORRELATION, ERROR = 0.99, 0.1  # with the sample, and relative to it: what a right picture is within
SIZES = (10, 10, 20, 20, 40)  # samples: few give most proofs a second
RATIOS = (6, 10, 16)  # neurons for each sample: few proofs, most, all
PICTURES = {
    "faces": ("faces", None),
    "CIFAR": ("cifar10", None),
    "MNIST": ("mnist", None),
    "digits": ("mnist", "all"),
}
TABLES = ("plain", "scaled", "correlated", "integers", "twins", "positive", "one-hot")
KINDS = (*PICTURES, *TABLES, "adapter", "counts", "features", "records")  # the last three have many exact zeros

Item = TypeVar("Item")


# Data ---------------------------------------------------------------------------------------------------------


def choose(items: tuple[Item, ...], random: torch.Generator) -> Item:
    return items[int(torch.randint(len(items), (1,), generator=random))]


@cache
def source(name: str, classes: str | None, data: Path) -> Source:
    place = {"cifar10": f":{data}", "mnist": f":{data / 'mnist'}"}.get(name, "")
    return read_source(name + place, classes)


def pictures(kind: str, n: int, data: Path, random: torch.Generator) -> Pair:
    """As the net sees them: less their mean."""
    name, classes = PICTURES[kind]
    drawn = draw(source(name, classes, data), n, int(torch.randint(10**6, (1,), generator=random)))
    return drawn.x - drawn.x.mean(0, keepdim=True), drawn.y


def table(kind: str, n: int, random: torch.Generator) -> Pair:
    """n rows of more columns, and a linear rule for their classes."""
    d = choose((math.ceil(1.3 * n) + 2, 2 * n, 4 * n), random)
    x = torch.randn(n, d, generator=random)
    if kind == "scaled":
        x = x * torch.rand(d, generator=random)
    if kind == "correlated":
        few = torch.randn(n, d // 8 + 2, generator=random)
        x = 0.3 * x + few @ torch.randn(few.shape[1], d, generator=random) / math.sqrt(few.shape[1])
    if kind == "integers":
        x = torch.randint(0, 10, (n, d), generator=random).float()
        x = (x - x.mean(0)) / x.std(0).clamp_min(1e-6)
    if kind == "twins":
        x[1::2] = x[::2][: n // 2] + choose((0.1, 0.3), random) * x[1::2]
    if kind == "positive":
        x = torch.rand(n, d, generator=random)
    if kind == "counts":  # as texts have them: a few words each, some words in many
        rare = torch.rand(4 * d, generator=random).pow(3)
        x = torch.poisson(choose((0.5, 1.5), random) * rare.expand(n, -1), generator=random)
    if kind == "features":  # as a ReLU leaves them, with something in common
        common = torch.randn(1, 4 * d, generator=random)
        x = (torch.randn(n, 4 * d, generator=random) + common - choose((0.0, 0.5), random)).clamp_min(0)
    if kind == "records":  # one-hot codes of columns with five values, some far more frequent
        share = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03])
        codes = torch.multinomial(share, n * d, replacement=True, generator=random).view(n, d)
        x = nn.functional.one_hot(codes, 5).flatten(1).float()
    if kind == "one-hot":
        codes = nn.functional.one_hot(torch.randint(0, 4, (n, d // 4), generator=random), 4).flatten(1)
        x[:, : codes.shape[1]] = codes.float()
    d = x.shape[1]
    return x, (x @ torch.randn(d, generator=random) > x.mean(1) * d**0.5).long()


# Nets ---------------------------------------------------------------------------------------------------------


def descend(net: nn.Module, pair: Pair, random: torch.Generator) -> nn.Module:
    """Gradient steps, with or without batches and momentum."""
    batch, momentum = choose((None, None, 8), random), choose((0.0, 0.9), random)
    lr, steps = choose((0.02, 0.05, 0.1), random), choose((60, 200), random)
    optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=lr, momentum=momentum)
    for _ in range(steps):
        chosen = torch.randperm(len(pair[0]), generator=random)[:batch]
        optimiser.zero_grad()
        loss_of(net, pair[0][chosen], pair[1][chosen]).backward()
        optimiser.step()
    return net.eval()


class Adapted(nn.Module):
    """A dense layer whose weight is fixed but for a product of rank r; so is its bias, or not."""

    def __init__(self, layer: nn.Linear, rank: int, bias: bool) -> None:
        super().__init__()
        self.layer = layer
        layer.weight.requires_grad_(False)
        layer.bias.requires_grad_(bias)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / math.sqrt(layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.down.T @ self.up.T

    def merged(self) -> nn.Linear:
        with torch.no_grad():
            self.layer.weight += self.up @ self.down
        return self.layer


def adapt(net: nn.Sequential, pair: Pair, random: torch.Generator) -> nn.Module:
    """Every dense layer by a low-rank update, which is merged into it."""
    rank, bias = choose((1, 2, 4, 8, 16), random), choose((True, False), random)
    adapted = nn.Sequential(*[Adapted(m, rank, bias) if isinstance(m, nn.Linear) else m for m in net])
    descend(adapted, pair, random)
    return (
        nn.Sequential(*[m.merged() if isinstance(m, Adapted) else m for m in adapted]).requires_grad_(True).eval()
    )


def nets(kind: str, seed: int, data: Path) -> tuple[nn.Module, nn.Module, Pair]:
    """The start, what training made of it, and on what."""
    random = torch.Generator().manual_seed(1000 * seed + KINDS.index(kind))
    n = choose((4, 20) if kind == "adapter" else SIZES, random)
    drawn = choose(("faces", "CIFAR", "MNIST", "plain"), random) if kind == "adapter" else kind
    pair = pictures(drawn, n, data, random) if drawn in PICTURES else table(drawn, n, random)
    outputs = 10 if drawn == "digits" else 1
    width = choose(RATIOS, random) * max(n, 10)
    start = mlp(pair[0][0].numel(), width, 50, outputs, seed=seed)
    train = adapt if kind == "adapter" else descend
    return start, train(copied(start), pair, random), pair


# Proofs -------------------------------------------------------------------------------------------------------


def compare(found: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each picture (m, d) the relative distance to the sample nearest to it, and the correlation with that."""
    error, which = (torch.cdist(found, x) / x.norm(dim=1)).min(1)
    pair = (each - each.mean(1, keepdim=True) for each in (found, x[which]))
    return error, nn.functional.cosine_similarity(*pair)


def prove(kind: str, seed: int, data: Path, method: str = "peel") -> dict[str, Any]:
    """One net: how many proofs, how far each is off, and how many of them are false; the same of estimates."""
    start, net, (x, _) = nets(kind, seed, data)
    began = time.perf_counter()
    row: dict[str, Any] = {"kind": kind, "seed": seed, "n": len(x), "read": None, "proofs": 0, "false": 0}
    try:
        found = attack(net, method, start)
    except NotApplicableError as error:
        return row | {"why": str(error)}
    error, correlation = compare(found.x.flatten(1), x.flatten(1))
    right, proven = (error < ERROR) & (correlation > CORRELATION), found.proven
    return row | {
        "read": found.facts["estimated_num_samples"],
        "proofs": int(proven.sum()),
        "false": int((proven & ~right).sum()),
        "estimates": int((~proven).sum()),
        "false_estimates": int((~proven & ~right).sum()),
        "errors": [round(each, 4) for each in error[proven].tolist()],
        "estimated_correlations": [round(each, 3) for each in correlation[~proven].tolist()],
        "correlation": round(float(correlation[proven].min()), 4) if proven.any() else None,
        "seconds": round(time.perf_counter() - began, 2),
    }


def upper(false: int, proofs: int, level: float = 0.95) -> float:
    """Clopper and Pearson's upper bound of the rate, one-sided: 3 / n where none of n is false."""
    return 1.0 if not proofs else float(beta.ppf(level, false + 1, proofs - false))


def report(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| kind | nets | samples | proven | false | at most (95%) | error: median, 99%, largest | estimated | of these off |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for kind in (*KINDS, "all"):
        chosen = [row for row in rows if kind in ("all", row["kind"])]
        samples, proofs, false, estimates, off = (
            sum(row.get(name, 0) for row in chosen)
            for name in ("n", "proofs", "false", "estimates", "false_estimates")
        )
        errors = torch.tensor([error for row in chosen for error in row.get("errors", ())], dtype=torch.float64)
        spread = (
            ", ".join(f"{v:.4f}" for v in errors.quantile(torch.tensor([0.5, 0.99, 1.0]).double()))
            if proofs
            else ""
        )
        yield (
            f"| {kind} | {len(chosen)} | {samples} | {proofs} | {false} | {upper(false, proofs):.2g} | {spread} "
            f"| {estimates} | {off} |"
        )


def read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def main(data: Path, results: Path, wanted: int, kinds: list[str], method: str, first: int) -> None:
    torch.set_num_threads(1)
    rows, seed = read(results), first
    while sum(row["proofs"] for row in rows) < wanted:
        for kind in kinds:
            if not any((row["kind"], row["seed"]) == (kind, seed) for row in rows):
                rows.append(prove(kind, seed, data, method))
                with results.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
        seed += 1
    print("\n".join(report(rows)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--proofs", type=int, default=10_000)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--attack", default="peel", help="cone has proofs, too")
    parser.add_argument(
        "--first", type=int, default=0, help="seed; a rule is tested on seeds that it did not come from"
    )
    given = parser.parse_args()
    main(given.data, given.results, given.proofs, given.kinds, given.attack, given.first)
