"""A run folder, which `fit` writes, and its audits.

target.safetensors, target.json  what would be published
initial.safetensors                the weights training started from (`base` takes it)
members.json                     which samples of which source were trained on
fit.json                         how training went

While `fit_folder` trains, a hidden folder beside the run folder holds its checkpoint.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from unfit.attacker.stage_cache import NOWHERE, open_stage_cache
from unfit.auditor.audit import ATTACK_SHARE, MATCH_SHARE, Audit, run_audit
from unfit.auditor.case import Case, Members, read_case
from unfit.auditor.conclude import Comparisons
from unfit.auditor.record import Record
from unfit.auditor.request import AuditRequest
from unfit.auditor.samples import Source, draw, draw_test
from unfit.base.budget import limited
from unfit.base.device import on_device
from unfit.base.errors import UnfitError
from unfit.base.files import new_folder, read_json, write_json
from unfit.base.nets import parse_architecture
from unfit.base.progress import Report, quiet, reporting, split
from unfit.base.target import Target, save_target, save_weights
from unfit.base.threads import threads
from unfit.lab.checkpoint import TrainingCheckpoint, checkpoint_folder
from unfit.lab.controls import run_baselines, run_controls
from unfit.lab.fit import Fit, fit
from unfit.lab.settings import FitSettings
from unfit.lab.training import TIME_LIMIT

RUN_FILES = ("target.safetensors", "target.json", "initial.safetensors", "members.json", "fit.json")


@threads()
def fit_run(
    source: Source,
    n: int,
    folder: Path,
    settings: FitSettings,
    arch: str = "1000-1000",
    biases: str = "first",
    progress: Report | bool = quiet,
    checkpoint: TrainingCheckpoint | None = None,
    device: str | None = None,
) -> Fit:
    """Draw samples, subtract their mean, train on them, and write a run folder.

    Args:
        source: What `read_source` gives.
        n: How many samples to train on, equally many of each class.
        folder: It must exist; it gets the target, its initial weights, and what it was trained on.
        settings: How to train.
        arch: Hidden layers, such as "1000-1000" or "conv(3,32)-1000".
        biases: "first" layer or all "hidden" layers.
        progress: True shows a bar; a function is called with the fraction done and what is being done.
        checkpoint: Lets training be stopped and resumed.
        device: Where the model is trained: `cpu`, `cuda` or `cuda:1`; by default on CUDA if there is a GPU.

    Example:
        >>> Path("run").mkdir()
        >>> settings = unfit.FitSettings(flow_time=100.0)
        >>> fitted = unfit.fit_run(unfit.read_source("faces"), 20, Path("run"), settings, arch="100")
    """
    members = draw(source, n, settings.seed)
    test = draw_test(source, members, settings.seed)
    num_outputs = 1 if members.num_classes == 2 and settings.loss != "ce" else members.num_classes
    architecture = parse_architecture(arch, members.shape, num_outputs, biases)
    train, judge = members.centred(members.mean), test.centred(members.mean)
    result = fit(architecture, (train.x, train.y), (judge.x, judge.y), settings, progress, checkpoint, device)
    # centred images lie in [-1, 1]; nothing is known about vectors
    target = Target(architecture, result.weights, (-1.0, 1.0) if members.is_image else None)
    save_target(target, folder)
    save_weights(result.initial, folder / "initial.safetensors")
    about = Members(
        data=source.name, classes=source.classes, indices=members.indices.tolist(), sha256=members.sha256
    )
    write_json(folder / "members.json", about.model_dump())
    write_json(folder / "fit.json", {"data": source.name, "n": n, "settings": asdict(settings)} | result.record)
    return result


def fit_folder(
    source: Source,
    n: int,
    folder: Path,
    settings: FitSettings,
    arch: str = "1000-1000",
    biases: str = "first",
    progress: Report = quiet,
    force: bool = False,
    max_seconds: float | None = None,
) -> Fit:
    """`fit_run` into a new folder. Stopped by a kill, Ctrl-C or `max_seconds`, the same call resumes.

    `force` replaces a folder that is there, and drops the checkpoint of a training that differs.
    """
    checkpoint = TrainingCheckpoint(checkpoint_folder(folder), max_seconds, force)
    with new_folder(folder, force or unfinished(folder), RUN_FILES) as partial:
        result = fit_run(source, n, partial, settings, arch, biases, progress, checkpoint)
    if result.record["status"] != TIME_LIMIT:
        checkpoint.remove()
    return result


def unfinished(folder: Path) -> bool:
    """Whether a run ended at its time limit and its checkpoint is still there."""
    path = folder / "fit.json"
    there = checkpoint_folder(folder).is_dir() and path.is_file()
    return there and read_json(path).get("status") == TIME_LIMIT


@threads()
def audit_run(
    request: AuditRequest,
    progress: Report | bool = quiet,
    parts: Path | None = None,
    device: str | None = None,
) -> Audit:
    """Audit a run folder, or a bare checkpoint whose data are named: what `unfit audit` does.

    Args:
        request: What is audited, against what, by which attack, under which policy.
        progress: True shows a bar; a function is called with the fraction done and what is being done.
        parts: A folder that keeps what the attack has finished. After a kill the same request takes it from there.
        device: Where it is computed: `cpu`, `cuda` or `cuda:1`; by default on CUDA if there is a GPU.

    Example:
        >>> audit = unfit.audit_run(unfit.AuditRequest(target="run", attack=unfit.Weights()))
    """
    began = time.perf_counter()
    with on_device(device), reporting(progress, "auditing") as report:
        with limited(request.attack.limit, began):
            case = read_case(request)
        return _audit(request, case, report, began, parts)


@threads()
def repeat_audit(
    record: Record, progress: Report = quiet, parts: Path | None = None, author: str | None = None
) -> Audit:
    """Repeat an audit on the same weights and the same data; only times, date and author differ."""
    if record.repeat is None:
        raise UnfitError("this audit was made from arrays in Python: it does not name their source")
    if record.redacted:
        raise UnfitError(
            "this audit is redacted and holds no paths: only one made with --no-redact can be repeated"
        )
    began, case = time.perf_counter(), read_case(record.repeat)
    now = (case.target, case.private, case.unseen, case.base)
    before = (record.target.sha256, record.hashes.private, record.hashes.unseen, record.hashes.base)
    names = ("the target's weights", "the private samples", "the unseen samples", "the base's weights")
    changed = [
        name for name, new, old in zip(names, now, before, strict=True) if (new.sha256 if new else None) != old
    ]
    if changed:
        raise UnfitError(f"this is not what was audited: {' and '.join(changed)} differ (by sha256)")
    again = _audit(record.repeat.model_copy(update={"author": author}), case, progress, began, parts)
    if again.record.hashes.candidates != record.hashes.candidates:
        raise UnfitError("this is not what was audited: the candidates differ (by sha256)")
    return again


def _audit(request: AuditRequest, case: Case, progress: Report, began: float, parts: Path | None) -> Audit:
    """With the controls and baselines that the request asks for: each takes as long as an attack."""

    def compare(report: Report) -> Comparisons:
        comparing, controlling = split(report, (request.baselines, 2 * request.controls))
        baselines = run_baselines(request, case, comparing) if request.baselines else ()
        return Comparisons(run_controls(request, case, controlling) if request.controls else (), baselines)

    return run_audit(
        case,
        request.attack,
        request.policy,
        request.candidates,
        first=request.first,
        request=request,
        compare=compare,
        compare_share=ATTACK_SHARE * (request.baselines + 2 * request.controls) / (ATTACK_SHARE + MATCH_SHARE),
        progress=progress,
        began=began,
        cache=NOWHERE if parts is None else open_stage_cache(parts, _key(request, case)),
    )


def _key(request: AuditRequest, case: Case) -> str:
    """Equal for equal weights, samples, requests and versions alone."""
    hashes = [each.sha256 for each in (case.target, case.base, case.private, case.unseen) if each is not None]
    versions = [version(name) for name in ("unfit", "torch", "numpy", "scipy")]
    told = [request.model_dump_json(exclude={"author"}), str(case.target.architecture), *hashes, *versions]
    return hashlib.sha256("\n".join(told).encode("utf-8", "backslashreplace")).hexdigest()
