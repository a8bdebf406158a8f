"""The examples in docstrings run, with the names that they take for granted."""

from __future__ import annotations

import copy
import doctest
from pathlib import Path

import numpy as np
import pytest
import torch

import unfit
from unfit import Audit

NAMES = [name for name in unfit.__all__ if ">>>" in (getattr(unfit, name).__doc__ or "")]
SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_the_examples_run(
    face_run: Path, face_audit: Audit, face_page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = unfit.read_source("faces")
    members = unfit.draw(source, 40, seed=0)
    others = unfit.draw_unseen(source, members, 40, seed=0)
    target = unfit.load_target(face_run)
    small = unfit.parse_architecture("40", (1, 25, 25), num_outputs=1)
    settings = unfit.FitSettings(flow_time=10.0)
    centred = (members.x - members.mean, members.y)
    fitted = unfit.fit(small, centred, centred, settings)
    model, initial = unfit.Target(small, fitted.weights), unfit.Target(small, fitted.initial)
    x, x_test = members.x - members.mean, others.x - members.mean
    np.savez("train.npz", x=members.x.numpy(), y=members.y.numpy())
    np.savez("test.npz", x=others.x.numpy(), y=others.y.numpy())
    torch.save(model.weights, "model.pt")
    torch.save(initial.weights, "initial.pt")
    (tmp_path / "audit").symlink_to(face_page)
    names = {
        "unfit": unfit,
        "Path": Path,
        "model": model,
        "initial": initial,
        "x": x,
        "y": members.y,
        "x_test": x_test,
        "y_test": others.y,
        "candidates": unfit.attack(model, "weights"),
        "audit": face_audit,
        "global_model": torch.nn.Linear(3, 2),
    }
    bags, texts = (
        torch.nn.Sequential(torch.nn.EmbeddingBag(50, 4), torch.nn.Linear(4, 2)),
        torch.arange(40).view(10, 4),
    )
    tuned = copy.deepcopy(bags)
    with torch.no_grad():
        tuned[0].weight[:20] += 0.1  # the ids of the first five texts
    of_ids = {"model": tuned, "base": bags, "private": texts[:5], "unseen": texts[5:]}
    others_of = {"audit": {"model": target}, "audit_ids": of_ids}  # a model that leaks, and one with a table
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(optionflags=SHOWN)
    order = sorted(
        NAMES, key=lambda name: (name != "attack", name != "fit_run", name)
    )  # they write what others read
    for name in order:
        known = names | others_of.get(name, {})
        for example in finder.find(getattr(unfit, name), name, globs=dict(known)):
            runner.run(example)
    assert len(NAMES) >= 25
    assert runner.summarize(verbose=False).failed == 0
