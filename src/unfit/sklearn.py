"""A scorer for scikit-learn: how much of what an estimator was fitted on is recovered from its weights."""

from __future__ import annotations

import inspect
import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unfit.auditor.audit import audit
from unfit.auditor.report.public import leaked_share
from unfit.base.errors import UsageError


def leak_score(x: Any, y: Any, **options: Any) -> LeakScorer:
    """Make a scorer that holds all samples, for `scoring=` of `cross_validate`, `GridSearchCV` and their like.

    These hand a scorer the samples they held out, which the estimator never saw: the control. The others are what
    it was fitted on. The score is minus the share of those that are recovered, of the grade that the policy
    counts, plus the share of the control that is: 0 is best, −1 is worst. It is NaN, with a warning, where the
    audit is inconclusive. `options` are those of `unfit.audit`, such as `attack`, `policy` and `input_shape`.
    """
    inspect.signature(audit).bind(None, None, None, **options)  # a search would make a misspelt one a NaN
    return LeakScorer(_rows(x), np.asarray(y), options)


@dataclass(frozen=True, eq=False)
class LeakScorer:
    """What `leak_score` makes; `scorer(estimator, x, y)` with samples that the estimator was not fitted on."""

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    options: dict[str, Any]

    def __call__(self, estimator: Any, x: Any, y: Any) -> float:
        held_out = {row.tobytes() for row in _rows(x)}
        fitted_on = np.array([row.tobytes() not in held_out for row in self.x], dtype=bool)
        check_fitted_on(estimator, int(fitted_on.sum()))
        private = self.x[fitted_on], numbered(estimator, self.y[fitted_on])
        found = audit(
            estimator, private, (_rows(x), numbered(estimator, y)), **{"progress": False, **self.options}
        )
        share = leaked_share(found.record)
        if share is None:
            warnings.warn(f"no leak score: {'; '.join(found.record.reasons)}", stacklevel=2)
            return math.nan
        return 0.0 - share


def numbered(estimator: Any, y: Any) -> npt.NDArray[Any]:
    """Labels as the outputs of the estimator have them, 0 to k−1; a regressor's values stay as they are."""
    classes = getattr(estimator, "classes_", None)
    return np.asarray(y) if classes is None else np.searchsorted(classes, np.asarray(y))


def check_fitted_on(estimator: Any, num: int) -> None:
    """Refuse a scorer that is asked about other samples than those the estimator was fitted on.

    Samples that it never saw are not recovered, so the score would be 0, the best there is. Perceptrons count the
    samples they see (`t_`, in `n_iter_` epochs); those held back for early stopping are not among them.
    """
    last = getattr(estimator, "steps", [("", estimator)])[-1][1]
    seen = getattr(last, "t_", 0) / max(getattr(last, "n_iter_", 1), 1)
    most = num * (1 - last.validation_fraction) if getattr(last, "early_stopping", False) else num
    if seen and not (math.floor(most) <= seen <= num):
        raise UsageError(
            f"the estimator was fitted on {seen:g} samples, but {num} of those in `leak_score` were not held out; "
            "give it all samples of the search, split them, as with KFold, without return_train_score"
        )


def _rows(x: Any) -> npt.NDArray[np.float64]:
    dense = x.toarray() if hasattr(x, "toarray") else x  # a sparse matrix
    return np.ascontiguousarray(dense, dtype=np.float64)
