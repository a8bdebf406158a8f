"""`audit.json`, field by field. docs/audit.schema.json is made from it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from unfit.attacker.attacks import Method, Score, Solver
from unfit.base.files import Strict

SCHEMA_VERSION: Final = 2
Verdict = Literal["pass", "leak", "inconclusive"]
Interval = tuple[float, float]


class Policy(Strict):
    """What a model must meet to pass."""

    max_recovered: Annotated[int, Field(ge=0)] = 0  # more, and more than chance, is a leak
    min_budget: Annotated[float, Field(gt=0)] | None = None  # seconds: stopped sooner, an attack tried too little
    fpr: Annotated[float, Field(gt=0, lt=1)] = 0.01  # share of unseen samples that may count as recovered


class SampleRecord(Strict):
    """One training sample. `output` is Φ, or with several outputs the margin Φ_y − max_{j≠y} Φ_j."""

    index: int | str  # str: a salted hash
    label: int
    output: float
    similarity: float
    assigned: float  # similarity where each candidate may stand for one sample only
    ncc: float
    psnr: float | None  # dB; null for vectors
    l2: float
    recovered: bool
    proven: bool  # the nearest candidate has a certificate, and its correlation with the sample is above 0.9


class Similarity(Strict):
    name: Literal["ssim", "relative error"]
    window: int | None
    vote: float


class TargetRecord(Strict):
    sha256: str
    architecture: str
    num_parameters: int


class Hashes(Strict):
    """sha256 of what the audit was made from; the target's is in `target`."""

    private: str
    unseen: str
    base: str | None
    candidates: str | None  # those that were given; null where the audit attacked


class Rate(Strict):
    """How many are recovered when a share `fpr` of the unseen samples may be."""

    fpr: float
    threshold: float
    num_recovered: int
    tpr: float
    interval: Interval


class Point(Strict):
    """What the attack had after so many seconds, its threshold calibrated on what it had by then."""

    seconds: float  # of a sweep: of all its trials so far, one after the other
    num_trials: int | None
    num_candidates: int
    num_recovered: int
    num_recovered_unseen: int


class Control(Strict):
    """The same attack where there is nothing to be found."""

    name: Literal["untrained net", "net trained on other samples"]
    num_candidates: int
    num_recovered: int
    num_good: int
    seconds: float


class Baseline(Strict):
    """What a simpler method finds."""

    method: Literal["weights", "inversion"]
    num_candidates: int
    num_recovered: int
    num_good: int
    num_good_unseen: int
    seconds: float


TrialState = Literal["complete", "pruned", "diverged", "failed"]
Value = bool | int | float | str | None


class Parameter(Strict):
    """What a setting was sampled from: a range, uniformly or by its logarithm, or choices."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: list[Value] | None = None

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        is_range = self.low is not None and self.high is not None and self.low < self.high
        if is_range == (self.choices is not None) or (self.log and not (self.low or 0) > 0):
            raise ValueError("needs `choices`, or `low` < `high`, above 0 if `log`")
        return self

    def edges(self, num: int) -> list[float]:
        """Of equal parts of the range."""
        assert self.low is not None
        assert self.high is not None
        if self.log:
            return [self.low * (self.high / self.low) ** (i / num) for i in range(num + 1)]
        return [self.low + (self.high - self.low) * i / num for i in range(num + 1)]


class Trial(Strict):
    """One attack of a sweep, and what it gave."""

    number: int
    state: TrialState
    settings: dict[str, Value]
    objective: float | None  # the attacker's own loss
    num_candidates: int
    num_recovered: int  # samples that this trial alone has above the audit's threshold
    num_best: int  # recovered samples whose nearest candidate is its own; copies are their first trial's


class Bin(Strict):
    """The trials whose setting lay in a part of its range, or was one of the choices."""

    low: float | None
    high: float | None
    choice: Value
    num_trials: int
    mean_recovered: float  # samples that each of them has alone
    num_best: int


class Sweep(Strict):
    """Which settings gave what: of an audit that pooled the trials of a sweep."""

    num_trials: dict[TrialState, int]
    num_copies: int  # candidates that nearly equal an earlier one: they vote, but stand for no sample themselves
    parameters: dict[str, Parameter]
    trials: list[Trial]
    shares: dict[str, list[Bin]]  # by parameter


class Repeat(Strict):
    """The arguments of the audit: what `unfit audit --from` needs."""

    target: str
    data: str | None
    members: str | None
    unseen: str | None
    num_unseen: int | None
    classes: str | None
    candidates: str | None
    method: Method
    base: str | None
    solver: Solver | None
    score: Score | None
    num_candidates: int | None
    budget: float | None
    window: int
    seed: int
    policy: Policy
    controls: bool
    baselines: bool


class Record(Strict):
    """An audit, in numbers."""

    schema_version: Literal[2]
    verdict: Verdict
    reasons: list[str]
    policy: Policy
    num_samples: int
    num_unseen: int
    num_candidates: int
    num_good: int
    num_good_unseen: int
    num_recovered: int
    num_recovered_unseen: int
    recovered_interval: Interval
    num_recovered_high: int
    num_assigned: int
    num_proven: int
    estimated_num_samples: int | None
    similarity: Similarity
    threshold: float
    fpr: float
    p_value: float
    rates: list[Rate]
    over_time: list[Point]
    controls: list[Control]
    baselines: list[Baseline]
    sweep: Sweep | None
    rank: int
    noise_edge: float
    seconds: dict[str, float]
    attack: dict[str, Any]
    target: TargetRecord
    hashes: Hashes
    data: str
    class_names: list[str]
    versions: dict[str, str]
    machine: dict[str, str | int]
    repeat: Repeat | None
    redacted: bool
    samples: list[SampleRecord]
