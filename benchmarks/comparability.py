"""Can sets that differ be told apart, and are sets of one draw left alone? python benchmarks/comparability.py DATA

DATA holds cifar-10-batches-bin and mnist. Prints two tables: how often `compare_sets` says that random halves of one
draw are not exchangeable, which should be no more than its LEVEL of 0.5%, and how often it says so of sets that differ.
At most ten minutes of one core; `--splits` and `--repeats` make it less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer

from unfit.auditor.comparability import compare_sets
from unfit.auditor.labels import Labels
from unfit.auditor.samples import Samples, Subset
from unfit.auditor.sources import read_source

Pair = tuple[Samples, Samples]
Rng = np.random.Generator
SIZES, SPLIT_SIZES = (50, 100, 200, 500), (20, 50, 100, 200)


def main(data: Path, splits: int, repeats: int) -> None:
    cifar, mnist = read_source(f"cifar10:{data}"), read_source(f"mnist:{data / 'mnist'}")
    assert mnist.test is not None
    tabular = load_breast_cancer()
    table = Subset(tabular.data.astype(np.float32), Labels(tabular.target, ("malignant", "benign")))
    draws = {
        "CIFAR-10": cifar.train,
        "MNIST": mnist.train,
        "faces": read_source("faces").train,
        "breast cancer": table,
    }
    print(f"Told apart, of {splits} random halves of one draw:\n")
    print_table({name: halves(part) for name, part in draws.items()}, SPLIT_SIZES, splits)
    print(f"\nTold apart, of {repeats} pairs of sets that differ:\n")
    print_table(differing(cifar.train, mnist.train, mnist.test), SIZES, repeats)


def print_table(rows: dict[str, Callable[[int, Rng], Pair | None]], sizes: tuple[int, ...], repeats: int) -> None:
    print(f"| n of each set | {' | '.join(map(str, sizes))} |\n|---|{'---|' * len(sizes)}")
    for name, draw in rows.items():
        print(f"| {name} | {' | '.join(told_apart(draw, n, repeats) for n in sizes)} |", flush=True)


def told_apart(draw: Callable[[int, Rng], Pair | None], n: int, repeats: int) -> str:
    pairs = (draw(n, np.random.default_rng((n, seed))) for seed in range(repeats))
    found = [not compare_sets(*pair, seed).comparable for seed, pair in enumerate(pairs) if pair is not None]
    return str(sum(found)) if found else "–"


def some(part: Subset, n: int, rng: Rng) -> Samples:
    return part.take(rng.choice(np.flatnonzero(part.labels >= 0), n, replace=False))


def halves(part: Subset) -> Callable[[int, Rng], Pair | None]:
    """Of one draw: odd ones class by class as unfit draws them, even ones without regard to class."""

    def draw(n: int, rng: Rng) -> Pair | None:
        seed = int(rng.integers(2**31))
        if 2 * n > part.largest_balanced():
            return None
        if seed % 2:
            first = part.balanced(n, seed)
            return part.take(first), part.take(part.balanced(n, seed + 1, first))
        both = rng.permutation(np.flatnonzero(part.labels >= 0))
        return part.take(both[:n]), part.take(both[n : 2 * n])

    return draw


def differing(cifar: Subset, mnist: Subset, t10k: Subset) -> dict[str, Callable[[int, Rng], Pair | None]]:
    def changed(change: Callable[[torch.Tensor, Rng], torch.Tensor]) -> Callable[[int, Rng], Pair]:
        def draw(n: int, rng: Rng) -> Pair:
            private, unseen = some(cifar, n, rng), some(cifar, n, rng)
            return replace(private, x=change(private.x, rng)), unseen

        return draw

    def mixed(n: int, rng: Rng) -> Pair:
        """70% vehicles against 50%."""
        pools = [np.flatnonzero(cifar.labels == label) for label in (0, 1)]
        num = round(0.7 * n)
        at = [rng.choice(pool, size, replace=False) for pool, size in zip(pools, (num, n - num), strict=True)]
        return cifar.take(np.concatenate(at)), cifar.take(cifar.balanced(n, int(rng.integers(2**31))))

    def in_order(first: Subset, second: Subset) -> Callable[[int, Rng], Pair]:
        """Runs of samples as they lie in the files: few writers in each."""

        def draw(n: int, rng: Rng) -> Pair:
            starts = (int(rng.integers(len(part) // n)) * n for part in (first, second))
            private, unseen = (
                part.take(range(at, at + n)) for part, at in zip((first, second), starts, strict=True)
            )
            return private, unseen

        return draw

    return {
        "MNIST train, t10k: drawn at random": lambda n, rng: (some(mnist, n, rng), some(t10k, n, rng)),
        "MNIST train, t10k: as they lie in the files": in_order(mnist, t10k),
        "MNIST train twice, as it lies in the file": in_order(mnist, mnist),
        "CIFAR-10, 70% vehicles against 50%": mixed,
        "CIFAR-10, half of all values zero": changed(
            lambda x, rng: x * torch.from_numpy(rng.random(x.shape) < 0.5)
        ),
        "CIFAR-10, lower half of the pictures zero": changed(lambda x, _: x * (torch.arange(32) < 16)[:, None]),
        "CIFAR-10, 0.05 brighter": changed(lambda x, _: (x + 0.05).clamp(max=1)),
        "CIFAR-10, 0.15 brighter": changed(lambda x, _: (x + 0.15).clamp(max=1)),
        "CIFAR-10, BGR for RGB": changed(lambda x, _: x.flip(1)),
        "CIFAR-10, 10% less contrast": changed(lambda x, _: 0.5 + 0.9 * (x - 0.5)),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--splits", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    began = time.process_time()
    main(given.data, given.splits, given.repeats)
    print(f"\n{time.process_time() - began:.0f} processor seconds")
