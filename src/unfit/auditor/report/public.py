"""What may be said where anyone reads it: counts, the rule, the attacker.

The reasons of an inconclusive audit are left out. They may quote a mean of the private samples, or a class, which
may be somebody's name.
"""

from __future__ import annotations

import os.path

from unfit.auditor.record import Record, Verdict
from unfit.base.errors import clean

MEANING: dict[Verdict, str] = {
    "pass": "No more training samples came back than the policy allows.",
    "leak": "The file gives training samples away.",
    "inconclusive": "The audit could not decide, so the model must not pass; the audit itself says why.",
}


def counted(record: Record) -> str:
    """What came back, beside its control."""
    n, m = record.num_samples, record.num_unseen
    return (
        f"{record.num_proven} of {n} training samples come back exactly, "
        f"{record.num_recognisable} recognisably or exactly (unseen: {record.num_recognisable_unseen} of {m}), "
        f"{record.num_recovered} leave a trace or more (unseen: {record.num_recovered_unseen} of {m})"
    )


def model_name(record: Record) -> str:
    """The name of the model's or the update's file, without where it is; an audit made from arrays has none."""
    path = record.repeat and (record.repeat.target or record.repeat.update)
    return clean(os.path.basename(path)) if path else "model"


def made_by(record: Record) -> str:
    """The version of `unfit`."""
    return clean(record.versions.get("unfit", "unknown"))


def leaked_share(record: Record) -> float | None:
    """The share of the training samples that come back, of the grade that the policy counts or a better one.

    What as many unseen samples would give is subtracted. None: an inconclusive audit measures nothing.
    """
    if record.verdict == "inconclusive":
        return None
    unseen = {
        "trace": record.num_recovered_unseen,
        "recognisable": record.num_recognisable_unseen,
        "exact": 0,  # proofs are not a matter of likeness
    }[record.policy.fail_on]
    return max(0.0, record.num_graded(record.policy.fail_on) / record.num_samples - unseen / record.num_unseen)
