"""The words that ids stand for, as a tokenizer or a list of names beside a model has them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unfit.base.errors import UnfitError
from unfit.base.formats.limits import undamaged

FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "names.txt")  # the first that is there counts
MAX_BYTES = 100_000_000
MAX_WORDS = 10_000_000
PIECE = "##"  # what WordPiece puts before a piece that continues a word


@dataclass(frozen=True)
class Words:
    """Word i belongs to row i of a table."""

    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> str:
        return self.names[i] if i < len(self.names) else f"id {i}"

    @cached_property
    def known(self) -> Mapping[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def joined(self, ids: Collection[int]) -> dict[int, str]:
        """Pieces that end a word, with the only word among these ids that they can end.

        WordPiece takes the longest piece that fits. So one piece follows another only where no longer one is in
        the vocabulary. Where several words remain, or the word may go on with another piece, it stays alone.
        """
        here = [self[i] for i in ids]
        starts = [name for name in here if name.isalnum()]
        pieces = [name for name in here if name.startswith(PIECE)]
        found = {}
        for i in ids:
            if not self[i].startswith(PIECE):
                continue
            rest = self[i].removeprefix(PIECE)
            fitting = [start for start in starts if self._are_parted(start, rest)]
            others = [piece for piece in pieces if piece != self[i]]
            before = any(self._are_parted(piece, rest) for piece in others)
            behind = any(self._are_parted(self[i], piece.removeprefix(PIECE)) for piece in others)
            if len(fitting) == 1 and not before and not behind:
                found[i] = fitting[0] + rest
        return found

    def _are_parted(self, start: str, rest: str) -> bool:
        """Whether WordPiece may part a word just there."""
        return not any(start + rest[:end] in self.known for end in range(1, len(rest) + 1))


def words_beside(folder: Path, rows: int) -> Words | None:
    """The words of a table with this number of rows; None where nothing in the folder lists as many."""
    for name in FILES:
        if (path := folder / name).is_file() and (found := read_words(path)) and _fits(len(found), rows):
            return found
    return None


def _fits(num: int, rows: int) -> bool:
    """Tables are padded to a multiple of 64 or 128, or have rows for further words."""
    return rows / 2 < num <= rows


def read_words(path: Path) -> Words:
    if path.stat().st_size > MAX_BYTES:
        raise UnfitError(f"{path}: too large for a list of words")
    with undamaged(path, "list of words", UnicodeDecodeError):
        text = path.read_text("utf-8")
        return Words(tuple(_listed(json.loads(text)) if path.suffix == ".json" else text.splitlines()))


def _listed(content: Any) -> Sequence[str]:
    """Of a `tokenizer.json`, a plain vocabulary, or a list."""
    if isinstance(content, list):
        return [str(each) for each in content]
    added = content.get("added_tokens", []) if "model" in content else []
    vocabulary = content["model"]["vocab"] if "model" in content else content
    if isinstance(vocabulary, list):  # of Unigram: pairs of a piece and its score
        vocabulary = {str(piece): i for i, (piece, _) in enumerate(vocabulary)}
    ids = {int(i): str(word) for word, i in vocabulary.items()}
    ids |= {int(each["id"]): str(each["content"]) for each in added}
    if not ids or min(ids) < 0 or max(ids) >= MAX_WORDS:
        raise ValueError("ids that no table has")
    return [ids.get(i, f"id {i}") for i in range(max(ids) + 1)]
