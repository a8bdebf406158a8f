"""Baseline: the first layer's weights, looked at as images (H22 sec. 5.4)."""

from __future__ import annotations

import time
from typing import Literal

import torch
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.attacked_layer import CANDIDATE_STD, AttackedLayer, rescale
from unfit.attacker.candidates import Candidates, Part
from unfit.attacker.method import Applicability, Method, gather
from unfit.base.progress import Report, quiet


class Weights(Method):
    """Each neuron's row, and its negative; of a convolution the kernels, enlarged to the size of the inputs.

    With a base, their change is shown instead. A baseline.

    Example:
        >>> candidates = unfit.attack(model, "weights")
    """

    method: Literal["weights"] = "weights"

    title = "weights"

    def run(self, layer: AttackedLayer, progress: Report = quiet) -> Candidates:
        began = time.perf_counter()
        target, base = layer.target, layer.base
        rows = target.weights["layer1.weight"] - (layer.decay * base.weights["layer1.weight"] if base else 0)
        shape = target.architecture.input_shape
        x = F.interpolate(rows, size=shape[1:]) if target.architecture.conv else rows.view(-1, *shape)
        x = rescale(torch.cat([x, -x]), CANDIDATE_STD)
        return gather(self, layer, [Part("weights of the first layer", x)], began)

    def applicability(self, layer: AttackedLayer) -> Applicability:
        return Applicability(self.title, True, "a baseline", 0.0)
