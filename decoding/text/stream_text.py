"""The text that a model writes, as it comes: whole characters, with the spaces between words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from decoding.text.arguments import FUNCTIONS, refuse
from decoding.text.complete import (
    Prompt,
    new_tokens,
    read_chats,
    read_texts,
    resolved,
    text_behind,
)
from decoding.text.lengths import Lengths
from decoding.text.texts import checked
from decoding.text.tokenizers import Tokenizer
from decoding.text.translate import Translator
from decoding.text.window_translator import TranslationModel

WINDOW, CONTEXT = 32, 16  # ids that are decoded in a step at most, and those before them that are
UNSETTLED = 8  # characters whose spaces clean-up may still remove: its patterns join up to six


class StreamingModel(TranslationModel, Protocol):
    """The members of decoding.Model that streaming uses."""

    @property
    def stream(self) -> Callable[..., Iterator[list[list[int]]]]: ...


def stream_text(model: StreamingModel, text: Any, **options: Any) -> Iterator[str]:
    """See Model.stream_text."""
    checked("text", text)
    if model.spec.encoder is None:
        [prompt] = read_texts(model, text)
        return stream_answer(model, prompt, options)
    return stream_translation(model, text, options)


def stream_chat(
    model: StreamingModel, messages: Any, template: Mapping[str, Any], **options: Any
) -> Iterator[str]:
    """See Model.chat."""
    prompts, alone = read_chats(model, messages, template)
    if not alone:
        raise ValueError(f"one chat can be streamed at a time, got {len(prompts)}")
    return stream_answer(model, prompts[0], options)


def stream_answer(model: StreamingModel, prompt: Prompt, options: dict[str, Any]) -> Iterator[str]:
    refuse("a stream", options, "n_best", "progress", *FUNCTIONS)
    given, config = resolved(model, options)
    check_one(config.num_return_sequences)
    given["max_new_tokens"] = new_tokens(model.spec, config, [prompt])
    steps = model.stream([prompt.ids], attention_mask=[prompt.mask], **given)
    return pieces(model.tokenizer, prompt.shown, steps)


def stream_translation(model: StreamingModel, text: str, options: dict[str, Any]) -> Iterator[str]:
    others = ("n_best", "progress", "alignments", "batch_tokens", "truncate", *FUNCTIONS)
    refuse("a stream", options, *others)
    shortlist = options.pop("shortlist", None)
    translator = Translator(model, **options)
    tokenizer, config = translator.tokenizer, translator.config
    ids = tokenizer.encode(text)
    if not text.strip() or ids == tokenizer.encode(""):
        return iter(())
    lengths = Lengths.of(model.spec, translator.options, config)
    if len(ids) > lengths.source:
        raise ValueError(
            f"the text has {len(ids)} tokens, and the model reads {lengths.source}: shorten it, or "
            "use translate(), which divides it"
        )
    given = {**translator.options, "cancel": translator.cancel}
    most = lengths.max_new_tokens(len(ids))
    if most is not None:
        given["max_new_tokens"] = most
    return pieces(tokenizer, (), model.stream([ids], shortlist=shortlist, **given))


def check_one(returned: int) -> None:
    if returned > 1:
        raise ValueError(f"one text can be streamed, got num_return_sequences={returned}")


def pieces(
    tokenizer: Tokenizer, shown: Sequence[int], steps: Iterable[list[list[int]]]
) -> Iterator[str]:
    """The text of the steps' ids, in parts that later ids do not change; all of them together are
    `text_behind`."""
    text = TextStream(tokenizer, shown)
    for [new] in steps:
        if piece := text.add(new):
            yield piece
    if rest := text.rest():
        yield rest


class TextStream:
    """The text of ids that come one after the other behind those that are `shown`."""

    def __init__(self, tokenizer: Tokenizer, shown: Sequence[int]) -> None:
        self._tokenizer, self._before = tokenizer, list[int]()
        self._shown, self._ids, self._text = "", list[int](), ""
        if not self._go_on_behind(list(shown[-CONTEXT:])):
            self._before = list(shown)
            self._shown = tokenizer.decode_row(self._before)

    def add(self, new: Sequence[int]) -> str:
        """What ids behind them do not change of the text that is new; often nothing."""
        ids, piece = self._ids, ""
        ids += new
        settled = self._tokenizer.settled(ids)
        text = self._behind(ids[:settled])
        longer = certain(self._tokenizer, text)
        if len(longer) > len(self._text) and longer.startswith(self._text):
            piece, self._text = longer[len(self._text) :], longer
        # Each step decodes the ids again, so a long text goes on behind the end of what is there.
        if len(ids) == settled > WINDOW and text and text == self._text:
            self._go_on_behind([*self._before, *ids][-CONTEXT:])
        return piece

    def rest(self, last: Sequence[int] = ()) -> str:
        """The text that is left where no more ids come than these."""
        self._ids += last
        return self._behind(self._ids)[len(self._text) :]

    def _go_on_behind(self, end: list[int]) -> bool:
        """Forgets the ids before, if the last ones have a text that tells the spaces behind it."""
        shown = self._tokenizer.decode_row(end)
        if shown.strip() and self._tokenizer.settled(end) == len(end):
            self._before, self._shown, self._ids, self._text = end, shown, [], ""
            return True
        return False

    def _behind(self, ids: Sequence[int]) -> str:
        return text_behind(self._tokenizer, self._before, ids, self._shown)


def certain(tokenizer: Tokenizer, text: str) -> str:
    """The part of the text of settled ids that ids behind them leave as it is."""
    text = text.rstrip("\ufffd")  # bytes of a character whose others may still come
    cleans = tokenizer.settings.clean_up_tokenization_spaces and tokenizer.can_clean_up
    return text[:-UNSETTLED] if cleans else text
