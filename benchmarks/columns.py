"""What determines a column, at the truth; and what peel proves. python benchmarks/columns.py DATA [names] [--seeds 5,6]

Each case is trained by the plain PyTorch loop below from known initial weights: momentum SGD (0.05, 0.9), 400 steps unless said.
Columns are computed from the samples themselves, and judged by the certificate. Then `peel` attacks, without the samples. A line for each:
*right* images are within 2% of a sample.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import proofs
from unfit import Peel
from unfit.attacker.attacked_layer import AttackedLayer, read_layer
from unfit.attacker.change import read_change
from unfit.attacker.gates import contradicted, margins
from unfit.attacker.sparse import certify, level
from unfit.base.modules import as_base, as_target
from zoo import Pair, loss_of, mlp, samples


@dataclass(frozen=True)
class Columns:
    """A net and its samples."""

    source: str
    n: int
    widths: tuple[int, ...]  # the last is that of the outputs
    steps: int = 400
    batch: int | None = None
    decay: float = 0.0
    noise: float | None = None  # of copies, which are half of the samples
    centred: bool = True


CASES = {
    "cifar100": Columns("cifar10", 100, (1000, 1000, 1)),
    "cifar200": Columns("cifar10", 200, (1000, 1000, 1)),
    "two hidden": Columns("cifar10", 60, (600, 600, 1)),
    "one hidden": Columns("cifar10", 60, (600, 1)),
    "five steps, one hidden": Columns("cifar10", 60, (600, 1), steps=5),
    "five steps, two hidden": Columns("cifar10", 60, (600, 600, 1), steps=5),
    "batches": Columns("cifar10", 60, (600, 600, 1), batch=10),
    "copies 5%": Columns("cifar10", 40, (600, 600, 1), noise=0.05),
    "copies 0.5%": Columns("cifar10", 40, (600, 600, 1), noise=0.005),
    "digits 60": Columns("mnist", 60, (600, 10), centred=False),
    "digits 100": Columns("mnist", 100, (1000, 10), centred=False),
    "digits, decay": Columns("mnist", 100, (512, 256, 10), batch=25, decay=1e-3, centred=False),
}


def drawn(case: Columns, seed: int, data: Path) -> Pair:
    x, y = samples(case.source, case.n if case.noise is None else case.n // 2, data, "all" if case.widths[-1] == 10 else None, seed)  # fmt: skip
    x = x - x.mean(0, keepdim=True) if case.centred else x
    if case.noise is not None:
        noise = case.noise * x.std() * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
        x, y = torch.cat([x, x + noise]), torch.cat([y, y])
    return x, y


def trained(case: Columns, pair: Pair, seed: int) -> AttackedLayer:
    initial = mlp(pair[0][0].numel(), *case.widths, seed=seed)
    net, random = copy.deepcopy(initial), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=case.decay)
    order = torch.arange(len(pair[0]))
    for step in range(case.steps):
        each = len(order) if case.batch is None else case.batch
        if case.batch is not None and step * each % len(order) < each:
            order = torch.randperm(len(order), generator=random)
        chosen = order.roll(-step * each)[:each]
        optimiser.zero_grad()
        loss_of(net, pair[0][chosen], pair[1][chosen]).backward()
        optimiser.step()
    target = as_target(nn.Sequential(*net).eval())
    return read_layer(target, as_base(initial, target))


def at_the_truth(layer: AttackedLayer, x: torch.Tensor) -> str:
    change = read_change(layer)
    if change is None or change.n != len(x):
        return "the spectrum does not show all samples"
    rows = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    columns = level(torch.linalg.lstsq(rows.T, change.rows.T).solution @ change.space @ change.space.T)
    pairs = zip(change.zeros(columns), change.zero(columns)[:, 0].tolist(), strict=True)
    found = [certify(change.space, zero, width) for zero, width in pairs]
    chance, gap, support = (torch.tensor([getattr(each, name) for each in found]) for name in ("log_chance", "gap", "support"))  # fmt: skip
    num = torch.tensor([each.num_zeros for each in found]) - change.n + 1
    strays, margin = contradicted(change, columns, rows).max(), margins(change, columns, rows).min()
    return (
        f"zeros beyond n − 1 {int(num.min())}, {int(num.median())}; chance 10^{chance.max() / math.log(10):.0f}; gap "
        f"{gap.median():.0e}; support {support.min():.3f}; certain {sum(each.holds for each in found)}; "
        f"strays {strays:.1%}; margin {int(margin)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", default=list(CASES), metavar="names")
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[5])
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, seed in ((name, seed) for name in args.names for seed in args.seeds):
        pair = drawn(CASES[name], seed, args.data)
        layer, x = trained(CASES[name], pair, seed), pair[0].flatten(1)
        print(f"{name}, seed {seed}: {at_the_truth(layer, x)}", flush=True)
        began = time.process_time()
        for part in Peel().prove(layer)[0]:
            right = proofs.compare(part.x.flatten(1), x)[0] < proofs.ERROR
            print(f"  {part.name}: {len(right)}, right {int(right.sum())}, {time.process_time() - began:.0f} s")


if __name__ == "__main__":
    main()
