"""One self-contained page: the decision first, then the evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from unfit.audit import Audit
from unfit.report import plots

SHOWN = 45  # pairs, as in the papers


def write_report(audit: Audit, folder: Path) -> None:
    """Write `index.html` (and for images `pairs.png`) from a saved audit."""
    (folder / "index.html").write_text(page(audit), encoding="utf-8")
    if audit.record.similarity.window:
        plots.pairs(audit).save(folder / "pairs.png", optimize=True)


def page(audit: Audit) -> str:
    environment = Environment(
        loader=PackageLoader("unfit", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html.j2").render(
        audit=audit.record,
        headline=headline(audit),
        cards=_cards(audit) if audit.record.similarity.window else [],
        scatter=plots.scatter(audit),
        spectrum=plots.spectrum(audit),
    )


def headline(audit: Audit) -> str:
    """The decision in a sentence that needs no knowledge of the method."""
    record = audit.record
    if record.verdict == "leak":
        share = f"{record.num_recovered} of its {record.num_samples} training samples"
        return f"This model gives its training data away: {share} came back from the weights alone."
    if record.verdict == "pass":
        return "This attack found no more of the training data in this model's weights than chance would."
    return "This audit cannot say whether the model gives its training data away."


def _cards(audit: Audit) -> list[dict[str, Any]]:
    arrays, samples = audit.arrays, audit.record.samples
    order = arrays["similarity"].argsort(descending=True)[:SHOWN].tolist()
    return [
        {
            "reconstruction": plots.data_uri(arrays["reconstruction"][i]),
            "original": plots.data_uri(arrays["original"][i]),
            "unseen": plots.data_uri(arrays["unseen"][int(arrays["nearest_unseen"][i])]),
            "sample": samples[i],
            "class_name": audit.record.class_names[samples[i].label],
        }
        for i in order
    ]
