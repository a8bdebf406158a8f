"""A small BERT in plain PyTorch that takes the weights of a Hugging Face file, and its WordPiece tokenizer."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

HEADS, EPS = 12, 1e-12
WORD = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")


class Block(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.attention = nn.ModuleDict(
            {
                "self": nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value")}),
                "output": nn.ModuleDict({"dense": nn.Linear(width, width), "LayerNorm": nn.LayerNorm(width, EPS)}),
            }
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, inner)})
        self.output = nn.ModuleDict({"dense": nn.Linear(inner, width), "LayerNorm": nn.LayerNorm(width, EPS)})

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        own, out = self.attention["self"], self.attention["output"]
        split = [own[name](x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in ("query", "key", "value")]
        y = F.scaled_dot_product_attention(*split, attn_mask=mask[:, None, None]).transpose(1, 2).flatten(2)
        x = out["LayerNorm"](x + out["dense"](y))
        y = self.output["dense"](F.gelu(self.intermediate["dense"](x)))
        return self.output["LayerNorm"](x + y)


class Bert(nn.Module):
    """With a new classifier on the mean of the last layer."""

    def __init__(self, weights: dict[str, Tensor], classes: int = 2) -> None:
        super().__init__()
        tables = {
            name: weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
        }
        width, depth = tables["word"].shape[1], sum("intermediate.dense.weight" in name for name in weights)
        inner = len(weights["encoder.layer.0.intermediate.dense.weight"])
        self.embeddings = nn.ModuleDict(
            {f"{name}_embeddings": nn.Embedding(*table.shape, padding_idx=0 if name == "word" else None) for name, table in tables.items()}
            | {"LayerNorm": nn.LayerNorm(width, EPS)}
        )  # fmt: skip
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Block(width, inner) for _ in range(depth))})
        self.classifier = nn.Linear(width, classes)
        own = {name: weights[name] for name in self.state_dict() if not name.startswith("classifier")}
        self.load_state_dict(own, strict=False)

    def forward(self, ids: Tensor) -> Tensor:
        mask, parts = ids != 0, self.embeddings
        x = parts["word_embeddings"](ids) + parts["position_embeddings"](torch.arange(ids.shape[1]))
        x = parts["LayerNorm"](x + parts["token_type_embeddings"](torch.zeros_like(ids)))
        for block in self.encoder["layer"]:
            x = block(x, mask)
        share = mask[..., None] / mask.sum(1)[:, None, None]
        return self.classifier((x * share).sum(1))


def load(folder: Path) -> dict[str, Tensor]:
    return {name.removeprefix("bert."): value for name, value in load_file(folder / "model.safetensors").items()}


class WordPiece:
    def __init__(self, folder: Path) -> None:
        self.words = (folder / "vocab.txt").read_text("utf-8").splitlines()
        self.ids = {word: i for i, word in enumerate(self.words)}

    def __call__(self, text: str, most: int = 64) -> list[int]:
        pieces = [piece for word in WORD.findall(text.lower()) for piece in self.split(word)]
        return [self.ids["[CLS]"], *pieces[: most - 2], self.ids["[SEP]"]]

    def split(self, word: str) -> list[int]:
        """The longest piece that fits, again and again."""
        found, start = [], 0
        while start < len(word):
            fits = (("##" if start else "") + word[start:end] for end in range(len(word), start, -1))
            piece = next((each for each in fits if each in self.ids), None)
            if piece is None:
                return [self.ids["[UNK]"]]
            found.append(self.ids[piece])
            start += len(piece.removeprefix("##")) if start else len(piece)
        return found
