"""What finding the initial weights changes: ordinary targets, trained with secret seeds, attacked with nothing known.

`python benchmarks/initial.py DATA [NAME …]`, DATA holding cifar-10-batches-bin and mnist, trains each target by a plain
PyTorch loop after `torch.manual_seed(secret)`, attacks it without its initial weights, finds the initial weights, and attacks again. Seeds
are sought among the 2²⁰ around the right one, since all of them take minutes for each target and change nothing but the
time; `--all` tries all, in order, and measures that. `--strangers 1000` counts false finds. `head` needs the packages of
vectors.py. What was measured is kept in runs/start, one file a target, and a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unfit import (
    Audit,
    Auto,
    FitSettings,
    Target,
    audit,
    draw,
    draw_unseen,
    fit,
    parse_architecture,
    read_source,
)
from unfit.attacker.initial import search_initial_weights
from unfit.attacker.initial.search import Trace, seeds_per_second, survivors
from unfit.attacker.initial.twister import SEEDS
from unfit.base.modules import as_target
from unfit.base.target import tensor_shapes
from vectors import heads

AROUND = 1 << 20
RUNS = Path("runs/start")


@dataclass(frozen=True)
class Plain:
    """A target as anyone would train it."""

    n: int
    data: str = "cifar10"
    classes: str | None = None
    hidden: tuple[int, ...] = (1000, 1000)
    conv: tuple[int, int] | None = None  # kernel, channels
    optimiser: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    settings: dict[str, float] = field(default_factory=lambda: {"lr": 0.05, "momentum": 0.9})
    steps: int = 400
    batch: int | None = None
    papers: bool = False  # H22's recipe: the first layer normal with 1e-4, gradient flow


CASES = {
    "sgd100": Plain(100),
    "sgd150": Plain(150),
    "batches": Plain(100, batch=10, settings={"lr": 0.01, "momentum": 0.9}, steps=1500),
    "decay1e-3": Plain(100, settings={"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}, steps=600),
    "decay1e-2": Plain(100, settings={"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-2}, steps=600),
    "adam": Plain(100, optimiser=torch.optim.Adam, settings={"lr": 1e-3}, steps=100),
    "adamw": Plain(100, optimiser=torch.optim.AdamW, settings={"lr": 1e-3, "weight_decay": 1e-2}, steps=100),
    "classes": Plain(100, classes="all"),
    "conv": Plain(50, hidden=(300,), conv=(5, 8), settings={"lr": 0.01, "momentum": 0.9}, steps=300),
    "mnist": Plain(200, data="mnist", classes="all", hidden=(512, 256)),
    "head": Plain(100, data="features", hidden=(500, 500)),
} | {f"papers{n}": Plain(n, papers=True) for n in (50, 100, 200, 500)}


def build(case: Plain, shape: tuple[int, ...], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    width = math.prod(shape)
    if case.conv:
        kernel, channels = case.conv
        layers += [nn.Conv2d(shape[0], channels, kernel), nn.ReLU()]
        width = channels * (shape[1] - kernel + 1) * (shape[2] - kernel + 1)
    layers.append(nn.Flatten())
    for next_width in case.hidden:
        layers += [nn.Linear(width, next_width), nn.ReLU()]
        width = next_width
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def train(case: Plain, x: Tensor, y: Tensor, secret: int) -> Target:
    outputs = 1 if case.classes is None else int(y.max()) + 1
    if case.papers:
        architecture = parse_architecture("1000-1000", tuple(x.shape[1:]), 1)
        return Target(
            architecture, fit(architecture, (x, y), (x, y), FitSettings(seed=secret & 0xFFFFFFFF)).weights
        )
    torch.manual_seed(secret)
    model = build(case, tuple(x.shape[1:]), outputs)
    optimiser = case.optimiser(model.parameters(), **case.settings)
    for _ in range(case.steps):
        chosen = slice(None) if case.batch is None else torch.randint(len(x), (case.batch,))
        phi = model(x[chosen])
        if outputs == 1:
            loss = nn.functional.binary_cross_entropy_with_logits(phi[:, 0], y[chosen].float())
        else:
            loss = nn.functional.cross_entropy(phi, y[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return as_target(model, tuple(x.shape[1:]))


def samples(case: Plain, folder: Path, seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Private and unseen ones as the network sees them: pictures centred, features of a pretrained body as they are."""
    if case.data == "features":
        x, y = map(torch.from_numpy, heads(folder, 2 * case.n, np.random.default_rng(seed)))
        return (x[: case.n], y[: case.n]), (x[case.n :], y[case.n :])
    place = {"cifar10": folder / "cifar-10-batches-bin", "mnist": folder / "mnist"}[case.data]
    source = read_source(f"{case.data}:{place}", case.classes)
    members = draw(source, case.n, seed)
    unseen = draw_unseen(source, members, case.n, seed)
    return (members.x - members.mean, members.y), (unseen.x - members.mean, unseen.y)


def counts(result: Audit) -> dict[str, Any]:
    record = result.record
    names = ("num_good", "num_good_unseen", "num_exact", "num_recovered", "estimated_num_samples")
    return {name: getattr(record, name) for name in names} | {"seconds": round(record.seconds["attack"], 1)}


def measure(name: str, repeat: int, folder: Path, all_seeds: bool) -> dict[str, Any]:
    case, secret = CASES[name], secrets.randbits(64)
    private, control = samples(case, folder, repeat)
    target = train(case, *private, secret)
    low = secret & 0xFFFFFFFF
    seeds = range(1 << 32) if all_seeds else range(max(0, low - AROUND // 2), min(1 << 32, low + AROUND // 2))
    processor = time.process_time()
    search = search_initial_weights(target, seeds=seeds)
    facts = search.record.facts | {"processor_seconds": round(time.process_time() - processor, 1)}
    right = search.initial is not None and search.initial.seed == low
    measured = {"n": case.n, "right": right, "start": facts}
    measured["before"] = counts(audit(target, private, control, attack=Auto(seeds=0)))
    if search.initial is not None:
        measured["after"] = counts(audit(target, private, control, base=search.initial.target))
    return measured


def strangers(num: int, seeds: int) -> int:
    """False finds: nets whose start PyTorch never drew, but Philox as on a GPU, or PCG64; moved as by training."""
    architecture = parse_architecture("100-50", (1, 15, 15), 1)
    found = 0
    for i in range(num):
        random = np.random.Generator((np.random.Philox if i % 2 else np.random.PCG64)())
        weights = {}
        for name, shape in tensor_shapes(architecture).items():
            bound = tensor_shapes(architecture)[name.replace("bias", "weight")][1] ** -0.5
            initial = random.uniform(-bound, bound, shape) + 0.1 * bound * random.standard_normal(shape)
            weights[name] = torch.from_numpy(initial).float()
        found += search_initial_weights(Target(architecture, weights), seeds=seeds).initial is not None
    return found


def speed() -> str:
    """All seeds at the first place, against independent numbers; a part of them at a later one."""
    trace = Trace(np.random.default_rng().random(4096))
    began = time.perf_counter()
    left = sum(1 for _ in survivors(trace, range(SEEDS)))
    seconds = time.perf_counter() - began
    told = [f"{SEEDS / seconds / 1e6:.1f} million seeds a second: all in {seconds:.0f} s, {left} to be looked at"]
    told.append(f"a later place: {seeds_per_second(replace(trace, place=5000)) / 1e6:.2f} million")
    return f"{torch.get_num_threads()} threads; " + "; ".join(told)


def row(name: str, measured: dict[str, Any]) -> str:
    initial, cells = measured["start"], [name, str(measured["n"]), "yes" if measured["right"] else "no"]
    cells.append(f"{initial['correlation']:.2f}, {initial['decay']:.2f}" if initial["found"] else "–")
    for stage in ("before", "after"):
        found = measured.get(stage)
        cells.append(f"{found['num_good']} ({found['num_good_unseen']}), {found['num_exact']}" if found else "–")
    return f"| {' | '.join(cells)} | {measured.get('after', {}).get('estimated_num_samples', '–')} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", default=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--strangers", type=int, default=0, help="nets to look for false finds in, instead")
    parser.add_argument("--all", action="store_true", dest="all_seeds")
    parser.add_argument("--speed", action="store_true", help="seeds per second, instead")
    given = parser.parse_args()
    if given.speed:
        print(speed())
        return
    if given.strangers:
        print(f"{strangers(given.strangers, 1 << 18)} of {given.strangers} starts of strangers found")
        return
    RUNS.mkdir(parents=True, exist_ok=True)
    print(
        "| target | n | found | correlation, decay | good before (unseen), proven | good after (unseen), proven | n read off |"
    )
    print("|---|---|---|---|---|---|---|")
    for repeat in range(given.repeats):
        for name in given.names:
            kept = RUNS / f"{name}_{repeat}{'_all' if given.all_seeds else ''}.json"
            if not kept.is_file():
                measured = measure(name, repeat, given.data, given.all_seeds)
                kept.write_text(json.dumps(measured, indent=1))
            print(row(name, json.loads(kept.read_text())), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
