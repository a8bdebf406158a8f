"""Progress of long work: a callback; a bar that shows it on a terminal, and lines of a log where there is none."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import accumulate, pairwise

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from unfit.base.ends import complain
from unfit.base.errors import clean

Report = Callable[[float, str], None]
"""Called with the fraction done (0 to 1) and a short description."""

LOG_EVERY = 10.0  # seconds between two lines where there is no terminal
BAR_WIDTH = 40  # at most; beside it stand the percentage and two times
BESIDE_BAR = 34  # columns of those


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
def reporting(progress: Report | bool | None, title: str) -> Iterator[Report]:
    """What a user gave as `progress`: a function of their own, True for a bar, False for nothing.

    None: a bar where somebody may be watching, on a terminal or in a notebook.
    """
    if progress is True or (progress is None and is_watched()):
        with bar(title) as report:
            yield report
    else:
        yield progress or quiet


def is_watched() -> bool:
    """Whether standard error is a terminal, or a notebook runs this."""
    return "ipykernel" in sys.modules or sys.stderr.isatty()


@contextmanager
def bar(title: str, period: float = 30) -> Iterator[Report]:
    """Show progress on standard error: a bar on a terminal, elsewhere a line every ten seconds.

    The remaining time is estimated from the last `period` seconds. A report that goes back moves nothing.
    """
    console = Console(stderr=True)
    with _TwoLines(
        BarColumn(bar_width=max(1, min(BAR_WIDTH, console.width - BESIDE_BAR))),
        TextColumn("{task.percentage:>3.0f}%"),
        _Times(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        speed_estimate_period=period,
    ) as shown:
        number = shown.add_task(title, total=1.0, words="")
        task = shown.tasks[number]

        def report(fraction: float, words: str) -> None:
            shown.update(number, completed=max(task.completed, min(fraction, 1.0)), words=clean(words))

        with _logging(task) if shown.disable else nullcontext():
            yield report


class _TwoLines(Progress):
    """The bar by itself, so that no description pushes it aside; below it what is done, cut to the terminal."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield Text(_doing(task), no_wrap=True, overflow="ellipsis", style="dim")


class _Times(ProgressColumn):
    max_refresh = 0.5  # seconds

    def render(self, task: Task) -> Text:
        return Text(f"after {_clock(task.elapsed)}, {_clock(_left(task))} left")


@contextmanager
def _logging(task: Task) -> Iterator[None]:
    """Lines from a thread of their own: work may be silent for minutes."""
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(LOG_EVERY):
            complain(f"{task.percentage:.0f}%, {_clock(_left(task))} left; {_doing(task)}")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _left(task: Task) -> float | None:
    """By the speed of late; where that is unknown, as if all went on as so far."""
    if task.time_remaining is not None or not task.completed or task.elapsed is None:
        return task.time_remaining
    return task.elapsed * (1 - task.completed) / task.completed


def _doing(task: Task) -> str:
    return f"{task.description}: {task.fields['words']}" if task.fields["words"] else task.description


def _clock(seconds: float | None) -> str:
    """0:07, 12:30, 1:02:03; what nobody can know yet is -:--."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
