"""Binds a checkpoint's weights to the engine of a device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from decoding import _C
from decoding.common.device import CPU, Device
from decoding.common.environment import instruction_set
from decoding.engine.allocation import empty
from decoding.engine.devices import FP8
from decoding.engine.limits import Limits, check_limits
from decoding.engine.memory import OutOfMemoryError, available_memory, available_text
from decoding.engine.ranks import Ranks
from decoding.engine.session import Session
from decoding.models import Loaded
from decoding.models.spec import EncoderSpec, ModelSpec
from decoding.models.weights.dtypes import Stored
from decoding.models.weights.panels import Packer
from decoding.models.weights.placed import pack, repack

if TYPE_CHECKING:
    from decoding.engine.encoder import EncoderSession

Bound = dict[str, Stored]  # an engine's weights


def weights_on(loaded: Loaded, device: Device, dtype: str, threads: int, half: str) -> Bound:
    """threads: that convert weights. half: the type of what is no int8 in an int8 model."""
    if loaded.packed and device == CPU:
        return dict(loaded.state)
    packer = engine_packer(threads, device)
    try:
        if loaded.packed:
            return repack(loaded.state, loaded.spec, packer, half)
        return pack(loaded.state, loaded.spec, packer, device.type, dtype, half)
    except MemoryError as error:
        there = available_text(available_memory(device))
        message = f"the weights do not fit into the memory of {device}, {there}"
        raise OutOfMemoryError(message) from error


def engine_packer(threads: int, device: Device = CPU) -> Packer:
    return Packer(
        partial(_C.fill_panels, threads=threads),
        partial(_C.squares, threads=threads),
        partial(_C.convert, threads=threads),
        partial(_C.interleave, threads=threads),
        partial(empty, device=device),
    )


@dataclass(frozen=True)
class Place:
    """Where a model runs, and how. threads: of a CPU. kv_cache_dtype, deterministic and
    detect_overflow: as load() chose them."""

    device: Device
    threads: int
    kv_cache_dtype: str
    deterministic: bool
    detect_overflow: bool

    def arguments(self, *, caches: bool = True) -> dict[str, Any]:
        """Those of a compiled session. caches: whether it keeps keys and values."""
        found: dict[str, Any] = {"detect_overflow": self.detect_overflow}
        if self.device.type == "cuda":
            if caches and self.kv_cache_dtype == FP8:
                found["cache"] = FP8
            return found | {"device": self.device.index, "deterministic": self.deterministic}
        found |= {"threads": self.threads, "isa": instruction_set(_C.isas())}
        if caches:
            found["cache"] = self.kv_cache_dtype
        return found


def runner_of(
    spec: ModelSpec | EncoderSpec,
    weights: Bound,
    limits: Limits | None,
    place: Place,
    ranks: Ranks | None = None,
) -> Session | EncoderSession:
    """ranks: those that the model is split over. Raises TypeError and ValueError for limits that
    the model cannot have."""
    if limits is not None:
        check_limits(limits, spec)
    if isinstance(spec, EncoderSpec):
        from decoding.engine.encoder import EncoderSession  # with torch

        encoder = _C.EncoderSession(spec, weights, **place.arguments(caches=False))
        return EncoderSession(spec, encoder, weights, device=place.device, limits=limits)
    arguments = place.arguments()
    if ranks is not None:
        arguments["collective"] = ranks.ours
    session = _C.Session(spec, weights, **arguments)
    return Session(spec, session, device=place.device, limits=limits, ranks=ranks)


def engine_of(
    spec: ModelSpec, weights: Bound, place: Place, ranks: Ranks | None = None
) -> _C.Engine:
    """A compiled engine for decoding.Engine. ranks: as in runner_of()."""
    arguments = place.arguments()
    if ranks is not None:
        arguments["collective"] = ranks.ours
    return _C.Engine(spec, weights, **arguments)
