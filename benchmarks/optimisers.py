"""What the state of an optimiser adds to a checkpoint: python benchmarks/optimisers.py FOLDER

Plain PyTorch nets with standard initial weights that no seed gives away, n=100 CIFAR-10 images. Each is audited twice by its file: with
the weights alone, and as a trainer saves it, with the optimiser's state. The same files are also audited with samples that
the net was not trained on: nothing may leak there. FOLDER holds cifar-10-batches-bin. Half an hour on one core.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from page import SEEDS, spread, write_section
from unfit import Auto, Samples, Target, UnfitError, audit, draw, draw_unseen, load_target, read_source
from unfit.auditor.record import Record

N, OTHERS = 100, 1000  # samples; and what is added to a seed to draw strangers


@dataclass(frozen=True)
class Training:
    """How a net is trained, and for how many steps."""

    name: str
    optimiser: Callable[..., torch.optim.Optimizer]
    batch: int
    steps: int


TRAININGS = (
    Training("Adam, full batches", lambda p: torch.optim.Adam(p, lr=1e-3), N, 100),
    Training("Adam, batches of 20", lambda p: torch.optim.Adam(p, lr=1e-3), 20, 300),
    Training("AdamW, batches of 32", lambda p: torch.optim.AdamW(p, lr=1e-3), 32, 1000),
    Training("Adam with weight decay 1e-3, batches of 20", lambda p: torch.optim.Adam(p, 1e-3, weight_decay=1e-3), 20, 300),
    Training("SGD with momentum, batches of 20", lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), 20, 500),
)  # fmt: skip


def main(folder: str) -> None:
    torch.set_num_threads(1)
    write_section("The state of an optimiser", table(folder), ("attacker", "auditor"))


def table(folder: str) -> Iterator[str]:
    yield "`python benchmarks/optimisers.py FOLDER`: plain PyTorch, d-1000-1000-2, standard initial weights, n=100 CIFAR-10 images less their mean. Each"
    yield "net is audited by its file, without the search for the initial weights: the weights alone, and with the optimiser's state beside them."
    yield "*good*: SSIM > 0.4, Gaussian window 11, and on as many unseen samples. *strangers*: the same file, audited with 100 samples that"
    yield f"it was not trained on. Means over seeds {', '.join(map(str, SEEDS))} with the extremes; processor seconds of the audit, one thread."
    yield ""
    yield "| training | file | directions | good | on unseen | recognisable | proven | verdicts | strangers | processor seconds |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for training in TRAININGS:
        for with_state in (False, True):
            rows = [measured(training, seed, with_state, folder) for seed in SEEDS]
            column = {key: [row[key] for row in rows] for key in rows[0]}
            counts = ("rank", "good", "unseen", "recognisable", "proven")
            cells = [
                *(spread(column[key]) for key in counts),
                *(", ".join(column[key]) for key in ("verdict", "strangers")),
                spread(column["seconds"], digits=0),
            ]
            line = f"| {training.name} | {'with its state' if with_state else 'weights alone'} | {' | '.join(cells)} |"
            print(line, flush=True)
            yield line


def measured(training: Training, seed: int, with_state: bool, folder: str) -> dict:
    source = read_source(f"cifar10:{folder}")
    private, strangers = draw(source, N, seed), draw(source, N, seed + OTHERS)
    net, optimiser = trained(training, seed, private)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "net.pt"
        state = {"optimizer_state_dict": optimiser.state_dict()} if with_state else {}
        torch.save({"model_state_dict": net.state_dict(), **state}, file)
        target = load_target(file)
    began = time.process_time()
    own = said(target, private, draw_unseen(source, private, N, seed), private.mean)
    seconds = time.process_time() - began
    try:
        other = said(target, strangers, draw_unseen(source, strangers, N, seed), private.mean).verdict
    except UnfitError:
        other = "refused"  # the net does not know these samples
    return {
        "rank": own.rank, "good": own.num_good, "unseen": own.num_good_unseen, "recognisable": own.num_recognisable,
        "proven": own.num_exact, "verdict": own.verdict, "strangers": other, "seconds": seconds,
    }  # fmt: skip


def said(target: Target, samples: Samples, unseen: Samples, mean: Tensor) -> Record:
    pairs = [(each.x - mean, each.y) for each in (samples, unseen)]
    return audit(target, *pairs, attack=Auto(seeds=0)).record


def trained(training: Training, seed: int, samples: Samples) -> tuple[nn.Module, torch.optim.Optimizer]:
    x, y = samples.x - samples.mean, samples.y
    random = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3072, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 2))  # fmt: skip
    optimiser = training.optimiser(net.parameters())
    for _ in range(training.steps):
        i = torch.randperm(N, generator=random)[: training.batch]
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x[i]), y[i]).backward()
        optimiser.step()
    return net, optimiser


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/optimisers.py FOLDER, the folder that holds cifar-10-batches-bin")
    main(sys.argv[1])
