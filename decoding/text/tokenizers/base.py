"""The interface of tokenizers: what a family's class must have, and what all of them offer."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, overload, runtime_checkable

import numpy as np

from decoding.common.arrays import is_tensor
from decoding.text.rows import Rows
from decoding.text.texts import as_texts, checked
from decoding.text.tokenizers.encoding import (
    BatchEncoding,
    Row,
    Shape,
    Truncation,
    as_tensors,
    batch,
    read_shape,
)
from decoding.text.tokenizers.vocabulary import Vocabulary

if TYPE_CHECKING:
    pass

# Spaces that transformers removes where the settings have `clean_up_tokenization_spaces`, in order.
SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


class Tokenizer(Vocabulary):
    """Converts between text and a model's token ids, with the methods of transformers' tokenizers.

        tokenizer(["Hello", "How are you?"], padding=True, return_tensors="pt")
        tokenizer.encode("Hello")                               ids, special tokens included
        tokenizer.decode(ids, skip_special_tokens=True)
        tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}])

    Any number of threads may use one. What a family's class must have comes first.
    """

    @abstractmethod
    def rows(
        self,
        text: str,
        pair: str | None,
        special: bool,
        limit: Truncation | None,
        *,
        offsets: bool = False,
    ) -> list[Row]:
        """A text or a pair of texts as ids, and what `limit` cuts off where it has a stride.

        special: with special tokens; limit: None: all of them; offsets: with the characters of each
        token. Raises NotImplementedError for offsets or a stride where the text's cutter has none.
        """

    def for_target(self) -> Tokenizer:
        """The tokenizer of texts that the model should write, framed as transformers frames
        `text_target`. Raises ValueError where the target's language is not known."""
        return self

    @abstractmethod
    def encode_target(self, text: str) -> list[int]:
        """The ids that the model should generate for `text`, with EOS where the model has one."""

    @abstractmethod
    def text_of(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of generated ids, before spaces are cleaned up."""

    def encode_batch(self, texts: list[str]) -> Rows:
        """encode() of many texts: in one call of the library that cuts them, which has threads of
        its own, where the family's class overrides this and the two methods that follow."""
        return Rows.of([self.rows(text, None, True, None)[0].ids for text in texts])

    def encode_target_batch(self, texts: list[str]) -> Rows:
        """encode_target() of many texts."""
        return Rows.of([self.encode_target(text) for text in texts])

    def texts_of(self, rows: Rows, skip_special_tokens: bool) -> list[str]:
        """text_of() of many rows."""
        return [self.text_of(ids, skip_special_tokens) for ids in rows.lists()]

    def settled(self, ids: Sequence[int]) -> int:
        """How many of the first ids have a text that ids behind them leave as it is."""
        return len(ids)

    @property
    def can_clean_up(self) -> bool:
        """Whether spaces before punctuation may be removed: whether they are not the text's own."""
        return True

    def __call__(
        self,
        text: Any = None,
        text_pair: Any = None,
        text_target: Any = None,
        *,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        stride: int = 0,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: str | None = None,
        return_token_type_ids: bool | None = None,
        return_attention_mask: bool = True,
        return_overflowing_tokens: bool = False,
        return_offsets_mapping: bool = False,
    ) -> BatchEncoding:
        """The ids of texts, as a mapping for `generate(**tokenizer(texts))`.

        text: a str, or a list of them. text_pair: the same number of texts that go with them.
        text_target: texts that the model should write, whose ids are `labels`; without text they
        are the input_ids.
        padding: True or "longest" fills rows up to the longest, "max_length" to max_length.
        truncation: True or "longest_first" cuts at max_length; of a pair "only_first" and
        "only_second" cut one text. max_length: None is model_max_length. return_tensors: "pt" or
        "np" for int64 [B, W]; None for lists, of one str without [B]. return_token_type_ids: None
        is whether the model reads them. return_offsets_mapping: of each token the characters of
        its text, (begin, end), as `offset_mapping`; (0, 0) of special tokens.
        return_overflowing_tokens: what is cut off becomes further rows, each with the last `stride`
        tokens of the one before; overflow_to_sample_mapping says of which text a row is.

        Raises TypeError for what is no text, ValueError for arguments that do not go together,
        NotImplementedError for offsets and overflowing tokens of a text that the library
        `tokenizers` does not cut.
        """
        types = return_token_type_ids
        wanted = {
            "token_type_ids": self.settings.token_type_ids if types is None else types,
            "attention_mask": return_attention_mask,
            "offset_mapping": return_offsets_mapping,
        }
        shape = read_shape(
            self.settings,
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            pad_to_multiple_of=pad_to_multiple_of,
            padding_side=padding_side,
            stride=stride if return_overflowing_tokens else None,
            columns=[name for name, asked in wanted.items() if asked],
        )
        special, kind = add_special_tokens, return_tensors
        found = BatchEncoding()
        if text is not None or text_target is None:
            found = self._encoded("text", text, text_pair, shape, special, kind)
        if text_target is not None:
            writer = self.for_target()
            target = writer._encoded("text_target", text_target, None, shape, special, kind)
            if text is None:
                return target
            found["labels"] = target["input_ids"]
        return found

    def _encoded(
        self, name: str, text: Any, pair: Any, shape: Shape, special: bool, kind: str | None
    ) -> BatchEncoding:
        """name: the argument that `text` is."""
        texts, alone = as_texts(name, text)
        pairs: list[str] | list[None] = [None] * len(texts)
        if pair is not None:
            pairs, other = as_texts("text_pair", pair)
            if (other, len(pairs)) != (alone, len(texts)):
                raise ValueError("text_pair must be one str, or as many texts as text")
        offsets = "offset_mapping" in shape.columns
        parts = [
            self.rows(first, second, special, shape.truncation, offsets=offsets)
            for first, second in zip(texts, pairs, strict=True)
        ]
        rows = [row for rows in parts for row in rows]
        columns: dict[str, list[Any]] = {**batch(rows, shape, self.pad_token_id or 0)}
        if shape.overflow:
            origins = [i for i, rows in enumerate(parts) for _ in rows]
            columns["overflow_to_sample_mapping"] = origins
        if kind is not None:
            return BatchEncoding(as_tensors(columns, kind))
        squeezed = alone and not shape.overflow
        return BatchEncoding({name: c[0] if squeezed else c for name, c in columns.items()})

    def encode(
        self,
        text: str,
        text_pair: str | None = None,
        add_special_tokens: bool = True,
        **options: Any,
    ) -> Any:
        """The ids of a text, with the special tokens that a source or prompt has: a list, or with
        return_tensors int64 [1, n]. options: those of the call."""
        if options:
            options["add_special_tokens"] = add_special_tokens
            return self(checked("text", text), text_pair, **options)["input_ids"]
        pair = None if text_pair is None else checked("text_pair", text_pair)
        return self.rows(checked("text", text), pair, add_special_tokens, None)[0].ids

    @overload
    def decode(
        self,
        token_ids: int | Sequence[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str: ...
    @overload
    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> Any: ...
    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> Any:
        """The text of ids; of rows of them, a list of texts.

        token_ids: an id, or integers [n] or [B, n], as a list, array or tensor.
        clean_up_tokenization_spaces: whether to remove spaces before punctuation; None is what the
        tokenizer's files say. Bytes that form no character become U+FFFD. Raises TypeError for
        what is no integer, ValueError for one below 0.
        """
        clean = clean_up_tokenization_spaces
        if isinstance(token_ids, np.ndarray) or is_tensor(token_ids):
            token_ids = token_ids.tolist()
        if has_rows(token_ids):
            return [self.decode(row, skip_special_tokens, clean) for row in token_ids]
        text = self.text_of(as_ids(token_ids), skip_special_tokens)
        return cleaned(text) if self._cleans(clean) else text

    def decode_row(self, ids: list[int]) -> str:
        """decode() of ids that are those of tokens, without special ones."""
        text = self.text_of(ids, True)
        return cleaned(text) if self._cleans(None) else text

    def decode_batch(self, rows: Rows, skip_special_tokens: bool = False) -> list[str]:
        """decode() of many rows, whose ids are those of tokens."""
        texts = self.texts_of(rows, skip_special_tokens)
        return list(map(cleaned, texts)) if self._cleans(None) else texts

    def _cleans(self, asked: bool | None) -> bool:
        """Whether decode() removes spaces before punctuation."""
        wanted = self.settings.clean_up_tokenization_spaces if asked is None else asked
        return wanted and self.can_clean_up

    def batch_decode(
        self,
        sequences: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[str]:
        """The text of each row of ids."""
        return [
            self.decode(row, skip_special_tokens, clean_up_tokenization_spaces) for row in sequences
        ]

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        padding: bool | str = False,
        truncation: bool | str | None = None,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_dict: bool = True,
        **template_options: Any,
    ) -> Any:
        """The prompt of a chat, as the tokenizer's template writes it.

        conversation: a list of messages, mappings with "role" and "content"; or a list of such
            lists. tools: JSON schemas of functions that the model may call. documents: texts that
            it may use. The template decides what becomes of them.
        chat_template: a template, or the name of one of the tokenizer's; None: its own.
        add_generation_prompt: end with what begins an answer. continue_final_message: leave the
            last message open, so that the model goes on with it.
        tokenize: False returns the text. padding to return_tensors: as in the call of the
            tokenizer; special tokens are the template's alone. return_dict: False returns ids.
        template_options: variables of the template.

        Raises ValueError where there is no template, or where the template refuses the chat;
        TypeError for messages and tools that are no JSON.
        """
        from decoding.text.tokenizers import chat  # jinja2 is not needed before

        many = isinstance(conversation, (list, tuple)) and bool(conversation)
        many = many and isinstance(conversation[0], (list, tuple))
        template = chat.choose(self.settings.chat_template, chat_template, tools is not None)
        texts = [
            chat.render(
                template,
                messages,
                tools=tools,
                documents=documents,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables={**self.special_tokens_map, **template_options},
            )
            for messages in (conversation if many else [conversation])
        ]
        rendered = texts if many else texts[0]
        if not tokenize:
            return rendered
        found = self(
            rendered,
            add_special_tokens=False,
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            return_tensors=return_tensors,
        )
        return found if return_dict else found["input_ids"]


def cleaned(text: str) -> str:
    """Without spaces before punctuation."""
    for spaced in SPACED:
        text = text.replace(spaced, spaced.strip())
    return text


def is_row(item: Any) -> bool:
    """Whether an item of a list is a row of ids, and not an id."""
    return isinstance(item, (list, tuple)) or getattr(item, "ndim", 0) > 0


def has_rows(given: Any) -> bool:
    if not isinstance(given, (list, tuple)) or set(map(type, given)) == {int}:  # as nearly always
        return False
    return any(map(is_row, given))


def as_ids(given: Any) -> list[int]:
    """An id or a row of them, checked. See Tokenizer.decode."""
    given = given if isinstance(given, (list, tuple)) else [given]
    try:
        ids = list(map(operator.index, given))
    except TypeError:
        kinds = {type(number).__name__ for number in given if not isinstance(number, int)}
        raise TypeError(f"token_ids must be integers, got {', '.join(sorted(kinds))}") from None
    if ids and min(ids) < 0:
        raise ValueError(f"token_ids holds {min(ids)}, which is no id: leave padding of -1 out")
    return ids


def before_last(ids: Sequence[int], joins: Callable[[int], bool]) -> int:
    """How many ids come before the last ones that join what is behind them."""
    end = len(ids)
    while end and joins(int(ids[end - 1])):
        end -= 1
    return end


@runtime_checkable
class Languages(Protocol):
    """A tokenizer of a model that must be told which languages it translates between."""

    def between(
        self, src_lang: str | None, tgt_lang: str | None, begins: Collection[int] = ()
    ) -> tuple[Tokenizer, dict[str, Any]]:
        """The tokenizer for these languages, and the options of generate() with which the model
        writes the target's.

        None: what the model's files say. begins: ids that its texts begin with anyway, which may be
        the target's code. Raises ValueError for a language that the model does not have, and where
        the target is said nowhere.
        """
        ...
