"""Tokenizers that the library `tokenizers` runs, as tokenizer.json has them."""

from __future__ import annotations

import re
import string
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import processors

from decoding.models.files import Directory, ModelFileError, read_bytes, short
from decoding.text.rows import Rows
from decoding.text.tokenizers.base import Tokenizer, before_last
from decoding.text.tokenizers.encoding import Row, Truncation
from decoding.text.tokenizers.pieces import WORD_START

CUTTING = threading.Lock()  # a tokenizer that cuts texts serves one call at a time


class BackendTokenizer(Tokenizer):
    """A tokenizer of the library, special tokens included."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        self._special = special_ids(backend)
        byte_level = isinstance(backend.decoder, tokenizers.decoders.ByteLevel)
        self._space = "\u0120" if byte_level else WORD_START  # a token's way to write it
        self._falls_back = "ByteFallback" in decoder_kinds(backend)

    def adopt_tokens(self, added: list[tokenizers.AddedToken], extra: bool) -> None:
        """Makes added tokens and the special tokens of the settings such tokens of the library,
        too. extra: also special ones without a name that the library has as other tokens."""
        self.backend.add_tokens(added)
        there = {added.content: added for added in self.backend.get_added_tokens_decoder().values()}
        named = self.settings.special_tokens.values()
        self.backend.add_special_tokens(
            [
                there.get(text, tokenizers.AddedToken(text, normalized=False))
                for text in self.all_special_tokens
                if extra or text in named or text not in there
            ]
        )
        self._special = special_ids(self.backend)
        self.tokens_changed()

    def adopt_ends(self, config: Mapping[str, Any]) -> None:
        """Has BOS and EOS around a text as tokenizer_config.json says, if it does."""
        flags = [config.get(name) for name in ("add_bos_token", "add_eos_token")]
        if flags == [None, None]:
            return
        begin = [self.bos_token] if flags[0] and self.bos_token else []
        end = [self.eos_token] if flags[1] and self.eos_token else []
        self.backend.post_processor = processors.TemplateProcessing(
            single=[*begin, "$A", *end],
            pair=[*begin, "$A", *end, *(f"{b}:1" for b in begin), "$B:1", *(f"{e}:1" for e in end)],
            special_tokens=[(text, self.backend.token_to_id(text)) for text in {*begin, *end}],
        )

    @cached_property
    def tokens(self) -> Mapping[int, str]:
        return {number: token for token, number in self.backend.get_vocab().items()}

    @property
    def vocab_size(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=False)

    def __len__(self) -> int:
        return self.backend.get_vocab_size()

    def cut(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids

    def cut_batch(self, texts: list[str]) -> Rows:
        """cut() of many texts."""
        return self._encoded_batch(texts, special=False)

    def encode_batch(self, texts: list[str]) -> Rows:
        return self._encoded_batch(texts, special=True)

    def encode_target_batch(self, texts: list[str]) -> Rows:
        return self.encode_batch(texts)

    def _encoded_batch(self, texts: list[str], special: bool) -> Rows:
        if len(texts) == 1:  # without the library's threads
            return Rows.of([self.backend.encode(texts[0], add_special_tokens=special).ids])
        found = self.backend.encode_batch_fast(texts, add_special_tokens=special)  # no offsets
        return Rows.of([each.ids for each in found])

    def rows(
        self,
        text: str,
        pair: str | None,
        special: bool,
        limit: Truncation | None,
        *,
        offsets: bool = False,
    ) -> list[Row]:
        if limit is None:
            return [row_of(self.backend.encode(text, pair, add_special_tokens=special), offsets)]
        if offsets or limit.stride is not None:
            return self.framed_rows(text, pair, special, limit, offsets)
        first, second = self._cut(text, pair, special, limit, self.backend)
        return [row_of(self.backend.post_process(first, second, special), offsets)]

    def framed_rows(
        self,
        text: str,
        pair: str | None,
        special: bool,
        limit: Truncation | None,
        offsets: bool,
        frame: processors.PostProcessor | None = None,
    ) -> list[Row]:
        """As `rows`, all by the library: it corrects offsets and numbers the texts of a pair in one
        go, so that encodings which were made apart differ. frame: what puts special tokens around
        texts; None: as always."""
        if limit is not None:
            self._cut(text, pair, special, limit, self.backend if frame is None else frame)
        with CUTTING:
            cutter = self._cutter
            if frame is not None:
                cutter.post_processor = frame
            cutter.no_truncation()
            if limit is not None:
                cutter.enable_truncation(
                    limit.length,
                    stride=limit.stride or 0,
                    strategy=limit.strategy,
                    direction=limit.side,
                )
            found = cutter.encode(text, pair, add_special_tokens=special)
        overflowing = limit is not None and limit.stride is not None
        parts = [found, *(found.overflowing if overflowing else [])]
        return [row_of(part, offsets) for part in parts]

    @cached_property
    def _cutter(self) -> tokenizers.Tokenizer:
        """A copy, since lengths are a setting of the whole tokenizer, which threads share."""
        return tokenizers.Tokenizer.from_str(self.backend.to_str())

    def _cut(
        self,
        text: str,
        pair: str | None,
        special: bool,
        limit: Truncation,
        frame: tokenizers.Tokenizer | processors.PostProcessor,
    ) -> tuple[tokenizers.Encoding, tokenizers.Encoding | None]:
        """Texts without special tokens, but cut so that those of `frame` fit. Raises ValueError
        where they do not."""
        first = self.backend.encode(text, add_special_tokens=False)
        second = None if pair is None else self.backend.encode(pair, add_special_tokens=False)
        around = frame.num_special_tokens_to_add(second is not None) if special else 0
        lengths = limit.lengths(len(first), None if second is None else len(second), around)
        rooms = [limit.length - frame.num_special_tokens_to_add(False)]
        for part, length in zip((first, second), lengths, strict=True):
            if part is not None and length < len(part):
                part.truncate(length, direction=limit.side)
                rooms += [length] * (length > 0)
        if limit.stride and limit.stride >= min(rooms):
            raise ValueError(
                f"stride={limit.stride} must be less than the {min(rooms)} tokens of a text that "
                f"fit into max_length={limit.length}"
            )
        return first, second

    def encode_target(self, text: str) -> list[int]:
        return self.backend.encode(text).ids

    def text_of(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def texts_of(self, rows: Rows, skip_special_tokens: bool) -> list[str]:
        if len(rows) == 1:
            return [self.text_of(ids, skip_special_tokens) for ids in rows.lists()]
        return self.backend.decode_batch(rows.lists(), skip_special_tokens=skip_special_tokens)

    def settled(self, ids: Sequence[int]) -> int:
        """Neighbouring tokens of bytes are decoded together, and are all U+FFFD if one is."""
        if not self._falls_back:
            return len(ids)
        return before_last(ids, self._joining.__contains__)

    @cached_property
    def _joining(self) -> set[int]:
        """Ids of tokens of bytes, and special ones, which have no text."""
        digits = product(string.hexdigits, repeat=2)
        found = (self.backend.token_to_id(f"<0x{high}{low}>") for high, low in digits)
        return self._special.union(number for number in found if number is not None)

    @property
    def can_clean_up(self) -> bool:
        """As in transformers: byte-pair encoding keeps a text's own spaces."""
        return not isinstance(self.backend.model, tokenizers.models.BPE)

    def source_pieces(self, text: str) -> list[str | None]:
        return self.target_pieces(self.encode(text))

    def target_pieces(self, ids: Sequence[int]) -> list[str | None]:
        """The pieces of ids; None for special tokens."""
        return [None if i in self._special else self._piece(i) for i in ids]

    def _piece(self, number: int) -> str | None:
        piece = self.backend.id_to_token(number)
        return None if piece is None else piece.replace(self._space, WORD_START)


def row_of(found: tokenizers.Encoding, offsets: bool) -> Row:
    return Row(found.ids, found.type_ids, found.offsets if offsets else None)


def special_ids(backend: tokenizers.Tokenizer) -> set[int]:
    added = backend.get_added_tokens_decoder()
    return {number for number, token in added.items() if token.special}


def decoder_kinds(backend: Any) -> set[str]:
    """The decoder steps of a tokenizer of the `tokenizers` library."""
    return kinds(getattr(backend, "decoder", None))


def kinds(part: Any) -> set[str]:
    """The steps of a part of such a tokenizer, a decoder or a normalizer; None has no steps."""
    state = getattr(part, "__getstate__", lambda: b"")()
    text = state.decode() if isinstance(state, bytes) else str(state)
    return set(re.findall(r'"type":\s*"(\w+)"', text))


def load_whole(directory: Directory, settings: dict[str, Any]) -> Tokenizer:
    """Loads the tokenizer of a family that always has a tokenizer.json."""
    needs = "this model's text needs tokenizer.json"
    return BackendTokenizer(read_backend(directory.required("tokenizer.json", needs)))


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Names the file of what the library cannot read: it raises no class of its own, and where its
    code fails even one that is no Exception."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, ModelFileError):
        raise
    except BaseException as error:
        raise ModelFileError(f"{path} cannot be read as a tokenizer: {short(error)}") from error


def read_backend(path: Path) -> tokenizers.Tokenizer:
    """Reads a tokenizer.json."""
    content = read_bytes(path)
    with reading(path):
        backend = tokenizers.Tokenizer.from_buffer(content)
    backend.no_truncation()  # a setting of the run that saved the file, not of the model
    backend.no_padding()
    return backend
