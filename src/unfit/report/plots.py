"""Pictures of an audit: plots as SVG that take the page's colours, grids of pairs as PNG."""

from __future__ import annotations

import io
import re

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from PIL import Image

from unfit.audit import Audit
from unfit.pictures import data_uri as data_uri
from unfit.pictures import png as png
from unfit.pictures import tiles

INK = "#010203"  # stands for the page's text colour until the plot is inlined
MEMBER, UNSEEN = "#d9480f", "#868e96"


def pairs(audit: Audit, columns: int = 15, rows: int = 3, zoom: int = 3) -> Image.Image:
    """The best pairs as the papers show them: each reconstruction above its original, best first."""
    order = audit.arrays["similarity"].argsort(descending=True)[: columns * rows]
    columns = min(columns, len(order))
    above, below = (tiles(audit.arrays[name][order], columns, zoom) for name in ("reconstruction", "original"))
    gap = np.full((2 * zoom, *above[0].shape[1:]), 255, np.uint8)
    bands = [band for a, b in zip(above, below, strict=True) for band in (a, b, gap)]
    return Image.fromarray(np.concatenate(bands[:-1]))


def scatter(audit: Audit) -> str:
    """Similarity against output: one point a sample (H22 Fig. 4), unseen samples in grey."""
    arrays, record = audit.arrays, audit.record
    axes = _axes("model output Φ" if len(record.class_names) == 2 else "margin", _similarity_words(audit))
    axes.scatter(arrays["unseen_output"], arrays["unseen_similarity"], 14, UNSEEN, label="unseen", alpha=0.7)
    axes.scatter(arrays["output"], arrays["similarity"], 16, MEMBER, label="training", alpha=0.85)
    axes.axhline(record.threshold, color=INK, lw=1, ls="--", label=f"threshold {record.threshold:.2f}")
    return _svg(axes, "scatter")


def spectrum(audit: Audit) -> str:
    """Singular values of the first layer with the edge of its noise."""
    values, record = audit.arrays["spectrum"].numpy(), audit.record
    axes = _axes("number", "singular value of the first layer")
    number, data = np.arange(1, len(values) + 1), values > record.noise_edge
    axes.semilogy(number[data], values[data], ".", color=MEMBER, ms=5, label=f"data: {record.rank} directions")
    axes.semilogy(number[~data], values[~data].clip(1e-12), ".", color=UNSEEN, ms=3, label="noise of the start")
    axes.axhline(record.noise_edge, color=INK, lw=1, ls="--", label="noise edge")
    return _svg(axes, "spectrum")


def _similarity_words(audit: Audit) -> str:
    window = audit.record.similarity.window
    return f"similarity (SSIM, window {window})" if window else "similarity (1 − relative error)"


def _axes(x_words: str, y_words: str) -> Axes:
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    figure.patch.set_alpha(0)
    axes = figure.add_subplot(facecolor="none", xlabel=x_words, ylabel=y_words)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(which="both", colors=INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    return axes


def _svg(axes: Axes, name: str) -> str:
    """Text stays text and takes the page's font and colour; `name` keeps the ids of two plots apart."""
    axes.legend(frameon=False, labelcolor=INK)
    figure = axes.get_figure(root=True)
    assert figure is not None
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg[svg.index("<svg") :])
    svg = re.sub(r'(id="|"#|url\(#)', rf"\1{name}-", svg)
    return svg.replace(INK, "currentColor")
