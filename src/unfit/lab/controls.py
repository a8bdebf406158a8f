"""What an audit's counts are compared with: simpler methods, and models in which there is nothing to find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import TypeAdapter, ValidationError

from unfit.attacker.attacks.inversion import Inversion
from unfit.attacker.attacks.weights import Weights
from unfit.attacker.candidates import Candidates
from unfit.auditor.audit import try_attack
from unfit.auditor.calibration import calibrate
from unfit.auditor.case import Case
from unfit.auditor.match import GOOD, match
from unfit.auditor.policy import Policy
from unfit.auditor.record import Baseline, Control
from unfit.auditor.request import AuditRequest
from unfit.auditor.samples import Samples
from unfit.base.errors import UnfitError, explained
from unfit.base.files import read_json
from unfit.base.nets import initialise
from unfit.base.progress import Report, quiet, split
from unfit.base.target import Target
from unfit.lab.fit import fit
from unfit.lab.settings import FitSettings

MOST_EPOCHS = 1_000_000  # as long as the papers train; anybody's file could ask for any number
SETTINGS = TypeAdapter(FitSettings)
FRESH = 1000  # added to the seed of an untrained model: not the initial weights that the target had


def run_baselines(request: AuditRequest, case: Case, progress: Report = quiet) -> list[Baseline]:
    """What the papers compare with: the weights as images, and model inversion."""
    attacks: list[Weights | Inversion] = [Weights(seed=request.seed), Inversion(seed=request.seed)]
    reports = split(progress, (1, 9))  # the weights only have to be read
    return [
        Baseline(method=attack.method, **_counts(attack.run(case.layer, report), request.policy, case))
        for attack, report in zip(attacks, reports, strict=True)
    ]


def run_controls(request: AuditRequest, case: Case, progress: Report = quiet) -> list[Control]:
    """The same attack on a model that learnt nothing, and on one that learnt other samples of the same source.

    The second needs a run folder, whose `fit.json` says how to train, and samples left to train on.
    """
    found = []
    for (name, control), report in zip(_nets(request, case), split(progress, (1, 1)), strict=False):
        counts = _counts(try_attack(control, request.attack, report), request.policy, case)
        del counts["num_good_unseen"]
        found.append(Control(name=name, **counts))
    return found


Name = Literal["untrained model", "model trained on other samples"]


def _nets(request: AuditRequest, case: Case) -> Iterator[tuple[Name, Case]]:
    """The same case with other models. An untrained one has no change since a base: it is attacked as it is."""
    settings = fit_settings(Path(request.target)) if request.target else None
    scale = settings.init if settings else None
    net = initialise(case.target.architecture, scale, request.seed + FRESH)
    untrained = _target({k: v.detach() for k, v in net.state_dict().items()}, case)
    yield "untrained model", replace(case, target=untrained, base=None)
    others = other_samples(case, request.seed)
    if settings and others:
        train, test = (samples.centred(others.mean) for samples in (others, case.private))
        result = fit(case.target.architecture, (train.x, train.y), (test.x, test.y), settings)
        base = _target(result.initial, case) if case.base else None
        yield "model trained on other samples", replace(case, target=_target(result.weights, case), base=base)


def _target(weights: dict[str, torch.Tensor], case: Case) -> Target:
    return Target(case.target.architecture, weights, case.target.input_range)


def fit_settings(run: Path) -> FitSettings | None:
    """How the run was trained; None if this is not a run folder."""
    path = run / "fit.json"
    if not path.is_file():
        return None
    try:
        settings = SETTINGS.validate_python(read_json(path).get("settings"))
    except ValidationError as error:
        raise UnfitError(f"{path}: its settings cannot be read: {explained(error)}") from error
    if settings.epochs > MOST_EPOCHS or settings.max_steps > MOST_EPOCHS:
        raise UnfitError(f"{path}: more than {MOST_EPOCHS:,} epochs or steps; leave out `controls`")
    return settings


def other_samples(case: Case, seed: int) -> Samples | None:
    """As many other samples of the training part as are private, none of them unseen; None if too few are left."""
    if case.source is None:
        return None
    part = case.source.train
    used = torch.cat([case.private.indices, case.unseen.indices])  # unseen ones may be of another part: no harm
    n = min(len(case.private), part.largest_balanced(used))
    n -= n % case.private.num_classes
    return part.take(part.balanced(n, (seed, 2), used)) if n else None


def _counts(candidates: Candidates, policy: Policy, case: Case) -> dict[str, Any]:
    """Score them as the audit does: against the same samples, with a threshold from these candidates."""
    own, unseen = (
        match(candidates.x, samples, case.mean, policy.window, case.vote)
        for samples in (case.private, case.unseen)
    )
    return {
        "num_candidates": len(candidates),
        "num_recovered": int((own.similarity > calibrate(unseen.similarity, policy.fpr)).sum()),
        "num_good": int((own.by_papers > GOOD).sum()),
        "num_good_unseen": int((unseen.by_papers > GOOD).sum()),
        "seconds": round(candidates.facts["seconds"], 3),
    }
