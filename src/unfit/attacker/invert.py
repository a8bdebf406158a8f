"""From features back to images: the input whose features are these, by gradient descent through the prefix.

Attacks behind a prefix recover what enters the attacked layer. Anyone who has the model can run its prefix, and so
can look for an image that leads there. What the prefix forgets comes out smooth, by total variation.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from unfit.base.budget import seconds_left
from unfit.base.images import ncc
from unfit.base.progress import Report, quiet
from unfit.base.whole import Whole

STEPS = 300  # of Adam: the loss stands still after about 200
RATE = 0.05  # of an image's usual spread of 0.25
SMOOTH = 1e-3  # weight of the total variation beside 1 − correlation: more blurs, less leaves the kernels' grid
AT_ONCE = 16  # images at a time: the maps of a deep body take megabytes each
SLOWEST = 60.0  # seconds, after which what is there has to do: this is for people to look at, not for the verdict


def invert(whole: Whole, features: Tensor, progress: Report = quiet) -> Tensor:
    """Images (m, *input shape), with the shade that the model sees, for features (m, *feature shape)."""
    deadline = time.perf_counter() + min(SLOWEST, max(0.0, seconds_left()))
    parts = features.split(AT_ONCE)
    found = []
    for i, part in enumerate(parts):
        progress(i / len(parts), "searching for images with these features")
        left = (deadline - time.perf_counter()) / (len(parts) - i)
        found.append(_inverted(whole, part.to(whole.device), left))
    return torch.cat(found) if found else features.new_zeros(0, *whole.input_shape)


def _inverted(whole: Whole, features: Tensor, seconds: float) -> Tensor:
    """One batch, starting from zero, which is a grey image for most models."""
    ends = time.perf_counter() + seconds
    x = torch.zeros(len(features), *whole.input_shape, device=features.device, requires_grad=True)
    optimiser = torch.optim.Adam([x], lr=RATE)
    for step in range(STEPS):
        for group in optimiser.param_groups:
            group["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        loss = (1 - ncc(whole.enter(x), features)).sum() + SMOOTH * total_variation(x)
        (x.grad,) = torch.autograd.grad(loss, x)
        optimiser.step()
        if time.perf_counter() > ends:
            break
    return x.detach().cpu()


def total_variation(x: Tensor) -> Tensor:
    """Σ |differences of neighbours|; zero for vectors, which have none."""
    if x.ndim != 4:
        return x.new_zeros(())
    return (x[..., 1:] - x[..., :-1]).abs().sum() + (x[..., 1:, :] - x[..., :-1, :]).abs().sum()
