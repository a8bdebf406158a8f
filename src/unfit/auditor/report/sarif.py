"""The verdict as SARIF 2.1.0, which code scanning reads: one result for the model, none if it passes.

What a policy accepts is a result that is suppressed.

A result for each sample would tell the reader which samples leak, and the policy is about all of them together.
"""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import quote

from unfit.auditor.record import Record, Verdict
from unfit.auditor.report.public import MEANING, counted, made_by, meaning, model_name
from unfit.auditor.verdict import ATTACKERS, EXIT_CODES
from unfit.base.errors import clean
from unfit.base.files import as_json

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: dict[Verdict, str] = {"leak": "error", "inconclusive": "warning"}  # a pass is no finding
NAMES: dict[Verdict, str] = {"leak": "TrainingSamplesLeak", "inconclusive": "AuditInconclusive"}
HELP: dict[Verdict, str] = {
    "leak": "Do not publish this file. The page of the audit shows what was recovered, what an attacker needs, "
    "and what to do before the next training.",
    "inconclusive": "Do not publish this file yet. The page of the audit has the reasons, and what would decide: "
    "more unseen samples, the initial weights, or a longer attack, say.",
}


def sarif(record: Record) -> str:
    """A log of one run. Rules and fingerprints stay the same from audit to audit, so alerts do too."""
    name = quote(model_name(record))
    finding = record.verdict in LEVELS or record.is_accepted
    results = [_result(record, name)] if finding else []
    invocation = {"executionSuccessful": True, "exitCode": EXIT_CODES[record.verdict]}
    run = {
        "tool": {"driver": {"name": "unfit", "version": made_by(record), "rules": [*map(_rule, LEVELS)]}},
        "invocations": [invocation],
        "artifacts": [{"location": {"uri": name}, "properties": {"weightsSha256": clean(record.target.sha256)}}],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    return as_json({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(verdict: Verdict) -> dict[str, Any]:
    return {
        "id": f"unfit/{verdict}",
        "name": NAMES[verdict],
        "shortDescription": {"text": MEANING[verdict]},
        "help": {"text": HELP[verdict]},
        "defaultConfiguration": {"level": LEVELS[verdict]},
        "properties": {"tags": ["privacy", "security"]},
    }


def _result(record: Record, name: str) -> dict[str, Any]:
    """What the policy accepts is a finding that was suppressed, with the reason for it."""
    verdict: Verdict = "inconclusive" if record.is_accepted else record.verdict
    rule, accepted = f"unfit/{verdict}", f"the policy accepts {', '.join(record.codes)}"
    suppressed = [{"kind": "external", "status": "accepted", "justification": accepted}]
    words = f"{meaning(record)} {counted(record)}; against {ATTACKERS[record.attacker]}."
    place = {
        "artifactLocation": {"uri": name, "index": 0},
        "region": {"startLine": 1},  # weights have no lines, but GitHub shows no result without one
    }
    return {
        "ruleId": rule,
        "ruleIndex": [*LEVELS].index(verdict),
        "level": LEVELS[verdict],
        "message": {"text": words},
        "locations": [{"physicalLocation": place}],
        # the only one that GitHub looks at; rule and model make it, so the alert stays until a model is better
        "partialFingerprints": {"primaryLocationLineHash": f"{_digest(rule, name)}:1"},
        "properties": {"policy": record.policy.rule, "attacker": record.attacker, "codes": record.codes},
        **({"suppressions": suppressed} if record.is_accepted else {}),
    }


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
