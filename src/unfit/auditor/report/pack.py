"""A report for people who must sign: from a saved audit alone, as PDF, Markdown or JSON."""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Final

from unfit.auditor.grades import Audience
from unfit.auditor.record import Record
from unfit.auditor.report import plots
from unfit.auditor.report.criteria import (
    SOURCES,
    Criterion,
    Finding,
    Status,
    bound,
    comparable,
    findings,
    means,
    strongest,
)
from unfit.auditor.report.page import Arrays, shows_images
from unfit.auditor.report.words import (
    GRADE_KEY,
    NOT_COVERED,
    answers,
    headline,
    identity,
    left_out,
    made_line,
    noun,
    sentence,
    tiles,
)
from unfit.base.errors import UsageError, clean, needs
from unfit.base.files import as_json

TITLES: Final[dict[Audience, str]] = {
    "dpo": "Report for the data protection officer",
    "tre": "Report for output checking in a trusted research environment",
    "auditor": "Report for the auditor",
}
SUFFIXES = (".pdf", ".md", ".json")
TESTED_NOT = ("attribute inference, where some values of a person are known", "extraction of the model by queries")
LAWYERS = (
    "This report maps what was measured to what the sources ask. It is no legal advice and certifies nothing."
)


@dataclass(frozen=True)
class Row:
    """A question of a source, and what the audit answers."""

    section: str
    question: str
    status: Status
    answer: str
    fields: str


@dataclass(frozen=True)
class Chapter:
    source: str
    read: str
    rows: list[Row]


@dataclass(frozen=True)
class Pack:
    """All that a report says; its files differ in form only."""

    title: str
    audience: Audience
    verdict: str
    headline: str
    made: str
    answers: list[tuple[str, list[str]]]
    counts: list[tuple[str, str, str, str]]  # grade, training samples, unseen samples, what it means
    bound: list[str]
    attacker: str
    control: str
    findings: list[Finding]
    chapters: list[Chapter]
    not_tested: list[str]
    identity: list[tuple[str, str, str]]
    settings: list[tuple[str, str]]
    limits: str = LAWYERS


def pack(record: Record, audience: Audience) -> Pack:
    n, m = record.num_samples, record.num_unseen
    low, high = bound(record)
    return Pack(
        title=TITLES[audience],
        audience=audience,
        verdict=record.verdict,
        headline=headline(record),
        made=made_line(record),
        answers=answers(record),
        counts=[
            (each.name, f"{each.num} of {n:,}", f"{each.num_unseen} of {m:,}", f"{meaning}; here: {each.words}")
            for each, (_, meaning) in zip(tiles(record), GRADE_KEY, strict=False)
        ],
        bound=[
            f"{record.num_recognisable} of {n:,} {noun(record, n)} are recognisable or exact. Of samples like "
            f"these the share that this attack recovers is {low:.1%} to {high:.1%} (Clopper and Pearson, 95%).",
            strongest(record),
            "The interval is about this attack and samples of this kind. A better attack may recover more. If a "
            "person has several samples, count the person as recovered if one of them is.",
        ],
        attacker=means(record).words,
        control=comparable(record).words,
        findings=findings(record) if audience != "dpo" else [],
        chapters=[
            Chapter(each.name, each.read, [_row(record, one) for one in each.criteria])
            for each in SOURCES
            if audience in each.audiences
        ],
        not_tested=[*map(sentence, _not_tested(record))],
        identity=[*identity(record)],
        settings=[*_settings(record)],
    )


def _row(record: Record, criterion: Criterion) -> Row:
    found = criterion.answer(record)
    return Row(criterion.section, criterion.question, found.status, clean(found.words), found.fields)


def _not_tested(record: Record) -> Iterator[str]:
    yield from left_out(record)
    yield from NOT_COVERED
    yield from TESTED_NOT
    yield from (f"{clean(each.name)}: {clean(each.why)}" for each in record.surfaces_left)
    if record.file.num_rest:
        yield f"{record.file.num_rest:,} entries of the file, which were searched for samples but not attacked"


def _settings(record: Record) -> Iterator[tuple[str, str]]:
    yield "policy", record.policy.rule
    yield (
        "attack",
        f"{record.attack['method']}, seed {record.attack['seed']}, {record.num_candidates:,} candidates",
    )
    yield "surfaces", "; ".join(f"{each.name}: {each.status}" for each in record.surfaces) or "none"
    yield "seconds", ", ".join(f"{name} {value:.1f}" for name, value in record.seconds.items())
    yield "versions", ", ".join(f"{name} {value}" for name, value in record.versions.items())
    repeats = "unfit audit --from audit.json --out again" if record.repeat else "made in Python from arrays"
    yield "repeat", repeats


# Files ----------------------------------------------------------------------------------------------------------


def rendered(record: Record, audience: Audience, suffix: str, pairs: bytes | None = None) -> bytes:
    """The report as the content of a file with this suffix; `pairs` is a PNG for the PDF."""
    found = pack(record, audience)
    if suffix == ".json":
        return as_json(dataclasses.asdict(found)).encode()
    if suffix == ".md":
        return markdown(found).encode()
    if suffix == ".pdf":
        return pdf(found, record.date, pairs)
    raise UsageError(
        f"a report is a file that ends in {', '.join(SUFFIXES)}, not {suffix or 'without a suffix'!r}"
    )


def best_pairs(record: Record, arrays: Arrays) -> bytes:
    """The most similar pairs as a PNG, for a report that may show training data."""
    if record.redacted or not shows_images(arrays):
        why = "it is redacted" if record.redacted else "its samples are not images"
        raise UsageError(f"this audit has no images to show: {why}; leave out --images")
    file = BytesIO()
    plots.pairs(arrays).save(file, "png", optimize=True)
    return file.getvalue()


def pdf(found: Pack, date: str | None = None, pairs: bytes | None = None) -> bytes:
    """Tagged and self-contained (PDF/UA-1): the compiler refuses what a screen reader could not read.

    The words go in as data, never as markup, so nothing in a record can change the document.
    """
    try:
        import typst
    except ImportError as error:
        raise needs("typst", "report", "a report as PDF") from error
    when = datetime.fromisoformat(date).astimezone(UTC) if date else datetime(1970, 1, 1, tzinfo=UTC)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "report.typ")
        source.write_text(files("unfit.auditor.report").joinpath("pack.typ").read_text("utf-8"), "utf-8")
        content = dataclasses.asdict(found) | {"pairs": pairs is not None}
        Path(folder, "report.json").write_text(json.dumps(content), "utf-8")
        if pairs is not None:
            Path(folder, "pairs.png").write_bytes(pairs)
        made = typst.compile(
            str(source),
            root=folder,
            format="pdf",
            pdf_standards=["ua-1"],
            ignore_system_fonts=True,
            timestamp=when,
        )
    assert isinstance(made, bytes)
    return made


def markdown(found: Pack) -> str:
    lines = [
        f"# {found.title}",
        "",
        f"**{found.verdict.capitalize()}.** {_md(found.headline)}",
        "",
        _md(found.made),
        "",
    ]
    for question, texts in found.answers:
        lines += [f"**{question}**", "", *(f"- {_md(each)}" for each in texts), ""]
    lines += [
        "## What was counted",
        "",
        *_table(("grade", "training", "unseen, the control", "what it means"), found.counts),
    ]
    lines += ["## The attacker and the control", "", _md(found.attacker), "", _md(found.control), ""]
    lines += ["## A bound for each person", "", *(f"- {_md(each)}" for each in found.bound), ""]
    if found.findings:
        pairs = [(each.finding, each.recommendation) for each in found.findings]
        lines += ["## Findings and recommendations", "", *_table(("finding", "recommendation"), pairs)]
    for chapter in found.chapters:
        rows = [(r.section, r.question, f"{r.status}: {r.answer}", r.fields) for r in chapter.rows]
        lines += [f"## {_md(chapter.source)}", "", f"*{_md(chapter.read)}*", ""]
        lines += _table(("section", "question", "answer", "in audit.json"), rows)
    lines += ["## What was not tested", "", *(f"- {_md(each)}" for each in found.not_tested), ""]
    identity = [(name, words, digest and f"SHA-256 {digest}") for name, words, digest in found.identity]
    lines += [
        "## What was audited",
        "",
        *_table(("", "", ""), identity),
        *_table(("setting", "value"), found.settings),
    ]
    lines += [
        "## Signature",
        "",
        *_table(("name", "role", "decision", "date", "signature"), [("", "", "", "", "")]),
    ]
    return "\n".join([*lines, f"*{found.limits}*", ""])


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    body = [f"| {' | '.join(map(_md, row))} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *body, ""]


def _md(text: str) -> str:
    """Text of a record as text: Markdown's signs are escaped, outside of commands in pairs of backticks."""
    parts = clean(text).replace("|", "\\|").split("`")
    if len(parts) % 2 == 0:  # one of them has no partner
        parts = ["\\`".join(parts)]
    return "`".join(part if i % 2 else re.sub(r"[<>\[\]*_#]", r"\\\g<0>", part) for i, part in enumerate(parts))
