"""A first answer early: whether what an audit has so far is a leak that nothing else can undo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from unfit.auditor.case import Case
from unfit.auditor.evidence import Evidence, attacked_layer, exact_samples
from unfit.auditor.policy import Policy
from unfit.auditor.pool import Pool
from unfit.auditor.published import Published
from unfit.auditor.verdict import Found, is_settled
from unfit.base.progress import Report, quiet


@dataclass(eq=False)
class Watch:
    """Whether what is there so far is a leak that nothing else can undo, by the rule of the verdict."""

    policy: Policy
    published: Published
    stops: bool  # at such a leak
    done: list[Evidence] = field(default_factory=list)  # of the surfaces attacked so far
    num_exact: int = 0  # of a leak beyond doubt
    elsewhere: int = 0  # how many samples the layers that were not attacked yet may hold

    @property
    def has_enough(self) -> bool:
        """Whether nothing more is asked for; also where enough samples stand in the file itself."""
        return self.stops and (self.num_exact > 0 or self.published.num_verbatim > self.policy.max_leaked)

    def look(self, case: Case, pool: Pool) -> None:
        found, more = found_exactly(case, pool, self.done)
        if is_settled(found, self.policy, more + self.elsewhere):
            self.num_exact = found.num_exact

    def telling(self, progress: Report) -> Report:
        """Add to the progress that there is a leak."""

        def report(fraction: float, words: str) -> None:
            progress(fraction, f"leak found: {self.num_exact} exact so far; {words}" if self.num_exact else words)

        return quiet if progress is quiet else report


def found_exactly(case: Case, pool: Pool, earlier: Sequence[Evidence] = ()) -> tuple[Found, int]:
    """Exact samples alone, also those of surfaces attacked earlier; and how many samples can still turn out exact.

    Each takes a direction of the layer; its weights and an optimiser's sums for it hold the same samples.
    """
    layer = attacked_layer(case, pool)
    own, unseen = exact_samples(case, pool, layer)
    for each in earlier:
        own, unseen = own | each.private["exact"], unseen | each.unseen["exact"]
    num, num_unseen = int(own.sum()), int(unseen.sum())
    directions = max(layer.num_samples or 0, layer.span.rank)
    left = max(0, directions - num - num_unseen)
    found = Found(num, num, num, len(own), len(unseen), 1.0, num_unseen, num_unseen, num_unseen)
    return found, left
