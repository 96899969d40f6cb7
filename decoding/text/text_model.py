"""The model that functions of texts are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from decoding.common.arrays import Array
from decoding.generation.call import Started
from decoding.models.spec import ModelSpec
from decoding.text.tokenizers import Tokenizer


class TextModel(Protocol):
    """The members of decoding.Model that translation and completion use."""

    @property
    def generation_config(self) -> Mapping[str, Any]: ...
    @property
    def spec(self) -> ModelSpec: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def generate(self) -> Callable[..., Any]: ...
    @property
    def start(self) -> Callable[..., Started]: ...
    def score_arrays(
        self, input_ids: Any, labels: Any = None, *, decoder_start_token_id: Any = None
    ) -> Any: ...
    def attention_arrays(
        self, input_ids: Any, labels: Any, *, decoder_start_token_id: Any
    ) -> list[Array]: ...
