"""What a second copy of the weights gives away: python benchmarks/checkpoints.py FOLDER RUNS [SECONDS]

Plain PyTorch nets whose initial weights no search finds. What is found stands in RUNS, so that a benchmark that was
stopped resumes; rows that are not begun within SECONDS are left out. FOLDER holds cifar-10-batches-bin.
"""

from __future__ import annotations

import copy
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from page import SEEDS, spread, write_section
from unfit import Auto, Target, Unmix, as_target, audit, draw, draw_unseen, load_target, read_source
from unfit.attacker.series import is_of_one_training
from unfit.auditor.audit import attack_all
from unfit.auditor.case import case_of
from unfit.auditor.conclude import concluded
from unfit.auditor.examine import examine
from unfit.auditor.policy import Policy
from unfit.auditor.samples import Source
from unfit.auditor.watch import Watch
from unfit.base.files import read_json, write_json
from unfit.base.load import with_checkpoints

BUDGET = "120s"  # of each audit
ADAM = 1e-3  # its learning rate
Step = Callable[[nn.Module], torch.optim.Optimizer]
State = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """How a net is trained, and which of its states are published. `kept`: after which steps."""

    name: str
    slug: str
    n: int  # samples that it is trained on
    width: int
    kept: tuple[int, ...]
    batch: int | None = None
    adam: bool = False
    average: float | None = None  # decay of an average in the same file, in place of other checkpoints
    seeds: tuple[int, ...] = (0,)


GOALS = (
    Goal("an average in the file, decay 0.99, batches of 20", "ema60", 60, 600, (300,), 20, average=0.99, seeds=SEEDS),
    Goal("Adam with its state, five batches of 20 apart, from step 10", "adam10", 2000, 600, (10, 15), 20, adam=True, seeds=SEEDS),
    Goal("Adam with its state, five batches of 20 apart, from step 400", "adam400", 2000, 600, (400, 405), 20, adam=True),
    Goal("initial weights and four checkpoints", "four", 60, 160, (0, 19, 75, 169, 300)),
    Goal("initial weights and one checkpoint", "one", 60, 160, (0, 300)),
    Goal("an average in the file, decay 0.99, batches of 20", "ema100", 100, 600, (300,), 20, average=0.99),
    Goal("an average in the file, decay 0.999, batches of 20", "ema100b", 100, 600, (300,), 20, average=0.999),
    Goal("an average in the file, decay 0.9999, batches of 20", "ema100c", 100, 600, (300,), 20, average=0.9999),
    Goal("initial weights and three checkpoints", "three", 300, 1000, (0, 33, 133, 300)),
)  # fmt: skip


def plain(width: int, seed: int, d: int = 3072) -> nn.Sequential:
    """Standard initial weights in an order that no seed gives."""
    torch.manual_seed(seed)
    layers = nn.Linear(d, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    net = nn.Sequential(nn.Flatten(), *layers)
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(value.flatten()[torch.randperm(value.numel())].view_as(value))
    return net


def trained(goal: Goal, seed: int, x: Tensor, y: Tensor) -> tuple[list[State], list[int]]:
    """The states that are kept, as a trainer saves them, and the samples that were used between first and last."""
    net, used, states = plain(goal.width, seed, x[0].numel()), set[int](), list[State]()
    average = copy.deepcopy(net)
    optimiser = (
        torch.optim.Adam(net.parameters(), ADAM) if goal.adam else torch.optim.SGD(net.parameters(), 0.05, 0.9)
    )
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    for step in range(max(goal.kept) + 1):
        if step in goal.kept:
            state = {"state_dict": net.state_dict()} | ({"optimizer": optimiser.state_dict()} if goal.adam else {})
            state |= {"state_dict_ema": average.state_dict()} if goal.average else {}
            states.append(copy.deepcopy(state))
        some = (
            order
            if goal.batch is None
            else order[torch.arange(step * goal.batch, (step + 1) * goal.batch) % len(x)]
        )
        used |= set(some.tolist()) if len(states) and step < max(goal.kept) else set()
        steps(net, optimiser, x, y, some)
        for mean, own in zip(average.parameters(), net.parameters(), strict=True):
            mean.data.lerp_(own.data, 1 - (goal.average or 0.0))
    return states, sorted(used) or list(range(len(x)))


def read(states: list[State], folder: Path) -> Target:
    """The last state, with the others as further checkpoints."""
    paths = [folder / f"{i}.pt" for i in range(len(states))]
    for path, state in zip(paths, states, strict=True):
        torch.save(state, path)
    return with_checkpoints(load_target(paths[-1]), paths[:-1])


def measured(goal: Goal, seed: int, folder: str, runs: Path) -> dict[str, Any]:
    kept = runs / f"{goal.slug}_{seed}.json"
    if not kept.is_file():
        source = read_source(f"cifar10:{folder}")
        samples = draw(source, goal.n, seed)
        x, y = samples.x - samples.mean, samples.y
        states, used = trained(goal, seed, x, y)
        with tempfile.TemporaryDirectory() as scratch:
            target = read(states, Path(scratch))
        unseen = draw_unseen(source, samples, len(used) - len(used) % 2, seed)
        private = x[used], y[used]
        began = time.process_time()
        done = audit(target, private, (unseen.x - samples.mean, unseen.y), attack=Auto(seeds=0, budget=BUDGET))
        record = done.record
        alone = next((each for each in record.surfaces if each.name == "weights"), None)
        counts = {
            "asked": len(used), "exact": done.num_exact, "recognisable": done.num_recognisable,
            "exact_unseen": record.num_exact_unseen, "recognisable_unseen": record.num_recognisable_unseen,
            "alone": alone.num_recognisable if alone else 0, "verdict": done.verdict,
            "surface": record.surfaces[0].name, "seconds": time.process_time() - began,
        }  # fmt: skip
        write_json(kept, counts)
    return dict(read_json(kept))


def goals(folder: str, runs: Path, seconds: float) -> Iterator[str]:
    yield "`python benchmarks/checkpoints.py FOLDER RUNS`: plain PyTorch, 3072-w-w-1, standard initial weights in an order that no seed gives,"
    yield "CIFAR-10 less its mean; SGD with momentum 0.9 in full batches for 300 steps, where nothing else is said. The last state is audited with"
    yield f'`Auto(seeds=0, budget="{BUDGET}")`, with all other states given. *weights alone*: what the surface of the weights gives in the same audit.'
    yield "Of Adam only the samples between both checkpoints are asked for. Processor seconds of one thread, of the whole audit."
    yield ""
    yield "| published | samples, width | seeds | asked for | exact (unseen) | recognisable (unseen) | weights alone | best surface | verdicts | processor seconds |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    began = time.perf_counter()
    for goal in GOALS:
        seeds = [
            seed
            for seed in goal.seeds
            if (runs / f"{goal.slug}_{seed}.json").is_file() or time.perf_counter() - began < seconds
        ]
        rows = [measured(goal, seed, folder, runs) for seed in seeds]
        if not rows:
            continue
        column = {key: [row[key] for row in rows] for key in rows[0]}
        cells = [
            goal.name, f"{goal.n}, {goal.width}", ", ".join(map(str, seeds)), spread(column["asked"]),
            *(f"{spread(column[key])} ({spread(column[f'{key}_unseen'])})" for key in ("exact", "recognisable")),
            spread(column["alone"]), ", ".join(dict.fromkeys(column["surface"])), ", ".join(column["verdict"]),
            spread(column["seconds"], digits=0),
        ]  # fmt: skip
        line = f"| {' | '.join(cells)} |"
        print(line, flush=True)
        yield line


# Controls -------------------------------------------------------------------------------------------------------

RUNS_OF_TWO = 100  # pairs of states of two trainings, and of one
FACES, WIDTH, FEW, AUDITS = (1, 25, 25), 60, 12, 12  # … and files of each kind that are audited with strangers
QUICK = Unmix(ranks=(1.0,), runs=(("root", False),), iterations=100)


def controls() -> Iterator[str]:
    yield "Embedded faces, 625-60-60-1, 12 images. Pairs of states by five ways of training (SGD in full batches, in batches, with weight decay;"
    yield "Adam; first weights of 1e-4), after 10 to 30 and after 60 steps: of two trainings, and of one. Then the verdict on strangers: each net"
    yield "is audited with its other states (an average in the file; three checkpoints; two with Adam's state) and with 12 images that it never saw,"
    yield "by `Unmix` in one run, also where an audit would refuse them as samples that the model does not know."
    yield ""
    yield "| control | of | wrong | verdicts |"
    yield "|---|---|---|---|"
    source, wrong = read_source("faces"), Counter[str]()
    for seed in range(RUNS_OF_TWO // 5):
        for way in range(5):
            first, second = (states_of(way, 1000 * other + seed, source) for other in (0, 1))
            wrong["two"] += is_of_one_training(first[0], second[1])
            wrong["one"] += not is_of_one_training(*first)
    for name, words in (("two", "two trainings, not refused"), ("one", "one training, refused")):
        yield f"| {words} | {RUNS_OF_TWO} | {wrong[name]} | |"
        print(words, wrong[name], flush=True)
    for kind in ("an average in the file", "three checkpoints", "two checkpoints with Adam's state"):
        said = Counter(strangers(kind, seed, source) for seed in range(AUDITS))
        verdicts = ", ".join(f"{num} {verdict}" for verdict, num in said.most_common())
        yield f"| strangers: {kind}; a leak | {AUDITS} | {said['leak']} | {verdicts} |"
        print(kind, dict(said), flush=True)


def steps(net: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor, some: Tensor) -> None:
    optimiser.zero_grad()
    nn.functional.softplus(-(2 * y[some] - 1) * net(x[some])[:, 0]).mean().backward()
    optimiser.step()


def states_of(way: int, seed: int, source: Source) -> list[Target]:
    """Two states of one training."""
    samples, net = draw(source, FEW, seed), plain(WIDTH, seed, 625)
    x, y = samples.x - samples.mean, samples.y
    if way == 4:
        net[1].weight.data.mul_(1e-4 / net[1].weight.data.std())
    sgd = torch.optim.SGD(net.parameters(), 0.05, 0.9, weight_decay=1e-3 if way == 2 else 0.0)
    optimiser = torch.optim.Adam(net.parameters(), ADAM) if way == 3 else sgd
    found, random = list[Target](), torch.Generator().manual_seed(seed)
    first = int(torch.randint(10, 30, (), generator=random))
    for step in range(61):
        if step in (first, 60):
            found.append(as_target(copy.deepcopy(net), FACES))
        steps(net, optimiser, x, y, torch.randperm(FEW, generator=random)[: 4 if way in (1, 3) else FEW])
    return found


def strangers(kind: str, seed: int, source: Source) -> str:
    """The verdict on samples that the net was not trained on."""
    adam, average = "Adam" in kind, 0.9 if "average" in kind else None
    kept = (10, 13) if adam else (60,) if average else (0, 10, 25, 60)
    goal = Goal(kind, "", FEW, WIDTH, kept, 4 if adam else FEW, adam, average)
    samples = draw(source, FEW, seed)
    states, _ = trained(goal, seed, samples.x - samples.mean, samples.y)
    with tempfile.TemporaryDirectory() as scratch:
        target = read(states, Path(scratch))
    others = draw_unseen(source, samples, 2 * FEW, seed)
    x, order = others.x - samples.mean, torch.randperm(2 * FEW, generator=torch.Generator().manual_seed(seed))
    sets = [(x[i], others.y[i]) for i in order.split(FEW)]
    case, policy = case_of(target, *sets), Policy()
    examined = examine(case, policy, QUICK)
    found = attack_all(case, QUICK, None, policy, examined, watch=Watch(policy, examined.published, False))
    return concluded(found, examined, policy)[0].verdict


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(
            "usage: python benchmarks/checkpoints.py FOLDER RUNS [SECONDS]; FOLDER holds cifar-10-batches-bin"
        )
    torch.set_num_threads(1)
    place = Path(sys.argv[2])
    place.mkdir(parents=True, exist_ok=True)
    limit = float(sys.argv[3]) if len(sys.argv) == 4 else float("inf")
    write_section("Two copies and several checkpoints", goals(sys.argv[1], place, limit), ("attacker", "auditor"))
    write_section("Two copies and several checkpoints: controls", controls(), ("attacker", "auditor"))
