"""May a picture be proven by itself? python benchmarks/single.py DATA RESULTS [--minutes 15] [--first 6000]

With all columns known, least squares gives all pictures together, and each can be off by another amount. `peel` calls a
picture exact if its own error, by the jackknife, is small, that of the worst picture is below a limit, and no column is in
doubt. Here sets of columns are made as bad as they come: those of small nets (as in proofs.py, with fewer neurons), in
weights with noise of many sizes, and in two of three sets one or two columns are mixtures with an alike one, sharpened as
`peel` does it. For every limit the table has the pictures that would be called proven, and how many of these are false.
RESULTS gains a line of JSON for each set; a seed that is there already is not made again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import proofs
from unfit import Peel
from unfit.attacker.attacks.peel import (
    AGREE,
    EXACT,
    WRONG,
    Change,
    has_rival,
    jackknife,
    judge,
    level,
    num_zeros,
    picture,
    proof_bar,
    read_change,
    sharpen,
)
from unfit.attacker.mixtures import read_mixtures
from unfit.base.modules import as_target

SIZES, RATIOS = (10, 20, 40), (5, 6, 8, 10)  # samples, and neurons for each: fewer than in proofs.py
KINDS = (*proofs.PICTURES, *proofs.TABLES)
SETS = 6  # of each net; in every third all columns are right
NOISE = (1e-6, 3e-3)  # of the mean size of the change
MIXED = (0.05, 0.65)  # how much of an alike column is added to a wrong one
ALIKE = 5  # the most alike columns, one of which it is
LIMITS = (EXACT, 0.1, 0.2, 0.5, 1.0, float("inf"))
NULL = 32  # tries in a random space; `peel` makes 64


def noisy(change: Change, random: torch.Generator) -> Change:
    low, high = torch.tensor(NOISE).log()
    size = (low + (high - low) * torch.rand(1, generator=random)).exp() * change.rows.abs().mean()
    rows = change.rows + size * torch.randn(change.rows.shape, generator=random, dtype=torch.float64)
    return replace(change, rows=rows, space=torch.linalg.svd(rows, full_matrices=False)[0][:, : change.n])


def spoilt(change: Change, columns: Tensor, num: int, random: torch.Generator) -> Tensor:
    """So many columns become what the search could end with beside them."""
    columns = columns.clone()
    for i in torch.randperm(len(columns), generator=random)[:num].tolist():
        alike = F.cosine_similarity(columns, columns[i : i + 1]).abs().argsort(descending=True)[1 : ALIKE + 1]
        other = columns[alike[int(torch.randint(len(alike), (1,), generator=random))]]
        share, sign = torch.rand(2, generator=random)
        added = (MIXED[0] + (MIXED[1] - MIXED[0]) * share) * (sign - 0.5).sign()
        columns[i] = sharpen(change, level((columns[i] + added * other)[None])[0])
    return columns


def sets(kind: str, seed: int, data: Path) -> Iterator[dict[str, Any]]:
    """What `peel` would know of some complete sets of one net's columns, and how far the pictures are off."""
    start, net, (x, _) = proofs.nets(kind, seed, data)
    before, after = (as_target(each, tuple(x.shape[1:])) for each in (start, net))
    change = read_change(read_mixtures(after, before))
    if change is None or change.n != len(x):
        return
    flat, random = x.flatten(1), torch.Generator().manual_seed(seed)
    samples = torch.cat([flat, torch.ones(len(x), 1)], 1).double()
    truth = level(torch.linalg.lstsq(samples.T, change.rows.T).solution)
    bar = proof_bar(change, Peel(null=NULL))
    for number in range(SETS):
        near = noisy(change, random)
        known = spoilt(near, torch.stack([sharpen(near, column) for column in truth]), number % 3, random)
        found, agreement = judge(near, known)
        error, correlation = proofs.compare(picture(found), flat)
        cosine = F.cosine_similarity(known, truth).abs()
        yield {
            "kind": kind,
            "seed": seed,
            "wrong": int((cosine < 0.999).sum()),
            "below": int((num_zeros(known) < bar).sum()),
            "agreement": agreement.tolist(),
            "told": jackknife(near, known).tolist(),
            "rival": has_rival(known).tolist(),
            "error": error.tolist(),
            "correlation": correlation.tolist(),
        }


def proven(row: dict[str, Any], limit: float) -> list[tuple[float, float]]:
    """Error and correlation of what would be called proven, if the worst picture may be so far off."""
    if min(row["agreement"]) < WRONG or max(row["told"]) >= limit:
        return []
    each = zip(*(row[name] for name in ("agreement", "told", "rival", "error", "correlation")), strict=True)
    return [(error, r) for agrees, told, rival, error, r in each if agrees >= AGREE and told < EXACT and not rival]


def report(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| the worst picture's error below | sets | … with a wrong column | pictures proven | false | largest error |"
    yield "|---|---|---|---|---|---|"
    for limit in LIMITS:
        kept = [(row, found) for row in rows if (found := proven(row, limit))]
        pictures = [each for _, found in kept for each in found]
        false = sum(error >= proofs.ERROR or r <= proofs.CORRELATION for error, r in pictures)
        wrong, largest = (
            sum(row["wrong"] > 0 for row, _ in kept),
            max((error for error, _ in pictures), default=0.0),
        )
        yield f"| {limit:g} | {len(kept)} | {wrong} | {len(pictures)} | {false} | {largest:.3f} |"


def main(data: Path, results: Path, minutes: float, first: int) -> None:
    torch.set_num_threads(1)
    proofs.SIZES, proofs.RATIOS = SIZES, RATIOS
    rows, seed, end = proofs.read(results), first, time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        for kind in KINDS:
            if not any((row["kind"], row["seed"]) == (kind, seed) for row in rows):
                made = list(sets(kind, seed, data))
                rows += made
                with results.open("a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in made)
        seed += 1
    print(f"{len(rows)} sets, {sum(row['wrong'] > 0 for row in rows)} with a wrong column\n")
    print("\n".join(report(rows)))
    above = [row for row in rows if not row["below"]]
    print(f"\nof these {len(above)} whose columns all have zeros enough\n")
    print("\n".join(report(above)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--first", type=int, default=6000, help="seed")
    given = parser.parse_args()
    main(given.data, given.results, given.minutes, given.first)
