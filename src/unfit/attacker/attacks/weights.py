"""Baseline: the first layer's weights, looked at as images (H22 sec. 5.4)."""

from __future__ import annotations

import time

import torch
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.candidates import Candidates, Part, describe, pool
from unfit.attacker.mixtures import CANDIDATE_STD, read_mixtures, rescale
from unfit.base.target import Target


def weights(target: Target, base: Target | None = None) -> Candidates:
    """Each neuron's row, and its negative; of a convolution the kernels, enlarged to the size of the inputs.

    With `base` (the weights training started from) their change is shown instead.
    """
    began = time.perf_counter()
    rows = target.weights["layer1.weight"] - (base.weights["layer1.weight"] if base else 0)
    shape = target.architecture.input_shape
    x = F.interpolate(rows, size=shape[1:]) if target.architecture.conv else rows.view(-1, *shape)
    x = rescale(torch.cat([x, -x]), CANDIDATE_STD)
    facts = read_mixtures(target, base).facts() | {"status": "finished", "seconds": time.perf_counter() - began}
    return pool([Part("weights of the first layer", x)], describe("weights", base=base is not None), facts)
