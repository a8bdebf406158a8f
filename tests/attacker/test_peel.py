"""Exact recovery from the weights before and after training: every proof is right, and nothing else is proven."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from trained import on_images
from unfit.attacker.attacked_layer import read_layer
from unfit.attacker.attacks import attack
from unfit.attacker.attacks import peel as module
from unfit.attacker.attacks.peel import (
    FIRST_WIDTH,
    LAST_EPS,
    SLOWLY,
    Peel,
    add_certain,
    certain,
    find_columns,
    fit_columns,
    least_on,
    likely_off,
    loose_components,
    missing_space,
    peel,
    sharpen,
)
from unfit.attacker.candidates import Part, load_candidates, save_candidates
from unfit.attacker.change import Change, read_change
from unfit.attacker.gates import (
    AGREE,
    DECIDED,
    EXACT,
    _regress,
    are_exact,
    consistent,
    contradicted,
    image,
    judge,
    margins,
    others_in,
)
from unfit.attacker.gates import errors as told_errors
from unfit.attacker.sparse import falling, level, reweighted
from unfit.auditor.audit import audit
from unfit.auditor.policy import Policy
from unfit.auditor.samples import Samples
from unfit.base.errors import UnfitError
from unfit.base.nets import initialise
from unfit.base.target import Target


def peeled(change: Change, rounds: int = 60) -> Part | None:
    """What is proven; None if nothing is."""
    parts = [part for part in peel(change, Peel(rounds=rounds)) if part.proven.any()]
    return parts[0] if parts else None


def judged(change: Change, known: Tensor) -> tuple[Tensor, Tensor]:
    """The pictures of these columns, and how well their gates agree."""
    x, agreement = judge(change, known)
    return image(x), agreement


def proven_columns(change: Change, rounds: int) -> Tensor:
    """The columns that so many rounds prove, before any picture is judged: (k, w)."""
    settings, known = Peel(), change.rows.new_zeros(0, len(change.rows))
    for turn in range(rounds):
        x = loose_components(change, known, turn, settings)
        known = add_certain(
            change, known, find_columns(change, x, settings.column_iterations), likely_off(change.sums(x))
        )
    return known


def errors(found: Tensor, members: Samples) -> tuple[Tensor, Tensor]:
    """For each candidate the relative distance to the nearest member, and which that is."""
    x = members.centred(members.mean).x.flatten(1)
    nearest = (torch.cdist(found.flatten(1), x) / x.norm(dim=1)).min(1)
    return nearest.values, nearest.indices


def change_of(name: str, text: str, n: int, classes: str | None = None) -> tuple[Change, Samples]:
    target, initial, members, _ = on_images(name, text, n, classes)
    change = read_change(read_layer(target, initial))
    assert change is not None
    assert change.n == n
    return change, members


@pytest.mark.parametrize(
    ("name", "text", "n"), [("faces", "400-100", 10), ("mnist5k", "1000-100", 20), ("mnist5k", "1000", 12)]
)
def test_every_sample_comes_back_exactly_with_its_label(name, text, n):
    target, initial, members, _ = on_images(name, text, n)
    found = attack(target, "unmix", initial)
    distance, which = errors(found.x, members)
    assert found.proven.all()
    assert len(found) == n
    assert distance.max() < 0.02
    assert sorted(which.tolist()) == list(range(n))  # each once
    assert torch.equal(found.label, members.y[which])


def test_ten_classes_come_back_too():
    target, initial, members, _ = on_images("mnist5k", "500-100", 30, "all")
    found = attack(target, "unmix", initial)
    distance, which = errors(found.x[found.proven], members)
    assert len(distance) >= 25
    assert distance.max() < 0.02
    assert torch.equal(found.label[found.proven], members.y[which])


def test_while_a_column_is_missing_pictures_are_estimated_and_none_is_proven():
    """The traces of the missing samples are taken out of the pictures by the gates, but not exactly."""
    change, members = change_of("mnist5k", "200-50", 30)
    parts = peel(change, Peel(rounds=3))
    assert [part.name for part in parts] == ["peel: column proven, picture estimated"]
    distance, which = errors(parts[0].x, members)
    assert not parts[0].proven.any()
    assert 8 <= len(distance) < 30
    assert 0.02 < distance.median() < 0.3
    assert len(which.unique()) == len(which)
    assert torch.equal(parts[0].label, members.y[which])


def test_far_too_many_samples_for_the_width_prove_nothing():
    change, _ = change_of("mnist5k", "100-50", 30)
    assert peeled(change, rounds=3) is None


def test_nothing_is_proven_without_the_right_start():
    target, initial, _, _ = on_images("faces", "400-100", 10)
    other = Target(target.architecture, dict(initialise(target.architecture, None, 5).state_dict()), (-1.0, 1.0))
    assert not attack(target, "unmix").proven.any()
    with pytest.raises(UnfitError, match="`base` does not fit"):
        attack(target, "unmix", other)
    assert not attack(initial, "unmix", initial).proven.any()  # never trained


def test_nothing_is_proven_when_the_gates_belong_to_other_neurons():
    """The control of the proof itself: the same change, its neurons in another order than the gates'."""
    target, initial, _, _ = on_images("mnist5k", "400-100", 20)
    change = read_change(read_layer(target, initial))
    order = torch.randperm(len(change.rows), generator=torch.Generator().manual_seed(1))
    shuffled = replace(change, rows=change.rows[order], space=change.space[order])
    assert not peel(shuffled, Peel(rounds=3))


@pytest.fixture
def planted():
    """Columns with exact zeros, the space they span, and the net's view of it that `sharpen` reads."""
    random = torch.Generator().manual_seed(0)
    columns = torch.randn(12, 300, generator=random, dtype=torch.float64)
    off = torch.rand(12, 300, generator=random) < 0.4
    off[1] = off[0] ^ (torch.rand(300, generator=random) < 0.05)  # two alike samples
    columns[off] = 0
    space = torch.linalg.qr(columns.T)[0]
    target, initial, _, _ = on_images("faces", "400-100", 10)
    change = read_change(read_layer(target, initial))
    return columns, off, replace(change, rows=columns.T, space=space)


def test_a_column_is_found_from_gates_that_are_partly_wrong(planted):
    columns, off, change = planted
    random = torch.Generator().manual_seed(1)
    wrong = off ^ (torch.rand(off.shape, generator=random) < 0.1)
    prior = torch.where(wrong, 0.9, 0.1)
    signals = (columns + 0.5 * torch.randn(columns.shape, generator=random)).float()
    found = fit_columns(change.space.float(), prior, signals, 20)
    cosine = torch.nn.functional.cosine_similarity(found.double(), columns).abs()
    assert (cosine > 0.999).sum() >= 11
    sharp = torch.stack([sharpen(change, column) for column in found[cosine > 0.999]])
    assert torch.nn.functional.cosine_similarity(sharp, columns[cosine > 0.999]).abs().min() > 1 - 1e-6


def test_zeros_alone_lead_from_a_rough_column_to_the_column():
    random = torch.Generator().manual_seed(0)
    off = torch.rand(60, 300, generator=random) < 0.4
    columns = level(torch.randn(60, 300, generator=random).masked_fill(off, 0))
    space = torch.linalg.qr(columns.T)[0]
    on_for_a_while = torch.rand(off.shape, generator=random) < 0.2
    prior = torch.where(off | on_for_a_while, 0.99, 0.01)
    rough = level((columns + 0.5 * torch.randn(columns.shape, generator=random)) @ space @ space.T)
    assert F.cosine_similarity(rough, columns).max() < 0.99
    assert (
        F.cosine_similarity(reweighted(space, prior, rough, falling(FIRST_WIDTH, LAST_EPS, SLOWLY)), columns)
        > 0.9999
    ).sum() >= 57


def late_change(n: int, w: int) -> tuple[Change, Tensor, Tensor]:
    """As `planted_change`; but one in ten of the neurons that are off was on for a while, and learnt a little."""
    change, columns, samples = planted_change(n, w, d=2 * n)
    random = torch.Generator().manual_seed(5)
    late = (columns == 0) & (torch.rand(columns.shape, generator=random) < 0.1)
    size = 0.1 * torch.rand(columns.shape, generator=random, dtype=torch.float64).square()
    columns = level(columns).where(~late, size)
    rows = columns.T @ with_one(samples.double())
    space = torch.linalg.svd(rows, full_matrices=False)[0][:, :n]
    return replace(change, rows=rows, space=space), columns, samples


def test_sharpening_ends_at_zeros_that_are_exact_and_leaves_out_what_is_merely_small():
    change, columns, _ = late_change(n=40, w=200)
    random = torch.Generator().manual_seed(6)
    near = level(columns + 0.003 * torch.randn(40, 40, generator=random, dtype=torch.float64) @ columns)
    sharp = torch.stack([sharpen(change, column) for column in near])
    assert not any(certain(change, column) is not None for column in near)
    assert sum(certain(change, column) is not None for column in sharp) >= 36
    assert (1 - F.cosine_similarity(sharp, columns).abs()).median() < 1e-12


def test_a_linear_program_leads_on_from_where_reweighting_ends_beside_the_column():
    change, columns, samples = late_change(n=80, w=250)
    random = torch.Generator().manual_seed(6)
    near = level(columns + 0.02 * torch.randn(80, 80, generator=random, dtype=torch.float64) @ columns)
    sharp = torch.stack([sharpen(change, column) for column in near[:20]])
    off = change.sums(samples[:20]) < 0
    led = torch.stack([sharpen(change, least_on(change, *pair)) for pair in zip(sharp, off, strict=True)])
    right = [F.cosine_similarity(each, columns[:20]).abs() > 1 - 1e-9 for each in (sharp, led)]
    assert right[0].sum() < 6
    assert right[1].sum() > 10
    sure = torch.tensor([certain(change, column) is not None for column in led])
    assert 8 < sure.sum() <= (sure & right[1]).sum()  # and a few right ones have too few zeros


# False proofs ----------------------------------------------------------------------------------------------


def true_columns(change: Change, members: Samples) -> Tensor:
    """α of every training sample, by least squares from the samples themselves: (n, w)."""
    x = members.centred(members.mean).x.flatten(1).double()
    return torch.linalg.lstsq(with_one(x).T, change.rows.T).solution


def with_one(x: Tensor) -> Tensor:
    """From x to [x; 1]."""
    return torch.cat([x, torch.ones(len(x), 1).to(x)], 1)


def with_gates_of_other_neurons(change: Change) -> Change:
    order = torch.randperm(len(change.rows), generator=torch.Generator().manual_seed(1))
    return replace(change, rows=change.rows[order], space=change.space[order])


def with_gates_of_another_net(change: Change, other: Target) -> Change:
    layer = read_layer(other)
    net = [layer.gates, *layer.later]
    return replace(change, ends=((net, net),))


def another_start(target: Target) -> Target:
    return replace(target, weights=dict(initialise(target.architecture, None, 5).state_dict()))


@pytest.mark.parametrize(
    ("text", "classes", "least"), [("300-50", None, 20), ("500-50", None, 40), ("500-100", "all", 35)]
)
def test_every_proven_column_of_sixty_samples_is_that_of_one(text, classes, least):
    """The false-proof rate, counted before any picture is judged: no column is a chance find or a mixture."""
    change, members = change_of("mnist5k", text, 60, classes)
    found = F.normalize(proven_columns(change, 3), dim=1)
    cosine, which = (found @ F.normalize(true_columns(change, members), dim=1).T).abs().max(1)
    assert len(found) >= least
    assert cosine.min() > 0.99
    assert len(which.unique()) == len(which)


@pytest.mark.parametrize(("text", "classes"), [("500-50", None), ("500-100", "all")])
def test_sixty_samples_come_back_and_every_proof_is_right(text, classes):
    change, members = change_of("mnist5k", text, 60, classes)
    part = peeled(change)
    assert part is not None
    distance, which = errors(part.x, members)
    assert part.proven.all()
    assert len(part.x) >= 57
    assert distance.max() < 0.02
    assert len(which.unique()) == len(which)
    assert torch.equal(part.label, members.y[which])


@pytest.mark.parametrize("control", ["other neurons", "another net"])
def test_nothing_of_sixty_samples_is_proven_with_wrong_gates(control):
    """The change is the right one, with all its zeros; only the gates are not its own."""
    change, _ = change_of("mnist5k", "500-50", 60)
    other = another_start(on_images("mnist5k", "500-50", 60)[0])
    neurons = control == "other neurons"
    wrong = with_gates_of_other_neurons(change) if neurons else with_gates_of_another_net(change, other)
    assert not len(proven_columns(wrong, 3))


def test_sixty_samples_are_not_even_counted_with_another_start():
    target, _, _, _ = on_images("mnist5k", "500-50", 60)
    assert read_change(read_layer(target, another_start(target))) is None


# Pictures of columns ---------------------------------------------------------------------------------------


def planted_change(n: int, w: int, d: int = 60, seed: int = 0, bias: float = 0.0) -> tuple[Change, Tensor, Tensor]:
    """A change, its columns (n, w) and its samples (n, d); a column is zero just where its gate was never on.

    Columns have a part in common, as those of one class have: a missing one leaves traces in all pictures.
    """
    random = torch.Generator().manual_seed(seed)

    def draw_normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    x, before = with_one(draw_normal(n, d)), draw_normal(w, d + 1) / math.sqrt(d)
    before[:, -1] += bias
    signal = 0.2 * (draw_normal(w) + draw_normal(n, w)) / math.sqrt(n * d)
    on = now = x @ before.T > 0
    while not torch.equal(on, now) or on is now:
        on, now = now, now | (x @ (before + (signal * now).T @ x).T > 0)
    columns = signal * on
    rows = columns.T @ x
    initial, end = ([(layer[:, :-1].float(), layer[:, -1].float())] for layer in (before, before + rows))
    return Change(rows, torch.linalg.qr(columns.T)[0], (d,), (d,), ((initial, end),)), columns, x[:, :-1].float()


def chance_column(change: Change, seed: int) -> Tensor:
    """The vector of the column space that vanishes on n − 1 neurons drawn at random: there always is one."""
    drawn = torch.randperm(len(change.rows), generator=torch.Generator().manual_seed(seed))[: change.n - 1]
    return change.space @ torch.linalg.svd(change.space[drawn])[2][-1]


def relative(found: Tensor, x: Tensor) -> Tensor:
    return (found - x).norm(dim=1) / x.norm(dim=1)


def alternately_signed(columns: Tensor) -> Tensor:
    return columns * (1 - 2 * (torch.arange(len(columns)) % 2))[:, None]


def planted_sums(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums before and after, (2, 1, 2000), with c · features added; the features, c, and what was off."""
    random = torch.Generator().manual_seed(seed)
    shapes = ((2, 1, 2000), (2, 4, 2000), (1, 4))
    sums, features, c = (torch.randn(*shape, generator=random, dtype=torch.float64) for shape in shapes)
    return sums + c @ features, features, c, sums.max(0).values < 0


def test_the_regression_finds_what_turned_the_gates():
    """Neurons were off both before and after: neither alone tells as much."""
    own, features, c, off = planted_sums()
    found = _regress(own, off, features)
    assert (found - c).norm() < 0.02 * c.norm()
    for alone in (own[:1], features[:1]), (own[1:], features[1:]):
        worse = _regress(alone[0].repeat(2, 1, 1), off, alone[1].repeat(2, 1, 1))
        assert (worse - c).norm() > (found - c).norm()


def test_the_regression_bears_neurons_that_turned_on_late():
    own, features, c, off = planted_sums(1)
    late = torch.rand(off.shape, generator=torch.Generator().manual_seed(2)) < 0.05
    assert (_regress(own, off | late, features) - c).norm() < 0.1 * c.norm()


def test_the_regression_finds_nothing_where_nothing_is_left():
    own, features, c, off = planted_sums(3)
    assert _regress(own - c @ features, off, features).norm() < 0.02


def test_the_traces_of_missing_samples_are_found_by_the_gates():
    change, columns, samples = planted_change(n=20, w=400)
    known, missing, x = columns[:12], columns[12:], with_one(samples.double())
    c = torch.linalg.lstsq(known.T, missing.T).solution  # (12, 8)
    mixed = torch.linalg.lstsq(known.T, change.rows).solution
    traces = c @ x[12:]
    torch.testing.assert_close(mixed, x[:12] + traces)
    even = torch.arange(400) % 2 == 0
    found = others_in(mixed, change, known, [torch.ones_like(even), even, ~even])
    for guess in found:
        assert relative(guess, traces).mean() < 0.6
        coefficients = torch.linalg.lstsq(x[12:].T, guess.T).solution
        torch.testing.assert_close(coefficients.T @ x[12:], guess)  # a mixture of these and nothing else
    both, one, other = found
    assert not torch.isclose(one, other, rtol=0.01).all(1).any()  # each by neurons of its own
    assert relative(both, traces).mean() < min(relative(one, traces).mean(), relative(other, traces).mean())


@pytest.mark.parametrize("num_known", [20, 18, 10])
def test_pictures_are_the_samples_with_either_sign_of_their_columns(num_known):
    change, columns, samples = planted_change(n=20, w=400)
    x = samples[:num_known]
    known = alternately_signed(columns[:num_known])
    images, agreement = judged(change, known)
    assert relative(images, x).max() < (0.15 if num_known < 20 else 1e-5)
    assert agreement.min() > AGREE
    mixed = torch.linalg.lstsq(known.T, change.rows).solution
    if num_known < 20:
        assert relative(images, x).mean() < relative((mixed[:, :-1] / mixed[:, -1:]).float(), x).mean() / 3


def test_no_columns_have_no_pictures():
    change, columns, _ = planted_change(n=20, w=400)
    images, agreement = judged(change, columns[:0])
    assert (images.shape, agreement.shape) == ((0, 60), (0,))


@pytest.mark.parametrize("num_known", [20, 10])
def test_a_wrong_column_does_not_agree_with_its_picture(num_known):
    """Its zeros are at neurons of no sample, so to be off there is a coin toss."""
    change, columns, _ = planted_change(n=20, w=400)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(3))
    for wrong in (columns[0, order], chance_column(change, 0)):
        _, agreement = judged(change, torch.cat([columns[1:num_known], wrong[None]]))
        assert agreement[-1] < 0.7


def test_a_half_of_the_neurons_is_not_judged_by_itself():
    """With nearly as many missing samples as neurons a regression fits its own answers, right or wrong.

    The biases make most neurons of any picture on, so that a fit cannot turn all gates about.
    """
    change, columns, _ = planted_change(n=60, w=200, d=100, bias=1.0)
    random = torch.Generator().manual_seed(4)
    wrong = torch.stack([column[torch.randperm(200, generator=random)] for column in columns[:4]])
    _, agreement = judged(change, wrong)
    assert agreement.max() < 0.6


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_a_wrong_column_among_nearly_all_is_dropped(seed):
    """It stands where the column stood that it holds most of, and spoils the pictures of nearly all others."""
    change, columns, samples = planted_change(n=20, w=300, seed=seed)
    wrong = chance_column(change, seed)
    place = int(torch.linalg.lstsq(columns.T, wrong[:, None]).solution.abs().argmax())
    known = level(torch.cat([columns[:place], wrong[None], columns[place + 1 :]]))
    spoilt, agreement = judged(change, known)
    assert (relative(spoilt, samples) > 0.2).double().mean() > 0.6
    assert agreement.median() < AGREE
    kept, x, agreement = consistent(change, known)
    which = (known @ kept.T).argmax(0)
    assert torch.equal(known[which], kept)
    assert len(kept) == 17
    assert place not in which
    assert relative(image(x), samples[which]).max() < 0.25
    assert agreement.median() > AGREE


def test_right_columns_are_all_kept():
    change, columns, samples = planted_change(n=20, w=300)
    kept, x, agreement = consistent(change, columns)
    assert torch.equal(kept, columns)
    assert relative(image(x), samples).max() < 1e-5
    assert agreement.min() > AGREE


def test_nothing_is_dropped_while_many_are_missing():
    """Pictures disagree because of the missing samples too: that would throw right columns away."""
    change, columns, _ = planted_change(n=20, w=300)
    wrong = torch.stack([chance_column(change, seed) for seed in range(6)])
    known = level(torch.cat([columns[:10], wrong]))
    kept, _, agreement = consistent(change, known)
    assert agreement.median() < AGREE
    assert torch.equal(kept, known)


def test_one_sample_alone_is_the_only_component():
    change, columns, samples = planted_change(n=1, w=100)
    found = loose_components(change, columns[:0], 0, Peel())
    assert (F.cosine_similarity(found, samples).abs() > 0.9999).all()


@pytest.mark.parametrize(("num_known", "rounds"), [(10, 5), (18, 13)])
def test_it_is_more_patient_when_only_a_few_are_missing(num_known, rounds, monkeypatch):
    """The first round finds what is known, and then nothing new comes: four rounds, or three times as many."""
    change, columns, _ = planted_change(n=20, w=400)
    monkeypatch.setattr(module, "add_certain", lambda *_: columns[:num_known])
    told: list[str] = []
    peel(change, Peel(patience=4), lambda _, words: told.append(words))
    assert told == [f"{num_known} of 20 samples found"] * rounds


# What makes a picture exact --------------------------------------------------------------------------------


def exact(change: Change, known: Tensor) -> bool:
    return bool(are_exact(change, known, judge(change, known)[0]).all())


def test_no_picture_is_exact_while_a_column_is_missing():
    """It leaves the same in the pictures whichever neurons are asked: no jackknife sees it."""
    change, columns, samples = planted_change(n=6, w=6000)
    known = columns[:5]
    least_squares = image(torch.linalg.lstsq(known.T, change.rows).solution)
    assert relative(least_squares, samples[:5]).max() > 0.1
    assert exact(change, columns)
    assert not exact(change, known)


def test_a_mixture_that_leaves_its_own_picture_right_puts_both_in_doubt():
    """It spoils the other's picture, and nothing shows there."""
    change, columns, samples = planted_change(n=20, w=400)
    known = level(columns)
    assert are_exact(change, known, judge(change, known)[0]).all()
    assert margins(change, known, judge(change, known)[0]).min() > 2 * DECIDED
    known[3] = level((known[3] + 0.1 * known[4])[None])[0]
    x = judge(change, known)[0]
    assert relative(image(x), samples).argmax() == 4
    assert margins(change, known, x)[3, 4] < DECIDED
    found = are_exact(change, known, x)
    assert not found[[3, 4]].any()


def test_nothing_is_exact_of_two_samples_with_nearly_the_same_gates():
    """A mixture of theirs vanishes on nearly as many neurons, and few gates speak against it."""
    change, columns, samples = planted_change(n=12, w=400)
    x = with_one(samples.double())
    copy = x[:1] + 0.01 * torch.randn(x[:1].shape, generator=torch.Generator().manual_seed(2))
    own = change.before_and_after(copy[:, :-1].float()).amax(0)[0] > 0
    twin = columns[0] * own * (1 + 0.01 * torch.randn(400, generator=torch.Generator().manual_seed(3)))
    columns, x = torch.cat([columns, twin[None]]), torch.cat([x, copy])
    rows = columns.T @ x
    both = replace(change, rows=rows, space=torch.linalg.qr(columns.T)[0])
    found = are_exact(both, level(columns), judge(both, columns)[0])
    assert not found[[0, 12]].any()
    assert found[1:12].all()


def test_a_column_that_vanishes_where_its_sample_is_on_puts_all_in_doubt():
    change, columns, _ = planted_change(n=20, w=400)
    known = level(columns)
    assert contradicted(change, known, judge(change, known)[0]).max() == 0
    known[5] = level(chance_column(change, 1)[None])[0]
    x = judge(change, known)[0]
    assert contradicted(change, known, x)[5] > 0.1
    assert not are_exact(change, known, x).any()


def with_noise(change: Change, size: float) -> Change:
    """As if weights had been rounded: noise of this size beside the change."""
    noise = torch.randn(change.rows.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = change.rows + size * change.rows.abs().mean() * noise
    return replace(change, rows=rows, space=torch.linalg.svd(rows, full_matrices=False)[0][:, : change.n])


@pytest.mark.parametrize(("size", "right"), [(1e-5, True), (1e-3, True), (0.2, False)])
def test_pictures_that_rounding_has_spoilt_are_not_exact(size, right):
    change, columns, samples = planted_change(n=20, w=400)
    noisy = with_noise(change, size)
    error, told = (
        relative(judged(noisy, columns)[0], samples),
        told_errors(noisy, columns, judge(noisy, columns)[0]),
    )
    assert exact(noisy, columns) == bool((error < EXACT).all()) == right
    assert told.median() > 0.3 * error.median()


def test_one_picture_that_rounding_has_spoilt_puts_all_in_doubt():
    """One sample left a twentieth of what others did. Theirs are right, but need not be if a column is wrong."""
    change, columns, samples = planted_change(n=20, w=400)
    rows = change.rows - 0.95 * columns[0][:, None] * with_one(samples[:1].double())
    faint = with_noise(replace(change, rows=rows), 0.03)
    assert (told_errors(faint, columns, judge(faint, columns)[0]) < EXACT).sum() == 19
    assert not exact(faint, columns)


def test_what_pictures_leave_over_is_the_missing_column():
    change, columns, _ = planted_change(n=20, w=400)
    left = missing_space(change, columns[:19])
    assert left.shape == (400, 1)
    assert F.cosine_similarity(left[:, 0], columns[19], dim=0).abs() > 0.99
    few = missing_space(change, columns[:17])
    inside = (columns[17:] @ few).norm(dim=1) / columns[17:].norm(dim=1)
    assert inside.min() > 0.9


# Evidence --------------------------------------------------------------------------------------------------


def test_the_audit_and_its_page_say_what_is_proven():
    target, initial, members, unseen = on_images("faces", "400-100", 10)
    done = audit(target, members, unseen, attack="unmix", base=initial, policy=Policy(window=3))
    assert done.record.num_exact == 10
    assert done.record.estimated_num_samples == 10
    assert all(sample.exact for sample in done.record.samples)
    text = done.to_html()
    assert "Exact" in text
    assert "unseen: 0 of 10</b><br>proven from the weights alone" in text
    assert "10 of 10 training images can be recovered exactly from this file." in text
    plain = audit(target, members, unseen, attack="weights", policy=Policy(window=3))
    assert plain.record.num_exact == 0
    assert not any(sample.exact for sample in plain.record.samples)


def test_proofs_survive_the_file(tmp_path):
    target, initial, _, _ = on_images("faces", "400-100", 10)
    found = attack(target, "unmix", initial)
    save_candidates(found, tmp_path / "found.safetensors")
    assert torch.equal(load_candidates(tmp_path / "found.safetensors").proven, found.proven)
