"""A loaded model: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from decoding.bound_model import BoundModel
from decoding.common.arrays import Array
from decoding.generation.call import Call, Started, prepare
from decoding.generation.inputs import GenerateInputs
from decoding.generation.option_types import CallOptions, GenerateOptions
from decoding.generation.outputs import GenerateOutput
from decoding.generation.streaming import QueuedTokenStream, StreamerTokenStream, stream
from decoding.scoring import Scores, attentions, score
from decoding.text.scored import as_labels
from decoding.text.shortlist import pop_old_name
from decoding.text.texts import as_texts, is_text

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Unpack

    from decoding.engine.encoder import Encoded


class TokenModel(BoundModel):
    """A loaded model: token ids in, token ids out.

    Any number of Python threads may call one model: the calls queue. An encoder alone (BERT) has
    encode(); all others have generate(), stream() and score().

    In a `with` block the model is closed at the end. Pickled, for joblib, spawned processes or
    another machine, it is its path and the arguments of load(), with which it is loaded there.
    """

    @overload
    def generate(
        self,
        input_ids: Any = None,
        generation_config: Any = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        prefix_allowed_tokens_fn: Any = None,
        *,
        return_dict_in_generate: Literal[True],
        **options: Unpack[CallOptions],
    ) -> GenerateOutput: ...
    @overload
    def generate(
        self,
        input_ids: Any = None,
        generation_config: None = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        prefix_allowed_tokens_fn: Any = None,
        *,
        return_dict_in_generate: Literal[False] | None = None,
        **options: Unpack[CallOptions],
    ) -> Tensor: ...
    @overload
    def generate(
        self,
        input_ids: Any = None,
        generation_config: Any = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        prefix_allowed_tokens_fn: Any = None,
        *,
        return_dict_in_generate: bool | None = None,
        **options: Unpack[CallOptions],
    ) -> Tensor | GenerateOutput: ...
    def generate(
        self,
        input_ids: Any = None,
        generation_config: Any = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        prefix_allowed_tokens_fn: Any = None,
        *,
        streamer: Any = None,
        inputs: Any = None,
        attention_mask: Any = None,
        decoder_input_ids: Any = None,
        tokenizer: Any = None,
        shortlist: Any = None,
        cancel: Any = None,
        progress: Any = None,
        **options: Any,
    ) -> Tensor | GenerateOutput:
        """Generates, with the names, defaults and results of Hugging Face's generate().

            model.generate(ids, num_beams=4, max_new_tokens=40)
            model.generate(**tokenizer(texts), do_sample=True, top_p=0.9, seed=1)

        Args:
            input_ids: the encoder's input, or a decoder-only model's prompts: integers [B, W], as a
                tensor or array, or a list of lists of any lengths; None begins with bos_token_id.
                Or texts, a str or a list of them, whose ids the model's tokenizer makes. `inputs`
                is another name for it.
            attention_mask: [B, W], 1 where a token counts. Missing: every token counts; in a
                decoder-only model not pad, unless it is an EOS.
            decoder_input_ids: an encoder-decoder's prompts, [B, P], or a list of lists of any
                lengths.
            generation_config: a GenerationConfig, ours or transformers', or a dict.
            logits_processor, stopping_criteria: lists of functions, transformers' own objects among
                them, that are called in every step with ids int64 [R, n] of all rows. Processors
                also get float32 scores [R, V], in the engine's own memory, and return the scores to
                select from; criteria return bool [R], the rows that end. See
                decoding.generation.functions.hooks.
            prefix_allowed_tokens_fn: function of (sentence, row) that returns the ids that may
                follow.
            streamer: a streamer of transformers', which receives the tokens as they come.
            tokenizer: decodes the tokens in which stop_strings are found; None: the model's own.
            shortlist: a Shortlist, or a file of one, which each call reads: only tokens that it
                lists for the sources are generated. For encoder-decoders on a CPU.
            cancel: a threading.Event, or an object with its is_set(): where another thread sets it,
                the call ends after the step under way and raises decoding.Cancelled.
            progress: True for a bar on standard error, or a function of (done, total) that is
                called with the steps that are done and that there are at most.
            options: the fields of decoding.GenerationConfig. They win over generation_config, which
                wins over the checkpoint's generation_config.json; None switches an option off.

        Returns int64 [B * num_return_sequences, P + longest generated], or with
        return_dict_in_generate an output object of decoding.generation.outputs. Raises TypeError,
        ValueError or NotImplementedError before anything runs, decoding.Error when the memory does
        not suffice or the model's numbers are not finite, and whatever a given function raises.
        """
        call = self.prepare(
            input_ids,
            generation_config,
            logits_processor,
            stopping_criteria,
            prefix_allowed_tokens_fn,
            streamer=streamer,
            inputs=inputs,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            tokenizer=tokenizer,
            shortlist=shortlist,
            cancel=cancel,
            progress=progress,
            **options,
        )
        return call.run()

    def prepare(
        self,
        input_ids: Any = None,
        generation_config: Any = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        prefix_allowed_tokens_fn: Any = None,
        *,
        streamer: Any = None,
        inputs: Any = None,
        attention_mask: Any = None,
        decoder_input_ids: Any = None,
        tokenizer: Any = None,
        shortlist: Any = None,
        cancel: Any = None,
        progress: Any = None,
        many: bool = False,
        **options: Any,
    ) -> Call:
        """Checks a call of generate(), with its arguments: run() of the result generates, or
        start() and then result(). many: more such calls are started before that. Raises all that
        generate() raises before anything runs."""
        shortlist = pop_old_name(options, shortlist)
        ids, attention_mask = self._as_ids(given_ids(input_ids, inputs), attention_mask)
        arguments = GenerateInputs(
            ids,
            attention_mask,
            decoder_input_ids,
            generation_config,
            logits_processor,
            prefix_allowed_tokens_fn,
            stopping_criteria,
            self._own_tokenizer if tokenizer is None else tokenizer,
            shortlist,
            cancel,
            progress,
        )
        listener = None if streamer is None else StreamerTokenStream(streamer)
        return prepare(
            self._session,
            self.generation_config,
            arguments,
            options,
            listener,
            self._engine,
            many,
        )

    def start(self, *args: Any, **options: Any) -> Started:
        """prepare() and start() in one."""
        return self.prepare(*args, **options).start()

    def stream(
        self,
        input_ids: Any = None,
        generation_config: Any = None,
        *,
        inputs: Any = None,
        attention_mask: Any = None,
        decoder_input_ids: Any = None,
        tokenizer: Any = None,
        shortlist: Any = None,
        cancel: Any = None,
        progress: Any = None,
        **options: Unpack[GenerateOptions],
    ) -> Generator[list[list[int]], None, None]:
        """Generates, and yields the tokens as they come: a list of new ones for each row.

            for [new] in model.stream(ids):
                print(new)

        stream_text() yields their text.
        In beam search the rows are the best of each sentence, and their tokens come as soon as all
        beams agree on them. Arguments and errors are those of generate(). Generation runs ahead in
        a thread of its own; leaving the loop early ends it. `cancel` ends the loop.
        """
        given = dict(options)
        shortlist = pop_old_name(given, shortlist)
        ids, attention_mask = self._as_ids(given_ids(input_ids, inputs), attention_mask)
        arguments = GenerateInputs(
            ids,
            attention_mask,
            decoder_input_ids,
            generation_config,
            tokenizer=self._own_tokenizer if tokenizer is None else tokenizer,
            shortlist=shortlist,
            cancel=cancel,
            progress=progress,
        )
        tokens = QueuedTokenStream()
        call = prepare(self._session, self.generation_config, arguments, given, tokens)
        return stream(call.start().result, tokens, self.place)

    def compute_transition_scores(
        self,
        sequences: Tensor,
        scores: Sequence[Tensor],
        beam_indices: Tensor | None = None,
        normalize_logits: bool = False,
    ) -> Tensor:
        """The score of each selected token, as Hugging Face's method of this name gives it.

        sequences, scores, beam_indices: of an output of generate(). normalize_logits: take
        log_softmax of the scores first. Returns float32 [rows, longest generated]; 0 after the
        end of a row of beam search.
        """
        from decoding.generation.kept_steps import compute_transition_scores

        return compute_transition_scores(sequences, scores, beam_indices, normalize_logits)

    def _as_ids(self, given: Any, attention_mask: Any) -> tuple[Any, Any]:
        """Ids and their mask as they are, or those of texts, of which nothing is padding."""
        if not is_text(given):
            return given, attention_mask
        if attention_mask is not None:
            raise ValueError("attention_mask belongs to ids: leave it out, or pass input_ids")
        texts, _ = as_texts("input_ids", given)
        ids = self.tokenizer.encode_batch(texts).lists()
        return ids, [[1] * len(row) for row in ids]

    def score(
        self,
        input_ids: Any,
        labels: Any = None,
        attention_mask: Any = None,
        *,
        decoder_start_token_id: Any = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
    ) -> Scores:
        """The log-probabilities that the model gives to given tokens (teacher forcing).

        Encoder-decoder: `labels` [B, T] given the source `input_ids` [B, W]; the decoder reads them
        after its start token. Decoder-only: `labels`, by default `input_ids` themselves, both
        [B, T]; each given the tokens before it, so that a row's first has no probability. -100 as
        in Hugging Face: such a label does not count (the decoder of an encoder-decoder reads a pad
        in its place). attention_mask: [B, W], 1 where a token counts; missing: everywhere. All are
        integers, as a tensor or array, or a list of lists of any lengths. decoder_start_token_id:
        None: the model's own.

        Or both are texts, a str or a list of them: score(texts, targets) is how probable the model
        finds each target as a translation of its text, or, decoder-only, behind it; score(texts)
        how probable each text is, by a decoder-only model. src_lang, tgt_lang: of texts, as in
        translate().

        Raises ValueError for ids that the model does not have and for rows beyond its positions or
        the explicit limits, decoding.Error as generate() does.
        """
        scores, device = self._scores(
            input_ids,
            labels,
            attention_mask,
            decoder_start_token_id=decoder_start_token_id,
            src_lang=src_lang,
            tgt_lang=tgt_lang,
        )
        return scores.as_tensors(device)

    def score_arrays(self, *args: Any, **options: Any) -> Scores:
        """score(), with NumPy's arrays for tensors."""
        return self._scores(*args, **options)[0]

    def attention_arrays(
        self, input_ids: Any, labels: Any, *, decoder_start_token_id: Any
    ) -> list[Array]:
        """Of an encoder-decoder, of each row float32 [labels, source]: how much the decoder attends
        to each token of the source before each label, the mean over the heads of the last layer, as
        hypothesis_attentions of generate(). The arguments are those of score()."""
        own = {**self.generation_config, "decoder_start_token_id": decoder_start_token_id}
        return attentions(self._session, own, input_ids, labels)

    def _scores(
        self,
        input_ids: Any,
        labels: Any = None,
        attention_mask: Any = None,
        *,
        decoder_start_token_id: Any = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
    ) -> tuple[Scores, str]:
        """The scores as arrays, and the device that their tensors are to be on."""
        own = dict(self.generation_config)
        if decoder_start_token_id is not None:
            own["decoder_start_token_id"] = decoder_start_token_id
        if is_text(input_ids):
            if attention_mask is not None:
                raise ValueError("attention_mask belongs to ids: leave it out, or pass input_ids")
            input_ids, labels, marks = as_labels(
                self.tokenizer,
                self.spec,
                own,
                input_ids,
                labels,
                src_lang=src_lang,
                tgt_lang=tgt_lang,
            )
            own |= marks
        elif src_lang is not None or tgt_lang is not None:
            raise ValueError("src_lang and tgt_lang belong to texts, and these are ids")
        return score(self._session, own, input_ids, labels, attention_mask)

    def encode(
        self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None
    ) -> Encoded:
        """The hidden states of an encoder alone, such as BERT.

        input_ids: integers [B, W], as a tensor or array, or a list of lists of any lengths.
        attention_mask: [B, W], 1 where a token counts; missing: everywhere. token_type_ids: [B, W],
        missing: 0. Raises ValueError for ids, types and lengths that the model does not have,
        NotImplementedError for a model that generates, decoding.Error for a row whose numbers are
        not finite.
        """
        encoder = self._encoder
        from decoding.engine.encoder import encode  # with torch

        return encode(encoder, input_ids, attention_mask, token_type_ids)


def given_ids(input_ids: Any, inputs: Any) -> Any:
    if inputs is None:
        return input_ids
    if input_ids is not None:
        raise ValueError("input_ids and inputs are two names of one argument: pass one")
    return inputs
