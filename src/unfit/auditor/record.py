"""`audit.json`, field by field. docs/audit.schema.json is made from it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from unfit.attacker.candidates import Described
from unfit.attacker.initial.found import InitialRecord
from unfit.attacker.method import Parameter, Value
from unfit.auditor.codes import Code
from unfit.auditor.comparability import Comparability
from unfit.auditor.data_check import DataCheck
from unfit.auditor.grades import Grade
from unfit.auditor.policy import Policy
from unfit.auditor.request import AuditRequest
from unfit.auditor.samples import Measure
from unfit.base.files import Strict

SCHEMA_VERSION: Final = 5
Verdict = Literal["pass", "leak", "inconclusive"]
# the attacker that a verdict names
Attacker = Literal[
    "blind",
    "has the base",
    "computes the initial weights",
    "has the optimiser",
    "has two copies",
    "has several checkpoints",
    "reads the file",
]
Interval = tuple[float, float]
# the arrays beside `audit.json`, a row for each private sample, or for each unseen one
OF_SAMPLES = ("original", "reconstruction", "nearest_unseen", "similarity", "projection_similarity", "output")
OF_FEATURES = ("features", "reconstructed_features")  # only if the images are made of these
OF_UNSEEN = ("unseen", "unseen_similarity", "unseen_projection_similarity", "unseen_output")


class DoubtRecord(Strict):
    """Why an audit is inconclusive; or would be, if its policy did not accept that."""

    code: Code
    reason: str
    accepted: bool  # by the policy


class SampleRecord(Strict):
    """One training sample. `output` is Φ, or with several outputs the margin Φ_y − max_{j≠y} Φ_j."""

    index: int | str  # str: a salted hash
    label: int
    output: float
    similarity: float  # what it is graded by: `Record.similarity` names the measure
    ssim: float | None  # what the papers call *good* by; null for vectors
    assigned: float  # similarity where each candidate may stand for one sample only
    ncc: float
    psnr: float | None  # dB; null for vectors
    l2: float
    projection_similarity: float  # similarity with its own part in the attacked span
    recovered: bool
    exact: bool  # it equals a candidate that has a proof, within what the proof promises
    grade: Grade | None
    stored: bool = False  # it stands in the file verbatim, which makes it exact without a proof


class Similarity(Strict):
    name: Measure  # what samples are graded by
    window: int | None  # of SSIM, which *good* is judged by; null for vectors
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
    checkpoints: list[str]  # other states of the model: those that were given, and those in its file
    candidates: str | None  # those that were given; null where the audit attacked


class SignalRecord(Strict):
    """What the weights hold, measured with the samples known."""

    p_value: float  # how often the weights would react so much more to the private samples by chance
    num_held: int  # private samples they react to more than to all but a share `fpr` of the unseen ones
    num_asked: int  # of large sets, this number is weighed
    knows_p_value: float | None  # that of better outputs for private samples than for unseen ones; null: no labels
    num_good: int  # private samples whose part in the attacked span is good, by the papers' rule
    num_good_unseen: int


class Rate(Strict):
    """How many are recovered when a share `fpr` of the unseen samples may be."""

    fpr: float
    threshold: float
    num_recovered: int
    tpr: float
    interval: Interval


class Point(Strict):
    """What the attack had recovered by a time, its threshold calibrated on what it had by then."""

    seconds: float  # of a sweep: of all its trials so far, one after the other
    num_trials: int | None
    num_candidates: int
    num_recovered: int
    num_recovered_unseen: int


class Control(Strict):
    """The same attack where there is nothing to be found."""

    name: Literal["untrained model", "model trained on other samples"]
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


class SurfaceRecord(Strict):
    """What an attacker can take from the file: a layer of one copy of the weights, and what was found in it."""

    name: str
    layer: str  # empty in a plain model, where it is the first
    subtracted: str  # from what, and why
    status: str  # of the attack
    num_candidates: int
    num_recovered: int  # a trace or more
    num_recovered_unseen: int
    num_recognisable: int
    num_recognisable_unseen: int
    num_exact: int
    num_exact_unseen: int
    p_value: float  # of the recovered ones


class UnreadSurface(Strict):
    """A surface that is there and was not attacked: no audit passes while there is one."""

    name: str
    why: str


# the most important first; model: a layer that was not attacked
Kind = Literal["second state", "optimiser", "tensor", "text", "model"]


class Unattacked(Strict):
    """Something in the file that no attack read. `num_values`: its numbers, or the characters of a text."""

    path: str
    kind: Kind
    num_values: int


class FileRecord(Strict):
    """What stands in the file: samples that need no attack, and what no attack read."""

    num_items: int = 0  # tensors, lists of numbers and texts; 0: the weights were given without a file or a model
    num_stored: int = 0  # private samples that stand in it verbatim
    num_stored_unseen: int = 0
    p_value: float = 1.0  # how often chance alone would make at least this many of them private ones
    places: list[str] = Field(default_factory=list)  # where they stand, the first of them …
    num_places: int = 0  # … of all
    rest: list[Unattacked] = Field(default_factory=list)  # not attacked, the most important first …
    num_rest: int = 0  # … of all


def _has_stages(seconds: dict[str, float]) -> dict[str, float]:
    if not {"attack", "match"} <= seconds.keys():
        raise ValueError("needs the seconds of `attack` and `match`")
    return seconds


def _describes_attack(attack: dict[str, Any]) -> dict[str, Any]:
    Described.model_validate(attack)
    return attack


def _has_cores(machine: dict[str, str | int]) -> dict[str, str | int]:
    if not isinstance(machine.get("cores"), int) or not {"system", "processor"} <= machine.keys():
        raise ValueError("needs `system`, `processor`, and the number of `cores`")
    return machine


class Record(Strict):
    """An audit, in numbers."""

    schema_version: Literal[5]
    date: str | None = None  # when it was made, in UTC
    verdict: Verdict
    reasons: list[str]
    next_steps: list[str] = Field(default_factory=list)  # what to do about a leak or an inconclusive audit
    doubts: list[DoubtRecord] = Field(default_factory=list)  # why it is inconclusive, or was accepted
    attacker: Attacker
    policy: Policy
    num_samples: int
    num_unseen: int
    num_copies: int  # unseen samples that were left out: nearly a private one, they would hide a leak
    num_repeated: int  # private samples that were left out: they equal an earlier one, and count once
    num_left_out: int = 0  # unseen samples that were not used, so that classes have the same shares in both sets
    num_candidates: int
    num_good: int
    num_good_unseen: int
    num_recovered: int
    num_recovered_unseen: int
    recovered_interval: Interval
    num_recovered_high: int
    num_recognisable: int  # recognisable or exact
    num_recognisable_unseen: int
    recognisable_line: float  # the similarity above which a sample counts as recognisable
    num_assigned: int
    num_exact: int  # samples
    num_exact_unseen: int
    num_candidates_with_proof: int
    estimated_num_samples: int | None
    similarity: Similarity
    threshold: float
    fpr: float
    p_value: float
    signal_check: SignalRecord
    initial: InitialRecord | None  # None: not searched for
    data_check: DataCheck
    comparability: Comparability
    rates: list[Rate]
    over_time: list[Point]
    controls: list[Control]
    baselines: list[Baseline]
    sweep: Sweep | None
    rank: int
    noise_edge: float
    seconds: Annotated[dict[str, float], AfterValidator(_has_stages)]
    attack: Annotated[dict[str, Any], AfterValidator(_describes_attack)]
    target: TargetRecord
    file: FileRecord = Field(default_factory=FileRecord)
    surfaces: list[SurfaceRecord] = Field(default_factory=list)  # those attacked, the strongest first
    surfaces_left: list[UnreadSurface] = Field(default_factory=list)
    hashes: Hashes
    data: str
    inputs: str  # how the model is taken to have seen them
    class_names: list[str]
    feature_names: list[str] | None = None  # of the columns of vectors
    versions: dict[str, str]
    machine: Annotated[dict[str, str | int], AfterValidator(_has_cores)]
    repeat: AuditRequest | None  # None: made from arrays in Python
    redacted: bool
    samples: list[SampleRecord] = Field(repr=False)  # a log of the record must not name them

    @property
    def codes(self) -> list[Code]:
        """Why the audit is inconclusive, each code once; the accepted ones of a pass."""
        return list(dict.fromkeys(doubt.code for doubt in self.doubts))

    @property
    def is_accepted(self) -> bool:
        """Whether it passes only because its policy accepts what the audit could not decide."""
        return self.verdict == "pass" and bool(self.doubts)

    def num_graded(self, least: Grade) -> int:
        """How many samples were recovered with this grade or a better one."""
        counts = {"trace": self.num_recovered, "recognisable": self.num_recognisable, "exact": self.num_exact}
        return counts[least]
