"""An audit and a preflight as a terminal shows them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from unfit.attacker.preflight import Preflight
from unfit.auditor.fitting import UNCHECKED
from unfit.auditor.record import Record, Verdict
from unfit.auditor.report.page import headline
from unfit.auditor.verdict import ATTACKERS
from unfit.base.errors import clean
from unfit.base.times import duration

Part = Text | Table
COLOURS: dict[Verdict, str] = {"leak": "bold red", "pass": "bold green", "inconclusive": "bold yellow"}
DEFENCE = "; shuffle the next start with the system's randomness before you train (docs/start.md)"
WIDE = 10_000  # columns where nobody reads lines as they stand: one row, one line

BARS = "▁▂▃▄▅▆▇█"
COLUMNS = 40  # of the spectrum's picture


def printed(console: Console, parts: Iterable[Part]) -> None:
    """Wrapped at spaces on a terminal; elsewhere one row is one line, as tools want it."""
    if not console.is_terminal:
        console.print(plain(parts, WIDE), soft_wrap=True)
        return
    for part in parts:
        console.print(part, soft_wrap=False)


def plain(parts: Iterable[Part], width: int) -> str:
    """The same without colours."""
    console = Console(file=StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


# An audit -----------------------------------------------------------------------------------------------------


def show_audit(record: Record) -> list[Part]:
    """The decision first, in colour; then why, and what was counted."""
    sentence = headline(record)
    decision = Text(clean(f"{record.verdict}: {sentence[0].lower()}{sentence[1:]}"), style=COLOURS[record.verdict])
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, words in _rows(record):
        table.add_row(Text(name, style="dim"), Text(clean(words)))
    return [decision, table]


def _rows(record: Record) -> Iterator[tuple[str, str]]:
    for i, reason in enumerate(record.reasons):
        yield "" if i else "why", reason
    for i, step in enumerate(record.next_steps):
        yield "" if i else "what next", step
    if not any(ATTACKERS[record.attacker] in reason for reason in record.reasons):
        yield "attacker", ATTACKERS[record.attacker]
    yield "policy", record.policy.rule
    yield from _counts(record)
    yield "inputs", f"the model is taken to have seen the samples {record.inputs}; {_fitted(record)}"
    yield "attack", f"{record.attack['method']}, {record.num_candidates:,} candidates, {_attack_time(record)}"
    if record.start:
        yield "start", f"{record.start.why}{DEFENCE if record.start.found else ''}"
    yield from _comparisons(record)


def _counts(record: Record) -> Iterator[tuple[str, str]]:
    n, unseen, oracle = record.num_samples, record.num_unseen, record.oracle
    low, high = record.recovered_interval
    yield "exact", f"{record.num_proven} of {n}, {_how_exact(record)}"
    yield (
        "recognisable",
        f"{record.num_recognisable} of {n}, unseen {record.num_recognisable_unseen} of {unseen} "
        f"(similarity above {record.recognisable:.2f})",
    )
    yield (
        "a trace",
        f"{record.num_recovered} of {n}, unseen {record.num_recovered_unseen} of {unseen} (similarity above "
        f"{record.threshold:.2f}); {low:.0%} to {high:.0%} of such samples, with 95% confidence",
    )
    if record.similarity.window:
        yield (
            "good",
            f"{record.num_good} of {n}, unseen {record.num_good_unseen} of {unseen} "
            "(as in the papers, SSIM above 0.4)",
        )
    yield (
        "oracle",
        f"the weights react to {oracle.num_held} of {oracle.num_asked} more than to unseen samples "
        f"(p = {oracle.p_value:.1g})",
    )
    if oracle.knows_p_value is not None:
        yield (
            "knows them",
            f"the outputs are better for these samples than for unseen ones (p = {oracle.knows_p_value:.1g})",
        )


def _how_exact(record: Record) -> str:
    file = record.file
    if not file.num_stored:
        return f"unseen {record.num_proven_unseen} of {record.num_unseen} (proven from the weights alone)"
    unseen = f"unseen {file.num_stored_unseen} of {record.num_unseen}"
    return f"verbatim in the file ({unseen}), or proven from the weights alone"


def _comparisons(record: Record) -> Iterator[tuple[str, str]]:
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


def _fitted(record: Record) -> str:
    fitting = record.fitting
    if fitting.private_accuracy is None or fitting.unseen_accuracy is None:
        return UNCHECKED
    return f"{fitting.measure} {fitting.private_accuracy:.0%}, on unseen ones {fitting.unseen_accuracy:.0%}"


# A preflight --------------------------------------------------------------------------------------------------


def show(preflight: Preflight) -> list[Part]:
    """The verdict, the attacks, what the weights show."""
    verdict, notes = Text(clean(_verdict(preflight)), style="bold"), _notes(preflight)
    if preflight.architecture is None:
        return [verdict, notes]
    return [verdict, _attacks(preflight), _layers(preflight), _spectrum(preflight), notes]


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
