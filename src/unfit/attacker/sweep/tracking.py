"""The trials of a sweep as runs in MLflow, for those who use it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from unfit.attacker.sweep.cluster import REASON_LENGTH, check_reachable
from unfit.attacker.sweep.trials import Ended, Plan
from unfit.base.errors import UnfitError, needs

EXPERIMENT = "unfit"
MOST_RUNS = 50_000  # that MLflow lists at once
STATUS = {"complete": "FINISHED", "pruned": "KILLED", "diverged": "FAILED", "failed": "FAILED"}


def log_to_mlflow(uri: str, plan: Plan, ended: Iterable[Ended]) -> Callable[[Ended], None]:
    """Log the trials that ended and are not there yet; return the function that logs one more."""
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise needs("MLflow", "mlflow", "`mlflow`") from error
    if uri.startswith(("http://", "https://")):
        check_reachable(uri, "MLflow server")
    sweep = hashlib.sha256(plan.model_dump_json().encode()).hexdigest()
    tags = {"target": plan.target.sha256, "method": plan.attack.method, "sampler": plan.sampler, "sweep": sweep}

    def log(trial: Ended) -> None:
        about = tags | {"number": str(trial.number), "state": trial.state, "node": trial.node}
        try:
            run = client.create_run(experiment, run_name=f"{trial.number:05}", tags=about).info.run_id
            for name, value in trial.settings.items():
                client.log_param(run, name, value)
            for name in ("objective", "num_candidates", "seconds"):
                if (number := getattr(trial, name)) is not None:
                    client.log_metric(run, name, number)
            client.set_terminated(run, STATUS[trial.state])
        except MlflowException as error:
            raise _refused(uri, error) from error

    try:
        client = MlflowClient(tracking_uri=uri)
        known = client.get_experiment_by_name(EXPERIMENT)
        experiment = known.experiment_id if known else client.create_experiment(EXPERIMENT)
        runs = client.search_runs([experiment], f"tags.sweep = '{sweep}'", max_results=MOST_RUNS)
    except MlflowException as error:
        raise _refused(uri, error) from error
    there = {run.data.tags.get("number") for run in runs}
    for trial in ended:
        if str(trial.number) not in there:
            log(trial)
    return log


def _refused(uri: str, error: Exception) -> UnfitError:
    return UnfitError(
        f"MLflow at {uri}: {str(error).splitlines()[0][:REASON_LENGTH]}; the sweep's folder holds everything"
    )
