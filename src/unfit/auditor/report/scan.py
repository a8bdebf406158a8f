"""A scan as text, a page, SARIF and JUnit."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from markupsafe import Markup, escape

from unfit.auditor.report.sarif import SCHEMA
from unfit.auditor.scan.findings import Finding, FolderRecord, Outcome, ScanRecord
from unfit.auditor.scan.known import Severity
from unfit.base.errors import clean
from unfit.base.files import as_json

Found = ScanRecord | FolderRecord
LEVELS: dict[Severity, str] = {"high": "error", "medium": "warning", "low": "note", "note": "note"}
HEADLINES: dict[Outcome, str] = {
    "found": "Rows, words or values of training samples stand in it.",
    "nothing found": "No rows, words or values of training samples were found in it.",
    "incomplete": "Not all of it could be read or compared: treat it as not cleared.",
}
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.4rem .6rem;"
    "border-bottom:1px solid #ccc;overflow-wrap:anywhere}.high{color:#a00;font-weight:600}"
)


def files_of(found: Found) -> tuple[ScanRecord, ...]:
    """One record for each file."""
    return (found,) if isinstance(found, ScanRecord) else found.files


def failed_of(found: Found) -> dict[str, str]:
    """Files that could not be read."""
    return {} if isinstance(found, ScanRecord) else found.failed


def text(found: Found) -> str:
    """What the command prints."""
    if isinstance(found, ScanRecord):
        return "\n".join([f"{found.file}: {HEADLINES[found.outcome]}", *_lines(found)])
    rows = [f"{each.outcome:<13}  {each.file}{_worst(each)}" for each in found.files]
    rows += [f"{'not read':<13}  {name}: {why}" for name, why in found.failed.items()]
    total = sum(each.outcome == "found" for each in found.files)
    return "\n".join([*rows, f"{len(rows)} files; samples stand in {total} of them"])


def _worst(record: ScanRecord) -> str:
    first = next((each for each in record.findings if each.is_private), None)
    return f": {first.path}, {first.words}" if first else ""


def _lines(record: ScanRecord) -> list[str]:
    lines = []
    for each in record.findings:
        owner = f" ({each.owner.rpartition('.')[2]})" if each.owner else ""
        more = f" and {each.num_places - 1} more" if each.num_places > 1 else ""
        lines.append(f"  {each.severity:<6}  {each.path}{more}{owner}: {each.words}")
        if each.severity in ("high", "medium"):
            example = f" Example: {each.example}" if each.example else ""
            lines.append(f"          purpose: {each.purpose}; remedy: {each.remedy}.{example}")
    return [*lines, *(f"  not seen  {each}" for each in record.unread)]


def sarif(found: Found) -> str:
    """A log of one run, with a result for each finding of private samples, or of what may be some."""
    results = [
        _result(each, finding) for each in files_of(found) for finding in each.findings if _is_told(finding)
    ]
    rules = sorted({each["ruleId"] for each in results})
    run = {
        "tool": {
            "driver": {"name": "unfit", "version": version("unfit"), "rules": [{"id": rule} for rule in rules]}
        },
        "invocations": [{"executionSuccessful": not failed_of(found), "exitCode": found.exit_code}],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    return as_json({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _is_told(finding: Finding) -> bool:
    return finding.is_private or finding.severity in ("high", "medium")


def _result(record: ScanRecord, finding: Finding) -> dict[str, Any]:
    rule = f"unfit/scan/{finding.holds.replace(' ', '-')}"
    words = f"{finding.path}: {finding.words}. Purpose: {finding.purpose}. Remedy: {finding.remedy}."
    digest = hashlib.sha256(f"{rule}\0{record.file}\0{finding.path}".encode()).hexdigest()[:16]
    place = {"artifactLocation": {"uri": quote(record.file)}, "region": {"startLine": 1}}
    return {
        "ruleId": rule,
        "level": LEVELS[finding.severity] if not finding.is_private else "error",
        "message": {"text": clean(words)},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"primaryLocationLineHash": f"{digest}:1"},
    }


def junit(found: Found) -> str:
    """One test for each file: private samples are a failure, what was not read an error."""
    files, failed = files_of(found), failed_of(found)
    leaks = sum(each.outcome == "found" for each in files)
    unsure = sum(each.outcome == "incomplete" for each in files) + len(failed)
    counts = {"tests": len(files) + len(failed), "failures": leaks, "errors": unsure, "skipped": 0}
    attributes = {"name": "unfit scan", **{key: str(each) for key, each in counts.items()}}
    root = ElementTree.Element("testsuite", attributes)
    for each in files:
        case = ElementTree.SubElement(root, "testcase", classname="unfit.scan", name=clean(each.file))
        case.set("time", f"{each.seconds:.3f}")
        if each.outcome != "nothing found":
            kind = "failure" if each.outcome == "found" else "error"
            words = clean("; ".join(_lines(each)))
            ElementTree.SubElement(case, kind, type=each.outcome, message=HEADLINES[each.outcome]).text = words
    for name, why in failed.items():
        case = ElementTree.SubElement(root, "testcase", classname="unfit.scan", name=clean(name))
        ElementTree.SubElement(case, "error", type="not read", message=clean(why))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def page(found: Found) -> str:
    """One self-contained page, without a script."""
    parts = [_section(each) for each in files_of(found)]
    parts += [
        Markup("<h2>{}</h2><p>Not read: {}</p>").format(clean(k), clean(v)) for k, v in failed_of(found).items()
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return Markup(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>unfit scan</title>'
        '<meta http-equiv="Content-Security-Policy" content="{}"><style>{}</style></head>'
        "<body><main><h1>{}</h1>{}</main></body></html>\n"
    ).format(policy, Markup(STYLE), HEADLINES[found.outcome], Markup("").join(parts))


def _section(record: ScanRecord) -> Markup:
    rows = Markup("").join(
        Markup(
            '<tr><td class="{}">{}</td><td><code>{}</code><br>{}</td><td>{}{}</td><td>{}</td><td>{}</td></tr>'
        ).format(
            each.severity,
            each.severity,
            clean(each.path),
            clean(each.owner),
            clean(each.words),
            Markup("<br><code>{}</code>").format(each.example) if each.example else "",
            each.purpose,
            each.remedy,
        )
        for each in record.findings
    )
    unread = Markup("").join(Markup("<li>{}</li>").format(clean(each)) for each in record.unread)
    head = Markup("<tr><th>Severity</th><th>Where</th><th>What</th><th>Purpose</th><th>Remedy</th></tr>")
    return Markup("<h2>{}</h2><p>{}</p><table>{}{}</table>{}").format(
        clean(record.file),
        HEADLINES[record.outcome],
        head,
        rows,
        Markup("<h3>Not seen</h3><ul>{}</ul>").format(unread) if unread else escape(""),
    )
