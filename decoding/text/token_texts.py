"""The text that each token of a tokenizer adds after other tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from decoding.text.tokenizers import (
    WORD_START,
    BackendTokenizer,
    MarianTokenizer,
    MultilingualTokenizer,
    PieceTokenizer,
    Tokenizer,
)
from decoding.text.tokenizers.backend import decoder_kinds
from decoding.text.tokenizers.pieces import BYTE

Text = str | bytes

PREFIX = (
    "abcdef"  # a word goes on with the token, so what a decoder does at a beginning is not seen
)


def token_texts(tokenizer: Any) -> list[Text | None]:
    """For each id the token's text; None for an id without a token.

    All are bytes where the vocabulary is one of bytes, or has tokens for single bytes: a character
    may then be cut between two tokens. tokenizer: of transformers, of the `tokenizers` library, or
    ours. Raises TypeError for another one, ValueError for one of ours that does not tell.
    """
    if isinstance(tokenizer, MultilingualTokenizer):
        tokenizer = tokenizer.base
    if isinstance(tokenizer, (MarianTokenizer, PieceTokenizer)):
        vocab = {token: number for number, token in tokenizer.tokens.items()}
        has_bytes = any(map(BYTE.fullmatch, vocab))
        return by_id(vocab, (lambda token: _fallback(token, _piece)) if has_bytes else _piece)
    backend = tokenizer.backend if isinstance(tokenizer, BackendTokenizer) else tokenizer
    if isinstance(backend, Tokenizer):
        raise ValueError("this model's tokenizer does not tell its tokens: leave stop_strings out")
    if not hasattr(backend, "get_vocab"):
        raise TypeError(
            "stop_strings need a tokenizer of transformers, of the tokenizers library or ours, "
            f"got {type(tokenizer).__name__}"
        )
    kinds = decoder_kinds(getattr(backend, "backend_tokenizer", backend))
    behind = _text_after_prefix(backend)
    if "ByteFallback" in kinds:
        return by_id(backend.get_vocab(), lambda token: _fallback(token, behind))
    if "ByteLevel" in kinds:
        return by_id(backend.get_vocab(), lambda token: _byte_level(token, behind))
    return by_id(backend.get_vocab(), behind)


def by_id(vocab: dict[str, int], text: Callable[[str], Text]) -> list[Text | None]:
    texts: list[Text | None] = [None] * (max(vocab.values()) + 1)
    for token, number in vocab.items():
        texts[number] = text(token)
    return texts


def _piece(token: str) -> str:
    return token.replace(WORD_START, " ")


def _text_after_prefix(tokenizer: Any) -> Callable[[str], str]:
    """A function from a token to the text that it adds after other text."""
    if hasattr(tokenizer, "convert_tokens_to_string"):
        ids = tokenizer.encode(PREFIX, add_special_tokens=False)
        tokens = tokenizer.convert_ids_to_tokens(ids)
        decode = tokenizer.convert_tokens_to_string
    else:
        tokens = tokenizer.encode(PREFIX, add_special_tokens=False).tokens
        decode = tokenizer.decoder.decode if tokenizer.decoder is not None else "".join

    def behind(token: str) -> str:
        text: str = decode([*tokens, token])
        return text[text.index(PREFIX) + len(PREFIX) :]

    return behind


def _bytes_of_characters() -> dict[str, int]:
    """GPT-2's printable character of each byte: its own, or the next one from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    found = {chr(byte): byte for byte in printable}
    return found | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTES = _bytes_of_characters()


def _byte_level(token: str, behind: Callable[[str], str]) -> bytes:
    if all(character in BYTES for character in token):
        return bytes(BYTES[character] for character in token)
    return behind(token).encode()


def _fallback(token: str, behind: Callable[[str], str]) -> bytes:
    byte = BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else behind(token).encode()
