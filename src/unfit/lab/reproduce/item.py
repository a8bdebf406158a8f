"""A figure or a table: a function that makes it, and what is written about it."""

from __future__ import annotations

import inspect
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from matplotlib.figure import Figure

from unfit.attacker.attacks.fast import FastKKT
from unfit.attacker.attacks.paper import PaperKKT
from unfit.attacker.attacks.unmix import Unmix
from unfit.attacker.costs import operations_per_second, pass_operations
from unfit.attacker.ica import tellable
from unfit.base.files import Strict, new_folder, write_json
from unfit.base.nets import parse_architecture
from unfit.lab.reproduce.claims import Claim, Verdict
from unfit.lab.reproduce.draw import save
from unfit.lab.reproduce.lab import FULL, SMALL, Lab, Measured, Setup

FILES = ("results.json", "figure.png", "figure.svg", "text.md")
SHAPES = {"cifar10": (3, 32, 32), "cifar100": (3, 32, 32), "mnist": (1, 28, 28), "circle": (2,)}
FLOW_STEPS = 1500  # that training takes, about


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
    """What a figure's function gives back."""

    figure: Figure
    claims: list[Claim]


@dataclass(frozen=True, eq=False)
class Item:
    """`make` draws it and judges its claims; `targets`: all that it trains; `seconds`: measured at small scale."""

    make: Callable[[Lab], Made]
    targets: tuple[Setup, ...]
    seconds: float
    attacked: bool = True

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

    def full_seconds(self, attacks: Sequence[str]) -> float:
        """At the paper's own size on this machine, by operations counted: within a factor of three."""
        return sum(_full_seconds(setup, attacks if self.attacked else ()) for setup in self.targets)


def make(item: Item, lab: Lab, folder: Path, force: bool = False) -> Results:
    """Make everything in a lab of its own, and write it: results.json, the figure as PNG and SVG, a short text."""
    lab.check(item.targets)
    began = time.perf_counter()
    with new_folder(folder, force, FILES) as partial:
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
            notes=lab.notes,
            seconds=round(max(here, _spent(lab)), 1),
            machine=_machine(),
            command=_command(item, lab),
        )
        save(made.figure, partial)
        (partial / "text.md").write_text(text(results, item), encoding="utf-8")
        write_json(partial / "results.json", results.model_dump(mode="json"))
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


def _spent(lab: Lab) -> float:
    """Seconds that the targets and attacks took when they were made."""
    trained = {(m.target, m.data): m.seconds["training"] for m in lab.used.values()}
    attacked = sum(sum(m.seconds.values()) - m.seconds["training"] for m in lab.used.values())
    return sum(trained.values()) + attacked


def text(results: Results, item: Item) -> str:
    """The paper's claim, our numbers, the verdict, by how much and by which rule."""
    lines = [f"# {results.title}", "", f"*{results.name}.* {item.caption}", ""]
    lines += ["| claim | paper | ours | verdict | by | rule | seeds |", "|---|---|---|---|---|---|---|"]
    lines += [
        row(c.claim, c.paper, c.ours, bold(c.verdict), c.by, c.rule, str(c.num_seeds)) for c in results.claims
    ]
    lines += [
        "",
        "| target | attack | train acc. | test acc. | good | on unseen | recovered |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(measured) for measured in results.measured]
    lines += ["", *(f"{note}  " for note in results.notes)]
    lines += [
        f"Scale {results.scale}, seed {results.seed}; similarity: {results.similarity}. "
        "*good*: SSIM > 0.4; *recovered*: above what 1% of as many unseen samples reach.  ",
        f"{results.seconds:.0f} s on {results.machine}: `{results.command}`",
        "",
        "![figure](figure.png)",
        "",
    ]
    return "\n".join(lines)


def row(*cells: str) -> str:
    """A line of a Markdown table; a bar in a cell, as in |r|, would end it."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def bold(verdict: Verdict) -> str:
    """So that what does not agree is seen."""
    return verdict if verdict == "agrees" else f"**{verdict}**"


def _row(m: Measured) -> str:
    counts = (m.num_good, m.num_good_unseen, m.num_recovered)
    cells = ["–" if count is None else str(count) for count in counts]
    accuracies = [f"{m.train_accuracy:.1%}", f"{m.test_accuracy:.1%}"]
    return row(f"{m.data}, {m.target}", m.attack or "–", *accuracies, *cells)


def _full_seconds(setup: Setup, attacks: Sequence[str]) -> float:
    shape = SHAPES[setup.data]
    outputs = setup.num_classes if setup.fit.loss == "ce" else 1
    architecture = parse_architecture(setup.arch, shape, outputs, setup.biases)
    rank, unmix = setup.n, Unmix()
    ranks = [min(max(2, round(f * rank)), tellable(shape)) for f in unmix.ranks]
    each = {
        "paper": FULL.trials * PaperKKT().seconds(rank, architecture),
        "fast": FastKKT().seconds(rank, architecture),
        "unmix": unmix.seconds(ranks, shape),
    }
    each["auto"] = each["fast"] + each["unmix"]
    training = FLOW_STEPS * 6 * setup.n * pass_operations(architecture) / operations_per_second()
    return training + sum(each[attack] for attack in attacks)
