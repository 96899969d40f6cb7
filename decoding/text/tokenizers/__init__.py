"""Tokenizers: text to token ids and back, as the directory's own Hugging Face tokenizer does.

    tokenizer = load_tokenizer(directory, config)
    tokenizer.encode("Das ist ein Haus.")     ids with the special tokens of a source text
    tokenizer.decode(ids)                     their text

The libraries that made the vocabularies do the work (sentencepiece, tokenizers); what is added here
is what lies between them and the ids of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from decoding.models.files import Directory, naming, short
from decoding.text.tokenizers import backend, byte_level
from decoding.text.tokenizers.backend import BackendTokenizer
from decoding.text.tokenizers.base import Languages, Tokenizer
from decoding.text.tokenizers.blenderbot_small import load_blenderbot_small
from decoding.text.tokenizers.fairseq import load_fairseq
from decoding.text.tokenizers.files import has_flags, read_added, read_optional
from decoding.text.tokenizers.llama import load_llama, load_llama2c, load_mistral
from decoding.text.tokenizers.marian import (
    MarianTokenizer,
    load_marian,
    load_marian_npz,
    split_language_code,
)
from decoding.text.tokenizers.multilingual import MultilingualTokenizer, load_m2m_100, load_mbart
from decoding.text.tokenizers.opennmt import load_opennmt
from decoding.text.tokenizers.pegasus import load_pegasus
from decoding.text.tokenizers.pieces import WORD_START, PieceTokenizer
from decoding.text.tokenizers.reading import read_settings
from decoding.text.tokenizers.t5 import load_t5
from decoding.text.tokenizers.wordpiece import load_wordpiece
from decoding.text.tokenizers.xlm_roberta import load_xlm_roberta

__all__ = [
    "WORD_START",
    "BackendTokenizer",
    "Languages",
    "MarianTokenizer",
    "MultilingualTokenizer",
    "PieceTokenizer",
    "Tokenizer",
    "load_tokenizer",
    "split_language_code",
]

# By model_type of config.json.
LOADERS: dict[str, Callable[[Directory, dict[str, Any]], Tokenizer]] = {
    "bart": byte_level.BART.load,
    "bert": load_wordpiece,
    "blenderbot": byte_level.BLENDERBOT.load,
    "blenderbot-small": load_blenderbot_small,
    "bloom": backend.load_whole,
    "distilbert": load_wordpiece,
    "gemma": backend.load_whole,
    "gemma2": backend.load_whole,
    "gpt2": byte_level.GPT2.load,
    "gpt_neox": backend.load_whole,
    "gptj": byte_level.GPT2.load,
    "llama": load_llama,
    "m2m_100": load_m2m_100,
    "marian": load_marian,
    "mbart": load_mbart,
    "mistral": load_mistral,
    "mt5": load_t5,
    "openelm": load_mistral,
    "opt": byte_level.OPT.load,
    "pegasus": load_pegasus,
    "phi": backend.load_whole,
    "phi3": backend.load_whole,
    "qwen2": backend.load_whole,
    "qwen3": backend.load_whole,
    "roberta": byte_level.BART.load,
    "t5": load_t5,
    "umt5": load_t5,
    "xlm-roberta": load_xlm_roberta,
}


# The same for checkpoints of other toolkits, which say all about their text in their options.
OTHERS: dict[str, Callable[[Directory, dict[str, Any]], Tokenizer]] = {
    "fairseq": load_fairseq,
    "llama2c": load_llama2c,
    "marian_npz": load_marian_npz,
    "opennmt": load_opennmt,
}


def load_tokenizer(directory: Path | Directory, config: dict[str, Any]) -> Tokenizer:
    """The tokenizer whose files lie in a model's `directory`; `config` is its config.json.

    Raises FileNotFoundError, naming the file, where one is missing, and ModelFileError for a
    `model_type` whose text is not supported, for damaged files, and for files that contradict each
    other.
    """
    directory = Directory.of(directory)
    with naming(directory.path):
        family = str(config.get("model_type"))
        if family not in OTHERS and family not in LOADERS:
            known = ", ".join(sorted(LOADERS))
            raise ValueError(f"no tokenizer for model_type {short(family)} (there are: {known})")
        settings = read_optional(directory, "tokenizer_config.json")
        settings.setdefault("tokenizer_class", config.get("tokenizer_class"))
        if family in OTHERS:
            tokenizer = OTHERS[family](directory, config)
        else:
            tokenizer = LOADERS[family](directory, settings)
        tokenizer.settings = read_settings(directory, family, settings, tokenizer.get_vocab())
        # transformers' class of Qwen2 makes all of them special, too.
        extra = family in ("qwen2", "qwen3") or not has_flags(directory, settings)
        adopt_tokens(tokenizer, read_added(directory, settings), extra)
        llama = LOADERS.get(family) in (load_llama, load_mistral)
        whole = directory.find("tokenizer.json")  # which says itself what is around a text
        if llama and whole is None and isinstance(tokenizer, BackendTokenizer):
            tokenizer.adopt_ends(settings)
        return tokenizer


def adopt_tokens(tokenizer: Tokenizer, added: list[AddedToken], extra: bool) -> None:
    """Has a tokenizer take tokens on that its files name beside the vocabulary. extra: tokens of
    extra_special_tokens are special whatever their flags."""
    if isinstance(tokenizer, MultilingualTokenizer):
        tokenizer.base.settings = tokenizer.settings
        adopt_tokens(tokenizer.base, added, extra)
        tokenizer.tokens_changed()
    elif isinstance(tokenizer, BackendTokenizer):
        tokenizer.adopt_tokens(added, extra)
    elif isinstance(tokenizer, (MarianTokenizer, PieceTokenizer)):
        tokenizer.add_tokens(tokenizer.whole_tokens(added, extra))
