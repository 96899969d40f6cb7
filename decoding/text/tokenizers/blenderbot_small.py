"""Blenderbot-90M's tokenizer: lower case, punctuation apart, byte-pair encoded words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from decoding.models.files import Directory, short
from decoding.text.tokenizers.base import Tokenizer, before_last
from decoding.text.tokenizers.bpe import GOES_ON, WordBPE, read_merges
from decoding.text.tokenizers.files import read_vocab, token
from decoding.text.tokenizers.framed import FramedTokenizer

SPECIAL = {
    "bos_token": "__start__",
    "eos_token": "__end__",
    "unk_token": "__unk__",
    "pad_token": "__null__",
}
NEW_LINE = "__newln__"
# To Unicode, unlike to Python, these four separators are no space.
WORD = re.compile(r"[\S\x1c-\x1f]+\n?")


class BlenderbotSmallTokenizer(FramedTokenizer):
    """Equal to transformers' class: it adds no special token to a text."""

    def __init__(self, bpe: WordBPE, ids: dict[str, int], special: dict[str, str]) -> None:
        self._bpe, self._ids, self._special = bpe, ids, set(special.values())
        for text in self._special:
            if text not in ids:
                raise ValueError(f"the vocabulary has no {short(text)}, which text needs")
        self._unk = special["unk_token"]
        self._tokens = {number: text for text, number in ids.items()}
        self._split = re.compile("(" + "|".join(map(re.escape, self._special)) + ")").split

    @property
    def tokens(self) -> Mapping[int, str]:
        return self._tokens

    def cut(self, text: str) -> list[int]:
        tokens: list[str] = []
        for part in self._split(text):
            if part in self._special:
                tokens.append(part)
            else:
                tokens += [t for word in words(part) for t in self._bpe.cut(word)]
        unknown = self._ids[self._unk]
        return [self._ids.get(text, unknown) for text in tokens]

    def framed(self, first: list[int], second: list[int] | None = None) -> list[int]:
        return [*first, *(second or [])]

    def encode_target(self, text: str) -> list[int]:
        return self.cut(text)

    def text_of(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """An id without an entry counts as unknown."""
        tokens = [self._tokens.get(int(number), self._unk) for number in ids]
        kept = [t for t in tokens if not (skip_special_tokens and t in self._special)]
        return " ".join(kept).replace(GOES_ON + " ", "").strip()

    def settled(self, ids: Sequence[int]) -> int:
        """A token that its word goes on behind is joined with the next that is written."""
        return before_last(
            ids,
            lambda number: (
                (token := self._tokens.get(number, self._unk)).endswith(GOES_ON)
                or token in self._special
            ),
        )


def words(text: str) -> list[str]:
    """The words of a text in lower case; a line's end is a word of its own."""
    text = re.sub(r"([.,!?()])", r" \1", text.replace("'", " ' "))
    found = []
    for word in WORD.findall(text):
        found.append(word.rstrip("\n").lower())
        found += [NEW_LINE] if word.endswith("\n") else []
    return found


def load_blenderbot_small(directory: Directory, settings: dict[str, Any]) -> Tokenizer:
    needs = "a Blenderbot-small directory holds vocab.json and merges.txt for its text"
    ids = read_vocab(directory.required("vocab.json", needs))
    merges = read_merges(directory.required("merges.txt", needs))
    special = {name: token(settings, name, default) for name, default in SPECIAL.items()}
    return BlenderbotSmallTokenizer(WordBPE(merges), ids, special)
