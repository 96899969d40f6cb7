"""Limits on the lengths of a source text and its translation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decoding.generation.config import GenerationConfig
from decoding.generation.inputs import PER_ROW
from decoding.models.spec import ModelSpec


@dataclass(frozen=True)
class Lengths:
    """Limits in tokens; the caller may have limited the translation too."""

    source: int  # of a part of a line, EOS included
    own: int | None  # the model's own max_length; None: it has none
    positions: int  # of the decoder
    max_new: int | None  # max_new_tokens of the caller's options, else
    max_length: int | None  # max_length of them, which counts what a translation begins with

    @classmethod
    def of(cls, spec: ModelSpec, options: dict[str, Any], config: GenerationConfig) -> Lengths:
        """The limits of a model of these sizes under the caller's `options`, which `config` holds
        too. Raises ValueError for a model without an encoder and for lengths given by row."""
        encoder, decoder = spec.encoder, spec.decoder
        if encoder is None:
            raise ValueError(
                "translation needs an encoder, and this model has a decoder alone: it continues "
                "texts, with generate() or `decoding generate`"
            )
        for name in PER_ROW:
            if isinstance(getattr(config, name), tuple):
                raise ValueError(f"{name} must be one value for all lines, got one for each row")
        max_new, max_length = (options.get(name) for name in ("max_new_tokens", "max_length"))
        asked = max_new is not None or max_length is not None
        if max_new is not None:  # it wins
            max_length = None
        own = config.max_length
        if isinstance(config.max_new_tokens, int):  # it wins, and does not count the start token
            own = 1 + config.max_new_tokens
        own = min(own, decoder.positions) if own is not None and not asked else None
        # Half, so that a translation of twice the source's length is not cut.
        source = min(encoder.positions, (own or decoder.positions) // 2)
        return cls(source, own, decoder.positions, max_new, max_length)

    @property
    def asked(self) -> bool:
        """Whether the caller's options set a length."""
        return self.max_new is not None or self.max_length is not None

    def max_new_tokens(self, source: int, prompt: int = 1) -> int:
        """The option of this name for generate().

        source: tokens of the part that is translated. prompt: those that its translation begins
        with, the start token among them.
        """
        if self.max_new is not None:
            return self.max_new
        own = self.max_length or self.own or min(2 * source + 49 + prompt, self.positions)
        return own - prompt

    def check_prompt(self, line: int, prompt: int) -> None:
        """Raises ValueError where nothing can be generated behind it."""
        most = (self.max_length or self.own or self.positions) - 1
        if prompt > most:
            limit = "the model" if self.max_length is None else f"max_length={self.max_length}"
            raise ValueError(
                f"line {line}: target_prefix has {prompt} tokens with the start token, and {limit} "
                f"has room for {most} before it generates one: shorten it"
            )
