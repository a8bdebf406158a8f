"""An audit as a notebook shows it: the decision, a sentence, the best pairs."""

from __future__ import annotations

from html import escape

from unfit.auditor.record import Record
from unfit.auditor.report import plots
from unfit.auditor.report.page import Arrays, headline, shows_pictures
from unfit.base.pictures import embedded


def picture(record: Record, arrays: Arrays) -> str:
    """A few lines of HTML without scripts or styles of their own: notebooks have theirs."""
    counts = (
        f"recognisable: {record.num_recognisable} of {record.num_samples} training samples and "
        f"{record.num_recognisable_unseen} of {record.num_unseen} unseen ones (similarity above "
        f"{record.recognisable:.2f}); a trace or more: {record.num_recovered} and {record.num_recovered_unseen} "
        f"(above {record.threshold:.2f})"
    )
    lines = [f"<p><b>{record.verdict}</b>: {escape(headline(record))}</p>", f"<p>{counts}</p>"]
    if shows_pictures(arrays):
        words = "below: training samples; above: what came nearest from the weights; best first"
        pairs = embedded(plots.pairs(arrays, rows=2, zoom=2))
        lines.append(f'<figure><img alt="{words}" src="{pairs}"><figcaption>{words}</figcaption></figure>')
    return "".join(lines)
