"""Folders of images: one for each class, or images alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from unfit.auditor.labels import ONE_CLASS, Array, Labels
from unfit.auditor.samples import Subset
from unfit.auditor.sources.kind import Content, Kind, Place, Size, check_size, parsing
from unfit.base.errors import UnfitError, listed


def _images(place: Place) -> Content:
    where, resize = place.path, place.resize
    inside = _visible(where)
    files_of = {folder.name: _visible(folder) for folder in inside if folder.is_dir()}
    if not files_of:  # no folders, no labels
        files_of = {ONE_CLASS[0]: inside}
    if empty := [name for name, paths in files_of.items() if not paths]:
        raise UnfitError(f"{where}: no images in {listed(empty) if empty != [*ONE_CLASS] else 'it'}")
    images, problems, num_bytes = {}, [], 0
    for path in (path for paths in files_of.values() for path in paths):
        try:
            with _opened(path) as image:
                num_bytes += _num_bytes(image, resize)
                check_size(where, num_bytes)  # before it is decoded
                images[path.relative_to(where)] = _pixels(image, resize)
        except _UnreadableError as error:
            problems.append(f"\n  {error}")
    if problems:
        raise UnfitError(f"{where}: cannot read {len(problems)} files:{''.join(problems)}")
    labels = np.repeat(np.arange(len(files_of)), [len(paths) for paths in files_of.values()])
    return Content(Subset(_stacked(where, images), Labels(labels, tuple(files_of))))


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


class _UnreadableError(UnfitError):
    """One of many files: all of those are told at once."""


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with parsing(path), warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if not path.is_file():
                raise ValueError("not a regular file")
            # only these formats: for EPS, Pillow runs another program
            with Image.open(path, formats=("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")) as image:
                if image.mode[0] in "IF":
                    raise ValueError(f"more than 8 bits per pixel, mode {image.mode}")
                yield image
    except UnfitError as error:
        raise (_UnreadableError(str(error)) if error.__cause__ else error) from error


def _is_grey(image: Image.Image) -> bool:
    return image.mode in ("1", "L", "LA")


def _num_bytes(image: Image.Image, resize: Size | None) -> int:
    """By its header, twice: all images are held once more when they are stacked."""
    return 2 * math.prod(resize or image.size) * (1 if _is_grey(image) else 3)


def _pixels(image: Image.Image, resize: Size | None) -> Array:
    """As (1, h, w) if it is greyscale, else as (3, h, w); drop transparency."""
    plain = image.convert("L" if _is_grey(image) else "RGB")
    pixels = np.array(plain.resize(resize[::-1], Image.Resampling.BILINEAR) if resize else plain)
    return np.moveaxis(np.atleast_3d(pixels), -1, 0)


def _stacked(where: Path, images: dict[Path, Array]) -> Array:
    """Stack to (n, 1, h, w) if every image is greyscale, else to (n, 3, h, w)."""
    sizes = {path: f"{image.shape[2]}x{image.shape[1]}" for path, image in images.items()}
    (first, size), *_ = sizes.items()
    if others := [f"{path} ({sizes[path]})" for path in sizes if sizes[path] != size]:
        raise UnfitError(
            f"{where}: the images must have one size: {first} ({size}), but {listed(others)}; see `resize`"
        )
    shape = max(image.shape for image in images.values())
    return np.stack([np.broadcast_to(image, shape) for image in images.values()])


KINDS = (Kind("images", "images:DIR", _images, "folder", resizes=True),)
