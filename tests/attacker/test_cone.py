"""Exact recovery of inputs that are never negative: every proof is right, and strangers prove nothing."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from trained import NUM, counts, features, on_records, records
from unfit.attacker.attacked_layer import read_layer
from unfit.attacker.attacks import attack, cone
from unfit.attacker.attacks.auto import Auto
from unfit.attacker.attacks.cone import Cone, are_real, last_corner, sparse_part
from unfit.attacker.candidates import Candidates
from unfit.attacker.cone_span import Space, _space, has_cone, is_centred, read_space
from unfit.attacker.corners import is_borne_out, is_proven, may_be_sample, stand_alone
from unfit.attacker.duals import GateCheck
from unfit.attacker.initial import find_initial_weights
from unfit.base.errors import NotApplicableError
from unfit.base.modules import as_base, as_target

RIGHT = 1e-3  # relative distance from a training sample


@cache
def found(kind: str) -> Candidates:
    model, base, _, _ = on_records(kind)
    return attack(model, Cone(), base)


def space_of(kind: str) -> Space:
    model, base, _, _ = on_records(kind)
    target = as_target(model)
    space = read_space(read_layer(target, as_base(base, target)))
    assert space is not None
    return space


def alone(x: np.ndarray) -> np.ndarray:
    return stand_alone(x, np.ones(len(x), bool), np.ones(len(x), bool))


def distances(x: Tensor, samples: Tensor) -> Tensor:
    """Of each sample from the nearest candidate, relative to its size."""
    return torch.cdist(samples.double(), x.double()).min(1).values / samples.double().norm(dim=1)


@pytest.mark.parametrize("kind", ["records", "counts", "features", "mixed"])
def test_all_samples_come_back_proven_and_to_scale_and_none_that_was_not_seen(kind):
    _, _, x, unseen = on_records(kind)
    proven = found(kind).x[found(kind).proven]
    assert len(proven) == NUM
    assert distances(proven, x).max() < RIGHT
    assert distances(x, proven).max() < RIGHT
    assert distances(proven, unseen).min() > 0.1


def test_small_values_among_the_zeros_do_not_lead_astray():
    """Six are proven if what is about zero is guessed only once."""
    candidates = found("steep")
    proven = candidates.x[candidates.proven]
    assert len(proven) > 9
    assert (distances(proven, on_records("steep")[2]) < RIGHT).sum() == len(proven)


@pytest.mark.parametrize("kind", ["records", "counts"])
def test_whole_numbers_come_back_to_the_last_bit(kind):
    _, _, x, _ = on_records(kind)
    proven = found(kind).x[found(kind).proven]
    assert sorted(map(tuple, proven.tolist())) == sorted(map(tuple, x.tolist()))


def test_zeros_of_features_are_zeros():
    _, _, x, _ = on_records("features")
    assert (found("features").x == 0).sum() == (x == 0).sum()


def test_nothing_is_proven_where_nothing_is_zero():
    assert not found("positive").proven.any()


def test_where_nothing_is_found_no_program_is_solved(monkeypatch):
    """They take minutes for 500 pictures."""
    monkeypatch.setattr(cone, "programs", lambda *_: pytest.fail("a program was solved"))
    model, base, _, _ = on_records("positive")
    assert not attack(model, Cone(), base).proven.any()


@pytest.mark.parametrize("kind", ["dense", "only_real"])
def test_inputs_of_both_signs_have_no_cone(kind):
    with pytest.raises(NotApplicableError, match="no cone"):
        found(kind)


@pytest.mark.parametrize("kind", ["records", "features", "mixed"])
def test_what_a_model_standardises_itself_comes_back_as_it_enters_the_first_layer(kind):
    model, base, x, unseen = on_records(kind, standardises=True)
    candidates = attack(model, Cone(), base)
    proven = candidates.x[candidates.proven]
    assert len(proven) >= 0.9 * NUM
    assert distances(model[0](x), proven).max() < RIGHT
    assert distances(proven, model[0](unseen)).min() > 0.1


def test_what_was_standardised_before_has_no_cone():
    model, base, _, _ = on_records("features", standardises=True)
    with pytest.raises(NotApplicableError, match="no cone"):
        attack(model[1:], Cone(), base[1:])


def test_a_pipeline_of_scikit_learn_gives_its_records_back():
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x = records(NUM, np.random.default_rng(1))
    net = MLPClassifier(solver="sgd", learning_rate_init=0.05, max_iter=150, tol=0, alpha=0, random_state=42)
    model = make_pipeline(StandardScaler(), net)
    with pytest.warns(UserWarning, match="iterations"):
        model.fit(x, np.arange(NUM) % 2)
    candidates = attack(model, Auto())
    proven = candidates[candidates.origin == candidates.origins.index("cone: proven")]
    back = model[0].inverse_transform(proven.x.numpy())
    assert len(back) >= 0.9 * NUM
    assert set(map(tuple, back.round(3).tolist())) <= set(map(tuple, x.tolist()))


@pytest.mark.parametrize(("kind", "decay"), [("records", 1e-5), ("records", 1e-3), ("counts", 1e-3)])
def test_weights_may_decay_while_biases_do_not(kind, decay):
    """The bias is then a sum of its own. Groups of records give what it should be, whole numbers their scale."""
    model, base, x, unseen = on_records(kind, decay=decay)
    came = attack(model, Cone(), base)
    assert came.proven.sum() >= NUM - 1
    assert distances(came.x[came.proven], x).max() < RIGHT
    assert distances(unseen, came.x).min() > RIGHT


def test_features_whose_scale_is_not_known_are_not_proven():
    """Weights decayed, the bias did not, and features are no whole numbers: directions are right, sizes not."""
    model, base, x, _ = on_records("features", decay=1e-3)
    came = attack(model, Cone(), base)
    assert (torch.cosine_similarity(came.x[:, None].double(), x[None].double(), dim=2).amax(0) > 0.999).sum() >= 10
    assert not came.proven.any()


def test_a_classifier_with_hardly_more_neurons_than_samples_gives_them_back():
    """scikit-learn's defaults decay the weights alone; its initial weights follows from its seed."""
    from sklearn.neural_network import MLPClassifier

    drawn = records(100, np.random.default_rng(3), (2, 5, 60, 100, 250))
    x, unseen = drawn[:80], torch.from_numpy(drawn[80:]).float()
    model = MLPClassifier(solver="sgd", learning_rate_init=0.02, max_iter=300, tol=0, random_state=42)
    with pytest.warns(UserWarning, match="iterations"):
        model.fit(x, np.arange(80) % 2)
    initial = find_initial_weights(model, seeds=100)
    assert initial is not None
    came = attack(model, Cone(), initial.target)
    assert came.proven.sum() >= 70
    assert distances(came.x[came.proven], torch.from_numpy(x).float()).max() < RIGHT
    assert distances(unseen, came.x).min() > RIGHT


def layer_of(x: np.ndarray) -> tuple[Space, np.ndarray]:
    """The span of a layer that has learnt these samples, with rounding errors, and the samples' coordinates."""
    random = np.random.default_rng(0)
    mixing = random.normal(size=(100, len(x))) * (random.random(size=(100, len(x))) < 0.6)
    change = mixing @ np.column_stack([x, np.ones(len(x))])
    space = _space(torch.from_numpy(change + 1e-7 * random.normal(size=change.shape)), has_bias=True)
    assert space is not None
    a = np.linalg.lstsq((space.values * space.scale).T, x[:, space.live].T, rcond=None)[0].T
    return space, a / np.linalg.norm(a, axis=1, keepdims=True)


@pytest.mark.parametrize("draw", range(8))
def test_a_text_with_all_words_of_another_is_told_by_the_columns_of_others(draw):
    """Its zeros are all zeros of the other one too, so they fit many vectors. Columns of the others leave one."""
    x = counts(NUM, np.random.default_rng(draw))
    x[1] += x[0]
    space, a = layer_of(x)
    columns = np.linalg.inv(a).T
    columns /= np.linalg.norm(columns, axis=1, keepdims=True)
    clean, nobody = np.arange(NUM) != 1, np.zeros(NUM, bool)
    assert not is_proven(space, a[1])
    assert is_borne_out(space, a, GateCheck(~nobody, nobody, columns, nobody, clean), 1)
    assert not is_borne_out(space, a, GateCheck(~nobody, nobody, columns, nobody, nobody), 1)
    part = space.beyond(columns[clean])
    assert np.abs(part.within(space, a)[clean]).max() > 0.01  # they have a part there, as no basis is orthogonal
    assert np.abs(last_corner(space, part) - a[1]).max() < 1e-4


def test_what_exact_columns_leave_may_be_no_sample():
    x = counts(NUM, np.random.default_rng(5))
    space, a = layer_of(np.vstack([x[:-1], x[:1] - x[1:2] + x[-1:]]))
    columns = np.linalg.inv(a).T[:-1]
    assert not len(last_corner(space, space.beyond(columns)))


def test_columns_of_any_sign_are_told_from_sparse_ones_and_come_back_with_them():
    _, _, x, _ = on_records("mixed")
    space = space_of("mixed")
    assert sparse_part(space).live.nonzero()[0].max() < x.shape[1] - 3
    proven = found("mixed").x[found("mixed").proven]
    nearest = torch.cdist(x, proven).argmin(1)
    assert torch.equal(proven[nearest][:, :-3], x[:, :-3])
    assert (proven[nearest] - x)[:, -3:].norm(dim=0).div(x[:, -3:].norm(dim=0)).max() < RIGHT


def test_a_column_that_vanishes_is_not_real_whatever_a_wrong_corner_says():
    space = space_of("records")
    _, _, x, _ = on_records("records")
    samples = np.linalg.lstsq(space.values.T, (x.double().numpy()[:, space.live] / space.scale).T)[0].T
    wrong = np.vstack([samples, samples[0] - 2 * samples[1]])
    assert not are_real(space, wrong).any()


def test_mixtures_of_samples_are_not_proven():
    space, random = space_of("features"), np.random.default_rng(0)
    _, _, x, _ = on_records("features")
    samples = np.linalg.lstsq(space.values.T, (x.double().numpy()[:, space.live] / space.scale).T)[0].T
    assert all(is_proven(space, a / np.linalg.norm(a)) for a in samples)
    for share in (0.5, 0.05, 1e-3):
        i, j = random.permutation(NUM)[:2]
        mixture = samples[i] + share * samples[j]
        assert not is_proven(space, mixture / np.linalg.norm(mixture))


def test_a_text_plus_the_difference_of_two_alike_is_not_proven():
    """Two texts that differ in two words; a third that has one of them can be had with the other as well."""
    texts = counts(12, np.random.default_rng(0))
    texts[1] = texts[0]
    texts[:, -2:] = 0
    texts[:2, -2:] = np.eye(2)
    texts[2, -2:] = 1, 0
    assert alone(texts)[3:].all()
    assert not alone(texts)[2]
    assert stand_alone(texts, np.ones(12, bool), np.arange(12) > 0)[
        2
    ]  # the exact column of one of the two accuses it
    ghost = texts[2] + (texts[1] - texts[0])
    assert not alone(np.vstack([texts[[0, 1]], texts[3:], ghost]))[-1]


def test_a_rival_casts_doubt_on_all_that_lead_to_it():
    """The same with the second text never found: from the first, the way from third to ghost leads to it."""
    texts = counts(40, np.random.default_rng(0))
    texts[:, -2:] = 0
    texts[1] = texts[0]
    texts[:2, -2:] = np.eye(2)
    texts[2, -2:] = 1, 0
    ghost = texts[2] + (texts[1] - texts[0])
    assert not alone(np.vstack([texts[[0]], texts[2:], ghost]))[[0, 1, -1]].any()


def test_what_is_whole_is_not_proven_where_another_vector_comes_near():
    """Texts that differ in a word make whole rivals of whole texts. The walk misses those of texts not found."""
    texts = counts(12, np.random.default_rng(0))
    clear = np.arange(12) > 3
    assert (stand_alone(texts, clear, np.ones(12, bool)) == clear).all()


def test_among_whole_numbers_a_broken_one_is_not_proven():
    texts = counts(12, np.random.default_rng(0))
    texts[0] *= 0.7
    assert alone(texts).tolist() == [False] + 11 * [True]


@pytest.mark.parametrize(("size", "is_sample"), [(1.0, True), (0.01, True), (1e-5, False)])
def test_a_vector_of_rounding_errors_is_no_sample(size, is_sample):
    """Centred samples add up to one: nearly nothing at all inputs, but with a bias."""
    x = features(10, np.random.default_rng(0))
    x[0] *= size
    live = np.ones(x.shape[1], bool)
    space = Space(1e9 * x, np.ones(x.shape[1]), np.full(10, 1e9), live, np.eye(10))
    assert may_be_sample(space, np.eye(10)[0]) == is_sample


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_only_samples_that_add_up_to_nothing_are_centred(share):
    """As faces less their mean do: what rounding leaves of their sum was once taken for a cone."""
    x = features(10, np.random.default_rng(0))
    x = x - share * x.mean(0)
    space = Space(1e9 * x, np.ones(x.shape[1]), np.full(10, 1e9), np.ones(x.shape[1], bool), np.eye(10))
    assert is_centred(space) == (share == 1)
    assert not has_cone(space) or share < 1


@pytest.mark.parametrize("share", [0, 0.9, 1])
def test_a_column_that_is_the_same_for_all_says_nothing_of_centring(share):
    """Centred samples beside such columns add up to these alone: a corner with many zeros, and no sample."""
    x = features(10, np.random.default_rng(0))
    x = x - share * x.mean(0)
    x[:, ::3] = 0.5
    space = Space(1e9 * x, np.ones(x.shape[1]), np.full(10, 1e9), np.ones(x.shape[1], bool), np.eye(10))
    assert space.varying.sum() == x.shape[1] - len(x[0, ::3])
    assert is_centred(space) == (share == 1)
    assert not has_cone(space) or share < 1


def test_without_a_visible_end_it_does_not_apply():
    with pytest.raises(NotApplicableError, match="no visible end"):
        attack(on_records("features")[0], Cone())


def test_candidates_follow_from_the_seed():
    model, base, _, _ = on_records("counts")
    assert torch.equal(attack(model, Cone(), base).x, found("counts").x)


def test_auto_runs_it():
    model, base, x, _ = on_records("features")
    candidates = attack(model, Auto(), base)
    assert distances(candidates.x[candidates.proven], x).max() < RIGHT
