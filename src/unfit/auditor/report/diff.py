"""The page of `unfit diff`: two audits of the same samples, side by side, from their records alone."""

from __future__ import annotations

from unfit.auditor.compare import compare
from unfit.auditor.record import Record
from unfit.auditor.report.page import hashed, source, template
from unfit.auditor.report.words import KEEP, headline, identity, made_line, sentence, tiles

Row = tuple[str, str, str]


def page(old: Record, new: Record) -> str:
    """One self-contained page, without a script."""
    difference, style = compare(old, new), source("page.css")
    return template("diff.html.j2").render(
        old=old,
        new=new,
        headline=_headline(len(difference.regressions)),
        regressions=[sentence(each) for each in difference.regressions],
        steps=_steps(old, new, bool(difference.regressions)),
        sides=[("before", headline(old), old.verdict), ("now", headline(new), new.verdict)],
        counts=_counts(old, new),
        changes=difference.changes,
        identity=_identity(old, new),
        made=[made_line(old), made_line(new)],
        style=style,
        security=f"default-src 'none'; style-src {hashed(style)}; base-uri 'none'; form-action 'none'",
    )


def _headline(num: int) -> str:
    if not num:
        return "Nothing got worse since the last audit."
    return f"{'1 thing' if num == 1 else f'{num} things'} got worse since the last audit."


def _steps(old: Record, new: Record, is_worse: bool) -> list[str]:
    if new.verdict == "leak":
        return [KEEP, "See the advice on the page of the new audit."]
    if new.verdict == "inconclusive":
        return ["Treat the model as not cleared. See the page of the new audit for what would decide it."]
    allowed = f"The policy of the new audit allows you to publish this file: {new.policy.rule}."
    return ["Look at what got worse first.", allowed] if is_worse else [allowed]


def _counts(old: Record, new: Record) -> list[Row]:
    """Each grade with its control, before and now."""
    return _joined(_counted(old), _counted(new), "not searched")


def _counted(record: Record) -> dict[str, str]:
    n, m = record.num_samples, record.num_unseen
    return {each.name: f"{each.num} of {n} (unseen: {each.num_unseen} of {m:,})" for each in tiles(record)}


def _identity(old: Record, new: Record) -> list[Row]:
    before, now = (
        {name: "; ".join(filter(None, (words, digest))) for name, words, digest in identity(record)}
        for record in (old, new)
    )
    return _joined(before, now, "")


def _joined(before: dict[str, str], now: dict[str, str], neither: str) -> list[Row]:
    return [(name, before.get(name, neither), now.get(name, neither)) for name in dict.fromkeys([*before, *now])]
