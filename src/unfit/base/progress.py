"""Progress of long work: a callback, and a bar that shows it on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Report = Callable[[float, str], None]
"""Called with the fraction done (0 to 1) and a short description."""


def quiet(fraction: float, words: str) -> None:
    """Report nothing."""


def within(progress: Report, low: float, high: float) -> Report:
    """For a part of the work: its 0 to 1 is `low` to `high` of the whole."""
    if progress is quiet:
        return quiet
    return lambda fraction, words: progress(low + (high - low) * min(max(fraction, 0.0), 1.0), words)


def split(progress: Report, shares: Sequence[float]) -> list[Report]:
    """One report for each part of the work, in proportion to how long each takes."""
    ends = list(accumulate(shares, initial=0.0))
    whole = ends[-1] or 1.0
    return [within(progress, low / whole, high / whole) for low, high in pairwise(ends)]


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
