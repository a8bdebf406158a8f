"""A bag of embeddings gives whole texts back, as counts of words."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import unfit
from unfit.base.errors import NotApplicableError

V, D, N, LENGTH = 300, 40, 15, 6


def trained(mode: str, usual: bool = False) -> tuple[nn.Module, nn.Module, Tensor]:
    """A classifier of texts, its base, and the counts of its texts."""
    torch.manual_seed(0)
    base = nn.Sequential(nn.EmbeddingBag(V, D, mode=mode), nn.Linear(D, 60), nn.ReLU(), nn.Linear(60, 4))
    if not usual:
        base[0].weight.data.uniform_(-1 / D, 1 / D)  # as fastText begins; PyTorch's own have variance 1
    model = copy.deepcopy(base)
    often = 1 / torch.arange(1.0, V + 1)
    ids, y = torch.multinomial(often.expand(N, V), LENGTH), torch.randint(4, (N,))
    step = torch.optim.SGD(model.parameters(), 0.01 if usual else 0.5 if mode == "mean" else 0.1)
    for _ in range(200):
        step.zero_grad()
        F.cross_entropy(model(ids), y).backward()  # type: ignore[no-untyped-call]
        step.step()
    return model, base, torch.zeros(N, V).scatter_add_(1, ids, torch.ones(N, LENGTH))


@pytest.mark.parametrize(("mode", "usual"), [("mean", False), ("sum", False), ("mean", True)])
def test_a_bag_gives_whole_texts(mode: str, usual: bool) -> None:
    model, base, counts = trained(mode, usual)
    found = unfit.attack(model, "cone", base=base)
    assert found.x.shape[1] == V
    scaled = found.x / found.x.sum(1, keepdim=True) * LENGTH
    right = [(scaled - text).abs().max(1).values.min() < 0.01 for text in counts]
    assert sum(right) == N
    assert len(found) == N
    assert found.facts["table"] == "0"
    assert (found.label == -1).all()


def test_what_gives_no_text_says_why() -> None:
    model, base, _ = trained("mean")
    with pytest.raises(NotApplicableError, match="no row moved"):
        unfit.attack(base, "cone", base=base)
    plain = nn.Sequential(nn.Embedding(V, D), nn.Flatten(), nn.Linear(D, 2))
    with pytest.raises(NotApplicableError, match="one bag of embeddings"):
        unfit.attack(plain, "cone", base=copy.deepcopy(plain))
    del model
