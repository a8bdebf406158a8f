"""A run folder, which `fit` writes, and its audits.

target.safetensors, target.json  what would be published
start.safetensors                the weights training started from (`base` takes it)
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

from unfit.attacker.shelf import NOWHERE, open_shelf
from unfit.auditor.audit import ATTACK_SHARE, MATCH_SHARE, Audit, attack_all, refuse_short
from unfit.auditor.case import Case, Members, read_case
from unfit.auditor.conclude import Evidence, concluded
from unfit.auditor.evidence import evidence, examine, refuse_misfit
from unfit.auditor.pool import Pool
from unfit.auditor.record import Record
from unfit.auditor.request import AuditRequest
from unfit.auditor.samples import Source, draw, draw_test
from unfit.base.budget import limited
from unfit.base.errors import UnfitError
from unfit.base.files import new_folder, read_json, write_json
from unfit.base.nets import parse_architecture
from unfit.base.progress import Report, quiet, reporting, split
from unfit.base.target import Target, save_target, save_weights
from unfit.base.threads import threads
from unfit.lab.checkpoints import Keeper, checkpoint_folder
from unfit.lab.controls import run_baselines, run_controls
from unfit.lab.fit import Fit, fit
from unfit.lab.training import TIME_LIMIT, FitSettings

RUN_FILES = ("target.safetensors", "target.json", "start.safetensors", "members.json", "fit.json")


@threads()
def fit_run(
    source: Source,
    n: int,
    folder: Path,
    settings: FitSettings,
    arch: str = "1000-1000",
    biases: str = "first",
    progress: Report | bool = quiet,
    keeper: Keeper | None = None,
) -> Fit:
    """Draw samples, subtract their mean, train on them, and write a run folder.

    Args:
        source: What `read_source` gives.
        n: How many samples to train on, equally many of each class.
        folder: It must exist; it gets the target, its start, and what it was trained on.
        settings: How to train.
        arch: Hidden layers, such as "1000-1000" or "conv(3,32)-1000".
        biases: "first" layer or all "hidden" layers.
        progress: True shows a bar; a function is called with the fraction done and what is being done.
        keeper: Lets training be stopped and go on.

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
    result = fit(architecture, (train.x, train.y), (judge.x, judge.y), settings, progress, keeper)
    # centred images lie in [-1, 1]; nothing is known about vectors
    target = Target(architecture, result.weights, (-1.0, 1.0) if members.is_image else None)
    save_target(target, folder)
    save_weights(result.start, folder / "start.safetensors")
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
    """`fit_run` into a new folder. Stopped by a kill, Ctrl-C or `max_seconds`, the same call goes on.

    `force` replaces a folder that is there, and drops the checkpoint of a training that differs.
    """
    keeper = Keeper(checkpoint_folder(folder), max_seconds, force)
    with new_folder(folder, force or unfinished(folder), RUN_FILES) as partial:
        result = fit_run(source, n, partial, settings, arch, biases, progress, keeper)
    if result.record["status"] != TIME_LIMIT:
        keeper.remove()
    return result


def unfinished(folder: Path) -> bool:
    """Whether a run ended at its time limit and its checkpoint is still there."""
    path = folder / "fit.json"
    there = checkpoint_folder(folder).is_dir() and path.is_file()
    return there and read_json(path).get("status") == TIME_LIMIT


def source_of(run: Path) -> str:
    """What a run folder says it was trained on: for runs of one's own, since a stranger's may name any file."""
    return str(read_json(run / "members.json")["data"])


@threads()
def audit_run(request: AuditRequest, progress: Report | bool = quiet, parts: Path | None = None) -> Audit:
    """Audit a run folder, or a bare checkpoint whose data are named: what `unfit audit` does.

    Args:
        request: What is audited, against what, by which attack, under which policy.
        progress: True shows a bar; a function is called with the fraction done and what is being done.
        parts: A folder that keeps what the attack has finished. After a kill the same request takes it from there.

    Example:
        >>> audit = unfit.audit_run(unfit.AuditRequest(target="run", attack=unfit.Weights()))
    """
    began = time.perf_counter()
    with reporting(progress, "auditing") as report:
        return _audit(request, read_case(request), report, began, parts)


@threads()
def repeat_audit(record: Record, progress: Report = quiet, parts: Path | None = None) -> Audit:
    """Repeat an audit on the same weights and the same data; only the times differ."""
    if record.repeat is None:
        raise UnfitError("this audit was made from arrays in Python: it does not say where they came from")
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
    again = _audit(record.repeat, case, progress, began, parts)
    if again.record.hashes.candidates != record.hashes.candidates:
        raise UnfitError("this is not what was audited: the candidates differ (by sha256)")
    return again


def _audit(request: AuditRequest, case: Case, progress: Report, began: float, parts: Path | None) -> Audit:
    """The budget is that of the attack and all it takes to judge it; controls and baselines come on top."""
    if request.candidates is None:
        refuse_short(request.attack, case, began)
    examined = examine(case, request.policy)
    refuse_misfit(examined, request.policy)
    shares = (ATTACK_SHARE * request.baselines, 2 * ATTACK_SHARE * request.controls, ATTACK_SHARE + MATCH_SHARE)
    comparing, controlling, attacking = split(progress, shares)
    before = time.perf_counter()
    baselines = run_baselines(request, case, comparing) if request.baselines else ()
    controls = run_controls(request, case, controlling) if request.controls else ()
    began += time.perf_counter() - before

    def measure(form: Case, pool: Pool, num: int, report: Report) -> Evidence:
        return evidence(form, pool, request.policy, examined, request, controls, baselines, report, num)

    shelf = NOWHERE if parts is None else open_shelf(parts, _key(request, case))
    with limited(request.attack.limit, began):
        found = attack_all(case, request.attack, request.candidates, measure, examined.seconds, attacking, shelf)
        return Audit(*concluded(found, request.policy, examined.published))


def _key(request: AuditRequest, case: Case) -> str:
    """Equal for equal weights, samples, requests and versions alone."""
    hashes = [each.sha256 for each in (case.target, case.base, case.private, case.unseen) if each is not None]
    versions = [version(name) for name in ("unfit", "torch", "numpy", "scipy")]
    told = [request.model_dump_json(), str(case.target.architecture), *hashes, *versions]
    return hashlib.sha256("\n".join(told).encode("utf-8", "backslashreplace")).hexdigest()
