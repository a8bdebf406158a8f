"""Other forms that samples may have had in training: values in another order, on another scale, other labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unfit.auditor.samples import Samples
from unfit.base.errors import listed

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and standard deviation of its channels
USUAL = {  # what scripts write down, by the number of channels
    1: (("MNIST's mean and deviation", (0.1307,), (0.3081,)), ("Fashion-MNIST's", (0.2860,), (0.3530,))),
    3: (
        ("ImageNet's mean and deviation", *IMAGENET),
        ("CIFAR-10's mean and deviation", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ("CIFAR-100's mean and deviation", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    ),
}
MOST_COLUMNS = 12  # whose means and deviations are written out


@dataclass(frozen=True)
class Form:
    """Another form of the inputs. `what` goes on from “with”, `how` and the `options` of a request from “pass”."""

    what: str
    how: str
    change: Callable[[Tensor], Tensor]
    scaled: bool = False
    options: str = ""


def forms(private: Samples, seen: Form) -> list[Form]:
    """Simple ones first: other orders of the values, other scales; then both at once."""
    orders, scales = layouts(private.shape), _scales(private)
    both = [_then(scale, order) for scale in scales for order in orders]
    return [_then(seen, order) for order in orders] + scales + both


def _then(first: Form, second: Form) -> Form:
    what, how = (" and ".join(filter(None, pair)) for pair in ((first.what, second.what), (first.how, second.how)))
    return Form(what, how, lambda x: second.change(first.change(x)), first.scaled)


def layouts(shape: tuple[int, ...]) -> list[Form]:
    """Other orders that keep the shape: mixing them up raises no error."""
    if len(shape) != 3:
        return []
    c, h, w = shape
    turned = [
        Form("rows and columns swapped", "x.transpose(2, 3)", lambda x: x.transpose(2, 3).reshape(x.shape)),
        Form("the images upside down", "x.flip(2)", lambda x: x.flip(2)),
        Form("the images mirrored", "x.flip(3)", lambda x: x.flip(3)),
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
    """Other normalisations. Images are held in [0, 1], vectors as they were given."""
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
    usual = [
        _affine(name, f"(x - mean) / std of {name.partition(chr(39))[0]}", *_by_channel(mean, std))
        for name, mean, std in USUAL.get(len(x[0]), ())
    ]
    return [
        _affine("values from 0 to 1", "x in [0, 1]", 0, 1, "`as_is`"),
        _affine("values from −1 to 1", "2 * x - 1 of x in [0, 1]", 0.5, 0.5),
        _affine("channels standardised", "(x - mean) / std of each channel", *each),
        _affine("values standardised", "(x - x.mean()) / x.std()", x.mean(), x.std()),
        *found,
        *usual,
        _affine("black and white swapped", "1 - x of x in [0, 1]", 1, -1, "`scale` -1 and `mean` -1"),
    ]


def _by_channel(mean: Sequence[float], std: Sequence[float]) -> tuple[Tensor, Tensor]:
    first, second = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
    return first, second


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


# Labels -------------------------------------------------------------------------------------------------------


def reordered(predicted: Tensor, y: Tensor, k: int) -> Tensor:
    """The answers, each as the class that it most likely stands for.

    Either half of the samples is judged by the order that the other half gives: any order would be fitted to all.
    """
    half = torch.arange(len(y)) % 2 == 0
    answers = torch.zeros_like(y)
    for judged in (half, ~half):
        answers[judged] = order_of(predicted[~judged], y[~judged], k)[predicted[judged]]
    return answers


def order_of(predicted: Tensor, y: Tensor, k: int) -> Tensor:
    """(k,): the one-to-one order of the classes that fits most samples."""
    from scipy.optimize import linear_sum_assignment

    counts = torch.bincount(predicted * k + y, minlength=k * k).view(k, k)
    return torch.from_numpy(linear_sum_assignment(counts.numpy(), maximize=True)[1])


def order_words(order: Tensor) -> str:
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
