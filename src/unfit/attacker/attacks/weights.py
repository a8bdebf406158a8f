"""Baseline: the first layer's weights, looked at as images (H22 sec. 5.4)."""

from __future__ import annotations

import time
from typing import Literal

import torch
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.candidates import Candidates, Part
from unfit.attacker.method import Method, Outlook, gather
from unfit.attacker.mixtures import CANDIDATE_STD, Mixtures, rescale
from unfit.base.progress import Report, quiet


class Weights(Method):
    """Each neuron's row, and its negative; of a convolution the kernels, enlarged to the size of the inputs.

    With a base, their change is shown instead. A baseline.

    Example:
        >>> candidates = unfit.attack(model, "weights")
    """

    method: Literal["weights"] = "weights"

    title = "weights"

    def run(self, mixtures: Mixtures, progress: Report = quiet) -> Candidates:
        began = time.perf_counter()
        target, base = mixtures.target, mixtures.base
        rows = target.weights["layer1.weight"] - (mixtures.decay * base.weights["layer1.weight"] if base else 0)
        shape = target.architecture.input_shape
        x = F.interpolate(rows, size=shape[1:]) if target.architecture.conv else rows.view(-1, *shape)
        x = rescale(torch.cat([x, -x]), CANDIDATE_STD)
        return gather(self, mixtures, [Part("weights of the first layer", x)], began)

    def outlook(self, mixtures: Mixtures) -> Outlook:
        return Outlook(self.title, True, "a baseline", 0.0)
