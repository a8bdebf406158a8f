"""Haim et al. 2022, Reconstructing Training Data from Trained Neural Networks: a function a figure or table.

The targets are those of the captions; what is made of them at a smaller scale, `lab.py` says.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unfit.attacker.kinks import LIVE
from unfit.auditor.audit import Audit
from unfit.auditor.match import normalise
from unfit.base.nets import outputs
from unfit.lab.reproduce import circle, draw
from unfit.lab.reproduce.claims import (
    COUNT_MARGIN,
    SIMILARITY_MARGIN,
    Claim,
    Kind,
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
from unfit.lab.reproduce.item import Item, Made, Table
from unfit.lab.reproduce.lab import Lab, Setup, describe
from unfit.lab.training import FitSettings

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


def fig1(lab: Lab) -> Made:
    """Fig 1: training images from a classifier of 50 CIFAR-10 images.

    Vehicles against animals, d-1000-1000-1: recognisable copies of the training images come out of the weights.
    """
    claim = come_back(lab.audit(N50), "training images come back", "most of those shown are recognisable")
    return Made(draw.grid(lab.audits(N50)), [claim])


def fig2(lab: Lab) -> Made:
    """Fig 2: the scheme in two dimensions.

    20 points on a circle with alternating labels: all come back, after weak and double candidates are dropped.
    """
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
    """Fig 3: the best 45 of 500, CIFAR-10 and MNIST.

    Test accuracies 77.6% and 88.0%; dozens of training images come back from each.
    """
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
    """Fig 4: similarity against the model's output, for training sets and nets of many sizes.

    Good reconstructions lie on the margin; more samples are harder; biases in all layers do no harm.
    """
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
    """Fig 5: model inversion, and the weights as images.

    In 2-D inversion finds 7 points of 20; of images it gives class representatives. Of the first layer's weights
    at most 3 or 4 resemble a training image.
    """
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


def fig6(lab: Lab) -> Made:
    """Fig 6: the best 45, d-1000-1000-1, n=100."""
    return _best(lab, N100)


def fig7(lab: Lab) -> Made:
    """Fig 7: the best 45, d-1000-1000-1, n=1000."""
    return _best(lab, N1000)


def fig8(lab: Lab) -> Made:
    """Fig 8: the best 45, d-100-100-1, n=500."""
    return _best(lab, NARROW)


def fig9(lab: Lab) -> Made:
    """Fig 9: the best 45, d-1000-500-100-1, n=500."""
    return _best(lab, DEEP)


def fig10(lab: Lab) -> Made:
    """Fig 10: the best 45, d-1000-500-100-50-1, n=500."""
    return _best(lab, DEEPER)


def fig11(lab: Lab) -> Made:
    """Fig 11: the best 45, non-homogeneous, n=500."""
    return _best(lab, BIASED)


def _best(lab: Lab, setup: Setup, rows: int = 3, columns: int = 15, kind: Kind = "good") -> Made:
    claim = come_back(lab.audit(setup), "training images come back", "those shown are recognisable", kind)
    return Made(draw.grid(lab.audits(setup), columns, rows), [claim])


def fig12(lab: Lab) -> Made:
    """Fig 12: model inversion on CIFAR-10, ordered by the output.

    From many starts and settings it ends in similar, blurry images: averages of a class.
    """
    return _inverted(lab, N500, "CIFAR-10")


def fig13(lab: Lab) -> Made:
    """Fig 13: model inversion on MNIST, ordered by the output."""
    return _inverted(lab, MNIST, "MNIST")


def _inverted(lab: Lab, setup: Setup, name: str) -> Made:
    audit, x = lab.audit(setup, "inversion"), lab.inverted(setup).x
    phi = outputs(lab.target(setup).net(), x)[:, 0]
    x = x[phi.argsort()]
    every = max(1, len(x) // GALLERY)
    far = x[: len(x) // 4]  # of one class, driven farthest
    samples = audit.arrays["original"][torch.tensor([s.label for s in audit.record.samples]) == 0]
    claims = [
        few(audit, f"inversion gives at most a handful, {name}", "class representatives", HANDFUL),
        compared(
            "its images are like each other",
            "yes",
            _alike(far),
            _alike(samples - audit.arrays["original"].mean(0)),
            "mean correlation {:.2f}; of training images {:.2f}",
            SIMILARITY_MARGIN,
        ),
    ]
    shown = x[::every][:GALLERY]
    return Made(draw.gallery(shown, f"{len(shown)} of {len(x)}, lowest output first", 25), claims)


def _alike(x: Tensor) -> float:
    """The mean correlation of pairs."""
    values = normalise(x.flatten(1))
    n, d = values.shape
    return float((values.sum(0).square().sum() / (d - 1) - n) / (n * (n - 1)))


def fig14(lab: Lab) -> Made:
    """Fig 14: all weights of the first layer as images, CIFAR-10."""
    return _weights(lab, N500, "CIFAR-10")


def fig15(lab: Lab) -> Made:
    """Fig 15: all weights of the first layer as images, MNIST."""
    return _weights(lab, MNIST, "MNIST")


def _weights(lab: Lab, setup: Setup, name: str) -> Made:
    target = lab.target(setup)
    images = target.weights["layer1.weight"].view(-1, *target.architecture.input_shape)
    claim = few(lab.audit(setup, "weights"), f"weights give at most a handful, {name}", "3 or 4", HANDFUL)
    return Made(draw.gallery(images, f"the {len(images)} neurons of the first layer", 40), [claim])


FIG16 = {
    "standard init, n=10": STANDARD10,
    "standard init, n=50": STANDARD50,
    "mini-batch SGD": SGD,
    "10⁴ epochs, CIFAR-10": SHORT_CIFAR,
    "10⁴ epochs, MNIST": SHORT_MNIST,
}


def fig16(lab: Lab) -> Made:
    """Fig 16: similarity against output beyond the theory: standard init, mini-batches, few epochs.

    Standard init gives less than the small one; mini-batches work; 10⁴ epochs are nearly as good as 10⁶.
    """
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


def fig17(lab: Lab) -> Made:
    """Fig 17: all 10 of a model with standard init."""
    return _best(lab, STANDARD10, 1, 10)


def fig18(lab: Lab) -> Made:
    """Fig 18: the best 10 of 50, standard init."""
    return _best(lab, STANDARD50, 1, 10)


def fig19(lab: Lab) -> Made:
    """Fig 19: the best 45 after 10⁴ epochs, CIFAR-10."""
    made = _best(lab, SHORT_CIFAR)
    return Made(made.figure, [*made.claims, _nearly(lab.audit(SHORT_CIFAR), lab.audit(N500))])


def fig20(lab: Lab) -> Made:
    """Fig 20: the best 45 after 10⁴ epochs, MNIST."""
    return _best(lab, SHORT_MNIST, kind="legible")


def fig21(lab: Lab) -> Made:
    """Fig 21: the best 45 of a model trained in mini-batches of 50."""
    return _best(lab, SGD)


def table1(lab: Lab) -> Made:
    """Table 1: training loss, test accuracy and test loss of the models of Fig 4.

    All reach a training accuracy of 100%; more samples give a better test accuracy, more layers the same.
    """
    made = _table(lab, TABLE1)
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


def table2(lab: Lab) -> Made:
    """Table 2: the same for the models beyond the theory, of Fig 16."""
    return _table(lab, TABLE2)


def _table(lab: Lab, rows: dict[Setup, tuple[float, float, float]]) -> Made:
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


ITEMS = (
    Item(fig1, (N50,), 15),
    Item(fig2, (CIRCLE,), 75),
    Item(fig3, (N500, MNIST), 70),
    Item(fig4, tuple(FIG4.values()), 225),
    Item(fig5, (CIRCLE, N500, MNIST), 150, attacked=False, inverted=True),
    Item(fig6, (N100,), 25),
    Item(fig7, (N1000,), 50),
    Item(fig8, (NARROW,), 20),
    Item(fig9, (DEEP,), 35),
    Item(fig10, (DEEPER,), 35),
    Item(fig11, (BIASED,), 30),
    Item(fig12, (N500,), 45, attacked=False, inverted=True),
    Item(fig13, (MNIST,), 30, attacked=False, inverted=True),
    Item(fig14, (N500,), 10, attacked=False),
    Item(fig15, (MNIST,), 10, attacked=False),
    Item(fig16, (*FIG16.values(), N50, N500), 195),
    Item(fig17, (STANDARD10,), 5),
    Item(fig18, (STANDARD50,), 5),
    Item(fig19, (SHORT_CIFAR, N500), 60),
    Item(fig20, (SHORT_MNIST,), 15),
    Item(fig21, (SGD,), 105),
    Item(table1, tuple(TABLE1), 240, attacked=False),
    Item(table2, tuple(TABLE2), 160, attacked=False),
)
