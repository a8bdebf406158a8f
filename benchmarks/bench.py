"""Measure every section that has a script, one job at a time, longest last: python benchmarks/bench.py DATA [--stale] [--dry]

DATA holds cifar-10-batches-bin and mnist. Before it starts it lists the jobs with the minutes that each takes on one idle core.
A run that was stopped resumes: RUNS/bench.json names the jobs that are done, until all are. `--stale` runs only the
jobs with a section whose code has changed since it was measured, or that was never measured. `--dry` lists and stops.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import page
from unfit.base.files import read_json, write_json
from unfit.base.times import duration
from unfit.lab.measurement import older


class Job(NamedTuple):
    """A script of this folder, and the sections that it stores."""

    minutes: float
    command: str  # {data} and {runs} are folders
    titles: tuple[str, ...]


JOBS = (
    Job(3, "match.py", ("Matching at scale",)),
    Job(5, "pool.py", ("Pooling a sweep",)),
    Job(10, "reliability.py {data} --runs {runs}", ("Confidence: does it mean true?",)),
    Job(15, "results.py {data}", ("Targets: H22's Table 1 in hundreds of steps",)),
    Job(20, "optimisers.py {data}", ("The state of an optimiser",)),
    Job(
        30,
        "unseen.py {data}",
        (
            "Strangers without a base: how many leaks are false?",
            "Strangers with a base: how many leaks are false?",
            "Samples in another part of the file: does anything pass unseen?",
        ),
    ),
    Job(
        30,
        "scan.py",
        (
            "Scan: what pipelines store",
            "Scan: how many leaks are false",
            "Scan: how long it takes",
            "Scan: a registry, killed and resumed",
        ),
    ),
    Job(30, "wider.py {data}", ("Wider: other optimisers, augmentation, other inputs",)),
    Job(
        60,
        "checkpoints.py {data} {runs}/checkpoints",
        ("Two copies and several checkpoints", "Two copies and several checkpoints: controls"),
    ),
    Job(60, "proofs.py {data} {runs}/proofs.jsonl", ("Proofs: how many are false?",)),
    Job(
        60,
        "kkt.py {data} --runs {runs}",
        (
            "The papers' solver against the fast one",
            "The papers' solver with many settings",
            "What the KKT attack costs",
            "The circle",
            "The KKT attack on every target",
        ),
    ),
    Job(120, "leaderboard.py {data} --runs {runs}", ("Leaderboard",)),
)
BY_HAND = (  # sections that a person writes, or whose script needs what no registry of this project installs
    "Vectors: features, texts, records",
    "The zoo: does the verdict hold?",
    "A sweep against single runs",
    "The papers' claims: where they do not hold here, and what else we found",
    "Embeddings: which words occurred",
    "Embeddings: whole texts",
    "Embeddings: when a word was last used",
    "Embeddings: how many verdicts are false",
    "Embeddings: a fine-tuned MiniLM",
)


def is_stale(job: Job) -> bool:
    """Whether a section is missing, or its code is not stored or has changed since."""
    sections = {section.title: section for section in page.stored()}
    found = [sections.get(title) for title in job.titles]
    return any(section is None or not section.code or older(section) for section in found)


def run(job: Job, data: Path, runs: Path) -> bool:
    script, *given = job.command.split()
    words = [word.format(data=data, runs=runs) for word in given]
    threads = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, Path(__file__).parent / script, *words], env=threads).returncode == 0


def main(data: Path, runs: Path, stale: bool, dry: bool) -> int:
    """The exit code: 1 if a job failed. The others are run all the same."""
    books = runs / "bench.json"
    done = set(read_json(books)["done"]) if books.exists() and not stale else set()
    jobs = sorted(job for job in JOBS if job.command not in done and (not stale or is_stale(job)))
    print(
        f"{len(jobs)} of {len(JOBS)} jobs, about {duration(60 * sum(job.minutes for job in jobs))} on an idle core:"
    )
    for job in jobs:
        print(f"  {job.minutes:4g} min  {job.command}")
    if dry:
        return 0
    runs.mkdir(parents=True, exist_ok=True)
    failed = []
    for job in jobs:
        print(f"{time.strftime('%H:%M')}  {job.command}", flush=True)
        if not run(job, data, runs):
            failed.append(job.command)
        elif not stale:
            done.add(job.command)
            write_json(books, {"done": sorted(done)})
    if failed:
        print(f"failed: {'; '.join(failed)}", file=sys.stderr)
        return 1
    books.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--stale", action="store_true")
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args()
    sys.exit(main(args.data, args.runs, args.stale, args.dry))
