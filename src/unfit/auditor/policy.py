"""What a model must meet to pass, with its defaults. No PyTorch here: the command line shows them in its help."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from unfit.auditor.codes import Code
from unfit.auditor.grades import GRADE_WORDS, Grade
from unfit.base.files import Strict
from unfit.base.reading import Metavar
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

    Example:
        >>> policy = unfit.Policy(fail_on="trace", min_budget="10m")
    """

    fail_on: Annotated[Grade, Field(description="Weakest grade that counts as a leak.")] = "recognisable"
    max_leaked: Annotated[int, Field(ge=0, description="Number of samples of that grade that are allowed.")] = 0
    min_budget: Annotated[
        Seconds | None,
        Field(description="An attack stopped before this time (`10m`) cannot pass. Default: it must finish."),
        Metavar("TIME"),
    ] = None
    fpr: Annotated[
        float, Field(gt=0, lt=1, description="Share of unseen samples that may pass the threshold of a trace.")
    ] = 0.01
    window: Annotated[
        int, AfterValidator(_known_window), Field(description="SSIM window: 11, 7, or 3 as in the papers' code.")
    ] = WINDOW
    accept: Annotated[
        tuple[Code, ...],
        Field(
            description="Let an inconclusive audit pass that has this reason, such as holds-samples; repeatable."
        ),
        Metavar("CODE"),
    ] = ()

    @property
    def rule(self) -> str:
        words = f"at most {self.max_leaked} training samples are {GRADE_WORDS[self.fail_on]}, beyond chance"
        return words + (f"; accepted without a verdict: {', '.join(self.accept)}" if self.accept else "")
