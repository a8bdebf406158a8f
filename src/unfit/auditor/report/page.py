"""One self-contained page: the decision first, then the evidence."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from markupsafe import Markup, escape
from torch import Tensor

from unfit.auditor.calibration import roc
from unfit.auditor.codes import MEANINGS as CODE_MEANINGS
from unfit.auditor.measured import false_proofs
from unfit.auditor.record import OF_FEATURES, OF_SAMPLES, OF_UNSEEN, Kind, Record
from unfit.auditor.report import plots
from unfit.auditor.report.public import model_name
from unfit.auditor.report.vectors import Tables, as_tables, cells, short, stills
from unfit.auditor.report.words import (
    GRADE_KEY,
    KEEP,
    answers,
    headline,
    identity,
    made_line,
    noun,
    sentence,
    tiles,
)
from unfit.auditor.samples import Measure
from unfit.auditor.verdict import ATTACKERS, how_often
from unfit.base.errors import UnfitError, clean
from unfit.base.files import new_file
from unfit.base.images import data_uri, embedded
from unfit.base.links import page_url

if TYPE_CHECKING:
    from jinja2 import Template

FEWEST_VALUES = 8  # of an input: below that the spectrum shows nothing
STILL_PIXELS = 400_000  # of the images that are shown where no script runs
Arrays = Mapping[str, Tensor]


def write_report(record: Record, arrays: Arrays, folder: Path) -> None:
    """Write `index.html` (and for images `pairs.png`) from a saved audit, each whole or not at all."""
    with new_file(folder / "index.html", force=True) as file:
        file.write_text(page(record, arrays), encoding="utf-8", errors="backslashreplace")
    if shows_images(arrays):
        with new_file(folder / "pairs.png", force=True) as file:
            plots.pairs(arrays).save(file, optimize=True)


def page(record: Record, arrays: Arrays) -> str:
    """The page as one string; the record and the arrays are all it is made from."""
    _check(record, arrays)
    style, script = (source(name) for name in ("page.css", "page.js"))
    images, tables = shows_images(arrays), as_tables(record, arrays)
    return template("page.html.j2").render(
        audit=record,
        headline=headline(record),
        answers=answers(record),
        keep=KEEP,
        tiles=tiles(record),
        grade_key=GRADE_KEY,
        many=noun(record),
        is_rows=noun(record) == "rows",
        model_name=model_name(record),
        made=made_line(record),
        identity=identity(record),
        advice_url=page_url("defences"),
        initial_url=page_url("initial-weights"),
        attacker=ATTACKERS[record.attacker],
        false_proofs=false_proofs(),
        num_stored=sum(sample.stored for sample in record.samples),
        kinds=KINDS,
        code_meanings=CODE_MEANINGS,
        classes=_classes(record),
        data=_data(record, arrays, tables),
        sheets=_sheets(record, arrays) if images else {},
        images=images,
        tables=tables,
        stills=stills(record, tables) if tables and not images else [],
        still=_still(arrays) if images and record.num_candidates else None,
        of_features=record.similarity.name == "explained variance",
        num_values=_num_compared(arrays),
        measure=MEASURES[record.similarity.name].long,
        meaning=MEASURES[record.similarity.name].meaning,
        style=style,
        script=script,
        security=f"default-src 'none'; img-src data:; style-src {hashed(style)}; script-src {hashed(script)}; "
        "base-uri 'none'; form-action 'none'",
    )


@cache
def template(name: str) -> Template:
    """Made once: to compile it takes longer than to fill it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # here: no other module needs them

    environment = Environment(
        loader=PackageLoader("unfit.auditor", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"share": _share, "how_often": how_often, "coded": coded, "short": short}
    environment.filters |= {"sentence": sentence, "clean": clean}
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.get_template(name)


KINDS: Final[dict[Kind, str]] = {
    "second state": "other weights of this model",
    "optimiser": "state of the optimiser",
    "tensor": "numbers",
    "text": "text",
    "model": "a layer of the model",
}
IMAGES = ("original", "reconstruction", "unseen")
STILL_KINDS = ("original", "reconstruction")
MOST_STILL = 45  # pairs, as many as the papers show


def _check(record: Record, arrays: Arrays) -> None:
    """The record and the arrays lie in two files: do they belong together?"""
    sizes = dict.fromkeys(OF_SAMPLES, record.num_samples) | dict.fromkeys(OF_UNSEEN, record.num_unseen)
    problems = [f"{name!r} is missing" for name in (*sizes, "spectrum") if name not in arrays]
    problems += [
        problem
        for name in (*sizes, "spectrum")
        if name in arrays and (problem := _problem(name, arrays[name], sizes.get(name), arrays))
    ]
    problems += _problems_of_features(record, arrays)
    if len(record.samples) != record.num_samples:
        problems.append(f"audit.json lists {len(record.samples)} samples of {record.num_samples}")
    if any(not 0 <= sample.label < len(record.class_names) for sample in record.samples):
        problems.append("audit.json has samples of no class")
    if not problems and not all(0 <= i < record.num_unseen for i in arrays["nearest_unseen"].tolist()):
        problems.append("'nearest_unseen' names samples that are not there")
    if problems:
        raise UnfitError(f"the arrays are not those of this audit: {'; '.join(problems)}; make the audit again")


def _problem(name: str, values: Tensor, size: int | None, arrays: Arrays) -> str | None:
    """What is wrong with an array by itself: its type, its shape, its values."""
    if values.is_floating_point() == (name == "nearest_unseen") or values.dtype == torch.bool:
        return f"{name!r} has type {values.dtype}"
    if not values.ndim or (size is not None and len(values) != size):
        return f"{name!r} holds {len(values) if values.ndim else 0} of {size}"
    shape = arrays["original"].shape[1:] if name in IMAGES and "original" in arrays else ()
    if values.shape[1:] != shape or (name in IMAGES and len(shape) not in (1, 3)):
        return f"{name!r} has shape {tuple(values.shape)}"
    return None if values.isfinite().all() else f"{name!r} has values that are not finite"


def _problems_of_features(record: Record, arrays: Arrays) -> list[str]:
    """What is wrong with what only some audits have: features of images, and names of columns."""
    found = [arrays[name] for name in OF_FEATURES if name in arrays]
    fit = all(each.shape == (record.num_samples, *found[0].shape[1:]) and each.ndim == 2 for each in found)
    problems = [] if len(found) in (0, 2) and fit else ["the features do not fit the samples"]
    problems += [] if all(each.isfinite().all() for each in found) else ["there are features that are not finite"]
    names, original = record.feature_names, arrays.get("original")
    if names is not None and original is not None and original.ndim == 2 and len(names) != original.shape[1]:
        problems.append(f"audit.json names {len(names)} of {original.shape[1]} columns")
    return problems


def coded(text: str) -> Markup:
    """Text of a record with its `commands` and --options set as code."""
    code = Markup("<code>{}</code>").format
    parts = re.split(r"(`[^`]+`|--[a-z][a-z-]+)", text)
    return Markup("").join(code(part.strip("`")) if i % 2 else escape(part) for i, part in enumerate(parts))


def source(name: str) -> Markup:
    """A file next to this one, unchanged: it holds nothing from any record."""
    return Markup(files("unfit.auditor.report").joinpath(name).read_text(encoding="utf-8"))


def hashed(text: str) -> str:
    """What the page's security policy knows a script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _share(value: float) -> str:
    return f"{value:.1%}" if 0 < value < 0.1 else f"{value:.0%}"


def _classes(record: Record) -> list[dict[str, Any]]:
    """A row of the table for each class."""
    rows = []
    for label, name in enumerate(record.class_names):
        members = [sample for sample in record.samples if sample.label == label]
        num, n = sum(sample.recovered for sample in members), len(members)
        mean = sum(sample.similarity for sample in members) / max(1, n)
        rows.append({"name": name, "num_samples": n, "num_recovered": num, "share": num / max(1, n), "mean": mean})
    return rows


def _data(record: Record, arrays: Arrays, tables: Tables | None) -> dict[str, Any]:
    """What the page's script draws from."""
    false, true = roc(arrays["similarity"], arrays["unseen_similarity"])
    return {
        "threshold": record.threshold,
        "recognisable": record.recognisable_line,
        "classes": record.class_names,
        "samples": [sample.model_dump() for sample in record.samples],
        "nearest": _nearest(arrays)[1].tolist(),
        "tables": tables and tables.data(),
        "blank": _blank(record, arrays),
        "unseen": {
            name: arrays[f"unseen_{name}"].tolist() for name in ("similarity", "projection_similarity", "output")
        },
        "roc": {"false": false.tolist(), "true": true.tolist()},
        "spectrum": arrays["spectrum"].tolist() if _num_values(arrays) >= FEWEST_VALUES else [],
        "noise_edge": record.noise_edge,
        "over_time": [point.model_dump() for point in record.over_time],
        "sweep": record.sweep and record.sweep.model_dump(),
        "words": {
            "output": "model output Φ" if record.target.architecture.endswith("-1") else "margin to the runner-up",
            "similarity": MEASURES[record.similarity.name].long,
            "measure": MEASURES[record.similarity.name].short,
            "reconstruction": "an image with those features" if OF_FEATURES[0] in arrays else "reconstruction",
        },
    }


class Wording(NamedTuple):
    """What the page calls a similarity, on an axis and next to a number, and what it means."""

    long: str
    short: str
    meaning: str


MEASURES: Final[dict[Measure, Wording]] = {
    "edge correlation": Wording(
        "similarity (correlation of edges)",
        "similarity",
        "Similarity is the correlation of edges, the differences of neighbouring pixels: 1 is the "
        "same image at any brightness and contrast, 0 one with nothing in common.",
    ),
    "relative error": Wording(
        "similarity (1 − relative error)",
        "1 − relative error",
        "Similarity is 1 − ‖a − b‖ / ‖b‖, one minus the relative error of the reconstruction (a): 1 "
        "is the sample (b) itself, 0.75 an error of a quarter of its length.",
    ),
    "explained variance": Wording(
        "similarity (explained variance of the features)",
        "explained variance",
        "Similarity is the explained variance of the features, 1 − ‖s·a − b‖² / ‖b − mean‖²: how much of what "
        "distinguishes the features (b) of a sample the reconstruction (a) has, at the best scale s. 1 is all.",
    ),
}


def shows_images(arrays: Arrays) -> bool:
    """Of features too, where these are features of images."""
    return arrays["original"].ndim == 4


def _num_values(arrays: Arrays) -> int:
    return arrays["original"][0].numel()


def _num_compared(arrays: Arrays) -> int:
    """Values that a sample is compared by: those of its features, if these were reconstructed."""
    return arrays.get(OF_FEATURES[0], arrays["original"])[0].numel()


def _blank(record: Record, arrays: Arrays) -> list[int]:
    """The samples for whose features no image was sought."""
    if record.redacted or OF_FEATURES[0] not in arrays:
        return []
    return (arrays["reconstruction"].flatten(1) == 0).all(1).nonzero()[:, 0].tolist()


def _still(arrays: Arrays) -> str:
    """The best pairs in one small image."""
    best = arrays["similarity"].argsort(descending=True)[:MOST_STILL]
    small = {name: plots.shrink(arrays[name][best], 2 * len(best), STILL_PIXELS) for name in STILL_KINDS}
    return embedded(plots.pairs({**small, "similarity": arrays["similarity"][best]}, zoom=1))


def _nearest(arrays: Arrays) -> tuple[Tensor, Tensor]:
    """The unseen samples that are nearest to some reconstruction; for each sample the place of its own there."""
    used, place = arrays["nearest_unseen"].unique(return_inverse=True)
    return used, place


def _sheets(record: Record, arrays: Arrays) -> dict[str, Any]:
    """All images of a kind in one, so that a thousand of them open at once."""
    kinds = {name: arrays[name] for name in ("reconstruction", "original")}
    kinds["unseen"] = arrays["unseen"][_nearest(arrays)[0]]
    if OF_FEATURES[0] in arrays:
        kinds |= dict(zip(OF_FEATURES, cells(*(arrays[name] for name in OF_FEATURES)), strict=True))
    columns = math.ceil(math.sqrt(record.num_samples))
    return {name: _sheet(plots.shrink(images, record.num_samples), columns) for name, images in kinds.items()}


def _sheet(images: Tensor, columns: int) -> dict[str, Any]:
    height, width = images.shape[2:]
    source = data_uri(plots.sheet(images, columns))
    return {"columns": columns, "width": width, "height": height, "source": source}
