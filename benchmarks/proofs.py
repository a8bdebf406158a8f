"""How often is a proof false? python benchmarks/proofs.py DATA RESULTS [--proofs 10000]

Small models are trained on few samples by the plain PyTorch code below, from initial weights that the attacks are given, and
every proven reconstruction is compared with the samples. RESULTS gains a line of JSON per model, and a run that was stopped
resumes. At the end the section of docs/results.md is stored, and with it the numbers that verdicts quote. DATA holds
cifar-10-batches-bin and mnist.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import itertools
import json
import math
import sys
import time
from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from scipy.stats import beta
from torch import Tensor, nn

from page import Section, parse, place_of, render
from unfit import Auto, draw, read_source
from unfit.attacker.attacked_layer import check_base, read_layer
from unfit.attacker.candidates import Part
from unfit.auditor.samples import Source
from unfit.base.modules import as_base, as_target
from unfit.base.versions import versions
from unfit.lab.measurement import SOURCE, hashes, machine, store
from zoo import Pair, copied, loss_of, mlp

ERROR = 0.02  # relative to the sample's own length: what a right proof is within
# Seeds below 10,000 shaped the rules of peel or tested earlier ones (0, 2000 and 8000 were first ones), and records.py
# used 300,000; 1,000,000 to 1,000,014 measured rules that are gone, and 2,000,000 to 3,000,003 ones that counted neurons which
# never fired, and columns that are the same for all: they called the mean of centred samples with such columns exact, and records in other units;
# 3,100,000 to 3,100,006 measured zeros that were judged by their number alone. Beyond 4,294,966 PyTorch's generator would repeat itself: it takes 1000 × seed modulo 2³².
FIRST = 4_000_000
SIZES = (10, 10, 20, 20, 40)  # samples: few give most proofs a second
RATIOS = (6, 10, 16)  # neurons for each sample: few proofs, most, all
IMAGES = {
    "faces": ("faces", None),
    "CIFAR": ("cifar10", None),
    "MNIST": ("mnist", None),
    "digits": ("mnist", "all"),
}
TABLES = ("plain", "scaled", "correlated", "integers", "twins", "positive", "one-hot")
SPARSE = ("counts", "features", "records")  # with many exact zeros
ALTERED = (
    "copies",
    "relabelled",
    "constant",
    "half",
    "Adam",
)  # images or tables, or their training, made difficult
KINDS = (*IMAGES, *TABLES, "adapter", *SPARSE, *ALTERED)

TITLE = "Proofs: how many are false?"
CONFIDENCE = 0.95
PROOFS = 10_000  # at 0 false ones: at most 0.03%
METHODS = ("peel", "cone")
REMEDY = (
    "run `python benchmarks/proofs.py DATA RESULTS` (DATA: a folder with cifar-10-batches-bin and mnist; RESULTS: a new file; "
    f"about half an hour on one idle core for {PROOFS:,} proofs, ten minutes with --proofs 3000), and commit benchmarks/stored, "
    "docs/results.md and src/unfit/auditor/measured.json. Where a rule was changed because of models measured here, move FIRST on"
)
PROVERS = tuple(f"attacker/attacks/{method}.py" for method in METHODS)
ASIDE = ("attacker/candidates.py", "attacker/method.py", "attacker/names.py")  # settings and results: no proof

Item = TypeVar("Item")
Row = dict[str, Any]  # of one model


# What is measured ----------------------------------------------------------------------------------------------


def imported(name: str) -> set[str]:
    """The modules under src/unfit that this one imports from."""
    found = set()
    for node in ast.walk(ast.parse((SOURCE / name).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unfit."):
            place = str(node.module).removeprefix("unfit.").replace(".", "/")
            found |= {f"{place}.py", f"{place}/__init__.py", *(f"{place}/{each.name}.py" for each in node.names)}
    return {each for each in found if (SOURCE / each).is_file()}


def measured() -> dict[str, str]:
    """Modules that decide a proof, with their hashes: all of the attacker that the provers need; `base` reads files."""
    found, new = set[str](), set(PROVERS)
    while new:
        found |= new
        needed = {each for name in new for each in imported(name)}
        new = {each for each in needed - found if each.startswith("attacker/") and each not in ASIDE}
    return hashes(sorted(found))


def digest(code: dict[str, str]) -> str:
    """One hash for all of them: every measured model carries it."""
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:12]


# Data ---------------------------------------------------------------------------------------------------------


def choose(items: tuple[Item, ...], random: torch.Generator) -> Item:
    return items[int(torch.randint(len(items), (1,), generator=random))]


@cache
def source(name: str, classes: str | None, data: Path) -> Source:
    place = {"cifar10": f":{data}", "mnist": f":{data / 'mnist'}"}.get(name, "")
    return read_source(name + place, classes)


def images(kind: str, n: int, data: Path, random: torch.Generator) -> Pair:
    """As the net sees them: less their mean."""
    name, classes = IMAGES[kind]
    drawn = draw(source(name, classes, data), n, int(torch.randint(10**6, (1,), generator=random)))
    return drawn.x - drawn.x.mean(0, keepdim=True), drawn.y


def altered(kind: str, pair: Pair, random: torch.Generator) -> Pair:
    """Half of the samples nearly or exactly as the other half, or every third input the same for all."""
    x, y = pair[0].clone(), pair[1].clone()
    half = len(x) // 2
    if kind == "copies":
        noise = torch.randn(x[:half].shape, generator=random)
        x[half : 2 * half] = x[:half] + choose((0.005, 0.05, 0.2), random) * x.std() * noise
        y[half : 2 * half] = y[:half]
    if kind == "relabelled":
        x[half : half + half // 2], y[half : half + half // 2] = x[: half // 2], 1 - y[: half // 2]
    if kind == "constant":
        x.flatten(1)[:, ::3] = choose((0.5, 2.0), random)
    return x, y


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


def descend(net: nn.Module, pair: Pair, random: torch.Generator, adam: bool = False) -> nn.Module:
    """Gradient steps, with or without batches, momentum, weight decay and clipping of the gradient."""
    batch, momentum = choose((None, None, 8), random), choose((0.0, 0.9), random)
    lr, steps = choose((0.02, 0.05, 0.1), random), choose((60, 200), random)
    decay, most = choose((0.0, 0.0, 1e-3), random), choose((math.inf, math.inf, 0.5), random)
    trained = [p for p in net.parameters() if p.requires_grad]
    optimiser: torch.optim.Optimizer
    if adam:
        optimiser = torch.optim.Adam(trained, lr=lr / 50)
    else:
        optimiser = torch.optim.SGD(trained, lr=lr, momentum=momentum, weight_decay=decay)
    for _ in range(steps):
        chosen = torch.randperm(len(pair[0]), generator=random)[:batch]
        optimiser.zero_grad()
        loss_of(net, pair[0][chosen], pair[1][chosen]).backward()
        if most < math.inf:
            nn.utils.clip_grad_norm_(trained, most)
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
    """The initial weights, what training made of it, and on what."""
    random = torch.Generator().manual_seed(1000 * seed + KINDS.index(kind))
    n = choose((4, 20) if kind == "adapter" else SIZES, random)
    any_of = kind in (*ALTERED, "adapter")
    drawn = choose(("faces", "CIFAR", "MNIST", "plain"), random) if any_of else kind
    pair = images(drawn, n, data, random) if drawn in IMAGES else table(drawn, n, random)
    pair = altered(kind, pair, random)
    outputs = 10 if drawn == "digits" else 1
    width = choose(RATIOS, random) * max(n, 10)
    initial = mlp(pair[0][0].numel(), width, 50, outputs, seed=seed)
    if kind == "adapter":
        return initial, adapt(copied(initial), pair, random), pair
    net = descend(copied(initial), pair, random, kind == "Adam")
    if kind == "half":  # published so; the initial weights are known in full
        net = net.half().float()
    return initial, net, pair


# Proofs -------------------------------------------------------------------------------------------------------


def compare(found: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of each reconstruction (m, d) the distance to the nearest sample, relative to that one's length; and which it is."""
    found, x = found.double(), x.double()  # in single precision, distances between many vectors are off by 0.1%
    error, which = (torch.cdist(found, x) / x.norm(dim=1).clamp_min(1e-12)).min(1)
    return error, which


def are_right(found: Tensor, x: Tensor) -> Tensor:
    """Within 2% of a sample, scale included; where all samples are whole numbers, identical to it when rounded."""
    error, which = compare(found, x)
    is_whole = bool((x == x.round()).all())
    return (error < ERROR) & ((found.round() == x[which]).all(1) if is_whole else True)


def candidates(initial: nn.Module, net: nn.Module) -> Iterator[tuple[str, Part]]:
    """What an audit's two provers give, in its order: the second is asked where the first does not prove all."""
    target = as_target(net)
    layer = read_layer(target, as_base(initial, target))
    check_base(layer)
    for prover in Auto()._stages(layer)[:2]:
        parts, is_all = prover.prove(layer)
        yield from ((prover.title, part) for part in parts)
        if is_all:
            return


def prove(kind: str, seed: int, data: Path) -> Row:
    """One model: the samples with a right proof, by the method that proved them first, and every false proof."""
    initial, net, (x, _) = nets(kind, seed, data)
    began, x = time.process_time(), x.flatten(1)
    right: dict[int, tuple[str, float]] = {}
    false: list[tuple[str, float]] = []
    for title, part in candidates(initial, net):
        found = part.x.flatten(1)[[] if part.proven is None else part.proven]
        error, which = compare(found, x)
        for i, e, is_right in zip(which.tolist(), error.tolist(), are_right(found, x).tolist(), strict=True):
            if is_right:
                right.setdefault(i, (title, float(f"{e:.3g}")))
            else:
                false.append((title, float(f"{e:.3g}")))
    return {
        "kind": kind,
        "seed": seed,
        "n": len(x),
        "right": list(right.values()),
        "false": false,
        "seconds": round(time.process_time() - began, 2),
    }


def upper(false: int, num: int, level: float = CONFIDENCE) -> float:
    """Clopper and Pearson's upper bound of the rate, one-sided: 3 / n where none of n is false."""
    return 1.0 if num == false else float(beta.ppf(level, false + 1, num - false))


def count(rows: list[Row]) -> dict[str, int | float]:
    """What a verdict quotes."""
    right, false = (sum(len(row[name]) for row in rows) for name in ("right", "false"))
    proving = [row for row in rows if row["right"] or row["false"]]
    return {
        "num_exact": right + false,
        "num_false": false,
        "at_most": upper(false, right + false),
        "confidence": CONFIDENCE,
        "num_models": len(rows),
        "num_models_exact": len(proving),
        "num_models_false": sum(bool(row["false"]) for row in proving),
        "first_seed": min(row["seed"] for row in rows),
        "last_seed": max(row["seed"] for row in rows),
    }


# The section of the page ---------------------------------------------------------------------------------------


def table_row(kind: str, rows: list[Row]) -> str:
    total, each = count(rows), [proof for row in rows for proof in (*row["right"], *row["false"])]
    errors = torch.tensor([error for _, error in each], dtype=torch.float64)
    spread = ", ".join(f"{v:.1g}" for v in errors.quantile(errors.new_tensor([0.5, 0.99, 1.0]))) if each else ""
    by = [sum(title == method for title, _ in each) for method in METHODS]
    bound = f"{total['at_most']:.2g}" if each else ""
    cells = [kind, len(rows), sum(row["n"] for row in rows), len(each), *by, total["num_false"], bound, spread]
    return f"| {' | '.join(map(str, cells))} |"


def report(rows: list[Row]) -> Iterator[str]:
    total = count(rows)
    models, false = total["num_models_exact"], total["num_models_false"]
    yield from f"""\
`python benchmarks/proofs.py DATA RESULTS`: small models (4 to 40 samples, 6 to 16 neurons per sample, two hidden layers), trained
by plain PyTorch from known initial weights, with full batches or batches of 8, with or without momentum, weight decay (1e-3) and
clipping of the gradient (norm 0.5). `peel` and `cone` attack
them in the order of an audit: the second runs if the first does not prove every sample. A proof is right if its relative error, the
distance to the nearest training sample divided by the length of that sample, is below {ERROR:.0%}. Samples that are whole numbers (*counts*,
*records*) must be identical after rounding. A sample counts once. *Adapters* are low-rank updates (ranks 1 to 16), trained and
merged: nothing can be proven there. The last five kinds are faces, CIFAR, MNIST or plain tables. *Copies*: half of the samples are the
others with noise of 0.5%, 5% or 20%. *Relabelled*: a quarter are others with the other label. *Constant*: every third input is the same
for all. *Half*: the trained weights are rounded to half precision. *Adam* trains by Adam, whose steps are no sums over samples. Seeds {total["first_seed"]:,} to {total["last_seed"]:,}: no rule was chosen with these models. Verdicts quote the last row.
""".splitlines()
    yield f"| kind | models | samples | exact | {' | '.join(f'by {method}' for method in METHODS)} | of these false | at most (95%) | relative error: median, 99%, largest |"
    yield "|---" * (7 + len(METHODS)) + "|"
    yield from (
        table_row(kind, chosen) for kind in KINDS if (chosen := [row for row in rows if row["kind"] == kind])
    )
    yield table_row("all", rows)
    yield from f"""
Proofs of one model depend on each other. Of {models} models with an exact sample, {false} have a false proof: at most
{100 * upper(int(false), int(models)):.2g}% of such models, with 95% confidence. Models with more samples are not among these. Their proofs
follow the same rules ([why exact is true](proof.md)).
""".splitlines()


def section(rows: list[Row], code: dict[str, str]) -> Section:
    content, counts = parse(report(rows)), count(rows)
    return Section(title=TITLE, place=place_of(TITLE), date=str(date.today()), machine=machine(), versions=versions(), code=code, content=content, counts=counts)  # fmt: skip


def stale(code: dict[str, str]) -> str:
    """What to do if today's proofs are decided by other code than these hashes are of; nothing if by the same."""
    now = measured()
    changed = ", ".join(sorted(name for name in {*now, *code} if now.get(name) != code.get(name)))
    return f"the false-proof rate was measured with other code ({changed} changed): {REMEDY}" if changed else ""


def read(results: Path) -> list[Row]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def measure(data: Path, results: Path, wanted: int, code: str) -> list[Row]:
    """Whole rounds of all kinds, so that each has equally many models."""
    rows = read(results)
    if any(row["code"] != code for row in rows):
        sys.exit(f"{results} was measured with other code: give a new file")
    done = {(row["kind"], row["seed"]) for row in rows}
    results.parent.mkdir(parents=True, exist_ok=True)
    for seed in itertools.count(FIRST):
        if sum(len(row["right"]) + len(row["false"]) for row in rows) >= wanted:
            break
        for kind in (kind for kind in KINDS if (kind, seed) not in done):
            rows.append({"code": code, **prove(kind, seed, data)})
            with results.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--proofs", type=int, default=PROOFS, help="at least this many; 0 stores what RESULTS has")
    given = parser.parse_args()
    torch.set_num_threads(1)
    ran = measured()
    found = section(measure(given.data, given.results, given.proofs, digest(ran)), ran)
    store(found, found.file)
    render()
