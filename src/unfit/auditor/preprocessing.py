"""Bring samples as stored to what the model saw in training."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unfit.auditor.request import AuditRequest
from unfit.auditor.samples import Samples
from unfit.base.errors import UsageError

CENTRED = "minus the mean of the training samples"
AS_IS = "as they are"


def as_seen(samples: Samples, request: AuditRequest, centred: bool) -> Samples:
    """The samples as the model saw them; if it saw them centred, the mean is subtracted later, of all alike."""
    if centred:
        return samples
    x = samples.x if request.scale is None else samples.x * request.scale
    if request.mean:
        x = x - _spread("mean", request.mean, samples)
    if request.std:
        x = x / _spread("std", request.std, samples)
    return replace(samples, x=x, shift=0.0)


def words(request: AuditRequest, centred: bool) -> str:
    """How the model is taken to have seen its data."""
    if centred:
        return CENTRED
    done = [f"times {request.scale:g}"] if request.scale is not None else []
    done += [f"minus {_listed(request.mean)}"] if request.mean else []
    done += [f"divided by {_listed(request.std)}"] if request.std else []
    return ", ".join(done) or AS_IS


def _spread(name: str, values: tuple[float, ...], samples: Samples) -> Tensor:
    """One number for all, or one for each channel or column."""
    each, what = samples.shape[0], "channel" if samples.is_image else "column"
    if len(values) not in (1, each):
        raise UsageError(
            f"`{name}` has {len(values)} numbers, the samples have {each} {what}s: one, or one for each"
        )
    return torch.tensor(values).view(-1, *[1] * (len(samples.shape) - 1))


def _listed(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)
