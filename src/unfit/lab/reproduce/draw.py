"""Figures in the papers' layout."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from unfit.auditor.audit import Audit
from unfit.auditor.match import GOOD
from unfit.auditor.report.plots import pairs, shrink
from unfit.base.pictures import stretch, tiles

COLOURS = ("#1971c2", "#d9480f")  # of the two classes; of several only their margin is shown, in the first
ATTACK_COLOURS = {"auto": "#1971c2", "unmix": "#2b8a3e", "fast": "#d9480f", "paper": "#868e96"}
WIDTH = 10  # inches
DPI = 110
COLOURS_OF_A_SHEET = 256  # half of the bytes of all, and hardly to be seen
SHEET_PIXELS = 300_000  # of a gallery; more images than that are shown smaller


def save(figure: Figure, folder: Path) -> None:
    """figure.png and figure.svg, the same bytes each time."""
    with mpl.rc_context({"svg.hashsalt": "unfit", "svg.fonttype": "none"}):
        whole = io.BytesIO()
        figure.savefig(whole, format="png", dpi=DPI)
        Image.open(whole).convert("RGB").quantize(256).save(folder / "figure.png", optimize=True)
        figure.savefig(folder / "figure.svg", dpi=DPI, metadata={"Date": None})


def blank(rows: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """So many panels, row by row; `height` of a row in inches."""
    figure = Figure((WIDTH, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flatten())


def picture(axes: Axes, pixels: np.ndarray, title: str, pad: float = 4) -> None:
    few = Image.fromarray(pixels).quantize(COLOURS_OF_A_SHEET).convert("RGB")
    axes.imshow(np.asarray(few), interpolation="none")
    axes.set_title(title, fontsize=9, loc="left", pad=pad)
    axes.set_axis_off()


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
    """Sheets of pictures over the whole width, each under its title."""
    heights = [WIDTH * sheet.shape[0] / sheet.shape[1] + 0.4 for sheet in sheets.values()]
    figure = Figure((WIDTH, sum(heights)), layout="constrained")
    places = figure.subplots(len(sheets), 1, squeeze=False, height_ratios=heights).flatten()
    for axes, (title, sheet) in zip(places, sheets.items(), strict=True):
        picture(axes, sheet, title)
    return figure


def pairs_in(axes: Axes, audit: Audit, title: str, columns: int = 5, rows: int = 2) -> None:
    """The best pairs in a panel of a figure."""
    picture(axes, np.asarray(pairs(audit.arrays, columns, rows, zoom=1)), f"{title}, {audit.record.num_good} good")


def scatter(panels: Sequence[tuple[str, Audit]], columns: int = 4) -> Figure:
    """Each training sample: the best similarity against the model's output. Dashed: recovered from here on."""
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, places = blank(rows, columns, 2.6)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, audit) in zip(places, panels, strict=False):
        points(axes, audit)
        axes.set_title(title, fontsize=8)
    return figure


def points(axes: Axes, audit: Audit) -> None:
    labels = np.array([sample.label for sample in audit.record.samples])
    output, similarity = (audit.arrays[name].numpy() for name in ("output", "similarity"))
    two = len(audit.record.class_names) == 2
    for label in range(2 if two else 1):
        which = labels == label if two else np.full(len(labels), True)
        axes.plot(output[which], similarity[which], ".", ms=4, color=COLOURS[label], alpha=0.7)
    axes.axhline(GOOD, color="#868e96", lw=0.8)
    axes.axhline(audit.record.threshold, color="#868e96", lw=0.8, ls="--")
    axes.set(ylim=(min(0.0, float(similarity.min())), 1), xlabel="output", ylabel="SSIM")
    axes.tick_params(labelsize=7)
    axes.xaxis.label.set_fontsize(8)
    axes.yaxis.label.set_fontsize(8)


def gallery(images: Tensor, title: str, columns: int) -> Figure:
    """All of these images, each stretched by itself."""
    small = shrink(stretch(images), len(images), SHEET_PIXELS)
    return _stacked({title: np.concatenate(tiles(small, columns, 1))})


def lines(axes: Axes, x: Sequence[float], curves: Mapping[str, Sequence[float]], xlabel: str, ylabel: str) -> None:
    """A curve for each name; that of unseen samples is dotted."""
    for name, values in curves.items():
        attack = name.partition(",")[0]
        style = ":" if name.endswith("unseen") else "-"
        axes.plot(x, values, style, marker="o", ms=4, color=ATTACK_COLOURS.get(attack, "#495057"), label=name)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.legend(fontsize=7)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Figure:
    figure = Figure((WIDTH, 0.5 + 0.32 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.set_axis_off()
    drawn = axes.table([list(row) for row in rows], colLabels=list(header), loc="center", cellLoc="center")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(8)
    drawn.auto_set_column_width(list(range(len(header))))
    drawn.scale(1, 1.4)
    return figure


def thresholds(audits: Mapping[str, Audit], columns: int = 20) -> Figure:
    """Pairs from the best to the middle one with their SSIM, and how members and unseen samples are spread."""
    figure, places = blank(2 * len(audits), 1, 2.0)
    for (name, audit), top, bottom in zip(audits.items(), places[::2], places[1::2], strict=True):
        similarity = audit.arrays["similarity"]
        order = similarity.argsort(descending=True)[: max(columns, len(similarity) // 2)]
        chosen = order[np.linspace(0, len(order) - 1, min(columns, len(order))).round().astype(int)]
        images = [tiles(audit.arrays[key][chosen], len(chosen), 1)[0] for key in ("reconstruction", "original")]
        picture(top, np.concatenate(images), f"{name}: SSIM from the best to the middle; blue: above 0.4", 14)
        side = images[0].shape[1] / len(chosen)
        for i, value in enumerate(similarity[chosen].tolist()):
            colour = "#1971c2" if value > GOOD else "#c92a2a"
            top.text((i + 0.5) * side, -1, f"{value:.2f}", ha="center", va="bottom", fontsize=6, color=colour)
        steps = np.linspace(0, 1, 41).tolist()
        for key, words, colour in (
            ("similarity", "members", "#1971c2"),
            ("unseen_similarity", "unseen", "#adb5bd"),
        ):
            bottom.hist(audit.arrays[key].numpy(), steps, alpha=0.7, color=colour, label=words)
        bottom.axvline(GOOD, color="#495057", lw=1, label="0.4")
        bottom.axvline(audit.record.threshold, color="#495057", lw=1, ls="--", label="1% of unseen pass")
        bottom.set(xlabel="SSIM", ylabel="samples", xlim=(0, 1))
        bottom.legend(fontsize=7)
    return figure
