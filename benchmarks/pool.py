"""Seconds and memory of auditing a sweep of 100 trials × 1,000 candidates of 3×32×32, in two extremes."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from page import rows_of, write_section
from unfit import Samples, Target, audit, parse_architecture
from unfit.attacker.attacks import PaperKKT, attack
from unfit.attacker.candidates import Part, pool, save_candidates
from unfit.attacker.method import Parameter
from unfit.attacker.sweep.trials import Ended, Plan, TargetId, file_of
from unfit.base.files import write_json
from unfit.base.nets import initialise

TRIALS, CANDIDATES, SAMPLES, SHAPE = 100, 1_000, 500, (3, 32, 32)
CASES = {
    "near": "every sample has 200 candidates near it, none of them copies",
    "copies": "the same, and every second trial repeats the one before it",
    "noise": "all candidates are noise, so that the vote averages most of them",
}


def smooth(num: int, random: torch.Generator) -> torch.Tensor:
    coarse = torch.rand(num, 3, 8, 8, generator=random)
    return torch.nn.functional.interpolate(coarse, size=SHAPE[1:], mode="bilinear")


def some(num: int, random: torch.Generator) -> Samples:
    return Samples(smooth(num, random), torch.arange(num) % 2, torch.arange(num), ("a", "b"))


def write_sweep(folder: Path, target: Target, private: Samples, case: str, random: torch.Generator) -> None:
    """Make the trials one at a time, because the size of this process at its largest is measured."""
    (folder / "trials").mkdir()
    plan = Plan(
        target=TargetId(sha256=target.sha256, architecture=str(target.architecture)),
        base=None,
        attack=PaperKKT(),
        sampler="random",
        seed=0,
        parameters={"lr": Parameter(low=1e-5, high=1, log=True), "sigma": Parameter(low=0, high=1)},
        versions={},
    )
    write_json(folder / "sweep.json", plan.model_dump(mode="json"))
    like, lines = attack(target, "weights"), []
    centred = (private.x - private.mean).repeat(CANDIDATES // SAMPLES, 1, 1, 1)
    x = centred
    for number in range(TRIALS):
        if case != "copies" or not number % 2:
            x = 0.2 * torch.randn(CANDIDATES, *SHAPE, generator=random) + (0 if case == "noise" else centred)
        ended = Ended(
            number=number,
            state="complete",
            settings={"lr": 10 ** (-5 * number / TRIALS), "sigma": number / TRIALS},
            objective=1.0,
            num_candidates=CANDIDATES,
            seconds=1.0,
            node="here",
            message="",
        )
        trial = pool([Part("trial", x)], like.attack, like.facts | {"trial": ended.model_dump()})
        save_candidates(trial, file_of(folder, number))
        lines.append(ended.model_dump_json() + "\n")
    (folder / "trials.jsonl").write_text("".join(lines))


def measure(case: str) -> None:
    """Run in a process of its own, whose size at its largest is measured."""
    random = torch.Generator().manual_seed(0)
    private, unseen = some(SAMPLES, random), some(SAMPLES, random)
    architecture = parse_architecture("1000-1000", SHAPE, 1)
    net = initialise(architecture, 1e-4, seed=0)
    target = Target(architecture, {name: value.detach() for name, value in net.state_dict().items()})
    with tempfile.TemporaryDirectory() as folder:
        write_sweep(Path(folder), target, private, case, random)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        began, used = time.perf_counter(), time.process_time()
        record = audit(target, private, unseen, candidates=folder).record
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    assert record.sweep is not None
    times = f"{time.perf_counter() - began:.0f} | {time.process_time() - used:.0f}"
    print(f"{record.sweep.num_copies:,} | {record.num_recovered} | {times} | {before:.2f} | {size:.2f}")


def table() -> Iterator[str]:
    yield f"`unfit audit --candidates DIR`: {TRIALS} trials × {CANDIDATES:,} candidates of 3×32×32 (1.2 GB of files),"
    yield f"{SAMPLES} private and {SAMPLES} unseen samples; everything from the first file to the record."
    yield ""
    yield "| case | copies | recovered | seconds | processor seconds | size before, GB | largest size, GB |"
    yield "|---|---|---|---|---|---|---|"
    yield from rows_of(__file__, CASES)


if __name__ == "__main__":
    if sys.argv[1:]:
        measure(sys.argv[1])
    else:
        write_section("Pooling a sweep", table(), ("auditor", "attacker/candidates.py"))
