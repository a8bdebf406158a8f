"""The verdict as JUnit XML, which every build server shows."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from unfit.auditor.grades import GRADES
from unfit.auditor.record import Record, SampleRecord
from unfit.auditor.verdict import ATTACKERS
from unfit.base.errors import clean


def junit(record: Record) -> str:
    """One test for the policy, and for each class one with the number of its samples that were recovered.

    A leak is a failure, an inconclusive audit an error. The tests of classes never fail by themselves: the policy
    is about all samples together.
    """
    root = ElementTree.Element(
        "testsuite",
        name="unfit audit",
        tests=str(1 + len(record.class_names)),
        failures=str(int(record.verdict == "leak")),
        errors=str(int(record.verdict == "inconclusive")),
        skipped="0",
        time=f"{sum(record.seconds.values()):.3f}",
    )
    policy = _case(root, "policy", record.policy.rule)
    if record.codes:
        properties = ElementTree.SubElement(policy, "properties")
        for code in record.codes:
            name = "accepted" if code in record.policy.accept else "code"
            ElementTree.SubElement(properties, "property", name=name, value=code)
    policy.set("time", f"{sum(record.seconds.values()):.3f}")
    ElementTree.SubElement(policy, "system-out").text = "\n".join(
        [f"against {ATTACKERS[record.attacker]}", *(record.reasons if record.is_accepted else [])]
    )
    if record.verdict != "pass":
        kind = "failure" if record.verdict == "leak" else "error"
        words = clean("; ".join(record.reasons))  # XML has no room for control characters
        name = " ".join([record.verdict, *record.codes])
        ElementTree.SubElement(policy, kind, type=name, message=words).text = words
    for label, name in enumerate(record.class_names):
        of_class = [sample for sample in record.samples if sample.label == label]
        output = ElementTree.SubElement(_case(root, "class", name), "system-out")
        output.text = _words(of_class)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(root: ElementTree.Element, kind: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(root, "testcase", classname=f"unfit.audit.{kind}", name=clean(name))


def _words(samples: Sequence[SampleRecord]) -> str:
    grades = [sample.grade for sample in samples]
    counts = ", ".join(f"{grades.count(each)} {each}" for each in reversed(GRADES))
    return f"of {len(samples)} samples: {counts}"
