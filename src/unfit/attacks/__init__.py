"""One file an attack; each takes a Target and settings and gives Candidates, and never sees training data."""

from __future__ import annotations

from typing import Literal, get_args

from unfit.attacks.unmix import UnmixSettings, unmix
from unfit.candidates import Candidates
from unfit.errors import unknown
from unfit.progress import Report, quiet
from unfit.target import Target

Method = Literal["auto", "unmix"]


def attack(
    target: Target, method: Method = "auto", base: Target | None = None, seed: int = 0, progress: Report = quiet
) -> Candidates:
    """Reconstruct training samples from weights alone.

    `base`: the weights training started from, if known (a public model that was fine-tuned): its change is
    attacked, which gives away far more. `auto` takes what suits the target; today that is `unmix`.
    """
    if method not in get_args(Method):
        raise unknown("method of attack", method, get_args(Method))
    return unmix(target, base, UnmixSettings(seed=seed), progress)
