"""Is a model that fits its data let through, and is the form of the data found if it does not?"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise, permutations

import pytest
import torch
from torch import Tensor, nn

from unfit import draw, draw_unseen, read_source
from unfit.auditor.case import case_of
from unfit.auditor.data_check import DataCheck, agreement, check_data, is_better, is_worse, p_worse

Pair = tuple[Tensor, Tensor]
SIDE, N = 8, 120


def mlp(*widths: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def train(net: nn.Module, x: Tensor, y: Tensor, squared: bool = False, steps: int = 500) -> nn.Module:
    """Gradient descent by hand: PyTorch takes seconds to load its optimisers."""
    parameters = list(net.parameters())
    for _ in range(steps):
        phi = net(x)
        if phi.shape[1] > 1:
            loss = nn.functional.cross_entropy(phi, y)
        elif squared:
            loss = (phi[:, 0] - y).square().mean()
        else:
            loss = nn.functional.binary_cross_entropy_with_logits(phi[:, 0], y.float())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= 0.1 * gradient
    return net


def images(seed: int, k: int = 2) -> Pair:
    """Colour pictures in [0, 1] of k overlapping kinds."""
    random = torch.Generator().manual_seed(seed)
    kinds = torch.rand(k, 3, 4, 4, generator=torch.Generator().manual_seed(99))
    y = torch.arange(N) % k
    coarse = 0.15 * kinds[y] + 0.85 * torch.rand(N, 3, 4, 4, generator=random)
    return nn.functional.interpolate(coarse, size=SIDE, mode="bilinear"), y


def standardised(pair: Pair) -> Pair:
    return (pair[0] - 0.5) / 0.2, pair[1]


@pytest.fixture(scope="module")
def binary() -> nn.Module:
    return train(mlp(3 * SIDE**2, 64, 1), *standardised(images(0)))


@pytest.fixture(scope="module")
def of_five() -> nn.Module:
    return train(mlp(3 * SIDE**2, 64, 5), *standardised(images(0, 5)))


def judged(model: nn.Module, change: Callable[[Pair], Pair], k: int = 2) -> DataCheck:
    return check_data(case_of(model, *(change(standardised(images(seed, k))) for seed in (0, 1))))


def test_a_model_and_its_own_data_fit(binary: nn.Module, of_five: nn.Module) -> None:
    for found in (judged(binary, lambda pair: pair), judged(of_five, lambda pair: pair, 5)):
        assert (found.fits, found.private_accuracy, found.reasons, found.likely_cause) == (True, 1, [], None)
        assert found.unseen_accuracy < 1


def channels_last(pair: Pair) -> Pair:
    return pair[0].permute(0, 2, 3, 1).reshape(pair[0].shape), pair[1]


FORMS: dict[str, tuple[Callable[[Pair], Pair], str]] = {
    "channels last": (
        channels_last,
        r"with channels first instead of last the model gets 100% of the private samples right: "
        r"pass x.reshape\(-1, 8, 8, 3\).permute\(0, 3, 1, 2\)$",
    ),
    "channels first": (
        lambda pair: (pair[0].reshape(-1, SIDE, SIDE, 3).permute(0, 3, 1, 2), pair[1]),
        r"with channels last instead of first .* 100% .* pass x.permute\(0, 2, 3, 1\).reshape\(-1, 3, 8, 8\)",
    ),
    "transposed": (
        lambda pair: (pair[0].mT, pair[1]),
        r"with rows and columns swapped .* pass x.transpose\(2, 3\)",
    ),
    "BGR": (lambda pair: (pair[0].flip(1), pair[1]), r"BGR is to RGB the model gets 100% .* pass x.flip\(1\)"),
    "not normalised": (
        lambda pair: (pair[0] * 0.2 + 0.5, pair[1]),
        "the model gets 100% .*; other scales do as well: take the one it was trained with",
    ),
    "neither": (
        lambda pair: channels_last((pair[0] * 51 + 127, pair[1])),
        "and channels first instead of last the model gets 100% ",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_the_data_is_found(name: str, of_five: nn.Module) -> None:
    change, cause = FORMS[name]
    found = judged(of_five, change, 5)
    assert not found.fits
    assert found.private_accuracy < 0.9
    assert len(found.reasons) == 1
    assert re.search(cause, found.likely_cause or ""), found.likely_cause


def relabelled(order: list[int]) -> Callable[[Pair], Pair]:
    return lambda pair: (pair[0], torch.tensor(order)[pair[1]])


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([4, 3, 2, 1, 0], "in reverse order"),
        ([1, 2, 3, 4, 0], "one lower (the first becomes the last)"),
        ([4, 0, 1, 2, 3], "one higher (the last becomes the first)"),
        ([0, 1, 3, 4, 2], "in another order: 3 becomes 2, 4 becomes 3, 2 becomes 4"),
    ],
)
def test_the_order_of_the_labels_is_found(order: list[int], words: str, of_five: nn.Module) -> None:
    found = judged(of_five, relabelled(order), 5)
    assert not found.fits
    assert found.likely_cause == f"with the labels {words} the model gets 100% of the private samples right"


def test_two_labels_are_swapped(binary: nn.Module) -> None:
    found = judged(binary, relabelled([1, 0]))
    assert found.reasons == ["the model gets 0% of the private samples right, where guessing gets 50%"]
    assert found.likely_cause == "with the labels swapped the model gets 100% of the private samples right"


def test_strangers_to_which_nothing_fits(binary: nn.Module) -> None:
    random = torch.Generator().manual_seed(0)
    strangers = torch.rand(N, 3, SIDE, SIDE, generator=random), torch.arange(N) % 2
    found = check_data(case_of(binary, strangers, standardised(images(1))))
    assert (found.fits, found.likely_cause) == (False, None)
    assert "where guessing gets 50%" in found.reasons[0]
    assert found.reasons[1].startswith("likely causes: ")


def test_swapped_sets_are_another_file(binary: nn.Module) -> None:
    private, unseen = standardised(images(1)), standardised(images(0))
    found = check_data(case_of(binary, private, unseen))
    assert not found.fits
    assert found.reasons[0].endswith("were the two swapped, or is this another file than it was trained on?")


def test_a_model_that_never_memorised_fits() -> None:
    """A quarter of the labels are wrong, in both sets, and the model is too small to learn them by heart."""

    def noisy(seed: int) -> Pair:
        x, y = standardised(images(seed))
        return x, torch.where(torch.rand(N, generator=torch.Generator().manual_seed(seed)) < 0.2, 1 - y, y)

    model = train(mlp(3 * SIDE**2, 2, 1), *noisy(0), steps=40)
    found = check_data(case_of(model, noisy(0), noisy(1)))
    assert 0.7 < found.private_accuracy < 0.9
    assert found.fits, found


def test_a_regression_on_0_and_1_is_cut_in_the_middle() -> None:
    model = train(mlp(3 * SIDE**2, 64, 1), *standardised(images(0)), squared=True)
    found = judged(model, lambda pair: pair)
    assert (found.fits, found.private_accuracy) == (True, 1)


def test_vectors_that_were_not_standardised() -> None:
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(2 * N, 10, generator=random), torch.arange(2 * N) % 2
    x = (x + 0.3 * y[:, None]) * 20 + 1000
    mean, std = x[:N].mean(0), x[:N].std(0)
    model = train(mlp(10, 100, 1), (x[:N] - mean) / std, y[:N], steps=400)
    found = check_data(case_of(model, (x[:N], y[:N]), (x[N:], y[N:])))
    assert not found.fits
    assert "with each value standardised the model gets 92%" in (found.likely_cause or "")


def test_guessing_is_what_the_same_answers_get_in_any_order() -> None:
    predicted, y = torch.tensor([0, 0, 1, 2, 2, 1, 0]), torch.tensor([0, 1, 1, 2, 0, 1, 2])
    hits = torch.tensor(
        [[int(predicted[i] == y[j]) for i, j in enumerate(order)] for order in permutations(range(7))]
    )
    hits = hits.sum(1).double()
    chance, p_value = agreement(predicted, y)
    assert chance == pytest.approx(float(hits.mean()) / 7)
    z = (4 - hits.mean()) / hits.std(correction=0)
    assert p_value == pytest.approx(float(torch.special.ndtr(-z)))


def test_one_answer_for_all_is_guessing() -> None:
    """99 of 100 right is no sign of a fit if 99 of 100 are of one class; 2 of 3 rare ones found are."""
    y = torch.zeros(100).long()
    y[:3] = 1
    assert agreement(torch.zeros(100).long(), y) == (pytest.approx(0.97), 1.0)
    assert agreement((torch.arange(100) < 2).long(), y)[1] < 1e-6


def test_worse_than_unseen_is_fishers_test() -> None:
    from scipy.stats import fisher_exact

    private, unseen = (torch.arange(40) >= 25).float(), (torch.arange(30) >= 27).float()
    expected = fisher_exact([[25, 15], [27, 3]], alternative="less").pvalue
    assert p_worse(private, unseen) == pytest.approx(expected)


def test_a_wrong_layout_shows_in_the_margins_where_accuracy_does_not_tell() -> None:
    """Turned faces lie mostly on the right side of the line too, but the model is surer of them upright."""
    source = read_source("faces")
    members = draw(source, 40, 0)
    x, y = members.x - members.x.mean(0), members.y
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(625, 100), nn.ReLU(), nn.Linear(100, 1))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(net(x)[:, 0], y.float()).backward()
        optimiser.step()
    others = draw_unseen(source, members, 40, 0)
    unseen = others.x - members.x.mean(0), others.y
    assert check_data(case_of(net, (x, y), unseen)).fits
    found = check_data(case_of(net, (x.transpose(2, 3), y), (unseen[0].transpose(2, 3), unseen[1])))
    assert not found.fits
    assert found.likely_cause is not None
    assert "rows and columns swapped" in found.likely_cause


def test_another_form_must_mend_half_of_the_errors() -> None:
    before, slightly, right = ((torch.arange(100) >= num).float() for num in (40, 60, 70))
    assert [is_better(each, before) for each in (slightly, right)] == [False, True]
    few = (torch.arange(20) >= 4).float()
    assert not is_better((torch.arange(20) >= 12).float(), few)  # eight more of twenty may be luck


@pytest.mark.parametrize("kind", ["table", "images"])
def test_a_model_that_was_never_trained_gets_no_advice(kind: str) -> None:
    """Some form makes many random weights tell malignant from benign, and some digits from others."""
    from sklearn.datasets import load_breast_cancer, load_digits

    x, y = (load_breast_cancer if kind == "table" else load_digits)(return_X_y=True)
    x, y = torch.from_numpy(x).float(), torch.from_numpy(y)
    x = x if kind == "table" else x.view(-1, 1, 8, 8) / 16
    num_outputs, advised = 1 if kind == "table" else 10, []
    for seed in range(30):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 50), nn.ReLU(), nn.Linear(50, num_outputs))
        own, others = torch.randperm(len(x))[:400].split(200)
        advised.append(check_data(case_of(net, (x[own], y[own]), (x[others], y[others]))).likely_cause)
    assert advised == [None] * 30


def test_a_slightly_easier_unseen_set_is_no_reason_to_stop() -> None:
    private, unseen = ((torch.arange(2000) >= num).float() for num in (1900, 1980))
    assert p_worse(private, unseen) < 1e-6
    assert not is_worse(private, unseen)
    assert is_worse((torch.arange(2000) >= 1800).float(), unseen)
