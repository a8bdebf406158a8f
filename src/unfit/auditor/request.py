"""What an audit is asked to do. The command line fills it, `audit.json` keeps it, `--from` reads it back.

Every default of an audit stands here or in its policy.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from unfit.attacker.attacks import Attack
from unfit.attacker.attacks.auto import Auto
from unfit.auditor.policy import Policy
from unfit.auditor.sources import absolute_name
from unfit.base.load import two_targets
from unfit.base.reading import Reading, check_image, sizes


def _absolute(path: object) -> object:
    """The same place, whatever folder one is in later."""
    return path if path is None else str(Path(str(path)).absolute())


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
Size = Annotated[tuple[int, int], BeforeValidator(_square), AfterValidator(check_image)]


class AuditRequest(Reading):
    """What is audited, against what, by which attack, under which policy.

    `model`, `layer` and `input_shape` are those of `Reading`.

    Args:
        target: A checkpoint or a run folder.
        update: In its place, a client's differences to the base.
        data: What it was trained on, as `read_source` takes it; a run folder knows.
        members: A JSON list of the training samples' positions in `data`; by default all of them.
        feature_names: A file with the names of a vector's columns.
        unseen: Samples it never saw; by default the rest of the data.
        num_unseen: How many of those; by default all that `unseen` names, or as many as it was trained on.
        classes: Of the data, as `read_source` takes it.
        resize: Height and width that images are brought to.
        scale, mean, std: Preprocessing: the data times `scale`, minus `mean`, divided by `std`.
        center: Or: minus the mean of the training samples; the default of a run folder.
        as_is: Or: no preprocessing; the default of anything else.
        base: The weights that training started from, if they are known.
        checkpoints: Other checkpoints of the same training, or folders of them, in any order.
        rounds: Other rounds of the same client: what it was sent, and its differences to that.
        attack: A value such as `Unmix(seed=1)`.
        candidates: What was made from this model before: it is searched, and nothing is attacked.
        policy: What the model must meet to pass.
        controls: Repeat the attack where nothing can be found.
        baselines: Add what simpler methods find.
        first: Stop at the first leak beyond doubt.
        seed: Of the unseen samples that are drawn, and of the models of controls.
        author: Who makes the audit: reports name them.

    Example:
        >>> request = unfit.AuditRequest(target="model.pt", data="npz:train.npz", unseen="npz:test.npz")
    """

    target: FilePath | None = None
    update: FilePath | None = None  # in its place: a client's differences to the base
    data: SourceName | None = None  # what it was trained on; a run folder knows
    members: FilePath | None = None  # which of those
    unseen: SourceName | None = None  # default: the rest of the data
    num_unseen: Annotated[int, Field(gt=0)] | None = None  # default: all of `unseen`, or as many as trained on
    classes: str | None = None
    feature_names: FilePath | None = None  # of a table's columns, where the data do not name them
    resize: Size | None = None  # height, width of images:DIR
    # preprocessing: (x · scale − mean) / std; default: none, of a run folder centred
    scale: Number | None = None
    mean: Numbers | None = None
    std: Annotated[Numbers, AfterValidator(_positive)] | None = None
    center: bool = False
    as_is: bool = False
    base: FilePath | None = None
    checkpoints: tuple[FilePath, ...] = ()  # others of the same training, in any order
    rounds: tuple[tuple[FilePath, FilePath], ...] = ()  # others of the same client: base and update of each
    attack: Attack = Auto()
    candidates: FilePath | None = None  # searched instead of attacking
    policy: Policy = Policy()
    controls: bool = False
    baselines: bool = False
    first: bool = False  # stop at the first leak that nothing else can undo
    seed: Annotated[int, Field(ge=0)] = 0  # of the unseen samples that are drawn, and of the models of controls
    author: str | None = None  # who makes the audit

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if problem := two_targets(self.target, self.base, self.update):
            raise ValueError(problem)
        return self

    @property
    def described(self) -> Path:
        """The checkpoint whose folder, or JSON file next to it, describes the model."""
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
        changed += ["first"] * self.first + ["checkpoints"] * bool(self.checkpoints)
        changed += ["rounds"] * bool(self.rounds)
        changed += ["base"] * (self.base is not None and self.update is None)
        if changed:
            names = ", ".join(f"`{name}`" for name in changed)
            raise ValueError(f"with `candidates` nothing is attacked: leave out {names}")
        return self
