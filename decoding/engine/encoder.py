"""Hidden states of token ids, by an encoder alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from decoding import _C
from decoding.common.arrays import Array
from decoding.common.device import Device
from decoding.common.shapes import described
from decoding.engine.devices import check_torch
from decoding.engine.limits import Limits, next_bucket
from decoding.engine.pool import PooledEngine
from decoding.engine.request import PackedTokens
from decoding.generation.batching import (
    TokenBatch,
    as_table,
    common_device,
    source_batch,
    split,
)
from decoding.models.spec import EncoderSpec
from decoding.models.weights.dtypes import Stored, as_tensor, name_of


@dataclass(frozen=True, repr=False)
class Encoded:
    """Named as in transformers, in the model's type (float32 on a CPU).

    last_hidden_state: [B, T, H], 0 where a token is masked. pooler_output: [B, H], None where the
    model has no pooler.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={described(value)}" for name, value in vars(self).items())
        return f"Encoded({said})"


class EncoderSession(PooledEngine):
    """Computes hidden states with an encoder alone: one sub-batch at a time.

    weights: as the engine has them; dtype: of its numbers.
    """

    _engine: _C.EncoderSession

    def __init__(
        self,
        spec: EncoderSpec,
        engine: _C.EncoderSession,
        weights: Mapping[str, Stored],
        *,
        device: Device,
        limits: Limits | None,
    ) -> None:
        self.spec = spec
        self.dtype = torch.float32
        if device.type == "cuda":
            check_torch()
            self.dtype = getattr(torch, name_of(weights["encoder.embed.tokens"].dtype))
        self._weights = weights
        self._broken: dict[str, int] = {}  # rows of each tensor that errors have told of
        super().__init__(engine, device=device, limits=limits)

    def encode(self, source: PackedTokens) -> Tensor:
        """[tokens, H], on the model's device. Errors as in Session.run."""
        with self._own_turn():
            stream = self._stream()
            self._reserve(
                Limits(batch=len(source), beams=1, source=source.longest, target=1, eos=0)
            )
            shape = (len(source.ids), self.spec.encoder.hidden)
            states = torch.empty(shape, dtype=self.dtype, device=str(self.device))
            self._engine.encode(source.ids, source.positions, source.offsets, states, stream=stream)
            return states

    def check_finite(self, found: Tensor) -> None:
        """found: [B, ...], what was made of the states of each item. Raises decoding.Error for the
        first one with NaN or infinities, as generate() does, and names the tensor where
        detect_overflow has looked."""
        if math.isfinite(found.sum(dtype=torch.float32).item()):  # most often: one pass
            return
        broken = found.isfinite().flatten(1).all(1).logical_not().nonzero()
        if not len(broken):
            return
        counts = {name: rows for name, _, rows in self.overflow()}
        names = [name for name, rows in counts.items() if rows > self._broken.get(name, 0)]
        self._broken = counts
        raise _C.Error(
            f"the model's hidden states are not finite (NaN or infinite) for item {int(broken[0])}"
            + (f", first in the {names[0]}" if names else "")
        )

    def pool(self, first: Tensor) -> Tensor | None:
        """The pooler's [B, H] of each row's first state [B, H]."""
        if not self.spec.pooler:
            return None
        weight, bias = (
            as_tensor(self._weights[f"pooler.{kind}"]).to(first) for kind in ("weight", "bias")
        )
        return F.linear(first, weight, bias).tanh()

    def _bucket(self, needed: Limits) -> Limits:
        source = min(next_bucket(needed.source), self.spec.encoder.positions)
        return replace(needed, batch=next_bucket(needed.batch), source=source)


def encode(
    session: EncoderSession, input_ids: Any, attention_mask: Any, token_type_ids: Any
) -> Encoded:
    """See Model.encode."""
    given = {"input_ids": input_ids, "attention_mask": attention_mask}
    device = common_device(session.device, **given, token_type_ids=token_type_ids)
    stack = session.spec.encoder
    batch = source_batch(input_ids, attention_mask, stack.vocab)
    check_positions(batch, session.spec)
    types = None if token_type_ids is None else as_types(token_type_ids, batch, stack.types)
    states = torch.zeros(
        (batch.ids.size, stack.hidden), dtype=session.dtype, device=str(session.device)
    )
    most = None if session.limits is None else session.limits.batch
    rows = np.arange(batch.ids.size).reshape(batch.ids.shape)  # of `states`, of each token
    for chosen in split(batch.lengths, 1, most, session.device.type):
        own = None if types is None else types[chosen]
        source = pack(batch.select(chosen), session.spec, own)
        where = rows[chosen] if batch.mask is None else rows[chosen][batch.mask[chosen]]
        places = torch.from_numpy(where.reshape(-1)).to(states.device)  # while the GPU is free
        states.index_copy_(0, places, session.encode(source))
    session.check_finite(states.view(len(batch), -1))
    first = rows[:, 0] if batch.mask is None else rows[:, 0] + batch.mask.argmax(1)
    pooled = session.pool(states[torch.from_numpy(first).to(states.device)])
    return Encoded(
        states.view(*batch.ids.shape, -1).to(device),
        None if pooled is None else pooled.to(device),
    )


def positions(batch: TokenBatch, pad: int | None) -> Array:
    """int64 [B, W], the position of each token. pad: as in EncoderSpec."""
    if pad is None:
        return np.tile(np.arange(batch.width), (len(batch), 1))
    counts = batch.ids != pad
    return np.where(counts, counts.cumsum(1), 0)


def unmasked(table: Array, batch: TokenBatch) -> Array:
    """[tokens], of [B, W]: those that are not masked."""
    return table.reshape(-1) if batch.mask is None else table[batch.mask]


def check_positions(batch: TokenBatch, spec: EncoderSpec) -> None:
    needed = int(unmasked(positions(batch, spec.pad), batch).max()) + (spec.pad is None)
    if needed > spec.longest:
        raise ValueError(
            f"input_ids has a row that needs {needed} positions, the model has {spec.longest}: "
            "split or shorten it"
        )


def as_types(token_type_ids: Any, batch: TokenBatch, count: int) -> Array:
    """int64 [B, W]."""
    types, _ = as_table("token_type_ids", token_type_ids, fill=0, pad_left=False)
    if types.shape != batch.ids.shape:
        raise ValueError(
            f"token_type_ids must have the shape of the ids, {list(batch.ids.shape)}; "
            f"got {list(types.shape)}"
        )
    if types.min() < 0 or types.max() >= count:
        raise ValueError(f"token_type_ids must be 0 to {count - 1}, as the model has {count} types")
    return types


def pack(batch: TokenBatch, spec: EncoderSpec, types: Array | None = None) -> PackedTokens:
    """types: int64 [B, W]; the position table holds the positions' rows of each type."""
    table = positions(batch, spec.pad)
    if types is not None:
        table = table + types * spec.encoder.positions
    return replace(batch.pack(), positions=unmasked(table, batch).astype(np.int32))
