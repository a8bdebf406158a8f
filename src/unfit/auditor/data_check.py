"""Does the model fit the data at all? An audit of samples that are not what the model was trained on says nothing.

Often they are, but in another form: channels last, not normalised, labels in another order. Such forms are tried
out, and the one under which the model gets its training samples right is named.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from unfit.auditor.case import Case
from unfit.auditor.forms import Form, forms, layouts, order_of, order_words, reordered
from unfit.auditor.preprocessing import AS_IS, CENTRED
from unfit.auditor.probability import at_most, heads, mann_whitney, student_quantile
from unfit.auditor.samples import Samples, Truth
from unfit.auditor.signal_check import maps_of, p_more, react
from unfit.base.files import Strict
from unfit.base.nets import margin, outputs

CHANCE_LEVEL = 0.01  # agreement with the labels that chance gives more often is none
WORSE_LEVEL, WORSE_BY = (
    0.001,
    0.05,
)  # private samples are worse than unseen ones beyond both: a false stop must be rare
BETTER_LEVEL = 0.001 / 3  # another form is better only beyond this; three are judged: inputs, labels, margins
NUM_CHOOSING, NUM_JUDGING = 100, 500  # samples by which the best form is chosen, others by which it is judged
NUM_RANDOM = 19, 999  # models with shuffled weights that a model is compared with, at least and at most, within …
OPERATIONS, OPERATIONS_OF_A_RUN = 4e10, 5e6  # … seconds; the latter is what a run costs besides its products
CLOSEST = 0.005  # of an error to 0 and 1: half a sample of NUM_CHOOSING
MOST_NAMED = 5  # classes that are listed with their numbers
THRESHOLDS = (0.0, 0.5)  # of a single output: a logit's, and that of a regression on 0 and 1
CAUSES = (
    "likely causes: images with channels last or flattened in another order, inputs not normalised as in "
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


class DataCheck(Strict):
    """How well the model does on both sets, and whether that is how a model does on what it was trained on."""

    measure: Measure  # none: the samples have no labels, and the next four are null
    private_accuracy: float | None
    unseen_accuracy: float | None
    chance: float | None  # the accuracy of the same answers given to the private samples in random order
    p_value: float | None  # how often that does as well
    fits: bool
    reasons: list[str]  # why it does not fit
    likely_cause: str | None  # the form of the data under which it does


def check_data(case: Case) -> DataCheck:
    """Judge the accuracy on both sets, and look for a form of the data that makes it far better."""
    truth, model = case.private.truth, case.as_a_whole
    if truth == "nothing":
        return _checked(truth, None, None, (None, None), [], None)
    own, others = (
        outputs(model.target.net(), each.centred(model.mean).x) for each in (model.private, model.unseen)
    )
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
    cause = find_cause(model)
    if cause and not doubt:
        doubt = f"the model {score.replace(' ', ' only ', 1)}"
    if not cause and truth == "classes" and (layout := find_layout(model)) and (doubt or not changed_by(case)):
        doubt, cause = doubt or f"the model {score}, but was trained on another form", layout
    reasons = [doubt] * bool(doubt) + [CAUSES] * (guesses and not cause)
    if doubt and truth == "classes" and not all(map(_is_number, case.private.class_names)):
        reasons.append(
            f"labels in words are numbered in alphabetical order, as in scikit-learn’s `classes_`: "
            f"{', '.join(f'{i} {name}' for i, name in enumerate(case.private.class_names[:MOST_NAMED]))}; if the "
            "outputs have another order, give numbers"
        )
    return _checked(truth, errors, unseen_errors, (chance, p_value), reasons, cause)


def _is_number(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def changed_by(case: Case) -> bool:
    """Whether the change since the base is made of these samples, in this form, whatever the model knows by now.

    A federated update may be a single step. Such samples cannot pass: the signal check finds them in the change.
    """
    if case.base is None:
        return False
    change = react(maps_of(case, case.layer), case.layer)
    return p_more(change.own, change.unseen) < CHANCE_LEVEL


def _checked(
    truth: Truth,
    errors: Tensor | None,
    unseen_errors: Tensor | None,
    guessed: tuple[float | None, float | None],
    reasons: list[str],
    cause: str | None,
) -> DataCheck:
    return DataCheck(
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
    both = torch.cat([errors, unseen_errors])
    if bool(((both == 0) | (both == 1)).all()):
        hits, all_hits = int((errors == 0).sum()), int((both == 0).sum())
        return at_most(hits, len(both), all_hits, len(errors))
    return mann_whitney(errors.numpy(), unseen_errors.numpy())


# Another form of the data ---------------------------------------------------------------------------------------


def find_cause(case: Case) -> str | None:
    """The form of inputs or labels under which the model does far better on the private samples, in words.

    It is chosen by some of the samples and judged by the others, so it has to convince only once however many
    forms were tried. Last, it must be this model that does better: where classes lie far apart, some form makes
    any random weights tell them apart, and of a model that learnt nothing there is nothing to advise.
    """
    net, truth, seen = case.target.net(), case.private.truth, Form("", "", lambda x: _seen(case, x))
    choosing, judging = divided(case.private)
    before = errors_of(net, seen, choosing, judging)
    if not is_better(torch.zeros_like(before), before):  # too few errors for anything to be better
        return None
    tried = forms(case.private, seen)
    best = best_of(net, tried, choosing)[0]
    after = errors_of(net, best, choosing, judging)
    p_value = guessing(outputs(net, best.change(judging.x)), judging)[1]
    is_order = truth == "classes" and float(_relabelled(net, seen, judging)[0].sum()) <= float(after.sum())
    if is_order:
        after, p_value = _relabelled(net, seen, judging)
    some, few = (case.private.at(_shuffled(len(case.private))[:num]) for num in (NUM_JUDGING, NUM_CHOOSING))
    if p_value >= BETTER_LEVEL or not is_better(after, before):
        return None
    if is_usual(lambda each: _fewest(each, seen, tried, few), net, len(tried)):
        return None
    if is_order:
        words = order_words(order_of(_answers(net, seen, some), some.y, some.num_classes))
        return f"with the labels {words} the model {score_words(_relabelled(net, seen, some)[0], truth)}"
    best, *equal = best_of(net, tried, some)  # now that one is better, all samples say which
    several = best.scaled and any(form.scaled for form in equal)
    also = "; other scales do as well: take the one it was trained with" if several else ""
    how = best.options if case.source and case.inputs in (AS_IS, CENTRED) and best.options else best.how
    return f"with {best.what} the model {score_words(errors_of(net, best, some, some), truth)}: pass {how}{also}"


def find_layout(case: Case) -> str | None:
    """Another order of the values under which most samples have a larger margin and as many are right, in words.

    Accuracy alone misses a wrong layout where the classes differ by what the layout keeps, and where there
    are few samples. Orders keep the size of the inputs, so margins can be compared; by the right one a model is
    surer of most of its samples. As above, some choose, the others judge, and random weights must not do as
    well.
    """
    net, tried = case.target.net(), layouts(case.private.shape)
    if not tried:
        return None
    choosing, judging = divided(case.private.centred(case.mean))
    best = max(tried, key=lambda layout: surer(net, layout, choosing)[0])
    num, as_right = surer(net, best, judging)
    few = case.private.centred(case.mean).at(_shuffled(len(case.private))[:NUM_CHOOSING])
    useful = guessing(outputs(net, best.change(judging.x)), judging)[1] < BETTER_LEVEL
    if not (as_right and useful) or heads(num, len(judging)) >= BETTER_LEVEL:
        return None
    if is_usual(
        lambda each: 1 - max(surer(each, layout, few)[0] for layout in tried) / len(few), net, 2 * len(tried)
    ):
        return None
    return f"with {best.what} the model is surer of {num} of {len(judging)} private samples: pass {best.how}"


def divided(samples: Samples) -> tuple[Samples, Samples]:
    """Some to choose a form by, and more to judge it by: where a form matters, a few show which it is."""
    order, num = _shuffled(len(samples)), min(NUM_CHOOSING, len(samples) // 4)
    return samples.at(order[:num]), samples.at(order[num : num + NUM_JUDGING])


def _shuffled(n: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))


def _seen(case: Case, x: Tensor) -> Tensor:
    return (x - case.mean) * case.private.scale


def errors_of(net: nn.Module, form: Form, fitted: Samples, judged: Samples) -> Tensor:
    """The errors of samples in this form, with outputs read as does other samples most justice."""
    rule = rule_of(outputs(net, form.change(fitted.x)), fitted)
    return rule(outputs(net, form.change(judged.x)), judged)


def best_of(net: nn.Module, tried: list[Form], samples: Samples) -> list[Form]:
    """The forms with the fewest errors, simple ones first."""
    sums = [float(errors_of(net, form, samples, samples).sum()) for form in tried]
    return [form for form, total in zip(tried, sums, strict=True) if total == min(sums)]


def _answers(net: nn.Module, seen: Form, samples: Samples) -> Tensor:
    phi = outputs(net, seen.change(samples.x))
    return classes_of(phi, best_threshold(phi, samples.y))


def _relabelled(net: nn.Module, seen: Form, samples: Samples) -> tuple[Tensor, float]:
    """Which samples are wrong with the labels in the order that fits most others, and the p-value of guessing."""
    answers = reordered(_answers(net, seen, samples), samples.y, samples.num_classes)
    return (answers != samples.y).float(), agreement(answers, samples.y)[1]


def surer(net: nn.Module, layout: Form, samples: Samples) -> tuple[int, bool]:
    """Of how many samples the model is surer in this layout, and whether it gets as many right."""
    own, other = (margin(outputs(net, x), samples.y) for x in (samples.x, layout.change(samples.x)))
    return int((other > own).sum()), int((other > 0).sum()) >= int((own > 0).sum())


def is_better(errors: Tensor, before: Tensor) -> bool:
    """At least half of the errors are gone, and chance would hardly turn as many answers for the better."""
    gained, lost = int((errors < before).sum()), int((errors > before).sum())
    return float(errors.sum()) <= float(before.sum()) / 2 and heads(gained, gained + lost) < BETTER_LEVEL


# Random weights -----------------------------------------------------------------------------------------------


def _fewest(net: nn.Module, seen: Form, tried: list[Form], samples: Samples) -> float:
    """The least error that any form or order of the labels gives, from 0 to 1."""
    phis = (outputs(net, form.change(samples.x)) for form in tried)
    least = min(float(rule_of(phi, samples)(phi, samples).mean()) for phi in phis)
    if samples.truth != "classes":
        return least
    return min(least, float(_relabelled(net, seen, samples)[0].mean()))


def is_usual(error: Callable[[nn.Module], float], net: nn.Module, num_runs: int) -> bool:
    """Whether the model's error, which takes `num_runs` runs, is one that weights without any knowledge reach too.

    Initial weights are drawn independently, so in another order they are as likely: a model that was never trained
    is one more such draw, for which all choices are made anew. It has the least error of all with a probability of
    one in their number. Where a thousand take too long, the error must also lie so far below theirs that one more
    would with the probability BETTER_LEVEL alone (prediction interval of the logits, by Student's t).
    """
    num = num_random(net, num_runs)
    own, others = error(net), list[float]()
    for seed in range(num):
        others.append(error(in_random_order(net, seed)))
        if others[-1] <= own:
            return True
    logits = torch.logit(torch.tensor([own, *others], dtype=torch.float64), CLOSEST)
    far = student_quantile(BETTER_LEVEL, num - 1) * float(logits[1:].std()) * math.sqrt(1 + 1 / num)
    return num < NUM_RANDOM[1] and float(logits[1:].mean() - logits[0]) <= far


def num_random(net: nn.Module, num_runs: int) -> int:
    """How many shuffled models there is time for."""
    each = 2 * NUM_CHOOSING * sum(value.numel() for value in net.parameters()) + OPERATIONS_OF_A_RUN
    least, most = NUM_RANDOM
    return min(most, max(least, int(OPERATIONS // (num_runs * each))))


def in_random_order(net: nn.Module, seed: int) -> nn.Module:
    """The same model with the numbers of each of its tensors shuffled."""
    mixed, random = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    for value in mixed.parameters():
        order = torch.randperm(value.numel(), generator=random)
        value.data = value.data.flatten()[order].view_as(value)
    return mixed
