"""Settings that TPE proposes from the losses of the trials so far. It needs Optuna, which is an extra."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from unfit.attacker.method import Parameter, Values
from unfit.attacker.sweep.trials import Ended, Plan
from unfit.base.errors import needs

NUM_SEEDS = 2**32  # that NumPy's generators take


def propose(plan: Plan, number: int, ended: Iterable[Ended]) -> Values:
    """The settings of a trial. They follow from the arguments alone, so that a restart changes nothing."""
    optuna = load_optuna()
    sampler = optuna.samplers.TPESampler(seed=plan.trial_seed(number) % NUM_SEEDS)
    study = optuna.create_study(sampler=sampler)
    space = {name: _distribution(optuna, parameter) for name, parameter in plan.parameters.items()}
    for trial in ended:
        if trial.state == "complete" and trial.objective is not None:
            state, value = optuna.trial.TrialState.COMPLETE, trial.objective
        elif trial.state in ("pruned", "diverged"):
            state, value = optuna.trial.TrialState.PRUNED, None
        else:  # it says nothing about its settings
            continue
        study.add_trial(optuna.create_trial(state=state, value=value, params=trial.settings, distributions=space))
    return study.ask(space).params


def _distribution(optuna: Any, parameter: Parameter) -> Any:
    if parameter.choices is not None:
        return optuna.distributions.CategoricalDistribution(parameter.choices)
    return optuna.distributions.FloatDistribution(*parameter.bounds, log=parameter.log)


def load_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise needs("Optuna", "tpe", "the `sampler` tpe") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would announce every study
    return optuna
