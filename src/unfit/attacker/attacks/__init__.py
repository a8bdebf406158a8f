"""One file an attack; each takes a Target and settings and gives Candidates, and never sees training data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from torch import nn

from unfit.attacker.attacks.auto import AutoSettings, auto
from unfit.attacker.attacks.inversion import InversionSettings, inversion
from unfit.attacker.attacks.solvers import FastSettings, PaperSettings, Solver, fast, paper
from unfit.attacker.attacks.unmix import UnmixSettings, unmix
from unfit.attacker.attacks.weights import weights
from unfit.attacker.candidates import Candidates
from unfit.attacker.stationarity import Score
from unfit.base.errors import UsageError, unknown
from unfit.base.modules import as_base, as_target
from unfit.base.progress import Report, quiet
from unfit.base.target import Target

__all__ = ["Method", "Score", "Solver", "attack"]

Method = Literal["auto", "unmix", "kkt", "inversion", "weights"]


def attack(
    model: Target | nn.Module,
    method: Method = "auto",
    base: Target | nn.Module | None = None,
    seed: int = 0,
    progress: Report = quiet,
    *,
    solver: Solver | None = None,
    score: Score | None = None,
    num_candidates: int | None = None,
    budget: float | None = None,
) -> Candidates:
    """Reconstruct training samples from weights alone: those of a Target, or of a module that `as_target` takes.

    `base`: the weights training started from, if known (a public model that was fine-tuned): its change is
    attacked, which gives away far more. `auto` does all that applies, within `budget` seconds if given, and puts
    what it is most confident of first. `solver` and `score` are kkt's (`any` for a regression loss with weight
    decay); `num_candidates` is kkt's, for each run, and inversion's.
    """
    target = as_target(model)
    base = as_base(base, target)
    if method not in get_args(Method):
        raise unknown("method of attack", method, get_args(Method))
    if solver is not None and solver not in get_args(Solver):
        raise unknown("solver", solver, get_args(Solver))
    if budget is not None and not budget > 0:
        raise UsageError(f"budget must be positive, not {budget:g} seconds")
    options = {"solver": solver, "score": score, "num_candidates": num_candidates, "budget": budget}
    if method == "auto" and not (solver is None and score is None and num_candidates is None):
        method = "kkt"  # whose options these are
    _refuse_unread(method, solver, base, options)
    if method == "auto":
        return auto(target, base, AutoSettings(budget, seed), progress)
    if method == "unmix":
        return unmix(target, base, UnmixSettings(seed=seed), progress)
    if method == "weights":
        return weights(target, base)
    if method == "inversion":
        return inversion(target, InversionSettings(num_candidates, seed=seed), progress)
    if solver == "paper":
        return paper(target, PaperSettings(score or "auto", num_candidates, seed=seed), progress)
    return fast(target, base, FastSettings(score or "auto", num_candidates, seed=seed), progress)


def _refuse_unread(method: str, solver: str | None, base: Target | None, options: Mapping[str, object]) -> None:
    """An option that the method would not read is a mistake worth saying."""
    reads = {
        "auto": {"budget"},
        "kkt": {"solver", "score", "num_candidates"},
        "inversion": {"num_candidates"},
    }.get(method, set())
    unread = [
        f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None and name not in reads
    ]
    if base is not None and (method == "inversion" or solver == "paper"):
        unread.append("--base")
    if unread:
        name = "kkt with the papers' solver" if solver == "paper" and method == "kkt" else method
        raise UsageError(f"{name} does not use {', '.join(unread)}")
