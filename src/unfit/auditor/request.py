"""What an audit is asked to do. The command line fills it, `audit.json` keeps it, `--from` reads it back.

Every default of an audit stands here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from unfit.attacker.attacks import Attack
from unfit.attacker.attacks.auto import Auto
from unfit.auditor.grades import GRADE_WORDS, Grade
from unfit.auditor.match import WINDOW, WINDOWS
from unfit.auditor.sources import absolute_name
from unfit.base.files import Strict
from unfit.base.load import Shape, check_picture, sizes, two_targets
from unfit.base.times import Seconds


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


def _numbers(text: object) -> object:
    """`0.5,0.4,0.3` or `1/255` as numbers."""
    if not isinstance(text, str):
        return (text,) if isinstance(text, int | float) else text
    try:
        found = tuple(_ratio(part) for part in text.split(","))
    except (ValueError, ZeroDivisionError):
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise ValueError(f"{text!r} is not a number such as 0.5 or 1/255, or several such as 0.5,0.4,0.3")
    return found


def _ratio(text: str) -> float:
    above, slash, below = text.partition("/")
    return float(above) / float(below) if slash else float(above)


def _number(text: object) -> object:
    numbers = _numbers(text)
    return numbers[0] if isinstance(numbers, tuple) and len(numbers) == 1 else text


def _square(text: object) -> object:
    found = sizes(text)
    return found * 2 if isinstance(found, tuple) and len(found) == 1 else found


def _positive(values: tuple[float, ...]) -> tuple[float, ...]:
    if min(values) <= 0:
        raise ValueError(f"expected numbers above 0, found {min(values):g}")
    return values


Number = Annotated[float, BeforeValidator(_number)]
Numbers = Annotated[tuple[float, ...], BeforeValidator(_numbers), Field(min_length=1)]
Size = Annotated[tuple[int, int], BeforeValidator(_square), AfterValidator(check_picture)]


class Policy(Strict):
    """What a model must meet to pass, and how that is measured.

    The rule: at most `max_recovered` samples of grade `fail_on` or better, beyond what chance gives.

    Args:
        fail_on: The grade that counts: `trace`, `recognisable` or `exact`.
        max_recovered: So many samples of that grade or a better one are allowed.
        min_budget: Seconds, or a time such as "10m": an attack that was stopped sooner cannot pass. By default it
            must finish.
        fpr: The share of unseen samples that may count as recovered; it sets the threshold of a trace.
        window: Of SSIM: 11, 7, or 3 as in the papers' code.

    Example:
        >>> policy = unfit.Policy(fail_on="trace", min_budget="10m")
    """

    fail_on: Grade = "recognisable"
    max_recovered: Annotated[int, Field(ge=0)] = 0
    min_budget: Seconds | None = None  # seconds: stopped sooner, an attack tried too little
    fpr: Annotated[float, Field(gt=0, lt=1)] = 0.01  # share of unseen samples that may count as recovered
    window: Annotated[int, AfterValidator(_known_window)] = WINDOW  # of SSIM

    @property
    def rule(self) -> str:
        return f"at most {self.max_recovered} training samples are {GRADE_WORDS[self.fail_on]}, beyond chance"


class AuditRequest(Strict):
    """What is audited, against what, by which attack, under which policy.

    Args:
        target: A checkpoint or a run folder.
        update: In its place, a client's differences to the base.
        data: What it was trained on, as `read_source` takes it; a run folder knows.
        members: A JSON list of the training samples' positions in `data`; by default all of them.
        feature_names: A file with the names of a vector's columns.
        unseen: Samples it never saw; by default the rest of the data.
        num_unseen: How many of those; by default as many as it was trained on.
        classes: Of the data, as `read_source` takes it.
        resize: Height and width that images are brought to.
        input_shape: The shape of one sample; by default as the data have it.
        scale, mean, std: How the model saw the data: times `scale`, less `mean`, over `std`.
        center: Or: less the mean of the training samples; the default of a run folder.
        as_is: Or: as they are; the default of anything else.
        base: The weights that training started from, if they are known.
        model: The model's own code, `FILE.py:NAME`, where its file does not say how it is built.
        layer: The name of the dense layer to attack; by default the first that sees each sample once.
        attack: A value such as `Unmix(seed=1)`.
        candidates: What was made from this model before: it is searched, and nothing is attacked.
        policy: What the model must meet to pass.
        controls: Repeat the attack where nothing can be found.
        baselines: Add what simpler methods find.
        seed: Of the unseen samples that are drawn, and of the nets of controls.

    Example:
        >>> request = unfit.AuditRequest(target="model.pt", data="npz:train.npz", unseen="npz:test.npz")
    """

    target: FilePath | None = None
    update: FilePath | None = None  # in its place: a client's differences to the base
    data: SourceName | None = None  # what it was trained on; a run folder knows
    members: FilePath | None = None  # which of those
    unseen: SourceName | None = None  # default: the rest of the data
    num_unseen: Annotated[int, Field(gt=0)] | None = None  # default: as many as it was trained on
    classes: str | None = None
    feature_names: FilePath | None = None  # of a table's columns, where the data do not name them
    resize: Size | None = None  # height, width of images:DIR
    input_shape: Shape | None = None  # of one sample; default: as the data have it
    # how the model saw the data: x · scale, less the mean, over std; default: as they are, of a run folder centred
    scale: Number | None = None
    mean: Numbers | None = None
    std: Annotated[Numbers, AfterValidator(_positive)] | None = None
    center: bool = False
    as_is: bool = False
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
    def _one_target(self) -> Self:
        if problem := two_targets(self.target, self.base, self.update):
            raise ValueError(problem)
        return self

    @property
    def described(self) -> Path:
        """The checkpoint whose folder, or JSON file beside it, says what net it is."""
        return Path(self.target or self.base or "")

    @model_validator(mode="after")
    def _one_preprocessing(self) -> Self:
        changed = [f"`{name}`" for name in ("scale", "mean", "std") if getattr(self, name) is not None]
        given = ["`center`"] * self.center + ["`as_is`"] * self.as_is + changed
        if (self.center or self.as_is) and len(given) > 1:
            raise ValueError(f"{' and '.join(given)} contradict one another: say how the model saw the data once")
        return self

    @model_validator(mode="after")
    def _attacks_or_searches(self) -> Self:
        if self.candidates is None:
            return self
        if self.controls:
            raise ValueError("with `candidates` nothing is attacked, so there is nothing for `controls` to repeat")
        default = type(self.attack)(seed=self.attack.seed)
        changed = [name for name, value in self.attack if value != getattr(default, name)]
        changed = changed or ["method"] * (self.attack.method != "auto")
        changed += ["base"] * (self.base is not None and self.update is None)
        if changed:
            names = ", ".join(f"`{name}`" for name in changed)
            raise ValueError(f"with `candidates` nothing is attacked: leave out {names}")
        return self
