"""A page and a report for each verdict and kind of data, by current code: python benchmarks/gallery.py FOLDER

Every model is small and trained here. *Leak*: its own samples, with the weights before training as the base. *Pass*: the
same model and base, asked about samples it was not trained on. *Inconclusive*: its own samples without the base.
"""

from __future__ import annotations

import argparse
import copy
import html
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from unfit import Audit, Auto, UnfitError, audit, draw, draw_unseen, read_source
from unfit.auditor.report import write_report
from unfit.auditor.report.pack import rendered

N, M = 20, 100  # samples it is trained on, unseen ones
TOWNS, JOBS = 40, 50  # categories of a record
WORDS = 400  # of a vocabulary
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Kind:
    """Samples of one kind, and a model for them."""

    private: Pair
    strangers: Pair  # not trained on, asked about in the pass
    unseen: Pair
    build: Callable[[], nn.Module]
    names: list[str] | None = None


def dense(d: int, classes: int = 2) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(d, 300), nn.ReLU(), nn.Linear(300, classes))


def images(source: str, build: Callable[[], nn.Module]) -> Kind:
    """Two classes of a source of images."""
    read = read_source(source, None if source == "faces" else "2")
    private = draw(read, N, 0)
    others = draw_unseen(read, private, min(N + M, len(read.train) - N), 0)
    asked = (
        torch.arange(len(others.y)) % (len(others.y) // N) == 0
    )  # of both classes, which lie one after the other
    strangers, unseen = ((others.x[which], others.y[which]) for which in (asked, ~asked))
    return Kind((private.x, private.y), strangers, unseen, build)


def faces() -> Kind:
    return images("faces", lambda: dense(625))


def digits() -> Kind:
    return images("mnist5k", lambda: dense(784))


def features() -> Kind:
    """Behind two convolutions that do not train: the attack gives what enters the dense layer."""

    def build() -> nn.Module:
        front = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU())
        return nn.Sequential(
            front.requires_grad_(False), nn.Flatten(), nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 2)
        )

    return images("faces", build)


def split_up(x: Tensor, y: Tensor, names: list[str]) -> Kind:
    a, b = N, 2 * N
    return Kind((x[:a], y[:a]), (x[a:b], y[a:b]), (x[b:], y[b:]), lambda: dense(x.shape[1]), names)


def records() -> Kind:
    """One-hot rows: a plan, which is the class, a town, a job, a year."""
    random = torch.Generator().manual_seed(0)
    sizes = {"plan": 2, "town": TOWNS, "job": JOBS, "year": 30}
    picked = {name: torch.randint(size, (2 * N + M,), generator=random) for name, size in sizes.items()}
    x = torch.cat([nn.functional.one_hot(picked[name], size) for name, size in sizes.items()], 1).float()
    names = [f"{name} = {i}" for name, size in sizes.items() for i in range(size)]
    return split_up(x, picked["plan"], names)


def texts() -> Kind:
    """Counts of words by Zipf's law; the class is told by two words."""
    random = torch.Generator().manual_seed(0)
    often = 1 / torch.arange(1, WORDS + 1)
    x = torch.zeros(2 * N + M, WORDS)
    drawn = torch.multinomial(often.expand(len(x), -1), 20, replacement=True, generator=random)
    x.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float))
    y = torch.arange(len(x)) % 2
    x[:, :2] = nn.functional.one_hot(y, 2) * 3.0
    return split_up(x, y, [f"word{i}" for i in range(WORDS)])


KINDS = {each.__name__: each for each in (faces, digits, features, records, texts)}


def trained(kind: Kind) -> tuple[nn.Module, nn.Module]:
    """After training, and before."""
    torch.manual_seed(7)
    model = kind.build()
    before = copy.deepcopy(model)
    trainable = [each for each in model.parameters() if each.requires_grad]
    optimiser = torch.optim.SGD(trainable, lr=0.05, momentum=0.9)
    for _ in range(300):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(kind.private[0]), kind.private[1]).backward()
        optimiser.step()
    return model, before


def audits(kind: Kind) -> Iterator[tuple[str, Audit]]:
    """The verdict that is wanted, and the audit."""
    model, before = trained(kind)
    attack = Auto(seeds=0)
    for wanted, private, base in (
        ("leak", kind.private, before),
        ("pass", kind.strangers, before),
        ("inconclusive", kind.private, None),
    ):
        try:
            yield wanted, audit(model, private, kind.unseen, base=base, attack=attack, feature_names=kind.names)
        except UnfitError as error:
            print(f"{wanted}: refused: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS])
    given = parser.parse_args()
    rows = []
    for name in given.kinds or KINDS:
        for wanted, found in audits(KINDS[name]()):
            folder = given.folder / f"{name}-{wanted}"
            found.save(folder)
            write_report(found.record, found.arrays, folder)
            (folder / "report.pdf").write_bytes(rendered(found.record, "auditor", ".pdf"))
            note = "" if found.verdict == wanted else f" (wanted: {wanted})"
            print(f"{name}: {found.verdict}{note}", *found.record.reasons, sep="\n  ")
            links = f'<a href="{folder.name}/index.html">page</a> <a href="{folder.name}/report.pdf">report</a>'
            rows.append(f"<li>{html.escape(name)}: {found.verdict}{note}: {links}</li>")
    page = "<!doctype html><html lang=en><meta charset=utf-8><title>unfit: gallery</title><h1>Gallery</h1>"
    (given.folder / "index.html").write_text(f"{page}<ul>{''.join(rows)}</ul></html>", encoding="utf-8")


if __name__ == "__main__":
    main()
