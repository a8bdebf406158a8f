"""An audit and a preflight as a terminal shows them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from unfit.attacker.preflight import Preflight
from unfit.auditor.data_check import UNCHECKED
from unfit.auditor.record import Record, Verdict
from unfit.auditor.report.words import headline, sentence, tiles
from unfit.auditor.verdict import ATTACKERS
from unfit.base.errors import clean
from unfit.base.memory import GB
from unfit.base.times import duration

Piece = Text | Table
COLOURS: dict[Verdict, str] = {"leak": "bold red", "pass": "bold green", "inconclusive": "bold yellow"}
DEFENCE = "; shuffle the next model's initial weights with the system's randomness before you train it"
WIDE = 10_000  # columns, for tools: one row, one line

BARS = "▁▂▃▄▅▆▇█"
COLUMNS = 40  # of the drawn spectrum


def printed(console: Console, parts: Iterable[Piece]) -> None:
    """Wrapped at spaces on a terminal; elsewhere one row is one line, as tools want it."""
    if not console.is_terminal:
        console.print(plain(parts, WIDE), soft_wrap=True)
        return
    for part in parts:
        console.print(part, soft_wrap=False)


def plain(parts: Iterable[Piece], width: int) -> str:
    """The same without colours."""
    console = Console(file=StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


# An audit -----------------------------------------------------------------------------------------------------


def show_audit(record: Record, verbose: bool = False) -> list[Piece]:
    """The decision first, in colour; then why, what next, and what was counted; `verbose`: all the rest."""
    decision = Text(clean(f"{record.verdict}: {headline(record)}"), style=COLOURS[record.verdict])
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, words in [*_rows(record), *(_rest(record) if verbose else ())]:
        table.add_row(Text(name, style="dim"), Text(clean(words)))
    return [decision, table]


def _rows(record: Record) -> Iterator[tuple[str, str]]:
    for i, reason in enumerate(record.reasons):
        yield "" if i else "why", sentence(reason)
    if record.verdict == "inconclusive" and record.doubts:
        codes = (f"{doubt.code}{' (accepted)' if doubt.accepted else ''}" for doubt in record.doubts)
        yield "codes", f"{', '.join(dict.fromkeys(codes))}; --accept CODE accepts one knowingly"
    for i, step in enumerate(record.next_steps):
        yield "" if i else "next", sentence(step)
    n, unseen = record.num_samples, record.num_unseen
    for tile in tiles(record):
        yield tile.name.lower(), f"{tile.num} of {n}, unseen {tile.num_unseen} of {unseen} ({tile.words})"
    if record.num_left_out:
        given = record.num_left_out + record.num_unseen + record.num_copies
        words = f"{record.num_left_out} of {given} left out, so that classes have the same shares in both sets"
        yield "unseen", words
    yield from _comparisons(record)


def _rest(record: Record) -> Iterator[tuple[str, str]]:
    n, unseen, signal_check = record.num_samples, record.num_unseen, record.signal_check
    low, high = record.recovered_interval
    yield "attacker", ATTACKERS[record.attacker]
    yield "policy", record.policy.rule
    yield "share", f"{low:.0%} to {high:.0%} of such samples leave a trace, with 95% confidence"
    if record.similarity.window:
        yield (
            "good",
            f"{record.num_good} of {n}, unseen {record.num_good_unseen} of {unseen} "
            "(as in the papers, SSIM above 0.4)",
        )
    yield (
        "signal check",
        f"the weights react to {signal_check.num_held} of {signal_check.num_asked} more than to unseen samples "
        f"(p = {signal_check.p_value:.1g})",
    )
    if signal_check.knows_p_value is not None:
        yield (
            "membership",
            "the outputs are better for these samples than for unseen ones "
            f"(p = {signal_check.knows_p_value:.1g})",
        )
    yield "preprocessing", f"the model is taken to have received the samples {record.inputs}; {_checked(record)}"
    yield "attack", f"{record.attack['method']}, {record.num_candidates:,} candidates, {_attack_time(record)}"
    if record.initial:
        yield "initial weights", f"{record.initial.why}{DEFENCE if record.initial.found else ''}"


def _comparisons(record: Record) -> Iterator[tuple[str, str]]:
    """What was asked for besides."""
    if record.sweep:
        states = ", ".join(f"{num} {state}" for state, num in record.sweep.num_trials.items())
        most = max(record.sweep.trials, key=lambda trial: trial.num_recovered)
        yield "trials", f"{states}; most by one alone: {most.num_recovered} (trial {most.number})"
    for control in record.controls:
        yield "control", f"{control.name}: recovered {control.num_recovered}, good {control.num_good}"
    if record.repeat and record.repeat.controls and len(record.controls) < 2:
        yield "control", "net trained on other samples: not run; it needs a run folder and samples left over"
    for baseline in record.baselines:
        yield "baseline", f"{baseline.method}: recovered {baseline.num_recovered}, good {baseline.num_good}"


def _attack_time(record: Record) -> str:
    before = " before this audit" if record.hashes.candidates else ""
    return f"{record.seconds['attack']:.1f} s{before}"


def _checked(record: Record) -> str:
    check = record.data_check
    if check.private_accuracy is None or check.unseen_accuracy is None:
        return UNCHECKED
    return f"{check.measure} {check.private_accuracy:.0%}, on unseen samples {check.unseen_accuracy:.0%}"


# A preflight --------------------------------------------------------------------------------------------------


def show(preflight: Preflight, verbose: bool = False) -> list[Piece]:
    """The line that matters, the attacks, the notes; `verbose`: also the layers and the spectrum."""
    verdict, notes = Text(clean(_verdict(preflight)), style="bold"), _notes(preflight)
    if preflight.architecture is None:
        return [verdict, notes]
    details: list[Piece] = [_layers(preflight), _spectrum(preflight)] if verbose else []
    return [verdict, _attacks(preflight), *details, notes]


def _verdict(preflight: Preflight) -> str:
    size = f"{preflight.num_parameters:,} parameters"
    model = f"{preflight.architecture}, {size}" if preflight.architecture else size
    auto = preflight.attacks[0]
    if preflight.applies and not auto.applies:
        return (
            f"ids that occurred in training can be read off (--method diary), samples cannot: {auto.why} ({model})"
        )
    if preflight.applies:
        return f"attackable; estimated time {duration(auto.seconds)} on one core ({model})"
    return f"nothing to attack, an audit would be inconclusive: {auto.why} ({model})"


def _attacks(preflight: Preflight) -> Table:
    table = Table("attack", "applies", "why", "one core", "memory", box=None, pad_edge=False)
    for applicability in preflight.attacks:
        words = "yes" if applicability.applies else "no"
        size = "" if applicability.bytes is None else f"{applicability.bytes / GB:.1f} GB"
        cells = (applicability.attack, words, clean(applicability.why), duration(applicability.seconds), size)
        table.add_row(*map(Text, cells))
    return table


def _layers(preflight: Preflight) -> Table:
    table = Table("layer", "shape", "norm", "balance of its neurons", box=None, pad_edge=False)
    for i, layer in enumerate(preflight.layers, 1):
        shape = "×".join(map(str, layer.shape))
        table.add_row(str(i), shape, f"{layer.norm:.3g}", "" if layer.balance is None else f"{layer.balance:.2f}")
    return table


def _notes(preflight: Preflight) -> Table:
    table = Table.grid(padding=(0, 1))
    for note in preflight.notes:
        table.add_row("-", Text(clean(note)))
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
