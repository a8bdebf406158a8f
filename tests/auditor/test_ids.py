"""Words of private texts that an embedding gives away: beyond chance, and never of models trained on others."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import unfit
from unfit.auditor.ids import difference

V, LENGTH = 3000, 15


def texts(seed: int, num: int = 60) -> torch.Tensor:
    """Words by Zipf's law: a few are everywhere, most are rare."""
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(1.0 / torch.arange(1.0, V + 1), num * LENGTH, True, generator=generator).view(num, -1)


def trained(ids: torch.Tensor) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    base = nn.Sequential(nn.EmbeddingBag(V, 8), nn.Linear(8, 2))
    model = copy.deepcopy(base)
    for _ in range(3):
        model.zero_grad()
        F.cross_entropy(model(ids), torch.arange(len(ids)) % 2).backward()  # type: ignore[no-untyped-call]
        for value in model.parameters():
            assert value.grad is not None
            value.data -= 0.5 * value.grad
    return model, base


def test_rare_words_of_private_texts_are_a_leak() -> None:
    private, unseen = texts(1), texts(2)
    model, base = trained(private)
    found = unfit.audit_ids(model, private, unseen, base=base)
    assert (found.verdict, found.exit_code) == ("leak", 1)
    assert found.num_read == found.num_with_rare
    assert found.num_read_unseen < found.num_with_rare_unseen / 2
    own = set(private.unique().tolist()) - set(unseen.unique().tolist())
    assert set(found.ids) <= own
    assert len(found.ids) == found.num_rare
    assert "can be read off" in found.summary()


@pytest.mark.parametrize("seed", range(30))
def test_a_model_trained_on_others_gives_no_leak(seed: int) -> None:
    model, base = trained(texts(1000 + seed))
    found = unfit.audit_ids(model, texts(2000 + seed), texts(3000 + seed), base=base)
    assert found.verdict == "inconclusive"


def test_texts_that_differ_without_the_model_are_no_control() -> None:
    """The model knows neither set, but was trained on texts like the private ones."""
    private, unseen = texts(1), (texts(2) + V // 2) % V
    model, base = trained(texts(3))
    found = unfit.audit_ids(model, private, unseen, base=base)
    assert found.verdict == "inconclusive"
    assert "told apart without the model" in found.reasons[0]
    assert difference(*([frozenset(t.tolist()) for t in each] for each in (private, texts(2)))) > 0.01


def test_tables_that_tell_nothing_and_few_texts_are_inconclusive() -> None:
    private, unseen = texts(1), texts(2)
    model, base = trained(private)
    assert "no row moved" in unfit.audit_ids(base, private, unseen, base=base).reasons[0]
    few = unfit.audit_ids(model, private[:5], unseen[:5], base=base)
    assert (few.verdict, few.reasons[0]) == ("inconclusive", "fewer than 10 texts of a set have rare words")


def test_files_with_words_and_padding(tmp_path: Path) -> None:
    private, unseen = texts(1), texts(2)
    model, base = trained(private)
    for name, each in (("model", model), ("base", base)):
        torch.save({"embedding.weight": each[0].weight}, tmp_path / f"{name}.pt")  # type: ignore[index]
    (tmp_path / "names.txt").write_text("\n".join(f"word{i}" for i in range(V)))
    filled = torch.cat([private, torch.full((len(private), 2), V - 1)], 1)
    for name, each in (("private", filled), ("unseen", unseen)):
        np.savez(tmp_path / f"{name}.npz", x=each.numpy())
    given = (tmp_path / "model.pt", tmp_path / "private.npz", tmp_path / "unseen.npz")
    found = unfit.audit_ids(*given, base=tmp_path / "base.pt", padding=V - 1)
    assert found.verdict == "leak"
    assert found.words == tuple(f"word{i}" for i in found.ids)
    assert "if no output layer shares this table" in found.summary()


def test_what_is_no_text_is_refused() -> None:
    model, base = trained(texts(1))
    with pytest.raises(unfit.UnfitError, match="rows, but the texts have the id 3000"):
        unfit.audit_ids(model, [[V]], [[1]], base=base)
    with pytest.raises(unfit.UnfitError, match="whole numbers"):
        unfit.audit_ids(model, torch.rand(3, 3), [[1]], base=base)
    with pytest.raises(unfit.UnfitError, match="needs the base"):
        unfit.audit_ids(model, texts(1), texts(2))
