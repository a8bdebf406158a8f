"""Everything that applies: initial weights, proofs, components, KKT runs; what these agree on comes first."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from unfit.attacker.attacked_layer import AttackedLayer, change_of_form
from unfit.attacker.attacks.cone import Cone
from unfit.attacker.attacks.fast import FastKKT
from unfit.attacker.attacks.peel import Peel
from unfit.attacker.attacks.unmix import Unmix, can_unmix, in_one_sign
from unfit.attacker.candidates import Candidates, Part
from unfit.attacker.consensus import CONFIDENT, consensus, is_crowded, not_too_smooth
from unfit.attacker.costs import check_budget, spectrum_seconds
from unfit.attacker.initial.find import Forecast, forecast, search_initial_weights
from unfit.attacker.initial.twister import SEEDS
from unfit.attacker.method import UNFINISHED, Applicability, Method, Prover, gather
from unfit.attacker.stage_cache import NOWHERE, StageCache
from unfit.base.budget import is_over, limited, seconds_left
from unfit.base.errors import listed
from unfit.base.normal import kept_neurons
from unfit.base.progress import Report, quiet, split, within
from unfit.base.times import Seconds

SEARCH_SHARE = (
    0.5  # of the time: what the search for the initial weights may take of a budget, and of the progress
)


class Auto(Method):
    """Find the initial weights, prove what can be proven, unmix, run the KKT attack; what they agree on is first.

    Args:
        budget: Seconds, or a time such as "60s" or "10m", after which everything stops, with what there is
            then. What finds most comes first.
        seeds: How many seeds are tried where no base is given and the first layer looks like PyTorch's initial
            weights (docs/initial-weights.md); 0: none.
        num_samples: How many samples may have been shuffled or split before the model was built; an audit tells.
        seed: Everything random follows from it.

    Example:
        >>> candidates = unfit.attack(model, unfit.Auto(budget="60s"))
    """

    method: Literal["auto"] = "auto"
    budget: Seconds | None = None
    seeds: Annotated[int, Field(ge=0, le=SEEDS)] = SEEDS
    num_samples: tuple[Annotated[int, Field(gt=0)], ...] = ()

    title = "auto"

    def knowing(self, num_samples: tuple[int, ...]) -> Self:
        return self if self.num_samples or not self.seeds else self.model_copy(update={"num_samples": num_samples})

    def run(self, layer: AttackedLayer, progress: Report = quiet, cache: StageCache = NOWHERE) -> Candidates:
        *_, found = self.growing(layer, progress, cache)
        return found

    def growing(
        self, layer: AttackedLayer, progress: Report = quiet, cache: StageCache = NOWHERE
    ) -> Generator[Candidates]:
        began, parts = time.perf_counter() - cache.seconds, list[Part]()
        with limited(self.budget):
            check_budget(layer)
            layer, progress, facts = self._from_initial(layer, progress, cache)
            for stage, is_last in self.parts(layer, _telling(progress, parts, layer), cache, began):
                parts.extend(stage)
                if not is_last and any(part.proven is not None and bool(part.proven.any()) for part in stage):
                    yield gather(self, layer, parts, began, UNFINISHED, **facts)
            status = "out of budget" if is_over() else "finished"
        agreed = agreement(parts, layer)
        first = [part for part in parts if part.proven is not None] + ([agreed] if agreed else [])
        others = [part for part in parts if part.proven is None]
        progress(1.0, "pooled")
        yield gather(self, layer, not_too_smooth(first + others, layer), began, status, **facts)

    def _from_initial(
        self, layer: AttackedLayer, progress: Report, cache: StageCache
    ) -> tuple[AttackedLayer, Report, dict[str, Any]]:
        """The change since the initial weights, if no base was given and these are found; and what was tried."""
        if layer.base is not None or not self.seeds:
            return layer, progress, {}
        if change := change_of_form(layer):
            return change, progress, {"initial": layer.told}
        if (told := _searched_as_is(layer)) or self._forecast(layer) is None:
            return layer, progress, {"initial": told} if told else {}
        budget, share = SEARCH_SHARE * seconds_left(), self._search_share(layer, progress)
        looking, attacking = within(progress, 0, share), within(progress, share, 1)
        search = cache.search(
            layer.target,
            lambda: search_initial_weights(
                layer.target,
                seeds=self.seeds,
                far=False,
                sizes=self.num_samples,
                budget=budget,
                progress=looking,
            ),
        )
        if search.initial is not None and search.initial.is_trained:
            layer = search.initial.change
        return layer, attacking, {"initial": search.record.facts}

    def _search_share(self, layer: AttackedLayer, progress: Report) -> float:
        """Which share of the time, and so of a bar, the search is expected to take if it finds nothing."""
        found = self._forecast(layer)
        if progress is quiet or self.budget is not None or found is None:
            return SEARCH_SHARE
        search = found.seconds(self.seeds)
        attack = sum(each.seconds or 0.0 for each in self._applicabilities(layer) if each.applies)
        return search / max(search + attack, 1e-9)

    def _forecast(self, layer: AttackedLayer) -> Forecast | None:
        """Of a search that is cheap enough to be made without being asked for."""
        found = forecast(layer.target)
        return found if found is not None and found.is_early else None

    def parts(
        self, layer: AttackedLayer, progress: Report = quiet, cache: StageCache = NOWHERE, began: float = 0.0
    ) -> Iterator[tuple[list[Part], bool]]:
        """All that applies, what gives most first, and whether that is all: then every sample is proven."""
        *provers, unmix, kkt = self._stages(layer)
        shares = [1.0] * 4
        if (
            self.budget is None and progress is not quiet
        ):  # estimates take a second or so, and only a bar shows them
            shares = [each.seconds or 0.0 for each in self._applicabilities(layer)]
        *of_provers, of_unmix, of_kkt = split(progress, shares)
        for prover, report in zip(provers, of_provers, strict=True):
            if is_over():
                return
            proven, is_all = cache.proofs(prover.title, began, partial(prover.prove, layer, report))
            yield proven, is_all
            if is_all:
                return
        if can_unmix(layer):
            for part in cache.parts(unmix.title, began, partial(unmix.components, layer, of_unmix)):
                yield [part], False
        if not enough(layer) and kkt.applicability_of_runs(layer).applies:
            for part in cache.parts(kkt.title, began, partial(kkt.snapshots, layer, range(kkt.runs), of_kkt)):
                yield [part], False

    def applicability(self, layer: AttackedLayer) -> Applicability:
        """What it would do, in order, and for how long in all."""
        applicabilities = self._applicabilities(layer)
        applying = [applicability for applicability in applicabilities if applicability.applies]
        if layer.base is None and (search := self._forecast(layer)):
            seconds = search.seconds(self.seeds)
            applying.insert(0, Applicability("the search for the initial weights", True, search.words, seconds))
        if not applying:
            return Applicability(self.title, False, applicabilities[2].why)
        expected = self._expected(applying)
        words = "does " + ", then ".join(applicability.attack for applicability in expected)
        if others := [applicability.attack for applicability in applying if applicability not in expected]:
            words += f"; if that leaves a sample, also {listed(others)}"
        seconds = spectrum_seconds(layer) + sum(applicability.seconds or 0.0 for applicability in expected)
        return Applicability(self.title, True, words, seconds, self.held(layer))

    def held(self, layer: AttackedLayer) -> float:
        """What all stages find is pooled, so it adds up."""
        return sum(
            applicability.bytes or 0.0 for applicability in self._applicabilities(layer) if applicability.applies
        )

    def _expected(self, applying: list[Applicability]) -> list[Applicability]:
        """Up to the first that proves samples: as a rule it leaves none, and then the others are not run."""
        provers = {Peel.title, Cone.title}
        last = next((i for i, each in enumerate(applying) if each.attack in provers), len(applying))
        return applying[: last + 1]

    def _applicabilities(self, layer: AttackedLayer) -> list[Applicability]:
        """One for each stage, in order."""
        first, second, unmix, kkt = self._stages(layer)
        if enough(layer):
            last = Applicability(kkt.title, False, "it would find nothing that unmixing does not")
        else:
            last = kkt.applicability_of_runs(layer)
        return [first.applicability(layer), second.applicability(layer), unmix.applicability(layer), last]

    def _stages(self, layer: AttackedLayer) -> tuple[Prover, Prover, Unmix, FastKKT]:
        """In order: edges make peel quick, and vectors have none as a rule, but often zeros."""
        peel, cone = Peel(seed=self.seed), Cone(seed=self.seed)
        first, second = (cone, peel) if len(layer.shape) == 1 else (peel, cone)
        return first, second, Unmix(seed=self.seed), FastKKT(seed=self.seed)


def _searched_as_is(layer: AttackedLayer) -> dict[str, Any]:
    """Of a normal form that only leaves neurons out: what the search by all neurons said. It holds here too."""
    whole = layer.as_is
    only_fewer = whole is not None and kept_neurons(layer.target, whole.target) is not None
    return layer.told if only_fewer else {}


def enough(layer: AttackedLayer) -> bool:
    """Whether KKT runs would find nothing that unmixing does not."""
    return can_unmix(layer) and not is_crowded(layer)


def agreement(parts: list[Part], layer: AttackedLayer) -> Part | None:
    """What the runs of unmixing agree on; KKT runs can agree on what is not there. Not behind a convolution."""
    runs = [in_one_sign(part) for part in parts if part.kind == "unmixed"]
    return consensus(runs, layer) if len(runs) > 1 and layer.conv is None else None


def _telling(progress: Report, parts: list[Part], layer: AttackedLayer) -> Report:
    """Add the number of confident candidates so far to the progress."""
    told = (0, 0)

    def report(fraction: float, words: str) -> None:
        nonlocal told
        if len(parts) != told[0]:
            agreed = agreement(parts, layer)
            sure = 0 if agreed is None or agreed.confidence is None else int((agreed.confidence > CONFIDENT).sum())
            told = (len(parts), sure)
        progress(fraction, f"{told[1]} confident so far; {words}" if told[1] else words)

    return report if progress is not quiet else quiet
