"""Token embeddings with their scale, positions and dropout in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from decoding._C import training
from decoding.nn.dropout import check_probability, new_seed
from decoding.nn.operators import operator


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    scale: float = 1.0,
    positions: Tensor | None = None,
    position: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """dropout(scale * weight[input] + positions[position]); torch.nn.functional.embedding without
    what is its own.

    input: int64 ids of any shape; weight: [V, H]; positions: [P, H], learned or not; position:
    int64 ids that broadcast to the input's shape, by default 0, 1, ... along its last axis.
    dropout: the probability of 0; what is dropped follows from torch's generator of the device and
    is not stored. Ids equal to padding_idx give the table no gradient. The table's gradient has the
    same bits every time, but for float32 on a GPU, unless torch.use_deterministic_algorithms says
    so.

    Raises NotImplementedError for max_norm, scale_grad_by_freq and sparse, ValueError for shapes
    and types that do not fit, IndexError for ids that the tables do not have: on a GPU one of the
    next calls does, and the id's row is NaN.
    """
    refuse(max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)
    check_probability(dropout)
    check_ids(input, "input")
    if weight.ndim != 2:
        raise ValueError(f"weight must be [V, H], got {list(weight.shape)}")
    if position is not None:
        check_ids(position, "position")
        if positions is None:
            raise ValueError("position says which of positions to add: give these too")
        position = position.expand(input.shape).contiguous()
    if positions is not None:
        if positions.ndim != 2 or positions.shape[1] != weight.shape[1]:
            raise ValueError(
                f"positions must be [P, {weight.shape[1]}] as weight, got {list(positions.shape)}"
            )
        positions = positions.to(weight.dtype).contiguous()
    y: Tensor = embed(
        input.contiguous(),
        weight.contiguous(),
        positions,
        position,
        input.shape[-1] if input.ndim else 1,
        padding_row(padding_idx, weight.shape[0]),
        scale,
        dropout,
        new_seed(weight.device) if dropout else None,
    )
    return y


class Embedding(nn.Embedding):
    """torch.nn.Embedding that scales, adds positions and drops out in the same pass.

    positions: [P, H]; an nn.Parameter is learned and stored with the module, a plain tensor (as
    sinusoids are) neither. dropout: in training mode. The rest as in functional.embedding.
    """

    positions: Tensor | None

    def __init__(
        self,
        *args: Any,
        scale: float = 1.0,
        positions: Tensor | None = None,
        dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        refuse(
            max_norm=self.max_norm, scale_grad_by_freq=self.scale_grad_by_freq, sparse=self.sparse
        )
        self.add_to_torchs(scale, positions, dropout)

    def add_to_torchs(
        self, scale: float = 1.0, positions: Tensor | None = None, dropout: float = 0.0
    ) -> None:
        """The options that torch's module lacks."""
        check_probability(dropout)
        self.scale, self.dropout = scale, dropout
        if positions is None or isinstance(positions, nn.Parameter):
            self.register_parameter("positions", positions)
        else:
            self.register_buffer("positions", positions, persistent=False)

    def forward(self, input: Tensor, position: Tensor | None = None) -> Tensor:
        return embedding(
            input,
            self.weight,
            self.padding_idx,
            scale=self.scale,
            positions=self.positions,
            position=position,
            dropout=self.dropout if self.training else 0.0,
        )


def refuse(**options: object) -> None:
    for name, value in options.items():
        if value:
            raise NotImplementedError(f"{name}: torch.nn.Embedding has it")


def check_ids(ids: Tensor, name: str) -> None:
    if ids.dtype != torch.int64:
        raise ValueError(f"{name} must be int64, got {ids.dtype}: {name}.long()")


def padding_row(padding_idx: int | None, rows: int) -> int:
    """The padding index from 0; -1 for none."""
    if padding_idx is None:
        return -1
    if not -rows <= padding_idx < rows:
        raise ValueError(f"padding_idx must be from {-rows} to {rows - 1}, got {padding_idx}")
    return padding_idx % rows


@operator("decoding::embed")
def embed(
    ids: Tensor,
    table: Tensor,
    positions: Tensor | None,
    position: Tensor | None,
    length: int,
    padding: int,
    scale: float,
    dropout: float,
    seed: Tensor | None,
) -> Tensor:
    """[..., H]. ids, position: int64 [...]; table: [V, H]; positions: [P, H], without `position`
    those of the id's number % length; padding: the row of the table that gets no gradient; seed:
    int64 [1]."""
    y = table.new_empty(*ids.shape, table.shape[1])
    training.embed(ids, table, y, positions, position, length, scale, dropout, seed)
    return y


@embed.register_fake
def _(ids: Tensor, table: Tensor, *_: Any) -> Tensor:
    return table.new_empty(*ids.shape, table.shape[1])


@operator("decoding::embed_gradient")
def embed_gradient(
    dy: Tensor,
    ids: Tensor,
    rows: int,
    padding: int,
    scale: float,
    dropout: float,
    seed: Tensor | None,
) -> Tensor:
    """The gradient of a table of so many rows. ids: [...]; dy: [..., H]."""
    order = None
    dtable = dy.new_zeros(rows, dy.shape[-1])
    # Atomic additions need float32, which for a table of half precision were more memory than that.
    atomic = dy.is_cuda and dy.dtype == torch.float32
    if not atomic or torch.are_deterministic_algorithms_enabled():
        ids, order = ids.flatten().sort(stable=True)
    training.embed_backward(dy, ids, order, dtable, padding, scale, dropout, seed)
    return dtable


@embed_gradient.register_fake
def _(dy: Tensor, ids: Tensor, rows: int, *_: Any) -> Tensor:
    return dy.new_empty(rows, dy.shape[-1])


def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ids, table, positions, position, ctx.length, ctx.padding, ctx.scale, ctx.dropout, seed = inputs
    ctx.rows = table.shape[0], 0 if positions is None else positions.shape[0]
    ctx.save_for_backward(ids, position, seed)


def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    ids, position, seed = ctx.saved_tensors
    dy, dtable, dpositions = dy.contiguous(), None, None
    if ctx.needs_input_grad[1]:
        dtable = embed_gradient(dy, ids, ctx.rows[0], ctx.padding, ctx.scale, ctx.dropout, seed)
    if ctx.needs_input_grad[2]:
        if position is None:
            position = torch.arange(ids.numel(), device=ids.device) % ctx.length
        dpositions = embed_gradient(dy, position, ctx.rows[1], -1, 1.0, ctx.dropout, seed)
    return None, dtable, dpositions, *[None] * 6


embed.register_autograd(backward, setup_context=keep)
