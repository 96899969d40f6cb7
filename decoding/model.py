"""The object that users work with: text in, text out, beside ids in, ids out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

from decoding.generation.option_types import (
    ChatOptions,
    CompleteOptions,
    StreamTextOptions,
    TranslateOptions,
)
from decoding.text.complete import chat, complete
from decoding.text.hypotheses import Hypothesis
from decoding.text.stream_text import stream_chat, stream_text
from decoding.text.translate import translate
from decoding.token_model import TokenModel

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Unpack

    from decoding.text.embed import Embedder, Pooling


class Model(TokenModel):
    """A model that decoding.load() has made. Its methods for ids are TokenModel's.

    With an encoder and a decoder it has translate(), with a decoder alone complete() and chat();
    both have stream_text(), and an encoder alone (BERT) has embed(). One str is one text.
    """

    def embed(self, texts: str | Iterable[str], *, truncate: bool = False) -> Tensor:
        """Sentence embeddings, float32 [B, H] on the CPU, of a sentence-transformers directory:
        hidden states, pooled and normalised as its modules.json says. Of one str: [H].

        truncate: cut the end of a text that is too long, instead of raising ValueError. Raises
        FileNotFoundError or ValueError where the directory defines no pooling, NotImplementedError
        for a model that generates, decoding.Error for a text whose numbers are not finite.
        """
        embedder = self.embedder
        from decoding.text.embed import embed  # with torch

        return embed(embedder, texts, truncate=truncate)

    @property
    def embedder(self) -> Embedder:
        """What embed() does, in two halves."""
        encoder = self._encoder
        from decoding.text.embed import Embedder

        return Embedder(encoder, self.tokenizer, self._pooling)

    @cached_property
    def _pooling(self) -> Pooling:
        if self._files is None:
            raise ValueError("a model loaded from memory has no directory with a modules.json")
        from decoding.text.embed import read_pooling

        return read_pooling(self._files)

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is an iterable of them
        self, texts: str, *, n_best: None = None, **options: Unpack[TranslateOptions]
    ) -> str: ...
    @overload
    def translate(  # type: ignore[overload-overlap]
        self, texts: str, *, n_best: int, **options: Unpack[TranslateOptions]
    ) -> list[Hypothesis]: ...
    @overload
    def translate(
        self, texts: Iterable[str], *, n_best: None = None, **options: Unpack[TranslateOptions]
    ) -> list[str]: ...
    @overload
    def translate(
        self, texts: Iterable[str], *, n_best: int, **options: Unpack[TranslateOptions]
    ) -> list[list[Hypothesis]]: ...
    def translate(
        self, texts: str | Iterable[str], *, n_best: int | None = None, **options: Any
    ) -> Any:
        """Translates texts of any number and length.

            model.translate("Guten Morgen!")
            model.translate(texts, num_beams=4, n_best=2)

        Args:
            texts: a str has one result, a list of them a list.
            n_best: so many translations of each text with scores, best first, as a list of
                Hypothesis(text, score). None: the best alone, a str.
            src_lang, tgt_lang: languages of a multilingual model, as its tokenizer names them.
            target_prefix: text that each translation begins with, or a list with one for each.
            alignments: with n_best: fill in Hypothesis.alignment, pairs of words.
            truncate: cut the end of a text that is too long for the model.
            unique: leave out translations with the text of a better one.
            shortlist: a Shortlist or its file: only tokens that it lists for a text are generated.
            batch_tokens: source tokens in one call of the model, 4096 unless it is set.
            cancel: a threading.Event: where another thread sets it, the call ends and raises
                decoding.Cancelled.
            progress: True for a bar on standard error, or a function of (done, total), in texts.
            options: those of generate(), such as num_beams. Without a length, that of the model's
                own, else 2 * source + 50 tokens.

        A text that is too long for the model is cut at a sentence's or clause's end unless it is
        truncated; its parts are translated and joined, with a warning. Raises TypeError for what is
        no text and for options that have no place here, ValueError for a model without an encoder
        and for languages that it lacks, and the errors of generate().
        """
        return translate(self, texts, n_best=n_best, **options)

    @overload
    def complete(  # type: ignore[overload-overlap]
        self,
        texts: str,
        *,
        n_best: None = None,
        num_return_sequences: None = None,
        **options: Unpack[CompleteOptions],
    ) -> str: ...
    @overload
    def complete(  # type: ignore[overload-overlap]
        self, texts: str, *, n_best: int, **options: Unpack[CompleteOptions]
    ) -> list[Hypothesis]: ...
    @overload
    def complete(
        self,
        texts: Iterable[str],
        *,
        n_best: None = None,
        num_return_sequences: None = None,
        **options: Unpack[CompleteOptions],
    ) -> list[str]: ...
    @overload
    def complete(
        self, texts: Iterable[str], *, n_best: int, **options: Unpack[CompleteOptions]
    ) -> list[list[Hypothesis]]: ...
    @overload
    def complete(
        self,
        texts: str | Iterable[str],
        *,
        num_return_sequences: int,
        **options: Unpack[CompleteOptions],
    ) -> Any: ...
    def complete(
        self, texts: str | Iterable[str], *, n_best: int | None = None, **options: Any
    ) -> Any:
        """What a decoder-only model writes behind each text.

            model.complete("Once upon a time", max_new_tokens=40)
            model.complete(prompts, do_sample=True, num_return_sequences=3)

        texts: a str has one result, a list of them a list. The text that is given is not part of
        the result: text + result is the whole.
        n_best: so many results of each text, with scores, best first: of beam search S / G^a, of
        sampling and greedy search the sum of the log-probabilities that the model gives to the
        new tokens.
        options: those of generate(). Without max_new_tokens and max_length, also in the
        checkpoint's generation_config.json, it is at most 256 new tokens. max_length counts a
        text's own tokens.

        Returns for each text a str, with num_return_sequences above 1 a list of them, with n_best
        a list of Hypothesis(text, score). Raises TypeError for what is no text, ValueError for a
        text that is too long and for a model with an encoder, and what generate() raises.
        """
        return complete(self, texts, n_best=n_best, **options)

    def chat(
        self,
        messages: Any,
        *,
        stream: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        n_best: int | None = None,
        **options: Unpack[ChatOptions],
    ) -> Any:
        """The answer of a chat model to a list of messages, as its chat template writes them.

            model.chat([{"role": "user", "content": "Why is the sky blue?"}])

        messages: mappings with "role" and "content"; a list of such lists is several chats, and a
            str is one message of the user.
        stream: return an iterator of the answer's pieces, as stream_text() does.
        tools, documents, chat_template, continue_final_message: as in
            model.tokenizer.apply_chat_template; chat_template_kwargs: variables of the template.
        n_best, options: those of complete().

        Returns a str, or what complete() returns for its options; of several chats a list. Raises
        ValueError where the tokenizer has no template or the template refuses the chat, and what
        complete() raises.
        """
        template = {
            "tools": tools,
            "documents": documents,
            "chat_template": chat_template,
            "continue_final_message": continue_final_message,
            **(chat_template_kwargs or {}),
        }
        if not stream:
            return chat(self, messages, template, n_best=n_best, **options)
        if n_best is not None:
            raise TypeError("one answer can be streamed: leave n_best out")
        return stream_chat(self, messages, template, **options)

    def stream_text(self, text: str, **options: Unpack[StreamTextOptions]) -> Iterator[str]:
        """Writes behind a text, or translates it, and yields the new text as it comes.

            for piece in model.stream_text("Once upon a time"):
                print(piece, end="", flush=True)

        Pieces are whole characters and begin with the spaces that belong before them: all of them
        joined are what complete() or translate() returns. With beams a piece comes as soon as all
        beams agree on it. options: those of complete() or translate() for one result. Generation
        runs ahead in a thread of its own; leaving the loop early ends it.

        Raises what they raise before the first piece, and ValueError for a text to translate that
        is too long for the model.
        """
        return stream_text(self, text, **options)
