"""Does the model fit the data at all? An audit of samples that are not what the model was trained on says nothing.

Often they are, but in another form: channels last, not normalised, labels in another order. Such forms are tried
out, and the one under which the model gets its training samples right is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from unfit.auditor.case import Case
from unfit.auditor.oracle import maps_of, p_more, react
from unfit.auditor.preprocessing import AS_IS, CENTRED
from unfit.auditor.samples import Samples, Truth
from unfit.base.errors import listed
from unfit.base.files import Strict
from unfit.base.nets import margin, outputs

CHANCE_LEVEL = 0.01  # agreement with the labels that chance gives more often is none
WORSE_LEVEL, WORSE_BY = (
    0.001,
    0.05,
)  # private samples are worse than unseen ones beyond both: a false stop must be rare
BETTER_LEVEL = 0.001  # another form is better only beyond this; its choice rests on some of the same samples
NUM_CHOOSING, NUM_JUDGING = 100, 500  # samples by which the best form is chosen, and by which it is judged
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and standard deviation of its channels
THRESHOLDS = (0.0, 0.5)  # of a single output: a logit's, and that of a regression on 0 and 1
MOST_COLUMNS = 12  # whose means and deviations are written out
CAUSES = (
    "likely causes: pictures with channels last or flattened in another order, inputs not normalised as in "
    "training, labels in another order, or another data set"
)


Measure = Literal["accuracy", "accuracy per label", "variance explained", "none"]
MEASURES: dict[Truth, Measure] = {
    "classes": "accuracy",
    "labels": "accuracy per label",
    "values": "variance explained",
    "nothing": "none",
}
SCORES: dict[Truth, str] = {
    "classes": "gets {} of the private samples right",
    "labels": "gets {} of the private samples’ labels right",
    "values": "explains {} of the variance of the private samples’ y",
}
UNCHECKED = (
    "the samples have no labels, so nothing shows whether the model was trained on them in this form; "
    "only with labels can it pass"
)


class Fitting(Strict):
    """How well the model does on both sets, and whether that is how a model does on what it was trained on."""

    measure: Measure  # none: the samples have no labels, and the next four are null
    private_accuracy: float | None
    unseen_accuracy: float | None
    chance: float | None  # the accuracy of the same answers given to the private samples in random order
    p_value: float | None  # how often that does as well
    fits: bool
    reasons: list[str]  # why it does not fit
    likely_cause: str | None  # the form of the data under which it does


def check_fit(case: Case) -> Fitting:
    """Judge the accuracy on both sets, and look for a form of the data that makes it far better."""
    truth = case.private.truth
    if truth == "nothing":
        return _fitting(truth, None, None, (None, None), [], None)
    own, others = (outputs(case.target.net(), each.centred(case.mean).x) for each in (case.private, case.unseen))
    rule = rule_of(own, case.private)
    errors, unseen_errors = rule(own, case.private), rule(others, case.unseen)
    chance, p_value = guessing(own, case.private)
    # very few samples cannot do better than all right
    guesses = p_value >= CHANCE_LEVEL and bool(errors.any()) and not changed_by(case)
    score = score_words(errors, truth)
    if guesses:
        doubt = f"the model {score}, where guessing gets {chance:.0%}"
    elif is_worse(errors, unseen_errors):
        doubt = (
            f"the model {score}, but {1 - unseen_errors.mean():.0%} of the "
            "unseen ones: were the two swapped, or is this another file than it was trained on?"
        )
    else:
        doubt = ""
    cause = find_cause(case, bool(doubt))
    if cause and not doubt:
        doubt = f"the model {score.replace(' ', ' only ', 1)}"
    if not doubt and truth == "classes" and (layout := find_layout(case)) and not changed_by(case):
        doubt, cause = f"the model {score}, but was trained on another form", layout
    reasons = [doubt] * bool(doubt) + [CAUSES] * (guesses and not cause)
    return _fitting(truth, errors, unseen_errors, (chance, p_value), reasons, cause)


def changed_by(case: Case) -> bool:
    """Whether the change since the base is made of these samples, in this form, whatever the model knows by now.

    A federated update may be a single step. Such samples cannot pass: the oracle finds them in the change.
    """
    if case.base is None:
        return False
    change = react(maps_of(case, case.mixtures), case.mixtures)
    return p_more(change.own, change.unseen) < CHANCE_LEVEL


def _fitting(
    truth: Truth,
    errors: Tensor | None,
    unseen_errors: Tensor | None,
    guessed: tuple[float | None, float | None],
    reasons: list[str],
    cause: str | None,
) -> Fitting:
    return Fitting(
        measure=MEASURES[truth],
        private_accuracy=None if errors is None else 1 - float(errors.mean()),
        unseen_accuracy=None if unseen_errors is None else 1 - float(unseen_errors.mean()),
        chance=guessed[0],
        p_value=guessed[1],
        fits=not reasons,
        reasons=reasons,
        likely_cause=cause,
    )


def score_words(errors: Tensor, truth: Truth) -> str:
    return SCORES[truth].format(f"{max(0.0, 1 - float(errors.mean())):.0%}")  # a line through noise explains −0%


# Errors -------------------------------------------------------------------------------------------------------

Rule = Callable[[Tensor, Samples], Tensor]  # of outputs (n, k) and samples: the error of each, 0 is right


def rule_of(phi: Tensor, samples: Samples) -> Rule:
    """How outputs are read, as does these samples most justice: by a threshold, or along a line for each output.

    The mean error of classes and of labels is the share that is wrong, that of values the share of their variance
    that is left. Any scale of y is accepted: it may have been brought to another one in training.
    """
    if samples.truth == "classes":
        cut = best_threshold(phi, samples.y)
        return lambda phi, samples: (classes_of(phi, cut) != samples.y).float()
    if samples.truth == "labels":
        edge = min(THRESHOLDS, key=lambda edge: float(_wrong_labels(phi, samples, edge).mean()))
        return lambda phi, samples: _wrong_labels(phi, samples, edge)
    assert samples.targets is not None
    middle, aim = phi.mean(0), samples.targets.mean(0)
    spread = (samples.targets - aim).square().mean(0)
    slope = ((phi - middle) * (samples.targets - aim)).mean(0) / _positive((phi - middle).square().mean(0))

    def left(phi: Tensor, samples: Samples) -> Tensor:
        assert samples.targets is not None
        along = aim + slope.clamp_min(0) * (phi - middle)
        return ((samples.targets - along).square() / _positive(spread)).mean(1)

    return left


def _positive(values: Tensor) -> Tensor:
    return torch.where(values > 0, values, 1)


def _wrong_labels(phi: Tensor, samples: Samples, edge: float) -> Tensor:
    assert samples.targets is not None
    return ((phi > edge) != (samples.targets > 0)).float().mean(1)


def guessing(phi: Tensor, samples: Samples) -> tuple[float, float]:
    """The accuracy that the answers would have in random order, and how often that is as good as theirs."""
    if samples.truth == "classes":
        return agreement(classes_of(phi, best_threshold(phi, samples.y)), samples.y)
    assert samples.targets is not None
    if samples.truth == "values":
        spread = _positive(samples.targets.std(0, correction=0))
        return 0.0, p_pairing(phi / spread, samples.targets / spread)
    edge = min(THRESHOLDS, key=lambda edge: float(_wrong_labels(phi, samples, edge).mean()))
    a, b = (phi > edge).float(), samples.targets
    both, neither = a.mean(0) * b.mean(0), (1 - a.mean(0)) * (1 - b.mean(0))
    return float((both + neither).mean()), p_pairing(a, b)


def p_pairing(a: Tensor, b: Tensor) -> float:
    """How often Σ a_i·b_π(i) is as large for a random order π as it is: (n, k) each.

    By the combinatorial central limit theorem the sum is normal; with A and B, less their means, its variance is
    ‖A Bᵀ‖² / (n − 1).
    """
    a, b = (each.double() - each.double().mean(0) for each in (a, b))
    variance = float(((a.T @ a) * (b.T @ b)).sum()) / max(1, len(a) - 1)
    if variance <= 0:  # one answer for all, or nothing to be told
        return 1.0 if bool(b.any()) else 0.0
    return 0.5 * math.erfc(float((a * b).sum()) / math.sqrt(2 * variance))


# Accuracy -----------------------------------------------------------------------------------------------------


def classes_of(phi: Tensor, threshold: float) -> Tensor:
    """The class that each output stands for: (n, k) to (n,)."""
    return phi.argmax(1) if phi.shape[1] > 1 else (phi[:, 0] > threshold).long()


def best_threshold(phi: Tensor, y: Tensor) -> float:
    """The one that does the private samples more justice."""
    return max(THRESHOLDS, key=lambda threshold: float((classes_of(phi, threshold) == y).float().mean()))


def agreement(predicted: Tensor, y: Tensor) -> tuple[float, float]:
    """The accuracy that the answers would have in random order, and how often that is as good as theirs.

    With a_c answers and b_c labels of class c, the number of hits has mean Σ a_c b_c / n and, by the combinatorial
    central limit theorem, a normal distribution; its variance is that of a random pairing.
    """
    n, k = len(y), int(max(predicted.max(), y.max())) + 1
    a, b = (torch.bincount(each, minlength=k).double() for each in (predicted, y))
    chance = float(a @ b) / n**2
    if min((a > 0).sum(), (b > 0).sum()) < 2:  # one answer for all, or one label: nothing can agree
        return chance, 1.0 if (b > 0).sum() > 1 else 0.0
    # Σ_ij (h_ij − h_i. − h_.j + h_..)² / (n − 1) of the hits h_ij = [answer i is label j]
    row, column = b / n, a / n
    pairs = a[:, None] * b
    hits = torch.eye(k, dtype=torch.float64)
    variance = float((pairs * (hits - row[:, None] - column + chance) ** 2).sum()) / (n - 1)
    if variance <= 0:  # no answer is the label of any sample
        return chance, 1.0
    z = (float((predicted == y).sum()) - n * chance) / math.sqrt(variance)
    return chance, 0.5 * math.erfc(z / math.sqrt(2))


def is_worse(errors: Tensor, unseen_errors: Tensor) -> bool:
    """More than chance, and by more than an easier file of unseen samples explains."""
    by = float(errors.mean() - unseen_errors.mean())
    return by > WORSE_BY and p_worse(errors, unseen_errors) < WORSE_LEVEL


def p_worse(errors: Tensor, unseen_errors: Tensor) -> float:
    """How often chance makes private samples so much worse than unseen ones.

    Fisher's exact test where samples are right or wrong, else that of Mann and Whitney.
    """
    from scipy.stats import hypergeom, mannwhitneyu  # imported here because it takes a second to load

    both = torch.cat([errors, unseen_errors])
    if bool(((both == 0) | (both == 1)).all()):
        hits, all_hits = int((errors == 0).sum()), int((both == 0).sum())
        return float(hypergeom.cdf(hits, len(both), all_hits, len(errors)))
    return float(mannwhitneyu(errors.numpy(), unseen_errors.numpy(), alternative="greater").pvalue)


# Other forms of the data --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """Another form of the inputs. `what` goes on from “with”, `how` and the `options` of a request from “pass”."""

    what: str
    how: str
    change: Callable[[Tensor], Tensor]
    scaled: bool = False
    options: str = ""


def find_cause(case: Case, doubtful: bool) -> str | None:
    """The form of inputs or labels under which the model does far better on the private samples, in words."""
    net, truth = case.target.net(), case.private.truth
    order = torch.randperm(len(case.private), generator=torch.Generator().manual_seed(0))
    some = case.private.at(order[:NUM_JUDGING])
    seen = Form("", "", lambda x: (x - case.mean) * case.private.scale)

    def errors(form: Form, judged: Samples) -> Tensor:
        phi = outputs(net, form.change(judged.x))
        return rule_of(phi, judged)(phi, judged)

    before = errors(seen, some)
    if not is_better(torch.zeros_like(before), before, doubtful):  # too few errors for anything to be better
        return None
    tried = forms(case, seen)
    few = some.at(torch.arange(min(NUM_CHOOSING, len(some))))
    sums = [float(errors(form, few).sum()) for form in tried]
    best, *equal = [form for form, total in zip(tried, sums, strict=True) if total == min(sums)]
    after = errors(best, some)
    if truth == "classes":
        order, wrong = _relabelled(net, seen, some)
        if wrong.sum() <= after.sum():
            words = f"with the labels {_order_words(order)} the model {score_words(wrong, truth)}"
            return words if is_better(wrong, before, doubtful) else None
    if not is_better(after, before, doubtful):
        return None
    several = best.scaled and any(form.scaled for form in equal)
    also = "; other scales do as well: take the one it was trained with" if several else ""
    how = best.options if case.source and case.inputs in (AS_IS, CENTRED) and best.options else best.how
    return f"with {best.what} the model {score_words(after, truth)}: pass {how}{also}"


def _relabelled(net: nn.Module, seen: Form, samples: Samples) -> tuple[Tensor, Tensor]:
    """The order of the labels that fits most samples, and which are wrong then."""
    phi = outputs(net, seen.change(samples.x))
    predicted = classes_of(phi, best_threshold(phi, samples.y))
    order, right = reorder(predicted, samples.y, samples.num_classes)
    return order, (~right).float()


def find_layout(case: Case) -> str | None:
    """Another order of the values under which most samples have a larger margin and as many are right, in words.

    Accuracy alone misses a wrong layout where the classes are told apart by what the layout keeps. Orders keep the
    size of the inputs, so margins can be compared; by the right one a model is surer of most of its samples.
    """
    from scipy.stats import binom

    net, y = case.target.net(), case.private.y[:NUM_JUDGING]
    x = case.private.centred(case.mean).x[:NUM_JUDGING]
    own = margin(outputs(net, x), y)
    for layout in _layouts(case.private.shape):
        other = margin(outputs(net, layout.change(x)), y)
        num = int((other > own).sum())
        as_right = int((other > 0).sum()) >= int((own > 0).sum())
        if as_right and float(binom.sf(num - 1, len(y), 0.5)) < BETTER_LEVEL:
            return f"with {layout.what} the model is surer of {num} of {len(y)} private samples: pass {layout.how}"
    return None


def is_better(errors: Tensor, before: Tensor, doubtful: bool) -> bool:
    """Chance would hardly turn as many answers for the better (sign test).

    Unless the form is doubtful already, half of the errors must be gone as well.
    """
    from scipy.stats import binom

    gained, lost = int((errors < before).sum()), int((errors > before).sum())
    enough = doubtful or float(errors.sum()) <= float(before.sum()) / 2
    return enough and float(binom.sf(gained - 1, gained + lost, 0.5)) < BETTER_LEVEL


def forms(case: Case, seen: Form) -> list[Form]:
    """Simple ones first: other orders of the values, other scales; then both at once."""
    layouts, scales = _layouts(case.private.shape), _scales(case.private)
    both = [_then(scale, layout) for scale in scales for layout in layouts]
    return [_then(seen, layout) for layout in layouts] + scales + both


def _then(first: Form, second: Form) -> Form:
    what, how = (" and ".join(filter(None, pair)) for pair in ((first.what, second.what), (first.how, second.how)))
    return Form(what, how, lambda x: second.change(first.change(x)), first.scaled)


def _layouts(shape: tuple[int, ...]) -> list[Form]:
    """Other orders that keep the shape: whoever mixed them up saw no error."""
    if len(shape) != 3:
        return []
    c, h, w = shape
    turned = [
        Form("rows and columns swapped", "x.transpose(2, 3)", lambda x: x.transpose(2, 3).reshape(x.shape)),
        Form("the pictures upside down", "x.flip(2)", lambda x: x.flip(2)),
        Form("the pictures mirrored", "x.flip(3)", lambda x: x.flip(3)),
    ]
    first, last = "channels first instead of last", "channels last instead of first"
    if c == 1:
        return turned
    return [
        Form(
            first,
            f"x.reshape(-1, {h}, {w}, {c}).permute(0, 3, 1, 2)",
            lambda x: x.reshape(-1, h, w, c).permute(0, 3, 1, 2),
        ),
        Form(last, f"x.permute(0, 2, 3, 1).reshape(-1, {c}, {h}, {w})", lambda x: _reshaped(x, 0, 2, 3, 1)),
        Form("the colours in reverse order, as BGR is to RGB", "x.flip(1)", lambda x: x.flip(1)),
        *turned,
        Form(
            f"{first}, rows and columns swapped",
            f"x.reshape(-1, {w}, {h}, {c}).permute(0, 3, 2, 1)",
            lambda x: x.reshape(-1, w, h, c).permute(0, 3, 2, 1),
        ),
        Form(
            f"{last}, rows and columns swapped",
            f"x.permute(0, 3, 2, 1).reshape(-1, {c}, {h}, {w})",
            lambda x: _reshaped(x, 0, 3, 2, 1),
        ),
    ]


def _reshaped(x: Tensor, *order: int) -> Tensor:
    return x.permute(order).reshape(x.shape)


def _scales(private: Samples) -> list[Form]:
    """Other normalisations. Pictures are held in [0, 1], vectors as they were given."""
    x = private.x
    own = x.mean(0), x.std(0)
    found = [
        _affine("the mean of the training samples subtracted", "x - x.mean(0)", own[0], 1, "`center`"),
        _affine("each value standardised", "(x - x.mean(0)) / x.std(0)", *own),
        _affine("values 255 times as large", "x * 255", 0, 1 / 255, "`scale` 255"),
    ]
    if not private.is_image:
        low, width = x.amin(0), x.amax(0) - x.amin(0)
        return [
            _affine("nothing subtracted", "x as it is", 0, 1, "`as_is`"),
            *found,
            _affine("values divided by 255", "x / 255", 0, 255, "`scale` 1/255"),
            _affine("columns from 0 to 1", "(x - x.amin(0)) / (x.amax(0) - x.amin(0))", low, width),
        ]
    each = x.mean((0, 2, 3), keepdim=True)[0], x.std((0, 2, 3), keepdim=True)[0]
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in IMAGENET)
    return [
        _affine("values from 0 to 1", "x in [0, 1]", 0, 1, "`as_is`"),
        _affine("values from −1 to 1", "2 * x - 1 of x in [0, 1]", 0.5, 0.5),
        _affine("channels standardised", "(x - mean) / std of each channel", *each),
        _affine("values standardised", "(x - x.mean()) / x.std()", x.mean(), x.std()),
        *found,
        *(
            [_affine("ImageNet's mean and deviation", "(x - mean) / std of ImageNet", mean, std)]
            if len(x[0]) == 3
            else []
        ),
        _affine("black and white swapped", "1 - x of x in [0, 1]", 1, -1, "`scale` -1 and `mean` -1"),
    ]


def _affine(
    what: str, how: str, shift: Tensor | float, spread: Tensor | float, options: str | None = None
) -> Form:
    width = torch.as_tensor(spread)
    width = torch.where(width == 0, 1, width)
    if options is None:
        options = _written(torch.as_tensor(shift), width)
    return Form(what, how, lambda x: (x - shift) / width, scaled=True, options=options)


def _written(mean: Tensor, std: Tensor) -> str:
    """The options of a request that subtract and divide so; none where there are too many numbers, or pixels."""
    if mean.numel() > MOST_COLUMNS or mean.shape[1:].numel() > 1:
        return ""
    means, stds = (",".join(f"{value:.6g}" for value in each.flatten().tolist()) for each in (mean, std))
    return f"`mean` {means} and `std` {stds}"


def reorder(predicted: Tensor, y: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The class that each answer stands for most likely, and which samples are right then.

    Either half of the samples is judged by the order that the other half gives: any order would be fitted to all.
    """
    half = torch.arange(len(y)) % 2 == 0
    hits = torch.zeros(len(y), dtype=torch.bool)
    for judged in (half, ~half):
        hits[judged] = _order(predicted[~judged], y[~judged], k)[predicted[judged]] == y[judged]
    return _order(predicted, y, k), hits


def _order(predicted: Tensor, y: Tensor, k: int) -> Tensor:
    """(k,): the one-to-one order of the classes that fits most samples."""
    from scipy.optimize import linear_sum_assignment

    counts = torch.bincount(predicted * k + y, minlength=k * k).view(k, k)
    return torch.from_numpy(linear_sum_assignment(counts.numpy(), maximize=True)[1])


def _order_words(order: Tensor) -> str:
    k = len(order)
    classes = torch.arange(k)
    if torch.equal(order, classes.flip(0)):
        return "in reverse order" if k > 2 else "swapped"
    for step, words in ((1, "one higher"), (-1, "one lower")):
        if torch.equal((order + step) % k, classes):
            return (
                f"{words} (the {'last' if step == 1 else 'first'} becomes the {'first' if step == 1 else 'last'})"
            )
    return "in another order: " + listed(
        [f"{old} becomes {new}" for new, old in enumerate(order.tolist()) if old != new]
    )
