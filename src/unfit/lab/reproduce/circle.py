"""The 2-D experiment (H22 sec. 4): 20 points on a circle, and the panels they are shown in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from unfit.attacker.attacked_layer import read_layer
from unfit.attacker.attacks import attack
from unfit.attacker.attacks.inversion import Inversion
from unfit.attacker.attacks.paper import PaperKKT
from unfit.attacker.kinks import SPACING, large, meeting_points, thin
from unfit.auditor.samples import Samples
from unfit.base.nets import outputs
from unfit.base.progress import Report, quiet
from unfit.base.target import Target
from unfit.lab.reproduce.draw import COLOURS, GREY, blank

NEAR = 0.1  # of a point, a candidate stands for it
NUM_CANDIDATES = 100
INVERSIONS = 200
SIDE = 1.6  # of the panels


@dataclass(frozen=True, eq=False)
class Circle:
    """What an attack has at its end, and after sorting out: points and their sides."""

    found: tuple[Tensor, Tensor]
    strong: tuple[Tensor, Tensor]  # with a large multiplier
    kept: tuple[Tensor, Tensor]  # without duplicates


def by_kinks(target: Target) -> Circle:
    """Ours: where first-layer neurons bend together, and the multipliers solved for."""
    weight, bias = read_layer(target).gates
    assert bias is not None
    places = meeting_points(weight, bias, NUM_CANDIDATES, 0)
    kept = attack(target, "kkt")  # thinned before the multipliers are solved for
    return Circle((places, _sides(target, places)), (kept.x, kept.label), (kept.x, kept.label))


def by_paper(target: Target, iterations: int, seed: int, progress: Report = quiet) -> Circle:
    """The paper's: eq. 8 without a prior, small multipliers dropped, then duplicates."""
    among = 1.0  # starts lie among the points
    method = PaperKKT(num_candidates=NUM_CANDIDATES, iterations=iterations, sigma=among, seed=seed)
    found = attack(target, method, progress=progress)
    strong = large(found.multiplier)
    x = found.x[strong]
    kept = torch.from_numpy(thin(x.double().numpy(), SPACING, NUM_CANDIDATES)).to(x)
    label = found.label[strong]
    return Circle((found.x, found.label), (x, label), (kept, _sides(target, kept)))


def inverted(target: Target) -> tuple[Tensor, Tensor]:
    found = attack(target, Inversion(num_candidates=INVERSIONS))
    return found.x, found.label


def covered(points: Tensor, found: Tensor) -> int:
    """How many of the points have a candidate nearby."""
    return int((torch.cdist(points, found) < NEAR).any(1).sum()) if len(found) else 0


def panels(target: Target, private: Samples, rows: Mapping[str, Circle]) -> Figure:
    """H22 Fig. 2: a to c, then a row of d to f for each attack."""
    points = private.x - private.mean
    figure, (a, b, c, *others) = blank(1 + len(rows), 3, 2.4)
    dots(a, points, private.y, "a  training points")
    regions(b, target)
    dots(b, points, private.y, "b  output of the net")
    dots(c, *_starts(), f"c  {NUM_CANDIDATES} random first candidates")
    for (name, row), (d, e, f) in zip(rows.items(), zip(*[iter(others)] * 3, strict=True), strict=True):
        dots(d, *row.found, f"d  {name}: {len(row.found[0])} candidates")
        dots(e, *row.strong, f"e  {len(row.strong[0])} with a large λ")
        dots(f, *row.kept, f"f  {len(row.kept[0])} without duplicates (paper: 20)")
        ring(f, points)
    explain(figure)
    return figure


def regions(axes: Axes, target: Target) -> None:
    """The output over the plane."""
    steps = torch.linspace(-SIDE, SIDE, 200)
    phi = outputs(target.net(), torch.cartesian_prod(steps, steps)).view(200, 200).T.numpy()
    bound = float(abs(phi).max())
    axes.imshow(
        phi, origin="lower", extent=(-SIDE, SIDE, -SIDE, SIDE), cmap="RdBu_r", vmin=-bound, vmax=bound, alpha=0.7
    )


def dots(axes: Axes, x: Tensor, y: Tensor | None, title: str) -> None:
    """Coloured by their labels, if they have any."""
    for value, colour in enumerate(COLOURS if y is not None else (GREY,)):
        axes.plot(*(x if y is None else x[y == value]).T.numpy(), ".", ms=5, color=colour)
    axes.set_title(title)
    axes.set(xlim=(-SIDE, SIDE), ylim=(-SIDE, SIDE), aspect="equal", xticks=[], yticks=[])


def ring(axes: Axes, points: Tensor) -> None:
    """Around each training point."""
    axes.plot(*points.T.numpy(), "o", ms=8, mfc="none", mec="k", mew=0.6)


def explain(figure: Figure) -> None:
    """What the colours and rings are, below all panels."""
    names = dict(zip(("label −1", "label +1"), COLOURS, strict=True))
    handles = [Line2D([], [], ls="", marker=".", color=colour, label=name) for name, colour in names.items()]
    around = Line2D([], [], ls="", marker="o", mfc="none", mec="k", mew=0.6, label="a training point")
    figure.legend(handles=[*handles, around], loc="outside lower center", ncols=3)


def _starts() -> tuple[Tensor, Tensor]:
    x = torch.randn(NUM_CANDIDATES, 2, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(NUM_CANDIDATES) % 2


def _sides(target: Target, x: Tensor) -> Tensor:
    return (outputs(target.net(), x)[:, 0] > 0).long()
