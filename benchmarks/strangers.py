"""How often does an audit cry leak on samples the model never saw? python benchmarks/strangers.py DATA [AUDITS]

Each of a few nets is attacked once. Then sets of strangers are audited with these candidates, against unseen samples that
are like them or are not: drawn from the other file of the data set, with other shares of the classes, half blackened,
brighter. Nothing was trained on, so every `leak` is false. Prints verdicts by kind, and the rate of false leaks with its
95% interval. DATA holds cifar-10-batches-bin and mnist.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import torch

from unfit import MisfitError, attack, audit, read_source
from unfit.auditor.calibration import interval
from zoo import Pair, mlp, parts, samples, seen, train

N = 60  # strangers, and as many unseen samples
KINDS = ("exchangeable", "other file", "other class mix", "half zeros", "brighter")


def changed(kind: str, private: Pair, unseen: Pair, other: Pair) -> tuple[Pair, Pair]:
    """The two sets, made unlike each other in one way."""
    (x, y), (x_unseen, y_unseen) = private, unseen
    if kind == "other file":
        return private, other
    if kind == "other class mix":
        kept = (y == 1) | (torch.arange(len(y)) % 3 == 0)
        return (x[kept], y[kept]), unseen
    if kind == "half zeros":
        x = x.clone()
        x[..., x.shape[-2] // 2 :, :] = 0
    if kind == "brighter":
        x = x + 0.1
    return (x, y), (x_unseen, y_unseen)


def main(data: Path, audits: int) -> None:
    torch.set_num_threads(2)
    began, said = time.perf_counter(), Counter[tuple[str, str]]()
    each = max(1, audits // (2 * 2 * len(KINDS)))
    for name in ("cifar10", "mnist"):
        place = data / "mnist" if name == "mnist" else data
        test = read_source(f"{name}:{place}").test
        assert test is not None
        taken = test.take(test.balanced(2000, 0))
        members, pool = parts(samples(name, 4000, data), 60, 3940)
        mean = members[0].mean(0, keepdim=True)
        members, pool, others = (seen(pair, mean) for pair in (members, pool, (taken.x, taken.y)))
        d = members[0][0].numel()
        nets = (
            train(mlp(d, 500, 200, 1, first=1e-4), members, 600, 0.05),
            train(mlp(d, 300, 300, 1), members, 800, 0.1, 0.01),
        )
        for net in nets:
            found = attack(net)
            for kind in KINDS:
                for seed in range(each):
                    random = torch.Generator().manual_seed(seed)
                    at, there = (torch.randperm(len(p[1]), generator=random) for p in (pool, others))
                    private, unseen = ((pool[0][i], pool[1][i]) for i in at[: 2 * N].split(N))
                    other = others[0][there[:N]], others[1][there[:N]]
                    try:
                        verdict = audit(net, *changed(kind, private, unseen, other), candidates=found).verdict
                    except MisfitError:
                        verdict = "inconclusive"
                    said[kind, verdict] += 1
            print(f"{name}: {dict(said)}", flush=True)
    print("\n| strangers | leak | inconclusive | pass |\n|---|---|---|---|")
    for kind in KINDS:
        print(f"| {kind} | " + " | ".join(str(said[kind, v]) for v in ("leak", "inconclusive", "pass")) + " |")
    leaks, total = sum(num for (_, verdict), num in said.items() if verdict == "leak"), sum(said.values())
    low, high = interval(leaks, total)
    print(f"\n{leaks} false leaks in {total} audits: {leaks / total:.1%} ({low:.1%} to {high:.1%})")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 300)
