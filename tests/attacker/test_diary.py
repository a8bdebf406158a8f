"""What embeddings tell: the ids that occurred in training, as words, and what they cannot tell."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import unfit
from unfit.attacker.embeddings import Pair, presence
from unfit.base.errors import NotApplicableError, UsageError
from unfit.base.tables import Table, tables_among, tables_of
from unfit.base.words import Words, read_words, words_beside

V, D = 400, 16


class Reader(nn.Module):
    """Words, their positions, and a recurrent layer behind them."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(V, D, padding_idx=0)
        self.position_embeddings = nn.Embedding(32, D)
        self.inner = nn.GRU(D, D, batch_first=True)
        self.head = nn.Linear(D, V if tied else 2, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.position_embeddings(torch.arange(ids.shape[1]))
        outputs: Tensor = self.head(self.inner(x)[0][:, -1])
        return outputs


def trained(tied: bool = False, frozen: bool = False) -> tuple[Reader, Reader, set[int]]:
    """A model, its base, and the words that occurred."""
    torch.manual_seed(0)
    base = Reader(tied)
    model = copy.deepcopy(base)
    ids = torch.randint(1, V, (20, 9))
    ids[:, 0] = 0  # padding
    y = torch.randint(2, (20,))
    model.words.requires_grad_(not frozen)
    step = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], 1e-3, weight_decay=0.01)
    for _ in range(8):
        step.zero_grad()
        F.cross_entropy(model(ids), y).backward()  # type: ignore[no-untyped-call]
        step.step()
    return model, base, set(ids.unique().tolist()) - {0}


def test_a_model_tells_the_words_that_occurred_and_the_longest_text() -> None:
    model, base, words = trained()
    found = unfit.attack(model, "diary", base=base)
    of_words, of_positions = found.facts["diary"]
    assert set(of_words["ids"]) == words
    assert set(found.x[0].nonzero()[:, 0].tolist()) == words
    assert sorted(of_positions["ids"]) == list(range(9))
    assert "longest text had 9 positions" in of_positions["sentence"]
    assert any("row 0 is padding" in each for each in of_words["limits"])


def test_a_tied_table_tells_nothing() -> None:
    model, base, _ = trained(tied=True)
    told = unfit.attack(model, unfit.Diary(), base=base).facts["diary"][0]
    assert not told["can_tell"]
    assert not told["ids"]
    assert "tied to head.weight" in told["why"]


def test_a_tied_table_of_a_plain_file_tells_nothing(tmp_path: Path) -> None:
    table = torch.randn(V, D)
    (found,) = tables_among({"wte.weight": table, "lm_head.weight": table.clone()})
    assert found.shared == ("lm_head.weight",)
    assert not presence(Pair(found, Table("wte", torch.randn(V, D)))).can_tell


def test_a_frozen_table_tells_nothing() -> None:
    model, base, _ = trained(frozen=True)
    told = unfit.attack(model, "diary", base=base).facts["diary"][0]
    assert (told["can_tell"], told["ids"]) == (False, [])
    assert "no row moved" in told["why"]


def test_rows_that_were_added_are_not_told() -> None:
    model, base, words = trained()
    grown = torch.cat([model.words.weight.detach(), torch.randn(5, D)])
    told = presence(Pair(Table("words", grown), Table("words", base.words.weight.detach())))
    assert set(told.ids.tolist()) == words
    assert any("5 rows are not in the base" in each for each in told.limits)


def test_rows_with_new_places_are_not_told() -> None:
    """A vocabulary that was cut: rows at the beginning keep their places, so some are equal."""
    model, base, _ = trained()
    kept = torch.cat([torch.arange(10), torch.arange(100, V)])
    told = presence(
        Pair(Table("words", model.words.weight.detach()[kept]), Table("words", base.words.weight.detach()))
    )
    assert (told.can_tell, len(told.ids)) == (False, 0)
    assert "new places" in told.why


def test_without_a_base_the_attack_says_what_it_needs() -> None:
    model, _, _ = trained()
    with pytest.raises(NotApplicableError, match="needs the base"):
        unfit.attack(model, "diary")


def test_a_dense_layer_on_counts_is_a_table_too() -> None:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(100, 30), nn.ReLU(), nn.Linear(30, 1))
    model = copy.deepcopy(base)
    x = torch.zeros(20, 100)
    x[:, :40] = torch.randint(0, 2, (20, 40)).float()
    step = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(10):
        step.zero_grad()
        F.mse_loss(model(x)[:, 0], torch.ones(20)).backward()  # type: ignore[no-untyped-call]
        step.step()
    found = unfit.attack(model, "diary", base=base)
    assert set(found.facts["diary"][0]["ids"]) == set(x.any(0).nonzero()[:, 0].tolist())
    model = copy.deepcopy(base)
    model[0].weight.data[:, 1:] += 0.01
    with pytest.raises(NotApplicableError, match="all inputs"):
        unfit.attack(model, "diary", base=base)


class Factors(nn.Module):
    """Matrix factorisation: a user's factors times an item's, and what each adds by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(100, D), nn.Embedding(80, D)
        self.bias = nn.Embedding(80, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return (self.users(users) * self.items(items)).sum(1) + self.bias(items)[:, 0]


def test_a_recommender_tells_its_users_and_items() -> None:
    torch.manual_seed(0)
    base = Factors()
    model = copy.deepcopy(base)
    users, items, rated = torch.randint(60, (90,)), torch.randint(50, (90,)), torch.rand(90)
    step = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(10):
        step.zero_grad()
        F.mse_loss(model(users, items), rated).backward()  # type: ignore[no-untyped-call]
        step.step()
    told = unfit.attack(model, "diary", base=base).facts["diary"]
    true = [set(users.tolist()), set(items.tolist()), set(items.tolist())]
    assert [set(each["ids"]) for each in told] == true
    assert all(any("negative examples" in limit for limit in each["limits"]) for each in told)


# Files, and what the command line says of them -------------------------------------------------------------------


def saved(folder: Path) -> tuple[Path, Path, set[int]]:
    model, base, words = trained()
    torch.save(model.state_dict(), folder / "model.pt")
    torch.save(base.state_dict(), folder / "base.pt")
    return folder / "model.pt", folder / "base.pt", words


def test_the_command_line_prints_words(tmp_path: Path, run) -> None:  # type: ignore[no-untyped-def]
    model, base, words = saved(tmp_path)
    (tmp_path / "names.txt").write_text("\n".join(f"word{i}" for i in range(V)))
    out = tmp_path / "found.safetensors"
    options = ("--method", "diary", "--layer", "words", "--out", out)
    code, printed, error = run("attack", model, "--base", base, *options)
    assert (code, error) == (0, "")
    first = unfit.load_candidates(out).facts["diary"][0]
    assert set(first["words"]) == {f"word{i}" for i in words}
    assert f"{len(words)} of {V} ids occurred" in " ".join(printed.split())
    assert first["words"][0] in printed


def test_preflight_says_how_many_ids_occurred(tmp_path: Path, run) -> None:  # type: ignore[no-untyped-def]
    weights = {"word_embeddings.weight": torch.randn(V, D), "norm.weight": torch.ones(D)}
    torch.save(weights, tmp_path / "base.pt")
    weights["word_embeddings.weight"] = weights["word_embeddings.weight"].clone()
    weights["word_embeddings.weight"][3:10] += 0.1
    torch.save(weights, tmp_path / "model.pt")
    code, printed, _ = run("preflight", tmp_path / "model.pt", "--base", tmp_path / "base.pt")
    assert code == 0
    assert f"7 of {V} ids occurred" in " ".join(printed.split())
    assert run("preflight", tmp_path / "model.pt")[0] == 3


def test_preflight_of_a_module_that_no_other_attack_covers() -> None:
    model, base, words = trained()
    found = unfit.preflight(model, base=base)
    assert found.applies
    assert any(f"{len(words)} of {V} ids" in note for note in found.notes)


def test_an_unknown_table_is_refused() -> None:
    model, _, _ = trained()
    with pytest.raises(UsageError, match="one of: words, position_embeddings"):
        tables_of(model, "nothing")


def test_a_model_that_writes_words_shares_its_table(tmp_path: Path) -> None:
    table = {"wte.weight": torch.randn(V, D)}
    torch.save(table, tmp_path / "model.pt")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"]}))
    from unfit.base.tables import read_tables

    assert read_tables(tmp_path / "model.pt")[0].shared
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertForSequenceClassification"]}))
    assert not read_tables(tmp_path / "model.pt")[0].shared


# Words -----------------------------------------------------------------------------------------------------------


def test_words_are_read_as_tokenizers_write_them(tmp_path: Path) -> None:
    model = {"type": "WordPiece", "vocab": {"[PAD]": 0, "anna": 1, "##bel": 2}}
    full = {"model": model, "added_tokens": [{"id": 3, "content": "<x>"}]}
    contents: list[object] = [full, {"[PAD]": 0, "anna": 1, "##bel": 2, "<x>": 3}]
    contents.append({"model": {"vocab": [["[PAD]", 0.0], ["anna", -1.0], ["##bel", -2], ["<x>", 0]]}})
    for content in contents:
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        assert read_words(tmp_path / "tokenizer.json").names == ("[PAD]", "anna", "##bel", "<x>")
    assert words_beside(tmp_path, 4) is not None
    assert words_beside(tmp_path, 3) is None  # more words than rows: another model's
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": -1}}}')
    with pytest.raises(unfit.UnfitError, match="not a complete list of words"):
        read_words(tmp_path / "tokenizer.json")


def test_pieces_are_joined_only_where_one_word_fits() -> None:
    words = Words(("anna", "##bel", "isa", "isabel", "##la", "clara"))
    assert words.joined([0, 1, 3]) == {}  # annabel or isabelbel: not certain
    assert words.joined([0, 1, 2]) == {1: "annabel"}  # isa + ##bel is one word of the vocabulary
    assert words.joined([0, 1, 2, 4]) == {}  # ##bel may go on: annabella
    assert words.joined([1]) == {}
