"""A sweep of 20 `fast` trials against single runs: python benchmarks/throughput.py RUN

RUN is a run folder (CIFAR-10, n=100). Run it alone on the machine: about half an hour on 2 cores.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from page import write_section

TRIALS = 20
SINGLE = 10  # runs that are timed; their mean stands for all


def seconds_of(*arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run([Path(sys.executable).with_name("unfit"), *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def swept(run: str, out: Path, workers: int, threads: int) -> float:
    how = ("--workers", str(workers), "--cpus-per-trial", str(threads))
    return seconds_of("sweep", run, "--solver", "fast", "--trials", str(TRIALS), "--out", str(out), *how)


def single(run: str, out: Path, seed: int) -> float:
    attack = ("attack", run, "--method", "kkt", "--seed", str(seed), "--out", str(out / f"{seed}.safetensors"))
    return seconds_of(*attack)


def table(run: str) -> Iterator[str]:
    cores = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        # half before and half after, so that a machine that slows down slows both
        seconds = [single(run, folder, seed) for seed in range(SINGLE // 2)]
        one = swept(run, folder / "one", 1, cores)
        seconds += [single(run, folder, seed) for seed in range(SINGLE // 2, SINGLE)]
        alone = TRIALS * sum(seconds) / SINGLE
        many = swept(run, folder / "many", cores, 1)
    yield f"{TRIALS} trials of `fast`, n=100, CIFAR-10; seconds on {cores} cores, loading and writing included."
    yield ""
    yield "| | seconds | against single runs |"
    yield "|---|---|---|"
    yield f"| {TRIALS} times `unfit attack --method kkt`, from the mean of {SINGLE} | {alone:.0f} | 1 |"
    yield f"| a sweep, one process of {cores} threads | {one:.0f} | {one / alone:.2f} |"
    yield f"| a sweep, {cores} processes of one thread (default) | {many:.0f} | {many / alone:.2f} |"


if __name__ == "__main__":
    write_section("A sweep against single runs", table(sys.argv[1]), ("attacker",), timed=True)
