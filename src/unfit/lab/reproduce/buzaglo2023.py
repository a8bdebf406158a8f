"""Buzaglo et al. 2023, Deconstructing Data Reconstruction: its targets, and what is computed.

The targets are those of the captions; `lab.py` says what is made of them at a smaller scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from unfit.auditor.audit import Audit
from unfit.auditor.match import GOOD
from unfit.lab.reproduce import draw
from unfit.lab.reproduce.claims import (
    CERTAIN,
    Claim,
    Verdict,
    come_back,
    compared,
    judge,
    on_margin,
    spread,
    ssim_threshold,
    ssims,
    trained,
    undecided,
)
from unfit.lab.reproduce.haim2022 import MNIST, N500
from unfit.lab.reproduce.item import Made
from unfit.lab.reproduce.lab import FULL, Lab, Setup
from unfit.lab.settings import FitSettings, Loss

CLASSES = (2, 3, 4, 5, 10)  # the figures show these
CROSS_ENTROPY = FitSettings(loss="ce")
BY_CLASS = {c: Setup(50 * c, classes=str(c), fit=CROSS_ENTROPY, small=12 * c) for c in CLASSES}  # 50 of each
FIXED = {c: Setup(500, classes=str(c), fit=CROSS_ENTROPY) for c in CLASSES}

LOSSES: tuple[Loss, ...] = ("l2", "l2.5", "huber")
# full batches; with momentum 5,000 steps are a flow time of 10⁴, as in the paper
MOMENTUM = FitSettings("sgd", weight_decay=7.5e-4, init=None, lr=0.02, epochs=5000, batch=300, momentum=0.99)
REGRESSION = {loss: Setup(300, fit=replace(MOMENTUM, loss=loss), small=60) for loss in LOSSES}
REGRESSION["l2.5"] = replace(  # diverges otherwise: far away |r|^2.5 is steeper than r²
    REGRESSION["l2.5"], fit=replace(MOMENTUM, loss="l2.5", lr=0.01)
)

DECAYS = tuple(float(f"{10**e:.2g}") for e in np.linspace(-4, -0.6, 12))
DECAYED = {d: Setup(100, fit=FitSettings(weight_decay=d, init=None), small=40) for d in DECAYS}
DECAYED10 = {d: Setup(500, classes="10", fit=FitSettings("flow", "ce", d, None), small=40) for d in DECAYS}
BASELINE = {  # init 1e-4, no weight decay
    "two": Setup(100, small=40),
    "ten": Setup(500, classes="10", fit=CROSS_ENTROPY, small=40),
}
SUBMITTED = {  # init 1e-3, as in the first submission
    name: replace(setup, fit=replace(setup.fit, init=1e-3)) for name, setup in BASELINE.items()
}

CONV_FIT = FitSettings(weight_decay=1e-3, init=None)
KERNELS, CHANNELS = (3, 5, 9, 15, 20, 25, 30, 32), (4, 16, 32, 64)
SMALL_GRID = (3, 9, 20, 32), (4, 32)
CONV = {(k, c): Setup(500, arch=f"conv({k},{c})-1000", fit=CONV_FIT, small=20) for k in KERNELS for c in CHANNELS}
SHOWN = CONV[3, 32]  # the model of Figs 6 and 16

LARGE_FIT = FitSettings("sgd", "ce", lr=0.05, epochs=400, batch=500)  # a flow time of 2,000
LARGE = Setup(5000, "cifar100", "10000-10000", classes="all", fit=LARGE_FIT)
FAIR, FAIR_MARGIN = 0.08, 0.03  # from 0.4 to the calibrated threshold; 120 unseen samples move it by 0.03
RISING = 0.8  # rank correlation of what rises with the number of classes
MORE, MORE_MARGIN = 6, 1  # times as many good ones with 10 classes as with 2


def fig10(lab: Lab) -> Made:
    made = by_classes(lab, FIXED)
    two, ten = (lab.audit(FIXED[c]).record.num_good for c in (2, 10))
    times = ten / max(1, two)
    claim = Claim(
        claim="10 classes give over 6 times as many as 2",
        paper="over 6 times",
        ours=f"{ten} against {two}: {times:.1f} times",
        rule=f"{MORE} times, ± {MORE_MARGIN}",
        verdict=judge(times, MORE, MORE_MARGIN),
        by=f"{times - MORE:+.1f}",
    )
    return Made(made.figure, [*made.claims, claim])


def by_classes(lab: Lab, setups: dict[int, Setup]) -> Made:
    """Similarity against output for each number of classes."""
    panels = [
        (f"{c} classes, n={lab.size(s).n}{lab.by(a)}", lab.audit(s, a))
        for a in lab.attacks
        for c, s in setups.items()
    ]
    good = {c: lab.audit(setup).record.num_good for c, setup in setups.items()}
    sizes = {c: lab.size(setup).n for c, setup in setups.items()}
    claims = [
        more_with_classes(good, sizes),
    ]
    for c in (2, 10):
        claims.append(on_margin(lab.audit(setups[c]), f"{c} classes"))
    return Made(draw.scatter(panels, 5), claims)


def more_with_classes(good: dict[int, int], sizes: dict[int, int]) -> Claim:
    """From two classes to ten, and on the whole between them."""
    rank = float(spearmanr(list(good), list(good.values()))[0])
    margin = spread((good[10], sizes[10]), (good[2], sizes[2]))
    verdict = judge(good[10] - good[2], 0, margin)
    return Claim(
        claim="more classes, more good reconstructions",
        paper="yes",
        ours=", ".join(f"{c}: {num}" for c, num in good.items()),
        rule=f"{margin:.1f} more with ten than with two, or more; rank correlation {RISING} or more",
        verdict=verdict if rank >= RISING or verdict == "differs" else "too close to call",
        by=f"{good[10] - good[2]:+d}; rank correlation {rank:.2f}",
    )


def fig4(lab: Lab) -> Made:
    claims = [come_back(lab.audit(setup), f"{loss} leaks", "yes") for loss, setup in REGRESSION.items()]
    panels = [(f"{loss}{lab.by(a)}", lab.audit(s, a)) for a in lab.attacks for loss, s in REGRESSION.items()]
    return Made(draw.scatter(panels, 3), claims)


def by_decay(lab: Lab, baselines: dict[str, Setup]) -> Made:
    """Good reconstructions against weight decay, two classes and ten, beside those of a net without decay."""
    figure, places = draw.blank(1, 2, 2.6)
    claims = []
    for axes, name, setups in zip(places, ("two", "ten"), (DECAYED, DECAYED10), strict=True):
        chosen = lab.thin(setups) if name == "two" else lab.thin(lab.thin(setups)[::2])
        curves: dict[str, list[float]] = {}
        for attack in lab.attacks:
            records = [lab.audit(setups[d], attack).record for d in chosen]
            curves[attack] = [record.num_good for record in records]
            curves[f"{attack}, on unseen"] = [record.num_good_unseen for record in records]
        draw.lines(axes, chosen, curves, "weight decay", "good reconstructions")
        without = lab.audit(baselines[name])
        small = "small initial weights, no decay"
        axes.axhline(without.record.num_good, color=draw.RED, ls="--", lw=1, label=small)
        axes.set(xscale="log", title=f"{name} classes, n={without.record.num_samples}")
        good = {d: lab.audit(setups[d]).record.num_good for d in chosen if trained(lab.audit(setups[d]))}
        claims.append(more_with_decay(name, good, without.record.num_good, without.record.num_samples))
    figure.legend(*places[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return Made(figure, claims)


def more_with_decay(name: str, good: dict[float, int], without: int, n: int) -> Claim:
    """The best decay of trained nets against none."""
    what = f"{name} classes: certain weight decays make more leak"
    if not good:
        return undecided(what, "yes")
    best = max(good, key=good.__getitem__)
    words = f"{{:.0f}} good at {best:g} against {{:.0f}} without decay, of {n}"
    return compared(what, "yes", good[best], without, words, spread((good[best], n), (without, n)))


def fig14(lab: Lab) -> Made:
    chosen = lab.thin(DECAYS)
    audits = {d: lab.audit(DECAYED[d]) for d in chosen}
    accuracy = {d: lab.facts(DECAYED[d])["train_accuracy"] for d in chosen}
    imperfect = [d for d in chosen if accuracy[d] < 1 and trained(audits[d])]
    leaky = [d for d in imperfect if audits[d].record.p_value < CERTAIN]
    best = max(chosen, key=lambda d: audits[d].record.num_good)
    claims = [
        on_margin(audits[best], f"weight decay {best:g}"),
        Claim(
            claim="models with training errors leak too",
            paper="yes",
            ours=", ".join(
                f"{d:g}: {accuracy[d]:.0%} fitted, {audits[d].record.num_recovered} recovered" for d in imperfect
            )
            or "no model has training errors",
            rule=f"at least one of them, p < {CERTAIN}",
            verdict=_any_of(len(leaky), len(imperfect)),
            by=f"{len(leaky)} of {len(imperfect)} such models",
        ),
    ]
    panels = [
        (f"{d:g}: train {accuracy[d]:.0%}{lab.by(a)}", lab.audit(DECAYED[d], a))
        for a in lab.attacks
        for d in chosen
    ]
    return Made(draw.scatter(panels, share_x=False), claims)  # outputs fall with the decay


def _any_of(leaky: int, models: int) -> Verdict:
    """Without such models nothing can be said."""
    return "agrees" if leaky else "differs" if models else "too close to call"


def fig15(lab: Lab) -> Made:
    kernels, channels = (KERNELS, CHANNELS) if lab.scale is FULL else SMALL_GRID
    audits = {(k, c): lab.audit(CONV[k, c]) for k in kernels for c in channels}
    good = {place: beyond_unseen(audit) for place, audit in audits.items() if trained(audit)}
    n = lab.size(CONV[kernels[0], channels[0]]).n
    claims = [fewer_channels(good, channels[0], channels[-1], n), dip(good, kernels, n)]
    panels = [
        (f"k={k}, C={c}{lab.by(a)}", lab.audit(CONV[k, c], a))
        for k in kernels
        for a in lab.attacks
        for c in channels
    ]
    return Made(draw.scatter(panels, len(lab.attacks) * len(channels)), claims)


def beyond_unseen(audit: Audit) -> int:
    """Good ones that are not there by chance: broad maps of many channels come near to many images."""
    return max(0, audit.record.num_good - audit.record.num_good_unseen)


def fewer_channels(good: dict[tuple[int, int], int], fewest: int, most: int, n: int) -> Claim:
    """Over the kernels where both nets are trained."""
    what = "fewer channels leak less"
    kernels = sorted({k for k, _ in good if {(k, fewest), (k, most)} <= good.keys()})
    if not kernels:
        return undecided(what, "yes")
    many, few = (sum(good[k, c] for k in kernels) for c in (most, fewest))
    size = n * len(kernels)
    where = f"kernels {', '.join(map(str, kernels))}"
    words = f"{{:.0f}} of {size} good beyond unseen with {most}, {{:.0f}} with {fewest} ({where})"
    return compared(what, "yes", many, few, words, spread((many, size), (few, size)))


def dip(good: dict[tuple[int, int], int], kernels: Sequence[int], n: int) -> Claim:
    """The best number of channels for each kernel; at the ends the worse end, between them the lowest."""
    what, paper = "intermediate kernels leak less", "a dip"
    best = {kernel: max(num for (k, _), num in good.items() if k == kernel) for kernel in {k for k, _ in good}}
    inner = [best[k] for k in kernels[1:-1] if k in best]
    if not inner or not {kernels[0], kernels[-1]} <= best.keys():
        return undecided(what, paper)
    ends, between = min(best[kernels[0]], best[kernels[-1]]), min(inner)
    words = f"{{:.0f}} of {n} good beyond unseen at the ends, {{:.0f}} between"
    return compared(what, paper, ends, between, words, spread((ends, n), (between, n)))


def kernels(lab: Lab, setup: Setup) -> Figure:
    """Those of the first layer as images."""
    images = lab.target(setup).weights["layer1.weight"]
    return draw.gallery(images, f"{len(images)} kernels", 16)


def not_in_kernels(lab: Lab, setup: Setup) -> Claim:
    by_kernels, by_attack = lab.audit(setup, "weights"), lab.audit(setup)
    return compared(
        "the images are not in the kernels",
        "obviously",
        by_attack.record.num_good,
        by_kernels.record.num_good,
        "{:.0f} good from the attack, {:.0f} from the kernels",
        spread(*((audit.record.num_good, audit.record.num_samples) for audit in (by_attack, by_kernels))),
    )


def fig8(lab: Lab) -> Made:
    setups = {"CIFAR-10": N500, "MNIST": MNIST}
    claims = []
    for name, setup in setups.items():
        audit = lab.audit(setup)
        record, threshold = audit.record, ssim_threshold(audit)
        words = (
            f"{record.num_good} good, {record.num_good_unseen} of {record.num_unseen} on unseen; "
            f"1% of unseen pass {threshold:.2f}, and {int((ssims(audit)[0] > threshold).sum())} members"
        )
        claims.append(fair_threshold(name, words, threshold))
    shown = {f"{name}, {a}": lab.audit(setup, a) for a in lab.attacks for name, setup in setups.items()}
    return Made(draw.thresholds(shown), claims)


def fair_threshold(name: str, words: str, threshold: float) -> Claim:
    """What 1% of the unseen samples reach is near 0.4."""
    return Claim(
        claim=f"0.4 is a fair threshold, {name}",
        paper="almost all above it are alike, some below",
        ours=words,
        rule=f"calibrated within {FAIR} of 0.4, ± {FAIR_MARGIN}",
        verdict=judge(FAIR - abs(threshold - GOOD), 0, FAIR_MARGIN),
        by=f"{threshold - GOOD:+.2f} from 0.4 to the calibrated one",
    )


def fig17(lab: Lab) -> Made:
    claims = [come_back(lab.audit(LARGE), "a large training set leaks", "a few dozen good of 5,000")]
    figure, places = draw.blank(2 * len(lab.attacks), 1, 3.4)
    for (attack, audit), best, every in zip(lab.audits(LARGE).items(), places[::2], places[1::2], strict=True):
        record = audit.record
        good = f"{record.num_good} good, {record.num_good_unseen} on unseen"
        shown = f"the best {min(45, record.num_samples)} of {record.num_samples}"
        draw.pairs_in(best, audit, f"a  {attack}: {shown}; {good}", 15, 3)
        draw.points(every, audit)
        every.set(title="b  all samples", xlabel="output of the own class minus the next", ylabel="SSIM")
    draw.explain(figure, [lab.audit(LARGE)])
    return Made(figure, [*claims, on_margin(lab.audit(LARGE), "large training set")])
