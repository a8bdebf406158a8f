"""Tensors as images."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def stretch(images: Tensor) -> Tensor:
    """Map each image's smallest and largest value to 0 and 1."""
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    return (images - low) / (high - low).clamp_min(1e-12)


def ncc(a: Tensor, b: Tensor) -> Tensor:
    """Correlation of each pair; 0 if either is constant."""
    a, b = (x.flatten(1) - x.flatten(1).mean(1, keepdim=True) for x in (a, b))
    return F.cosine_similarity(a, b)


def png(image: Tensor) -> Image.Image:
    """Convert (c, h, w) in [0, 1], grey or colour."""
    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)


def data_uri(image: Tensor) -> str:
    """An image to embed in a page."""
    return embedded(png(image))


def embedded(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def tiles(images: Tensor, columns: int, zoom: int) -> list[np.ndarray]:
    """Rows of images side by side; grey becomes colour, and white fills the last row."""
    pixels = (images.clamp(0, 1) * 255).round().to(torch.uint8).expand(-1, 3, -1, -1)
    pixels = torch.cat([pixels, pixels.new_full((-len(pixels) % columns, *pixels.shape[1:]), 255)])
    pixels = pixels.repeat_interleave(zoom, 2).repeat_interleave(zoom, 3)
    pixels = F.pad(pixels, (1, 1, 1, 1), value=255)
    return [torch.cat(list(row), 2).permute(1, 2, 0).numpy() for row in pixels.split(columns)]
