"""What a whole audit costs as things grow: processor seconds and memory, beside what preflight states.

    python benchmarks/growth.py axes|stated|large|budgets [--data DATA] [--only 'NAME|…']

`axes` varies samples, inputs, width and candidates one at a time and fits exponents; `stated` compares preflight's time
with the time taken; `large` runs what is too large to be usual; `budgets` gives audits a time limit. Each prints its table
and stores it in benchmarks/stored. Every case runs in a process of its own. DATA holds cifar-10-batches-bin and mnist.

A planted net is not trained: W1 = Σ α_i x_iᵀ with random gates, on small random initial weights. So the data are known
by construction, and only the audit is measured. The others are trained once, as in busy.py, and kept.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import busy
from page import write_section
from unfit import Auto, UnfitError, audit
from unfit.attacker.attacked_layer import AttackedLayer
from unfit.attacker.candidates import Candidates, Part
from unfit.attacker.costs import layer_bytes, operations_per_second
from unfit.attacker.method import gather
from unfit.attacker.stage_cache import NOWHERE, StageCache
from unfit.auditor.audit import SETS
from unfit.auditor.case import case_of
from unfit.base.memory import PROCESS
from unfit.base.progress import Report, quiet
from unfit.base.threads import threads
from zoo import copied, mlp, parts, samples, seen, train

RECTANGLES = 20  # in an image
INITIAL = 0.1  # standard deviation of the initial weights, where samples have values within ±0.5
GB = 1e9


# Cases --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """A planted net and its samples."""

    shape: tuple[int, ...]
    n: int
    width: int
    num_candidates: int = 0  # 0: they are searched for

    def __str__(self) -> str:
        return f"{'×'.join(map(str, self.shape))}, n={self.n:,}, w={self.width:,}" + (
            f", {self.num_candidates:,} candidates" if self.num_candidates else ""
        )

    def ask(self, data: Path) -> busy.Question:
        x, unseen = (rectangles(self.n, self.shape, seed) for seed in (0, 1))
        net = planted(self, x, torch.arange(self.n) % 2)
        sets = [(each, (net(each)[:, 0] > 0).long()) for each in (x, unseen)]
        return net, *sets, {}


def rectangles(n: int, shape: tuple[int, ...], seed: int) -> Tensor:
    """Images of rectangles in random colours, one on top of the other: few edges, each where no other image has one."""
    random = torch.Generator().manual_seed(seed)
    x = torch.zeros(n, *shape)
    corners = torch.rand(n, RECTANGLES, 2, 2, generator=random).sort(-1).values * torch.tensor(shape[1:])[:, None]
    colours = torch.rand(n, RECTANGLES, shape[0], generator=random) - 0.5
    for image, places, fills in zip(x, corners.long().tolist(), colours, strict=True):
        for ((top, bottom), (left, right)), fill in zip(places, fills, strict=True):
            image[:, top : bottom + 1, left : right + 1] = fill[:, None, None]
    return x


def planted(size: Size, x: Tensor, y: Tensor) -> nn.Sequential:
    torch.manual_seed(0)
    first, last = nn.Linear(x[0].numel(), size.width), nn.Linear(size.width, 1, bias=False)
    gates = (torch.rand(size.n, size.width) < 0.5).float()
    signs = torch.where(torch.rand(size.width) < 0.5, -1.0, 1.0)
    columns = gates * signs * (2.0 * y[:, None] - 1)
    initial = INITIAL * torch.randn_like(first.weight)
    first.weight.data = (initial + columns.T @ x.flatten(1)) / x[0].numel()
    first.bias.data = columns.sum(0) / x[0].numel()
    last.weight.data = signs[None] / size.width**0.5
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last).requires_grad_(False)


def cifar(n: int, widths: tuple[int, ...], with_base: bool, data: Path) -> busy.Question:
    """Two classes of CIFAR-10; without a base, from small initial weights, so that something stands out."""
    private, unseen = parts(samples("cifar10", 2 * n, data), n, n)
    mean = private[0].mean(0, keepdim=True)
    private, unseen = seen(private, mean), seen(unseen, mean)
    base = mlp(3072, *widths, 1, first=None if with_base else 1e-4)
    return train(copied(base), private, 400, 0.05), private, unseen, {"base": base} if with_base else {}


def features(n: int, data: Path) -> busy.Question:
    """As `busy.heads`, with another number of samples."""
    random = torch.Generator().manual_seed(0)
    common = torch.randn(1, 1280, generator=random)
    return busy.vectors((torch.randn(2 * n, 1280, generator=random) + common).clamp_min(0) / 4, n, 1000)


@dataclass(frozen=True)
class Trained:
    """A trained net; `ask` is a function of the folder of the data."""

    name: str
    ask: Callable[[Path], busy.Question]
    num_candidates: int = 0

    def __str__(self) -> str:
        return self.name


Measured = Size | Trained

STATED: tuple[Measured, ...] = (
    Trained("faces n=40 (the demo)", busy.faces),
    Trained("CIFAR n=100, 3072-1000-1000-1, base", busy.cifar),
    Trained("features n=80, 1280-1000-2, base", busy.heads),
    Trained("texts n=100, 2000-1000-2, base", busy.texts),
    Trained("CIFAR n=100, 3072-1000-1", partial(cifar, 100, (1000,), False)),
    Trained("MNIST n=2,000, ten classes", busy.digits),
    Size((3, 32, 32), 100, 4096),
    Size((3, 224, 224), 50, 256),
)
AXES: dict[str, tuple[tuple[int, Measured], ...]] = {
    "samples, few: unmixing": tuple((n, Size((3, 32, 32), n, 500)) for n in (30, 60, 120)),
    "samples, many: KKT runs": tuple((n, Size((1, 28, 28), n, 200)) for n in (500, 1000, 2000)),
    "samples with a base: peel": tuple(
        (n, Trained(f"CIFAR n={n}, base", partial(cifar, n, (1000,), True))) for n in (30, 60, 120)
    ),
    "samples with a base: cone": tuple(
        (n, Trained(f"features n={n}, base", partial(features, n))) for n in (40, 80, 160)
    ),
    "inputs": tuple((3 * side**2, Size((3, side, side), 30, 256)) for side in (32, 64, 128)),
    "width": tuple((w, Size((3, 32, 32), 30, w)) for w in (500, 1000, 2000)),
    "candidates": tuple((m, Size((3, 32, 32), 100, 500, m)) for m in (1000, 10_000, 100_000)),
}
LARGE: tuple[tuple[Measured, float], ...] = (  # with their budgets
    (Size((3, 32, 32), 100, 1000, 100_000), 0),
    (Size((3, 32, 32), 100, 10_000), 300),
    (Size((3, 224, 224), 100, 256), 300),
    (Size((3, 224, 224), 500, 1000), 300),
    (Size((3, 32, 32), 20_000, 1000), 300),
    (Size((3, 32, 32), 20_000, 1000), 10),
)
BUDGETS: tuple[tuple[Measured, float], ...] = tuple(
    (Size(shape, n, width), budget)
    for shape, n, width, budget in (
        ((1, 28, 28), 50, 500, 10),
        ((1, 28, 28), 500, 500, 10),
        ((3, 32, 32), 50, 1000, 10),
        ((3, 32, 32), 500, 1000, 30),
        ((3, 64, 64), 50, 500, 10),
        ((3, 64, 64), 500, 500, 30),
        ((3, 224, 224), 50, 256, 10),
        ((3, 224, 224), 50, 256, 60),
    )
)
CASES: dict[str, Measured] = {
    str(case): case
    for case in (
        *STATED,
        *(case for sizes in AXES.values() for _, case in sizes),
        *(case for case, _ in LARGE + BUDGETS),
    )
}


# One audit ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimedCache(StageCache):
    """Keeps nothing, and takes the processor time of each stage."""

    spent: dict[str, float] | None = None

    def parts(self, name: str, began: float, make: Callable[[], Iterable[Part]]) -> Iterator[Part]:
        return self._timed(name, lambda: iter(list(make())))

    def proofs(self, name: str, began: float, make: Callable[[], Any]) -> Any:
        return self._timed(name, make)

    def search(self, target: Any, make: Callable[[], Any]) -> Any:
        return self._timed("the search", make)

    def _timed(self, name: str, make: Callable[[], Any]) -> Any:
        assert self.spent is not None
        began = time.process_time()
        made = make()
        self.spent[name] = self.spent.get(name, 0.0) + time.process_time() - began
        return made


class Timed(Auto):
    """`auto`, which says what it took."""

    def growing(
        self, layer: AttackedLayer, progress: Report = quiet, cache: StageCache = NOWHERE
    ) -> Generator[Candidates]:
        stages = super().growing(layer, progress, TimedCache(spent=SPENT))
        while True:
            began = time.process_time()
            found = next(stages, None)
            SPENT["attack"] = SPENT.get("attack", 0.0) + time.process_time() - began
            if found is None:
                return
            yield found


SPENT: dict[str, float] = {}


def measure(case: Measured, budget: float, data: Path, kept: Path) -> dict[str, Any]:
    empty = peak()
    net, private, unseen, more = asked(case, data, kept)
    settings = {"seeds": 1000} if "base" in more or isinstance(case, Trained) else {"seeds": 0}
    attack = Timed(**settings, budget=budget or None)
    given = None
    with threads():
        layer = case_of(net, private, unseen, more.get("base")).layer
        applicability = attack.applicability(layer)
        if case.num_candidates:
            given = random_candidates(case.num_candidates, layer)
        stages = {each.attack: each.seconds for each in attack._applicabilities(layer) if each.applies}
        held = 4 * given.x.numel() if given is not None else attack.held(layer)
    speed = products_per_second()
    began, clock = time.process_time(), time.perf_counter()
    try:
        if given is not None:
            verdict = audit(net, private, unseen, candidates=given).verdict
        else:
            found = audit(net, private, unseen, attack=attack, base=more.get("base"))
            verdict = f"{found.verdict}; {found.num_exact} exact, {found.num_recognisable} recognisable"
    except UnfitError as error:
        verdict = f"refused: {error}"
    return {
        "stated": applicability.seconds or 0.0,
        "stages": stages,
        "held": (PROCESS + SETS * 4 * private[0].numel() + layer_bytes(layer) + held) / GB,
        "spent": SPENT,
        "processor": time.process_time() - began,
        "clock": time.perf_counter() - clock,
        "empty": empty,
        "peak": peak(),
        "idle": operations_per_second(),
        "speed": statistics.mean([speed, products_per_second()]),
        "verdict": verdict,
    }


def random_candidates(num: int, layer: AttackedLayer) -> Candidates:
    few = gather(Auto(seeds=0), layer, [Part("given", torch.zeros(1, *layer.shape))], time.perf_counter())
    each = {
        name: getattr(few, name).expand(num) for name in ("origin", "label", "multiplier", "proven", "confidence")
    }
    return replace(few, x=torch.randn(num, *layer.shape), **each)


def products_per_second(seconds: float = 0.5) -> float:
    """As `operations_per_second`, but the mean by processor time: beside other work processors are slower."""
    a, num, began = torch.ones(512, 512), 0, time.process_time()
    with threads():
        while time.process_time() - began < seconds:
            a @ a
            num += 1
    return num * 2 * 512**3 / (time.process_time() - began)


def peak() -> float:
    """Of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GB


def asked(case: Measured, data: Path, kept: Path) -> busy.Question:
    """The model and the samples; what is trained is trained once and kept."""
    if isinstance(case, Size):
        return case.ask(data)
    file = kept / f"{case}.pt"
    if not file.is_file():
        torch.set_num_threads(1)
        torch.save(case.ask(data), file)
        return asked(case, data, kept)
    question: busy.Question = torch.load(file, weights_only=False)  # our own
    return question


def run(case: Measured, args: argparse.Namespace, budget: float = 0.0) -> dict[str, Any]:
    """In a process of its own, on one thread."""
    options = ["--data", str(args.data), "--kept", str(args.kept), "--budget", str(budget)]
    command = [sys.executable, __file__, "one", *options, "--only", str(case)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=one_thread, check=False)
    if done.returncode:
        sys.exit(f"{case}: {done.stderr}")
    print(f"{case}: {done.stdout.splitlines()[-1]}", file=sys.stderr, flush=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


# Tables -------------------------------------------------------------------------------------------------------


def growth(args: argparse.Namespace) -> Iterator[str]:
    """Exponents, then what they are fitted to."""
    yield "One thing grows at a time, all else stays. An exponent is the slope of a least-squares line through logarithms:"
    yield "*predicted* by preflight and by the memory limit, *measured* in a process of its own on one thread. Seconds are"
    yield "of one processor. Memory is what the process held at most, minus what it held before it read anything."
    told = {
        name: [(x, run(case, args)) for x, case in sizes] for name, sizes in AXES.items() if chosen(name, args)
    }
    columns = {
        "attack, predicted": lambda each: each["stated"],
        "attack, measured": lambda each: each["spent"].get("attack", 0.0),
        "audit, measured": lambda each: each["processor"],
        "memory, predicted": lambda each: each["held"] - PROCESS / GB,
        "memory, measured": lambda each: each["peak"] - each["empty"],
    }
    yield ""
    yield f"| what grows | {' | '.join(columns)} |"
    yield f"|---{'|---' * len(columns)}|"
    for name, found in told.items():
        slopes = (slope([(x, value(each)) for x, each in found]) for value in columns.values())
        yield f"| {name}, {found[0][0]:,} to {found[-1][0]:,} | {' | '.join(slopes)} |"
    yield ""
    yield "| case | attack: predicted, processor seconds | attack | whole audit | memory: predicted, GB | measured | verdict |"
    yield "|---|---|---|---|---|---|---|"
    for name, found in told.items():
        for x, each in found:
            yield (
                f"| {name} = {x:,} | {each['stated']:.1f} | {each['spent'].get('attack', 0.0):.1f} | {each['processor']:.1f} "
                f"| {each['held']:.2f} | {each['peak']:.2f} | {each['verdict']} |"
            )


def slope(points: list[tuple[float, float]]) -> str:
    """Of a line through the logarithms; nothing where there is nothing to fit it to."""
    if len(points) < 2 or min(y for _, y in points) <= 0:
        return ""
    x, y = (torch.tensor(values, dtype=torch.float64).log() for values in zip(*points, strict=True))
    x, y = x - x.mean(), y - y.mean()
    return f"{float((x * y).sum() / x.square().sum()):.1f}"


def stated(args: argparse.Namespace) -> Iterator[str]:
    """What preflight says of `auto`, and what that takes, attack by attack."""
    yield "Stated: what preflight says that the attack takes on one core. *Adjusted*: beside other work a processor is slower"
    yield "than preflight's best product says; this is the ratio times the speed that products had then over that best."
    yield ""
    yield "| case | stated, processor seconds | attack took | stated over taken | adjusted | each: stated, taken | whole audit took |"
    yield "|---|---|---|---|---|---|---|"
    for case in STATED:
        if chosen(str(case), args):
            each = run(case, args)
            took = each["spent"].get("attack", 0.0)
            ratio = each["stated"] / max(took, 1e-3)
            stages = "; ".join(
                f"{name} {seconds:.1f}, {each['spent'].get(name, 0.0):.1f}"
                for name, seconds in each["stages"].items()
            )
            yield (
                f"| {case} | {each['stated']:.1f} | {took:.1f} | {ratio:.2f} | {ratio * each['idle'] / each['speed']:.2f} "
                f"| {stages} | {each['processor']:.1f} |"
            )


def with_budgets(cases: Iterable[tuple[Measured, float]], args: argparse.Namespace) -> Iterator[str]:
    """Each ends in its budget, or is refused at once; the limit of memory holds for all."""
    yield "The budget counts by the clock, and other work on the machine counts too. A refusal names the bytes or the seconds."
    yield ""
    yield "| case | budget | ended after | processor seconds | memory: predicted, GB | measured | verdict |"
    yield "|---|---|---|---|---|---|---|"
    for case, budget in cases:
        if chosen(str(case), args):
            each = run(case, args, budget)
            yield (
                f"| {case} | {f'{budget:.0f} s' if budget else 'none'} | {each['clock']:.0f} s | {each['processor']:.0f} "
                f"| {each['held']:.1f} | {each['peak']:.1f} | {each['verdict']} |"
            )


def chosen(name: str, args: argparse.Namespace) -> bool:
    return not args.only or any(part in name for part in args.only.split("|"))


TABLES: dict[str, tuple[str, Callable[[argparse.Namespace], Iterator[str]]]] = {
    "axes": ("Growth: cost by samples, inputs, width and candidates", growth),
    "stated": ("Growth: how good preflight’s time is", stated),
    "large": ("Growth: large cases", partial(with_budgets, LARGE)),
    "budgets": ("Growth: budgets", partial(with_budgets, BUDGETS)),
}


def shown(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        print(line, flush=True)
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*TABLES, "one"])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--kept", type=Path, default=Path("runs/growth"))
    parser.add_argument("--only", default="", help="parts of names, separated by |; nothing is stored then")
    parser.add_argument("--budget", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.kept.mkdir(parents=True, exist_ok=True)
    if args.what == "one":
        print(json.dumps(measure(CASES[args.only], args.budget, args.data, args.kept)))
        return
    title, table = TABLES[args.what]
    if args.only:
        list(shown(table(args)))
    else:
        write_section(title, shown(table(args)), ("attacker", "auditor", "base"))


if __name__ == "__main__":
    main()
