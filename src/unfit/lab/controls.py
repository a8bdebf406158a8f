"""What to hold an audit's counts against: simpler methods, and nets in which there is nothing to find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import TypeAdapter, ValidationError

from unfit.attacker.attacks import attack
from unfit.attacker.candidates import Candidates
from unfit.auditor.audit import Options, try_attack
from unfit.auditor.calibration import calibrate
from unfit.auditor.match import GOOD, match, vote_factor
from unfit.auditor.record import Baseline, Control, Repeat
from unfit.auditor.samples import Samples, Source
from unfit.base.errors import UnfitError
from unfit.base.files import read_json
from unfit.base.nets import initialise
from unfit.base.progress import Report
from unfit.base.target import Target
from unfit.lab.fit import FitSettings, fit

FRESH = 1000  # added to the seed of an untrained net: not the start that the target had


@dataclass(frozen=True, eq=False)
class Given:
    """What an audit is made from."""

    target: Target
    base: Target | None
    source: Source
    private: Samples
    unseen: Samples


def run_baselines(asked: Repeat, given: Given, progress: Report) -> list[Baseline]:
    """What the papers compare with: the weights as pictures, and model inversion."""
    methods: tuple[Literal["weights", "inversion"], ...] = ("weights", "inversion")
    found = []
    for method in methods:
        base = given.base if method == "weights" else None  # inversion takes none
        candidates = attack(given.target, method, base, asked.seed, progress)
        found.append(Baseline(method=method, **_counts(candidates, asked, given)))
    return found


def run_controls(asked: Repeat, given: Given, progress: Report) -> list[Control]:
    """The same attack on a net that learnt nothing, and on one that learnt other samples of the same source.

    The second needs a run folder, whose `fit.json` says how to train, and samples left to train on.
    """
    options: Options = {
        "solver": asked.solver,
        "score": asked.score,
        "num_candidates": asked.num_candidates,
        "budget": asked.budget,
    }
    found = []
    for name, target, base in _nets(asked, given, progress):
        counts = _counts(try_attack(target, asked.method, base, asked.seed, progress, options), asked, given)
        del counts["num_good_unseen"]
        found.append(Control(name=name, **counts))
    return found


Name = Literal["untrained net", "net trained on other samples"]


def _nets(asked: Repeat, given: Given, progress: Report) -> Iterator[tuple[Name, Target, Target | None]]:
    """Each with the base to attack it with. An untrained net has no change to attack: it is attacked as it is."""
    settings = fit_settings(Path(asked.target))
    scale = settings.init if settings else None
    net = initialise(given.target.architecture, scale, asked.seed + FRESH)
    yield "untrained net", _target({k: v.detach() for k, v in net.state_dict().items()}, given), None
    others = other_samples(given, asked.seed)
    if settings and others:
        train, test = (samples.centred(others.mean) for samples in (others, given.private))
        result = fit(given.target.architecture, (train.x, train.y), (test.x, test.y), settings, progress)
        base = _target(result.start, given) if asked.base else None
        yield "net trained on other samples", _target(result.weights, given), base


def _target(weights: dict[str, torch.Tensor], given: Given) -> Target:
    return Target(given.target.architecture, weights, given.target.input_range)


def fit_settings(run: Path) -> FitSettings | None:
    """How the run was trained; None if it is no run folder."""
    path = run / "fit.json"
    if not path.is_file():
        return None
    try:
        return TypeAdapter(FitSettings).validate_python(read_json(path).get("settings"))
    except ValidationError as error:
        raise UnfitError(f"{path}: its settings cannot be read: {error}") from error


def other_samples(given: Given, seed: int) -> Samples | None:
    """As many of the training part as are private, neither these nor unseen ones; None: too few are left."""
    part = given.source.train
    used = torch.cat([given.private.indices, given.unseen.indices])  # unseen ones may be of another part: no harm
    n = min(len(given.private), part.largest_balanced(used))
    n -= n % given.private.num_classes
    return part.take(part.balanced(n, (seed, 2), used)) if n else None


def _counts(candidates: Candidates, asked: Repeat, given: Given) -> dict[str, Any]:
    """Scored as the audit itself: against the same samples, its threshold from its own candidates."""
    vote = vote_factor(given.target.architecture)
    own, unseen = (
        match(candidates.x, samples, given.private.mean, asked.window, vote).similarity
        for samples in (given.private, given.unseen)
    )
    return {
        "num_candidates": len(candidates),
        "num_recovered": int((own > calibrate(unseen, asked.policy.fpr)).sum()),
        "num_good": int((own > GOOD).sum()),
        "num_good_unseen": int((unseen > GOOD).sum()),
        "seconds": round(candidates.facts["seconds"], 3),
    }
