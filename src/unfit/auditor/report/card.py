"""An audit for a model's page on Hugging Face: a section of its card, and an entry for `.eval_results/`."""

from __future__ import annotations

import json
import re

from unfit.auditor.grades import GRADE_WORDS
from unfit.auditor.record import Record, Verdict
from unfit.auditor.report.public import leaked_share, made_by, meaning, num_exact_unseen
from unfit.auditor.verdict import ATTACKERS
from unfit.base.errors import UnfitError, UsageError, clean

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
LIMITS: dict[Verdict, str] = {
    "pass": "It is no proof of safety: it holds for this attack, this policy and this attacker.",
    "leak": "Other attacks may recover more.",
    "inconclusive": "It neither found a leak nor ruled one out.",
}


def card(record: Record) -> str:
    """A section in Markdown. It has counts, but no image, no number of a sample, no class and no path."""
    n, m = record.num_samples, record.num_unseen
    limits: Verdict = "inconclusive" if record.is_accepted else record.verdict
    return f"""## What can be recovered from the weights

**{record.verdict.capitalize()}.** {meaning(record)} {LIMITS[limits]}

| recovered | training samples | unseen samples, the control |
|---|---|---|
| exactly | {record.num_exact} of {n} | {num_exact_unseen(record)} of {m} |
| recognisably or exactly | {record.num_recognisable} of {n} | {record.num_recognisable_unseen} of {m} |
| a trace or more | {record.num_recovered} of {n} | {record.num_recovered_unseen} of {m} |

- policy: {record.policy.rule}
- attacker: {ATTACKERS[record.attacker]}
- attack: {_code(record.attack["method"])} of `unfit` {_code(made_by(record))}
- weights (sha256): {_code(record.target.sha256)}
"""


def _code(text: str) -> str:
    return f"`{clean(text).replace('`', '')}`"


def eval_results(record: Record, benchmark: str, task: str | None = None) -> str:
    """An entry for `.eval_results/`, as the Hub defines it: YAML, of which JSON's strings are a part."""
    if not HUB_NAME.fullmatch(benchmark):
        raise UsageError(f"`benchmark` is a data set on the Hub such as owner/name, not {benchmark!r}")
    share = leaked_share(record)
    if share is None:
        raise UnfitError("an inconclusive audit measures nothing that could be published as a result")
    fail_on = record.policy.fail_on
    notes = (
        f"share of the training samples that are {GRADE_WORDS[fail_on]}, minus the share of unseen samples; "
        f"lower is better; against {ATTACKERS[record.attacker]}; unfit {made_by(record)}"
    )
    return (
        "- dataset:\n"
        f"    id: {json.dumps(benchmark)}\n"
        f"    task_id: {json.dumps(task or fail_on)}\n"
        f"  value: {share:.4f}\n"
        f"  notes: {json.dumps(notes)}\n"
    )
