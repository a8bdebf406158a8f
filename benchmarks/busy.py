"""Is an audit as fast beside other work as alone? python benchmarks/busy.py DATA [--cases heads,texts] [--beside 0,2,4,8] [--threads 1,2]

Six audits, each in a process of its own, alone and beside processes that keep a core busy each; wall and processor seconds of
the audit, without loading and training. DATA holds cifar-10-batches-bin and mnist. `--threads` is what the caller tells PyTorch
before the call: 64 stands for a wide machine. Run it alone on the machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unfit import Auto, audit
from zoo import copied, mlp, parts, samples, seen, train

Question = tuple[nn.Module, Any, Any, dict[str, Any]]


def faces(data: Path) -> Question:
    """As `unfit demo` has them."""
    private, unseen = parts(samples("faces", 80, data), 40, 40)
    mean = private[0].mean(0, keepdim=True)
    private, unseen = seen(private, mean), seen(unseen, mean)
    return train(mlp(625, 1000, 1000, 1, first=1e-4), private, 400, 0.02), private, unseen, {}


def cifar(data: Path) -> Question:
    private, unseen = parts(samples("cifar10", 200, data), 100, 100)
    mean = private[0].mean(0, keepdim=True)
    private, unseen = seen(private, mean), seen(unseen, mean)
    base = mlp(3072, 1000, 1000, 1)
    return train(copied(base), private, 400, 0.05), private, unseen, {"base": base}


def vectors(x: torch.Tensor, n: int, width: int) -> Question:
    y = (x @ torch.randn(x.shape[1], generator=torch.Generator().manual_seed(1)) > 0).long()
    private, unseen = (x[:n], y[:n]), (x[n : 2 * n], y[n : 2 * n])
    base = mlp(x.shape[1], width, 2)
    return train(copied(base), private, 300, 0.05), private, unseen, {"base": base}


def heads(data: Path) -> Question:
    """1,280 features behind a ReLU, as those of a body that was frozen."""
    random = torch.Generator().manual_seed(0)
    common = torch.randn(1, 1280, generator=random)
    return vectors((torch.randn(160, 1280, generator=random) + common).clamp_min(0) / 4, 80, 1000)


def texts(data: Path) -> Question:
    """Word counts: some words in many texts."""
    random = torch.Generator().manual_seed(0)
    rate = 0.3 * torch.rand(2000, generator=random).pow(6)
    return vectors(torch.poisson(rate.expand(200, -1), generator=random), 100, 1000)


def own_cnn(data: Path) -> Question:
    """A small CNN with a dense head, from standard initial weights, by Adam."""
    private, unseen = parts(samples("mnist", 400, data, "all"), 200, 200)
    torch.manual_seed(0)
    body = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2)]
    net = nn.Sequential(*body, nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10))
    return train(net, private, 100, 1e-3, kind="adam"), private, unseen, {"attack": Auto(seeds=1000)}


def digits(data: Path) -> Question:
    """2,000 private samples of ten classes."""
    private, unseen = parts(samples("mnist", 4000, data, "all"), 2000, 2000)
    return train(mlp(784, 500, 10), private, 200, 0.1), private, unseen, {"attack": Auto(seeds=1000)}


CASES: dict[str, Callable[[Path], Question]] = {
    "faces": faces,
    "CIFAR n=100, base": cifar,
    "heads n=80": heads,
    "texts n=100": texts,
    "own CNN": own_cnn,
    "MNIST n=2,000": digits,
}


def one(case: str, data: Path, threads: int, kept: Path) -> dict[str, Any]:
    """The audit in this process; its model is trained once and kept."""
    file = kept / f"{case}.pt"
    if not file.is_file():
        torch.set_num_threads(1)
        torch.save(CASES[case](data), file)
    model, private, unseen, more = torch.load(file, weights_only=False)  # our own
    torch.set_num_threads(threads)
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    found = audit(model, private, unseen, **more)
    after = resource.getrusage(resource.RUSAGE_SELF)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    counts = f"{found.verdict}, {found.num_exact} exact, {found.num_recognisable} recognisable"
    return {"wall": time.perf_counter() - began, "processor": processor, "said": counts}


def _spin() -> None:
    while True:
        pass


@contextmanager
def beside(num: int) -> Iterator[None]:
    busy = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(num)]
    for each in busy:
        each.start()
    try:
        yield
    finally:
        for each in busy:
            each.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cases", default=",".join(case.split()[0] for case in CASES))
    parser.add_argument("--beside", default="0,2,4,8")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--kept", type=Path, default=Path("runs/busy"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.kept.mkdir(parents=True, exist_ok=True)
    if args.one:
        print(json.dumps(one(args.one, args.data, int(args.threads), args.kept)))
        return
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    print(
        "| audit | threads | busy processes | wall, s | processor, s | said |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for case in (case for case in CASES if case.split()[0] in args.cases.split(",")):
        for num in map(int, args.beside.split(",")):
            for threads in args.threads.split(","):
                command = [
                    sys.executable,
                    __file__,
                    str(args.data),
                    "--one",
                    case,
                    "--threads",
                    threads,
                    "--kept",
                    str(args.kept),
                ]
                with beside(num):
                    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
                if done.returncode:
                    sys.exit(done.stderr)
                told = json.loads(done.stdout.splitlines()[-1])
                print(
                    f"| {case} | {threads} | {num} | {told['wall']:.1f} | {told['processor']:.1f} | {told['said']} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
