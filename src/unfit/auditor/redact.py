"""Remove from an audit whatever identifies people, so that it can be passed on.

A reader may have the weights and all images, and can compute every number of an audit again. So no number of a
single sample stays, only averages over samples that such a reader cannot distinguish.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unfit.auditor.audit import Audit
from unfit.auditor.grades import Grade
from unfit.auditor.published import without_paths
from unfit.auditor.record import Record, SampleRecord
from unfit.auditor.request import AuditRequest

FEWEST = 5  # samples behind an average, as statistical offices have it: fewer can be told from one another
DIGITS = 2  # of an average: more would tell who is in it
STEP = 10**-DIGITS
CELLS = 4  # noise: this many cells per side: finer noise would make pages large
NUMBERS = ("output", "similarity", "ssim", "assigned", "ncc", "psnr", "l2", "projection_similarity")
PATHS = ("target", "update", "data", "members", "feature_names", "unseen", "base", "model", "candidates")


def redact(audit: Audit) -> Audit:
    """Noise for images, averages for numbers, hashes for indices, which samples are sorted by; no paths.

    The salt of the hashes is random and not stored, so nobody can recover indices by trying them all.
    """
    salt = secrets.token_bytes(32)
    record = _without_keys(_without_paths(audit.record))
    samples = [
        sample.model_copy(update={"index": _hash(salt, sample.index)})
        for sample in averaged(record, record.samples)
    ]
    samples.sort(key=lambda sample: str(sample.index))  # the old order would reveal indices
    # names go too: a vocabulary is made of what people wrote
    record = record.model_copy(update={"samples": samples, "redacted": True, "feature_names": None})
    return replace(audit, record=record, arrays=_arrays(record, audit.arrays))


def _hash(salt: bytes, index: int | str) -> str:
    return hmac.new(salt, str(index).encode(), hashlib.sha256).hexdigest()[:16]


# Numbers ------------------------------------------------------------------------------------------------------


def averaged(record: Record, samples: Sequence[SampleRecord]) -> list[SampleRecord]:
    """Each number is the average over the samples of the same class and grade, or of more if these are few."""
    rows = [[math.nan if value is None else value for value in _numbers(sample)] for sample in samples]
    keys: list[Callable[[int], object]] = [
        lambda i: (samples[i].label, samples[i].grade),
        lambda i: samples[i].grade,
        lambda i: samples[i].recovered,
        lambda i: None,
    ]
    means = _pooled(torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(NUMBERS)), keys)
    found = []
    for sample, mean in zip(samples, means.tolist(), strict=True):
        new = {name: None if math.isnan(value) else value for name, value in zip(NUMBERS, mean, strict=True)}
        low, high = _bounds(record, sample.grade)
        found.append(sample.model_copy(update=new | {"similarity": min(max(new["similarity"] or 0.0, low), high)}))
    return found


def _numbers(sample: SampleRecord) -> list[float | None]:
    return [getattr(sample, name) for name in NUMBERS]


def _pooled(values: Tensor, keys: Sequence[Callable[[int], object]]) -> Tensor:
    """Row by row, the mean over all rows with the same key: the first key that FEWEST rows share; else zeros."""
    means = torch.where(values.isnan(), values, torch.zeros_like(values))
    done: set[int] = set()
    for key in keys:
        groups: dict[object, list[int]] = {}
        for i in range(len(values)):
            groups.setdefault(key(i), []).append(i)
        for group in groups.values():
            if len(group) >= FEWEST and (rest := [i for i in group if i not in done]):
                means[rest] = values[group].mean(0)
                done.update(rest)
    return (means / STEP).round() * STEP


def _bounds(record: Record, grade: Grade | None) -> tuple[float, float]:
    """Where similarities of this grade lie: the averages must not contradict it."""
    trace, recognisable = record.threshold, max(record.threshold, record.recognisable_line)
    return {
        None: (-math.inf, trace),
        "trace": (trace + STEP, max(trace + STEP, recognisable)),
        "recognisable": (recognisable + STEP, math.inf),
        "exact": (-math.inf, math.inf),
    }[grade]


def _unseen(record: Record, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same for samples that were not trained on: they are people's too."""
    names = ("unseen_similarity", "unseen_projection_similarity", "unseen_output")
    above = arrays["unseen_similarity"] > record.threshold
    grades: list[Grade | None] = ["trace" if each else None for each in above.tolist()]
    values = torch.stack([arrays[name].double() for name in names], 1)
    means = _pooled(values, [lambda i: grades[i], lambda i: None])
    for i, grade in enumerate(grades):
        low, high = _bounds(record, grade)
        means[i, 0] = means[i, 0].clamp(low, high)
    return {name: means[:, i].to(arrays[name].dtype) for i, name in enumerate(names)}


# Arrays -------------------------------------------------------------------------------------------------------


def _arrays(record: Record, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Only what the page needs: what nobody thought of here is left out."""
    of_samples = {
        name: torch.tensor([getattr(sample, name) for sample in record.samples], dtype=arrays[name].dtype)
        for name in ("similarity", "projection_similarity", "output")
    }
    images = {name: _noise(arrays[name]) for name in ("original", "reconstruction", "unseen")}
    nearest = {"nearest_unseen": torch.zeros_like(arrays["nearest_unseen"])}
    return {**images, **nearest, **of_samples, **_unseen(record, arrays), "spectrum": arrays["spectrum"]}


def _noise(values: Tensor) -> Tensor:
    """Images of noise, the same in all cases: nothing of the source is in them. Vectors are zeros."""
    if values.ndim != 4:
        return torch.zeros_like(values)
    n, c, h, w = values.shape
    random = torch.Generator().manual_seed(secrets.randbits(63))
    cells = torch.rand(n, c, CELLS, CELLS, generator=random)
    rows, columns = (torch.arange(size) * CELLS // size for size in (h, w))
    return cells[:, :, rows][..., columns].to(values.dtype)


# Paths and thresholds -----------------------------------------------------------------------------------------


def _without_paths(record: Record) -> Record:
    """Names of files stay, the folders they are in go; thresholds, each some sample's similarity, are rounded."""
    rates = [rate.model_copy(update={"threshold": round(rate.threshold, DIGITS)}) for rate in record.rates]
    new: dict[str, Any] = {"data": _last(record.data), "repeat": record.repeat and _named(record.repeat)}
    new |= {name: round(getattr(record, name), DIGITS) for name in ("threshold", "recognisable_line")}
    return record.model_copy(update=new | {"rates": rates})


def _without_keys(record: Record) -> Record:
    """Keys of entries in the file may be names of people: only counts stay."""
    new: dict[str, Any] = {
        name: [*map(without_paths, getattr(record, name))] for name in ("reasons", "next_steps")
    }
    new["doubts"] = [each.model_copy(update={"reason": without_paths(each.reason)}) for each in record.doubts]
    return record.model_copy(update=new | {"file": record.file.model_copy(update={"places": [], "rest": []})})


def _named(request: AuditRequest) -> AuditRequest:
    given = {name: getattr(request, name) for name in PATHS}
    new: dict[str, Any] = {name: value and _last(value) for name, value in given.items()}
    rounds = tuple((_last(base), _last(update)) for base, update in request.rounds)
    new |= {"checkpoints": tuple(map(_last, request.checkpoints)), "rounds": rounds}
    return request.model_copy(update=new)


def _last(name: str) -> str:
    """`images:/home/ada/faces` as `images:faces`."""
    kind, colon, place = name.partition(":")
    if colon and os.sep not in kind:
        return kind + colon + ",".join(os.path.basename(each) for each in place.split(","))
    return os.path.basename(name)
