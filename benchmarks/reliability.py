"""Does confidence mean truth? python benchmarks/reliability.py FOLDER [--runs RUNS]

Targets that had no part in fitting the formula (seeds 3–5), and two on which nothing may be confident: a net that was
never trained, and for each target samples it never saw. FOLDER holds cifar-10-batches-bin. About ten minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from cases import Case, run_of, source_of
from page import DOCS, write_section
from unfit import (
    AuditRequest,
    Auto,
    Candidates,
    Target,
    UnfitError,
    attack,
    draw_unseen,
    load_target,
    parse_architecture,
)
from unfit.auditor.case import private_set
from unfit.auditor.match import normalise
from unfit.auditor.samples import Samples
from unfit.base.nets import initialise

CASES = (
    Case("CIFAR-10 n=100, init 1e-4", "bin100", 100),
    Case("CIFAR-10 n=100, weight decay 1e-3", "wd100", 100, {"init": None, "weight_decay": 1e-3}),
    Case("CIFAR-10 n=50, init 1e-4", "bin50", 50),
    Case("faces n=40, init 1e-4", "faces40", 40, data="faces"),
)
SEEDS = (3, 4, 5)
EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0)
TRUE = 0.7  # |correlation| with a training sample above which a candidate is that sample


@dataclass(frozen=True, eq=False)
class Judged:
    """The candidates that runs agree on: how confident, whether true, true of an unseen sample, sign and label right."""

    confidence: Tensor
    true: Tensor
    unseen: Tensor
    sign: Tensor
    label: Tensor


def main(folder: Path, runs: Path) -> None:
    found = {case.name: [judged(run_of(case, seed, folder, runs), seed) for seed in SEEDS] for case in CASES}
    write_section("Confidence: does it mean true?", [*table(found), "", untrained()], ("attacker",))
    image({name: whole(rows) for name, rows in found.items()})


def judged(run: Path, seed: int) -> Judged:
    candidates = attack(load_target(run), Auto(seed=seed, seeds=0))
    request = AuditRequest(target=str(run), data=source_of(run), seed=seed)
    source, private = private_set(request)
    agreed = candidates.confidence > 0
    x, label = candidates.x[agreed], candidates.label[agreed]
    similarity, nearest = closest(x, private, private.mean)
    other, _ = closest(x, draw_unseen(source, private, len(private), seed), private.mean)
    true = similarity.abs() > TRUE
    return Judged(
        candidates.confidence[agreed], true, other.abs() > TRUE, similarity > 0, label == private.y[nearest]
    )


def closest(x: Tensor, samples: Samples, mean: Tensor) -> tuple[Tensor, Tensor]:
    """The correlation of each candidate with the sample most like it up to sign, and which that is."""
    a, b = (normalise(t.flatten(1)) / t[0].numel() ** 0.5 for t in (x, samples.x - mean))
    correlation = a @ b.T
    nearest = correlation.abs().argmax(1)
    return correlation.gather(1, nearest[:, None])[:, 0], nearest


def whole(rows: list[Judged]) -> Judged:
    return Judged(*(torch.cat([getattr(row, name) for row in rows]) for name in Judged.__dataclass_fields__))


def table(found: dict[str, list[Judged]]) -> Iterator[str]:
    yield "Seeds 3–5, which the formula was not fitted to. *true*: correlates above 0.7, in either sign, with a training sample. The control"
    yield "compares the same candidates with as many samples never seen. Sign and label are counted among the true ones above 0.9."
    yield ""
    yield "| target | above 0.9 | true | like an unseen one | above 0.95 | true | sign right | label right |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, rows in found.items():
        every = whole(rows)
        sure, surer = every.confidence > 0.9, every.confidence > 0.95
        cells = [
            f"{int(sure.sum())}",
            share(every.true[sure]),
            share(every.unseen[sure]),
            f"{int(surer.sum())}",
            share(every.true[surer]),
            share(every.sign[sure & every.true]),
            share(every.label[sure & every.true]),
        ]
        line = f"| {name} | {' | '.join(cells)} |"
        print(line, flush=True)
        yield line
    yield ""
    yield "![reliability curve](images/reliability.png)"


def share(which: Tensor) -> str:
    return f"{100 * which.float().mean():.1f}%" if len(which) else "–"


def untrained() -> str:
    """Nets at their initial weights: whatever is found, nothing may be confident."""
    counts = [
        sure(attack(initial(init, seed), Auto(seed=seed, seeds=0))) for init in (1e-4, None) for seed in SEEDS
    ]
    return f"Untrained nets (init 1e-4 and standard, three seeds each) give {sum(counts)} candidates above 0.9."


def initial(init: float | None, seed: int) -> Target:
    architecture = parse_architecture("1000-1000", (3, 32, 32), 1, "first")
    return Target(architecture, dict(initialise(architecture, init, seed).state_dict()), (-1.0, 1.0))


def sure(candidates: Candidates) -> int:
    return int((candidates.confidence > 0.9).sum())


def image(found: dict[str, Judged]) -> None:
    """How often candidates of some confidence are true; the diagonal is perfect calibration."""
    figure = Figure(figsize=(5, 4.4), layout="constrained")
    axes = figure.add_subplot(xlabel="confidence", ylabel="share that is true", xlim=(0, 1.02), ylim=(0, 1.02))
    axes.plot([0, 1], [0, 1], color="#868e96", lw=1, ls="--")
    for name, every in found.items():
        inside = [(every.confidence > low) & (every.confidence <= high) for low, high in itertools.pairwise(EDGES)]
        points = [(every.confidence[i].mean(), every.true[i].float().mean()) for i in inside if i.sum() >= 5]
        axes.plot(*zip(*points, strict=True), "o-", ms=4, label=name)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(DOCS / "images" / "reliability.png", dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=Path)
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            main(given.folder, given.runs or Path(scratch))
    except UnfitError as error:
        sys.exit(f"unfit: {error}")
