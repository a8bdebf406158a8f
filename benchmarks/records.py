"""How often is a proven record wrong? python benchmarks/records.py RESULTS [--nets 1000] [--first 0]

Small nets are trained on few one-hot records, or on counts of words with many near-copies among them, by the plain PyTorch
loop below, from known initial weights: few or many groups, even or uneven values, records that resemble each other, real columns beside
the codes, narrow and wide layers, one gradient step or hundreds, weights that decay and biases that do not. Every sample that the attack `cone` calls proven is compared
with the true ones. Kinds that hold samples which are no records are controls: mixtures of the same records instead of records,
one such mixture among them, low-rank updates. RESULTS gains a line of JSON for each net, and a run goes on where the last one ended.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import beta
from torch import Tensor, nn

from unfit import Cone, attack
from unfit.base.errors import NotApplicableError

KINDS = ("records", "alike", "mixed", "crowded", "gradient", "texts", "one mixture", "shares", "low rank")
RIGHT = 0.01  # relative distance from a sample
BUDGET = 10.0


def codes(n: int, random: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
    """One-hot records, their values by Zipf's law or more evenly."""
    often = [1 / np.arange(1, size + 1) ** random.choice([0.0, 0.5, 1.0, 1.5]) for size in sizes]
    return np.concatenate([np.eye(len(p))[random.choice(len(p), size=n, p=p / p.sum())] for p in often], 1)


def resembling(n: int, random: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
    """Records of a few households: each has its own value in one or two groups."""
    own, shared = (
        codes(n, random, sizes),
        codes(max(2, n // 4), random, sizes)[random.integers(max(2, n // 4), size=n)],
    )
    group = np.repeat(np.arange(len(sizes)), sizes)
    differs = random.random((n, len(sizes))) < random.choice([1, 2]) / len(sizes)
    return np.where(differs[:, group], own, shared)


def texts(n: int, random: np.random.Generator) -> np.ndarray:
    """Counts of words by Zipf's law; some texts are another with one or two words exchanged."""
    often = 1 / np.arange(1, 6 * n + 60)
    x = np.stack([random.multinomial(random.integers(10, 30), often / often.sum()) for _ in range(n)]).astype(
        float
    )
    for i in range(1, n // 3):
        x[i] = x[random.integers(i)]
        for word in random.choice(len(often), size=random.integers(1, 3)):
            x[i, random.choice(np.flatnonzero(x[i]))] = 0
            x[i, word] += 1
    return x


def drawn(kind: str, n: int, random: np.random.Generator) -> np.ndarray:
    """n rows, without copies."""
    if kind == "texts":
        return np.unique(texts(n, random), axis=0)
    few = kind == "crowded"
    sizes = random.integers(2, 8 if few else 40, size=random.integers(3, 6) if few else random.integers(4, 9))
    x = (resembling if kind == "alike" else codes)(n, random, sizes)
    if kind == "mixed":
        x = np.concatenate([x, random.normal(size=(n, 4)) * (0.3, 1, 1, 5)], 1)
    if kind == "one mixture":
        x[0] = (x[0] + x[1]) / 2
    if kind == "shares":
        share = random.random((n, 1))
        x = share * x + (1 - share) * x[random.permutation(n)]
    return np.unique(x, axis=0)


class LowRank(nn.Module):
    """A fixed layer and an update of low rank, with a bias that is trained."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        layer.weight.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + x @ self.down.T @ self.up.T


def trained(kind: str, x: Tensor, y: Tensor, random: np.random.Generator) -> tuple[nn.Module, nn.Module]:
    """A model, and what it was before."""
    width = int(len(x) * random.choice([1.3, 2, 4, 8])) + 8
    sides = [x.shape[1], width, *([40] if random.random() < 0.5 else [])]
    layers = [module for before, after in pairwise(sides) for module in (nn.Linear(before, after), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(sides[-1], 1))
    initial = copy.deepcopy(model)
    if kind == "low rank":
        model[0] = LowRank(model[0], int(random.integers(2, len(x))))
    momentum, lr = random.choice([0.0, 0.9]), random.choice([0.02, 0.1, 0.3])
    steps, batch = (1, len(x)) if kind == "gradient" else (random.choice([5, 50, 300]), random.choice([8, len(x)]))
    decay = random.choice([0.0, 0.0, 1e-5, 1e-3, 1e-2])
    weights, biases = ([p for p in model.parameters() if p.requires_grad and p.ndim == ndim] for ndim in (2, 1))
    of_biases = {"params": biases, "weight_decay": decay * random.choice([0, 1])}
    optimiser = torch.optim.SGD([{"params": weights, "weight_decay": decay}, of_biases], lr=lr, momentum=momentum)
    for _ in range(steps):
        chosen = torch.randperm(len(x))[:batch]
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(x[chosen])[:, 0], y[chosen]).backward()
        optimiser.step()
    if kind == "low rank":
        with torch.no_grad():
            model[0].layer.weight += model[0].up @ model[0].down
        model[0] = model[0].layer
    return model.requires_grad_(True), initial


def measure(net: int) -> dict[str, Any]:
    kind, random = KINDS[net % len(KINDS)], np.random.default_rng(net)
    torch.manual_seed(net)
    x = torch.tensor(drawn(kind, int(random.choice([12, 25, 50])), random), dtype=torch.float32)
    y = torch.tensor(random.integers(2, size=len(x))).float()
    model, initial = trained(kind, x, y, random)
    began = time.process_time()
    if not all(p.isfinite().all() for p in model.parameters()):
        return {"net": net, "kind": kind, "why": "training diverged"}
    said = {"net": net, "kind": kind, "samples": len(x), "proven": 0, "false": 0, "right": 0, "estimated": 0}
    try:
        found = attack(model, Cone(budget=BUDGET), initial)
    except NotApplicableError as error:
        return said | {"why": str(error)[:60]}
    near = torch.cdist(found.x.flatten(1).double(), x.double()).min(1).values / x.double().norm(dim=1).mean()
    right = near < RIGHT
    return said | {
        "proven": int(found.proven.sum()),
        "false": int((found.proven & ~right).sum()),
        "right": int(right.sum()),
        "estimated": int((~found.proven).sum()),
        "estimated_false": int((~found.proven & ~right).sum()),
        "processor_seconds": round(time.process_time() - began, 2),
    }


def table(kept: list[dict[str, Any]]) -> None:
    print("| kind | nets | samples | proven | false | at most (95%) | not proven | of these right |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in (*KINDS, "all"):
        rows = [row for row in kept if kind in (row["kind"], "all")]
        total = Counter[str]()
        for row in rows:
            total.update({key: value for key, value in row.items() if isinstance(value, int)})
        right = total["proven"] - total["false"]
        bound = f"{beta.ppf(0.95, total['false'] + 1, right):.2g}" if right else ""
        cells = [len(rows), total["samples"], total["proven"], total["false"], bound, total["estimated"]]
        print(f"| {kind} | {' | '.join(map(str, cells))} | {total['estimated'] - total['estimated_false']} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--nets", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    kept = [json.loads(line) for line in given.results.open()] if given.results.is_file() else []
    known = {row["net"] for row in kept}
    with given.results.open("a") as results:
        for net in range(given.first, given.first + given.nets):
            if net not in known:
                kept.append(measure(net))
                print(json.dumps(kept[-1]), file=results, flush=True)
    table(kept)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
