"""What may be said where anyone reads it: counts, the rule, the attacker.

The reasons of an inconclusive audit are left out. They may quote a mean of the private samples, or a class, which
may be somebody's name.
"""

from __future__ import annotations

import os.path

from unfit.auditor.record import Record, Verdict
from unfit.base.errors import clean

MEANING: dict[Verdict, str] = {
    "pass": "No more training samples could be recovered than the policy allows.",
    "leak": "Training samples can be recovered from the file.",
    "inconclusive": "No verdict: the audit cannot rule out a leak. Treat the model as not cleared.",
}


def meaning(record: Record) -> str:
    """The verdict in a sentence; its codes are no secret."""
    codes = ", ".join(record.codes)
    if record.is_accepted:
        return f"The audit could not decide, and the policy accepts why: {codes}."
    return MEANING[record.verdict] + (f" Codes: {codes}." if codes else "")


def counted(record: Record) -> str:
    """What was recovered, with its control."""
    n, m = record.num_samples, record.num_unseen
    return (
        f"{record.num_exact} of {n} training samples can be recovered exactly "
        f"(unseen: {num_exact_unseen(record)} of {m}), "
        f"{record.num_recognisable} recognisably or exactly (unseen: {record.num_recognisable_unseen} of {m}), "
        f"{record.num_recovered} leave a trace or more (unseen: {record.num_recovered_unseen} of {m})"
    )


def num_exact_unseen(record: Record) -> int:
    """Proven or stored: the record does not say how many are both, so the larger count stands for the union."""
    return max(record.num_exact_unseen, record.file.num_stored_unseen)


def model_name(record: Record) -> str:
    """The name of the model's or the update's file, without where it is; an audit made from arrays has none."""
    path = record.repeat and (record.repeat.target or record.repeat.update)
    return clean(os.path.basename(path)) if path else "model"


def made_by(record: Record) -> str:
    """The version of `unfit`."""
    return clean(record.versions.get("unfit", "unknown"))


def leaked_share(record: Record) -> float | None:
    """The share of the training samples that are recovered, of the grade that the policy counts or a better one.

    The share of unseen samples is subtracted. None: an inconclusive audit measures nothing, also if its
    policy accepts that.
    """
    if record.verdict == "inconclusive" or record.is_accepted:
        return None
    unseen = {
        "trace": record.num_recovered_unseen,
        "recognisable": record.num_recognisable_unseen,
        "exact": 0,  # proofs are not a matter of likeness
    }[record.policy.fail_on]
    return max(0.0, record.num_graded(record.policy.fail_on) / record.num_samples - unseen / record.num_unseen)
