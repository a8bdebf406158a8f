"""What does a threshold still decide? python benchmarks/sensitivity.py DATA [--seeds 100,101] prints the table of docs/proof.md

Each constant of the proof is moved over a decade around its value, the others stay. On nets of `proofs.py`, *columns* are the true
ones, computed from the samples, and *wrong vectors* are those that the search of `peel` ends with beside them. *Exact* are the
samples of complete sets; in as many sets one column is mixed with a tenth of the one most like it, which spoils that one's
image, and *false* are exact images that are more than 2% off.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import proofs
from unfit import Peel
from unfit.attacker import change as changes
from unfit.attacker import gates, sparse
from unfit.attacker.attacked_layer import read_layer
from unfit.attacker.attacks.peel import certain, find_columns, loose_components, sharpen
from unfit.attacker.change import Change, read_change
from unfit.base.modules import as_base, as_target

KINDS = ("faces", "CIFAR", "MNIST", "digits", "plain", "twins", "copies", "half")
MOVED: tuple[tuple[Any, str, tuple[float, ...]], ...] = (
    (sparse, "CHANCE", (1e-12, 1e-9, 1e-6)),
    (sparse, "GAP", (1e2, 3e2, 1e3)),
    (sparse, "SUPPORT", (0.02, 0.07, 0.2)),
    (changes, "ROUNDED", (10, 30, 100)),
    (gates, "STRAYS", (0.006, 0.02, 0.06)),
    (gates, "DECIDED", (3, 10, 30)),
    (gates, "EXACT", (0.015, 0.05, 0.15)),
)
SAME = 1 - 1e-6  # cosine with a true column
MIXED = 0.1
Net = tuple[Change, Tensor, Tensor, Tensor]  # with true columns, wrong vectors and samples


@contextmanager
def moved(module: Any, name: str, value: float) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    yield
    setattr(module, name, before)


def cosines(columns: Tensor, truth: Tensor) -> Tensor:
    return (F.normalize(columns, dim=1) @ F.normalize(truth, dim=1).T).abs().amax(1)


def read(kind: str, seed: int, data: Path) -> Net | None:
    """None where the change does not show all samples."""
    initial, net, (x, _) = proofs.nets(kind, seed, data)
    target, x = as_target(net), x.flatten(1)
    change = read_change(read_layer(target, as_base(initial, target)))
    if change is None or change.n != len(x):
        return None
    rows = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    truth = torch.linalg.lstsq(rows.T, change.rows.T).solution
    truth = torch.stack([sharpen(change, column) for column in truth])
    rough = loose_components(change, change.rows.new_zeros(0, len(change.rows)), 0, Peel())
    found = torch.stack([sharpen(change, column) for column in find_columns(change, rough, 20)])
    return change, truth, found[cosines(found, truth) < SAME], x


def num_certain(change: Change, columns: Tensor, truth: Tensor, right: bool) -> int:
    found = [found for column in columns if (found := certain(change, column)) is not None]
    return int(((cosines(torch.stack(found), truth) >= SAME) == right).sum()) if found else 0


def exact(net: Net, known: Tensor) -> tuple[int, int]:
    """Right ones and false ones."""
    change, _, _, samples = net
    x = gates.judge(change, known)[0]
    found = gates.image(x)[gates.are_exact(change, known, x)]
    wrong = int((proofs.compare(found, samples)[0] > proofs.ERROR).sum()) if len(found) else 0
    return len(found) - wrong, wrong


def spoilt(truth: Tensor) -> Iterator[Tensor]:
    unit = F.normalize(truth, dim=1)
    for i, near in enumerate((unit @ unit.T).abs().fill_diagonal_(0).argmax(1).tolist()):
        known = sparse.level(truth)
        known[i] = sparse.level((known[i] + MIXED * known[near])[None])[0]
        yield known


def counts(nets: list[Net]) -> str:
    right = sum(num_certain(change, truth, truth, True) for change, truth, _, _ in nets)
    wrong = sum(num_certain(change, vectors, truth, False) for change, truth, vectors, _ in nets)
    sets = [exact(net, net[1]) for net in nets]
    false = [exact(net, known)[1] for net in nets for known in spoilt(net[1])]
    return f"{right} | {wrong} | {sum(num for num, _ in sets)} | {sum(num for _, num in sets) + sum(false)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[100, 101])
    args = parser.parse_args()
    torch.set_num_threads(1)
    every = [read(kind, seed, args.data) for kind in KINDS for seed in args.seeds]
    nets = [net for net in every if net is not None]
    columns, wrong = (sum(len(net[which]) for net in nets) for which in (1, 2))
    print(f"{len(nets)} of {len(every)} nets show all samples: {columns} columns, {wrong} wrong vectors")
    print(
        "| constant | value | columns certain | wrong vectors certain | exact | false |\n|---|---|---|---|---|---|"
    )
    for module, name, values in MOVED:
        for value in values:
            with moved(module, name, value):
                print(f"| {name} | {value:g} | {counts(nets)} |", flush=True)


if __name__ == "__main__":
    main()
