"""Progress of long work: a callback, and a bar that shows it on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Report = Callable[[float, str], None]
"""Called with the fraction done (0 to 1) and a short description."""


def quiet(fraction: float, words: str) -> None:
    """Report nothing."""


@contextmanager
def bar(title: str, period: float = 30) -> Iterator[Report]:
    """Show a progress bar on standard error if that is a terminal.

    The remaining time is estimated from the last `period` seconds.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        speed_estimate_period=period,
    ) as progress:
        task = progress.add_task(title, total=1.0, words="")
        yield lambda fraction, words: progress.update(task, completed=min(fraction, 1.0), words=words)
