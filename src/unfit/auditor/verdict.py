"""From counts to a decision that a release can hang on.

`leak` needs samples beyond chance. `pass` needs power: the attack applied, finished, and could have told so many
samples apart, and the oracle finds no more in the private samples than in unseen ones. All else is inconclusive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unfit.auditor.calibration import chance
from unfit.auditor.grades import GRADE_WORDS, Grade
from unfit.auditor.measured import false_proofs
from unfit.auditor.record import Attacker, Verdict
from unfit.auditor.request import Policy

SIGNIFICANT = 0.01  # a count that chance alone gives more often than this is no evidence
NEARLY = 0.05  # … but more seldom than this it is a reason to look again: an audit must not pass on it
FAR_MORE = 2  # times the samples that were given: what else the weights hold may hide these
ENOUGH_UNSEEN = 20  # times the unseen samples there are: as far as the search for a sufficient number goes
BASELINES = ("weights", "inversion")
EXIT_CODES: dict[Verdict, int] = {"pass": 0, "leak": 1, "inconclusive": 3}
# what to do about a doubt
KNOW_THE_START = (
    "give the weights that training started from, if anyone has them (--base), or look for them with "
    "`unfit start`: with these an attack sees far more"
)
ASK_THE_ORACLE = "go by the oracle: no attack here tells so many samples apart"
DEFEND = "do not publish these weights; docs/defences.md says what protects the next ones, and what it costs"
STRIP = "publish the weights alone, model.state_dict(), without the optimiser's state; audit that file again"
KEEP_IT = "treat the model as one that leaks: it holds these samples, and a better attack may come"
OTHER_ATTACK = "ask `unfit preflight` which attacks apply, and to which layer (--method, --layer, --base)"
MORE_TIME = "give the attack more time (--budget), or leave the limit out"
MORE_SAMPLES = "give more samples, private and unseen ones alike (--num-unseen)"
RANDOM_UNSEEN = "hold unseen samples out at random before training: `unfit split` does so"
ALL_SAMPLES = "give all samples that it was trained on (--data), or the weights before its last stage (--base)"
ATTACKERS: dict[Attacker, str] = {
    "blind": "an attacker who has the weights and nothing else",
    "knows the start": "an attacker who also has the weights that training started from",
    "found the start": "an attacker who computes the start from the weights themselves",
    "has the optimiser": "an attacker who has the checkpoint with the state of its optimiser",
}


@dataclass(frozen=True)
class Found:
    """What came back. Each count includes the better grades; `p_value` is that of `num_recovered` by chance."""

    num_recovered: int  # a trace or more
    num_recognisable: int
    num_exact: int
    num_samples: int
    num_unseen: int
    p_value: float

    def num(self, grade: Grade) -> int:
        return {"trace": self.num_recovered, "recognisable": self.num_recognisable, "exact": self.num_exact}[grade]


@dataclass(frozen=True)
class Effort:
    """How hard was tried, and by whom. `status`: finished, out of budget, diverged …, or not applicable: …"""

    method: str
    status: str
    seconds: float
    num_candidates: int
    rank: int
    capacity: int  # about how many samples such an attack can tell apart in such weights
    estimated: int | None  # how many samples the weights hold, where the spectrum shows it
    attacker: Attacker


class Doubt(NamedTuple):
    """Why finding so little says nothing, and what would help."""

    reason: str
    step: str


@dataclass(frozen=True)
class Sight:
    """What the auditor knows besides: the oracle's answer, and why the two sets cannot be compared, if so."""

    oracle_p_value: float
    num_held: int
    differences: Sequence[str] = ()
    unchecked: Sequence[Doubt] = ()  # what could not be looked at: no reason against a leak, but against a pass


def decide(found: Found, effort: Effort, sight: Sight, policy: Policy) -> tuple[Verdict, list[str]]:
    """The verdict and why."""
    if leaks := _leaks(found, sight, policy):
        return "leak", [*leaks, f"this is what {ATTACKERS[effort.attacker]} can do"]
    if doubts := _doubts(found, effort, sight, policy):
        return "inconclusive", [doubt.reason for doubt in doubts]
    return "pass", _passes(found, effort, policy)


def next_steps(found: Found, effort: Effort, sight: Sight, policy: Policy) -> list[str]:
    """What to do about a leak or an inconclusive audit, each step once; nothing after a pass."""
    if _leaks(found, sight, policy):
        return [STRIP if effort.attacker == "has the optimiser" else DEFEND]
    return list(dict.fromkeys(doubt.step for doubt in _doubts(found, effort, sight, policy)))


def _leaks(found: Found, sight: Sight, policy: Policy) -> list[str]:
    """Proofs need no comparison; other counts must be more than chance gives, with sets that can be compared."""
    leaks = []
    if found.num_exact > policy.max_recovered:
        leaks.append(
            f"{found.num_exact} of {found.num_samples} training samples come back with a proof that needs no data "
            f"({false_proofs()})"
        )
    num = found.num(policy.fail_on)
    comparable = not sight.differences
    if num > max(found.num_exact, policy.max_recovered) and found.p_value < SIGNIFICANT and comparable:
        leaks.append(f"{_counted(found, policy.fail_on)}; {_odds(found)}")
    return leaks


def _doubts(found: Found, effort: Effort, sight: Sight, policy: Policy) -> list[Doubt]:
    """Why finding so little says nothing."""
    if effort.status.startswith("not applicable"):
        return [Doubt(f"this attack cannot be run on this model ({effort.status})", OTHER_ATTACK)]
    return [
        *_doubts_about_sets(found, sight, policy),
        *sight.unchecked,
        *_doubts_about_effort(effort, policy),
        *_doubts_about_power(found, effort, sight, policy),
    ]


def _doubts_about_sets(found: Found, sight: Sight, policy: Policy) -> list[Doubt]:
    n, num_unseen = found.num_samples, found.num_unseen
    doubts = [Doubt(each, RANDOM_UNSEEN) for each in sight.differences]
    if chance(n, n, num_unseen, policy.fpr) >= SIGNIFICANT:
        words = f"{n} samples and {num_unseen} unseen ones are too few to tell a leak from chance"
        doubts.append(Doubt(words, MORE_SAMPLES))
    elif found.num_recovered > policy.max_recovered and SIGNIFICANT <= found.p_value < NEARLY:
        more = _enough_unseen(found, policy.fpr)
        remedy = f"{more} unseen samples instead of {num_unseen}" if more else "more unseen samples"
        words = f"{_counted(found, 'trace')}; {_odds(found)}; {remedy} would tell"
        doubts.append(Doubt(words, f"audit again with --num-unseen {more}" if more else MORE_SAMPLES))
    return doubts


def _doubts_about_effort(effort: Effort, policy: Policy) -> list[Doubt]:
    doubts = []
    if not effort.rank:
        words = "the first layer shows nothing above its noise, so this attack had nothing to work on"
        doubts.append(Doubt(words, KNOW_THE_START))
    elif not effort.num_candidates and effort.status != "out of budget":
        words = f"{effort.rank} directions stand above the noise of the attacked layer, and no attack applies"
        doubts.append(Doubt(words, OTHER_ATTACK))
    elif effort.method in BASELINES:
        words = f"{effort.method} is a baseline that finds little in any model: a pass needs a real attack"
        doubts.append(Doubt(words, "audit again with --method auto"))
    enough = policy.min_budget is not None and effort.seconds >= policy.min_budget
    if effort.status != "finished" and not enough:
        least = f"; the policy asks for {policy.min_budget:g} s" if policy.min_budget else ""
        words = f"the attack ended after {effort.seconds:.0f} s, not all tried ({effort.status}){least}"
        doubts.append(Doubt(words, MORE_TIME if effort.status == "out of budget" else OTHER_ATTACK))
    return doubts


def _doubts_about_power(found: Found, effort: Effort, sight: Sight, policy: Policy) -> list[Doubt]:
    """Could it have found something? Not asked where it did find something, within the limit of the policy."""
    blind = effort.attacker == "blind"
    if policy.fail_on == "exact" and blind:
        words = "nothing can be proven without the weights that training started from, the base"
        return [Doubt(words, KNOW_THE_START)]
    if found.num(policy.fail_on) and found.p_value < SIGNIFICANT:
        return []
    doubts, crowd = [], max(found.num_samples, effort.rank)  # each direction is a sample's, of these or of others
    if crowd > effort.capacity:
        words = (
            f"this attack can tell about {effort.capacity} samples apart in these weights, and they hold {crowd}"
        )
        doubts.append(Doubt(words, KNOW_THE_START if blind else ASK_THE_ORACLE))
    if effort.estimated is not None and effort.estimated > FAR_MORE * found.num_samples:
        words = (
            f"the weights hold about {effort.estimated} samples, and {found.num_samples} were given: give all or, "
            "if the model was trained in stages, the weights before the last one as its base"
        )
        doubts.append(Doubt(words, ALL_SAMPLES))
    if sight.oracle_p_value < NEARLY:
        traces = f" (it found traces of {found.num_recovered})" if found.num_recovered else ""
        words = (
            f"the weights hold these samples: they react to {sight.num_held} of {found.num_samples} more than to "
            f"samples they never saw; this attack could not separate them{traces}"
        )
        doubts.append(Doubt(words, f"{KEEP_IT}; or {KNOW_THE_START}" if blind else KEEP_IT))
    return doubts


def _passes(found: Found, effort: Effort, policy: Policy) -> list[str]:
    words = _counted(found, policy.fail_on)
    if found.num(policy.fail_on) and found.p_value < SIGNIFICANT:
        words = f"{words}, which is within the limit of {policy.max_recovered}"
    elif found.num_recovered:
        verb = "shows" if found.num_recovered == 1 else "show"
        words = f"{words}; {found.num_recovered} {verb} a trace, and {_odds(found)}"
    reasons = [words, f"this holds against {ATTACKERS[effort.attacker]}"]
    if effort.attacker == "blind":
        reasons.append("a fine-tuned model must be audited with the weights it was tuned from, its base")
    return reasons


def _counted(found: Found, grade: Grade) -> str:
    words = "leave a trace or more" if grade == "trace" else f"are {GRADE_WORDS[grade]}"
    words = words if found.num_exact else words.removesuffix(" or exact")
    return f"{found.num(grade)} of {found.num_samples} training samples {words}"


def _odds(found: Found) -> str:
    noun = "trace" if found.num_recovered == 1 else "traces"
    return f"chance alone would give {found.num_recovered} {noun} {how_often(found.p_value)}"


def _enough_unseen(found: Found, fpr: float) -> int | None:
    """The least number of unseen samples with which this count would be beyond chance; None: none would do."""
    most = ENOUGH_UNSEEN * found.num_unseen
    tried = range(found.num_unseen + 1, most + 1)
    odds = (chance(found.num_recovered, found.num_samples, num, fpr) for num in tried)
    return next((num for num, p_value in zip(tried, odds, strict=True) if p_value < SIGNIFICANT), None)


def how_often(p_value: float) -> str:
    """In words that need no statistics."""
    if p_value < 1e-6:
        return "less than once in a million audits"
    return "in most audits" if p_value > 0.5 else f"about once in {round(1 / p_value):,} audits"
