"""An audit as a notebook shows it: the decision, the counts with their control, the best pairs."""

from __future__ import annotations

from unfit.auditor.record import Record, Verdict
from unfit.auditor.report import plots
from unfit.auditor.report.page import Arrays, shows_images
from unfit.auditor.report.words import answers, headline, tiles
from unfit.base.images import embedded
from unfit.base.notebook import AMBER, GREEN, RED, bullets, card, figures, image, lead

COLOURS: dict[Verdict, str] = {"leak": RED, "pass": GREEN, "inconclusive": AMBER}
PAIRS = "below: training samples; above: the most similar reconstructions; best first"


def show(record: Record, arrays: Arrays) -> str:
    """HTML without scripts; `to_html` has the rest."""
    parts = [
        lead(record.verdict, COLOURS[record.verdict], f"audit of {record.target.architecture}", headline(record)),
        figures(_counts(record)),
    ]
    parts.append(bullets([f"{question} {' '.join(texts)}" for question, texts in answers(record)]))
    if shows_images(arrays):
        parts.append(image(embedded(plots.pairs(arrays, rows=2, zoom=2)), PAIRS))
    return card(*parts)


def _counts(record: Record) -> list[tuple[str, int, int, str]]:
    n, unseen = record.num_samples, record.num_unseen
    return [
        (tile.name, tile.num, n, f"unseen: {tile.num_unseen} of {unseen}; {tile.words}") for tile in tiles(record)
    ]
