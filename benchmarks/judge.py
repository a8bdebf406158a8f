"""Fits the numbers of `reliability` (attacker/consensus.py): python benchmarks/judge.py FOLDER [--runs RUNS]

Which clusters of components are single training samples? A logistic regression on four numbers that an attacker sees, fitted on
some seeds and tested on others. It prints the coefficients, and a table of both formulas. FOLDER holds
cifar-10-batches-bin. Half an hour on one core.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from cases import Case, run_of, source_of
from reliability import TRUE, closest
from unfit import AuditRequest, FitSettings, Unmix, draw_unseen, fit_run, load_target
from unfit.attacker.attacked_layer import read_layer
from unfit.attacker.attacks.unmix import in_one_sign
from unfit.attacker.consensus import agreed
from unfit.attacker.edges import tellable
from unfit.auditor.case import private_set
from wider import grey

CASES = (
    Case("CIFAR-10 n=50", "bin50", 50),
    Case("CIFAR-10 n=100", "bin100", 100),
    Case("grey CIFAR-10 n=100", "grey100", 100, data="grey"),
    Case("faces n=40", "faces40", 40, data="faces"),
)
FITTED, TESTED = (10, 11, 12, 13, 14, 15), (3, 4, 5)
EVIDENCE = ("share", "cohesion", "flatness", "roughness")
BEFORE = (-1.8, 5.35)  # of the formula that knew the share alone


def main(folder: Path, runs: Path) -> None:
    torch.set_num_threads(1)
    (x, true, _, _), (x_test, is_true, unseen, kind) = (
        gathered(seeds, folder, runs) for seeds in (FITTED, TESTED)
    )
    model = LogisticRegression(C=np.inf, max_iter=10_000).fit(x, true)
    print(dict(zip(("at zero", *EVIDENCE), [*model.intercept_, *model.coef_[0]], strict=True)))
    probability = model.predict_proba(x_test)[:, 1]
    before = 1 / (1 + np.exp(-(BEFORE[0] + BEFORE[1] * x_test[:, 0])))
    for name, p in (("share alone", before), ("all four", probability)):
        print(name, f"AUC {roc_auc_score(is_true, p):.3f}")
        for where in (*dict.fromkeys(kind), None):
            sure = (p > 0.95) & (np.isin(kind, where or kind))
            print(
                f"  {where or 'all'}: {sure.sum()} above 0.95, {is_true[sure].mean():.3f} true, {unseen[sure].mean():.3f} like an unseen one"
            )


def gathered(seeds: tuple[int, ...], folder: Path, runs: Path) -> tuple[np.ndarray, ...]:
    """The evidence of all clusters, whether each is true, whether it is like an unseen sample, and its case."""
    found = [(case, evidence(case, seed, folder, runs)) for case in CASES for seed in seeds]
    columns = zip(*(each for _, each in found), strict=True)
    return *(np.concatenate(column) for column in columns), np.array([c.name for c, e in found for _ in e[0]])


def evidence(case: Case, seed: int, folder: Path, runs: Path) -> tuple[np.ndarray, ...]:
    run = trained(case, seed, folder, runs)
    layer = read_layer(load_target(run))
    assert layer.span.rank < tellable(layer.shape) / 2  # beyond, the formula has a term of its own
    clusters = agreed([in_one_sign(part) for part in Unmix(seed=seed).components(layer)], layer)
    assert clusters is not None
    request = AuditRequest(target=str(run), data=source_of(run), seed=seed)
    source, private = private_set(request)
    maps = layer.inputs(clusters.maps)
    true, unseen = (
        (closest(maps, samples, private.mean)[0].abs() > TRUE).numpy()
        for samples in (private, draw_unseen(source, private, len(private), seed))
    )
    return torch.stack([getattr(clusters, name) for name in EVIDENCE], 1).numpy(), true, unseen


def trained(case: Case, seed: int, folder: Path, runs: Path) -> Path:
    run = runs / f"{case.slug}_{seed}"
    if case.data != "grey" or (run / "fit.json").is_file():
        return run_of(case, seed, folder, runs)
    run.mkdir(parents=True, exist_ok=True)
    fit_run(grey(folder, runs), case.n, run, FitSettings(seed=seed), case.arch, case.biases)
    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        main(given.folder, given.runs or Path(scratch))
