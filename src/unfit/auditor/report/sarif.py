"""The verdict as SARIF 2.1.0, which code scanning reads: one result for the model, none if it passes.

A result for each sample would tell the reader which samples leak, and the policy is about all of them together.
"""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import quote

from unfit.auditor.record import Record, Verdict
from unfit.auditor.report.public import MEANING, counted, made_by, model_name
from unfit.auditor.verdict import ATTACKERS, EXIT_CODES
from unfit.base.errors import clean
from unfit.base.files import as_json

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: dict[Verdict, str] = {"leak": "error", "inconclusive": "warning"}  # a pass is no finding
NAMES: dict[Verdict, str] = {"leak": "TrainingSamplesLeak", "inconclusive": "AuditInconclusive"}
HELP: dict[Verdict, str] = {
    "leak": "Do not publish these weights. The audit's page shows what came back, and says who could get it; "
    "docs/defences.md says what protects the next ones.",
    "inconclusive": "Read the reasons in the audit's page: more unseen samples, the weights that training started "
    "from, or a longer attack may decide it.",
}


def sarif(record: Record) -> str:
    """A log of one run. Rules and fingerprints stay the same from audit to audit, so alerts do too."""
    name = quote(model_name(record))
    results = [_result(record, name)] if record.verdict in LEVELS else []
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
    rule = f"unfit/{record.verdict}"
    words = f"{MEANING[record.verdict]} {counted(record)}; against {ATTACKERS[record.attacker]}."
    place = {
        "artifactLocation": {"uri": name, "index": 0},
        "region": {"startLine": 1},  # weights have no lines, but GitHub shows no result without one
    }
    return {
        "ruleId": rule,
        "ruleIndex": [*LEVELS].index(record.verdict),
        "level": LEVELS[record.verdict],
        "message": {"text": words},
        "locations": [{"physicalLocation": place}],
        # the only one that GitHub looks at; rule and model make it, so the alert stays until a model is better
        "partialFingerprints": {"primaryLocationLineHash": f"{_digest(rule, name)}:1"},
        "properties": {"policy": record.policy.rule, "attacker": record.attacker},
    }


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
