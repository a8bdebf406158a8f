"""A scan as text, a page, SARIF and JUnit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from unfit.auditor.report.page import hashed, source, template
from unfit.auditor.report.sarif import SCHEMA
from unfit.auditor.report.words import KEEP
from unfit.auditor.scan.findings import Finding, FolderRecord, Outcome, ScanRecord
from unfit.auditor.scan.known import Severity
from unfit.base.errors import clean
from unfit.base.files import as_json

Found = ScanRecord | FolderRecord
LEVELS: dict[Severity, str] = {"high": "error", "medium": "warning", "low": "note", "note": "note"}
COLOURS: dict[Outcome, str] = {"found": "leak", "nothing found": "pass", "incomplete": "inconclusive"}
MOST_REMEDIES = 3  # in the answer at the top


def files_of(found: Found) -> tuple[ScanRecord, ...]:
    """One record for each file."""
    return (found,) if isinstance(found, ScanRecord) else found.files


def failed_of(found: Found) -> dict[str, str]:
    """Files that could not be read."""
    return {} if isinstance(found, ScanRecord) else found.failed


def text(found: Found) -> str:
    """What the command prints."""
    if isinstance(found, ScanRecord):
        keep = f" {KEEP}" if found.outcome == "found" else ""
        return "\n".join([f"{clean(found.file)}: {found.headline}{keep}", *_lines(found)])
    rows = [f"{each.outcome:<13}  {each.file}{_worst(each)}" for each in found.files]
    rows += [f"{'not read':<13}  {name}: {why}" for name, why in found.failed.items()]
    return "\n".join([*rows, found.headline])


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
    return [*lines, *(f"  open    {each}" for each in record.unread)]


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
            ElementTree.SubElement(case, kind, type=each.outcome, message=each.headline).text = words
    for name, why in failed.items():
        case = ElementTree.SubElement(root, "testcase", classname="unfit.scan", name=clean(name))
        ElementTree.SubElement(case, "error", type="not read", message=clean(why))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def page(found: Found) -> str:
    """One self-contained page, without a script."""
    files, style = files_of(found), source("page.css")
    compared = next((each for each in files if each.num_private is not None), None)
    return template("scan.html.j2").render(
        outcome=found.outcome,
        headline=found.headline,
        name=found.file if isinstance(found, ScanRecord) else found.folder,
        answers=answers(found),
        files=files,
        many=not isinstance(found, ScanRecord),
        failed=failed_of(found),
        compared=compared is not None,
        controlled=compared is not None and compared.num_unseen is not None,
        colours=COLOURS,
        made=made(files),
        style=style,
        security=f"default-src 'none'; style-src {hashed(style)}; base-uri 'none'; form-action 'none'",
    )


def answers(found: Found) -> list[tuple[str, list[str]]]:
    """What a reader asks first: compared with what, what now, and what a scan does not see."""
    files = files_of(found)
    leaks = [each for record in files for each in record.findings if each.is_private]
    keep = KEEP if isinstance(found, ScanRecord) else "Do not publish the files that hold samples."
    do = [f"`{each.path.replace('`', chr(39))}`: {each.remedy}." for each in leaks[:MOST_REMEDIES]]
    steps = {
        "found": [keep, *dict.fromkeys(do)],
        "incomplete": ["See what is open below, and scan again."],
        "nothing found": ["Audit the weights with `unfit audit` before you publish this file."],
    }
    return [
        ("What was it compared with?", [_compared(files)]),
        ("What should I do?", steps[found.outcome]),
        ("What is not covered?", ["What an attack computes from the weights: that is what `unfit audit` is for."]),
    ]


def _compared(files: Sequence[ScanRecord]) -> str:
    first = next((each for each in files if each.num_private is not None), None)
    if first is None:
        return "With nothing: without data, the classes and names in the file decide."
    control = "no unseen ones" if first.num_unseen is None else f"{first.num_unseen:,} unseen ones, the control"
    return f"With {first.num_private:,} private samples and {control}."


def made(files: Sequence[ScanRecord]) -> str:
    """When and with what."""
    first = max((each.date for each in files), default="")
    return f"Made {f'on {first[:10]} at {first[11:16]} UTC ' if first else ''}with unfit {version('unfit')}."
