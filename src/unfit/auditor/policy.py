"""What a model must meet to pass, with its defaults. No PyTorch here: the command line shows them in its help."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from unfit.auditor.codes import Code
from unfit.auditor.grades import GRADE_WORDS, Grade
from unfit.base.files import Strict
from unfit.base.times import Seconds

WINDOW = 11  # of SSIM, unless another is asked for
WINDOWS = (3, 7, WINDOW)  # of SSIM: 11 is the usual Gaussian window, 3 is in the papers' code


def _known_window(window: int) -> int:
    if window not in WINDOWS:
        raise ValueError(f"unknown SSIM window {window}; choose one of: {', '.join(map(str, WINDOWS))}")
    return window


class Policy(Strict):
    """What a model must meet to pass, and how that is measured.

    The rule: at most `max_leaked` samples of grade `fail_on` or better, beyond what chance gives.

    Args:
        fail_on: The grade that counts: `trace`, `recognisable` or `exact`.
        max_leaked: The number of samples of that grade or a better one that are allowed.
        min_budget: Seconds, or a time such as "10m": an attack that was stopped sooner cannot pass. By default it
            must finish.
        fpr: The share of unseen samples that may count as recovered; it sets the threshold of a trace.
        window: Of SSIM: 11, 7, or 3 as in the papers' code.
        accept: Codes of reasons for an inconclusive verdict that are accepted knowingly, such as "holds-samples":
            an audit with no other reasons passes, and says that they were accepted.

    Example:
        >>> policy = unfit.Policy(fail_on="trace", min_budget="10m")
    """

    fail_on: Grade = "recognisable"
    max_leaked: Annotated[int, Field(ge=0)] = 0
    min_budget: Seconds | None = None  # seconds: stopped sooner, an attack tried too little
    fpr: Annotated[float, Field(gt=0, lt=1)] = 0.01  # share of unseen samples that may count as recovered
    window: Annotated[int, AfterValidator(_known_window)] = WINDOW  # of SSIM
    accept: tuple[Code, ...] = ()  # reasons for an inconclusive verdict that do not prevent a pass

    @property
    def rule(self) -> str:
        words = f"at most {self.max_leaked} training samples are {GRADE_WORDS[self.fail_on]}, beyond chance"
        return words + (f"; accepted without a verdict: {', '.join(self.accept)}" if self.accept else "")
