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
from scipy.stats import spearmanr

from unfit.attacker.attacks.fast import FastKKT
from unfit.attacker.attacks.paper import PaperKKT
from unfit.attacker.attacks.unmix import Unmix
from unfit.attacker.costs import operations_per_second, pass_operations
from unfit.attacker.ica import tellable
from unfit.auditor.audit import Audit
from unfit.auditor.match import GOOD
from unfit.base.files import Strict, new_folder, write_json
from unfit.base.nets import parse_architecture
from unfit.lab.reproduce.draw import save
from unfit.lab.reproduce.lab import FULL, SMALL, Lab, Measured, Setup

FILES = ("results.json", "figure.png", "figure.svg", "text.md")
CERTAIN = 0.01  # a leak is claimed where chance would show as much less often than this
SHAPES = {"cifar10": (3, 32, 32), "cifar100": (3, 32, 32), "mnist": (1, 28, 28), "circle": (2,)}
FLOW_STEPS = 1500  # that training takes, about


class Claim(Strict):
    """What the paper says, what was found, whether that agrees, and by how much."""

    claim: str
    paper: str
    ours: str
    holds: bool
    by: str


class Results(Strict):
    """`results.json`."""

    schema_version: Literal[1] = 1
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
        verdicts = ("DIFFERS", "agrees")
        return [*self.notes, *(f"{verdicts[c.holds]}: {c.claim}: {c.ours} ({c.by})" for c in self.claims)]


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
    """The paper's claim, our numbers, agrees or not, and by how much."""
    lines = [f"# {results.title}", "", f"*{results.name}.* {item.caption}", ""]
    lines += ["| claim | paper | ours | agrees | by |", "|---|---|---|---|---|"]
    lines += [
        f"| {c.claim} | {c.paper} | {c.ours} | {'yes' if c.holds else '**no**'} | {c.by} |" for c in results.claims
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


def _row(m: Measured) -> str:
    counts = (m.num_good, m.num_good_unseen, m.num_recovered)
    cells = ["–" if count is None else str(count) for count in counts]
    accuracies = [f"{m.train_accuracy:.1%}", f"{m.test_accuracy:.1%}"]
    return "| " + " | ".join([f"{m.data}, {m.target}", m.attack or "–", *accuracies, *cells]) + " |"


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


# What claims are made of -------------------------------------------------------------------------------------


def leaks(audit: Audit, what: str, paper: str) -> Claim:
    """More samples stand out than chance would show, by the samples the model never saw."""
    record = audit.record
    return Claim(
        claim=what,
        paper=paper,
        ours=f"{record.num_good} of {record.num_samples} good, {record.num_good_unseen} on unseen; "
        f"{record.num_recovered} recovered",
        holds=record.p_value < CERTAIN,
        by=f"p = {record.p_value:.1g}",
    )


def on_margin(audit: Audit, what: str) -> Claim:
    """Rank correlation of the similarity with −|output − margin|; the margin is the smallest |output|."""
    size = audit.arrays["output"].abs()
    correlation, p = spearmanr(audit.arrays["similarity"], -(size - size.min()))
    return Claim(
        claim=f"{what}: good reconstructions lie on the margin",
        paper="yes",
        ours=f"rank correlation {correlation:.2f}",
        holds=bool(correlation > 0 and p < 0.05),
        by=f"p = {p:.1g}",
    )


def few(audit: Audit, what: str, paper: str, most: int) -> Claim:
    """At most a handful."""
    found, unseen = audit.record.num_good, audit.record.num_good_unseen
    return Claim(
        claim=what,
        paper=paper,
        ours=f"{found} of {audit.record.num_samples} good, {unseen} on unseen",
        holds=found <= most,
        by=f"{most - found:+d} to {most}",
    )


def share_good(audit: Audit) -> float:
    return float((audit.arrays["similarity"] > GOOD).float().mean())


def mean_similarity(audit: Audit) -> float:
    return float(audit.arrays["similarity"].mean())


def compared(what: str, paper: str, larger: float, smaller: float, words: str) -> Claim:
    """`words` has two places for the two numbers."""
    return Claim(
        claim=what,
        paper=paper,
        ours=words.format(larger, smaller),
        holds=larger > smaller,
        by=f"{larger - smaller:+.2f}" if abs(larger) < 1.5 else f"{larger - smaller:+g}",
    )
