"""Remove from an audit whatever identifies people, so that it can be passed around."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.auditor.audit import Audit
from unfit.auditor.record import OF_SAMPLES

CELLS = 4  # a picture keeps CELLS × CELLS grey levels or colours
PICTURES = ("original", "reconstruction", "unseen")


def redact(audit: Audit) -> Audit:
    """Blur pictures, hash indices, and sort samples by hash.

    The salt of the hashes is random and not stored, so nobody can recover indices by trying them all.
    """
    salt = secrets.token_bytes(32)
    hidden = [sample.model_copy(update={"index": _hash(salt, sample.index)}) for sample in audit.record.samples]
    order = sorted(range(len(hidden)), key=lambda i: str(hidden[i].index))  # the old order would reveal indices
    arrays = {name: _blur(value) if name in PICTURES else value for name, value in audit.arrays.items()}
    arrays |= {name: arrays[name][order] for name in OF_SAMPLES}
    samples = [hidden[i] for i in order]
    record = audit.record.model_copy(update={"samples": samples, "redacted": True})
    return replace(audit, record=record, arrays=arrays)


def _hash(salt: bytes, index: int | str) -> str:
    return hmac.new(salt, str(index).encode(), hashlib.sha256).hexdigest()[:16]


def _blur(values: Tensor) -> Tensor:
    """Reduce pictures to a few cells and enlarge them again; zero out vectors."""
    if values.ndim != 4:
        return torch.zeros_like(values)
    small = F.adaptive_avg_pool2d(values, CELLS)
    return F.interpolate(small, size=values.shape[2:], mode="bilinear", align_corners=False)
