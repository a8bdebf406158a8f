"""A figure or a table: what makes it, and what is written about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal

import matplotlib as mpl
from matplotlib.figure import Figure

from unfit.attacker.attacks.fast import FastKKT
from unfit.attacker.attacks.inversion import Inversion
from unfit.attacker.attacks.paper import PaperKKT
from unfit.attacker.attacks.unmix import Unmix
from unfit.attacker.costs import operations_per_second, pass_operations
from unfit.attacker.edges import tellable
from unfit.auditor.audit import Audit
from unfit.base.errors import UnfitError
from unfit.base.files import new_file, new_folder, read_json, write_json
from unfit.base.nets import parse_architecture
from unfit.base.times import duration
from unfit.base.versions import versions
from unfit.lab.measurement import (
    MEASURES,
    TRAINING,
    Measurement,
    Passage,
    Table,
    hashes,
    machine,
    markdown,
    older,
)
from unfit.lab.reproduce.claims import Claim, Verdict, over_seeds, over_words
from unfit.lab.reproduce.draw import STYLE, grid, save
from unfit.lab.reproduce.lab import FULL, SMALL, WHERE, Lab, Measured, Setup

FILES = ("results.json", "figure.png", "figure.svg", "text.md")
Drawing = Callable[[Lab, Setup], Figure]
Rule = Callable[[Lab, Setup], Claim]
OTHERS = "others"  # the folder of what was measured with another seed or at another scale
SHAPES = {"cifar10": (3, 32, 32), "cifar100": (3, 32, 32), "mnist": (1, 28, 28), "circle": (2,)}
FLOW_STEPS = 1500  # that training takes, about


class Results(Measurement):
    """`results.json`."""

    schema_version: Literal[2] = 2
    name: str
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
    """A figure and what is claimed of it; `table`, if the paper has one."""

    figure: Figure
    claims: list[Claim]
    table: Table | None = None


@dataclass(frozen=True, eq=False)
class Item:
    """A row of the table of all figures and tables: `make` draws it and judges its claims.

    `targets`: all that it trains; `seconds`: measured at small scale; `paper`: what it says. `attacked`:
    whether by the attacks that are asked for; `inverted`: whether by model inversion.
    """

    name: str  # haim2022/fig4
    title: str
    seconds: float
    targets: tuple[Setup, ...]
    make: Callable[[Lab], Made]
    paper: str = ""
    attacked: bool = True
    inverted: bool = False

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


def row(
    name: str,
    title: str,
    seconds: float,
    setup: Setup,
    drawing: Drawing,
    *rules: Rule,
    also: tuple[Setup, ...] = (),
    paper: str = "",
    attacked: bool = True,
    inverted: bool = False,
) -> Item:
    """An item of one target: its drawing, and a rule for each claim. `also`: targets that it is compared with."""

    def make(lab: Lab) -> Made:
        return Made(drawing(lab, setup), [rule(lab, setup) for rule in rules])

    return Item(name, title, seconds, (setup, *also), make, paper, attacked, inverted)


def best(columns: int = 15, rows: int = 3) -> Drawing:
    """The best pairs of a target, by each attack."""
    return lambda lab, setup: grid(lab.audits(setup), columns, rows)


def claimed(judged: Callable[[Audit, str, str], Claim], claim: str, paper: str, attack: str | None = None) -> Rule:
    """A claim that one audit decides, by the first attack if none is named; `claim` may name the {data}."""
    return lambda lab, setup: judged(lab.audit(setup, attack), claim.format(data=WHERE[setup.data][0]), paper)


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
            date=str(date.today()),
            versions=versions(),
            code=_code(lab),
            scale=lab.scale.name,
            attacks=list(lab.attacks),
            seed=lab.seed,
            similarity="SSIM, Gaussian window 11 (the papers' code: window 3)",
            claims=made.claims,
            measured=list(lab.used.values()),
            table=made.table,
            notes=lab.notes,
            seconds=round(max(here, spent(lab.used.values())), 1),
            machine=machine(),
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


def _code(lab: Lab) -> dict[str, str]:
    """Of all that it was made by: nothing is attacked for a table."""
    attacked = any(measured.attack for measured in lab.used.values())
    return hashes((*(MEASURES if attacked else TRAINING), "lab/reproduce"))


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
    parts = [
        [f"# {results.title}"],
        [f"*{results.name}.* {item.paper}"],
        *_found(seeds),
        ["![figure](figure.png)"],
    ]
    return markdown([*parts, *([["## At the paper's own size"], *_found(full)] if full else [])])


def _found(seeds: Sequence[Results]) -> list[Passage]:
    """Claims with their rules, what was measured of every target, and how."""
    results = seeds[0]
    claims = Table(
        columns=("claim", "paper", "ours", "verdict", "by", "rule", "seeds"),
        rows=tuple(
            (c.claim, c.paper, c.ours, bold(c.verdict), c.by, c.rule, str(c.num_seeds)) for c in joined(seeds)
        ),
    )
    targets = Table(
        columns=("target", "attack", "train acc.", "test acc.", "good", "on unseen", "recovered"),
        rows=tuple(_row(measured, seeds) for measured in results.measured),
    )
    numbers = ", ".join(str(each.seed) for each in seeds)
    one = f"seed {numbers}"
    several = f"seeds {numbers}: means, and extremes in brackets; the figure is of seed {results.seed}"
    words = [
        *(f"{note}  " for note in results.notes),
        f"Scale {results.scale}, {several if len(seeds) > 1 else one}; similarity: {results.similarity}. "
        "*good*: SSIM > 0.4; *recovered*: above what 1% of as many unseen samples reach.  ",
        ". ".join([f"{results.seconds:.0f} s on {results.machine}: `{results.command}`", *older(*seeds)]),
    ]
    return [claims, targets, *([results.table] if results.table else []), words]


def bold(verdict: Verdict) -> str:
    """So that what does not agree is seen."""
    return verdict if verdict == "agrees" else f"**{verdict}**"


def joined(seeds: Sequence[Results]) -> list[Claim]:
    """What the seeds say together, claim by claim."""
    return [over_seeds(claims) for claims in zip(*(each.claims for each in seeds), strict=True)]


def _row(first: Measured, seeds: Sequence[Results]) -> tuple[str, ...]:
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
    numbers = map(over_words, zip(*words, strict=True))
    return f"{first.data}, {first.target}", first.attack or "–", *numbers


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
