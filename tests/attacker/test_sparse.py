"""The certificate of a sparse vector: true columns of planted spaces have it, and nothing else does."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from unfit.attacker.sparse import (
    CHANCE,
    Certificate,
    certify,
    falling,
    least_sum,
    least_zeros,
    level,
    log_chance,
    null_near,
    reweighted,
    sharper,
    singular,
)

WIDTH = 1e-4
N, W = 20, 200


def planted(seed: int = 0, share: float = 0.4) -> tuple[Tensor, Tensor]:
    """Columns (n, w) with zeros on two in five places, and an orthonormal basis of their span."""
    random = torch.Generator().manual_seed(seed)
    columns = torch.randn(N, W, generator=random, dtype=torch.float64)
    columns = level(columns.masked_fill(torch.rand(N, W, generator=random) < share, 0))
    return columns, torch.linalg.qr(columns.T)[0]


def certificate(space: Tensor, column: Tensor) -> Certificate:
    return certify(space, level(column[None])[0].abs() < WIDTH, WIDTH)


def vertex(space: Tensor, places: Tensor) -> Tensor:
    """The vector of the space that vanishes on these n − 1 places."""
    return space @ torch.linalg.svd(space[places])[2][-1]


@pytest.mark.parametrize("seed", range(3))
def test_true_columns_are_certain(seed):
    columns, space = planted(seed)
    found = [certificate(space, column) for column in columns]
    assert all(each.holds for each in found)
    assert min(each.gap for each in found) > 1e5
    assert min(each.support for each in found) > 0.15
    assert max(each.log_chance for each in found) < -100


@pytest.mark.parametrize("seed", range(3))
def test_mixtures_vertices_and_random_vectors_are_not(seed):
    columns, space = planted(seed)
    random = torch.Generator().manual_seed(seed)
    for i in range(1, N):
        place = int((columns[i].abs() * columns[0].abs()).argmax())
        mixture = (
            columns[i] - columns[i, place] / columns[0, place] * columns[0]
        )  # one more zero, by its own demand
        assert not certificate(space, mixture).holds
        places = torch.randperm(W, generator=random)[: N - 1]
        assert not certificate(space, vertex(space, places)).holds
        assert not certificate(space, space @ torch.randn(N, generator=random, dtype=torch.float64)).holds


def test_what_is_nearly_a_column_is_none_and_its_zeros_lead_to_the_column():
    columns, space = planted()
    near = columns[1:] + 1e-3 * columns[0]
    found = [certificate(space, column) for column in near]
    led = torch.stack([space @ each.coordinates for each in found if each.holds])
    cosines = F.cosine_similarity(led[:, None], columns[None], dim=2).abs().amax(1)
    assert 1 - cosines.min() < 1e-12
    assert (1 - F.cosine_similarity(near, columns[1:])).min() > 1e-8
    assert not certificate(space, columns[1] + 0.1 * columns[0]).holds


def test_a_place_where_nothing_is_large_is_no_zero():
    columns, space = planted()
    dead = torch.cat([space, torch.zeros(30, N)])
    zero = torch.cat([columns[0] == 0, torch.ones(30, dtype=torch.bool)])
    assert certify(dead, zero, WIDTH).num_zeros == certify(space, columns[0] == 0, WIDTH).num_zeros
    assert least_zeros(dead, WIDTH) >= least_zeros(space, WIDTH) + 30


def test_a_zero_that_nothing_else_demands_has_no_support():
    columns, space = planted()
    shared = (columns[:2] == 0).all(0)
    place = int((columns[1] * columns[0]).abs().argmax())
    mixture = columns[1] - columns[1, place] / columns[0, place] * columns[0]
    zero = level(mixture[None])[0].abs() < WIDTH
    assert zero.sum() == shared.sum() + 1 > N
    assert certify(space, zero, WIDTH).support == pytest.approx(0, abs=1e-9)


def test_zeros_that_several_vectors_share_leave_no_gap():
    columns, space = planted()
    shared = (columns[:2] == 0).all(0)
    assert certify(space, shared, WIDTH).gap < 10
    assert certify(space, columns[0] == 0, WIDTH).gap > 1e5


def test_its_numbers_are_those_of_the_singular_value_decomposition():
    columns, space = planted()
    rows = space[columns[3].abs() < WIDTH]
    left, values, _ = torch.linalg.svd(rows, full_matrices=False)
    found = certificate(space, columns[3] + 1e-6 * columns[4])
    noisy = space[(columns[3] + 1e-6 * columns[4]).abs() < WIDTH]
    assert found.num_zeros == len(rows) == len(noisy)
    least = float((1 - left[:, :-1].square().sum(1)).min())
    assert found.support == pytest.approx(least * len(rows) / (len(rows) - N + 1))
    assert singular(rows)[0].flip(0)[:-1].numpy() == pytest.approx(values[:-1].numpy())


def test_fewer_zeros_than_dimensions_are_no_certificate():
    columns, space = planted(share=0.05)
    found = certificate(space, columns[0])
    assert found.num_zeros < N
    assert not found.holds


def test_one_dimension_holds_one_vector():
    columns, _ = planted()
    assert certificate(F.normalize(columns[:1].T, dim=0), columns[0]).holds


def test_chance_is_bounded_for_the_whole_space():
    """Of two dimensions all vertices can be tried: the best of a space is no less likely than the bound says."""
    random = torch.Generator().manual_seed(0)
    least = []
    for _ in range(200):
        space = torch.linalg.qr(torch.randn(30, 2, generator=random, dtype=torch.float64))[0]
        vertices = level(torch.stack([vertex(space, torch.tensor([i])) for i in range(30)]))
        found = [certify(space, each.abs() < 0.1, 0) for each in vertices]
        least.append(min(each.log_chance for each in found if each.num_zeros >= 2))
    assert sum(value < math.log(0.1) for value in least) <= 0.1 * len(least)
    assert min(least) < math.log(10)  # and it is not so loose that nothing could be certain


def test_the_tail_of_the_last_singular_value_is_edelmans():
    """Of large square matrices P(σ √n < t) is 1 − exp(−t²/2 − t) (Edelman 1988), which is t for small t."""
    n, t = 50, 0.01
    sigma = t / math.sqrt(n)
    bound = log_chance(torch.full((n,), sigma / math.sqrt(n), dtype=torch.float64), n, n)
    assert math.exp(float(bound)) == pytest.approx(t, rel=0.01)


def test_more_zeros_are_needed_where_zeros_are_wide():
    _, space = planted()
    assert N < least_zeros(space, 1e-6) < least_zeros(space, 1e-4) < least_zeros(space, 1e-2) <= W
    assert CHANCE < 1e-6


# The search ------------------------------------------------------------------------------------------------


def test_reweighting_finds_the_column_near_a_guess():
    columns, space = planted()
    random = torch.Generator().manual_seed(1)
    guess = level((columns + 0.4 * torch.randn(columns.shape, generator=random).double()) @ space @ space.T)
    found = reweighted(space, torch.ones_like(guess), guess, falling(0.1, 1e-4, 40))
    assert F.cosine_similarity(guess, columns).max() < 0.999
    assert (F.cosine_similarity(found, columns) > 0.99999).sum() >= 18


def test_sharpening_goes_down_to_rounding():
    columns, space = planted()
    near = level((columns[0] + 0.003 * columns[1:].sum(0))[None])[0]
    for width in falling(0.03, 1e-6, 30):
        near = sharper(space, near, width)
    assert 1 - F.cosine_similarity(near, columns[0], dim=0).abs() < 1e-12


def test_inverse_iteration_gives_the_least_eigenvector():
    columns, space = planted()
    rows = space[columns[0] == 0]
    squares = rows.T @ rows + 1e-14 * torch.eye(N)
    found = null_near(squares, columns[0] @ space + 0.1)
    assert (rows @ found).norm() < 1e-6


def test_a_linear_program_finds_it_too():
    columns, space = planted()
    c = least_sum(space[columns[0] == 0], columns[0] @ space)
    assert c is not None
    assert F.cosine_similarity(space @ c, columns[0], dim=0).abs() > 1 - 1e-9
