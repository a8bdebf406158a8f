"""Weight decay shrinks the weights that training started from by one number.

A step with decay multiplies all weights by 1 − lr · decay before it adds a sum over samples, momentum or not. So
W = c · W₀ + Σ_i α_i x_iᵀ holds exactly, with one c for the whole layer. The sum has the rank of the training set:
on the other directions W is c · W₀ and nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor

Layer = tuple[Tensor, Tensor | None]  # weight and bias

MOST_SIDE = 1000  # neurons or inputs that are looked at, whichever are fewer: more would cost seconds …
MOST_OTHERS = 10_000  # … and of the other kind; more say the same
QUIET = 0.1  # of all directions: those with least in them hold no sample, unless there are very many
ROUNDS = 6  # of the fit at most; it converges in three or four
CONVERGED = 1e-8
EXACT = 1e-5  # of the initial weights: rounding alone leaves less
GAIN = 2.0  # times less of the initial weights must be left with a factor than without one for it to be believed


def read_decay(end: Layer, initial: Layer, usual: float = 1.0) -> tuple[float, float]:
    """What is left of the initial weight, and of its bias; the usual factor unless another explains far more.

    Some decay weights alone, so the bias has its own factor: that of the weight or 1, whichever fits.
    """
    weight, base = _some(end[0]), _some(initial[0])
    quiet = _quiet_space(weight - usual * base)
    unchanged = _left(quiet, weight - usual * base)
    if unchanged <= EXACT * float(base.norm()):
        return usual, usual
    c = _converged(_fitted(quiet, weight, base), weight, base)
    rest = weight - c * base
    if GAIN * _left(_quiet_space(rest), rest) > unchanged:
        return usual, usual
    return c, _bias_factor(c, usual, end, initial)


def _converged(c: float, weight: Tensor, base: Tensor) -> float:
    """The factor that leaves least where no sample is, whose directions depend on the factor.

    Each turn takes off a fixed share of its error, so three values in a row say where they lead (Aitken).
    """
    for _ in range(ROUNDS):
        once = _fitted(_quiet_space(weight - c * base), weight, base)
        twice = _fitted(_quiet_space(weight - once * base), weight, base)
        bend = (twice - once) - (once - c)
        if abs(twice - once) < CONVERGED or bend == 0:
            return twice
        c = twice - (twice - once) ** 2 / bend
    return c


def _some(weight: Tensor) -> Tensor:
    """Neurons or inputs, whichever are fewer, evenly spread, as rows: float64."""
    rows = weight if weight.shape[0] <= weight.shape[1] else weight.T
    return _spread(rows).double()


def _spread(rows: Tensor) -> Tensor:
    """Evenly spread rows and columns."""
    some = rows[:: -(-len(rows) // MOST_SIDE)]
    return some if some.ndim == 1 else some[:, :: -(-some.shape[1] // MOST_OTHERS)]


def _quiet_space(rest: Tensor) -> Tensor:
    """The directions between rows in which least is left, where no sample is: eigenvectors of R Rᵀ, as columns."""
    return torch.linalg.eigh(rest @ rest.T)[1][:, : max(1, int(QUIET * len(rest)))]


def _fitted(quiet: Tensor, weight: Tensor, base: Tensor) -> float:
    """The factor of the base that explains the weight best where no sample is."""
    a, b = quiet.T @ weight, quiet.T @ base
    return float((a * b).sum() / b.square().sum().clamp_min(1e-300))


def _left(quiet: Tensor, rest: Tensor) -> float:
    return float((quiet.T @ rest).norm())


def _bias_factor(c: float, usual: float, end: Layer, initial: Layer) -> float:
    """c, or the usual one if only weights decayed: the change of the bias is in the space of the weight's."""
    if end[1] is None or initial[1] is None:
        return c
    quiet = _quiet_space(_spread(end[0]).double() - c * _spread(initial[0]).double())
    biases = _spread(end[1]).double(), _spread(initial[1]).double()
    return min((c, usual), key=lambda factor: _left(quiet, (biases[0] - factor * biases[1])[:, None]))
