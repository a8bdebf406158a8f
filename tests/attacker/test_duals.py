"""What neurons say of corners: samples agree, exchanged ones are accused, parts of samples do not agree."""

import numpy as np
import pytest

from unfit.attacker.duals import check_gates, find_column, least

N, WIDTH, INPUTS = 30, 200, 90
NONE = np.zeros((0, N))


def layer(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Orthonormal neurons (w, n), the samples' coordinates (n, n), their inputs, and the layer that gates them."""
    random = np.random.default_rng(seed)
    x = random.poisson(0.4, size=(N, INPUTS)).astype(float)
    x[1] = x[0]
    x[1, [3, 5]] = x[0, [3, 5]] + 1  # two that are alike
    weight = random.normal(size=(WIDTH, INPUTS)) / INPUTS**0.5
    on = weight @ x.T > 0
    columns = on * random.normal(size=(WIDTH, 1)) * random.uniform(0.5, 2, size=N)  # α, (w, n)
    neurons, mixing = np.linalg.qr(columns)
    return neurons, np.linalg.inv(mixing), x, weight  # the layer's change is columns · x = neurons · (mixing · x)


def coordinates(x: np.ndarray, samples: np.ndarray, a: np.ndarray) -> np.ndarray:
    return np.linalg.lstsq(samples.T, x.T, rcond=None)[0].T @ a


def heard(corners: np.ndarray, seed: int = 0):
    """Of corners, given as inputs."""
    neurons, a, x, weight = layer(seed)
    return check_gates(neurons, weight @ corners.T < 0, coordinates(corners, x, a), NONE)


def test_the_column_of_a_sample_is_found_though_another_is_wrong():
    neurons, a, x, weight = layer()
    column = find_column(neurons, weight @ x[0] < 0, np.vstack([a[2] + a[0] - a[1], a[1], a[3:]]))
    assert np.abs(a[1:] @ column).max() < 1e-6 * abs(a[0] @ column)
    assert np.abs(neurons @ column)[weight @ x[0] < 0].max() < 1e-6


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("missing", [0, 5])
def test_samples_agree_and_are_not_accused(seed, missing):
    found = heard(layer(seed)[2][missing:], seed)
    assert found.agrees.all()
    assert not found.contradicted.any()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("missing", [0, 5])
def test_what_is_exchanged_by_two_that_are_alike_is_accused(seed, missing):
    """Sample 2 is replaced by 2 + 0 − 1; some others are not known."""
    x = layer(seed)[2]
    corners = np.vstack([x[2] + x[0] - x[1], x[:2], x[3 + missing :]])
    found = heard(corners, seed)
    assert found.contradicted.tolist() == [True] + [False] * (len(corners) - 1)


def test_a_part_of_several_samples_has_no_column_of_its_own():
    x = layer()[2]
    part = np.where(np.arange(INPUTS) < 10, x[4], 0)
    part = part @ np.linalg.pinv(x) @ x  # as far as it lies in the span
    assert not heard(np.vstack([part, x[5:]])).agrees[0]


def test_where_hardly_a_neuron_is_off_nothing_agrees():
    neurons, a, x, weight = layer()
    off = weight @ x.T < 0
    off[np.cumsum(off, axis=0) > 9] = False
    assert not check_gates(neurons, off, a, NONE).agrees.any()


def test_no_corners_are_heard_too():
    neurons, a, _, _ = layer()
    found = check_gates(neurons, np.zeros((WIDTH, 0), bool), a[:0], NONE)
    assert found.agrees.shape == found.contradicted.shape == (0,)


def test_columns_that_are_exact_are_known_as_such_and_taken_as_they_are():
    neurons, a, x, weight = layer()
    off = weight @ x.T < 0
    first = check_gates(neurons, off[:, :20], a[:20], NONE)
    assert first.clean.all()
    assert (
        np.abs(first.columns @ a.T - np.diag((first.columns @ a[:20].T).diagonal())[:, :N] @ np.eye(20, N)).max()
        < 1e-9
    )
    again = check_gates(neurons, off, a, first.columns)
    assert again.agrees.all()
    assert np.array_equal(again.columns[:20], first.columns)


def test_a_column_that_is_not_dual_to_what_is_not_known_yet_is_not_called_exact():
    """Gates that training turned: a fifth of the neurons that look off were on for a while."""
    neurons, a, x, weight = layer()
    off = weight @ x.T < 0
    off |= np.random.default_rng(1).random(off.shape) < 0.2
    assert not check_gates(neurons, off[:, :15], a[:15], NONE).clean.any()


@pytest.mark.parametrize("smallest", [1e-3, 0.0, -1e-9])
def test_the_least_vector_is_found_also_where_rounding_left_a_negative_eigenvalue(smallest):
    random = np.random.default_rng(0)
    basis = np.linalg.qr(random.normal(size=(20, 20)))[0]
    squares = basis * np.array([smallest, *random.uniform(1, 2, size=19)]) @ basis.T
    near = basis[:, 0] + 0.3 * random.normal(size=20)
    assert abs(least(squares, near) @ basis[:, 0]) > 1 - 1e-9


def test_neurons_that_never_fired_tell_of_no_sample():
    """Every vector vanishes on them, so a vector that is no sample would seem to be borne out."""
    neurons, _, _, _ = layer()
    dead = np.vstack([neurons, np.zeros((2 * WIDTH, N))])  # still orthonormal
    corner = np.random.default_rng(1).normal(size=(1, N))  # of no sample
    off = np.arange(len(dead))[:, None] >= WIDTH - 20  # all dead neurons, and a few others
    assert not check_gates(dead, off, corner, NONE).agrees.any()
