"""How many threads a command may use, and where its tensors are: said once, for every command that computes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any

import typer


@dataclass(frozen=True)
class MachineOptions:
    """What a command may use of this machine; None: as the environment and the machine have it."""

    threads: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="At most N threads at once; default: UNFIT_THREADS, or all cores."),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:1; default: cuda if there is one, else cpu."),
    ] = None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """In here everything keeps to them. PyTorch is loaded only if there is something to keep to."""
        if (self.threads, self.device) == (None, None):
            yield
            return
        from unfit.base.device import on_device
        from unfit.base.threads import at_most

        with at_most(self.threads), on_device(self.device):
            yield


def computes(command: Callable[..., int]) -> Callable[..., int]:
    """Let a command be told --threads and --device, and run it within them; its body knows nothing of them."""

    @wraps(command)
    def call(machine: MachineOptions, **given: Any) -> int:
        with machine.in_force():
            return command(**given)

    signature = inspect.signature(command)
    added = inspect.Parameter("machine", inspect.Parameter.KEYWORD_ONLY, annotation=MachineOptions)
    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), added]
    )
    call.__annotations__ = {**command.__annotations__, "machine": MachineOptions}
    return call
