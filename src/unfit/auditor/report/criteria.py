"""What regulators and output checkers ask, each with the field of an audit that answers it, or *not tested*.

The questions are in our own words. `read` says how much of a source could be read when this was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from unfit.auditor.grades import Audience, rank
from unfit.auditor.probability import interval
from unfit.auditor.record import Record
from unfit.auditor.report.public import num_exact_unseen
from unfit.auditor.report.words import HAS, control, noun, sentence
from unfit.auditor.verdict import how_often

Status = Literal["answered", "partly answered", "not tested"]


@dataclass(frozen=True)
class Answered:
    """What an audit says about a question, and where `audit.json` has it."""

    status: Status
    words: str
    fields: str = ""


NOT_TESTED = "An audit by unfit does not test this."


@dataclass(frozen=True)
class Criterion:
    section: str
    question: str
    answer: Callable[[Record], Answered]


@dataclass(frozen=True)
class Source:
    name: str
    read: str
    audiences: Sequence[Audience]
    criteria: Sequence[Criterion]


def untested(words: str = NOT_TESTED) -> Callable[[Record], Answered]:
    return lambda _: Answered("not tested", words)


# Answers --------------------------------------------------------------------------------------------------------


def reconstruction(record: Record) -> Answered:
    n, many = record.num_samples, noun(record, record.num_samples)
    if not record.num_candidates and not record.file.num_stored:
        return Answered("not tested", "The attack gave no candidates, so nothing was searched for.", "surfaces")
    m = record.num_unseen
    return Answered(
        "partly answered" if record.verdict == "inconclusive" or record.is_accepted else "answered",
        f"{record.num_recognisable} of {n} training {many} can be recovered recognisably or exactly, "
        f"{record.num_exact} of them exactly (unseen, the control: {record.num_recognisable_unseen} and "
        f"{num_exact_unseen(record)} of {m}). The attacker: {HAS[record.attacker]}.",
        "num_recognisable, num_exact and their unseen counts; attacker; surfaces",
    )


def stored(record: Record) -> Answered:
    file = record.file
    if not file.num_items:
        return Answered("not tested", "The weights were given without their file.", "file")
    return Answered(
        "answered",
        f"{file.num_items:,} tensors, lists of numbers and texts of the file were searched. "
        f"{file.num_stored} of {record.num_samples} training samples are stored in it unchanged, and "
        f"{file.num_stored_unseen} of {record.num_unseen} unseen samples.",
        "file.num_items, file.num_stored, file.num_stored_unseen",
    )


def membership(record: Record) -> Answered:
    check = record.signal_check
    knows = (
        ""
        if check.knows_p_value is None
        else " The outputs are better for the training samples than for unseen ones: chance alone would do this "
        f"{how_often(check.knows_p_value)}."
    )
    return Answered(
        "partly answered",
        f"{record.num_recovered} of {record.num_samples} training samples leave a trace in what was recovered, "
        f"{record.num_recovered_unseen} of {record.num_unseen} unseen samples do. With the samples known, the "
        f"weights react more to {check.num_held} of {check.num_asked}: chance alone would do this "
        f"{how_often(check.p_value)}.{knows} Attacks with shadow models were not made.",
        "num_recovered, signal_check",
    )


def means(record: Record) -> Answered:
    left = [f"{each.name} ({each.why})" for each in record.surfaces_left]
    base = "was given" if record.hashes.base else "was not given; of a fine-tuned model it must be"
    not_attacked = f" Not attacked: {'; '.join(left)}." if left else ""
    names = ", ".join(each.name for each in record.surfaces) or "none"
    return Answered(
        "partly answered",
        f"The attacker of this audit: {HAS[record.attacker]}. Attacked surfaces: {names}.{not_attacked} The base "
        f"model {base}. Attacks that are not known yet, and information from elsewhere, are outside an audit.",
        "attacker, surfaces, surfaces_left, hashes.base",
    )


def each_person(record: Record) -> Answered:
    low, high = bound(record)
    return Answered(
        "partly answered",
        f"{strongest(record)} Of samples like these, this attack recovers at most {high:.1%}, with 97.5% "
        f"confidence (interval from {low:.1%}). A person with several samples is at risk by each of them.",
        "samples, num_recognisable, num_samples",
    )


def comparable(record: Record) -> Answered:
    same = record.comparability.comparable
    words = "are comparable" if same else "differ, so that counts of both must not be compared"
    return Answered("answered", f"{control(record)} Private and unseen samples {words}.", "comparability, p_value")


def documented(record: Record) -> Answered:
    here = record.repeat and not record.redacted
    can = "can be repeated from its record" if here else "cannot be repeated from this copy"
    return Answered(
        "answered",
        f"Settings, versions, seeds and hashes of model, data and base are recorded, and the audit {can}.",
        "attack, versions, target.sha256, hashes, repeat",
    )


# Numbers --------------------------------------------------------------------------------------------------------


def bound(record: Record) -> tuple[float, float]:
    """Clopper and Pearson's 95% interval of the share of samples that the attack recovers recognisably."""
    return interval(record.num_recognisable, record.num_samples)


def strongest(record: Record) -> str:
    """The sample that is recovered best, by grade first: a mean over samples hides it."""
    best = max(record.samples, key=lambda each: (rank(each.grade), each.similarity), default=None)
    if best is None or not (record.num_candidates or best.stored):
        return "No single case can be named, because nothing was searched for."
    which = "a sample whose position was removed" if record.redacted else f"sample {best.index}"
    average = ", the average of its class and grade" if record.redacted else ""
    grade = best.grade or "not recovered"
    return f"The strongest single case is {which}: {grade}, similarity {best.similarity:.2f}{average}."


# Sources --------------------------------------------------------------------------------------------------------

SOURCES: Final[tuple[Source, ...]] = (
    Source(
        "European Data Protection Board, Opinion 28/2024 on AI models, adopted on 17 December 2024",
        "The executive summary was read; the numbered paragraphs were not checked against the original.",
        ("dpo", "auditor"),
        (
            Criterion(
                "Executive summary, first question",
                "How likely is it that personal data of people in the training set are extracted directly from "
                "the model?",
                reconstruction,
            ),
            Criterion(
                "Executive summary, first question",
                "How likely is it that such data are obtained by queries, intended or not?",
                untested("Queries to the model were not made: an audit attacks the file."),
            ),
            Criterion(
                "Executive summary, first question",
                "Were all means considered that someone is reasonably likely to use?",
                means,
            ),
            Criterion(
                "First question: anonymity", "Does this hold for each person, not only on average?", each_person
            ),
            Criterion(
                "First question: tests and resistance to attacks",
                "Was membership inference tested?",
                membership,
            ),
            Criterion(
                "First question: tests and resistance to attacks", "Was attribute inference tested?", untested()
            ),
            Criterion("First question: documentation", "Are the tests documented?", documented),
        ),
    ),
    Source(
        "CNIL, recommendations on AI: the status of an AI model under the GDPR, published on 22 July 2025",
        "The text itself could not be read, only summaries by others.",
        ("dpo", "auditor"),
        (
            Criterion(
                "Analysis of resistance to attacks", "Was extraction of training data tested?", reconstruction
            ),
            Criterion("Analysis of resistance to attacks", "Was membership inference tested?", membership),
            Criterion("Analysis of resistance to attacks", "Which attacker and which means were assumed?", means),
            Criterion("Analysis of resistance to attacks", "Were the tests documented?", documented),
        ),
    ),
    Source(
        "Information Commissioner’s Office (UK), Guidance on AI and data protection: how should we assess "
        "security and data minimisation in AI?",
        "The beginning and the contents of the page were read.",
        ("dpo", "tre", "auditor"),
        (
            Criterion(
                "What types of privacy attacks apply to AI models?",
                "Does the file contain training data by design, as support vector machines and k-nearest "
                "neighbours do?",
                stored,
            ),
            Criterion("What types of privacy attacks apply to AI models?", "Model inversion", reconstruction),
            Criterion("What types of privacy attacks apply to AI models?", "Membership inference", membership),
        ),
    ),
    Source(
        "NIST AI 100-2 e2025, Adversarial Machine Learning: taxonomy and terminology, March 2025",
        "The contents of the edition of January 2024 were read, and summaries of the edition of 2025.",
        ("tre", "auditor"),
        (
            Criterion(
                "Privacy attacks: data reconstruction", "Can training data be reconstructed?", reconstruction
            ),
            Criterion("Privacy attacks: membership inference", "Can membership be inferred?", membership),
            Criterion(
                "Privacy attacks: property inference", "Can properties of the whole set be inferred?", untested()
            ),
            Criterion(
                "Privacy attacks: model extraction",
                "Can the model be extracted by queries?",
                untested("It does not apply to a published file: the attacker has the model."),
            ),
        ),
    ),
    Source(
        "GRAIMATTER Green Paper (Jefferson and others, 2022): disclosure control of trained models from trusted "
        "research environments",
        "The abstract was read.",
        ("tre", "auditor"),
        (
            Criterion("Models that hold data", "Does the file hold records unchanged?", stored),
            Criterion("Attacks by simulation", "What can be reconstructed, and by whom?", reconstruction),
            Criterion("Attacks by simulation", "Can membership be inferred?", membership),
            Criterion("Attacks by simulation", "Is there a control, and are both sets comparable?", comparable),
        ),
    ),
)


# Recommendations of an output checker ---------------------------------------------------------------------------

Recommendation = Literal["do not allow release", "allow after review"]
DENY: Final = "do not allow release"
REVIEW: Final = "allow after review"


@dataclass(frozen=True)
class Finding:
    finding: str
    recommendation: Recommendation


def findings(record: Record) -> list[Finding]:
    """A recommendation for each finding. None says *allow*: what was not tested is for people to weigh."""
    passed = record.verdict == "pass" and not record.is_accepted  # what a policy accepts is still unknown
    unless_pass: Recommendation = REVIEW if passed else DENY
    rows = [Finding(f"Verdict: {record.verdict}. {' '.join(map(sentence, record.reasons))}", unless_pass)]
    if record.file.num_stored:
        rows.append(Finding(stored(record).words, DENY))
    if record.num_recognisable:
        rows.append(Finding(reconstruction(record).words, unless_pass))
    if record.num_recovered:
        rows.append(Finding(membership(record).words, unless_pass))
    rows += [Finding(f"Not attacked: {each.name}, because {each.why}.", DENY) for each in record.surfaces_left]
    if record.file.num_rest:
        rows.append(Finding(f"{record.file.num_rest:,} entries of the file were searched, not attacked.", REVIEW))
    if record.hashes.base is None:
        rows.append(Finding("No base model was given. A fine-tuned model must be audited with its base.", REVIEW))
    return rows
