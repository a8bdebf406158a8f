"""The auditor's side: attack, match against private and unseen samples, decide, and keep the evidence."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypedDict

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unfit.attacker.attacks import Method, Score, Solver, attack
from unfit.attacker.candidates import Candidates, Part
from unfit.attacker.candidates import pool as pool_parts
from unfit.attacker.mixtures import read_mixtures
from unfit.auditor.arrays import Arrays, as_samples, sample_shape
from unfit.auditor.calibration import calibrate, chance, interval
from unfit.auditor.match import GOOD, HIGH, WINDOWS, Matches, l2, match, ncc, nearest, psnr, vote_factor
from unfit.auditor.pool import Pool, attack_pool, given_pool, sweep_record
from unfit.auditor.record import (
    SCHEMA_VERSION,
    Hashes,
    Point,
    Policy,
    Rate,
    Record,
    SampleRecord,
    Similarity,
    Sweep,
    TargetRecord,
    Verdict,
)
from unfit.auditor.samples import Samples
from unfit.auditor.verdict import EXIT_CODES, Effort, decide
from unfit.base.errors import NotApplicableError, UnfitError, UsageError
from unfit.base.files import as_json, new_file, read_as, read_json, write_json
from unfit.base.modules import as_base, as_target
from unfit.base.nets import margin, outputs
from unfit.base.progress import Report, quiet
from unfit.base.target import Target

SAME = 0.9  # correlation above which a proven candidate is taken to be this sample
RATES = (0.01, 0.001)  # false-positive rates that are reported where there are unseen samples enough
MOST_POINTS = 12  # of the curve over time …
MOST_PAIRS = 500_000_000  # … fewer where all their pairs of sample and candidate would be more


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
        from unfit.auditor.report.page import page  # which itself needs this module

        return _written(page(self), path)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from unfit.auditor.report.notebook import picture

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
        return Audit(load_record(folder), load_file(folder / "arrays.safetensors"))
    except (SafetensorError, OSError) as error:
        raise UnfitError(f"{folder}: not the folder of an audit: {error}") from error


def load_record(path: Path) -> Record:
    """An `audit.json`, or that of a folder, of this version of the format."""
    path = path / "audit.json" if path.is_dir() else path
    found = read_json(path).get("schema_version")
    if not isinstance(found, int):
        raise UnfitError(f"{path}: not an audit: it has no schema_version")
    if found != SCHEMA_VERSION:
        raise UnfitError(
            f"{path}: schema_version {found}, this unfit reads {SCHEMA_VERSION}: make the audit again, "
            f"or use an unfit {'older' if found < SCHEMA_VERSION else 'newer'} than {version('unfit')}"
        )
    return read_as(Record, path)


def audit(
    model: Target | nn.Module,
    private: Arrays,
    unseen: Arrays,
    *,
    candidates: Candidates | str | Path | None = None,
    method: Method = "auto",
    base: Target | nn.Module | None = None,
    solver: Solver | None = None,
    score: Score | None = None,
    num_candidates: int | None = None,
    budget: float | None = None,
    seed: int = 0,
    window: int = 11,
    policy: Policy | None = None,
    data: str = "",
    progress: Report = quiet,
) -> Audit:
    """Which of the private samples do the weights give away?

    `private` is what the model was trained on, `unseen` as many samples or more of the same kind that it never
    saw: the control. Either (x, y), tensors or arrays, x exactly as the model sees it; or `Samples` as stored,
    less the mean of the private ones. `candidates` that were made from this model before (they themselves, their
    file, or the folder of a sweep) are searched instead of attacking. `data` names the source in the record.
    """
    target = as_target(model, sample_shape(private))
    private, unseen = as_samples(private, unseen, target.architecture.input_shape, target.architecture.num_outputs)
    base = as_base(base, target)
    policy = policy or Policy()
    _check(target, private, unseen, policy.fpr, window)
    began = time.perf_counter()
    options: Options = {"solver": solver, "score": score, "num_candidates": num_candidates, "budget": budget}
    if candidates is None:
        pool = attack_pool(try_attack(target, method, base, seed, progress, options))
        began = time.perf_counter()
    else:
        _refuse_attack(method, base, options)
        pool = given_pool(candidates, target)
    mean, vote = private.mean, vote_factor(target.architecture)
    times, stage = stages(pool, max(len(private), len(unseen)))
    matches, control = (
        match(pool.blocks, each, mean, window, vote, stage, pool.copies) for each in (private, unseen)
    )
    outs = [_outputs(target, samples.centred(mean)) for samples in (private, unseen)]
    counts = _counts(matches, control, policy.fpr)
    samples = _samples(private, pool, matches, outs[0], counts["threshold"])
    num_proven = sum(sample.proven for sample in samples)
    sweep = _sweep(pool, private, matches, counts["threshold"], window, vote)
    seconds = {"attack": pool.facts["seconds"], "match": time.perf_counter() - began}
    effort = Effort(pool.attack["method"], pool.facts["status"], seconds["attack"], len(pool), pool.facts["rank"])
    verdict, reasons = decide(counts["num_recovered"], num_proven, len(private), len(unseen), effort, policy)
    record = Record(
        schema_version=SCHEMA_VERSION,
        verdict=verdict,
        reasons=reasons,
        policy=policy,
        num_candidates=len(pool),
        num_proven=int((pool.proven & ~pool.copies).sum()),
        estimated_num_samples=pool.facts["estimated_num_samples"],
        similarity=Similarity(
            name="ssim" if private.is_image else "relative error",
            window=window if private.is_image else None,
            vote=vote,
        ),
        **counts,
        over_time=_over_time(pool, times, stage, matches, control, policy.fpr),
        controls=[],
        baselines=[],
        sweep=sweep,
        rank=pool.facts["rank"],
        noise_edge=pool.facts["noise_edge"],
        seconds={name: round(value, 3) for name, value in seconds.items()},
        attack=pool.attack,
        target=TargetRecord(
            sha256=target.sha256,
            architecture=str(target.architecture),
            num_parameters=target.architecture.num_parameters,
        ),
        hashes=Hashes(
            private=private.sha256,
            unseen=unseen.sha256,
            base=base.sha256 if base else None,
            candidates=pool.sha256 if candidates is not None else None,
        ),
        data=data,
        class_names=list(private.class_names),
        versions=_versions(),
        machine={"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count() or 1},
        repeat=None,
        redacted=False,
        samples=samples,
    )
    arrays = {
        "original": private.x,
        "reconstruction": matches.shown,
        "unseen": unseen.x,
        "nearest_unseen": nearest(matches.centred, unseen.x - mean),
        "similarity": matches.similarity,
        "unseen_similarity": control.similarity,
        "output": outs[0],
        "unseen_output": outs[1],
        "spectrum": torch.tensor(pool.facts["spectrum"], dtype=torch.float64),
    }
    return Audit(record, arrays)


class Options(TypedDict):
    """Of an attack."""

    solver: Solver | None
    score: Score | None
    num_candidates: int | None
    budget: float | None


def try_attack(
    target: Target, method: Method, base: Target | None, seed: int, progress: Report, options: Options
) -> Candidates:
    """The attack's candidates; none, and why, where it does not cover this net."""
    try:
        return attack(target, method, base, seed, progress, **options)
    except NotApplicableError as error:
        nothing = Part("not applicable", torch.zeros(0, *target.architecture.input_shape))
        made: dict[str, Any] = {"method": method, "settings": {}, "seed": seed, "base": base is not None}
        facts = read_mixtures(target, base).facts() | {"status": f"not applicable: {error}", "seconds": 0.0}
        return pool_parts([nothing], made, facts)


def _refuse_attack(method: Method, base: Target | None, options: Options) -> None:
    """Candidates that were made before are not made again: what would say how is a mistake worth saying."""
    given = [name for name, value in options.items() if value is not None]
    given += ["method"] * (method != "auto") + ["base"] * (base is not None)
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"with --candidates nothing is attacked: leave out {names}")


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
    if (num := num_shared(private, unseen)) > fpr * len(unseen):  # they would raise the threshold and hide a leak
        problems.append(f"{num} of {len(unseen)} unseen samples are private ones: name others with --unseen")
    if problems:
        raise UnfitError("; ".join(problems))
    if private.is_image and min(shape[1:]) <= window // 2:
        raise UsageError(f"images of {shape[2]}×{shape[1]} are too small for an SSIM window of {window}: use 3")
    if window not in WINDOWS:
        raise UsageError(f"unknown SSIM window {window}; choose one of: {', '.join(map(str, WINDOWS))}")


def num_shared(private: Samples, unseen: Samples) -> int:
    """How many unseen samples are exactly equal to a private one."""
    known = {row.numpy().tobytes() for row in private.x}
    return sum(row.numpy().tobytes() in known for row in unseen.x)


def _outputs(target: Target, samples: Samples) -> Tensor:
    phi = outputs(target.net(), samples.x)
    return phi[:, 0] if phi.shape[1] == 1 else margin(phi, samples.y)


def stages(pool: Pool, n: int) -> tuple[list[float], Tensor]:
    """The times of the curve over time, and for each candidate the first of them at which it was there."""
    times = pool.finished.unique()
    num = min(len(times), MOST_POINTS, max(1, MOST_PAIRS // max(1, len(pool) * n)))
    kept = times[torch.arange(1, num + 1) * len(times) // max(1, num) - 1]  # the last one always
    return kept.tolist(), torch.searchsorted(kept, pool.finished)


def _over_time(
    pool: Pool, times: list[float], stage: Tensor, matches: Matches, control: Matches, fpr: float
) -> list[Point]:
    """Of a sweep a point has whole trials."""
    points = []
    for i, (seconds, own, unseen) in enumerate(zip(times, matches.over_time, control.over_time, strict=True)):
        threshold = calibrate(unseen, fpr)
        there = stage <= i
        points.append(
            Point(
                seconds=round(seconds, 3),
                num_trials=None if pool.parameters is None else pool.num_blocks(there),
                num_candidates=int(there.sum()),
                num_recovered=int((own > threshold).sum()),
                num_recovered_unseen=int((unseen > threshold).sum()),
            )
        )
    return points


def _sweep(
    pool: Pool, private: Samples, matches: Matches, threshold: float, window: int, vote: float
) -> Sweep | None:
    """What each trial gave, by itself and of the whole."""
    if pool.parameters is None:
        return None
    numbers = range(len(pool.blocks.sizes))
    alone = (match(pool.blocks.read(i), private, private.mean, window, vote).similarity for i in numbers)
    num_alone = [int((similarity > threshold).sum()) for similarity in alone]
    return sweep_record(pool, matches.similarity > threshold, matches.nearest, num_alone)


def _counts(matches: Matches, control: Matches, fpr: float) -> dict[str, Any]:
    """Fields of the record: how many are above which threshold, and how sure that is."""
    own, unseen = matches.similarity, control.similarity
    threshold = calibrate(unseen, fpr)
    num_recovered = int((own > threshold).sum())
    return {
        "num_samples": len(own),
        "num_unseen": len(unseen),
        "num_good": int((own > GOOD).sum()),
        "num_good_unseen": int((unseen > GOOD).sum()),
        "num_recovered": num_recovered,
        "num_recovered_unseen": int((unseen > threshold).sum()),
        "recovered_interval": interval(num_recovered, len(own)),
        "num_recovered_high": int((own > HIGH).sum()),
        "num_assigned": int((matches.assigned > calibrate(control.assigned, fpr)).sum()),
        "threshold": threshold,
        "fpr": fpr,
        "p_value": chance(num_recovered, len(own), len(unseen), fpr),
        "rates": [_rate(own, unseen, each) for each in RATES if each * len(unseen) >= 1],
    }


def _rate(own: Tensor, unseen: Tensor, fpr: float) -> Rate:
    threshold, n = calibrate(unseen, fpr), len(own)
    num = int((own > threshold).sum())
    return Rate(fpr=fpr, threshold=threshold, num_recovered=num, tpr=num / n, interval=interval(num, n))


def _versions() -> dict[str, str]:
    packages = ("unfit", "torch", "numpy", "scipy")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def _samples(
    private: Samples, pool: Pool, matches: Matches, output: Tensor, threshold: float
) -> list[SampleRecord]:
    pair = (matches.shown, private.x)
    columns = {
        "index": private.indices,
        "label": private.y,
        "output": output,
        "similarity": matches.similarity,
        "assigned": matches.assigned,
        "ncc": ncc(*pair),
        "l2": l2(*pair),
        "recovered": matches.similarity > threshold,
        "proven": _proven(pool, private, matches),
    }
    decibels = psnr(*pair).tolist() if private.is_image else [None] * len(private)
    rows = zip(decibels, *(column.tolist() for column in columns.values()), strict=True)
    return [SampleRecord(psnr=p, **dict(zip(columns, row, strict=True))) for p, *row in rows]


def _proven(pool: Pool, private: Samples, matches: Matches) -> Tensor:
    """Whose nearest candidate has a certificate and is clearly this sample, not merely the nearest to it."""
    if not pool.proven.any():
        return torch.zeros(len(private), dtype=torch.bool)
    correlation = ncc(pool.blocks.take(matches.nearest), private.x - private.mean)
    return pool.proven[matches.nearest] & (correlation > SAME)
