"""The auditor's side: attack, match against private and unseen samples, decide, and keep the evidence."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from unfit.arrays import Given, as_samples, sample_shape
from unfit.attacks import Method, Score, Solver, attack
from unfit.candidates import Candidates
from unfit.errors import UnfitError, UsageError
from unfit.files import as_json, new_file, read_json, write_json
from unfit.match import CONV_VOTE, GOOD, HIGH, VOTE, WINDOWS, Matches, calibrate, chance, match, nearest, normalise
from unfit.modules import as_base, as_target
from unfit.nets import margin, outputs
from unfit.progress import Report, quiet
from unfit.samples import Samples
from unfit.target import Target

SCHEMA_VERSION = 1
SAME = 0.9  # correlation above which a proven candidate is taken to be this sample
SIGNIFICANT = 0.01  # a count that chance alone gives more often than this is no evidence
Verdict = Literal["pass", "leak", "inconclusive"]
EXIT_CODES: dict[Verdict, int] = {"pass": 0, "leak": 1, "inconclusive": 3}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class SampleRecord(Strict):
    """One training sample. `output` is Φ, or with several outputs the margin Φ_y − max_{j≠y} Φ_j."""

    index: int
    label: int
    output: float
    similarity: float
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


class Record(Strict):
    """`audit.json`."""

    schema_version: int
    verdict: Verdict
    reasons: list[str]
    num_samples: int
    num_unseen: int
    num_candidates: int
    num_good: int
    num_good_unseen: int
    num_recovered: int
    num_recovered_unseen: int
    num_recovered_high: int
    num_proven: int
    estimated_num_samples: int | None
    similarity: Similarity
    threshold: float
    fpr: float
    p_value: float
    rank: int
    noise_edge: float
    seconds: dict[str, float]
    attack: dict[str, Any]
    target: TargetRecord
    data: str
    class_names: list[str]
    versions: dict[str, str]
    machine: dict[str, str | int]
    samples: list[SampleRecord]


@dataclass(frozen=True, eq=False)
class Audit:
    """The whole evidence: the record, and the arrays that the page is drawn from."""

    record: Record
    arrays: dict[str, Tensor]

    @property
    def verdict(self) -> Verdict:
        return self.record.verdict

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def recovered(self) -> list[int | str]:
        """The indices of the recovered samples; in a redacted audit their hashes."""
        return [sample.index for sample in self.record.samples if sample.recovered]

    def to_json(self, path: str | Path | None = None) -> str:
        """The content of `audit.json`, also written to `path` if one is given."""
        return _written(as_json(self.record.model_dump(mode="json")), path)

    def to_html(self, path: str | Path | None = None) -> str:
        """The page, self-contained, also written to `path` if one is given."""
        from unfit.report.page import page  # which itself needs this module

        return _written(page(self), path)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from unfit.report.notebook import picture

        return picture(self)

    def save(self, folder: Path) -> None:
        """Write `audit.json` and `arrays.safetensors`; the page is built from these alone."""
        save_file({name: value.contiguous() for name, value in self.arrays.items()}, folder / "arrays.safetensors")
        write_json(folder / "audit.json", self.record.model_dump(mode="json"))


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        with new_file(Path(path), force=True) as file:
            file.write_text(text, encoding="utf-8")
    return text


def load_audit(folder: Path) -> Audit:
    try:
        return Audit(Record(**read_json(folder / "audit.json")), load_file(folder / "arrays.safetensors"))
    except (ValidationError, SafetensorError, OSError) as error:
        raise UnfitError(f"{folder}: not the folder of an audit: {error}") from error


def audit(
    model: Target | nn.Module,
    private: Given,
    unseen: Given,
    *,
    method: Method = "auto",
    base: Target | nn.Module | None = None,
    solver: Solver | None = None,
    score: Score | None = None,
    num_candidates: int | None = None,
    budget: float | None = None,
    seed: int = 0,
    window: int = 11,
    fpr: float = 0.01,
    data: str = "",
    progress: Report = quiet,
) -> Audit:
    """Which of the private samples do the weights give away?

    `private` is what the model was trained on, `unseen` as many samples of the same kind that it never saw: the
    control. Either (x, y), tensors or arrays, x exactly as the model sees it; or `Samples` as stored, from which
    the mean of the private ones is subtracted. `data` names the source in the record.
    """
    target = as_target(model, sample_shape(private))
    private, unseen = as_samples(private, unseen, target.architecture.input_shape, target.architecture.num_outputs)
    base = as_base(base, target)
    _check(target, private, unseen, fpr, window)
    began = time.perf_counter()
    candidates = attack(
        target,
        method,
        base,
        seed,
        progress,
        solver=solver,
        score=score,
        num_candidates=num_candidates,
        budget=budget,
    )
    attacked = time.perf_counter()
    mean = private.mean
    vote = CONV_VOTE if target.architecture.conv else VOTE
    matches = match(candidates.x, private, mean, window, vote)
    control = match(candidates.x, unseen, mean, window, vote)
    seconds = {"attack": attacked - began, "match": time.perf_counter() - attacked}
    outs = [_outputs(target, samples.centred(mean)) for samples in (private, unseen)]
    record = _record(target, private, candidates, matches, control, outs[0], (window, vote, fpr, data, seconds))
    closest = nearest(matches.centred, unseen.x - mean)
    arrays = {
        "original": private.x,
        "reconstruction": matches.shown,
        "unseen": unseen.x,
        "nearest_unseen": closest,
        "similarity": matches.similarity,
        "unseen_similarity": control.similarity,
        "output": outs[0],
        "unseen_output": outs[1],
        "spectrum": torch.tensor(candidates.facts["spectrum"], dtype=torch.float64),
    }
    return Audit(record, arrays)


def _check(target: Target, private: Samples, unseen: Samples, fpr: float, window: int) -> None:
    shape = target.architecture.input_shape
    classes = max(target.architecture.num_outputs, 2)
    problems = [
        f"the {name} samples have shape {samples.shape}, the net takes {shape}"
        for name, samples in (("private", private), ("unseen", unseen))
        if samples.shape != shape
    ]
    if private.num_classes != classes:
        problems.append(
            f"the data have {private.num_classes} classes, the net tells {classes} apart (see --classes)"
        )
    if problems:
        raise UnfitError("; ".join(problems))
    if not 0 < fpr < 1:
        raise UsageError(f"fpr must be between 0 and 1, not {fpr}")
    if private.is_image and min(shape[1:]) <= window // 2:
        raise UsageError(f"images of {shape[2]}×{shape[1]} are too small for an SSIM window of {window}: use 3")
    if window not in WINDOWS:
        raise UsageError(f"unknown SSIM window {window}; choose one of: {', '.join(map(str, WINDOWS))}")


def _outputs(target: Target, samples: Samples) -> Tensor:
    phi = outputs(target.net(), samples.x)
    return phi[:, 0] if phi.shape[1] == 1 else margin(phi, samples.y)


def _record(
    target: Target,
    private: Samples,
    candidates: Candidates,
    matches: Matches,
    control: Matches,
    output: Tensor,
    settings: tuple[int, float, float, str, dict[str, float]],
) -> Record:
    window, vote, fpr, data, seconds = settings
    threshold = calibrate(control.similarity, fpr)
    recovered = matches.similarity > threshold
    n, num_unseen, num_recovered = len(private), len(control.similarity), int(recovered.sum())
    p_value = chance(num_recovered, n, num_unseen, fpr)
    verdict, reasons = decide(num_recovered, n, num_unseen, fpr, len(candidates))
    proven = _proven(candidates, private, matches)
    columns = (private.indices, private.y, output, matches.similarity, recovered, proven)
    return Record(
        schema_version=SCHEMA_VERSION,
        verdict=verdict,
        reasons=reasons,
        num_samples=n,
        num_unseen=num_unseen,
        num_candidates=len(candidates),
        num_good=int((matches.similarity > GOOD).sum()),
        num_good_unseen=int((control.similarity > GOOD).sum()),
        num_recovered=num_recovered,
        num_recovered_unseen=int((control.similarity > threshold).sum()),
        num_recovered_high=int((matches.similarity > HIGH).sum()),
        num_proven=int(candidates.proven.sum()),
        estimated_num_samples=candidates.facts["estimated_num_samples"],
        similarity=Similarity(name="ssim", window=window, vote=vote)
        if private.is_image
        else Similarity(name="relative error", window=None, vote=vote),
        threshold=threshold,
        fpr=fpr,
        p_value=p_value,
        rank=candidates.facts["rank"],
        noise_edge=candidates.facts["noise_edge"],
        seconds={stage: round(value, 3) for stage, value in seconds.items()},
        attack=candidates.attack,
        target=TargetRecord(
            sha256=target.sha256,
            architecture=str(target.architecture),
            num_parameters=target.architecture.num_parameters,
        ),
        data=data,
        class_names=list(private.class_names),
        versions={"python": platform.python_version()}
        | {name: version(name) for name in ("unfit", "torch", "numpy", "scipy")},
        machine={"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count() or 1},
        samples=[
            SampleRecord(index=i, label=y, output=o, similarity=s, recovered=r, proven=p)
            for i, y, o, s, r, p in zip(*(column.tolist() for column in columns), strict=True)
        ],
    )


def _proven(candidates: Candidates, private: Samples, matches: Matches) -> Tensor:
    """Whose nearest candidate has a certificate and is clearly this sample, not merely the nearest to it."""
    if not candidates.proven.any():
        return torch.zeros(len(private), dtype=torch.bool)
    near = candidates.x[matches.nearest].flatten(1)
    correlation = F.cosine_similarity(normalise(near), normalise((private.x - private.mean).flatten(1)))
    return candidates.proven[matches.nearest] & (correlation > SAME)


def decide(
    num_recovered: int, n: int, num_unseen: int, fpr: float, num_candidates: int
) -> tuple[Verdict, list[str]]:
    """The verdict and why. Where the attack had nothing to work on, or could prove nothing, it is never `pass`."""
    p_value = chance(num_recovered, n, num_unseen, fpr)
    count = f"{num_recovered} of {n} training samples are recovered"
    if not num_candidates:
        return "inconclusive", [
            "the first layer shows nothing above its noise, so this attack had nothing to work on"
        ]
    if num_recovered and p_value < SIGNIFICANT:
        return "leak", [f"{count}; chance alone would give that many {_odds(p_value)}"]
    if chance(n, n, num_unseen, fpr) >= SIGNIFICANT:
        return "inconclusive", [f"{n} samples and {num_unseen} unseen ones are too few to tell a leak from chance"]
    return "pass", [f"{count}; chance alone would give that many {_odds(p_value)}; another attack may find more"]


def _odds(p_value: float) -> str:
    """In words that need no statistics."""
    if p_value < 1e-6:
        return "less than once in a million audits"
    return "in most audits" if p_value > 0.5 else f"about once in {round(1 / p_value):,} audits"
