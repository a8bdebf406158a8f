"""Everything that applies, one list: proofs, components, KKT runs, and what they agree on first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from unfit.attacker.attacks.peel import PeelSettings, prove
from unfit.attacker.attacks.solvers import FastSettings, can_unmix, kkt_parts
from unfit.attacker.attacks.unmix import UnmixSettings, components, tellable
from unfit.attacker.candidates import Candidates, Part, describe, pool
from unfit.attacker.consensus import CONFIDENT, ROOMY, consensus
from unfit.attacker.mixtures import Mixtures, read_mixtures
from unfit.attacker.stationarity import check_layers
from unfit.base.progress import Report, quiet
from unfit.base.target import Target


@dataclass(frozen=True)
class AutoSettings:
    """`budget`: seconds after which no further run is begun; None: all of them."""

    budget: float | None = None
    seed: int = 0


def auto(
    target: Target, base: Target | None = None, settings: AutoSettings | None = None, progress: Report = quiet
) -> Candidates:
    """Prove what can be proven, unmix, run the KKT attack, pool; what runs agree on comes first, by confidence.

    With a budget what finds most comes first, and the last run begun is finished: it may take a little longer.
    """
    settings, began = settings or AutoSettings(), time.perf_counter()
    check_layers(target.net())
    mixtures = read_mixtures(target, base)
    parts: list[Part] = []
    status = "finished"
    for part in everything(target, mixtures, settings, _telling(progress, parts, mixtures)):
        parts.append(part)
        if settings.budget is not None and time.perf_counter() - began > settings.budget:
            status = "out of budget"
            break
    agreed = agreement(parts, mixtures)
    first = [part for part in parts if part.proven is not None] + ([agreed] if agreed else [])
    others = [part for part in parts if part.proven is None]
    nothing = Part("nothing above the noise edge", torch.zeros(0, *target.architecture.input_shape))
    facts = mixtures.facts() | {"status": status, "seconds": time.perf_counter() - began}
    progress(1.0, "pooled")
    return pool(first + others or [nothing], describe("auto", settings, base is not None), facts)


def everything(
    target: Target, mixtures: Mixtures, settings: AutoSettings, progress: Report = quiet
) -> Iterator[Part]:
    """All that applies, what gives most first; nothing more once every sample is proven."""
    proven, all_proven = prove(mixtures, PeelSettings(seed=settings.seed, seconds=settings.budget), progress)
    yield from proven
    if all_proven:
        return
    if can_unmix(target, mixtures):
        yield from components(mixtures, UnmixSettings(seed=settings.seed), progress)
        if mixtures.span.rank <= ROOMY * tellable(mixtures.shape):
            return  # KKT runs would find nothing that unmixing does not
    runs = FastSettings(seed=settings.seed)
    yield from kkt_parts(target, mixtures, runs, range(runs.runs), progress)


def agreement(parts: list[Part], mixtures: Mixtures) -> Part | None:
    """What the runs of unmixing agree on; KKT runs can agree on what is not there. Not behind a convolution."""
    runs = [part.x.flatten(1) for part in parts if part.name.startswith("unmix")]
    return consensus(runs, mixtures) if len(runs) > 1 and mixtures.conv is None else None


def _telling(progress: Report, parts: list[Part], mixtures: Mixtures) -> Report:
    """The progress, and how many candidates are confident so far."""
    told = (0, 0)

    def report(fraction: float, words: str) -> None:
        nonlocal told
        if len(parts) != told[0]:
            agreed = agreement(parts, mixtures)
            sure = 0 if agreed is None or agreed.confidence is None else int((agreed.confidence > CONFIDENT).sum())
            told = (len(parts), sure)
        progress(fraction, f"{told[1]} confident so far; {words}" if told[1] else words)

    return report if progress is not quiet else quiet
