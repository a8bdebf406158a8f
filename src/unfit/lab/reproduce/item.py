"""A figure or a table: a function that makes it, and what is written about it."""

from __future__ import annotations

import inspect
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib as mpl
import torch
from matplotlib.figure import Figure

from unfit.attacker.attacks.fast import FastKKT
from unfit.attacker.attacks.inversion import Inversion
from unfit.attacker.attacks.paper import PaperKKT
from unfit.attacker.attacks.unmix import Unmix
from unfit.attacker.costs import operations_per_second, pass_operations
from unfit.attacker.edges import tellable
from unfit.base.errors import UnfitError
from unfit.base.files import Strict, new_file, new_folder, read_json, write_json
from unfit.base.nets import parse_architecture
from unfit.base.times import duration
from unfit.lab.reproduce.claims import Claim, Verdict, over_seeds, over_words
from unfit.lab.reproduce.draw import STYLE, save
from unfit.lab.reproduce.lab import FULL, SMALL, WHERE, Lab, Measured, Setup

FILES = ("results.json", "figure.png", "figure.svg", "text.md")
OTHERS = "others"  # the folder of what was measured with another seed or at another scale
SHAPES = {"cifar10": (3, 32, 32), "cifar100": (3, 32, 32), "mnist": (1, 28, 28), "circle": (2,)}
FLOW_STEPS = 1500  # that training takes, about


class Table(Strict):
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Results(Strict):
    """`results.json`."""

    schema_version: Literal[2] = 2
    name: str
    title: str
    scale: str
    attacks: list[str]
    seed: int
    similarity: str
    claims: list[Claim]
    measured: list[Measured]
    table: Table | None = None
    notes: list[str]
    seconds: float  # of this item's targets, attacks and drawing; what was kept from other items counts in full
    machine: str
    command: str

    @property
    def words(self) -> list[str]:
        """What a terminal shows."""
        return [*self.notes, *(f"{_loud(c)}: {c.claim}: {c.ours} ({c.by})" for c in self.claims)]


def _loud(claim: Claim) -> str:
    return claim.verdict if claim.verdict == "agrees" else claim.verdict.upper()


@dataclass(frozen=True, eq=False)
class Made:
    """What a figure's function gives back; `table`, where the paper has one."""

    figure: Figure
    claims: list[Claim]
    table: Table | None = None


@dataclass(frozen=True, eq=False)
class Item:
    """`make` draws it and judges its claims; `targets`: all that it trains; `seconds`: measured at small scale.

    `attacked`: whether by the attacks that are asked for; `inverted`: whether by model inversion.
    """

    make: Callable[[Lab], Made]
    targets: tuple[Setup, ...]
    seconds: float
    attacked: bool = True
    inverted: bool = False

    @property
    def name(self) -> str:
        """haim2022/fig4."""
        return f"{self.make.__module__.rpartition('.')[2]}/{self.make.__name__}"

    @property
    def title(self) -> str:
        return (inspect.getdoc(self.make) or "").split("\n")[0].rstrip(".")

    @property
    def caption(self) -> str:
        """The rest of the function's documentation: what the paper claims."""
        return " ".join((inspect.getdoc(self.make) or "").split("\n")[1:]).strip()

    def full_seconds(self, lab: Lab) -> float:
        """At the size of a lab at full scale, on this machine, by operations counted: within a factor of three."""
        every = (*(lab.attacks if self.attacked else ()), *(["inversion"] * self.inverted))
        return sum(_full_seconds(lab.size(setup), every) for setup in self.targets)

    def why_not_run(self, lab: Lab) -> str:
        """At full scale: the data that are missing, or how long it would take."""
        for data, setup in {setup.data: setup for setup in self.targets}.items():
            try:
                lab.check([setup])
            except UnfitError:
                return f"needs {WHERE[data][0]}"
        return f"about {duration(self.full_seconds(lab))}"


def place_of(out: Path, item: Item, scale: str, seed: int) -> Path:
    """The item's folder; if that holds another scale or seed already, a file of numbers alone beside it."""
    first = out / item.name / FILES[0]
    if first.is_file() and (about := read_json(first)) and (about["scale"], about["seed"]) != (scale, seed):
        return out / OTHERS / f"{scale}-{seed}" / f"{item.name}.json"
    return out / item.name


def make(item: Item, lab: Lab, place: Path, force: bool = False) -> Results:
    """Make everything in a lab of its own, and write it: results.json, the figure as PNG and SVG, a short text."""
    lab.check(item.targets)
    began = time.perf_counter()
    alone = place.suffix == ".json"
    output = new_file(place, force) if alone else new_folder(place, force, FILES)
    with output as partial, mpl.rc_context(STYLE):
        made = item.make(lab)
        here = time.perf_counter() - began
        results = Results(
            name=item.name,
            title=item.title,
            scale=lab.scale.name,
            attacks=list(lab.attacks),
            seed=lab.seed,
            similarity="SSIM, Gaussian window 11 (the papers' code: window 3)",
            claims=made.claims,
            measured=list(lab.used.values()),
            table=made.table,
            notes=lab.notes,
            seconds=round(max(here, spent(lab.used.values())), 1),
            machine=_machine(),
            command=_command(item, lab),
        )
        write_json(partial if alone else partial / FILES[0], results.model_dump(mode="json"))
        if not alone:
            save(made.figure, partial)
            (partial / "text.md").write_text(text([results], item), encoding="utf-8")
    return results


def _command(item: Item, lab: Lab) -> str:
    words = ["unfit reproduce", item.name]
    words += [f"--scale {lab.scale.name}"] * (lab.scale.name != SMALL.name)
    words += [f"--seed {lab.seed}"] * (lab.seed > 0)
    words += [f"--attack {attack}" for attack in lab.attacks if lab.attacks != ("auto",)]
    return " ".join(words)


def _machine() -> str:
    threads = torch.get_num_threads()
    return f"{platform.machine()}, {threads} of {os.cpu_count()} cores, PyTorch {torch.__version__}"


def spent(measured: Iterable[Measured]) -> float:
    """Seconds that these targets and attacks took when they were made, each of them once."""
    seconds: dict[tuple[object, ...], float] = {}
    for m in measured:
        net = m.data, m.target, m.train_loss
        seconds[net] = m.seconds["training"]
        if m.attack:
            seconds[*net, m.attack] = sum(m.seconds.values()) - m.seconds["training"]
    return sum(seconds.values())


def text(seeds: Sequence[Results], item: Item, full: Sequence[Results] = ()) -> str:
    """The paper's claims, our numbers (over the seeds) and verdicts; then those at the paper's own size."""
    results = seeds[0]
    lines = [f"# {results.title}", "", f"*{results.name}.* {item.caption}", "", *_tables(seeds)]
    lines += ["", "![figure](figure.png)", ""]
    if full:
        lines += ["## At the paper's own size", "", *_tables(full), ""]
    return "\n".join(lines)


def _tables(seeds: Sequence[Results]) -> list[str]:
    """Claims with their rules, what was measured of every target, and how."""
    results = seeds[0]
    lines = ["| claim | paper | ours | verdict | by | rule | seeds |", "|---|---|---|---|---|---|---|"]
    lines += [
        row(c.claim, c.paper, c.ours, bold(c.verdict), c.by, c.rule, str(c.num_seeds)) for c in joined(seeds)
    ]
    lines += [
        "",
        "| target | attack | train acc. | test acc. | good | on unseen | recovered |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(measured, seeds) for measured in results.measured]
    if results.table:
        lines += ["", row(*results.table.columns), "|---" * len(results.table.columns) + "|"]
        lines += [row(*cells) for cells in results.table.rows]
    lines += ["", *(f"{note}  " for note in results.notes)]
    numbers = ", ".join(str(each.seed) for each in seeds)
    one = f"seed {numbers}"
    several = f"seeds {numbers}: means, and extremes in brackets; the figure is of seed {results.seed}"
    return [
        *lines,
        f"Scale {results.scale}, {several if len(seeds) > 1 else one}; similarity: {results.similarity}. "
        "*good*: SSIM > 0.4; *recovered*: above what 1% of as many unseen samples reach.  ",
        f"{results.seconds:.0f} s on {results.machine}: `{results.command}`",
    ]


def row(*cells: str) -> str:
    """A line of a Markdown table; a bar in a cell, as in |r|, would end it."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def bold(verdict: Verdict) -> str:
    """So that what does not agree is seen."""
    return verdict if verdict == "agrees" else f"**{verdict}**"


def joined(seeds: Sequence[Results]) -> list[Claim]:
    """What the seeds say together, claim by claim."""
    return [over_seeds(claims) for claims in zip(*(each.claims for each in seeds), strict=True)]


def _row(first: Measured, seeds: Sequence[Results]) -> str:
    """A target and an attack, over the seeds."""
    same = [
        m
        for each in seeds
        for m in each.measured
        if (m.data, m.target, m.attack) == (first.data, first.target, first.attack)
    ]  # a seed may lack it, as the papers' solver is run for one alone
    counts = [[m.num_good, m.num_good_unseen, m.num_recovered] for m in same]
    cells = [["–" if count is None else str(count) for count in each] for each in counts]
    words = [
        [f"{m.train_accuracy:.1%}", f"{m.test_accuracy:.1%}", *each] for m, each in zip(same, cells, strict=True)
    ]
    return row(f"{first.data}, {first.target}", first.attack or "–", *map(over_words, zip(*words, strict=True)))


def _full_seconds(setup: Setup, attacks: Sequence[str]) -> float:
    shape = SHAPES[setup.data]
    outputs = setup.num_classes if setup.fit.loss == "ce" else 1
    architecture = parse_architecture(setup.arch, shape, outputs, setup.biases)
    rank, unmix = min(setup.n, architecture.hidden[0]), Unmix()  # no layer has more directions than neurons
    ranks = [min(max(2, round(f * rank)), tellable(shape)) for f in unmix.ranks]
    each = {
        "paper": FULL.trials * PaperKKT().seconds(rank, architecture),
        "fast": FastKKT().seconds(rank, architecture),
        "unmix": unmix.seconds(ranks, shape),
    }
    each["auto"] = each["fast"] + each["unmix"]
    once = pass_operations(architecture) / operations_per_second()
    if "inversion" in attacks:  # so many starts need not be a multiple of the classes of other nets
        each["inversion"] = Inversion(num_candidates=FULL.inversions).seconds(architecture)
    return 6 * _passes(setup) * once + sum(each[attack] for attack in attacks)


def _passes(setup: Setup) -> int:
    """Samples that training takes through the net, there and back."""
    return setup.n * (FLOW_STEPS if setup.fit.method == "flow" else setup.fit.epochs)
