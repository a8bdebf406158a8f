"""An evaluator for MLflow, found by its entry point: `evaluators=["unfit"]` in `mlflow.models.evaluate`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from unfit.auditor.arrays import Arrays
from unfit.auditor.audit import audit
from unfit.auditor.record import Record
from unfit.auditor.redact import redact
from unfit.auditor.report import write_report
from unfit.auditor.report.public import leaked_share
from unfit.base.errors import UnfitError, needs
from unfit.base.modules import is_sklearn
from unfit.sklearn import numbered

try:
    from mlflow import MlflowClient
    from mlflow.models import EvaluationResult
    from mlflow.models.evaluation import ModelEvaluator
except ImportError as error:
    raise needs("MLflow", "mlflow", "the evaluator") from error

COUNTS = ("num_samples", "num_unseen", "num_exact", "num_recognisable", "num_recovered")


class LeakEvaluator(ModelEvaluator):
    """Audits a model with the data that MLflow evaluates it on, which it never saw, as the control.

    Its configuration has `private`, what the model was trained on, and any other arguments of `unfit.audit`.
    The run gets counts as metrics, the verdict as a tag, and the redacted audit as artifacts.
    """

    @classmethod
    def can_evaluate(cls, *, model_type: str, evaluator_config: dict[str, Any] | None, **_: Any) -> bool:
        """Only where it is asked to, since MLflow tries every evaluator that is installed."""
        return "private" in (evaluator_config or {})

    def evaluate(
        self, *, dataset: Any, run_id: str, evaluator_config: dict[str, Any], model: Any = None, **_: Any
    ) -> EvaluationResult:
        options, trained = dict(evaluator_config), _trained(model)
        private = _as_trained(trained, options.pop("private"))
        unseen = _as_trained(trained, (dataset.features_data, dataset.labels_data))
        found = redact(audit(trained, private, unseen, **{"progress": False, **options}))
        metrics, client = measured(found.record), MlflowClient()
        for name, value in metrics.items():
            client.log_metric(run_id, name, value)
        client.set_tag(run_id, "unfit.verdict", found.verdict)
        with tempfile.TemporaryDirectory(prefix="unfit-") as folder:
            found.save(Path(folder))
            write_report(found.record, found.arrays, Path(folder))
            client.log_artifacts(run_id, folder, "unfit")
        return EvaluationResult(metrics=metrics, artifacts={}, run_id=run_id)  # type: ignore[no-untyped-call]


def measured(record: Record) -> dict[str, float]:
    """Counts as metrics; an inconclusive audit has no share, so no threshold on it is met."""
    metrics: dict[str, float] = {f"unfit/{name}": getattr(record, name) for name in COUNTS}
    share = leaked_share(record)
    return metrics if share is None else metrics | {"unfit/leaked_share": share}


def _trained(model: Any) -> Any:
    if not hasattr(model, "get_raw_model"):
        raise UnfitError(
            "give MLflow a logged model of scikit-learn or PyTorch: there are no weights in a function"
        )
    return model.get_raw_model()


def _as_trained(trained: Any, given: Arrays) -> Arrays:
    """scikit-learn's labels may be anything, even words."""
    if is_sklearn(trained) and isinstance(given, tuple):
        return given[0], numbered(trained, given[1])
    return given
