"""An audit as a notebook shows it: the decision, the counts beside their control, the best pairs."""

from __future__ import annotations

from unfit.auditor.record import Record, Verdict
from unfit.auditor.report import plots
from unfit.auditor.report.page import Arrays, headline, shows_pictures
from unfit.base.notebook import AMBER, GREEN, RED, bullets, card, figures, lead, picture
from unfit.base.pictures import embedded

COLOURS: dict[Verdict, str] = {"leak": RED, "pass": GREEN, "inconclusive": AMBER}
PAIRS = "below: training samples; above: what came nearest from the weights; best first"


def show(record: Record, arrays: Arrays) -> str:
    """HTML without scripts; `to_html` has the rest."""
    parts = [
        lead(record.verdict, COLOURS[record.verdict], f"audit of {record.target.architecture}", headline(record)),
        figures(_counts(record)),
    ]
    if record.verdict == "inconclusive":
        parts.append(bullets(record.reasons))
    if shows_pictures(arrays):
        parts.append(picture(embedded(plots.pairs(arrays, rows=2, zoom=2)), PAIRS))
    return card(*parts)


def _counts(record: Record) -> list[tuple[str, int, int, str]]:
    n, unseen = record.num_samples, record.num_unseen
    return [
        ("Exact", record.num_proven, n, "proven from the weights alone"),
        (
            "Recognisable",
            record.num_recognisable,
            n,
            f"similarity above {record.recognisable:.2f}; unseen: {record.num_recognisable_unseen} of {unseen}",
        ),
        (
            "A trace or more",
            record.num_recovered,
            n,
            f"similarity above {record.threshold:.2f}; unseen: {record.num_recovered_unseen} of {unseen}",
        ),
    ]
