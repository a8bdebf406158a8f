"""The 2-D experiment (H22 sec. 4, Fig. 2 a–f) on one run folder, and its six panels."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from unfit import load_target
from unfit.attacks import attack
from unfit.attacks.kinks import meeting_points
from unfit.attacks.mixtures import read_mixtures
from unfit.nets import outputs
from unfit.runs import private_set
from unfit.target import Target

COLOURS = ("#1971c2", "#d9480f")
NEAR = 0.1


@dataclass(frozen=True)
class CircleRow:
    covered: int
    kept: int
    near: float
    farthest: float
    fit_seconds: float
    attack_seconds: float


def draw_circle(run: Path, picture: Path | None = None) -> CircleRow:
    """Attack the run; measure, and draw if a picture is asked for."""
    target = load_target(run)
    _, private = private_set(run, None, None, None)
    points = private.x - private.mean
    found = attack(target, "kkt")
    distance = torch.cdist(points, found.x)
    if picture is not None:
        _panels(target, points, private.y, found.x, found.label, picture)
    return CircleRow(
        int((distance.amin(1) < NEAR).sum()),
        len(found),
        float((distance.amin(0) < NEAR).float().mean()),
        float(distance.amin(1).max()),
        json.loads((run / "fit.json").read_text())["seconds"],
        found.facts["seconds"],
    )


def _panels(target: Target, points: Tensor, y: Tensor, kept: Tensor, label: Tensor, picture: Path) -> None:
    mixtures, net = read_mixtures(target), target.net()
    meeting = meeting_points(*mixtures.gates, 100, 0)  # type: ignore[arg-type]
    sides = (outputs(net, meeting)[:, 0] > 0).long()
    start = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    inverted = attack(target, "inversion", num_candidates=200)
    figure = Figure((12, 8), layout="constrained")
    panels = figure.subplots(2, 3).flatten()
    grid = torch.linspace(-1.6, 1.6, 200)
    plane = torch.cartesian_prod(grid, grid)
    phi = outputs(net, plane).view(200, 200).T
    panels[0].contourf(grid, grid, phi > 0, levels=[-0.5, 0.5, 1.5], colors=["#d0ebff", "#ffe8cc"])
    _dots(panels[0], points, y, "a  training points and regions of the net")
    _dots(panels[1], start, torch.arange(100) % 2, "b  random starts")
    _dots(panels[2], meeting, sides, f"c  {len(meeting)} places where kinks meet")
    _dots(panels[3], kept, label, f"d  the {len(kept)} with a large multiplier")
    _dots(panels[4], kept, label, "e  they and the training points")
    panels[4].plot(points[:, 0], points[:, 1], "o", ms=13, mfc="none", mec="k")
    _dots(panels[5], inverted.x, inverted.label, "f  model inversion instead")
    panels[5].plot(points[:, 0], points[:, 1], "o", ms=13, mfc="none", mec="k")
    figure.savefig(picture, dpi=90)


def _dots(axes: Axes, x: Tensor, y: Tensor, title: str) -> None:
    for value, colour in enumerate(COLOURS):
        axes.plot(x[y == value, 0], x[y == value, 1], ".", ms=8, color=colour)
    axes.set(title=title, xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), aspect="equal")
