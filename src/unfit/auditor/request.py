"""What an audit is asked to do. The command line fills it, `audit.json` keeps it, `--from` reads it back.

Every default of an audit stands here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from unfit.attacker.attacks import Attack
from unfit.attacker.attacks.auto import Auto
from unfit.auditor.grades import GRADE_WORDS, Grade
from unfit.auditor.match import WINDOW, WINDOWS
from unfit.auditor.sources import absolute_name
from unfit.base.files import Strict


def _absolute(path: object) -> object:
    """The same place, whatever folder one is in later."""
    return path if path is None else str(Path(str(path)).absolute())


def _absolute_code(code: str) -> str:
    """FILE.py:NAME, the same file whatever folder one is in later."""
    file, colon, name = code.rpartition(":")
    return f"{Path(file).absolute()}:{name}" if colon else code


def _known_window(window: int) -> int:
    if window not in WINDOWS:
        raise ValueError(f"unknown SSIM window {window}; choose one of: {', '.join(map(str, WINDOWS))}")
    return window


CodeName = Annotated[str, AfterValidator(_absolute_code)]
FilePath = Annotated[str, BeforeValidator(_absolute)]
SourceName = Annotated[str, AfterValidator(absolute_name)]


class Policy(Strict):
    """What a model must meet to pass, and how that is measured.

    The rule: at most `max_recovered` samples of grade `fail_on` or better, beyond what chance gives.
    """

    fail_on: Grade = "recognisable"
    max_recovered: Annotated[int, Field(ge=0)] = 0
    min_budget: Annotated[float, Field(gt=0)] | None = None  # seconds: stopped sooner, an attack tried too little
    fpr: Annotated[float, Field(gt=0, lt=1)] = 0.01  # share of unseen samples that may count as recovered
    window: Annotated[int, AfterValidator(_known_window)] = WINDOW  # of SSIM

    @property
    def rule(self) -> str:
        return f"at most {self.max_recovered} training samples are {GRADE_WORDS[self.fail_on]}, beyond chance"


class AuditRequest(Strict):
    """What is audited, against what, by which attack, under which policy."""

    target: FilePath
    data: SourceName | None = None  # what it was trained on; a run folder knows
    members: FilePath | None = None  # which of those
    unseen: SourceName | None = None  # default: the rest of the data
    num_unseen: Annotated[int, Field(gt=0)] | None = None  # default: as many as it was trained on
    classes: str | None = None
    base: FilePath | None = None
    model: CodeName | None = None  # the code that builds the model, where its file does not say how
    layer: str | None = None  # the dense layer to attack; default: the first that sees each sample once
    attack: Attack = Auto()
    candidates: FilePath | None = None  # searched instead of attacking
    policy: Policy = Policy()
    controls: bool = False
    baselines: bool = False
    seed: Annotated[int, Field(ge=0)] = 0  # of the unseen samples that are drawn, and of the nets of controls

    @model_validator(mode="after")
    def _attacks_or_searches(self) -> Self:
        if self.candidates is None:
            return self
        if self.controls:
            raise ValueError("with `candidates` nothing is attacked, so there is nothing for `controls` to repeat")
        default = type(self.attack)(seed=self.attack.seed)
        changed = [name for name, value in self.attack if value != getattr(default, name)]
        changed = changed or ["method"] * (self.attack.method != "auto")
        changed += ["base"] * (self.base is not None)
        if changed:
            names = ", ".join(f"`{name}`" for name in changed)
            raise ValueError(f"with `candidates` nothing is attacked: leave out {names}")
        return self
