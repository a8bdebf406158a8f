"""How many samples can a width prove? python benchmarks/limit.py DATA RESULTS --runs RUNS [--widths 1000,2000] [--sizes 300]

A column is what a sample added to the neurons. `peel` finds it from a rough picture, by the neurons it vanishes on: about
0.38 of all. A space of n dimensions holds vectors with n − 1 zeros anyway, so n = 0.38 · width should be the end. Here the
search of `peel` starts from samples mixed with a share c of others, for a few samples of each net, and every column that it
ends with is compared with the sample's own. Only a benchmark can do that: an attacker has neither. RESULTS gains a line of
JSON for each net, and a run goes on where the last one ended.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from cases import Case, run_of, source_of
from page import SEEDS
from unfit import Peel
from unfit.attacker.attacked_layer import read_layer
from unfit.attacker.attacks.peel import find_columns, sharpen, vanishing
from unfit.attacker.change import LEAST_WIDTH, Change, read_change
from unfit.attacker.sparse import least_zeros, level
from unfit.auditor.case import read_case
from unfit.auditor.request import AuditRequest

FOREIGN = (0.0, 0.1, 0.3, 0.5)  # shares of other samples in the picture that the search starts from
TRIED = 16  # samples of each net
RIGHT = 0.9999  # cosine with the sample's own column


def case_of(n: int, width: int) -> Case:
    return Case(f"n={n}, width {width}", f"limit_{n}_{width}", n, {"init": None}, arch=f"{width}-1000", base=True)


def read_net(run: Path) -> tuple[Change, Tensor]:
    """What training added to the first layer, and the samples as the net sees them."""
    case = read_case(AuditRequest(target=str(run), data=source_of(run), base=str(run)))
    change = read_change(read_layer(case.target, case.base))
    assert change is not None
    assert change.n == len(case.private)
    return change, (case.private.x - case.mean).flatten(1)


def columns_of(change: Change, x: Tensor) -> Tensor:
    """The true columns (n, w): the change is Σ_i α_i [x_i; 1]ᵀ."""
    rows = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    return sharpened(change, level(torch.linalg.lstsq(rows.T, change.rows.T).solution))


def sharpened(change: Change, columns: Tensor) -> Tensor:
    """Without what rounding makes of their zeros."""
    return torch.stack([sharpen(change, column) for column in columns])


def mixed(x: Tensor, which: Tensor, share: float, random: torch.Generator) -> Tensor:
    """These samples, with a random mixture of all of them added that is `share` times as long."""
    foreign = torch.randn(len(which), len(x), generator=random) @ x
    own = x[which]
    return own + share * own.norm(dim=1, keepdim=True) * F.normalize(foreign, dim=1)


def measure(n: int, width: int, seed: int, folder: Path, runs: Path) -> dict[str, Any]:
    change, x = read_net(run_of(case_of(n, width), seed, folder, runs))
    truth, random, began = columns_of(change, x), torch.Generator().manual_seed(seed), time.process_time()
    which = torch.randperm(n, generator=random)[:TRIED]
    peel, zeros = Peel(), vanishing(truth).sum(1).float()
    found = {}
    for share in FOREIGN:
        rough = find_columns(change, mixed(x, which, share, random), peel.column_iterations)
        right = F.cosine_similarity(sharpened(change, rough), truth[which]).abs() > RIGHT
        found[share] = int(right.sum())
    facts = {"n": n, "width": width, "seed": seed, "zeros": float(zeros.mean()), "least": float(zeros.min())}
    off = (change.sums(x.float()) < 0) & ~vanishing(truth)
    facts |= {"off_between": float(off.sum(1).float().mean()), "bar": least_zeros(change.space, LEAST_WIDTH)}
    return facts | {"found": found, "seconds": time.process_time() - began}


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--widths", type=numbers, default=[1000, 2000, 4000])
    parser.add_argument("--sizes", type=numbers, default=[200, 300, 500])
    parser.add_argument("--seeds", type=numbers, default=list(SEEDS))
    args = parser.parse_args()
    args.results.touch()
    done = {tuple(json.loads(line)[key] for key in ("n", "width", "seed")) for line in args.results.open()}
    for seed in args.seeds:
        for n, width in sorted(((n, w) for n in args.sizes for w in args.widths), key=math.prod):
            if (n, width, seed) in done:
                continue
            facts = measure(n, width, seed, args.data, args.runs)
            print(facts, flush=True)
            with args.results.open("a") as file:
                file.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
