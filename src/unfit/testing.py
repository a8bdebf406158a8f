"""For test suites: a model that gives training samples away fails."""

from __future__ import annotations

from typing import Any

from torch import nn

from unfit.auditor.arrays import Arrays
from unfit.auditor.audit import Audit, audit
from unfit.auditor.report.public import counted
from unfit.auditor.report.scan import text
from unfit.auditor.scan.findings import ScanRecord
from unfit.auditor.scan.scan import scan
from unfit.auditor.verdict import ATTACKERS
from unfit.base.modules import Estimator
from unfit.base.target import Target


def assert_no_leak(
    model: Target | nn.Module | Estimator, private: Arrays, unseen: Arrays, **options: Any
) -> Audit:
    """Fail unless an audit passes; what it could not decide does not pass either.

    `options` are those of `unfit.audit`, such as `base`, `attack` and `policy`. The message has counts and the
    audit's reasons, but no sample.
    """
    __tracebackhide__ = True  # pytest prints the arguments of the frames that it shows, and these are the samples
    found = audit(model, private, unseen, **{"progress": False, **options})
    if found.verdict != "pass":
        raise AssertionError(_message(found))
    return found


def assert_no_samples(model: Any, private: Arrays | None = None, unseen: Arrays | None = None) -> ScanRecord:
    """Fail if rows, words or values of the private samples stand in a file or model, or if not all could be read.

    No attack is made: it takes a second, and works for every estimator. The message has no sample.
    """
    __tracebackhide__ = True  # as above
    found = scan(model, private, unseen)
    if found.outcome != "nothing found":
        raise AssertionError(text(found))
    return found


def _message(found: Audit) -> str:
    record = found.record
    lines = [
        f"{record.verdict}: {counted(record)}",
        *record.reasons,
        f"policy: {record.policy.rule}",
        f"attacker: {ATTACKERS[record.attacker]}",
    ]
    return "\n- ".join(lines)
