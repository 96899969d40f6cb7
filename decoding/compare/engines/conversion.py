"""Converts a transformers model to CTranslate2's form, with its own converter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAD = "<pad>"


def convert(source: Path, target: Path, dtype: str, *, numbered: bool = True) -> None:
    """Writes the transformers directory `source` as a CTranslate2 model of this type.

    numbered: token i is called "i", so that callers use ids and no tokenizer is needed; else tokens
    have their own names. Raises the converter's errors for a model that it does not know.
    """
    from ctranslate2.converters import TransformersConverter
    from transformers.utils import logging

    logging.disable_progress_bar()
    register_marian()

    class Converter(TransformersConverter):  # type: ignore[misc]
        def load_tokenizer(self, *given: Any, **options: Any) -> Any:
            if numbered:
                return NumberedTokens(source)
            return super().load_tokenizer(*given, **options)

        def _load(self) -> Any:
            spec, config = super()._load(), NumberedTokens(source).config
            if numbered and config.is_encoder_decoder:
                spec.config.decoder_start_token = str(config.decoder_start_token_id)
            return spec

    Converter(str(source)).convert(str(target), quantization=dtype)


def register_marian() -> None:
    """Replaces the converter's loader of Marian models.

    The converter's own drops the padding token, whose embedding is zero in Marian's own models, and
    lets the decoder start from zero. Others (our demo model) start from a learnt embedding of that
    token, as in transformers.
    """
    from ctranslate2.converters.transformers import BartLoader, MarianMTLoader, register_loader

    @register_loader("MarianConfig")
    class Loader(MarianMTLoader):  # type: ignore[misc]
        set_decoder = BartLoader.set_decoder
        get_vocabulary = BartLoader.get_vocabulary

        def _remove_pad_weights(self, spec: Any) -> None:
            pass

        def set_config(self, config: Any, model: Any, tokenizer: Any) -> None:
            super().set_config(config, model, tokenizer)
            config.decoder_start_token = PAD


class NumberedTokens:
    """The members of a tokenizer that the converter uses."""

    special_tokens_map: dict[str, Any] = {}
    chat_template = None

    def __init__(self, directory: Path) -> None:
        from transformers import AutoConfig

        self.config = AutoConfig.from_pretrained(directory)
        ends = self.config.eos_token_id
        self.eos_token = self.bos_token = str(ends[0] if isinstance(ends, list) else ends)
        self.pad_token = str(self.config.pad_token_id)
        self.unk_token, self.unk_token_id = "1", 1

    def get_vocab(self) -> dict[str, int]:
        return {str(token): token for token in range(self.config.vocab_size)}

    def convert_ids_to_tokens(self, token: int) -> str:
        return str(token)
