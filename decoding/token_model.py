"""A loaded model: token ids in, token ids out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from decoding.binding import runner_of, weights_on
from decoding.common.settings import Settings
from decoding.engine.devices import check_threads
from decoding.engine.encoder import Encoded, EncoderSession, encode
from decoding.engine.limits import Limits, check_limits
from decoding.engine.memory import MemoryPlan
from decoding.engine.session import Session
from decoding.generation.call import Call, prepare
from decoding.generation.config import OPTIONS
from decoding.generation.inputs import GenerateInputs
from decoding.generation.resolve import as_mapping
from decoding.generation.results import compute_transition_scores
from decoding.generation.streaming import QueuedTokenStream, StreamerTokenStream, stream
from decoding.models import Loaded
from decoding.models.files import Directory
from decoding.models.spec import EncoderSpec, ModelSpec
from decoding.models.weights.converted import ConvertedWeights
from decoding.models.weights.memory import CPU, trim
from decoding.models.weights.placed import is_linear
from decoding.saving import save
from decoding.scoring import Scores, score
from decoding.shown import model_html, model_line
from decoding.text.given_tokenizer import TokenizerFiles
from decoding.text.scored import as_labels
from decoding.text.shortlist import pop_old_name
from decoding.text.texts import as_texts, is_text
from decoding.text.tokenizers import Tokenizer, load_tokenizer
from decoding.transformers_face import TransformersFace, count_parameters

Self = TypeVar("Self", bound="TokenModel")


class GenerationSettings(Settings):
    """generation_config.json: options that it does not set are None."""

    unset = frozenset(OPTIONS)


class TokenModel(TransformersFace):
    """A model bound to its engine: token ids in, token ids out.

    Any number of Python threads may call one model: the calls queue. An encoder alone (BERT) has
    encode(); all others have generate(), stream() and score().
    config and generation_config: the checkpoint's two files, their entries as keys and as
    attributes. architecture: its class in transformers. dtype and kv_cache_dtype: as load() chose
    them.

    In a `with` block the model is closed at the end. Pickled, for joblib, spawned processes or
    another machine, it is its path and the arguments of load(), with which it is loaded there.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        device: torch.device = CPU,
        dtype: torch.dtype = torch.float32,
        limits: Limits | None = None,
        threads: int | None = None,
        kv_cache_dtype: torch.dtype = torch.float32,
        tokenizer: Any = None,
        load_again: Callable[[], TokenModel] | None = None,
    ) -> None:
        self.architecture = loaded.architecture
        self.config = Settings(loaded.config)
        self._generation_config = GenerationSettings(loaded.generation_config)
        self._own_generation_config = loaded.generation_config is not loaded.config
        self.directory = loaded.directory
        self._files = loaded.files
        self._tokenizer_files = None if tokenizer is None else TokenizerFiles(tokenizer)
        self._load_again = load_again
        self.dtype: torch.dtype = dtype
        self.kv_cache_dtype = kv_cache_dtype
        threads = check_threads(threads)
        self._weights = (
            dict(loaded.state) if loaded.packed else weights_on(loaded, device, dtype, threads)
        )
        self._open_runner: Session | EncoderSession | None = runner_of(
            loaded.spec, self._weights, device, limits, threads, kv_cache_dtype
        )

    @property
    def generation_config(self) -> GenerationSettings:
        """The options of generate() where a call sets none: generation_config.json, or a dict or
        GenerationConfig that was assigned."""
        return self._generation_config

    @generation_config.setter
    def generation_config(self, config: Any) -> None:
        self._generation_config = GenerationSettings(as_mapping(config))

    @property
    def _runner(self) -> Session | EncoderSession:
        if self._open_runner is None:
            raise ValueError("the model is closed: load it again")
        return self._open_runner

    def close(self) -> None:
        """Gives the memory of the weights and of the engine back.

        What is asked of the model afterwards raises ValueError. Calls that run in other threads
        come to their end first. Leaving a `with` block closes its model.
        """
        self._open_runner, self._weights = None, {}
        trim()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._open_runner is None

    def __repr__(self) -> str:
        return model_line(self)

    def _repr_html_(self) -> str:
        return model_html(self)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[[], TokenModel], tuple[()]]:
        """Copies and processes load the model again, from the same path with the same arguments."""
        if self._load_again is None:
            raise TypeError(
                "a model that was loaded from memory cannot be copied or pickled: load it from a "
                "directory, to which its save_pretrained() or Model.save() writes it"
            )
        return self._load_again, ()

    def num_parameters(self) -> int:
        """Numbers in the weights; tables that are one count once."""
        return count_parameters(self.any_spec, self._weights, self.config)

    @property
    def any_spec(self) -> ModelSpec | EncoderSpec:
        """The sizes of a model of either kind."""
        return self._runner.spec

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        blocks = {weight.data_ptr(): weight.nbytes for weight in self._weights.values()}
        return sum(blocks.values())

    @property
    def spec(self) -> ModelSpec:
        """The sizes of a model that generates. Raises NotImplementedError for an encoder alone."""
        return self._session.spec

    @property
    def is_encoder(self) -> bool:
        """Whether the model is an encoder without a decoder, such as BERT."""
        return isinstance(self._runner, EncoderSession)

    @property
    def encoder_spec(self) -> EncoderSpec:
        """The sizes of an encoder alone. Raises NotImplementedError for a model that generates."""
        return self._encoder.spec

    @property
    def _session(self) -> Session:
        if not isinstance(self._runner, Session):
            raise NotImplementedError(
                "this model is an encoder alone: it generates no tokens, use encode()"
            )
        return self._runner

    @property
    def _encoder(self) -> EncoderSession:
        if not isinstance(self._runner, EncoderSession):
            raise NotImplementedError("encode() is for encoders alone, and this model generates")
        return self._runner

    @property
    def device(self) -> torch.device:
        """The device that it runs on."""
        return self._runner.device

    @property
    def threads(self) -> int:
        """Number of threads that compute each step on the CPU."""
        return self._runner.threads

    @property
    def isa(self) -> str:
        """The CPU's instruction set in use, or "cuda"."""
        return self._runner.isa

    @property
    def unquantized(self) -> list[str]:
        """Names of an int8 model's linear weights that stay bfloat16, as int8 is too coarse for
        them; empty for a model of another type."""
        return [
            name
            for name, weight in self._weights.items()
            if self.dtype == torch.int8 and is_linear(name) and weight.dtype != torch.int8
        ]

    @property
    def kept(self) -> list[str]:
        """The old name of `unquantized`."""
        warnings.warn(
            "Model.kept is deprecated and goes with the next version: use Model.unquantized",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.unquantized

    @property
    def graph_nodes(self) -> int:
        """Nodes of the CUDA graph of the last call's decoding step; 0 on the CPU."""
        return self._runner.graph_nodes

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that load() was given, or that in the model's directory. Raises ValueError
        where there is none."""
        files = self._files_of_tokenizer
        if files is None:
            raise ValueError(
                "a model that was loaded from memory has no tokenizer: pass "
                "decoding.load(model, tokenizer=...)"
            )
        return load_tokenizer(files, self.config)

    @property
    def _files_of_tokenizer(self) -> Directory | None:
        given = self._tokenizer_files
        return self._files if given is None else Directory(given.directory)

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
    ) -> Any:
        """Generates, with the names, defaults and results of Hugging Face's generate().

        input_ids: the encoder's input, or a decoder-only model's prompts: integers [B, W], as a
            tensor or array, or a list of lists of any lengths; None begins with bos_token_id. Or
            texts, a str or a list of them, whose ids the model's tokenizer makes. `inputs` is
            another name for it.
        attention_mask: [B, W], 1 where a token counts. Missing: every token counts; in a
            decoder-only model not pad, unless it is an EOS.
        decoder_input_ids: an encoder-decoder's prompts, [B, P], or a list of lists of any lengths.
        generation_config: a GenerationConfig, ours or transformers', or a dict.
        logits_processor, stopping_criteria: lists of functions, transformers' own objects among
            them, that are called in every step with ids int64 [R, n] of all rows. Processors also
            get float32 scores [R, V], in the engine's own memory, and return the scores to select
            from; criteria return bool [R], the rows that end. See decoding.generation.hooks.
        prefix_allowed_tokens_fn: function of (sentence, row) that returns the ids that may follow.
        streamer: a streamer of transformers', which receives the tokens as they come.
        tokenizer: decodes the tokens in which stop_strings are found; None: the model's own.
        shortlist: a Shortlist, or a file of one, which each call reads: only tokens that it lists
            for the sources are generated. For encoder-decoders on a CPU.
        cancel: a threading.Event, or an object with its is_set(): where another thread sets it, the
            call ends after the step under way and raises decoding.Cancelled.
        progress: True for a bar on standard error, or a function of (done, total) that is called
            with the steps that are done and that there are at most.
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
        **options: Any,
    ) -> Call:
        """Checks a call of generate(), with its arguments: run() of the result generates. Raises
        all that generate() raises before anything runs."""
        shortlist = pop_old_name(options, shortlist)
        arguments = GenerateInputs(
            self._as_ids(given_ids(input_ids, inputs), attention_mask),
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
        return prepare(self._session, self.generation_config, arguments, options, listener)

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
        **options: Any,
    ) -> Generator[list[list[int]], None, None]:
        """Generates, and yields the tokens as they come: a list of new ones for each row.

            for [new] in model.stream(ids):
                print(new)

        stream_text() yields their text.
        In beam search the rows are the best of each sentence, and their tokens come as soon as all
        beams agree on them. Arguments and errors are those of generate(). Generation runs ahead in
        a thread of its own; leaving the loop early ends it. `cancel` ends the loop.
        """
        shortlist = pop_old_name(options, shortlist)
        arguments = GenerateInputs(
            self._as_ids(given_ids(input_ids, inputs), attention_mask),
            attention_mask,
            decoder_input_ids,
            generation_config,
            tokenizer=self._own_tokenizer if tokenizer is None else tokenizer,
            shortlist=shortlist,
            cancel=cancel,
            progress=progress,
        )
        tokens = QueuedTokenStream()
        call = prepare(self._session, self.generation_config, arguments, options, tokens)
        return stream(call.run, tokens, self.device)

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
        return compute_transition_scores(sequences, scores, beam_indices, normalize_logits)

    def _own_tokenizer(self) -> Tokenizer | None:
        return None if self._files_of_tokenizer is None else self.tokenizer

    def _as_ids(self, given: Any, attention_mask: Any) -> Any:
        """Ids as they are, those of texts."""
        if not is_text(given):
            return given
        if attention_mask is not None:
            raise ValueError("attention_mask belongs to ids: leave it out, or pass input_ids")
        texts, _ = as_texts("input_ids", given)
        return [self.tokenizer.encode(text) for text in texts]

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
        NotImplementedError for a model that generates.
        """
        return encode(self._encoder, input_ids, attention_mask, token_type_ids)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes a directory that load() takes, with the weights as they are in memory here.

        Loading it maps the weights: nothing is converted, and processes share the memory. It holds
        the configuration and the tokenizer too, and is for the CPU alone. Raises
        NotImplementedError for a model on a GPU, ValueError for a directory that holds a
        checkpoint.
        """
        if self.device.type != "cpu":
            raise NotImplementedError(
                f"only a model on the CPU can be saved, this one is on {self.device}: pass "
                'device="cpu" to load()'
            )
        save(
            Path(directory),
            ConvertedWeights(self.any_spec, self.dtype, self._weights),
            self.config,
            self.generation_config if self._own_generation_config else self.config,
            self._files_of_tokenizer,
        )

    def memory_plan(self, limits: Limits | None = None) -> MemoryPlan:
        """The memory of weights, keys and values, and steps; its table() has every buffer.

        limits: sizes to plan for. None: the plan in use, or before the first call the plan of one
        sentence of 64 tokens. Raises ValueError for lengths beyond the model's positions.
        """
        if limits is not None:
            check_limits(limits, self.any_spec)
        return replace(self._runner.memory_plan(limits), weights=self.weight_bytes)


def given_ids(input_ids: Any, inputs: Any) -> Any:
    if inputs is None:
        return input_ids
    if input_ids is not None:
        raise ValueError("input_ids and inputs are two names of one argument: pass one")
    return inputs
