"""What one trial of a sweep costs on this machine: alone on one core, alone on two, and two at a time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice

import torch

from kkt import untrained
from page import write_section
from unfit.attacker.attacks import FastKKT, PaperKKT
from unfit.attacker.attacks.paper import paper_iterates
from unfit.attacker.run import run_attack

WAYS = {"one thread": (1, 1), "two threads": (2, 1), "two at a time, one thread each": (1, 2)}


def paper_iteration(n: int) -> float:
    """How long one iteration of the papers' solver takes, with two candidates for each sample."""
    steps = paper_iterates(untrained(n, 1000), PaperKKT(num_candidates=2 * n), n)
    timed = 3000 // n
    list(islice(steps, 3))
    began = time.perf_counter()
    list(islice(steps, timed))
    return (time.perf_counter() - began) / timed


def fast_trial(n: int) -> float:
    """How long a whole trial of the fast solver takes."""
    target = untrained(n, 1000)
    began = time.perf_counter()
    run_attack(FastKKT(), target, None)
    return time.perf_counter() - began


CASES: dict[str, tuple[Callable[[int], float], int]] = {
    "paper, n=100, an iteration": (paper_iteration, 100),
    "paper, n=500, an iteration": (paper_iteration, 500),
    "fast, n=100, a trial": (fast_trial, 100),
}


def measured(case: str, threads: int, at_once: int) -> float:
    """How long the slowest of several processes takes that run at once."""
    command = [sys.executable, __file__, case, str(threads)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(at_once)]
    return max(float(process.communicate()[0]) for process in running)


def table() -> Iterator[str]:
    yield "Seconds, nets d-1000-1000-1 on 3×32×32 inputs; `paper` in float64 with two candidates for each sample."
    yield ""
    yield f"| seconds of | {' | '.join(WAYS)} | two at a time gain |"
    yield "|---|" + "---|" * (len(WAYS) + 1)
    for case in CASES:
        alone, both, each = (measured(case, *way) for way in WAYS.values())
        yield f"| {case} | {alone:.3f} | {both:.3f} | {each:.3f} | {2 * both / each:.2f}× |"


if __name__ == "__main__":
    if sys.argv[1:]:
        torch.set_num_threads(int(sys.argv[2]))
        measure, size = CASES[sys.argv[1]]
        print(measure(size))
    else:
        write_section("What a trial of a sweep costs", table(), ("attacker",), timed=True)
