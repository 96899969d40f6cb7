"""Byte-level BPE and its families, from tokenizer.json, or from vocab.json and merges.txt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import processors

from decoding.models.files import Directory
from decoding.text.tokenizers.backend import BackendTokenizer, read_backend, reading
from decoding.text.tokenizers.base import Tokenizer
from decoding.text.tokenizers.bpe import read_merges
from decoding.text.tokenizers.files import choice, read_added, read_vocab, token

BOS_FIRST = ("bos_token", "$A"), ("bos_token", "$A", "bos_token", "$B")


@dataclass(frozen=True)
class ByteLevel:
    """A family's byte-level BPE, where its directory's settings are silent.

    template: a text with its special tokens, by their names in the settings; pair: two of them.
    """

    special: dict[str, str]  # names to tokens
    prefix_space: bool = False
    template: tuple[str, ...] = ("$A",)
    pair: tuple[str, ...] = ("$A", "$B")

    def load(self, directory: Directory, settings: dict[str, Any]) -> Tokenizer:
        whole = directory.find("tokenizer.json")
        backend = read_backend(whole) if whole else self._of_two_files(directory, settings)
        backend.add_tokens(read_added(directory, settings))  # their ids come first
        special = {name: token(settings, name, default) for name, default in self.special.items()}
        if settings.get("pad_token"):
            special["pad_token"] = token(settings, "pad_token", "")
        there = {added.content for added in backend.get_added_tokens_decoder().values()}
        backend.add_special_tokens(
            [
                tokenizers.AddedToken(text, lstrip=name == "mask_token")
                for name, text in special.items()
                if text not in there
            ]
        )
        if whole is None:
            bos_first = settings.get("add_bos_token")
            template, pair = BOS_FIRST if bos_first else (self.template, self.pair)
            parts, two = ([special.get(part, part) for part in each] for each in (template, pair))
            marks = {part: backend.token_to_id(part) for part in {*parts, *two} - {"$A", "$B"}}
            backend.post_processor = processors.TemplateProcessing(
                single=parts, pair=two, special_tokens=list(marks.items())
            )
        return BackendTokenizer(backend)

    def _of_two_files(self, directory: Directory, settings: dict[str, Any]) -> tokenizers.Tokenizer:
        needs = "this model's text needs tokenizer.json, or vocab.json and merges.txt"
        vocab = directory.required("vocab.json", needs)
        merges = directory.required("merges.txt", needs)
        ids, pairs = read_vocab(vocab), read_merges(merges)
        with reading(merges):
            backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=pairs))
        prefix = choice(settings, "add_prefix_space", self.prefix_space)
        backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        backend.decoder = tokenizers.decoders.ByteLevel()
        return backend


END = "<|endoftext|>"
FAIRSEQ = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
GPT2 = ByteLevel({"bos_token": END, "eos_token": END, "unk_token": END})
OPT = ByteLevel(
    {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "pad_token": "<pad>"},
    template=BOS_FIRST[0],
    pair=BOS_FIRST[1],
)
BART = ByteLevel(
    FAIRSEQ,
    template=("bos_token", "$A", "eos_token"),
    pair=("bos_token", "$A", "eos_token", "eos_token", "$B", "eos_token"),
)
BLENDERBOT = ByteLevel(
    FAIRSEQ, prefix_space=True, template=("$A", "eos_token"), pair=("$A", "$B", "eos_token")
)
