"""A run folder: what `fit` writes, and how the auditor finds the private set again.

target.safetensors, target.json  what would be published
start.safetensors                the weights training started from (`--base` takes it)
members.json                     which samples of which source were trained on
fit.json                         how training went
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from unfit.attacker.attacks import Method, Score, Solver
from unfit.auditor.audit import Audit, audit
from unfit.auditor.record import Policy, Record, Repeat
from unfit.auditor.samples import Samples, Source, draw, draw_unseen
from unfit.auditor.sources import absolute_name, read_source
from unfit.base.errors import UnfitError, UsageError
from unfit.base.files import read_as, write_json
from unfit.base.nets import parse_architecture
from unfit.base.progress import Report, quiet
from unfit.base.target import Target, load_base, load_target, save_target, save_weights
from unfit.lab.controls import Given, run_baselines, run_controls
from unfit.lab.fit import Fit, FitSettings, fit

RUN_FILES = ("target.safetensors", "target.json", "start.safetensors", "members.json", "fit.json")


class Members(BaseModel):
    """`members.json`. The indices are enough where the source is named elsewhere (`--members` with `--data`)."""

    model_config = ConfigDict(extra="forbid")
    indices: Annotated[list[int], Field(min_length=2)]
    data: str | None = None
    classes: str | None = None
    sha256: str | None = None


def fit_run(
    source: Source,
    n: int,
    folder: Path,
    settings: FitSettings,
    arch: str = "1000-1000",
    biases: str = "first",
    progress: Report = quiet,
) -> Fit:
    """Draw n members, subtract their mean, train, and write the run folder."""
    members = draw(source, n, settings.seed)
    test = draw_unseen(source, members, None, settings.seed)
    num_outputs = 1 if members.num_classes == 2 and settings.loss != "ce" else members.num_classes
    architecture = parse_architecture(arch, members.shape, num_outputs, biases)
    train, judge = members.centred(members.mean), test.centred(members.mean)
    result = fit(architecture, (train.x, train.y), (judge.x, judge.y), settings, progress)
    # centred images lie in [-1, 1]; of vectors nothing is known
    target = Target(architecture, result.weights, (-1.0, 1.0) if members.is_image else None)
    save_target(target, folder)
    save_weights(result.start, folder / "start.safetensors")
    about = Members(
        data=source.name, classes=source.classes, indices=members.indices.tolist(), sha256=members.sha256
    )
    write_json(folder / "members.json", about.model_dump())
    write_json(folder / "fit.json", {"data": source.name, "n": n, "settings": asdict(settings)} | result.record)
    return result


def private_set(
    target: Path, data: str | None, members: Path | None, classes: str | None
) -> tuple[Source, Samples]:
    """The source and the samples trained on, of a run folder or as named.

    Without a list of members (`members.json` of a run, or one given) all of the source's training part is private.
    """
    if members is None and target.is_dir():
        members = target / "members.json"
    about = read_as(Members, members) if members else None
    name = data or (about.data if about else None)
    if not name:
        raise UnfitError("which data was it trained on? Name them with --data, or audit a run folder")
    source = read_source(name, classes or (about.classes if about else None))
    if about is None:
        return source, source.train.take((source.train.labels >= 0).nonzero()[0])
    private = source.train.take(about.indices)
    if about.sha256 and private.sha256 != about.sha256:
        raise UnfitError(f"{source.name} has changed since the model was trained: its members' hash differs")
    return source, private


def unseen_set(
    source: Source,
    private: Samples,
    other: str | None,
    classes: str | None,
    seed: int,
    num_unseen: int | None = None,
) -> Samples:
    """Samples the model never saw, balanced: of the same source, or of another if one is named.

    As many as it was trained on, or `num_unseen`; fewer where there are no more.
    """
    if num_unseen is not None and num_unseen < private.num_classes:
        raise UsageError(f"{num_unseen} unseen samples are fewer than the {private.num_classes} classes")
    n = num_unseen or len(private)
    n -= n % private.num_classes
    if other is None:
        return draw_unseen(source, private, n, seed)
    part = read_source(other, classes or source.classes).train
    return part.take(part.balanced(min(n, part.largest_balanced()), (seed, 1)))


def audit_run(
    path: Path,
    *,
    data: str | None = None,
    members: Path | None = None,
    unseen: str | None = None,
    num_unseen: int | None = None,
    classes: str | None = None,
    candidates: Path | None = None,
    method: Method = "auto",
    base: Path | None = None,
    solver: Solver | None = None,
    score: Score | None = None,
    num_candidates: int | None = None,
    budget: float | None = None,
    window: int = 11,
    seed: int = 0,
    policy: Policy | None = None,
    controls: bool = False,
    baselines: bool = False,
    progress: Report = quiet,
) -> Audit:
    """Audit a run folder, or a bare checkpoint whose data are named.

    `candidates`, a file of an attack or the folder of a sweep, are searched instead of attacking. `controls`
    repeats the attack where nothing can be found; `baselines` adds what simpler methods find.
    """
    if candidates and controls:
        raise UsageError("with --candidates nothing is attacked, so there is nothing for --controls to repeat")
    asked = Repeat.model_construct(  # not validated here: `audit` has better words for what is wrong
        target=str(path.absolute()),
        data=data and absolute_name(data),
        members=members and str(members.absolute()),
        unseen=unseen and absolute_name(unseen),
        num_unseen=num_unseen,
        classes=classes,
        candidates=candidates and str(candidates.absolute()),
        method=method,
        base=base and str(base.absolute()),
        solver=solver,
        score=score,
        num_candidates=num_candidates,
        budget=budget,
        window=window,
        seed=seed,
        policy=policy or Policy(),
        controls=controls,
        baselines=baselines,
    )
    return _audit(asked, _read(asked), progress)


def repeat_audit(record: Record, progress: Report = quiet) -> Audit:
    """The same audit again, of the same weights and the same data: all is equal but the times."""
    if record.repeat is None:
        raise UnfitError("this audit was made from arrays in Python: it does not say where they came from")
    given = _read(record.repeat)
    now = (given.target, given.private, given.unseen, given.base)
    before = (record.target.sha256, record.hashes.private, record.hashes.unseen, record.hashes.base)
    names = ("the target's weights", "the private samples", "the unseen samples", "the base's weights")
    changed = [
        name for name, new, old in zip(names, now, before, strict=True) if (new.sha256 if new else None) != old
    ]
    if changed:
        raise UnfitError(f"not what the audit was made from: {' and '.join(changed)} differ (by sha256)")
    again = _audit(record.repeat, given, progress)
    if again.record.hashes.candidates != record.hashes.candidates:
        raise UnfitError("not what the audit was made from: the candidates differ (by sha256)")
    return again


def _read(asked: Repeat) -> Given:
    path, members = Path(asked.target), Path(asked.members) if asked.members else None
    target = load_target(path)
    source, private = private_set(path, asked.data, members, asked.classes)
    unseen = unseen_set(source, private, asked.unseen, asked.classes, asked.seed, asked.num_unseen)
    return Given(target, load_base(asked.base, target) if asked.base else None, source, private, unseen)


def _audit(asked: Repeat, given: Given, progress: Report) -> Audit:
    result = audit(
        given.target,
        given.private,
        given.unseen,
        candidates=asked.candidates,
        method=asked.method,
        base=given.base,
        solver=asked.solver,
        score=asked.score,
        num_candidates=asked.num_candidates,
        budget=asked.budget,
        seed=asked.seed,
        window=asked.window,
        policy=asked.policy,
        data=given.source.name,
        progress=progress,
    )
    more = {
        "repeat": asked,
        "baselines": run_baselines(asked, given, progress) if asked.baselines else [],
        "controls": run_controls(asked, given, progress) if asked.controls else [],
    }
    return replace(result, record=result.record.model_copy(update=more))
