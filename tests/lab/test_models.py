"""A small part of benchmarks/models.py: Python and the command line give the same answer for the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import models as benchmark


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(benchmark, "SEEDS", 1 << 10)  # the right ones are small
    return benchmark


def tuned_normed(models: Any) -> Any:
    """LayerNorm, of which the file tells by its tensors, fine-tuned."""
    layers = (nn.Flatten(), nn.Linear(625, 100), nn.LayerNorm(100), nn.ReLU(), nn.Linear(100, 1))
    base, private, unseen = models.pretrained(lambda: nn.Sequential(*layers), models.images("faces", 40, Path()))
    net = models.train(models.copy.deepcopy(base), private, 100)
    save, save_base = models.safetensors(net), models.state_dict(base, "base.pt")
    return models.Specimen(net, private, unseen, save, base=base, save_base=save_base)


def regression(models: Any) -> Any:
    (x, _), (x_unseen, _) = models.images("faces", 20, Path())
    y, y_unseen = (each.flatten(1).mean(1) * 10 for each in (x, x_unseen))
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(625, 100), nn.ReLU(), nn.Linear(100, 1))
    models.train(net, (x, y), 200, lr=0.01)
    return models.Specimen(net, (x, y), (x_unseen, y_unseen), models.onnx_of(net, x))


@pytest.mark.parametrize(
    ("make", "verdict"),
    [
        (tuned_normed, "leak"),
        (regression, "leak"),
        (lambda models: models.MODELS["sklearn_digits"].make(Path()), "inconclusive"),
        (lambda models: models.MODELS["sklearn_onnx"].make(Path()), "inconclusive"),
    ],
    ids=["LayerNorm", "regression", "scikit-learn", "scikit-learn in ONNX"],
)
def test_both_give_the_same_answer(make: Callable[[Any], Any], verdict: str, models: Any) -> None:
    found = models.measure(make(models))
    assert found["python"]["verdict"] == verdict, found["python"]["words"]
    assert found["agree"], found
    own, other = found["preflight"], found["preflight_command"]
    assert (own["auto"], own["rank"]) == (other["attacks"][0]["why"], other["rank"])
