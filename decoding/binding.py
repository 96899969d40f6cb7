"""Binds a checkpoint's weights to the engine of a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from decoding import _C
from decoding.common.environment import instruction_set
from decoding.engine.encoder import EncoderSession
from decoding.engine.limits import Limits, check_limits
from decoding.engine.memory import available_memory, available_text
from decoding.engine.session import Session
from decoding.models import Loaded
from decoding.models.spec import EncoderSpec, ModelSpec
from decoding.models.weights.panels import Packer
from decoding.models.weights.placed import pack


def weights_on(
    loaded: Loaded, device: torch.device, dtype: torch.dtype, threads: int
) -> dict[str, Tensor]:
    """threads: that pack weights for the CPU."""
    try:
        with one_torch_thread():
            packer = engine_packer(threads) if device.type == "cpu" else Packer()
            return pack(loaded.state, loaded.spec, device, dtype, packer)
    except torch.OutOfMemoryError as error:
        there = available_text(available_memory(device))
        raise _C.Error(f"the weights do not fit into the memory of {device}, {there}") from error


def engine_packer(threads: int) -> Packer:
    return Packer(
        partial(_C.fill_panels, threads=threads),
        partial(_C.squares, threads=threads),
        partial(_C.convert, threads=threads),
    )


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Torch would wake its threads for hundreds of small tensors, and wait for them each time: for
    seconds where other programs keep the cores busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Place:
    """Where a model runs, and how. threads: of a CPU. kv_cache_dtype and deterministic: as load()
    chose them."""

    device: torch.device
    threads: int
    kv_cache_dtype: torch.dtype
    deterministic: bool

    def arguments(self, *, caches: bool = True) -> dict[str, Any]:
        """Those of a compiled session. caches: whether it keeps keys and values."""
        if self.device.type == "cuda":
            return {"device": self.device.index, "deterministic": self.deterministic}
        found = {"threads": self.threads, "isa": instruction_set(_C.isas())}
        if caches:
            found["cache"] = str(self.kv_cache_dtype).removeprefix("torch.")
        return found


def runner_of(
    spec: ModelSpec | EncoderSpec, weights: dict[str, Tensor], limits: Limits | None, place: Place
) -> Session | EncoderSession:
    """Raises TypeError and ValueError for limits that the model cannot have."""
    if limits is not None:
        check_limits(limits, spec)
    if isinstance(spec, EncoderSpec):
        encoder = _C.EncoderSession(spec, weights, **place.arguments(caches=False))
        return EncoderSession(spec, encoder, weights, device=place.device, limits=limits)
    session = _C.Session(spec, weights, **place.arguments())
    return Session(spec, session, device=place.device, limits=limits)


def engine_of(spec: ModelSpec, weights: dict[str, Tensor], place: Place) -> _C.Engine:
    """A compiled engine for decoding.Engine."""
    return _C.Engine(spec, weights, **place.arguments())
