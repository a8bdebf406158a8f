"""The numbers that the index of evidence and the README quote: cells of what is stored, never typed.

A page has a table between two marks; `filled` writes it anew. A number whose section was measured with other code says *older*.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_UP, Context
from typing import TYPE_CHECKING

from unfit.lab.measurement import Table

if TYPE_CHECKING:
    from page import Section

OLDER = "*older*"
UP = Context(prec=2, rounding=ROUND_UP)
NUMBER = re.compile(r"\d+(?:\.\d+)?")
MARKED = re.compile(r"(<!-- (evidence|readme): `make results` writes this table -->\n).*?(<!-- end -->)", re.S)


@dataclass(frozen=True)
class Headline:
    """A sentence with a number, and where the number is stored."""

    attacker: str  # what the attacker has
    model: str
    recovered: str  # words with {0}, {1}, … for cells or counts
    control: str  # the same
    section: str  # a file of benchmarks/stored
    cells: tuple[
        tuple[str, ...], ...
    ]  # (count,), or the first cells of a row and a column; `auto#1`: its second number
    seeds: str
    in_readme: bool = False


STANDARD = "PyTorch's standard initial weights"
HEADLINES = (
    Headline(
        "the weights, and the initial weights (known or computed)",
        f"{STANDARD}, 100 CIFAR-10 images",
        "{0} exact",
        "{1} of 100 good (SSIM above 0.4)",
        "leaderboard",
        (("n=100, start weights known", "auto#3"), ("n=100, start weights known", "auto#1")),
        "0, 1, 2",
        in_readme=True,
    ),
    Headline(
        "the weights alone",
        f"{STANDARD}, weight decay 1e-3, 100 CIFAR-10 images",
        "{0} good (SSIM above 0.4)",
        "{1} of 100 good",
        "leaderboard",
        (
            ("n=100, standard init, weight decay 1e-3", "auto#0"),
            ("n=100, standard init, weight decay 1e-3", "auto#1"),
        ),
        "0, 1, 2",
        in_readme=True,
    ),
    Headline(
        "a trainer's checkpoint with Adam's state",
        f"{STANDARD}, 100 CIFAR-10 images",
        "{0} recognisable; {1} from the weights alone",
        "verdict on samples it was not trained on: {2}",
        "the-state-of-an-optimiser",
        (
            ("Adam, full batches", "with its state", "recognisable"),
            ("Adam, full batches", "weights alone", "recognisable"),
            ("Adam, full batches", "with its state", "strangers"),
        ),
        "0, 1, 2",
        in_readme=True,
    ),
    Headline(
        "a file with a second copy of the weights (EMA)",
        "initial weights that no search finds, 60 CIFAR-10 images",
        "{0} recognisable; {2} from the weights alone",
        "{1} of 60",
        "two-copies-and-several-checkpoints",
        (
            ("an average in the file, decay 0.99, batches of 20", "recognisable (unseen)#0"),
            ("an average in the file, decay 0.99, batches of 20", "recognisable (unseen)#-1"),
            ("an average in the file, decay 0.99, batches of 20", "weights alone"),
            ("an average in the file, decay 0.99, batches of 20", "seeds"),
        ),
        "{3}",
        in_readme=True,
    ),
    Headline(
        "a head, its frozen body and its initial weights",
        "new head on EfficientNet-Lite0, 100 CIFAR-10 images",
        "{0} feature vectors exact",
        "{1} of as many unseen",
        "vectors-features-texts-records",
        (("heads, n=100", "proven"), ("heads, n=100", "on unseen")),
        "0, 1, 2",
        in_readme=True,
    ),
    Headline(
        "a text classifier and its initial weights",
        "word counts of 300 texts",
        "{0} word for word, of these {1} exact",
        "{2} of as many unseen",
        "vectors-features-texts-records",
        (
            ("counts of words, n=300", "right"),
            ("counts of words, n=300", "proven"),
            ("counts of words, n=300", "on unseen"),
        ),
        "0, 1, 2",
        in_readme=True,
    ),
    Headline(
        "an embedding and its base",
        "5,000 words, AdamW, 200 texts",
        "{0}% of the words that occurred",
        "{1}% of the others",
        "embeddings-which-words-occurred",
        (("AdamW, 0.01", "float32", "found, %"), ("AdamW, 0.01", "float32", "false, %")),
        "0, 1, 2",
        in_readme=True,
    ),
    Headline(
        "*(control)* the initial weights",
        "{3:,} small models of 20 kinds, samples known",
        "{0:,} samples called exact, {1} of them wrong",
        "at most {2}% with 95% confidence",
        "proofs-how-many-are-false",
        (("num_exact",), ("num_false",), ("at_most",), ("num_models",), ("first_seed",), ("last_seed",)),
        "{4:,} to {5:,}",
        in_readme=True,
    ),
    Headline(
        "*(control)* the weights alone",
        "300 audits of samples that were not trained on",
        "leaks of 60 by kind of data: {0}, {1}, {2}, {3}, {4}",
        "all of them are control",
        "strangers-without-a-base-how-many-leaks-are-false",
        tuple(
            (kind, "leak") for kind in ("exchangeable", "other file", "other class mix", "half zeros", "brighter")
        ),
        "0 to 14",
    ),
    Headline(
        "*(control)* an embedding and its base",
        "40 audits of texts that were not trained on",
        "{0} leaks, {1} inconclusive",
        "all of them are control",
        "embeddings-how-many-verdicts-are-false",
        (("strangers", "leak"), ("strangers", "inconclusive")),
        "0 to 39",
    ),
    Headline(
        "the weights alone",
        "small initial weights, 100 CIFAR-10 images",
        "`fast`: {0} good after 15 s; the papers' solver: {1} after 600 s",
        "see the section",
        "the-papers-solver-against-the-fast-one",
        (("fast", "15 s"), ("paper", "600 s")),
        "0",
    ),
)


def found(section: Section, cell: tuple[str, ...]) -> str | int:
    """A count of a section, or the cell of the only row that begins so. Shares are percents, rounded up."""
    if len(cell) == 1:
        count = section.counts[cell[0]]
        return count if isinstance(count, int) else str(UP.create_decimal(repr(100 * count)))
    *begins, wanted = cell
    column, _, position = wanted.partition("#")
    (value,) = {
        row[part.columns.index(column)]
        for part in section.content
        if isinstance(part, Table) and column in part.columns
        for row in part.rows
        if list(row[: len(begins)]) == begins
    }
    quoted = NUMBER.findall(value)[int(position)] if position else value.replace("**", "")
    return quoted.removesuffix(".0") if NUMBER.fullmatch(quoted) else quoted


def table(headlines: Iterable[Headline], sections: Iterable[Section], folder: str) -> Table:
    by_stem = {section.file.stem: section for section in sections}
    rows = []
    for each in headlines:
        section = by_stem[each.section]
        values = [found(section, cell) for cell in each.cells]
        words = (each.model, each.recovered, each.control, each.seeds)
        model, recovered, control, seeds = (part.format(*values) for part in words)
        age = "" if section.is_current else f", {OLDER}"
        link = f"[section]({folder}{section.page}.md#{section.anchor}){age}"
        rows.append((each.attacker, model, recovered, control, seeds, link))
    return Table(
        columns=("the attacker has", "model", "recovered", "control: unseen samples", "seeds", "measured"),
        rows=tuple(rows),
    )


def filled(text: str, sections: Iterable[Section]) -> str:
    """A page whose marked table is written anew."""
    every = list(sections)

    def new(mark: re.Match[str]) -> str:
        if mark[2] == "evidence":
            lines = table(HEADLINES, every, "").lines
        else:
            lines = table((each for each in HEADLINES if each.in_readme), every, "docs/").lines
        return mark[1] + "\n".join(lines) + "\n" + mark[3]

    return MARKED.sub(new, text)
