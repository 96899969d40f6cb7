"""What a tokenizer's files say beside its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
UNLIMITED = int(1e30)  # tokens, where the files name no maximum: Hugging Face's number


@dataclass(frozen=True)
class TokenizerSettings:
    """The settings of a tokenizer, with Hugging Face's names.

    special_tokens: texts by name, in the order of NAMES; extra_special_tokens: those without one.
    chat_template: None, a template, or templates by name. model_max_length: tokens of the longest
    text. padding_side, truncation_side: "left" or "right". token_type_ids: whether the model reads
    them. clean_up_tokenization_spaces: whether decode() removes spaces before punctuation.
    """

    special_tokens: Mapping[str, str] = field(default_factory=dict)
    extra_special_tokens: tuple[str, ...] = ()
    chat_template: str | Mapping[str, str] | None = None
    model_max_length: int = UNLIMITED
    padding_side: str = "right"
    truncation_side: str = "right"
    token_type_ids: bool = False
    clean_up_tokenization_spaces: bool = False

    def __post_init__(self) -> None:
        for name in ("padding_side", "truncation_side"):
            if getattr(self, name) not in ("left", "right"):
                raise ValueError(f"{name} must be 'left' or 'right', got {getattr(self, name)!r}")
