"""Does the model fit the data at all? An audit of samples that are not what the model was trained on says nothing.

Often they are, but in another form: channels last, not normalised, labels in another order. Such forms are tried
out, and the one under which the model gets its training samples right is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from unfit.auditor.case import Case
from unfit.auditor.samples import Samples
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
CAUSES = (
    "likely causes: pictures with channels last or flattened in another order, inputs not normalised as in "
    "training, labels in another order, or another data set"
)


class Fitting(Strict):
    """How well the model does on both sets, and whether that is how a model does on what it was trained on."""

    private_accuracy: float
    unseen_accuracy: float
    chance: float  # the accuracy of the same answers given to the private samples in random order
    p_value: float  # how often that does as well
    fits: bool
    reasons: list[str]  # why it does not fit
    likely_cause: str | None  # the form of the data under which it does


def check_fit(case: Case) -> Fitting:
    """Judge the accuracy on both sets, and look for a form of the data that makes it far better."""
    own, others = (outputs(case.target.net(), each.centred(case.mean).x) for each in (case.private, case.unseen))
    y, threshold = case.private.y, best_threshold(own, case.private.y)
    predicted = classes_of(own, threshold)
    right, unseen_right = predicted == y, classes_of(others, threshold) == case.unseen.y
    chance, p_value = agreement(predicted, y)
    # very few samples cannot do better than all right
    guesses = p_value >= CHANCE_LEVEL and not bool(right.all())
    if guesses:
        doubt = f"the model gets {_share(right)} of the private samples right, where guessing gets {chance:.0%}"
    elif is_worse(right, unseen_right):
        doubt = (
            f"the model gets {_share(right)} of the private samples right, but {_share(unseen_right)} of the "
            "unseen ones: were the two swapped, or is this another file than it was trained on?"
        )
    else:
        doubt = ""
    cause = find_cause(case, bool(doubt))
    if cause and not doubt:
        doubt = f"the model gets only {_share(right)} of the private samples right"
    if not doubt and (cause := find_layout(case)):
        doubt = f"the model gets {_share(right)} of the private samples right, but was trained on another form"
    reasons = [doubt] * bool(doubt) + [CAUSES] * (guesses and not cause)
    return Fitting(
        private_accuracy=float(right.float().mean()),
        unseen_accuracy=float(unseen_right.float().mean()),
        chance=chance,
        p_value=p_value,
        fits=not reasons,
        reasons=reasons,
        likely_cause=cause,
    )


def _share(right: Tensor) -> str:
    return f"{right.float().mean():.0%}"


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
    z = (float((predicted == y).sum()) - n * chance) / math.sqrt(variance)
    return chance, 0.5 * math.erfc(z / math.sqrt(2))


def is_worse(right: Tensor, unseen_right: Tensor) -> bool:
    """More than chance, and by more than an easier file of unseen samples explains."""
    by = float(unseen_right.float().mean() - right.float().mean())
    return by > WORSE_BY and p_worse(right, unseen_right) < WORSE_LEVEL


def p_worse(right: Tensor, unseen_right: Tensor) -> float:
    """How often chance makes private samples so much worse than unseen ones (Fisher's exact test)."""
    from scipy.stats import hypergeom  # imported here because it takes a second to load

    hits, all_hits = int(right.sum()), int(right.sum() + unseen_right.sum())
    return float(hypergeom.cdf(hits, len(right) + len(unseen_right), all_hits, len(right)))


# Other forms of the data --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """Another form of the inputs. `what` goes on from “with”, `how` from “pass”."""

    what: str
    how: str
    change: Callable[[Tensor], Tensor]
    scaled: bool = False


def find_cause(case: Case, doubtful: bool) -> str | None:
    """The form of inputs or labels under which the model gets far more of the private samples right, in words."""
    net, n = case.target.net(), len(case.private)
    at = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:NUM_JUDGING]
    x, y = case.private.x[at], case.private.y[at]
    seen = Form("", "", lambda x: (x - case.mean) * case.private.scale)

    def answers(form: Form, num: int) -> Tensor:
        phi = outputs(net, form.change(x[:num]))
        return classes_of(phi, best_threshold(phi, y[:num]))

    before = answers(seen, n)
    if not is_better(torch.ones_like(y).bool(), before == y, doubtful):  # too few errors for anything to be better
        return None
    tried = forms(case, seen)
    hits = [int((answers(form, NUM_CHOOSING) == y[:NUM_CHOOSING]).sum()) for form in tried]
    best, *equal = [form for form, num in zip(tried, hits, strict=True) if num == max(hits)]
    order, relabelled = reorder(before, y, case.private.num_classes)
    right = answers(best, n) == y
    if is_relabelled := bool(relabelled.sum() >= right.sum()):
        right = relabelled
    if not is_better(right, before == y, doubtful):
        return None
    if is_relabelled:
        return f"with the labels {_order_words(order)} the model gets {_share(right)} of the private samples right"
    several = best.scaled and any(form.scaled for form in equal)
    also = "; other scales do as well: take the one it was trained with" if several else ""
    return f"with {best.what} the model gets {_share(right)} of the private samples right: pass {best.how}{also}"


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


def is_better(right: Tensor, before: Tensor, doubtful: bool) -> bool:
    """Chance would hardly turn as many answers for the better (sign test).

    Unless the form is doubtful already, half of the errors must be gone as well.
    """
    from scipy.stats import binom

    gained, lost = int((right & ~before).sum()), int((before & ~right).sum())
    enough = doubtful or int((~right).sum()) <= int((~before).sum()) / 2
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
        _affine("the mean of the training samples subtracted", "x - x.mean(0)", own[0], 1),
        _affine("each value standardised", "(x - x.mean(0)) / x.std(0)", *own),
        _affine("values 255 times as large", "x * 255", 0, 1 / 255),
    ]
    if not private.is_image:
        low, width = x.amin(0), x.amax(0) - x.amin(0)
        return [
            _affine("nothing subtracted", "x as it is", 0, 1),
            *found,
            _affine("values divided by 255", "x / 255", 0, 255),
            _affine("columns from 0 to 1", "(x - x.amin(0)) / (x.amax(0) - x.amin(0))", low, width),
        ]
    each = x.mean((0, 2, 3), keepdim=True)[0], x.std((0, 2, 3), keepdim=True)[0]
    imagenet = (torch.tensor(values).view(-1, 1, 1) for values in IMAGENET)
    return [
        _affine("values from 0 to 1", "x in [0, 1]", 0, 1),
        _affine("values from −1 to 1", "2 * x - 1 of x in [0, 1]", 0.5, 0.5),
        _affine("channels standardised", "(x - mean) / std of each channel", *each),
        _affine("values standardised", "(x - x.mean()) / x.std()", x.mean(), x.std()),
        *found,
        *(
            [_affine("ImageNet's mean and deviation", "(x - mean) / std of ImageNet", *imagenet)]
            if len(x[0]) == 3
            else []
        ),
        _affine("black and white swapped", "1 - x of x in [0, 1]", 1, -1),
    ]


def _affine(what: str, how: str, shift: Tensor | float, spread: Tensor | float) -> Form:
    width = torch.as_tensor(spread)
    width = torch.where(width == 0, 1, width)
    return Form(what, how, lambda x: (x - shift) / width, scaled=True)


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
