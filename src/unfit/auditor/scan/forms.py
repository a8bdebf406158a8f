"""The forms in which rows of private samples may stand in a file: as given, scaled, and behind what comes first.

A pipeline's steps are known from the file by their attributes; what they do to a row is written out here, so that
a support vector behind a scaler and a projection is compared with the samples behind the same two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unfit.base.contents import Item

Rows = npt.NDArray[np.float64]
Step = Callable[[Rows, Mapping[str, Rows]], Rows]
TINY = 1e-300
MOST_FORMS = 12
MOST_VALUES = 2**27  # of all forms together
WORDS = re.compile(r"(?u)\b\w\w+\b")  # as vectorisers split texts


def forms_of(x: Rows, num_private: int, items: Iterable[Item]) -> list[Rows]:
    """All forms of the rows x, of which the first are the private ones. The first form is x itself."""
    found = [x]
    if not x.shape[1]:
        return found
    for steps, held in _steps(items):
        made = (_applied(step, each, held) for step in steps for each in found[:MOST_FORMS])
        found += [form for form in made if form is not None]
        if len(found) > MOST_FORMS or len(found) * x.size > MOST_VALUES:
            break
    private = x[:num_private]
    if x.size * (len(found) + 5) <= MOST_VALUES:
        found += _scaled(x, private)
    return found[: 2 * MOST_FORMS]


def _applied(step: Step, x: Rows, held: Mapping[str, Rows]) -> Rows | None:
    try:
        with np.errstate(all="ignore"):
            return step(x, held)
    except (KeyError, ValueError, IndexError):
        return None


def _scaled(x: Rows, private: Rows) -> list[Rows]:
    """What the usual scalers would make of it, fitted on the private rows."""
    with np.errstate(all="ignore"):
        low, high = np.nanmin(private, 0), np.nanmax(private, 0)
        quarter = np.nanquantile(private, (0.25, 0.5, 0.75), axis=0)
        return [
            (x - np.nanmean(private, 0)) / _not_zero(np.nanstd(private, 0)),
            (x - low) / _not_zero(high - low),
            x / _not_zero(np.nanmax(np.abs(private), 0)),
            (x - quarter[1]) / _not_zero(quarter[2] - quarter[0]),
            x / _not_zero(np.linalg.norm(np.nan_to_num(x), axis=1, keepdims=True)),
        ]


def _not_zero(value: Rows) -> Rows:
    return np.where(np.abs(value) > TINY, value, 1.0)


def _steps(items: Iterable[Item]) -> list[tuple[tuple[Step, ...], dict[str, Rows]]]:
    """The known steps in the file, each with its arrays, in the order in which they stand there."""
    found: dict[str, tuple[tuple[Step, ...], dict[str, Rows]]] = {}
    for item in items:
        steps = STEPS.get(item.owner.rpartition(".")[2]) if item.owner.startswith("sklearn.") else None
        if steps is not None and isinstance(item.value, Tensor) and item.path.endswith(f".{item.name}"):
            place = item.path.removesuffix(f".{item.name}")
            held = found.setdefault(place, (steps, {}))[1]
            held[item.name] = item.value.double().numpy(force=True)
    return list(found.values())


def _standard(x: Rows, held: Mapping[str, Rows]) -> Rows:
    moved = x - held["mean_"] if "mean_" in held else x
    return moved / _not_zero(held["scale_"]) if "scale_" in held else moved


def _projected(x: Rows, held: Mapping[str, Rows]) -> Rows:
    return (x - held["mean_"] if "mean_" in held else x) @ held["components_"].T


def _whitened(x: Rows, held: Mapping[str, Rows]) -> Rows:
    return _projected(x, held) / np.sqrt(_not_zero(held["explained_variance_"]))


STEPS: dict[str, tuple[Step, ...]] = {  # several where a setting decides that is no array
    "StandardScaler": (_standard,),
    "MinMaxScaler": (lambda x, held: x * held["scale_"] + held["min_"],),
    "MaxAbsScaler": (lambda x, held: x / _not_zero(held["scale_"]),),
    "RobustScaler": (lambda x, held: (x - held.get("center_", 0.0)) / _not_zero(held.get("scale_", np.ones(1))),),
    "SimpleImputer": (lambda x, held: np.where(np.isnan(x), held["statistics_"], x),),
    "VarianceThreshold": (lambda x, held: x[:, held["variances_"] > 0],),
    "PCA": (_projected, _whitened),
    "TruncatedSVD": (_projected,),
    "IncrementalPCA": (_projected, _whitened),
}


def word_patterns(texts: Iterable[str], items: Iterable[Item]) -> list[npt.NDArray[np.bool_]]:
    """For each vocabulary of the file, which of its words are in which text: (n, number of words)."""
    found = []
    listed = list(texts)
    for words, numbers in _vocabularies(items):
        at = {word: int(i) for word, i in zip(words, numbers, strict=True) if 0 <= i < len(words)}
        if len(at) * len(listed) > MOST_VALUES:
            continue
        pattern = np.zeros((len(listed), len(words)), dtype=bool)
        for i, text in enumerate(listed):
            parts = WORDS.findall(text.lower())
            pattern[i, [at[part] for part in parts if part in at]] = True
        found.append(pattern)
    return found


def _vocabularies(items: Iterable[Item]) -> list[tuple[tuple[str, ...], list[float]]]:
    texts: dict[str, tuple[str, ...]] = {}
    found = []
    for item in items:
        if item.name != "vocabulary_":
            continue
        if item.texts:
            texts[item.path] = item.texts
        elif item.path in texts and isinstance(item.value, Tensor) and item.value.numel() == len(texts[item.path]):
            found.append((texts[item.path], item.value.flatten().tolist()))
    return found
