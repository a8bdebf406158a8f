"""Could private and unseen samples come from one draw? Asked of the samples alone, without the model.

A threshold that is calibrated on unseen samples holds for private ones only if nothing but training tells the two
sets apart. Both p-values here are exact for any kind of samples: they say how often sets differ as much as these
do if chance decides which sample is private.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unfit.attacker.costs import check_seconds, operations_per_second
from unfit.auditor.labels import Ints
from unfit.auditor.samples import Samples
from unfit.base.files import Strict
from unfit.base.memory import rows_at_once

CLASS_LEVEL, WITHIN_LEVEL = 0.001, 0.004  # of the two tests: few sets have other shares of classes by accident
LEVEL = CLASS_LEVEL + WITHIN_LEVEL  # this share of sets of one draw looks different; it costs an audit its verdict
NUM_DRAWS, NUM_SHUFFLES = 9999, 999  # the least p-values are a tenth and a quarter of these levels
BATCH = 100  # shuffles, or images, at once
MOST_SAMPLES, MOST_NUMBERS = 20_000, 10_000_000  # of each set, in all its samples; larger sets are thinned
MOST_COMPARED = 500  # of each set, pair by pair: their number enters squared and cubed
MOST_VALUES = 1024  # of a sample: larger images are shrunk to it, of longer vectors columns are drawn
NUM_COMPONENTS = 50  # principal ones, but at most one for every four samples
NUM_NEAREST = 3
ROUNDING = 1e-7  # of float32
TELLING = 3.5  # standard deviations from which on a fact is named as a reason
TOLD_APART = 0.55  # accuracy from which on a classifier is named as one
IN_PAIRS = 0.7  # share of samples whose nearest is of the other set, from which on that is named
MOST_FACTS, MOST_REASONS = 12, 3
# the closest of 9 million pairs of digits are 0.16 apart, of scenes 0.21
COPY_OF_IMAGE = 0.1  # of its contrast: a correlation of 0.995
COPY_OF_VECTOR = 1e-3  # what rounding to half precision does

Floats = npt.NDArray[np.float64]


class Fact(Strict):
    """A mean over the private and over the unseen samples; `z` is their difference in standard deviations."""

    name: str
    private: float
    unseen: float
    z: float


class Comparability(Strict):
    """Whether private and unseen samples are comparable: alike without the model."""

    comparable: bool
    within_classes: bool  # class by class they are alike, whatever the shares of the classes
    p_value: float  # of both tests together
    p_value_classes: float  # of the shares of the classes
    p_value_within: float  # of the samples, class by class
    classifier_accuracy: float  # private from unseen, each sample judged by all the others; chance: 0.5
    num_private: list[int]  # by class
    num_unseen: list[int]
    facts: list[Fact]  # the most telling first
    reasons: list[str]  # why they are not exchangeable


def compare_sets(private: Samples, unseen: Samples, seed: int = 0) -> Comparability:
    """Compare two sets by tests that at most a share LEVEL of exchangeable sets fails."""
    rng = np.random.default_rng(seed)
    own, others = (np.bincount(each.y.numpy(force=True), minlength=each.num_classes) for each in (private, unseen))
    p_classes = class_p_value(own, others, rng)
    features = read_features(_thinned(private, rng), _thinned(unseen, rng), rng)
    p_within = within_p_value(features, rng)
    facts, accuracy = _facts(features), classifier_accuracy(features)
    reasons = _class_reason(own, others, private.class_names) if p_classes < CLASS_LEVEL else []
    reasons += _sample_reasons(facts, accuracy, in_pairs(features)) if p_within < WITHIN_LEVEL else []
    return Comparability(
        comparable=not reasons,
        within_classes=p_within >= WITHIN_LEVEL and bool(others[own > 0].all()),
        p_value=min(1.0, LEVEL * min(p_classes / CLASS_LEVEL, p_within / WITHIN_LEVEL)),  # weighted Bonferroni
        p_value_classes=p_classes,
        p_value_within=p_within,
        classifier_accuracy=accuracy,
        num_private=own.tolist(),
        num_unseen=others.tolist(),
        facts=facts[:MOST_FACTS],
        reasons=reasons,
    )


def _share_above(values: Floats) -> float:
    """The p-value of the first value: all of them are exchangeable if there is nothing to be found."""
    return float((values >= values[0] - 1e-9 * abs(values[0])).mean())


# The shares of the classes ------------------------------------------------------------------------------------


def class_p_value(private: Ints, unseen: Ints, rng: np.random.Generator) -> float:
    """How often as many samples, drawn from all without regard to their class, have shares as different (χ²)."""
    total = private + unseen
    drawn = rng.multivariate_hypergeometric(total, int(private.sum()), NUM_DRAWS, method="marginals")
    expected = total * (private.sum() / total.sum())
    return _share_above(((np.vstack([private, drawn]) - expected) ** 2 / np.maximum(total, 1)).sum(1))


def _class_reason(private: Ints, unseen: Ints, names: Sequence[str]) -> list[str]:
    """The class whose shares differ most."""
    n, m = int(private.sum()), int(unseen.sum())
    most = int(np.abs(private / n - unseen / m).argmax())
    return [
        f"the classes have other shares: {private[most]} of {n} private samples are of class {names[most]!r}, "
        f"but {unseen[most]} of {m} unseen ones"
    ]


# What is compared ---------------------------------------------------------------------------------------------

OF_A_CHANNEL = ("mean", "spread", "share of lowest values", "share of highest values", "sharpness")


@dataclass(frozen=True, eq=False)
class Features:
    """Both sets, the private one first, as numbers to compare. The mean of each class is subtracted from all."""

    sign: Floats  # (n,): 1 for private, −1 for unseen
    y: Ints  # (n,)
    raw: Floats  # (n, f): the facts as they are, before any mean is subtracted
    names: list[str]  # of the facts
    facts: Floats  # (n, f), each of norm 1
    components: Floats  # (n, k), orthonormal
    compared: Ints  # (m,): positions of the samples that are compared pair by pair
    strata: Ints  # (n,): of each class, those that are compared and the others: each is shuffled by itself
    nearest: Ints  # (m, NUM_NEAREST): positions among those compared
    hat: Floats  # (m, m): takes labels to their regression on the samples


def read_features(private: Samples, unseen: Samples, rng: np.random.Generator) -> Features:
    n, y = len(private), torch.cat([private.y, unseen.y]).numpy(force=True)
    columns = torch.from_numpy(np.sort(rng.permutation(private.shape[0])[:MOST_VALUES]))  # of vectors
    raw = facts_of(private, unseen, columns)
    facts, values = _unit(_centred(raw, y), np.abs(raw).max(0)), _centred(_values(private, unseen, columns), y)
    drawn = [rng.permutation(len(each))[:MOST_COMPARED] for each in (private, unseen)]
    compared = rng.permutation(np.concatenate([drawn[0], n + drawn[1]]))  # of equally near ones the first is taken
    components, distance = _components(values, compared, rng), _squared_distance(values[compared])
    joint = np.hstack([facts / facts.shape[1] ** 0.5, components / components.shape[1] ** 0.5])
    strata = 2 * y
    strata[compared] += 1
    return Features(
        sign=np.repeat([1.0, -1.0], [n, len(unseen)]),
        y=y,
        raw=raw,
        names=_fact_names(private, columns),
        facts=facts,
        components=components,
        compared=compared,
        strata=strata,
        nearest=_nearest(distance),
        hat=_hat(_kernel(_squared_distance(joint[compared]))),
    )


def _thinned(samples: Samples, rng: np.random.Generator) -> Samples:
    most = min(MOST_SAMPLES, MOST_NUMBERS // min(samples.x[0].numel(), MOST_VALUES))
    if len(samples) <= most:
        return samples
    at = torch.from_numpy(rng.choice(len(samples), most, replace=False))
    return samples.at(at)


def facts_of(private: Samples, unseen: Samples, columns: Tensor) -> Floats:
    """What each sample is like, in a few numbers that have names: (n, f), the private ones first.

    No difference of them between samples depends on what was subtracted from all of them beforehand: often that is
    the mean of the private ones, to which these are nearer than unseen ones.
    """
    sets = [each.x if each.is_image else each.x[:, columns] for each in (private, unseen)]
    low, high = (torch.stack([x.amin(0) for x in sets]).amin(0), torch.stack([x.amax(0) for x in sets]).amax(0))
    middle = torch.stack([x.double().sum(0) for x in sets]).sum(0) / sum(map(len, sets))
    parts = [part for x in sets for part in x.split(BATCH)]  # in parts, so as not to copy whole sets
    of = _image_facts if private.is_image else _vector_facts
    return torch.cat([of(x, low, high, middle.float()) for x in parts]).double().numpy(force=True)


def _image_facts(x: Tensor, low: Tensor, high: Tensor, middle: Tensor) -> Tensor:
    ends = [(x == bound).float().mean((2, 3)) for bound in (low, high)]
    mean, x = x.mean((2, 3)), x - middle
    sharpness = x.diff(dim=3).abs().mean((2, 3)) + x.diff(dim=2).abs().mean((2, 3))
    spread = x.flatten(2).std(2, correction=0)
    return torch.cat([mean, spread, *ends, sharpness.nan_to_num()], 1)  # a single row has no sharpness


def _vector_facts(x: Tensor, low: Tensor, high: Tensor, middle: Tensor) -> Tensor:
    ends = [(x == bound).float().mean(1, keepdim=True) for bound in (low, high)]
    return torch.cat([x, (x - middle).abs(), *ends], 1)


def _fact_names(samples: Samples, columns: Tensor) -> list[str]:
    if samples.is_image:
        places = [f" of channel {i}" for i in range(samples.shape[0])] if samples.shape[0] > 1 else [""]
        return [name + place for name in OF_A_CHANNEL for place in places]
    return [f"{name} of column {i}" for name in ("mean", "spread") for i in columns.tolist()] + [
        *OF_A_CHANNEL[2:4]
    ]


def _values(private: Samples, unseen: Samples, columns: Tensor) -> Floats:
    """(n, at most MOST_VALUES): images shrunk, columns of vectors drawn and brought to one spread."""
    if private.is_image:
        channels, *sides = private.shape
        most = max(1, int((MOST_VALUES / channels) ** 0.5))
        size = min(sides[0], most), min(sides[1], most)
        shrunk = [nn.functional.adaptive_avg_pool2d(each.x, size).flatten(1) for each in (private, unseen)]
        return torch.cat(shrunk).double().numpy(force=True)
    x = torch.cat([each.x[:, columns] for each in (private, unseen)]).double().numpy(force=True)
    return _unit(x - x.mean(0), np.abs(x).max(0))


def _centred(values: Floats, y: Ints) -> Floats:
    """Minus the mean of each class, over the first axis."""
    values = values.copy()
    for label in np.unique(y):
        values[y == label] -= values[y == label].mean(0)
    return values


def _unit(values: Floats, size: Floats) -> Floats:
    """Columns of norm 1; those that are constant but for rounding are zero."""
    norm = np.linalg.norm(values, axis=0)
    return values / np.where(norm > ROUNDING * size * len(values) ** 0.5, norm, np.inf)


def _components(values: Floats, compared: Ints, rng: np.random.Generator) -> Floats:
    """All samples in the principal directions of those compared, made orthonormal."""
    some = values[compared]
    num = min(NUM_COMPONENTS, max(1, len(some) // 4), values.shape[1])
    directions = rng.standard_normal((values.shape[1], num))
    for _ in range(4):  # subspace iterations: cheaper than all eigenvectors, and as good for this
        directions = np.linalg.qr(some.T @ (some @ directions))[0]
    return np.linalg.qr(values @ directions)[0]


def _squared_distance(values: Floats) -> Floats:
    square = (values**2).sum(1)
    return np.maximum(square[:, None] + square - 2 * values @ values.T, 0)


def _kernel(distance: Floats) -> Floats:
    return np.exp(-distance / max(np.median(distance), np.finfo(float).tiny))


def _nearest(distance: Floats) -> Ints:
    others = distance + np.diag(np.full(len(distance), np.inf))
    return np.argsort(others, axis=1, kind="stable")[:, :NUM_NEAREST]


def _hat(kernel: Floats) -> Floats:
    """K (K + I)⁻¹, of kernel ridge regression."""
    return np.asarray(np.linalg.solve(kernel + np.eye(len(kernel)), kernel))


# The test -----------------------------------------------------------------------------------------------------


def within_p_value(features: Features, rng: np.random.Generator) -> float:
    """The p-value of the most telling of five statistics.

    Each is computed for the sets as they are and for NUM_SHUFFLES shuffled ones; the unit is how far its 99th
    percentile is from its median. The largest of the five is compared with the largest of every shuffle: one test,
    which is exact whatever the statistics are.
    """
    signs = shuffles(features.sign, features.strata, rng)
    values = np.concatenate([statistics(features, each) for each in signs])
    middle, high = np.quantile(values, [0.5, 0.99], axis=0)
    told = high - middle > 1e-9 * np.abs(values).max(0)
    if not told.any():  # no class has samples of both sets, or all samples are equal
        return 1.0
    return _share_above(((values - middle)[:, told] / (high - middle)[told]).max(1))


def shuffles(sign: Floats, strata: Ints, rng: np.random.Generator) -> Iterator[Floats]:
    """The signs as they are, then shuffled within each stratum, in batches (b, n).

    As many of each set are compared pair by pair, however large the sets are. A shuffle of all samples of a class
    would keep to that by accident only, and any two sets of unequal sizes would differ.
    """
    yield sign[None]
    classes = [np.flatnonzero(strata == each) for each in np.unique(strata)]
    for first in range(0, NUM_SHUFFLES, BATCH):
        signs = np.tile(sign, (min(BATCH, NUM_SHUFFLES - first), 1))
        for at in classes:
            signs[:, at] = rng.permuted(signs[:, at], axis=1)
        yield signs


def statistics(features: Features, signs: Floats) -> Floats:
    """(b, 5), each larger the more private and unseen differ.

    The largest difference of a fact; Hotelling's T² of the components; how many of the nearest are of the same
    set; how well each label is predicted from all others; how often the very nearest is of the other set, as where
    each unseen sample was made of a private one.
    """
    labels = _centred(signs.T, features.strata).T
    some = labels[:, features.compared]
    predicted = predictions(features.hat, some)
    norm = np.linalg.norm(predicted, axis=1)
    return np.stack(
        [
            np.abs(labels @ features.facts).max(1),
            ((labels @ features.components) ** 2).sum(1),
            (some[:, features.nearest].sum(2) * some).sum(1),
            (predicted * some).sum(1) / np.where(norm > 0, norm, 1),
            -(some[:, features.nearest[:, 0]] * some).sum(1),
        ],
        axis=1,
    )


def predictions(hat: Floats, labels: Floats) -> Floats:
    """Each label as the regression on all other samples has it: (Hy − diag(H) y) / (1 − diag(H))."""
    own = np.diag(hat)
    return (labels @ hat.T - labels * own) / (1 - own)


def classifier_accuracy(features: Features) -> float:
    """How often the regression on the others puts a sample into its own set, the mean over both sets."""
    labels = _centred(features.sign, features.strata)[features.compared]
    right = predictions(features.hat, labels[None])[0] * labels > 0
    private = features.sign[features.compared] > 0
    return float((right[private].mean() + right[~private].mean()) / 2)


# In words -----------------------------------------------------------------------------------------------------


def _facts(features: Features) -> list[Fact]:
    """All facts, the most telling first."""
    private, labels = features.sign > 0, _centred(features.sign, features.y)
    spread = _shuffled_spread(labels, features)
    z = labels @ features.facts / np.where(spread > 0, spread, np.inf)
    own, others = features.raw[private].mean(0), features.raw[~private].mean(0)
    return [
        Fact(name=features.names[i], private=float(own[i]), unseen=float(others[i]), z=float(z[i]))
        for i in np.argsort(-np.abs(z), kind="stable")
    ]


def _shuffled_spread(labels: Floats, features: Features) -> Floats:
    """The standard deviation of Σ label · fact over all shuffles within the classes: (f,)."""
    variance = np.zeros(features.facts.shape[1])
    for label in np.unique(features.y):
        at = features.y == label
        variance += (labels[at] ** 2).sum() * (features.facts[at] ** 2).sum(0) / max(1, at.sum() - 1)
    return np.sqrt(variance)


def in_pairs(features: Features) -> float:
    """The share of samples whose nearest one is of the other set; about half, by chance."""
    sign = features.sign[features.compared]
    return float((sign[features.nearest[:, 0]] != sign).mean())


def _sample_reasons(facts: list[Fact], accuracy: float, paired: float) -> list[str]:
    telling = {fact.name.partition(" of channel")[0]: fact for fact in reversed(facts) if abs(fact.z) > TELLING}
    kinds = [kind for kind in OF_A_CHANNEL if kind in telling] or [*reversed(telling)]
    reasons = [
        f"the {fact.name} is {fact.private:.3g} in the private samples, {fact.unseen:.3g} in the unseen ones"
        for fact in (telling[kind] for kind in kinds[:MOST_REASONS])
    ]
    if paired > IN_PAIRS:
        reasons = [
            f"they come in pairs: the sample nearest to a private one is unseen, or the other way round, in "
            f"{paired:.0%} of cases",
            *reasons,
        ]
    if not reasons and accuracy > TOLD_APART:
        reasons = [
            f"a classifier that never saw the model tells private from unseen samples in {accuracy:.0%} of cases"
        ]
    return reasons or ["private and unseen samples of the same class differ a little in many of their values"]


# Copies -------------------------------------------------------------------------------------------------------


def near_copies(private: Samples, unseen: Samples) -> list[tuple[int, int]]:
    """(position in private, position in unseen) of unseen samples that are nearly a private one: they hide a leak.

    An image is a copy if it differs by less than COPY_OF_IMAGE of its contrast, whatever its brightness and
    contrast are, also as a negative; a vector if by less than COPY_OF_VECTOR of its distance from the mean, its
    columns brought to one spread.
    """
    n, m, d = len(private), len(unseen), private.x[0].numel()
    pairs = f"comparing {n:,} private with {m:,} unseen samples of {d:,} values alone"
    check_seconds(2 * n * m * d / operations_per_second(), pairs)
    found, most = [], COPY_OF_IMAGE if private.is_image else COPY_OF_VECTOR
    columns = None if private.is_image else (private.x.mean(0), private.x.std(0))
    step = rows_at_once(d, MOST_COMPARED)
    for first in range(0, len(unseen), step):
        others, _ = _comparable(unseen.x[first : first + step], columns)
        at, distance, size = _nearest_of(others, private.x, columns, step)
        copies = (distance <= most * size).nonzero()[:, 0].tolist()
        found += [(int(at[i]), first + i) for i in copies]
    return found


Columns = tuple[Tensor, Tensor] | None  # mean and spread of those of vectors; images have none


def _nearest_of(others: Tensor, x: Tensor, columns: Columns, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each of the others the nearest sample, or the negative of an image: its position, distance and size.

    Blocks of samples are brought into a comparable form one by one: a second copy of all may not fit.
    """
    at = torch.zeros(len(others), dtype=torch.long)
    distance, size = torch.full((len(others),), torch.inf), torch.zeros(len(others))
    for first in range(0, len(x), step):
        own, sizes = _comparable(x[first : first + step], columns)
        products = others @ own.T
        alike = products.abs() if columns is None else products
        nearest = (own.square().sum(1) - 2 * alike).argmin(1)
        sign = products.gather(1, nearest[:, None]).sign() if columns is None else 1.0
        here = (others - sign * own[nearest]).norm(dim=1)  # products are rounded
        nearer = here < distance
        at[nearer], distance[nearer], size[nearer] = first + nearest[nearer], here[nearer], sizes[nearest[nearer]]
    return at, distance, size


def _comparable(x: Tensor, columns: Columns) -> tuple[Tensor, Tensor]:
    """The samples as (n, d), and how large each is: 1 for images, or the distance of a vector from the mean."""
    if columns is None:  # less the mean of each channel: surfaces of one colour are no copies of each other
        centred, x = (x - x.mean((2, 3), keepdim=True)).flatten(1), x.flatten(1)
        contrast = centred.norm(dim=1, keepdim=True)
        flat = contrast <= ROUNDING * x.norm(dim=1, keepdim=True)  # of one grey, which only the same grey copies
        return torch.where(flat, x, centred / contrast.clamp_min(1e-30)), (~flat[:, 0]).float()
    mean, spread = columns
    x = ((x - mean) / torch.where(spread > 0, spread, 1)).flatten(1)
    return x, x.norm(dim=1)
