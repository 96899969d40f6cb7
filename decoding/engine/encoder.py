"""Hidden states: what an encoder alone makes of token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from decoding import _C
from decoding.engine.limits import Limits, next_bucket
from decoding.engine.runner import Runner
from decoding.generation.batching import (
    Array,
    Packed,
    Rows,
    as_table,
    common_device,
    source_rows,
    split,
)
from decoding.models.spec import EncoderSpec
from decoding.models.weights.memory import CPU


@dataclass(frozen=True)
class Encoded:
    """Named as in transformers, in the model's type (float32 on a CPU).

    last_hidden_state: [B, T, H], 0 where a token is masked. pooler_output: [B, H], None where the
    model has no pooler.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None


class EncoderSession(Runner):
    """What an encoder alone does: one sub-batch at a time.

    weights: as the engine has them; dtype: of its numbers.
    """

    _engine: _C.EncoderSession

    def __init__(
        self,
        spec: EncoderSpec,
        engine: _C.EncoderSession,
        weights: Mapping[str, Tensor],
        *,
        device: torch.device = CPU,
        limits: Limits | None,
    ) -> None:
        self.spec = spec
        self.dtype = torch.float32
        if device.type == "cuda":
            self.dtype = weights["encoder.embed.tokens"].dtype
        self._weights = weights
        super().__init__(engine, device=device, limits=limits)

    def encode(self, source: Packed) -> Tensor:
        """[tokens, H], on the model's device. Errors as in Session.run."""
        with self._turn:
            stream = self._stream()
            self._reserve(
                Limits(batch=len(source), beams=1, source=source.longest, target=1, eos=0)
            )
            shape = (len(source.ids), self.spec.encoder.hidden)
            states = torch.empty(shape, dtype=self.dtype, device=self.device)
            self._engine.encode(source.ids, source.at, source.offsets, states, stream=stream)
            return states

    def pool(self, first: Tensor) -> Tensor | None:
        """The pooler's [B, H] of each row's first state [B, H]."""
        if not self.spec.pooler:
            return None
        weight, bias = (self._weights[f"pooler.{kind}"].to(first) for kind in ("weight", "bias"))
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
    rows = source_rows(input_ids, attention_mask, stack.vocab)
    check_places(rows, session.spec)
    types = None if token_type_ids is None else types_of(token_type_ids, rows, stack.types)
    states = torch.zeros((rows.ids.size, stack.hidden), dtype=session.dtype, device=session.device)
    most = None if session.limits is None else session.limits.batch
    places = np.arange(rows.ids.size).reshape(rows.ids.shape)
    for chosen in split(rows.lengths, 1, most, session.device.type):
        source = packed(rows.only(chosen), session.spec, None if types is None else types[chosen])
        where = places[chosen] if rows.mask is None else places[chosen][rows.mask[chosen]]
        states[torch.from_numpy(where.reshape(-1)).to(states.device)] = session.encode(source)
    first = places[:, 0] if rows.mask is None else places[:, 0] + rows.mask.argmax(1)
    pooled = session.pool(states[torch.from_numpy(first).to(states.device)])
    return Encoded(
        states.view(*rows.ids.shape, -1).to(device),
        None if pooled is None else pooled.to(device),
    )


def places(rows: Rows, pad: int | None) -> Array:
    """int64 [B, W], the position of each token. pad: as in EncoderSpec."""
    if pad is None:
        return np.tile(np.arange(rows.width), (len(rows), 1))
    counts = rows.ids != pad
    return np.where(counts, counts.cumsum(1), 0)


def counted(table: Array, rows: Rows) -> Array:
    """[tokens], of those that are not masked."""
    return table.reshape(-1) if rows.mask is None else table[rows.mask]


def check_places(rows: Rows, spec: EncoderSpec) -> None:
    needed = int(counted(places(rows, spec.pad), rows).max()) + (spec.pad is None)
    if needed > spec.longest:
        raise ValueError(
            f"input_ids has a row that needs {needed} positions, the model has {spec.longest}: "
            "split or shorten it"
        )


def types_of(token_type_ids: Any, rows: Rows, count: int) -> Array:
    """int64 [B, W]."""
    types, _ = as_table("token_type_ids", token_type_ids, fill=0, pad_left=False)
    if types.shape != rows.ids.shape:
        raise ValueError(
            f"token_type_ids must have the shape of the ids, {list(rows.ids.shape)}; "
            f"got {list(types.shape)}"
        )
    if types.min() < 0 or types.max() >= count:
        raise ValueError(f"token_type_ids must be 0 to {count - 1}, as the model has {count} types")
    return types


def packed(rows: Rows, spec: EncoderSpec, types: Array | None = None) -> Packed:
    """types: int64 [B, W]; the position table holds the positions' rows of each type."""
    at = places(rows, spec.pad)
    if types is not None:
        at = at + types * spec.encoder.positions
    return replace(rows.pack(), at=torch.from_numpy(counted(at, rows).astype(np.int32)))
