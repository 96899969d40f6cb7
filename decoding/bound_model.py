"""A model bound to its engine, without what it computes."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from decoding import _C
from decoding.binding import Bound, Place, engine_of, runner_of, weights_on
from decoding.common.device import CPU, Device
from decoding.common.settings import Settings
from decoding.engine.devices import check_threads, choose_half, dtype_name
from decoding.engine.limits import Limits, check_limits
from decoding.engine.memory import MemoryPlan
from decoding.engine.overflow import TensorOverflow, merged
from decoding.engine.ranks import Ranks
from decoding.engine.session import Session
from decoding.generation.config import OPTIONS
from decoding.generation.resolve import as_mapping
from decoding.models import Loaded
from decoding.models.files import Directory
from decoding.models.spec import EncoderSpec, ModelSpec, with_int8_activations
from decoding.models.weights.converted import ConvertedWeights
from decoding.models.weights.dtypes import QUANTISED, as_array, name_of
from decoding.models.weights.lazy import identity
from decoding.models.weights.memory import trim
from decoding.models.weights.places import is_linear
from decoding.saving import save
from decoding.serving.model_engine import ModelEngine
from decoding.shown import model_html, model_line
from decoding.text.given_tokenizer import TokenizerFiles
from decoding.text.tokenizers import Tokenizer, load_tokenizer
from decoding.transformers_face import TransformersFace, count_parameters

if TYPE_CHECKING:
    import torch

    from decoding.engine.encoder import EncoderSession

Self = TypeVar("Self", bound="BoundModel")


class GenerationSettings(Settings):
    """generation_config.json: options that it does not set are None."""

    unset = frozenset(OPTIONS)


class BoundModel(TransformersFace):
    """A model bound to its engine: what it is, where it is, and how it ends.

    config and generation_config: the checkpoint's two files, their entries as keys and as
    attributes. architecture: its class in transformers. deterministic, detect_overflow: as load()
    was given them.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        device: Device = CPU,
        dtype: str | torch.dtype = "float32",
        limits: Limits | None = None,
        threads: int | None = None,
        kv_cache_dtype: str | torch.dtype = "float32",
        int8_activations: bool = False,
        deterministic: bool = False,
        detect_overflow: bool = False,
        tokenizer: Any = None,
        load_again: Callable[[], BoundModel] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """int8_activations: on a GPU, of products of many rows (W8A8). ranks: those that a model is
        split over, of which `loaded` is this one's shard."""
        self.architecture = loaded.architecture
        self.config = Settings(loaded.config)
        self._generation_config = GenerationSettings(loaded.generation_config)
        self.directory = loaded.directory
        self._files = loaded.files
        self._tokenizer_files = None if tokenizer is None else TokenizerFiles(tokenizer)
        self._load_again = load_again
        self.place = device
        self.dtype_name, self._kv_cache_dtype = dtype_name(dtype), dtype_name(kv_cache_dtype)
        self.deterministic, self.detect_overflow = deterministic, detect_overflow
        threads = check_threads(threads)
        half = "bfloat16" if device == CPU else choose_half(self._kv_cache_dtype, loaded.stored)
        self._weights: Bound = weights_on(loaded, device, self.dtype_name, threads, half)
        self._open_runner: Session | EncoderSession | None = runner_of(
            with_int8_activations(loaded.spec) if int8_activations else loaded.spec,
            self._weights,
            limits,
            self._place(threads),
            ranks,
        )
        self._whole_spec, self._ranks = loaded.whole_spec or loaded.spec, ranks
        self._engines: weakref.WeakSet[_C.Engine] = weakref.WeakSet()
        self._engine = ModelEngine(weakref.WeakMethod(self.bind_engine), device)

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
        self._engine.close()
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

    def __reduce__(self) -> tuple[Callable[[], BoundModel], tuple[()], dict[str, Any]]:
        """Copies and processes load the model again, from the same path with the same arguments.
        Its generation_config is as it was here."""
        if self._load_again is None:
            raise TypeError(
                "a model that was loaded from memory cannot be copied or pickled: load it from a "
                "directory, to which its save_pretrained() or Model.save() writes it"
            )
        return self._load_again, (), {"_generation_config": self._generation_config}

    def num_parameters(self) -> int:
        """Numbers in the weights; tables that are one count once."""
        return count_parameters(self._whole_spec, self._weights, self.config)

    @property
    def ranks(self) -> Ranks | None:
        """The processes that share out the model; None where it is whole."""
        return self._ranks

    @property
    def rank(self) -> int:
        """Which of the processes this is that share out the model (tensor_parallel of load()); 0
        where it is whole."""
        return 0 if self._ranks is None else self._ranks.rank

    @property
    def any_spec(self) -> ModelSpec | EncoderSpec:
        """The sizes of a model of either kind; of a model that is split those of this rank."""
        return self._runner.spec

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        blocks = {identity(weight)[0]: weight.nbytes for weight in self._weights.values()}
        return sum(blocks.values())

    @property
    def spec(self) -> ModelSpec:
        """The sizes of a model that generates. Raises NotImplementedError for an encoder alone."""
        return self._session.spec

    @property
    def is_encoder(self) -> bool:
        """Whether the model is an encoder without a decoder, such as BERT."""
        return isinstance(self._runner.spec, EncoderSpec)

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
        if isinstance(self._runner, Session):
            raise NotImplementedError(
                "encode() and embed() need an encoder alone, such as BERT, and this model generates"
            )
        return self._runner

    def bind_engine(self, ranks: Ranks | None = None) -> _C.Engine:
        """A compiled engine of its own for decoding.Engine, on the weights of the model. ranks: of
        this engine, where the model is split. Raises NotImplementedError for an encoder alone."""
        engine = engine_of(self.spec, self._weights, self._place(self.threads), ranks)
        self._engines.add(engine)
        if self.ranks is not None:
            self.ranks.engines.add(engine)
        return engine

    def _place(self, threads: int) -> Place:
        return Place(
            self.place, threads, self._kv_cache_dtype, self.deterministic, self.detect_overflow
        )

    @property
    def device(self) -> torch.device:
        """The device that it runs on; `place` is the same without torch."""
        import torch

        return torch.device(str(self.place))

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights, as load() chose it; `dtype_name` is the same without torch."""
        return torch_dtype(self.dtype_name)

    @property
    def kv_cache_dtype(self) -> torch.dtype:
        """The type of keys and values, as load() chose it."""
        return torch_dtype(self._kv_cache_dtype)

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
        """Names of an int8 model's linear weights that stay in 16 bits, as int8 is too coarse for
        them: in bfloat16, on a GPU in the 16-bit type. Empty for a model of another type."""
        return [
            name
            for name, weight in self._weights.items()
            if self.dtype_name == "int8"
            and is_linear(name)
            and name_of(weight.dtype) not in QUANTISED
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
    def busy_seconds(self) -> float:
        """Seconds in which it has computed, of all calls so far."""
        return self._runner.busy_seconds + self._engine.busy_seconds

    @property
    def graph_nodes(self) -> int:
        """Nodes of the CUDA graph of the last call's decoding step; 0 on the CPU."""
        return self._runner.graph_nodes

    def overflow_statistics(self) -> list[TensorOverflow]:
        """How large the numbers of each tensor have become, in all calls and in its engines that
        are open; in the order of the model. Raises ValueError for a model that was loaded without
        detect_overflow=True."""
        if not self.detect_overflow:
            raise ValueError(
                "nobody has looked at this model's numbers: load it with detect_overflow=True"
            )
        return merged([self._runner.overflow(), *(each.overflow() for each in self._engines)])

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that load() was given, or that in the model's directory. Raises ValueError
        where there is none."""
        return self._tokenizer

    @cached_property  # apart, because pyright takes one for no property of a protocol
    def _tokenizer(self) -> Tokenizer:
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

    def _own_tokenizer(self) -> Tokenizer | None:
        return None if self._files_of_tokenizer is None else self.tokenizer

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes a directory that load() takes, with the weights as they are in memory here.

        Loading it maps the weights: nothing is converted, and processes share the memory. It holds
        the configuration and the tokenizer too, and is for the CPU alone. Raises
        NotImplementedError for a model on a GPU, ValueError for a directory that holds a
        checkpoint.
        """
        if self._ranks is not None:
            raise NotImplementedError(
                "a model with tensor_parallel has a part of the weights on each rank: load it "
                "whole, and save that"
            )
        if self.place.type != "cpu":
            raise NotImplementedError(
                f"only a model on the CPU can be saved, this one is on {self.place}: pass "
                'device="cpu" to load()'
            )
        arrays = {name: as_array(weight) for name, weight in self._weights.items()}
        save(
            Path(directory),
            ConvertedWeights(self.any_spec, self.dtype_name, arrays),
            self.config,
            self.generation_config,
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


def torch_dtype(name: str) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype
