"""What a verdict means, without knowledge of the method: the sentences that page, terminal and reports share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from unfit.auditor.record import Attacker, Record
from unfit.auditor.report.public import made_by, model_name, num_exact_unseen
from unfit.auditor.verdict import LOWER_BOUNDS, SIGNIFICANT, how_often
from unfit.base.errors import clean

NEEDS: Final[dict[Attacker, str]] = {
    "blind": "the published file alone",
    "has the base": "the published file, and the base model that training started from",
    "computes the initial weights": "the published file alone; its initial weights were computed from it",
    "has the optimiser": "the published checkpoint alone; it holds the state of its optimiser",
    "has two copies": "the published file alone; it holds more than one copy of the weights",
    "has several checkpoints": "several checkpoints of the same training",
    "reads the file": "the published file alone, and no attack: it holds the samples unchanged",
}
HAS: Final[dict[Attacker, str]] = {
    "blind": "an attacker who has only this file",
    "has the base": "an attacker who has this file and the base model that training started from",
    "computes the initial weights": "an attacker who has only this file and computes its initial weights",
    "has the optimiser": "an attacker who has only this checkpoint, with the state of its optimiser",
    "has two copies": "an attacker who has only this file, with its copies of the weights",
    "has several checkpoints": "an attacker who has these checkpoints",
    "reads the file": "an attacker who only reads this file",
}
NO_VERDICT = "No verdict: this audit cannot rule out a leak. Treat the model as not cleared."
TABLES = ("csv", "parquet", "adult")  # sources of rows
NOT_COVERED: Final = (
    "attacks through questions to the model, without the file",
    "attacks that are not known yet",
    "properties of the training data as a whole",
)
GRADE_KEY: Final[tuple[tuple[str, str], ...]] = (
    (
        "Exact",
        "equal to a reconstruction, confirmed by a proof from the weights alone, or stored in the file unchanged",
    ),
    ("Recognisable", "so similar that a person would agree; about 1 in 1,000 unseen samples gets this far"),
    ("Trace", "not necessarily recognisable, but evidence that the model was trained on it"),
)
KEEP: Final = "Do not publish this file."
Answer = tuple[str, list[str]]  # a question that a reader has, and what the audit says, in sentences


def noun(record: Record, num: int = 2) -> str:
    """What a sample is called: an image, a row of a table, or a sample."""
    is_table = record.data.partition(":")[0] in TABLES
    one = "image" if record.similarity.window else "row" if is_table else "sample"
    return one if num == 1 else f"{one}s"


def headline(record: Record) -> str:
    """The decision in one sentence."""
    if record.is_accepted:
        return f"This audit cannot rule out a leak, and the policy accepts that: {', '.join(record.codes)}."
    if record.verdict == "inconclusive":
        return NO_VERDICT
    if record.verdict == "leak":
        return f"{_recovered(record)}."
    if record.num_exact or (record.num_recovered and record.p_value < SIGNIFICANT):
        return f"{_recovered(record)}: the policy allows that."
    if record.num_recognisable:
        return f"No more training {noun(record)} could be recovered than chance gives, by {HAS[record.attacker]}."
    return f"No training {noun(record, 1)} could be recovered by {HAS[record.attacker]}."


def _recovered(record: Record) -> str:
    """How many, of the best grade that shows a sample; traces only where there is nothing better."""
    n = record.num_samples
    of_all = f"of {n} training {noun(record, n)}"
    if record.attacker == "reads the file":
        num = record.file.num_stored
        return f"{num} {of_all} {'stands' if num == 1 else 'stand'} in this file, for anyone to read"
    num = record.num_recognisable
    if not num:
        leave = "leaves" if record.num_recovered == 1 else "leave"
        return f"{record.num_recovered} {of_all} {leave} a trace in this file: they were trained on"
    exactly = " exactly" if record.num_exact == num else ""
    some = f", {record.num_exact} of them exactly" if record.num_exact and not exactly else ""
    features = "The features of " if record.similarity.name == "explained variance" else ""
    return f"{features}{num} {of_all} can be recovered{exactly} from this file{some}"


def control(record: Record) -> str:
    """The same count among samples that the model never saw, and what chance gives."""
    m = record.num_unseen
    unseen = f"of {m:,} unseen {noun(record, m)}"
    if record.attacker == "reads the file":
        file = record.file
        return (
            f"{file.num_stored_unseen} {unseen} stand in it. Chance alone would do this {how_often(file.p_value)}."
        )
    graded = record.num_recognisable > 0
    num = record.num_recognisable_unseen if graded else record.num_recovered_unseen
    verb = ("was recovered" if num == 1 else "were recovered") if graded else "left a trace"
    traces = "1 trace" if record.num_recovered == 1 else f"{record.num_recovered} traces"
    return f"{num} {unseen} {verb}. Chance alone would give {traces} {how_often(record.p_value)}."


def answers(record: Record) -> list[Answer]:
    """Three questions of who must decide, and their answers."""
    if record.verdict == "leak":
        limits = [sentence(LOWER_BOUNDS)] if LOWER_BOUNDS in record.reasons else []
        return [
            ("What does an attacker need?", [sentence(NEEDS[record.attacker])]),
            ("Could it be chance?", [control(record), *limits]),
            ("What should I do?", advice(record)),
        ]
    if record.is_accepted:
        return [
            ("What did the policy accept?", [*map(sentence, record.reasons)]),
            ("What is not covered?", [*map(sentence, [*left_out(record), *NOT_COVERED])]),
            ("What should I do?", [f"Your policy allows you to publish this file: {record.policy.rule}."]),
        ]
    if record.verdict == "pass":
        return [
            ("What was tried?", [tried(record)]),
            ("What is not covered?", [*map(sentence, [*left_out(record), *NOT_COVERED])]),
            ("What should I do?", [f"Your policy allows you to publish this file: {record.policy.rule}."]),
        ]
    return [
        ("May I publish this file?", ["Not yet. This audit neither found a leak nor ruled one out."]),
        ("Why is there no verdict?", [*map(sentence, record.reasons)]),
        ("What would decide it?", [*map(sentence, record.next_steps)] or ["Nothing that this audit knows of."]),
    ]


def advice(record: Record) -> list[str]:
    """What to do about a leak: first what not to do."""
    steps = [sentence(sentence(step).removeprefix(KEEP).strip()) for step in record.next_steps]
    return [KEEP, *(step for step in steps if step != ".")]


def tried(record: Record) -> str:
    """What an attacker was given, how hard was tried, and what the signal check says."""
    num, status = max(1, len(record.surfaces)), {each.status for each in record.surfaces} or {"finished"}
    what = "surface" if num == 1 else "surfaces"
    ended = "to completion" if status == {"finished"} else f"until: {', '.join(sorted(status))}"
    signal = "found nothing" if record.signal_check.p_value >= 0.05 else "found a signal that the policy allows"
    return (
        f"{_attack(record)}, on {num} {what} of the file, ran {ended} and gave "
        f"{record.num_candidates:,} candidates. The signal check {signal}. "
        f"Unseen {noun(record)} recovered: {record.num_recognisable_unseen} of {record.num_unseen:,}."
    )


def left_out(record: Record) -> list[str]:
    """Attackers who have more than the one that this audit speaks of."""
    more = []
    if record.hashes.base is None:
        more.append("an attacker who has the base model, if this one was fine-tuned: audit it with its base")
    return more


def sentence(words: str) -> str:
    """A reason or a step as a sentence of its own."""
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith(('.', '!', '?')) else '.'}"


@dataclass(frozen=True)
class Tile:
    """A count with its control. Each count includes the better grades."""

    name: str
    num: int
    num_unseen: int
    words: str


def tiles(record: Record) -> list[Tile]:
    """Exact, recognisable, trace; without candidates nothing was searched but the file itself."""
    exact = Tile("Exact", record.num_exact, num_exact_unseen(record), _how_exact(record))
    if not record.num_candidates:
        return [exact] if record.num_exact else []
    or_exact = "exact, or " if record.num_exact else ""
    return [
        exact,
        Tile(
            "Recognisable",
            record.num_recognisable,
            record.num_recognisable_unseen,
            f"{or_exact}similarity above {record.recognisable_line:.2f}",
        ),
        Tile(
            "Trace or more",
            record.num_recovered,
            record.num_recovered_unseen,
            f"similarity above {record.threshold:.2f}",
        ),
    ]


def _how_exact(record: Record) -> str:
    num = record.file.num_stored
    if not num:
        return "proven from the weights alone"
    stored = "in the file unchanged" if num >= record.num_exact else f"{num} of them in the file unchanged"
    return stored if num >= record.num_exact else f"{stored}, the others proven from the weights alone"


def made_line(record: Record) -> str:
    """When, by whom and with what it was made."""
    author = record.repeat and record.repeat.author
    parts = [day(record), f"by {_given(author)}" if author else "", f"with unfit {made_by(record)}"]
    return f"Made {' '.join(each for each in parts if each)}."


def day(record: Record) -> str:
    """`on 2026-11-19 at 04:34 UTC`."""
    if record.date is None:
        return ""
    when = datetime.fromisoformat(record.date).astimezone(UTC)
    return f"on {when:%Y-%m-%d} at {when:%H:%M} UTC"


def identity(record: Record) -> list[tuple[str, str, str]]:
    """What was audited: name, what it is, SHA-256."""
    n, m, request, hashes = record.num_samples, record.num_unseen, record.repeat, record.hashes
    data = f"{_given(record.data)}: " if record.data else ""
    unseen = f"{_given(request.unseen)}: " if request and request.unseen else ""
    classes = ", ".join(map(_given, record.class_names))
    size = f"{record.target.num_parameters:,} parameters"
    rows = [
        ("model", f"{_given(model_name(record))}: {record.target.architecture}, {size}", record.target.sha256),
        ("base", _given(os.path.basename(request.base)) if request and request.base else "", hashes.base or ""),
        ("training data", f"{data}{n:,} {noun(record, n)} ({classes}), {record.inputs}", hashes.private),
        ("unseen data", f"{unseen}{m:,} {noun(record, m)}", hashes.unseen),
        ("made", f"{day(record)} with unfit {made_by(record)}".strip(), ""),
        ("author", _given(request.author) if request and request.author else "", ""),
    ]
    return [row for row in rows if row[1] or row[2]]


def _attack(record: Record) -> str:
    method = str(record.attack["method"])
    return "All attacks that apply" if method == "auto" else f"The attack {method}"


def _given(text: str) -> str:
    """A name that a user gave, as one line of text; backticks are for commands."""
    return clean(text).replace("`", "'")
