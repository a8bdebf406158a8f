"""A pipeline is judged as its last step is with scaled samples: in the units that the model sees."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from unfit import audit
from unfit.auditor.audit import Audit
from unfit.auditor.case import case_of, num_even
from unfit.auditor.signal_check import check_signal
from unfit.base.formats.layers import Affine

COUNTS = (
    "verdict",
    "reasons",
    "num_recovered",
    "num_recovered_unseen",
    "num_good",
    "num_good_unseen",
    "similarity",
)


@cache
def both_ways() -> tuple[Audit, Audit]:
    """Half of breast cancer's records, whose columns have sizes from 0.004 to 900; the other half is unseen."""
    x, y = load_breast_cancer(return_X_y=True, as_frame=True)
    order = np.random.default_rng(1).permutation(len(x))
    own, unseen = (x.iloc[part] for part in np.array_split(order, 2))
    model = make_pipeline(StandardScaler(), MLPClassifier(solver="sgd", random_state=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(own, y[own.index])

    def found(step: object, *sets: object) -> Audit:
        pairs = zip(sets, (own, unseen), strict=True)
        return audit(step, *((each, y[rows.index].to_numpy()) for each, rows in pairs), attack="unmix")

    return found(model, own, unseen), found(model[-1], *(model[0].transform(each) for each in (own, unseen)))


def test_a_pipeline_and_its_last_step_are_judged_alike() -> None:
    pipeline, last = (each.record for each in both_ways())
    assert {name: getattr(pipeline, name) for name in COUNTS} == {name: getattr(last, name) for name in COUNTS}
    assert pipeline.signal_check.p_value == pytest.approx(last.signal_check.p_value, rel=0.01)


def test_a_random_hold_out_is_not_called_seen() -> None:
    assert not [reason for reason in both_ways()[0].record.reasons if "may have seen" in reason]


def test_columns_keep_their_names_behind_a_scaler() -> None:
    assert "mean radius" in (both_ways()[0].record.feature_names or [])


@pytest.mark.parametrize("evens", [True, False])
def test_a_scaler_that_makes_columns_less_alike_is_looked_behind(evens: bool) -> None:
    """The outputs do not follow gradients in such units: only the samples as given can be asked about."""
    random = torch.Generator().manual_seed(0)
    scale = torch.ones(8)
    scale[0] = 1e6
    x = torch.randn(60, 8, generator=random) / (scale if evens else 1)
    torch.manual_seed(0)
    net = nn.Sequential(Affine(scale, torch.zeros(8)), nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 1))
    net[1].weight.data[:, 0] /= 1 if evens else 1e6
    y = torch.arange(30) % 2
    case = case_of(net, (x[:30], y), (x[30:], y))
    assert case.is_evened == evens
    assert check_signal(case, case.layer, 3).asked_function


def test_even_columns_are_counted() -> None:
    x = torch.randn(10_000, 5, generator=torch.Generator().manual_seed(0))
    assert num_even(x) == pytest.approx(5, abs=0.1)
    assert num_even(x * torch.tensor([1e4, 1, 1, 1, 1])) == pytest.approx(1, abs=0.01)
