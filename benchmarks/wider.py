"""Targets that the theory does not promise: python benchmarks/wider.py FOLDER [names]

Other optimisers, augmentation, larger and grey images, inputs that are no images. FOLDER holds cifar-10-batches-bin and
mnist. Run it alone on the machine: about half an hour on 2 cores.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import skimage.data
import torch
from torch import Tensor

from page import SEEDS, spread, write_section
from unfit import (
    Audit,
    Auto,
    FitSettings,
    Target,
    UnfitError,
    audit,
    draw,
    draw_unseen,
    fit,
    parse_architecture,
    read_source,
)
from unfit.auditor.samples import Samples, Source
from unfit.base.nets import initialise
from unfit.lab.measurement import MEASURES
from unfit.lab.trainee import data_loss

TITLE = "Wider: other optimisers, augmentation, other inputs"
INSIDE, OUTSIDE = ("astronaut", "chelsea", "coffee"), ("rocket", "stereo_motorcycle")
ADAM_STEPS = 500
Augment = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Wide:
    """A target, and whether the weights it started from are known to the attacker."""

    name: str
    data: str
    n: int = 100
    init: float | None = 1e-4
    weight_decay: float = 0.0
    adam: bool = False
    augment: Augment | None = None
    base: bool = False
    seeds: tuple[int, ...] = SEEDS


def flip(x: Tensor, random: torch.Generator) -> Tensor:
    """Half of the images, mirrored."""
    which = torch.rand(len(x), 1, 1, 1, generator=random) < 0.5
    return torch.where(which, x.flip(3), x)


def flip_and_shift(x: Tensor, random: torch.Generator) -> Tensor:
    """Mirrored, then moved by up to two pixels, as is usual for CIFAR."""
    padded = torch.nn.functional.pad(flip(x, random), (2, 2, 2, 2))
    places = torch.randint(0, 5, (len(x), 2), generator=random).tolist()
    side = x.shape[2:]
    return torch.stack(
        [image[:, i : i + side[0], j : j + side[1]] for image, (i, j) in zip(padded, places, strict=True)]
    )


WIDE = (
    Wide("Adam, init 1e-4", "cifar10", adam=True, seeds=(0,)),
    Wide("Adam, standard init", "cifar10", init=None, adam=True, seeds=(0,)),
    Wide("Adam, standard init, start known", "cifar10", init=None, adam=True, base=True, seeds=(0,)),
    Wide(
        "Adam with weight decay 1e-3, standard init",
        "cifar10",
        init=None,
        weight_decay=1e-3,
        adam=True,
        seeds=(0,),
    ),
    Wide("Adam, flips, init 1e-4", "cifar10", adam=True, augment=flip, seeds=(0,)),
    Wide("Adam, flips and shifts, init 1e-4", "cifar10", adam=True, augment=flip_and_shift, seeds=(0,)),
    Wide("grey CIFAR-10, init 1e-4", "grey"),
    Wide("grey CIFAR-10, start known", "grey", init=None, base=True),
    Wide("64×64 colour, init 1e-4", "patches", seeds=(0,)),
    Wide("64×64 colour, start known", "patches", init=None, base=True, seeds=(0,)),
    Wide("MNIST digits as vectors, init 1e-4", "digits"),
    Wide("MNIST digits as vectors, start known", "digits", init=None, base=True),
)


def main(folder: Path, names: list[str]) -> None:
    chosen = [wide for wide in WIDE if not names or any(name in wide.name for name in names)]
    with tempfile.TemporaryDirectory() as scratch:
        sources = {name: make(folder, Path(scratch)) for name, make in MAKERS.items()}
        if names:  # a part of the table does not replace the whole
            list(table(chosen, sources))
        else:
            write_section(TITLE, table(chosen, sources), MEASURES)


def table(chosen: list[Wide], sources: dict[str, Source]) -> Iterator[str]:
    yield "n=100, d-1000-1000-1, two classes, `--method auto`; means (lowest–highest) over seeds 0–2, or seed 0 alone for 64×64 and Adam."
    yield "*good*: SSIM > 0.4, Gaussian window 11 (vectors: 1 − relative error > 0.4). Adam: full batches, learning rate 1e-3, 500 steps."
    yield ""
    yield "| target | train acc. | rank | good | good on unseen | recovered | proven | seconds |"
    yield "|---|---|---|---|---|---|---|---|"
    for wide in chosen:
        audits, accuracies = zip(*(attacked(wide, sources[wide.data], seed) for seed in wide.seeds), strict=True)
        records = [result.record for result in audits]
        cells = [
            spread([getattr(record, name) for record in records])
            for name in ("rank", "num_good", "num_good_unseen", "num_recovered", "num_exact")
        ]
        seconds = spread([record.seconds["attack"] for record in records], digits=0)
        line = f"| {wide.name} | {100 * min(accuracies):.0f}% | {' | '.join(cells)} | {seconds} |"
        print(line, flush=True)
        yield line


def attacked(wide: Wide, source: Source, seed: int) -> tuple[Audit, float]:
    members = draw(source, wide.n, seed)
    unseen = draw_unseen(source, members, wide.n, seed)
    initial, end, accuracy = trained(wide, members, seed)
    return audit(
        end, members, unseen, base=initial if wide.base else None, attack=Auto(seed=seed, seeds=0)
    ), accuracy


def trained(wide: Wide, members: Samples, seed: int) -> tuple[Target, Target, float]:
    """The target before and after training, and its accuracy on its training set."""
    architecture = parse_architecture("1000-1000", members.shape, 1, "first")
    train = members.centred(members.mean)
    bounds = (-1.0, 1.0) if members.is_image else None
    if not wide.adam:
        settings = FitSettings(init=wide.init, weight_decay=wide.weight_decay, seed=seed)
        result = fit(architecture, (train.x, train.y), (train.x, train.y), settings)
        targets = (Target(architecture, weights, bounds) for weights in (result.initial, result.weights))
        return *targets, result.record["train_accuracy"]
    net, random = initialise(architecture, wide.init, seed), torch.Generator().manual_seed(seed)
    initial = {name: value.clone() for name, value in net.state_dict().items()}
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=wide.weight_decay)
    for _ in range(ADAM_STEPS):
        x = wide.augment(train.x, random) if wide.augment else train.x
        loss = data_loss(net(x), train.y, "logistic")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    accuracy = ((net(train.x)[:, 0] > 0) == train.y.bool()).float().mean().item()
    end = {name: value.detach().clone() for name, value in net.state_dict().items()}
    return Target(architecture, initial, bounds), Target(architecture, end, bounds), accuracy


def cifar(folder: Path, scratch: Path) -> Source:
    return read_source(f"cifar10:{folder}", "split")


def grey(folder: Path, scratch: Path) -> Source:
    """CIFAR-10 without its colours, vehicles against animals."""
    members = draw(cifar(folder, scratch), 2000, 0)
    return saved(scratch / "grey.npz", members.x.mean(1, keepdim=True).numpy(), members.y.numpy())


def digits(folder: Path, scratch: Path) -> Source:
    """MNIST, odd against even, as 784 numbers of which nothing is known."""
    members = draw(read_source(f"mnist:{folder / 'mnist'}", "split"), 2000, 0)
    return saved(scratch / "digits.npz", members.x.flatten(1).numpy(), members.y.numpy())


def patches(folder: Path, scratch: Path) -> Source:
    """64×64 pieces of the colour pictures inside scikit-image: people, cats and cups against vehicles."""
    x, y = [], []
    for label, names in enumerate((INSIDE, OUTSIDE)):
        for name in names:
            loaded = getattr(skimage.data, name)()
            image = loaded[0] if isinstance(loaded, tuple) else loaded  # of a stereo pair the left one
            for i in range(0, image.shape[0] - 63, 64):
                for j in range(0, image.shape[1] - 63, 64):
                    x.append(image[i : i + 64, j : j + 64])
                    y.append(label)
    return saved(scratch / "patches.npz", np.stack(x), np.array(y))


def saved(path: Path, x: np.ndarray, y: np.ndarray) -> Source:
    np.savez(path, x=x, y=y)
    return read_source(f"npz:{path}")


MAKERS = {"cifar10": cifar, "grey": grey, "digits": digits, "patches": patches}

if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2:])
    except UnfitError as error:
        sys.exit(f"unfit: {error}")
