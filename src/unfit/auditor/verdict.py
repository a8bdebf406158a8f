"""From counts to a decision that a release can hang on.

`leak` needs samples beyond chance. `pass` needs power: every attack applied, finished, and could have separated
this number of samples; and neither weights nor outputs treat private samples otherwise than unseen ones. All
else is inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from unfit.attacker.preflight import FAR_BELOW
from unfit.auditor.calibration import chance, p_more_often
from unfit.auditor.codes import Code
from unfit.auditor.grades import GRADE_WORDS, GRADES, Grade
from unfit.auditor.measured import false_proofs
from unfit.auditor.policy import Policy
from unfit.auditor.record import Attacker, Verdict

SIGNIFICANT = 0.01  # a count that chance alone gives more often than this is no evidence
NEARLY = 0.05  # … but if chance gives it less often than this, an audit must not pass on it
FAR_MORE = 2  # times the samples that were given: what else the weights hold may hide these
ENOUGH_UNSEEN = 20  # times the unseen samples there are: as far as the search for a sufficient number goes
BASELINES = ("weights", "inversion")
EXIT_CODES: dict[Verdict, int] = {"pass": 0, "leak": 1, "inconclusive": 3}
# what to do about a doubt
KNOW_THE_INITIAL_WEIGHTS = (
    "give the weights that training started from, if anyone has them (--base), or look for them with "
    "`unfit find-init`: with these an attack recovers far more"
)
TRUST_THE_SIGNAL = "rely on the signal check: no attack here separates this many samples"
STRIP = (
    "do not publish this file. Publish the weights alone, `model.state_dict()`, without the optimiser's state, "
    "after an audit of that file"
)
KEEP_IT = "treat the model as one that leaks: it holds these samples, and a better attack may recover them"
MEMBERSHIP = (
    "treat membership as known: anyone who has a sample can test whether the model was trained on it; training "
    "with differential privacy bounds how well"
)
AGAIN = "then audit the new file"
DEFEND: dict[Attacker, str] = {
    "blind": "do not publish this file. Train again with augmentation, with many more samples, or with "
    f"differential privacy, {AGAIN}",
    "has the base": "do not publish this file. Tune the public model again with augmentation, with many more "
    f"samples, or with differential privacy, {AGAIN}",
    "computes the initial weights": "do not publish this file. Shuffle the initial weights with the system's "
    f"randomness before you train again, so that nobody can compute them, {AGAIN}",
    "has the optimiser": STRIP,
    "has two copies": "do not publish this file. Publish one copy of the weights alone, `model.state_dict()`, "
    "after an audit of that file",
    "has several checkpoints": "do not publish these checkpoints together. Publish one alone, after an audit of "
    "that one by itself",
}
OTHER_ATTACK = "ask `unfit preflight` which attacks apply, and to which layer (--method, --layer, --base)"
MORE_TIME = "give the attack more time (--budget), or leave the limit out"
MORE_SAMPLES = "give more samples, private and unseen ones alike (--num-unseen)"
RANDOM_UNSEEN = "hold unseen samples out at random before training: `unfit split` does so"
ALL_SAMPLES = "give all samples that it was trained on (--data), or the weights before its last stage (--base)"
STOPPED = "stopped at the first leak"  # the status of an attack that was not continued
LOWER_BOUNDS = (
    "the audit stopped at the first leak, as requested: not all attacks were made, and all counts are lower bounds"
)
ATTACKERS: dict[Attacker, str] = {
    "blind": "an attacker who has the weights and nothing else",
    "has the base": "an attacker who also has the base, the weights that training started from",
    "computes the initial weights": "an attacker who has the weights alone and computes the initial weights",
    "has two copies": "an attacker who has the file, which holds two copies of the weights or more",
    "has several checkpoints": "an attacker who has several checkpoints of the training",
    "has the optimiser": "an attacker who has the checkpoint with the state of its optimiser",
    "reads the file": "an attacker who only reads the file",
}


@dataclass(frozen=True)
class Found:
    """What was recovered. Each count includes the better grades; `p_value` belongs to `num_recovered`."""

    num_recovered: int  # a trace or more
    num_recognisable: int
    num_exact: int
    num_samples: int
    num_unseen: int
    p_value: float
    num_recovered_unseen: int = 0
    num_recognisable_unseen: int = 0
    num_exact_unseen: int = 0

    def num(self, grade: Grade) -> int:
        return {"trace": self.num_recovered, "recognisable": self.num_recognisable, "exact": self.num_exact}[grade]

    def num_of_unseen(self, grade: Grade) -> int:
        counts = (self.num_recovered_unseen, self.num_recognisable_unseen, self.num_exact_unseen)
        return dict(zip(GRADES, counts, strict=True))[grade]

    @property
    def strength(self) -> tuple[int, ...]:
        """By which surfaces are ordered."""
        return self.num_exact, self.num_recognisable, self.num_recovered

    @property
    def exact_p_value(self) -> float:
        """How often chance alone would make as large a part of the exact samples private ones.

        No unseen sample equals a reconstruction, as a rule: then a single exact sample is beyond chance. Where
        some do, values repeat in these data or the model was trained on the control, and the counts must decide.
        """
        if not self.num_exact_unseen:
            return 0.0
        return p_more_often(self.num_exact, self.num_samples, self.num_exact_unseen, self.num_unseen)


def is_settled(found: Found, policy: Policy, more: int) -> bool:
    """Whether this is a leak by exact samples even if `more` unseen samples turned out to be exact too."""
    worst = min(found.num_unseen, found.num_exact_unseen + more)
    return _leaks_exactly(replace(found, num_exact_unseen=worst), policy)


@dataclass(frozen=True)
class Effort:
    """How hard was tried, by which attacker. `status`: finished, out of budget, diverged …, not applicable: …"""

    method: str
    status: str
    seconds: float
    num_candidates: int
    rank: int
    capacity: int  # about how many samples such an attack can separate in such weights
    estimated: int | None  # how many samples the weights hold, where the spectrum shows it
    attacker: Attacker
    applies: bool = True  # whether the attack could be run on this model
    base_given: bool = False  # by the user; initial weights that were computed do not count
    num_proven: int = 0  # candidates with a proof, of whatever sample


class Doubt(NamedTuple):
    """Why finding this little proves nothing, what would help, and the code by which a policy can accept it."""

    reason: str
    step: str
    code: Code = "not-covered"


@dataclass(frozen=True)
class Verbatim:
    """Training samples that stand in the file itself, beyond chance: no attack is needed to read them."""

    reason: str
    step: str
    num_exact: int  # they, and those with a proof
    num_graded: int  # they, and those of the policy's grade


@dataclass(frozen=True)
class Sight:
    """What the auditor knows besides: the signal check, and why the two sets cannot be compared, if so."""

    signal_p_value: float
    num_held: int
    knows_p_value: float = 1.0  # of the model doing better on the private samples than on unseen ones
    accuracy: tuple[float, float] | None = None  # on private and on unseen samples
    differences: Sequence[str] = ()
    ratio: float = math.inf  # parameters / (inputs × samples)
    outlier_p_value: float = 0.0  # of single samples standing out among all; 0 where nobody has looked
    unchecked: Sequence[Doubt] = ()  # what could not be looked at: no reason against a leak, but against a pass


class Attacked(NamedTuple):
    """What one attacked surface of a model showed."""

    found: Found
    effort: Effort
    sight: Sight


@dataclass(frozen=True)
class Decision:
    verdict: Verdict
    reasons: list[str]
    next_steps: list[str]  # what to do about a leak or an inconclusive audit; nothing after a pass
    attacker: Attacker  # that the verdict is about: of a leak, the weakest who can do it
    doubts: Sequence[Doubt] = ()  # of an inconclusive audit, or of a pass by a policy that accepts them all


def judge(
    surfaces: Sequence[Attacked], joined: Found, policy: Policy, verbatim: Verbatim | None = None
) -> Decision:
    """The verdict on all that was attacked, the strongest surface first; `joined` counts each sample's best grade.

    One leak is a leak. A pass needs every surface to pass.
    """
    _, effort, sight = surfaces[0]
    stored, attacked = _leaks_verbatim(joined, sight, policy, verbatim), _leaks(joined, sight, policy)
    if stored or attacked:
        attacker = effort.attacker if attacked else "reads the file"
        steps = [verbatim.step] if verbatim and stored else []
        steps += [DEFEND[attacker]] if attacked else []
        reasons = [*stored, *attacked, f"{ATTACKERS[attacker]} can do this"]
        reasons += [LOWER_BOUNDS] if any(surface.effort.status == STOPPED for surface in surfaces) else []
        return Decision("leak", reasons, steps, attacker)
    doubts = list(dict.fromkeys(doubt for surface in surfaces for doubt in _doubts(*surface, policy)))
    if any(doubt.code not in policy.accept for doubt in doubts):
        reasons, steps = (list(dict.fromkeys(words)) for words in list(zip(*doubts, strict=True))[:2])
        return Decision("inconclusive", reasons, steps, effort.attacker, doubts)
    bounded = [_bounded(each.sight) for each in surfaces if _is_bounded(*each)]
    allowed = [f"{verbatim.reason}: within the limit of {policy.max_leaked}"] if verbatim else []
    if doubts:  # all of them accepted: nothing holds against anybody
        accepted = [f"the policy accepts {each.code}: {each.reason}" for each in doubts]
        reasons = [*accepted, *allowed, _allowed(joined, policy), *bounded]
    else:
        reasons = [*allowed, *_passes(joined, effort, sight, policy), *bounded]
    return Decision("pass", list(dict.fromkeys(reasons)), [], effort.attacker, doubts)


def _leaks_verbatim(found: Found, sight: Sight, policy: Policy, verbatim: Verbatim | None) -> list[str]:
    """They count together with all else that is beyond chance: a limit is one for all ways to a sample."""
    if verbatim is None:
        return []
    beyond_chance = found.p_value < SIGNIFICANT and not sight.differences
    num = verbatim.num_graded if beyond_chance else verbatim.num_exact
    return [verbatim.reason] if num > policy.max_leaked else []


def _leaks_exactly(found: Found, policy: Policy) -> bool:
    return found.num_exact > policy.max_leaked and found.exact_p_value < SIGNIFICANT


def _leaks(found: Found, sight: Sight, policy: Policy) -> list[str]:
    """Proofs need no comparison; other counts must be more than chance gives, with sets that can be compared."""
    leaks = []
    exact = _leaks_exactly(found, policy)
    if exact:
        leaks.append(
            f"{found.num_exact} of {found.num_samples} training samples are recovered exactly, each with a proof "
            f"from the weights alone, and {found.num_exact_unseen} of {found.num_unseen} unseen ones "
            f"({false_proofs()})"
        )
    num = found.num(policy.fail_on)
    comparable = not sight.differences
    told = found.num_exact if exact else 0
    if num > max(told, policy.max_leaked) and found.p_value < SIGNIFICANT and comparable:
        leaks.append(f"{_counted(found, policy.fail_on)}; {_odds(found)}")
    return leaks


def _doubts(found: Found, effort: Effort, sight: Sight, policy: Policy) -> list[Doubt]:
    """Why finding this little proves nothing."""
    if not effort.applies:
        return [
            Doubt(f"this attack cannot be run on this model ({effort.status})", OTHER_ATTACK, "not-covered"),
            *sight.unchecked,
        ]
    return [
        *_doubts_about_sets(found, sight, policy),
        *sight.unchecked,
        *_doubts_about_effort(effort, policy),
        *_doubts_about_power(found, effort, sight, policy),
    ]


def _doubts_about_sets(found: Found, sight: Sight, policy: Policy) -> list[Doubt]:
    n, num_unseen = found.num_samples, found.num_unseen
    doubts = [Doubt(each, RANDOM_UNSEEN, "sets-differ") for each in sight.differences]
    if found.num_exact_unseen:
        words = (
            f"{found.num_exact_unseen} of {num_unseen} unseen samples are recovered exactly too: the model was "
            "trained on them, or on samples with the same values"
        )
        doubts.append(Doubt(words, RANDOM_UNSEEN, "unseen-trained"))
    if chance(n, n, num_unseen, policy.fpr) >= SIGNIFICANT:
        words = f"{n} samples and {num_unseen} unseen ones are too few to distinguish a leak from chance"
        doubts.append(Doubt(words, MORE_SAMPLES, "too-few-samples"))
    elif found.num_recovered > policy.max_leaked and SIGNIFICANT <= found.p_value < NEARLY:
        more = _enough_unseen(found, policy.fpr)
        remedy = f"{more} unseen samples instead of {num_unseen}" if more else "more unseen samples"
        words = f"{_counted(found, 'trace')}; {_odds(found)}; {remedy} would decide"
        step = f"audit again with --num-unseen {more}" if more else MORE_SAMPLES
        doubts.append(Doubt(words, step, "too-few-samples"))
    return doubts


def _doubts_about_effort(effort: Effort, policy: Policy) -> list[Doubt]:
    doubts = []
    if not effort.rank:
        words = "the attacked layer shows nothing above its noise, so this attack had nothing to work on"
        doubts.append(Doubt(words, KNOW_THE_INITIAL_WEIGHTS, "sees-nothing"))
    elif not effort.num_candidates and effort.status != "out of budget":
        stand = "1 direction stands" if effort.rank == 1 else f"{effort.rank} directions stand"
        words = f"{stand} above the noise of the attacked layer, and no attack applies"
        doubts.append(Doubt(words, OTHER_ATTACK, "not-covered"))
    elif effort.method in BASELINES:
        words = f"{effort.method} is a baseline that finds little in any model: a pass needs a real attack"
        doubts.append(Doubt(words, "audit again with --method auto", "unfinished"))
    elif effort.method == "diary":
        words = "diary tells which values occurred in training, not samples: a pass needs a real attack"
        doubts.append(Doubt(words, "audit again with --method auto", "unfinished"))
    enough = policy.min_budget is not None and effort.seconds >= policy.min_budget
    if effort.status != "finished" and not enough:
        least = f"; the policy asks for {policy.min_budget:g} s" if policy.min_budget else ""
        words = f"the attack ended after {effort.seconds:.0f} s, before all was tried ({effort.status}){least}"
        late = effort.status == "out of budget"
        doubts.append(Doubt(words, MORE_TIME if late else OTHER_ATTACK, "budget" if late else "unfinished"))
    return doubts


def _doubts_about_power(found: Found, effort: Effort, sight: Sight, policy: Policy) -> list[Doubt]:
    """Could it have found something?

    Not asked where it did find something, and neither that nor what the signal check finds exceeds the limit.
    """
    blind = effort.attacker == "blind"
    if policy.fail_on == "exact" and blind:
        words = "nothing can be exact without the initial weights"
        return [Doubt(words, KNOW_THE_INITIAL_WEIGHTS, "no-base")]
    if found.num(policy.fail_on) and found.p_value < SIGNIFICANT and sight.num_held <= policy.max_leaked:
        return []
    doubts, crowd = [], max(found.num_samples, effort.rank)
    if is_crowded(found, effort) and not _is_bounded(found, effort, sight):
        what = (
            "samples" if crowd == found.num_samples else "directions"
        )  # each of which may be several samples or none
        held = f"but these weights hold about {crowd} {what}"
        words = f"this attack can separate about {effort.capacity} samples, {held}"
        step = TRUST_THE_SIGNAL if effort.base_given else KNOW_THE_INITIAL_WEIGHTS
        doubts.append(Doubt(words, step, "too-many-samples"))
    if effort.estimated is not None and effort.estimated > FAR_MORE * found.num_samples:
        words = (
            f"the weights changed in {effort.estimated} directions, and plain training on {found.num_samples} "
            "samples changes at most one per sample: give all samples or, if the model was trained in stages, "
            "the weights before the last stage as its base"
        )
        doubts.append(Doubt(words, ALL_SAMPLES, "other-samples"))
    if sight.signal_p_value < NEARLY:
        step = KEEP_IT if effort.base_given else f"{KEEP_IT}; or audit it with its initial weights (--base)"
        doubts.append(Doubt(_signal(found, sight), step, "holds-samples"))
    elif sight.knows_p_value < NEARLY:
        doubts.append(Doubt(_knows(sight), MEMBERSHIP, "holds-samples"))
    return doubts


def is_crowded(found: Found, effort: Effort) -> bool:
    """Whether the weights hold more than the attack can separate: each direction is some sample's."""
    return max(found.num_samples, effort.rank) > effort.capacity


def _is_bounded(found: Found, effort: Effort, sight: Sight) -> bool:
    """Whether there are too many samples for these weights to hold each, and no single one stands out.

    The number protects the set as a whole, and no sample by itself: the five trained on last are recovered
    from among thousands. So nothing may be recovered, recognisably or with a proof, even at the rate of chance. No
    single sample may stand out, nor all of them together. And the initial weights must be known, because their
    noise hides such samples.
    """
    return (
        is_crowded(found, effort)
        and sight.ratio <= FAR_BELOW
        and effort.attacker != "blind"
        and effort.status == "finished"
        and not found.num_recognisable
        and not effort.num_proven
        and min(sight.outlier_p_value, sight.signal_p_value, sight.knows_p_value) >= NEARLY
    )


def _bounded(sight: Sight) -> str:
    return (
        f"the weights hold more samples than an attack here can separate, and {sight.ratio:.2g} parameters for "
        "each value of a sample, where the reconstruction of all of them needs well above 1 "
        f"(at most {FAR_BELOW:g} counts as far below); all attacks ran to their end, and no single sample stands "
        "out among all"
    )


def _signal(found: Found, sight: Sight) -> str:
    """The weights give something away; as a fact only where chance hardly does it."""
    verb = "hold" if sight.signal_p_value < SIGNIFICANT else "may hold"
    which = f"{sight.num_held} of {found.num_samples} of them" if sight.num_held else "them as a whole"
    traces = f" (it found traces of {found.num_recovered})" if found.num_recovered else ""
    return (
        f"the weights {verb} these samples: they react more to {which} than to unseen samples, which chance alone "
        f"would do {how_often(sight.signal_p_value)}; this attack could not separate them{traces}"
    )


def _knows(sight: Sight) -> str:
    """Membership shows in the outputs. That gives nobody's values away, but it is no pass either."""
    verb = "knows" if sight.knows_p_value < SIGNIFICANT else "may know"
    right = (
        "" if sight.accuracy is None else f" ({sight.accuracy[0]:.0%} right, {sight.accuracy[1]:.0%} of unseen)"
    )
    return (
        f"the model {verb} these samples: it does better on them than on unseen ones{right}, which chance alone "
        f"would do {how_often(sight.knows_p_value)}; no attack here reconstructs them from the weights"
    )


def _passes(found: Found, effort: Effort, sight: Sight, policy: Policy) -> list[str]:
    reasons = [_allowed(found, policy), f"this holds against {ATTACKERS[effort.attacker]}"]
    if sight.accuracy and sight.accuracy[0] > sight.accuracy[1]:  # too little to show anything, and worth knowing
        own, unseen = sight.accuracy
        words = f"the model is right about {own:.0%} of these samples and {unseen:.0%} of unseen ones"
        reasons.append(f"{words}, which chance alone would do {how_often(sight.knows_p_value)}")
    if not effort.base_given:
        reasons.append("a fine-tuned model must be audited with its base, the weights that it was tuned from")
    return reasons


def _allowed(found: Found, policy: Policy) -> str:
    """Why what was found is no leak."""
    words, num = _counted(found, policy.fail_on), found.num(policy.fail_on)
    if num and found.p_value < SIGNIFICANT:
        return f"{words}, which is within the limit of {policy.max_leaked}"
    if num > policy.max_leaked:
        return f"{words}: no more than chance gives; {_odds(found)}"
    if found.num_recovered:
        verb = "shows" if found.num_recovered == 1 else "show"
        return f"{words}; {found.num_recovered} {verb} a trace, and {_odds(found)}"
    return words


def _counted(found: Found, grade: Grade) -> str:
    """The count with its control."""
    num = found.num(grade)
    verb = "leave a trace or more" if grade == "trace" else f"are {GRADE_WORDS[grade]}"
    words = verb if found.num_exact else verb.removesuffix(" or exact")
    unseen = f"{found.num_of_unseen(grade)} of {found.num_unseen} unseen ones"
    return f"{num} of {found.num_samples} training samples {words}, and {unseen}"


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
