"""What protects training samples, and what it costs: accuracy against what comes back.

`python benchmarks/defences.py DATA [NAME …]`, DATA holding cifar-10-batches-bin, trains one classifier (vehicles against
animals, 3072-500-500-1) with each defence, by a plain PyTorch loop, and audits it as a stranger would who has its weights
alone; its initial weights is found by its seed, as docs/initial-weights.md says, where the defence does not prevent it. Accuracy is that on
2,000 other images. `--figure FILE` draws all that was measured. `dp` needs `unfit[dp]`. What was measured is kept in
runs/defences, one file a run, and a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unfit import Auto, DataCheckError, audit, draw, draw_unseen, read_source

RUNS = Path("runs/defences")
N, NUM_TEST = 50, 2000
SEEDS_TRIED = 1 << 20
SHIFT = 4  # pixels that augmentation moves a picture by, at most
DELTA = 1e-3  # of differential privacy: below one over the number of samples
LABEL = 0.5  # per cent of accuracy that a label of the figure takes
Change = Callable[[nn.Module], None]


@dataclass(frozen=True)
class Defence:
    words: str
    steps: int = 400
    n: int = N
    settings: dict[str, float] = field(default_factory=lambda: {"lr": 0.05, "momentum": 0.9})
    batch: int | None = None
    augment: bool = False
    dropout: float = 0.0
    epsilon: float | None = None  # of DP-SGD
    before: Change = lambda model: None  # training
    after: Change = lambda model: None


def noisy(share: float) -> Change:
    """Noise on all weights, as large as this share of their root mean square in each tensor."""

    def change(model: nn.Module) -> None:
        for value in model.parameters():
            value.data += share * value.data.square().mean().sqrt() * torch.randn_like(value)

    return change


def rounded(to: Callable[[Tensor], Tensor]) -> Change:
    def change(model: nn.Module) -> None:
        for value in model.parameters():
            value.data = to(value.data)

    return change


def as_int8(value: Tensor) -> Tensor:
    scale = value.abs().max() / 127
    return (value / scale).round() * scale


def pruned(share: float) -> Change:
    """The smallest weights of each layer are zero."""

    def prune(value: Tensor) -> Tensor:
        size = value.abs()
        return value * (size > np.quantile(size.numpy(), share)) if value.ndim == 2 else value

    return rounded(prune)


def shuffled(model: nn.Module) -> None:
    """The function of docs/initial-weights.md."""
    text = Path(__file__).parents[1].joinpath("docs", "initial-weights.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?def shuffle_initial_weights.*?)```", text, re.S)
    assert code
    names: dict[str, Change] = {}
    exec(code[1], names)
    names["shuffle_initial_weights"](model)


CASES = {
    "none": Defence("none"),
    "early": Defence("stopped early, after 40 of 400 steps", steps=40),
    "decay": Defence("weight decay 1e-2", steps=600, settings={"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-2}),
    "augment": Defence("augmentation: flips, shifts by up to 4 pixels", augment=True),
    "dropout": Defence("dropout of one half", dropout=0.5),
    "n400": Defence("four times as many samples", n=4 * N),
    "fp16": Defence("rounded to float16", after=rounded(lambda value: value.half().float())),
    "bf16": Defence("rounded to bfloat16", after=rounded(lambda value: value.bfloat16().float())),
    "int8": Defence("rounded to int8", after=rounded(as_int8)),
    "prune50": Defence("half of the weights pruned", after=pruned(0.5)),
    "prune90": Defence("nine of ten weights pruned", after=pruned(0.9)),
    "noise01": Defence("noise of 0.1 of the weights", after=noisy(0.1)),
    "noise1": Defence("noise as large as the weights", after=noisy(1.0)),
    "shuffle": Defence("start shuffled with the system's randomness", before=shuffled),
    "dp50": Defence("DP-SGD, ε = 50", epsilon=50.0, batch=20, steps=200, settings={"lr": 0.1}),
    "dp8": Defence("DP-SGD, ε = 8", epsilon=8.0, batch=20, steps=200, settings={"lr": 0.1}),
}


def build(dropout: float, size: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in ((size, 500), (500, 500)):
        layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(500, 1))


def augmented(x: Tensor) -> Tensor:
    """Each picture flipped or not, and shifted."""
    x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
    padded, side = nn.functional.pad(x, [SHIFT] * 4), x.shape[-1]
    places = torch.randint(0, 2 * SHIFT + 1, (len(x), 2)).tolist()
    return torch.stack([each[:, a : a + side, b : b + side] for each, (a, b) in zip(padded, places, strict=True)])


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.float())


def train(case: Defence, x: Tensor, y: Tensor, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = build(case.dropout, x[0].numel())
    case.before(model)
    optimiser = torch.optim.SGD(model.parameters(), **case.settings)
    if case.epsilon is not None:
        model = train_privately(case, model, optimiser, x, y)
    for _ in range(case.steps if case.epsilon is None else 0):
        optimiser.zero_grad()
        loss_of(model, augmented(x) if case.augment else x, y).backward()
        optimiser.step()
    case.after(model)
    return model.eval()


def train_privately(
    case: Defence, model: nn.Module, optimiser: torch.optim.SGD, x: Tensor, y: Tensor
) -> nn.Module:
    """DP-SGD by Opacus, with the noise that this ε asks for."""
    from opacus import PrivacyEngine

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=case.batch)
    epochs = case.steps // len(loader)
    private, optimiser, loader = PrivacyEngine().make_private_with_epsilon(
        module=model,
        optimizer=optimiser,
        data_loader=loader,
        target_epsilon=case.epsilon,
        target_delta=DELTA,
        epochs=epochs,
        max_grad_norm=1.0,
    )
    for _ in range(epochs):
        for some, labels in loader:
            optimiser.zero_grad()
            if len(some):
                loss_of(private, some, labels).backward()
            optimiser.step()
    return model


def measure(name: str, seed: int, data: Path) -> dict[str, Any]:
    case = CASES[name]
    source = read_source(f"cifar10:{data / 'cifar-10-batches-bin'}")
    members = draw(source, case.n, seed)
    others, test = (draw_unseen(source, members, num, seed) for num in (case.n, NUM_TEST))
    x, unseen = members.x - members.mean, others.x - members.mean
    model = train(case, x, members.y, seed)
    with torch.no_grad():
        right = (model(test.x - members.mean)[:, 0] > 0).long() == test.y
    private, control = (x, members.y), (unseen, others.y)
    told = {"n": case.n, "accuracy": float(right.double().mean())}
    try:
        record = audit(model, private, control, attack=Auto(seeds=SEEDS_TRIED)).record
    except DataCheckError:  # the defence has left nothing of what the model knew
        nothing = dict.fromkeys(("num_recovered", "num_recognisable", "num_exact", "on_unseen"), 0)
        return told | nothing | {"start_found": False, "verdict": "refused: it no longer knows its samples"}
    found = {key: getattr(record, key) for key in ("num_recovered", "num_recognisable", "verdict")}
    found["num_exact"] = sum(sample.grade == "exact" for sample in record.samples)
    initial = record.initial is not None and record.initial.found
    on_unseen = {"on_unseen": record.num_recognisable_unseen}
    return told | {"start_found": initial} | found | on_unseen


def row(words: str, runs: list[dict[str, Any]]) -> str:
    def listed(key: str) -> str:
        return ", ".join(str(run[key]) for run in runs)

    accuracy = f"{accuracy_of(runs):.1f}%"
    initial = f"{sum(run['start_found'] for run in runs)} of {len(runs)}"
    shown = f"{listed('num_recognisable')} of {runs[0]['n']} ({listed('on_unseen')})"
    return f"| {words} | {accuracy} | {initial} | {shown} | {listed('num_exact')} | {listed('verdict')} |"


def accuracy_of(runs: list[dict[str, Any]]) -> float:
    return float(100 * np.mean([run["accuracy"] for run in runs]))


def stored(name: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(RUNS.glob(f"{name}_*.json"))]


def draw_figure(path: Path) -> None:
    """Accuracy against the share of samples that can be recognised; what is up and to the left is what one wants."""
    from matplotlib import pyplot as plt

    points = [
        (100 * np.mean([run["num_recognisable"] / run["n"] for run in runs]), accuracy_of(runs), case.words)
        for name, case in CASES.items()
        if (runs := stored(name))
    ]
    figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
    height = {False: np.inf, True: np.inf}  # of the lowest label on the left and on the right
    for share, accuracy, words in sorted(points, key=lambda point: -point[1]):
        right = share > 50
        height[right] = min(accuracy, height[right] - LABEL)
        axes.plot(share, accuracy, "o", color="tab:blue", markersize=5)
        axes.annotate(
            words,
            (share, accuracy),
            (share + (-2 if right else 2), height[right]),
            ha="right" if right else "left",
            va="center",
            fontsize=7,
        )
    axes.set(xlabel="samples that can be recognised (%)", ylabel="accuracy on other images (%)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", default=list(CASES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    print(
        "| defence | accuracy | start found | recognisable (unseen) | exact | verdict |\n|---|---|---|---|---|---|"
    )
    for name in given.names:
        for seed in range(given.seeds):
            kept = RUNS / f"{name}_{seed}.json"
            if not kept.is_file():
                kept.write_text(json.dumps(measure(name, seed, given.data), indent=1))
        print(row(CASES[name].words, stored(name)), flush=True)
    if given.figure:
        draw_figure(given.figure)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    main()
