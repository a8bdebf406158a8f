"""Everything that applies, as one list: the start, proofs, components, KKT runs, and what they agree on first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from unfit.attacker.attacks.cone import Cone
from unfit.attacker.attacks.fast import FastKKT
from unfit.attacker.attacks.peel import Peel
from unfit.attacker.attacks.unmix import Unmix, can_unmix, in_one_sign
from unfit.attacker.candidates import Candidates, Part
from unfit.attacker.consensus import CONFIDENT, consensus, is_crowded, not_too_smooth
from unfit.attacker.costs import check_budget
from unfit.attacker.method import Method, Outlook, Prover, gather
from unfit.attacker.mixtures import Mixtures, change_of_form
from unfit.attacker.shelf import NOWHERE, Shelf
from unfit.attacker.start.find import Forecast, forecast, search_start
from unfit.attacker.start.twister import SEEDS
from unfit.base.budget import is_over, limited, seconds_left
from unfit.base.progress import Report, quiet, split, within
from unfit.base.times import Seconds

SEARCH_SHARE = 0.5  # of the time: what the search for the start may take of a budget, and of the progress


class Auto(Method):
    """Find the start, prove what can be proven, unmix, run the KKT attack, pool; what runs agree on comes first.

    Args:
        budget: Seconds, or a time such as "60s" or "10m", after which everything stops, with what there is
            then. What finds most comes first.
        seeds: Where no base is given and the first layer looks like a start of PyTorch's, so many seeds are tried
            for it (docs/start.md); 0: none.
        seed: Everything random follows from it.

    Example:
        >>> candidates = unfit.attack(model, unfit.Auto(budget="60s"))
    """

    method: Literal["auto"] = "auto"
    budget: Seconds | None = None
    seeds: Annotated[int, Field(ge=0, le=SEEDS)] = SEEDS

    title = "auto"

    def run(self, mixtures: Mixtures, progress: Report = quiet, shelf: Shelf = NOWHERE) -> Candidates:
        began, parts = time.perf_counter() - shelf.seconds, list[Part]()
        with limited(self.budget):
            check_budget(mixtures)
            mixtures, progress, facts = self._from_start(mixtures, progress, shelf)
            parts.extend(self.parts(mixtures, _telling(progress, parts, mixtures), shelf, began))
            status = "out of budget" if is_over() else "finished"
        agreed = agreement(parts, mixtures)
        first = [part for part in parts if part.proven is not None] + ([agreed] if agreed else [])
        others = [part for part in parts if part.proven is None]
        progress(1.0, "pooled")
        return gather(self, mixtures, not_too_smooth(first + others, mixtures), began, status, **facts)

    def _from_start(
        self, mixtures: Mixtures, progress: Report, shelf: Shelf
    ) -> tuple[Mixtures, Report, dict[str, Any]]:
        """The change since the start, if no base was given and the start is found; and what was tried for that."""
        if mixtures.base is not None or not self.seeds:
            return mixtures, progress, {}
        if (change := change_of_form(mixtures)) and mixtures.as_is is not None:
            return _keep(mixtures, change, mixtures.as_is.told), progress, {"start": mixtures.as_is.told}
        if self._forecast(mixtures) is None:
            return mixtures, progress, {}
        budget = SEARCH_SHARE * seconds_left()
        looking, attacking = within(progress, 0, SEARCH_SHARE), within(progress, SEARCH_SHARE, 1)
        search = shelf.search(
            mixtures.target,
            lambda: search_start(mixtures.target, seeds=self.seeds, far=False, budget=budget, progress=looking),
        )
        if search.start is not None and search.start.is_trained:
            mixtures = _keep(mixtures, search.start.change, search.facts())
        return mixtures, attacking, {"start": search.facts()}

    def _forecast(self, mixtures: Mixtures) -> Forecast | None:
        """Of a search that is cheap enough to be made without being asked for."""
        found = forecast(mixtures.target)
        return found if found is not None and found.is_early else None

    def parts(
        self, mixtures: Mixtures, progress: Report = quiet, shelf: Shelf = NOWHERE, began: float = 0.0
    ) -> Iterator[Part]:
        """All that applies, what gives most first; nothing more once every sample is found for sure."""
        *provers, unmix, kkt = self._stages(mixtures)
        shares = [each.seconds or 0.0 for each in self._outlooks(mixtures)] if self.budget is None else [1.0] * 4
        *of_provers, of_unmix, of_kkt = split(progress, shares)
        for prover, report in zip(provers, of_provers, strict=True):
            if is_over():
                return
            proven, is_all = shelf.proofs(prover.title, began, partial(prover.prove, mixtures, report))
            yield from proven
            if is_all:
                return
        if can_unmix(mixtures):
            yield from shelf.parts(unmix.title, began, partial(unmix.components, mixtures, of_unmix))
        if not enough(mixtures) and kkt.runs_outlook(mixtures).applies:
            yield from shelf.parts(kkt.title, began, partial(kkt.snapshots, mixtures, range(kkt.runs), of_kkt))

    def outlook(self, mixtures: Mixtures) -> Outlook:
        """What it would do, in order, and for how long in all."""
        outlooks = self._outlooks(mixtures)
        applying = [outlook for outlook in outlooks if outlook.applies]
        if mixtures.base is None and (search := self._forecast(mixtures)):
            seconds = search.seconds(self.seeds)
            applying.insert(0, Outlook("the search for the start", True, search.words, seconds))
        if not applying:
            return Outlook(self.title, False, outlooks[2].why)
        words = "does " + ", then ".join(outlook.attack for outlook in applying)
        return Outlook(self.title, True, words, sum(outlook.seconds or 0.0 for outlook in applying))

    def _outlooks(self, mixtures: Mixtures) -> list[Outlook]:
        """One for each stage, in order."""
        first, second, unmix, kkt = self._stages(mixtures)
        if enough(mixtures):
            last = Outlook(kkt.title, False, "it would find nothing that unmixing does not")
        else:
            last = kkt.runs_outlook(mixtures)
        return [first.outlook(mixtures), second.outlook(mixtures), unmix.outlook(mixtures), last]

    def _stages(self, mixtures: Mixtures) -> tuple[Prover, Prover, Unmix, FastKKT]:
        """In order: edges make peel quick, and vectors have none as a rule, but often zeros."""
        peel, cone = Peel(seed=self.seed), Cone(seed=self.seed)
        first, second = (cone, peel) if len(mixtures.shape) == 1 else (peel, cone)
        return first, second, Unmix(seed=self.seed), FastKKT(seed=self.seed)


def _keep(mixtures: Mixtures, change: Mixtures, told: dict[str, Any]) -> Mixtures:
    """The change since the initial weights, noted for whoever asks what was attacked."""
    mixtures.found[:] = [change]
    mixtures.told.update(told)
    return change


def enough(mixtures: Mixtures) -> bool:
    """Whether KKT runs would find nothing that unmixing does not."""
    return can_unmix(mixtures) and not is_crowded(mixtures)


def agreement(parts: list[Part], mixtures: Mixtures) -> Part | None:
    """What the runs of unmixing agree on; KKT runs can agree on what is not there. Not behind a convolution."""
    runs = [in_one_sign(part) for part in parts if part.name.startswith("unmix")]
    return consensus(runs, mixtures) if len(runs) > 1 and mixtures.conv is None else None


def _telling(progress: Report, parts: list[Part], mixtures: Mixtures) -> Report:
    """Add the number of confident candidates so far to the progress."""
    told = (0, 0)

    def report(fraction: float, words: str) -> None:
        nonlocal told
        if len(parts) != told[0]:
            agreed = agreement(parts, mixtures)
            sure = 0 if agreed is None or agreed.confidence is None else int((agreed.confidence > CONFIDENT).sum())
            told = (len(parts), sure)
        progress(fraction, f"{told[1]} confident so far; {words}" if told[1] else words)

    return report if progress is not quiet else quiet
