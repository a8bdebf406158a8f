"""Haim et al. 2022, Reconstructing Training Data from Trained Neural Networks: its targets, and what is computed.

The targets are those of the captions; `lab.py` says what is made of them at a smaller scale.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from matplotlib.figure import Figure
from torch import Tensor

from unfit.attacker.kinks import LIVE
from unfit.auditor.audit import Audit
from unfit.auditor.match import normalise
from unfit.base.nets import outputs
from unfit.lab.measurement import Table
from unfit.lab.reproduce import circle, draw
from unfit.lab.reproduce.claims import (
    COUNT_MARGIN,
    SIMILARITY_MARGIN,
    Claim,
    come_back,
    compared,
    dozens,
    few,
    harder,
    judge,
    leaks,
    mean_similarity,
    on_margin,
    spread,
)
from unfit.lab.reproduce.item import Made
from unfit.lab.reproduce.lab import Lab, Setup, describe
from unfit.lab.settings import FitSettings

HANDFUL = 5
GALLERY = 500  # images of Figs. 12 and 13
NEARLY, NEARLY_MARGIN = 0.9, 0.05  # of the good ones: as good

STANDARD, SHORT = FitSettings(init=None), FitSettings(flow_time=100)  # 10⁴ epochs at 0.01
BATCHES = FitSettings(method="sgd", lr=0.1, epochs=1000)  # 10⁴ of flow time, too

CIRCLE = Setup(20, "circle")
N50, N100, N500, N1000 = (Setup(n) for n in (50, 100, 500, 1000))
MNIST = Setup(500, "mnist")
NARROW, DEEP, DEEPER = (Setup(500, arch=arch) for arch in ("100-100", "1000-500-100", "1000-500-100-50"))
BIASED = Setup(500, biases="hidden")
STANDARD10, STANDARD50 = Setup(10, fit=STANDARD), Setup(50, fit=STANDARD)
SGD = Setup(500, fit=BATCHES)
SHORT_CIFAR, SHORT_MNIST = Setup(500, fit=SHORT), Setup(500, "mnist", fit=SHORT)

TABLE1 = {  # training loss, test accuracy, test loss in the paper
    Setup(50, small=50, fit=FitSettings(target_loss=1.5e-6)): (1.5e-6, 0.72, 2.14),
    Setup(100, small=100, fit=FitSettings(target_loss=2.0e-6)): (2.0e-6, 0.74, 2.41),
    Setup(500, small=500, fit=FitSettings(target_loss=4.0e-6)): (4.0e-6, 0.78, 2.09),
    Setup(1000, small=1000, fit=FitSettings(target_loss=5.5e-6)): (5.5e-6, 0.79, 1.96),
    Setup(500, arch="100-100", small=500, fit=FitSettings(target_loss=3.0e-7)): (3.0e-7, 0.77, 2.72),
    Setup(500, arch="1000-500-100", small=500, fit=FitSettings(target_loss=1.2e-7)): (1.2e-7, 0.78, 3.14),
    Setup(500, arch="1000-500-100-50", small=500, fit=FitSettings(target_loss=8.4e-7)): (8.4e-7, 0.77, 2.57),
    Setup(500, biases="hidden", small=500, fit=FitSettings(target_loss=4.3e-6)): (4.3e-6, 0.77, 2.12),
}
TABLE2 = {
    Setup(10, small=10, fit=FitSettings(init=None, target_loss=8.3e-7)): (8.3e-7, 0.71, 1.68),
    Setup(50, small=50, fit=FitSettings(init=None, target_loss=1.5e-6)): (1.5e-6, 0.74, 1.72),
    Setup(500, small=500, fit=BATCHES): (4.0e-6, 0.77, 2.21),
    Setup(500, small=500, fit=SHORT): (0.0039, 0.77, 1.22),
    Setup(500, "mnist", small=500, fit=SHORT): (0.014, 0.87, 0.55),
}
ACCURACY, ACCURACY_MARGIN = 0.04, 0.01  # a difference in test accuracy that the draw of the samples makes


def fig2(lab: Lab) -> Made:
    target, private = lab.target(CIRCLE), lab.private(CIRCLE)
    points = private.x - private.mean
    made: dict[str, circle.Circle] = {
        attack: circle.by_paper(target, lab.scale.iterations, lab.seed, lab.progress)
        if attack == "paper"
        else circle.by_kinks(target)
        for attack in lab.attacks
    }
    first = next(iter(made.values()))
    ours, theirs = circle.covered(points, first.kept[0]), circle.covered(points, circle.inverted(target)[0])
    claims = [
        Claim(
            claim="all points come back",
            paper="20 of 20",
            ours=f"{ours} of {len(points)}, {len(first.kept[0])} candidates kept",
            rule="every one of them",
            verdict="agrees" if ours == len(points) else "differs",
            by=f"{ours - len(points):+d}",
        ),
        compared(
            "model inversion finds fewer",
            "7 of 20",
            ours,
            theirs,
            "{:.0f} against {:.0f} by inversion",
            spread((ours, len(points)), (theirs, len(points))),
        ),
    ]
    return Made(circle.panels(target, private, made), claims)


def fig3(lab: Lab) -> Made:
    claims = [
        dozens(lab.audit(N500), "CIFAR-10 images come back", "dozens"),
        dozens(lab.audit(MNIST), "MNIST digits come back", "dozens", "legible"),
    ]
    audits: dict[str, Audit] = {}
    for name, setup, paper in (("CIFAR-10", N500, 0.776), ("MNIST", MNIST, 0.88)):
        accuracy = f"test accuracy {lab.facts(setup)['test_accuracy']:.1%} (paper: {paper:.1%})"
        audits |= {f"{name}, {attack}, {accuracy}": audit for attack, audit in lab.audits(setup).items()}
    return Made(draw.grid(audits), claims)


FIG4 = {
    "n=50": N50,
    "n=100": N100,
    "n=500": N500,
    "n=1000": N1000,
    "100-100": NARROW,
    "1000-500-100": DEEP,
    "1000-500-100-50": DEEPER,
    "non-homogeneous": BIASED,
}


def fig4(lab: Lab) -> Made:
    audits = {name: lab.audit(setup) for name, setup in FIG4.items()}
    claims = [on_margin(audit, _named(lab, name)) for name, audit in audits.items()]
    by_size = [audits[name].record for name in list(FIG4)[:4]]
    claims.append(harder([record.num_samples for record in by_size], [record.num_good for record in by_size]))
    claims.append(come_back(audits["non-homogeneous"], "biases in all hidden layers do no harm", "yes"))
    panels = [
        (_named(lab, name) + lab.by(attack), lab.audit(setup, attack))
        for attack in lab.attacks
        for name, setup in FIG4.items()
    ]
    return Made(draw.scatter(panels), claims)


def _named(lab: Lab, name: str) -> str:
    return f"n={lab.size(FIG4[name]).n}" if name.startswith("n=") else name


def fig5(lab: Lab) -> Made:
    target, private = lab.target(CIRCLE), lab.private(CIRCLE)
    points, found = private.x - private.mean, circle.inverted(target)
    rows = target.weights["layer1.weight"]
    figure, places = draw.blank(2, 3, 2.4)
    num = circle.covered(points, found[0])
    circle.dots(places[0], *found, f"inversion, 2-D: {num} of {len(points)} (paper: 7)")
    circle.ring(places[0], points)
    live = rows[rows.norm(dim=1) > LIVE * rows.norm(dim=1).max()]
    shown = 1.2 * live / live.norm(dim=1).max()
    circle.dots(places[3], shown, None, "weights, 2-D, relative sizes")
    circle.ring(places[3], points)
    claims = [
        Claim(
            claim="inversion finds few of the 20 points",
            paper="7",
            ours=str(num),
            rule=f"at most half, ± {COUNT_MARGIN}",
            verdict=judge(len(points) / 2 - num, 0, COUNT_MARGIN),
            by=f"{num - 7:+d} to the paper's",
        )
    ]
    for place, name, setup in ((1, "CIFAR-10", N500), (2, "MNIST", MNIST)):
        byinversion, byweights = (lab.audit(setup, attack) for attack in ("inversion", "weights"))
        claims.append(
            few(byinversion, f"inversion gives at most a handful, {name}", "class representatives", HANDFUL)
        )
        claims.append(few(byweights, f"weights give at most a handful, {name}", "3 or 4", HANDFUL))
        draw.pairs_in(places[place], byinversion, f"inversion, {name}: {byinversion.record.num_good} good")
        shown = f"weights, {name}: {byweights.record.num_good} good (paper: 3–4)"
        draw.pairs_in(places[place + 3], byweights, shown)
    circle.explain(figure)
    return Made(figure, claims)


def inversions(lab: Lab, setup: Setup) -> Figure:
    """What model inversion ends in, ordered by the output."""
    x = _by_output(lab, setup)
    every = max(1, len(x) // GALLERY)
    shown = x[::every][:GALLERY]
    return draw.gallery(shown, f"{len(shown)} of {len(x)}, lowest output first", 25)


def inversions_are_alike(lab: Lab, setup: Setup) -> Claim:
    audit, x = lab.audit(setup, "inversion"), _by_output(lab, setup)
    far = x[: len(x) // 4]  # of one class, driven farthest
    samples = audit.arrays["original"][torch.tensor([s.label for s in audit.record.samples]) == 0]
    return compared(
        "its images are like each other",
        "yes",
        _alike(far),
        _alike(samples - audit.arrays["original"].mean(0)),
        "mean correlation {:.2f}; of training images {:.2f}",
        SIMILARITY_MARGIN,
    )


def _by_output(lab: Lab, setup: Setup) -> Tensor:
    x = lab.inverted(setup).x
    return x[outputs(lab.target(setup).net(), x)[:, 0].argsort()]


def _alike(x: Tensor) -> float:
    """The mean correlation of pairs."""
    values = normalise(x.flatten(1))
    n, d = values.shape
    return float((values.sum(0).square().sum() / (d - 1) - n) / (n * (n - 1)))


def neurons(lab: Lab, setup: Setup) -> Figure:
    """All weights of the first layer as images."""
    target = lab.target(setup)
    images = target.weights["layer1.weight"].view(-1, *target.architecture.input_shape)
    return draw.gallery(images, f"the {len(images)} neurons of the first layer", 40)


FIG16 = {
    "standard init, n=10": STANDARD10,
    "standard init, n=50": STANDARD50,
    "mini-batch SGD": SGD,
    "10⁴ epochs, CIFAR-10": SHORT_CIFAR,
    "10⁴ epochs, MNIST": SHORT_MNIST,
}


def fig16(lab: Lab) -> Made:
    standard, small = lab.audit(STANDARD50), lab.audit(N50)
    short, long = lab.audit(SHORT_CIFAR), lab.audit(N500)
    claims = [
        leaks(standard, "standard init leaks", "a strong signal"),
        compared(
            "small init beats standard",
            "yes",
            mean_similarity(small),
            mean_similarity(standard),
            "mean SSIM {:.2f} against {:.2f}",
            SIMILARITY_MARGIN,
        ),
        come_back(lab.audit(SGD), "mini-batches leak", "yes"),
        _nearly(short, long),
        dozens(lab.audit(SHORT_MNIST), "10⁴ epochs on MNIST leak", "a large portion", "legible"),
    ]
    panels = [
        (name + lab.by(attack), lab.audit(setup, attack))
        for attack in lab.attacks
        for name, setup in FIG16.items()
    ]
    return Made(draw.scatter(panels, 5), claims)


def nearly_as_good(lab: Lab, short: Setup, long: Setup = N500) -> Claim:
    """With a hundredth of the epochs."""
    return _nearly(lab.audit(short), lab.audit(long))


def _nearly(short: Audit, long: Audit) -> Claim:
    few_epochs, many = short.record.num_good, long.record.num_good
    share = few_epochs / max(1, many)
    return Claim(
        claim="10⁴ epochs are nearly as good as 10⁶",
        paper="very similar",
        ours=f"{few_epochs} good against {many} "
        f"({short.record.num_good_unseen} against {long.record.num_good_unseen} on unseen)",
        rule=f"at least {NEARLY} of them, ± {NEARLY_MARGIN}",
        verdict=judge(share, NEARLY, NEARLY_MARGIN),
        by=f"{share:.2f} of them",
    )


def table1(lab: Lab) -> Made:
    made = accuracies(lab, TABLE1)
    fitted = [lab.facts(setup) for setup in TABLE1]
    by_size = [facts["test_accuracy"] for facts in fitted[:4]]
    worst = min(facts["train_accuracy"] for facts in fitted)
    claims = [
        Claim(
            claim="all fit their training samples",
            paper="100%",
            ours=f"at least {worst:.1%}",
            rule="every sample of every net",
            verdict="agrees" if worst == 1 else "differs",
            by=f"{100 * (worst - 1):+.1f} points",
        ),
        compared(
            "more samples, better test accuracy",
            "72% to 79%",
            by_size[-1],
            by_size[0],
            "{:.1%} with most, {:.1%} with fewest",
            ACCURACY,
        ),
    ]
    return replace(made, claims=[*claims, *made.claims])


def accuracies(lab: Lab, rows: dict[Setup, tuple[float, float, float]]) -> Made:
    """How each target was fitted, beside the paper's numbers."""
    cells, claims, numbers = [], [], []
    for setup, (loss, accuracy, test_loss) in rows.items():
        fitted = lab.facts(setup)
        name = f"{setup.data}, {describe(lab.size(setup))}"
        ours = fitted["test_accuracy"]
        cells.append(
            (
                name,
                f"{loss:.1e}",
                f"{fitted['loss']:.1e}",
                f"{fitted['train_accuracy']:.0%}",
                f"{accuracy:.0%}",
                f"{ours:.1%}",
                f"{test_loss:.2f}",
                f"{fitted['test_loss']:.2f}",
            )
        )
        numbers.append(
            ((loss, fitted["loss"]), (100 * accuracy, 100 * ours), (test_loss, fitted["test_loss"])),
        )
        claims.append(
            Claim(
                claim=f"test accuracy, {name}",
                paper=f"{accuracy:.0%}",
                ours=f"{ours:.1%}",
                rule=f"within {100 * ACCURACY:.0f} points, ± {100 * ACCURACY_MARGIN:.0f}",
                verdict=judge(ACCURACY - abs(ours - accuracy), 0, ACCURACY_MARGIN),
                by=f"{100 * (ours - accuracy):+.1f} points",
            )
        )
    header = (
        "target",
        "loss, paper",
        "ours",
        "train acc.",
        "test acc., paper",
        "ours",
        "test loss, paper",
        "ours",
    )
    kinds = ("training loss", "test accuracy, %", "test loss")
    panels = dict(zip(kinds, zip(*numbers, strict=True), strict=True))
    return Made(draw.beside([row[0] for row in cells], panels), claims, Table(columns=header, rows=tuple(cells)))
