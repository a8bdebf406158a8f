"""Figures in the papers' layout, one size of letters; lines and points are vectors."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image
from torch import Tensor

from unfit.auditor.audit import Audit
from unfit.auditor.match import GOOD
from unfit.auditor.report.plots import pairs, shrink
from unfit.base.images import stretch, tiles
from unfit.lab.reproduce.claims import ssim_threshold, ssims

COLOURS = ("#1971c2", "#d9480f")  # of the two classes; of several only their margin is shown, in the first
ATTACK_COLOURS = {"auto": "#1971c2", "unmix": "#2b8a3e", "fast": "#d9480f", "paper": "#868e96"}
GREY, DARK, RED = "#868e96", "#495057", "#c92a2a"
WIDTH = 7  # inches: both columns of a page
LETTERS = 8  # points, everywhere
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize", "legend.fontsize"), LETTERS),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), LETTERS),
    "axes.titlelocation": "left",
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "unfit",  # the same bytes each time
    "svg.fonttype": "none",  # letters stay letters
}
WEB_DPI = 150  # of the PNG, for a page on a screen; what is printed is the SVG
COLOURS_OF_A_SHEET = 256  # half of the bytes of all, and hardly to be seen
SHEET_PIXELS = 300_000  # of a gallery; more images than that are shown smaller


def save(figure: Figure, folder: Path) -> None:
    """figure.png, for a screen, and figure.svg, for print; the same bytes each time."""
    whole, drawn = io.BytesIO(), io.StringIO()
    figure.savefig(whole, format="png", dpi=WEB_DPI)
    Image.open(whole).convert("RGB").quantize(256).save(folder / "figure.png", optimize=True)
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    light = re.sub(r"(?<=data:image/png;base64,)[\w+/=\s]+", _with_palette, drawn.getvalue())
    (folder / "figure.svg").write_text(light, encoding="utf-8")


def _with_palette(found: re.Match[str]) -> str:
    """An image of so few colours takes a third of the bytes if they are numbered; others stay as they are."""
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(found[0]))).convert("RGBA"))
    packed = np.ascontiguousarray(pixels).view(np.uint32)[..., 0]
    colours, numbers = np.unique(packed, return_inverse=True)
    if len(colours) > COLOURS_OF_A_SHEET or pixels[..., 3].min() < 255:
        return found[0]
    light, image = io.BytesIO(), Image.fromarray(numbers.reshape(packed.shape).astype(np.uint8), "P")
    image.putpalette(colours.view(np.uint8).reshape(-1, 4)[:, :3].tobytes())
    image.save(light, format="PNG", optimize=True)
    return base64.b64encode(light.getvalue()).decode()


def blank(
    rows: int, columns: int, height: float, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """This many panels, row by row; `height` of a row in inches."""
    figure = Figure((WIDTH, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).flatten())


def image(axes: Axes, pixels: np.ndarray, title: str, pad: float = 4) -> None:
    few = Image.fromarray(pixels).quantize(COLOURS_OF_A_SHEET).convert("RGB")
    axes.imshow(np.asarray(few), interpolation="none")
    axes.set_title(title, pad=pad)
    axes.set_axis_off()
    axes.set_anchor("N")  # under the titles of its row


def grid(audits: Mapping[str, Audit], columns: int = 15, rows: int = 3) -> Figure:
    """The best pairs of each, reconstruction above original, best first."""
    panels = {}
    for title, audit in audits.items():
        record = audit.record
        shown = min(columns * rows, record.num_samples)
        good = f"{record.num_good} good, {record.num_good_unseen} on unseen"
        words = f"{title}: the best {shown} of {record.num_samples}; {good}"
        panels[words] = np.asarray(pairs(audit.arrays, columns, rows, zoom=1))
    return _stacked(panels)


def _stacked(sheets: Mapping[str, np.ndarray]) -> Figure:
    """Sheets of images over the whole width, each under its title."""
    heights = [WIDTH * sheet.shape[0] / sheet.shape[1] + 0.3 for sheet in sheets.values()]
    figure = Figure((WIDTH, sum(heights)), layout="constrained")
    places = figure.subplots(len(sheets), 1, squeeze=False, height_ratios=heights).flatten()
    for axes, (title, sheet) in zip(places, sheets.items(), strict=True):
        image(axes, sheet, title)
    return figure


def pairs_in(axes: Axes, audit: Audit, title: str, columns: int = 5, rows: int = 2) -> None:
    """The best pairs in a panel of a figure."""
    image(axes, np.asarray(pairs(audit.arrays, columns, rows, zoom=1)), title)


def scatter(panels: Sequence[tuple[str, Audit]], columns: int = 4, share_x: bool = True) -> Figure:
    """Each training sample: the best similarity against the model's output, on the same axes in all panels."""
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, places = blank(rows, columns, 1.9, sharey=True, sharex=share_x)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, audit) in zip(places, panels, strict=False):
        points(axes, audit)
        axes.set_title(title)
    places[0].set_ylim(min(0.0, *(float(ssims(audit)[0].min()) for _, audit in panels)), 1)
    for axes in places[len(panels) - columns : len(panels)]:  # the last of its column, whatever row that is
        axes.xaxis.set_tick_params(labelbottom=True)
        axes.set_xlabel("output")
    for axes in places[::columns]:
        axes.set_ylabel("SSIM")
    explain(figure, [audit for _, audit in panels])
    return figure


def points(axes: Axes, audit: Audit) -> None:
    labels = np.array([sample.label for sample in audit.record.samples])
    output, similarity = (values.numpy() for values in (audit.arrays["output"], ssims(audit)[0]))
    two = len(audit.record.class_names) == 2
    for label in range(2 if two else 1):
        which = labels == label if two else np.full(len(labels), True)
        axes.plot(output[which], similarity[which], ".", ms=4.5, mew=0, color=COLOURS[label], alpha=0.7)
    axes.axhline(GOOD, color=GREY, lw=0.8)
    axes.axhline(ssim_threshold(audit), color=GREY, lw=0.8, ls="--")
    axes.set_ylim(min(0.0, float(similarity.min())), 1)


def explain(figure: Figure, audits: Sequence[Audit]) -> None:
    """What the points and lines of `points` are, below all panels."""
    every = {tuple(audit.record.class_names) for audit in audits}
    two = {names for names in every if len(names) == 2}
    names = two.pop() if len(two) == 1 else ("first class", "second class") if two else ("samples",)
    if len(names) == 2 and any(len(each) != 2 for each in every):
        names = f"{names[0]}; of several classes, all", names[1]
    dots = [
        Line2D([], [], ls="", marker=".", color=colour, label=name)
        for name, colour in zip(names, COLOURS, strict=False)
    ]
    good = Line2D([], [], color=GREY, lw=0.8, label=f"good: {GOOD}")
    recovered = Line2D([], [], color=GREY, lw=0.8, ls="--", label="1% of unseen pass")
    figure.legend(handles=[*dots, good, recovered], loc="outside lower center", ncols=4)


def gallery(images: Tensor, title: str, columns: int) -> Figure:
    """All of these images, each stretched by itself."""
    small = shrink(stretch(images), len(images), SHEET_PIXELS)
    return _stacked({title: np.concatenate(tiles(small, columns, 1))})


def lines(axes: Axes, x: Sequence[float], curves: Mapping[str, Sequence[float]], xlabel: str, ylabel: str) -> None:
    """A curve for each name; that of unseen samples is dotted."""
    for name, values in curves.items():
        attack = name.partition(",")[0]
        style = ":" if name.endswith("unseen") else "-"
        axes.plot(x, values, style, marker="o", ms=3, lw=1, color=ATTACK_COLOURS.get(attack, DARK), label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel)


def beside(names: Sequence[str], panels: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """The paper's number and ours in one line for each name, one panel for each kind; a loss spans decades."""
    figure, places = blank(1, len(panels), 0.8 + 0.22 * len(names), sharey=True)
    for axes, (title, values) in zip(places, panels.items(), strict=True):
        paper, ours = zip(*values, strict=True)
        at = range(len(names))
        axes.hlines(at, paper, ours, color="#ced4da", lw=1)
        axes.plot(paper, at, "D", ms=4, mfc="none", color=RED, label="the paper")
        axes.plot(ours, at, "o", ms=4, color=COLOURS[0], label="ours")
        axes.set(xlabel=title, xscale="log" if max(paper) > 20 * min(paper) else "linear")
    places[0].set_yticks(range(len(names)), names)
    places[0].invert_yaxis()
    figure.legend(*places[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def thresholds(audits: Mapping[str, Audit], columns: int = 20) -> Figure:
    """Pairs from the best to the middle one with their SSIM, and how members and unseen samples are spread."""
    figure = Figure((WIDTH, 2.9 * len(audits)), layout="constrained")
    ratios = [0.55, 1] * len(audits)  # images are lower than what is drawn below them
    places = list(figure.subplots(len(ratios), 1, height_ratios=ratios))
    for axes in places[3::2]:
        axes.sharey(places[1])
    for (name, audit), top, bottom in zip(audits.items(), places[::2], places[1::2], strict=True):
        similarity, unseen = ssims(audit)
        order = similarity.argsort(descending=True)[: max(columns, len(similarity) // 2)]
        chosen = order[np.linspace(0, len(order) - 1, min(columns, len(order))).round().astype(int)]
        images = [tiles(audit.arrays[key][chosen], len(chosen), 1)[0] for key in ("reconstruction", "original")]
        image(top, np.concatenate(images), f"{name}: SSIM from the best to the middle; blue: above 0.4", 14)
        side = images[0].shape[1] / len(chosen)
        for i, value in enumerate(similarity[chosen].tolist()):
            colour = COLOURS[0] if value > GOOD else RED
            top.text((i + 0.5) * side, -1, f"{value:.2f}", ha="center", va="bottom", color=colour)
        steps = np.linspace(0, 1, 41).tolist()
        for values, words, colour in ((similarity, "members", COLOURS[0]), (unseen, "unseen", "#adb5bd")):
            bottom.hist(values.numpy(), steps, alpha=0.7, color=colour, label=words)
        bottom.axvline(GOOD, color=DARK, lw=1, label="0.4, the paper's threshold")
        bottom.axvline(ssim_threshold(audit), color=DARK, lw=1, ls="--", label="ours: 1% of unseen pass")
        bottom.set(xlabel="SSIM", ylabel="samples", xlim=(0, 1))
        bottom.legend()
    return figure
