"""From what each attacked surface shows, and what stands in the file, to one verdict and one record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unfit.auditor.calibration import interval
from unfit.auditor.grades import GRADES, Grade, count, rank
from unfit.auditor.published import Published, with_stored
from unfit.auditor.record import Record, SampleRecord
from unfit.auditor.request import Policy
from unfit.auditor.verdict import Attacked, Found, decide

# arrays with a row for each sample that differ by surface; not every audit has the last two
OF_SURFACE = ("reconstruction", "nearest_unseen", "similarity", "upper_bound", "ssim", "reconstructed_features")


@dataclass(frozen=True, eq=False)
class Evidence:
    """What one attacked surface shows: what the verdict rests on, and all that the record keeps of it."""

    attacked: Attacked
    unseen: dict[Grade, Tensor]  # bool (m,): which unseen samples are of this grade or a better one
    samples: list[SampleRecord]
    fields: dict[str, Any]  # of the record
    arrays: dict[str, Tensor]

    @property
    def strength(self) -> tuple[int, ...]:
        found = self.attacked.found
        return found.num_exact, found.num_recognisable, found.num_recovered


def concluded(
    surfaces: Sequence[Evidence], policy: Policy, published: Published
) -> tuple[Record, dict[str, Tensor]]:
    """The verdict on all attacked surfaces and on what stands in the file in plain sight.

    The record is that of the strongest surface, with each sample at its best.
    """
    ordered = sorted(surfaces, key=lambda each: each.strength, reverse=True)
    first, *others = ordered
    samples, arrays = list(first.samples), dict(first.arrays)
    for other in others:
        better = [i for i, each in enumerate(other.samples) if rank(each.grade) > rank(samples[i].grade)]
        for i in better:
            samples[i] = other.samples[i]
        there = [name for name in OF_SURFACE if name in arrays]
        arrays |= {name: _with_rows(arrays[name], other.arrays[name], better) for name in there}
    unseen: dict[Grade, Tensor] = {
        each: torch.stack([other.unseen[each] for other in ordered]).any(0) for each in GRADES
    }
    p_value = min(each.attacked.found.p_value for each in ordered)
    by_attack = found_of(samples, unseen, p_value)
    samples, arrays = with_stored(samples, arrays, published.private)
    found = found_of(samples, unseen, p_value)
    verbatim = published.verbatim(found.num_exact, found.num(policy.fail_on))
    decision = decide([each.attacked for each in ordered], by_attack, policy, verbatim)
    record = Record(
        **first.fields
        | {
            "verdict": decision.verdict,
            "reasons": decision.reasons,
            "next_steps": decision.next_steps,
            "attacker": decision.attacker,
            "num_recovered": found.num_recovered,
            "num_recovered_unseen": found.num_recovered_unseen,
            "recovered_interval": interval(found.num_recovered, found.num_samples),
            "num_recognisable": found.num_recognisable,
            "num_recognisable_unseen": found.num_recognisable_unseen,
            "num_proven": found.num_exact,
            "num_proven_unseen": found.num_exact_unseen,
            "p_value": found.p_value,
            "samples": samples,
        }
    )
    return record, arrays


def _with_rows(values: Tensor, others: Tensor, rows: list[int]) -> Tensor:
    """With these rows of another tensor; it is left as it was where there are none."""
    if not rows:
        return values
    values = values.clone()
    values[rows] = others[rows]
    return values


def found_of(samples: Sequence[SampleRecord], unseen: dict[Grade, Tensor], p_value: float) -> Found:
    """Counts of both sets; each sample counts with the best of its grades."""
    grades = [sample.grade for sample in samples]
    return Found(
        num_recovered=count(grades, "trace"),
        num_recognisable=count(grades, "recognisable"),
        num_exact=count(grades, "exact"),
        num_samples=len(samples),
        num_unseen=len(unseen["trace"]),
        p_value=p_value,
        num_recovered_unseen=int(unseen["trace"].sum()),
        num_recognisable_unseen=int(unseen["recognisable"].sum()),
        num_exact_unseen=int(unseen["exact"].sum()),
    )
