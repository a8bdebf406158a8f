"""Images of an audit: grids of pairs, and sheets of all images of a kind."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.base.images import tiles

MOST_PIXELS = 2_000_000  # of all images of a kind: 2,000 of 32×32


def pairs(arrays: Mapping[str, Tensor], columns: int = 15, rows: int = 3, zoom: int = 3) -> Image.Image:
    """The best pairs as the papers show them: each reconstruction above its original, best first."""
    order = arrays["similarity"].argsort(descending=True)[: columns * rows]
    columns = min(columns, len(order))
    above, below = (tiles(arrays[name][order], columns, zoom) for name in ("reconstruction", "original"))
    gap = np.full((2 * zoom, *above[0].shape[1:]), 255, np.uint8)
    bands = [band for a, b in zip(above, below, strict=True) for band in (a, b, gap)]
    return Image.fromarray(np.concatenate(bands[:-1]))


def shrink(images: Tensor, num: int, most: int = MOST_PIXELS) -> Tensor:
    """Small enough that `num` of them make a page that opens at once; most images are already."""
    height, width = images.shape[2:]
    scale = min(1.0, math.sqrt(most / (num * height * width)))
    return F.adaptive_avg_pool2d(images, (max(1, int(scale * height)), max(1, int(scale * width))))


def sheet(images: Tensor, columns: int) -> Tensor:
    """(n, c, h, w) side by side in one (c, rows · h, columns · w), the last row filled with white."""
    fill = images.new_ones(-len(images) % columns, *images.shape[1:])
    rows = torch.cat([images, fill]).unflatten(0, (-1, columns))
    return rows.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)
