"""A preflight as a terminal shows it."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text

from unfit.attacker.preflight import Preflight
from unfit.base.errors import clean

BARS = "▁▂▃▄▅▆▇█"
COLUMNS = 40  # of the spectrum's picture


def show(preflight: Preflight) -> list[Text | Table]:
    """The verdict, the attacks, what the weights show."""
    verdict, notes = (
        Text(clean(_verdict(preflight)), style="bold"),
        [Text(clean(f"- {note}")) for note in preflight.notes],
    )
    if preflight.architecture is None:
        return [verdict, *notes]
    return [verdict, _attacks(preflight), _layers(preflight), _spectrum(preflight), *notes]


def duration(seconds: float | None) -> str:
    """As coarse as the estimate is."""
    if seconds is None:
        return ""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "1 s"


def _verdict(preflight: Preflight) -> str:
    net = f"{preflight.architecture or 'not a net that is covered'}, {preflight.num_parameters:,} parameters"
    auto = preflight.attacks[0]
    if preflight.applies:
        return f"{net}: there is something to attack, for about {duration(auto.seconds)}"
    return f"{net}: nothing to attack, an audit would be inconclusive; {auto.why}"


def _attacks(preflight: Preflight) -> Table:
    table = Table("attack", "applies", "why", "about, here", box=None, pad_edge=False)
    for outlook in preflight.attacks:
        words = "yes" if outlook.applies else "no"
        table.add_row(*map(Text, (outlook.attack, words, clean(outlook.why), duration(outlook.seconds))))
    return table


def _layers(preflight: Preflight) -> Table:
    table = Table("layer", "shape", "norm", "balance of its neurons", box=None, pad_edge=False)
    for i, layer in enumerate(preflight.layers, 1):
        shape = "×".join(map(str, layer.shape))
        table.add_row(str(i), shape, f"{layer.norm:.3g}", "" if layer.balance is None else f"{layer.balance:.2f}")
    return table


def _spectrum(preflight: Preflight) -> Text:
    """Singular values as bars, on a logarithmic scale of five decades, those of the noise pale."""
    values, edge = preflight.spectrum, preflight.noise_edge or 0.0
    text = Text("spectrum ")
    step = max(1, math.ceil(len(values) / COLUMNS))
    for value in values[::step]:
        height = 1 + math.log10(max(value / max(values[0], 1e-300), 1e-5)) / 5
        text.append(BARS[round(height * (len(BARS) - 1))], style="" if value > edge else "dim")
    return text.append(f" {preflight.rank} of {len(values)} above the noise")
