"""Sets the source and target language of a multilingual model."""

from __future__ import annotations

from typing import Any

from decoding.generation.config import GenerationConfig
from decoding.text.tokenizers import Languages, Tokenizer


def between(
    tokenizer: Tokenizer, src_lang: str | None, tgt_lang: str | None, config: GenerationConfig
) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer for these languages, and the options of generate() that they need.

    config: the options so far, which may name the target. Raises ValueError for languages that the
    model does not have or lacks.
    """
    if not isinstance(tokenizer, Languages):
        if src_lang is not None or tgt_lang is not None:
            raise ValueError("this model has no languages to name: leave src_lang and tgt_lang out")
        return tokenizer, {}
    forced = config.forced_bos_token_id
    begins = [*config.decoder_start_token_id, *([forced] if isinstance(forced, int) else [])]
    return tokenizer.between(src_lang, tgt_lang, begins)
