"""A loaded model: what users hold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from decoding import _C
from decoding.generate import generate
from decoding.limits import Limits
from decoding.memory import MemoryPlan, available_memory, available_text
from decoding.models import Loaded, ModelSpec
from decoding.models.memory import CPU
from decoding.models.weights import pack
from decoding.session import Session

if TYPE_CHECKING:
    from decoding.tokenizers import Tokenizer


class Model:
    """A model bound to its engine. Made by decoding.load().

    Any number of Python threads may call one model: the calls queue. spec: its sizes. config and
    generation_config: the checkpoint's two files.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        device: torch.device = CPU,
        dtype: torch.dtype = torch.float32,
        limits: Limits | None = None,
        threads: int | None = None,
    ) -> None:
        self.spec: ModelSpec = loaded.spec
        self.config: dict[str, Any] = loaded.config
        self.generation_config: dict[str, Any] = loaded.generation_config
        self.directory = loaded.directory
        self.dtype = dtype
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        weights = weights_on(loaded, device, dtype)
        if device.type == "cuda":
            engine = _C.Session(loaded.spec, weights, device=device.index)
        else:
            threads = threads or torch.get_num_threads()
            engine = _C.Session(loaded.spec, weights, threads=threads, isa=_C.isas()[0])
        self._session = Session(loaded.spec, engine, device=device, limits=limits)

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._session.device

    @property
    def threads(self) -> int:
        """Threads that compute each step on the CPU."""
        return self._session.threads

    @property
    def isa(self) -> str:
        """The CPU's instruction set in use, or "cuda"."""
        return self._session.isa

    @property
    def graph_nodes(self) -> int:
        """On a GPU: nodes of the graph that a decoding step is, in the last call. Else 0."""
        return self._session.graph_nodes

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model's directory. Raises ValueError where there is none."""
        from decoding.tokenizers import load_tokenizer

        if self.directory is None:
            raise ValueError("the model was in memory, it has no directory with a tokenizer")
        return load_tokenizer(self.directory, self.config)

    def generate(
        self,
        input_ids: Any = None,
        generation_config: Any = None,
        *,
        inputs: Any = None,
        attention_mask: Any = None,
        decoder_input_ids: Any = None,
        **options: Any,
    ) -> Any:
        """Generates, with the names, defaults and results of Hugging Face's generate().

        input_ids: the encoder's input, or a decoder-only model's prompts: integers [B, W], as a
            tensor or array, or a list of lists of any lengths; None begins with bos_token_id.
            `inputs` is another name for it.
        attention_mask: [B, W], 1 where a token counts. Missing: every token counts; in a
            decoder-only model not pad, unless it is an EOS.
        decoder_input_ids: an encoder-decoder's prompt, [B, P].
        generation_config: a GenerationConfig, ours or transformers', or a dict.
        options: the fields of decoding.GenerationConfig. They win over generation_config, which
            wins over the checkpoint's generation_config.json; None switches an option off.

        Returns int64 [B * num_return_sequences, P + longest generated], or with
        return_dict_in_generate an output object of decoding.outputs. Raises TypeError, ValueError
        or NotImplementedError before anything runs, decoding.Error when the memory does not
        suffice or the model's numbers are not finite.
        """
        if inputs is not None:
            if input_ids is not None:
                raise ValueError("input_ids and inputs are two names of one thing: pass one")
            input_ids = inputs
        return generate(
            self._session,
            self.generation_config,
            input_ids,
            generation_config,
            attention_mask,
            decoder_input_ids,
            options,
        )

    def translate(self, texts: Sequence[str], **options: Any) -> Any:
        """A list with one translation for each text, or with n_best a list of Hypothesis(text,
        score) for each; see decoding.translate."""
        from decoding.translate import translate

        return translate(self, list(texts), **options)

    def memory_plan(self, limits: Limits | None = None) -> MemoryPlan:
        """The buffers of the engine's one block of memory; str() of it is a table.

        limits: what to plan for. Without: the plan in use, or before the first call what one
        sentence of 64 tokens takes. Weights are not part of it.
        """
        return self._session.memory_plan(limits)


def weights_on(loaded: Loaded, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    try:
        return pack(loaded.state, loaded.spec, device, dtype)
    except torch.OutOfMemoryError as error:
        there = available_text(available_memory(device))
        raise _C.Error(f"the weights do not fit into the memory of {device}, {there}") from error
