"""Compare two audits of the same samples: what changed, and what got worse."""

from __future__ import annotations

from dataclasses import dataclass

from unfit.auditor.grades import GRADE_WORDS
from unfit.auditor.record import Record, Verdict
from unfit.auditor.verdict import SIGNIFICANT
from unfit.base.errors import UnfitError

ORDER: dict[Verdict, int] = {"pass": 0, "inconclusive": 1, "leak": 2}
COMPARED = {
    "verdict": "verdict",
    "num_recovered": "trace or more",
    "num_recognisable": "recognisable or exact",
    "num_exact": "exact",
    "num_assigned": "trace or more, each candidate for one sample",
    "num_good": "good (SSIM above 0.4)",
    "num_recovered_high": "SSIM above 0.6",
    "num_candidates": "candidates",
    "p_value": "p-value",
    "threshold": "threshold of a trace",
}


@dataclass(frozen=True)
class Difference:
    """Changes and regressions, one line of text each."""

    changes: list[str]
    regressions: list[str]

    @property
    def exit_code(self) -> int:
        return 1 if self.regressions else 0


def compare(old: Record, new: Record) -> Difference:
    """A regression is a change for the worse that exceeds the new audit's policy."""
    _check(old, new)
    changes = [
        f"{words}: {_shown(before)} → {_shown(after)}"
        for name, words in COMPARED.items()
        if (before := getattr(old, name)) != (after := getattr(new, name))
    ]
    if old.target != new.target:
        changes.append(f"SHA-256 of the weights: {old.target.sha256[:12]} → {new.target.sha256[:12]}")
    if old.attack != new.attack:
        same = old.attack["method"] == new.attack["method"]
        how = "other settings" if same else f"{old.attack['method']} → {new.attack['method']}"
        changes.append(f"attack: {how}")
    return Difference(changes, _regressions(old, new))


def _regressions(old: Record, new: Record) -> list[str]:
    limit, grade, found = new.policy.max_leaked, new.policy.fail_on, []
    before, now = (record.num_graded(grade) for record in (old, new))
    if ORDER[new.verdict] > ORDER[old.verdict]:
        found.append(f"the verdict was {old.verdict}, now it is {new.verdict}: {'; '.join(new.reasons)}")
    if worse := [code for code in new.codes if new.is_accepted and code not in old.codes]:
        found.append(f"the policy accepts what the last audit did not need: {', '.join(worse)}")
    if now > max(before, limit) and new.p_value < SIGNIFICANT:
        found.append(f"{now} samples are {GRADE_WORDS[grade]} (before {before}, allowed {limit})")
    if new.num_exact > max(old.num_exact, limit):
        found.append(f"{new.num_exact} samples are exact (before {old.num_exact}, allowed {limit})")
    return found


def _check(old: Record, new: Record) -> None:
    problems = [
        f"{what} ({_shown(before)} and {_shown(after)})"
        for what, before, after in (
            ("private samples", old.hashes.private[:12], new.hashes.private[:12]),
            ("false-positive rates", old.fpr, new.fpr),
            ("similarities", _similarity(old), _similarity(new)),
        )
        if before != after
    ]
    if problems:
        raise UnfitError(f"these audits cannot be compared because they differ in {', '.join(problems)}")


def _similarity(record: Record) -> str:
    return f"{record.similarity.name}, window {record.similarity.window}, vote {record.similarity.vote}"


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
