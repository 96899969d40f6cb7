"""Attention kernels: packed, and of decode steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.cases.kernel_case import Call, Case, Place, Set
from decoding import _kernels as kernels

HEAD_DIM = 64


def packed_attention(
    place: Place,
    sentences: int,
    longest: int,
    heads: int,
    causal: bool = False,
    head_dim: int = HEAD_DIM,
) -> Case:
    """Lengths from 0.2 to 1.0 of the longest, 0.6 on average."""
    lengths = torch.linspace(0.2 * longest, longest, sentences).round().int()
    tokens = int(lengths.sum())
    offsets = place.ints(functional.pad(lengths.cumsum(0), (1, 0)))
    valid = (torch.arange(longest) < lengths[:, None]).to(place.device)
    mask = None if causal else valid[:, None, None, :]

    def make() -> Set:
        qkv = place.random(tokens, 3, heads, head_dim)
        padded = qkv.new_zeros(sentences, longest, 3, heads, head_dim)
        padded[valid] = qkv
        parts = [part.transpose(1, 2).contiguous() for part in padded.unbind(2)]
        return qkv, parts, torch.empty_like(qkv[:, 0], memory_format=torch.contiguous_format)

    def ours(s: Set) -> Any:
        kernels.packed_attention(
            s[0].flatten(1, 2), offsets, s[2], head_dim**-0.5, causal, longest=longest, **place.how
        )
        return s[2]

    def sdpa(s: Set) -> Any:
        q, k, v = s[1]
        return functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)

    def varlen(s: Set) -> Any:
        q, k, v = s[0].unbind(1)
        return torch.ops.aten._flash_attention_forward(
            q, k, v, offsets, offsets, longest, longest, 0.0, causal, False
        )[0]

    def packed(y: Tensor) -> Tensor:
        return y.transpose(1, 2)[valid]

    providers: dict[str, Call] = {"ours": ours, "torch sdpa, padded": sdpa}
    if place.device != "cpu" and place.dtype != torch.float32:
        providers["torch varlen"] = varlen
    seen = (lengths.double() ** 2).sum().item() * (0.5 if causal else 1)
    return Case(
        "packed_attention",
        f"{sentences}x{longest} N{heads}"
        + f" D{head_dim}" * (head_dim != HEAD_DIM)
        + " causal" * causal,
        4 * tokens * heads * head_dim * place.dtype.itemsize,
        make,
        providers,
        operations=4 * seen * heads * head_dim,
        warm=place.device == "cpu",  # the product before it has just written q, k and v
        comparable={"torch sdpa, padded": packed},
    )


def self_attention(place: Place, batch: int, beams: int, heads: int, position: int) -> Case:
    """The new token of each row over its own history, in pages of 16 positions that lie anywhere.
    torch has the history gathered already."""
    rows, scale = batch * beams, HEAD_DIM**-0.5
    active, state = place.active(batch, 2, position), place.ints([2, batch])
    slots = place.ints(torch.arange(rows)).view(1, rows, 1).repeat(2, 1, position + 1)
    longest = -(-(position + 1) * beams // 16)
    pages = torch.randperm(batch * longest, generator=torch.Generator().manual_seed(0))
    tables = {"cache_indirection": slots, "self_pages": place.ints(pages).view(batch, longest)}
    cells = torch.arange(position + 1) * beams + torch.arange(rows)[:, None] % beams
    page = pages.view(batch, longest)[torch.arange(rows)[:, None] // beams, cells // 16]
    scratch = attention_scratch(place)

    def make() -> Set:
        qkv = place.random(rows, 3, heads, HEAD_DIM)
        k, v = (place.random(heads, batch * longest, 16, HEAD_DIM) for _ in range(2))
        k[:, page[:, -1], cells[:, -1] % 16] = qkv[:, 1].transpose(0, 1)
        v[:, page[:, -1], cells[:, -1] % 16] = qkv[:, 2].transpose(0, 1)
        gathered = [x[:, page, cells % 16].transpose(0, 1).contiguous() for x in (k, v)]
        return qkv, k, v, torch.empty_like(qkv[:, 0].contiguous()), *gathered

    def ours(s: Set) -> Any:
        qkv, k, v, y = s[:4]
        history = {"k_pages": k, "v_pages": v, "state": state, **tables}
        kernels.decode_attention(
            qkv.flatten(1, 2), active, y, scale, beams, **history, **scratch, **place.how
        )
        return y

    def theirs(s: Set) -> Any:
        qkv, _, _, _, k, v = s
        return functional.scaled_dot_product_attention(qkv[:, 0, :, None], k, v)[:, :, 0]

    numbers = rows * heads * HEAD_DIM * (2 * position + 6)
    return Case(
        "decode_attention",
        f"self {batch}x{beams} N{heads} T{position + 1}",
        numbers * place.dtype.itemsize,
        make,
        {"ours": ours, "torch sdpa": theirs},
        operations=4 * rows * heads * HEAD_DIM * (position + 1),
    )


def cross_attention(place: Place, batch: int, beams: int, heads: int, source: int) -> Case:
    """The beams of a sentence over its source, whose keys and values torch too has only once. Ours
    lie in pages of 16 positions, anywhere; torch's in one piece."""
    rows, scale = batch * beams, HEAD_DIM**-0.5
    active, state = place.active(batch, 2, 1), place.ints([2, batch])
    longest = -(-source // 16)
    pages = torch.randperm(batch * longest, generator=torch.Generator().manual_seed(0))
    tables = {
        "shared_pages": place.ints(pages).view(batch, longest),
        "shared_lengths": place.ints([source] * batch),
    }
    cells = torch.arange(source)
    page = pages.view(batch, longest)[:, cells // 16]
    scratch = attention_scratch(place)

    def make() -> Set:
        q = place.random(rows, heads, HEAD_DIM)
        k, v = (place.random(heads, batch * longest, 16, HEAD_DIM) for _ in range(2))
        gathered = [x[:, page, cells % 16].transpose(0, 1).contiguous() for x in (k, v)]
        return q, k, v, torch.empty_like(q), *gathered

    def ours(s: Set) -> Any:
        q, k, v, y = s[:4]
        shared = {"k_pages": k, "v_pages": v, "state": state, **tables}
        kernels.decode_attention(q, active, y, scale, beams, **shared, **scratch, **place.how)
        return y

    def theirs(s: Set) -> Any:
        q, _, _, y, k, v = s
        q = q.view(batch, beams, heads, HEAD_DIM).transpose(1, 2)
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(y.shape)

    numbers = 2 * heads * HEAD_DIM * (rows + batch * source)
    return Case(
        "decode_attention",
        f"cross {batch}x{beams} N{heads} S{source}",
        numbers * place.dtype.itemsize,
        make,
        {"ours": ours, "torch sdpa": theirs},
        operations=4 * rows * heads * HEAD_DIM * source,
    )


def attention_scratch(place: Place) -> dict[str, Tensor]:
    """see SplitScratch in csrc/kernels/attention/decode.h; nothing on a CPU."""
    if place.device == "cpu":
        return {}
    partial = torch.empty(512 * 8 * (HEAD_DIM + 2), device=place.device)
    return {
        "partial": partial,
        "split_counters": torch.zeros_like(partial[:256], dtype=torch.int32),
    }
