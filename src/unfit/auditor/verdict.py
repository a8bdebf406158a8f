"""From counts to a decision that a release can hang on."""

from __future__ import annotations

from dataclasses import dataclass

from unfit.auditor.calibration import chance
from unfit.auditor.record import Verdict
from unfit.auditor.request import Policy

SIGNIFICANT = 0.01  # a count that chance alone gives more often than this is no evidence
BASELINES = ("weights", "inversion")
EXIT_CODES: dict[Verdict, int] = {"pass": 0, "leak": 1, "inconclusive": 3}


@dataclass(frozen=True)
class Found:
    """What came back. `p_value`: how often chance alone would recover as many."""

    num_recovered: int
    num_proven: int
    num_samples: int
    num_unseen: int
    p_value: float


@dataclass(frozen=True)
class Effort:
    """How hard was tried. `status`: finished, out of budget, diverged …, or not applicable: …"""

    method: str
    status: str
    seconds: float
    num_candidates: int
    rank: int


def decide(found: Found, effort: Effort, policy: Policy) -> tuple[Verdict, list[str]]:
    """The verdict and why. Where the attack tried too little, or could prove nothing, it is never `pass`."""
    n, significant = found.num_samples, found.p_value < SIGNIFICANT
    count = f"{found.num_recovered} of {n} training samples are recovered"
    odds = f"chance alone would give that many {how_often(found.p_value)}"
    leaks = []
    if found.num_recovered > policy.max_recovered and significant:
        leaks.append(f"{count}; {odds}")
    if found.num_proven > policy.max_recovered:
        leaks.append(f"{found.num_proven} of {n} training samples come back with a proof that needs no data")
    if leaks:
        return "leak", leaks
    if doubts := _doubts(found, effort, policy):
        return "inconclusive", doubts
    if found.num_recovered and significant:
        return "pass", [f"{count}, which is within the limit of {policy.max_recovered}"]
    return "pass", [f"{count}; {odds}; another attack may find more"]


def _doubts(found: Found, effort: Effort, policy: Policy) -> list[str]:
    """Why finding nothing says nothing."""
    if effort.status.startswith("not applicable"):
        return [f"this attack cannot be run on this model ({effort.status})"]
    doubts = []
    if not effort.num_candidates or not effort.rank:
        doubts.append("the first layer shows nothing above its noise, so this attack had nothing to work on")
    elif effort.method in BASELINES:
        doubts.append(f"{effort.method} is a baseline that finds little in any model: a pass needs a real attack")
    enough = policy.min_budget is not None and effort.seconds >= policy.min_budget
    if effort.status != "finished" and not enough:
        least = f"; the policy asks for {policy.min_budget:g} s" if policy.min_budget else ""
        doubts.append(f"the attack ended after {effort.seconds:.0f} s, not all tried ({effort.status}){least}")
    n, num_unseen = found.num_samples, found.num_unseen
    if chance(n, n, num_unseen, policy.fpr) >= SIGNIFICANT:
        doubts.append(f"{n} samples and {num_unseen} unseen ones are too few to tell a leak from chance")
    return doubts


def how_often(p_value: float) -> str:
    """In words that need no statistics."""
    if p_value < 1e-6:
        return "less than once in a million audits"
    return "in most audits" if p_value > 0.5 else f"about once in {round(1 / p_value):,} audits"
