"""Look at a case before any attack: do its samples fit, what stands in its file, and what can be attacked?"""

from __future__ import annotations

import time
from dataclasses import dataclass

from unfit.attacker.method import Method
from unfit.attacker.surfaces import Surfaces, only_first, surfaces, weights_alone
from unfit.auditor.case import Case
from unfit.auditor.comparability import Comparability, compare_sets
from unfit.auditor.data_check import DataCheck, check_data
from unfit.auditor.policy import Policy
from unfit.auditor.published import Published, look_through
from unfit.base.errors import DataCheckError


@dataclass(frozen=True)
class Examined:
    """What is known of a case before anything is attacked."""

    data_check: DataCheck
    comparability: Comparability
    published: Published
    surfaces: Surfaces
    seconds: float = 0.0  # that the first two took


def examine(case: Case, policy: Policy, attack: Method, candidates: object = None) -> Examined:
    """Look at the samples before anything is attacked; refuse those that cannot be samples of this model."""
    began = time.perf_counter()
    case.check(policy.window)
    data_check, comparability = check_data(case), compare_sets(*case.given)
    seconds = time.perf_counter() - began
    found = surfaces(case.target, case.base, case.layer)
    if candidates is not None:
        found = only_first(found, "only the given candidates were searched")
    elif not attack.takes_base:
        found = weights_alone(found, f"{attack.title} attacks weights alone")
    return Examined(data_check, comparability, look_through(case, comparability.comparable, found), found, seconds)


def refuse_other_data(examined: Examined, policy: Policy) -> None:
    """A model that does not know its own training samples was trained on others, or on another form of them.

    Samples that stand in its file are a leak all the same.
    """
    check = examined.data_check
    if not check.fits and examined.published.num_verbatim <= policy.max_leaked:
        words = [*check.reasons, *([check.likely_cause] if check.likely_cause else [])]
        raise DataCheckError(f"cannot audit: samples and model do not match: {'; '.join(words)}")
