"""Pictures of an audit: grids of pairs, and sheets of all pictures of a kind."""

from __future__ import annotations

import base64
import io
import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.audit import Audit

MOST_PIXELS = 2_000_000  # of all pictures of a kind: 2,000 of 32×32


def png(image: Tensor) -> Image.Image:
    """(c, h, w) in [0, 1], grey or colour."""
    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)


def data_uri(image: Tensor) -> str:
    """An image that lives inside the page."""
    buffer = io.BytesIO()
    png(image).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def pairs(audit: Audit, columns: int = 15, rows: int = 3, zoom: int = 3) -> Image.Image:
    """The best pairs as the papers show them: each reconstruction above its original, best first."""
    order = audit.arrays["similarity"].argsort(descending=True)[: columns * rows]
    columns = min(columns, len(order))
    above, below = (_tiles(audit.arrays[name][order], columns, zoom) for name in ("reconstruction", "original"))
    gap = np.full((2 * zoom, *above[0].shape[1:]), 255, np.uint8)
    bands = [band for a, b in zip(above, below, strict=True) for band in (a, b, gap)]
    return Image.fromarray(np.concatenate(bands[:-1]))


def _tiles(images: Tensor, columns: int, zoom: int) -> list[np.ndarray]:
    """Rows of images side by side, grey ones as colour, the last row filled with white."""
    pixels = (images.clamp(0, 1) * 255).round().to(torch.uint8).expand(-1, 3, -1, -1)
    pixels = torch.cat([pixels, pixels.new_full((-len(pixels) % columns, *pixels.shape[1:]), 255)])
    pixels = pixels.repeat_interleave(zoom, 2).repeat_interleave(zoom, 3)
    pixels = torch.nn.functional.pad(pixels, (1, 1, 1, 1), value=255)
    return [torch.cat(list(row), 2).permute(1, 2, 0).numpy() for row in pixels.split(columns)]


def shrink(images: Tensor, num: int) -> Tensor:
    """Small enough that so many of them are a page that opens at once; most images are already."""
    height, width = images.shape[2:]
    scale = min(1.0, math.sqrt(MOST_PIXELS / (num * height * width)))
    return F.adaptive_avg_pool2d(images, (max(1, int(scale * height)), max(1, int(scale * width))))


def sheet(images: Tensor, columns: int) -> Tensor:
    """(n, c, h, w) side by side in one (c, rows · h, columns · w), the last row filled with white."""
    fill = images.new_ones(-len(images) % columns, *images.shape[1:])
    rows = torch.cat([images, fill]).unflatten(0, (-1, columns))
    return rows.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)
