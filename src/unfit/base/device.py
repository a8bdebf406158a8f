"""Where tensors are computed: one place that decides, and everything else asks it.

Targets and samples stay on the CPU. `Target.net`, `Whole.on` and `read_layer` bring weights to the device;
training, matching and the signal check bring samples. Candidates, matches and trained weights return to the CPU.
In between, a tensor is created on the device of the tensors that it meets. Random numbers are drawn on the CPU and
then moved, so a seed draws the same numbers on every device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from unfit.base.errors import UsageError

DEVICES = ("cpu", "cuda")

_chosen: ContextVar[torch.device | None] = ContextVar("device", default=None)


def device() -> torch.device:
    """The device that was chosen; by default CUDA if there is one, else the CPU."""
    found = _chosen.get() or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())  # as tensors name it, so that both can be equal
    return found


def chosen() -> str | None:
    """The name of the device that `on_device` was given, for other processes and nodes; None: they decide."""
    found = _chosen.get()
    return None if found is None else str(found)


@contextmanager
def on_device(name: str | None) -> Iterator[None]:
    """In here everything is computed on this device, such as `cpu` or `cuda:1`; None: as `device` decides."""
    token = _chosen.set(available(name) if name is not None else _chosen.get())
    try:
        yield
    finally:
        _chosen.reset(token)


def available(name: str) -> torch.device:
    """Refuse a device that does not exist on this machine before anything is computed."""
    kind, _, number = name.partition(":")
    if kind == "mps":
        raise UsageError("`device` is 'mps', which has no double precision, and attacks need it; use cpu")
    if kind not in DEVICES or (":" in name and not (kind == "cuda" and number.isdecimal())):
        raise UsageError(
            f"`device` is {name!r}; choose one of {', '.join(DEVICES)}, or one GPU of several: cuda:1"
        )
    num = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and not int(number or 0) < num:
        raise UsageError(f"`device` is {name!r}, but PyTorch finds {num} CUDA devices on this machine; use cpu")
    return torch.device(name)
