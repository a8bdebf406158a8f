"""What a client's update gives away: several local epochs in mini-batches from a global model that the server knows.

`python benchmarks/federated.py DATA [NAME …] [--repeats 3]`, DATA holding cifar-10-batches-bin and mnist, makes the updates by a
plain PyTorch loop and attacks the updated model with the global one as its base. What was measured is kept in
runs/federated, one file a client and seed, and a run that was stopped goes on where it was. `--table` prints what is there.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unfit import Auto, Samples, audit, draw, draw_unseen, read_source

RUNS = Path("runs/federated")
BUDGET = 900.0  # seconds after which no further run of an attack is begun
LEAST_UNSEEN = 50
OTHERS, ROUNDS = 2000, 3  # samples and epochs of a global model that is not random any more


@dataclass(frozen=True)
class Client:
    """What a client does with the global model. `batch` None and one epoch: a single gradient."""

    n: int = 50
    data: str = "cifar10"
    batch: int | None = 10
    epochs: int = 5
    lr: float = 0.02
    hidden: tuple[int, ...] = (500, 500)
    conv: tuple[int, int] | None = None  # kernel, channels
    pretrained: bool = False  # on other samples of the same source
    adam: bool = False
    momentum: float = 0.0
    noise: float = 0.0  # added to the update: standard deviation, of its own root mean square in each tensor
    half: bool = False  # the new weights are sent in float16
    raw: bool = False  # pictures from 0 to 1 instead of −1 to 1


PLAIN = Client()
GRADIENT = Client(batch=None, epochs=1, lr=0.1)
DIGITS = Client(data="mnist", lr=0.05, raw=True)
CASES = {
    "plain": PLAIN,
    "batch5": replace(PLAIN, batch=5),
    "batch25": replace(PLAIN, batch=25),
    "batch50": replace(PLAIN, batch=None),
    "epochs1": replace(PLAIN, epochs=1),
    "epochs20": replace(PLAIN, epochs=20),
    "lr0.002": replace(PLAIN, lr=0.002),
    "lr0.1": replace(PLAIN, lr=0.1),
    "width200": replace(PLAIN, hidden=(200, 200)),
    "width300": replace(PLAIN, hidden=(300, 300)),
    "width1000": replace(PLAIN, hidden=(1000, 1000)),
    "n16": replace(PLAIN, n=16),
    "n100": replace(PLAIN, n=100),
    "n100_width1000": replace(PLAIN, n=100, hidden=(1000, 1000)),
    "n200_width1000": replace(PLAIN, n=200, hidden=(1000, 1000)),
    "pretrained": replace(PLAIN, pretrained=True),
    "pretrained_width1000": replace(PLAIN, pretrained=True, hidden=(1000, 1000)),
    "momentum": replace(PLAIN, momentum=0.9, lr=0.005),
    "adam": replace(PLAIN, adam=True, lr=0.001),
    "half": replace(PLAIN, half=True),
    "noise1e-3": replace(PLAIN, noise=1e-3),
    "noise1e-2": replace(PLAIN, noise=1e-2),
    "noise1e-1": replace(PLAIN, noise=1e-1),
    "noise1": replace(PLAIN, noise=1.0),
    "noise10": replace(PLAIN, noise=10.0),
    "digits": DIGITS,
    "digits_normalised": replace(DIGITS, raw=False),
    "digits_pretrained": replace(DIGITS, pretrained=True),
    "digits_width1000": replace(DIGITS, hidden=(1000, 1000)),
    "gradient16": replace(GRADIENT, n=16),
    "gradient50": GRADIENT,
    "gradient100_width1000": replace(GRADIENT, n=100, hidden=(1000, 1000)),
    # as near as these data allow to what was published
    "spear20": replace(GRADIENT, n=20, hidden=(200,) * 5),
    "spear25": replace(GRADIENT, n=25, hidden=(200,) * 5),
    "spear25_width400": replace(GRADIENT, n=25, hidden=(400,) * 5),
    "spear++200": replace(GRADIENT, n=200, hidden=(1000, 1000)),
    "fedavg": replace(DIGITS, epochs=10, batch=5),
    "fedavg_pretrained": replace(DIGITS, epochs=10, batch=5, pretrained=True),
    "fedavg_conv": replace(DIGITS, epochs=10, batch=5, conv=(5, 8), hidden=(300,), lr=0.02),
    "cocktail256": replace(GRADIENT, n=256, hidden=(1000,)),
    "cocktail1024": replace(GRADIENT, n=1024, hidden=(2000,)),
}


def build(client: Client, shape: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    width = shape[0] * shape[1] * shape[2]
    if client.conv:
        kernel, channels = client.conv
        layers += [nn.Conv2d(shape[0], channels, kernel), nn.ReLU()]
        width = channels * (shape[1] - kernel + 1) * (shape[2] - kernel + 1)
    layers.append(nn.Flatten())
    for before, after in pairwise((width, *client.hidden)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(client.hidden[-1], 10))


def train(model: nn.Module, x: Tensor, y: Tensor, client: Client) -> None:
    """Local epochs as a client runs them: shuffled, every sample once an epoch."""
    if client.adam:
        optimiser: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=client.lr)
    else:
        optimiser = torch.optim.SGD(model.parameters(), lr=client.lr, momentum=client.momentum)
    for _ in range(client.epochs):
        for chosen in torch.randperm(len(x)).split(client.batch or len(x)):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimiser.step()


def sent(model: nn.Module, initial: nn.Module, client: Client) -> nn.Module:
    """What the server can know of the new weights."""
    before = initial.state_dict()
    for name, value in model.state_dict().items():
        if client.noise:
            change = value - before[name]
            value += client.noise * change.square().mean().sqrt() * torch.randn(value.shape)
        if client.half:
            value.copy_(value.half())
    return model


def samples(client: Client, folder: Path, seed: int) -> tuple[Samples, Samples, Samples]:
    """The client's, at least 50 unseen ones, and those that others trained the global model on."""
    place = {"cifar10": folder / "cifar-10-batches-bin", "mnist": folder / "mnist"}[client.data]
    source = read_source(f"{client.data}:{place}", "all")
    drawn = draw(source, _tens(client.n), seed)
    drawn = drawn.at(torch.randperm(len(drawn), generator=torch.Generator().manual_seed(seed))[: client.n])
    rest = draw_unseen(source, drawn, _tens(max(client.n, LEAST_UNSEEN)) + OTHERS, seed)
    order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed))
    return drawn, rest.at(order[:-OTHERS]), rest.at(order[-OTHERS:])


def _tens(num: int) -> int:
    """Sets are drawn with as many of each of the ten classes."""
    return -10 * (-num // 10)


def measure(client: Client, folder: Path, seed: int) -> dict[str, Any]:
    own, unseen, others = samples(client, folder, seed)
    x = _seen(own, client)
    torch.manual_seed(seed)
    initial = build(client, own.shape)
    if client.pretrained:
        train(initial, _seen(others, client), others.y, Client(batch=32, epochs=ROUNDS, lr=0.05))
    model = copy.deepcopy(initial)
    train(model, x, own.y, client)
    model = sent(model, initial, client)
    began, processor = time.perf_counter(), time.process_time()
    record = audit(model, x, _seen(unseen, client), base=initial, attack=Auto(budget=BUDGET)).record
    names = (
        *("num_samples", "num_unseen", "num_exact", "num_candidates_with_proof", "num_good", "num_good_unseen"),
        *("num_recognisable", "num_recognisable_unseen", "num_recovered", "num_recovered_unseen"),
        *("estimated_num_samples", "verdict"),
    )
    with torch.no_grad():
        right = float((model(x).argmax(1) == own.y).float().mean())
    return {name: getattr(record, name) for name in names} | {
        "accuracy": right,
        "seconds": round(time.perf_counter() - began, 1),
        "processor_seconds": round(time.process_time() - processor, 1),
    }


def _seen(drawn: Samples, client: Client) -> Tensor:
    return drawn.x if client.raw else 2 * drawn.x - 1


def row(name: str, measured: list[dict[str, Any]]) -> str:
    def cell(key: str) -> str:
        return ", ".join(str(each[key]) for each in measured)

    cells = [name, f"{measured[0]['num_samples']}", cell("num_exact")]
    cells += [
        f"{cell(key)} ({cell(f'{key}_unseen')})" for key in ("num_good", "num_recognisable", "num_recovered")
    ]
    cells += [cell("estimated_num_samples"), f"{statistics.mean(each['accuracy'] for each in measured):.0%}"]
    cells += [
        f"{max(each['seconds'] for each in measured):.0f}",
        f"{max(each['processor_seconds'] for each in measured):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def table(names: list[str]) -> None:
    print("| client | n | proven | good (unseen) | recognisable | recovered | n read off | accuracy | s | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in names:
        kept = [json.loads(path.read_text()) for path in sorted(RUNS.glob(f"{name}_[0-9].json"))]
        if kept:
            print(row(name, kept))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", default=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="print what is there; measure nothing")
    given = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    for seed in () if given.table else range(given.repeats):
        for name in given.names:
            kept = RUNS / f"{name}_{seed}.json"
            if not kept.is_file():
                kept.write_text(json.dumps(measure(CASES[name], given.data, seed), indent=1))
                print(row(name, [json.loads(kept.read_text())]), flush=True)
    table(given.names)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
