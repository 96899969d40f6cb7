"""Which languages a model translates between, where it must be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decoding.config import GenerationConfig
from decoding.tokenizers import Languages, Tokenizer

if TYPE_CHECKING:
    from decoding.model import Model


def between(
    model: Model, src_lang: str | None, tgt_lang: str | None, config: GenerationConfig
) -> tuple[Tokenizer, dict[str, Any]]:
    """The model's tokenizer for these languages, and options of generate() that it needs for them.

    config: the options so far, which may name the target. Raises ValueError for languages that the
    model does not have or lacks.
    """
    if not isinstance(model.tokenizer, Languages):
        if src_lang is not None or tgt_lang is not None:
            raise ValueError("this model is told no languages: leave src_lang and tgt_lang out")
        return model.tokenizer, {}
    forced = config.forced_bos_token_id
    begins = [*config.decoder_start_token_id, *([forced] if isinstance(forced, int) else [])]
    return model.tokenizer.between(src_lang, tgt_lang, begins)
