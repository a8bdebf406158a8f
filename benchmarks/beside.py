"""Can a wrong column pass for a right one? python benchmarks/beside.py DATA RESULTS --runs RUNS [--sizes 150,200] [--seeds 3,4,5]

A search can end beside a column: on a vector that is nearly it and nearly vanishes as often. `peel` must not prove
pictures by it. Here such vectors are made as an earlier search of `peel` made them (expectation–maximisation alone, from
samples mixed with others), and sharpened as now. Those with zeros enough for a proof, but not the sample's own column, take its
place in a set that is otherwise right, one at a time, and nothing is repaired. Only a benchmark can do that: an attacker has
not the samples. RESULTS gains a line of JSON for each net, and a run goes on where the last one ended. The table has exact
zeros in units of n (any vector has 1, a proof needs 1.2), and by the jackknife the worst picture's error, in right sets and wrong.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import proofs
from cases import run_of
from limit import NULL, case_of, columns_of, mixed, numbers, read_net
from unfit import Peel
from unfit.attacker.attacks.peel import (
    Change,
    are_exact,
    exact_zeros,
    fit_columns,
    is_new,
    jackknife,
    judge,
    likely_off,
    num_zeros,
    picture,
    proof_bar,
    purify,
    sharpen,
)

FOREIGN = (0.1, 0.3, 0.5)  # shares of other samples in the pictures that the search starts from
WRONG = 1 - 1e-6  # cosine with the sample's own column, below which a column is wrong
SETS = 6  # of each net with a wrong column: the jackknife takes most of the time


def beside(change: Change, x: Tensor, truth: Tensor, random: torch.Generator) -> Iterator[tuple[int, Tensor]]:
    """Wrong columns that look right, each with the sample whose column it should be."""
    bar = proof_bar(change, Peel(null=NULL))
    for share in FOREIGN:
        rough = mixed(x, torch.arange(len(x)), share, random)
        near = fit_columns(change.space.float(), likely_off(change.sums(rough)), change.signals(rough), 20)
        for i in (num_zeros(near) >= bar).nonzero()[:, 0].tolist():
            column = purify(change, sharpen(change, near[i]))
            if column is None or num_zeros(column[None])[0] < bar or not is_new(column, others_of(truth, i)):
                continue
            if F.cosine_similarity(column, truth[i], dim=0).abs() < WRONG:
                yield i, column


def others_of(truth: Tensor, i: int) -> Tensor:
    return torch.cat([truth[:i], truth[i + 1 :]])


def measure(n: int, width: int, seed: int, data: Path, runs: Path) -> dict[str, Any]:
    change, x = read_net(run_of(case_of(n, width), seed, data, runs))
    truth, random = columns_of(change, x), torch.Generator().manual_seed(seed)
    wrong = list(beside(change, x, truth, random))
    zeros = [float(exact_zeros(change, column[None]).sum()) / n for _, column in wrong]
    told, false = [], 0
    for i, column in wrong[:: max(1, len(wrong) // SETS)][:SETS]:
        known = truth.clone()
        known[i] = column
        found, agreement = judge(change, known)
        told.append(float(jackknife(change, known).max()))
        if are_exact(change, known, agreement):
            false += int((proofs.compare(picture(found), x)[0] > proofs.ERROR).sum())
    return {
        "n": n,
        "width": width,
        "seed": seed,
        "right_zeros": float(exact_zeros(change, truth).sum(1).min()) / n,
        "right_told": float(jackknife(change, truth).max()),
        "right_proven": bool(are_exact(change, truth, judge(change, truth)[1])),
        "wrong_zeros": zeros,
        "wrong_told": told,
        "false": false,
    }


def report(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| n | width | seed | exact zeros of right columns, least | wrong columns | their exact zeros, most | worst error, right set | with a wrong one, least | proven: right set | false |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        most, least = max(row["wrong_zeros"], default=0.0), min(row["wrong_told"], default=float("nan"))
        cells = [row["n"], row["width"], row["seed"], f"{row['right_zeros']:.2f}", len(row["wrong_zeros"])]
        cells += [f"{most:.2f}", f"{row['right_told']:.2%}", f"{least:.0%}", row["right_proven"], row["false"]]
        yield "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--sizes", type=numbers, default=[150, 200])
    parser.add_argument("--widths", type=numbers, default=[1000])
    parser.add_argument("--seeds", type=numbers, default=[3, 4, 5])
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = proofs.read(args.results)
    done = {(row["n"], row["width"], row["seed"]) for row in rows}
    for net in ((n, width, seed) for seed in args.seeds for n in args.sizes for width in args.widths):
        if net not in done:
            rows.append(measure(*net, args.data, args.runs))
            print("\n".join(report(rows[-1:])), flush=True)
            with args.results.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print("\n".join(report(rows)))


if __name__ == "__main__":
    main()
