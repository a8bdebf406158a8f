"""Seconds and memory of matching 100,000 candidates with 5,000 samples of 3×32×32, once in each of two extremes."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator

import torch

from page import rows_of, write_section
from unfit.auditor.match import match
from unfit.auditor.samples import Samples

CANDIDATES, SAMPLES, SHAPE = 100_000, 5_000, (3, 32, 32)
CASES = {
    "near": "every sample has about 20 candidates near it",
    "noise": "all candidates are noise, so the vote averages most of them",
}


def measure(case: str) -> None:
    """In a process of its own: its largest size is the answer."""
    random = torch.Generator().manual_seed(0)
    coarse = torch.rand(SAMPLES, 3, 8, 8, generator=random)
    x = torch.nn.functional.interpolate(coarse, size=SHAPE[1:], mode="bilinear")
    samples = Samples(x, torch.zeros(SAMPLES, dtype=torch.long), torch.arange(SAMPLES), ("all",))
    candidates = torch.randn(CANDIDATES, *SHAPE, generator=random).mul_(0.2)
    if case == "near":
        for part in candidates.split(SAMPLES):
            part += x - x.mean(0)
    began, used = time.perf_counter(), time.process_time()
    match(candidates, samples, samples.mean)
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{time.perf_counter() - began:.0f} | {time.process_time() - used:.0f} | {size:.1f}")


def table() -> Iterator[str]:
    yield f"{CANDIDATES:,} candidates × {SAMPLES:,} samples of 3×32×32; the candidates alone are 1.2 GB."
    yield ""
    yield "| case | seconds | processor seconds | largest size, GB |"
    yield "|---|---|---|---|"
    yield from rows_of(__file__, CASES)


if __name__ == "__main__":
    if sys.argv[1:]:
        measure(sys.argv[1])
    else:
        write_section("Matching at scale", table(), ("auditor/match.py",))
