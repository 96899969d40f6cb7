"""Prompts that are read in chunks: causal attention to keys in pages, a chunk's own among them.
Against packed attention of the whole prompt."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from decoding import _kernels as kernels
from tests.conftest import Place, assert_within_torch, random
from tests.support.attention import (
    BIASES,
    HEADS,
    NO_BIAS,
    Bias,
    assert_equal,
    attend,
    offsets_of,
    put,
)
from tests.support.pages import Pool, cells_of, deal, pages_of

LENGTHS = [70, 1, 17, 133, 0, 210, 64]
CHUNKS = [1, 15, 16, 17, 1000]
SCALE = 0.2


class Prompts(NamedTuple):
    qkv: Tensor  # [tokens, N + 2 Nkv, D], packed
    lengths: list[int]
    heads: int
    bias: Bias

    @property
    def kv_heads(self) -> int:
        return (self.qkv.shape[1] - self.heads) // 2

    def read_whole(self, place: Place) -> Tensor:
        """By packed attention, without pages."""
        y = torch.zeros_like(self.qkv[:, : self.heads]).contiguous()
        kernels.packed_attention(
            *(self.qkv, offsets_of(self.lengths).to(place.device), y, SCALE, True),
            **self.bias._asdict(),
            isa=place.isa,
            threads=2,
        )
        return y

    def read_in_chunks(
        self, place: Place, chunk: int, threads: int = 1, cache: torch.dtype | None = None
    ) -> Tensor:
        """The next `chunk` tokens of every sentence, until all have been read."""
        pages, (table,) = deal(len(self.lengths), pages_of(max(self.lengths)))
        pool = Pool.poisoned(self.kv_heads, pages, self.qkv.shape[2])
        pool = Pool(*(x.to(place.device, cache or place.dtype) for x in pool))
        table = table.to(place.device)
        parts = [x.split(chunk) for x in self.qkv.split(self.lengths)]
        found: list[list[Tensor]] = [[] for _ in parts]
        for i in range(max(map(len, parts))):
            chunks = [part[i] if i < len(part) else part[0][:0] for part in parts]
            for b, y in enumerate(self.read(place, pool, table, chunks, i * chunk, threads)):
                found[b].append(y)
        return torch.cat([y for ys in found for y in ys])

    def read(
        self, place: Place, pool: Pool, table: Tensor, chunks: list[Tensor], at: int, threads: int
    ) -> list[Tensor]:
        """A chunk of each sentence, which begins at its position `at`; some are empty."""
        qkv, sizes = torch.cat(chunks), [len(chunk) for chunk in chunks]
        first = [min(at, length) for length in self.lengths]
        cells = [
            cells_of(table, b, torch.arange(first[b], first[b] + n, device=place.device))
            for b, n in enumerate(sizes)
        ]
        kv = qkv[:, self.heads :].contiguous()
        how = {"isa": place.isa, "threads": threads}
        kernels.store_shared(
            kv.view(len(kv), 2, self.kv_heads, -1), torch.cat(cells).int(), *pool, **how
        )
        q = qkv[:, : self.heads].contiguous()
        y = torch.full_like(q, float("nan"))
        lengths, first_queries = (
            torch.tensor(x).int().to(place.device)
            for x in ([a + n for a, n in zip(first, sizes, strict=True)], first)
        )
        kernels.paged_attention(
            *(q, offsets_of(sizes).to(place.device), y, SCALE, True),
            **{"k_pages": pool.k, "v_pages": pool.v, "pages": table, "lengths": lengths},
            first_queries=first_queries,
            **self.bias._asdict(),
            **how,
        )
        return list(y.split(sizes))

    def check(self, y: Tensor) -> None:
        assert_within_torch(prompt_reference, y, self.qkv, self)


def prompt_reference(qkv: Tensor, prompts: Prompts) -> Tensor:
    y = torch.empty_like(qkv[:, : prompts.heads])
    for begin, end in pairwise(offsets_of(prompts.lengths).tolist()):
        parts = [prompts.heads, prompts.kv_heads, prompts.kv_heads]
        q, k, v = qkv[begin:end].split(parts, 1)
        at = torch.arange(end - begin, device=qkv.device)
        y[begin:end] = attend(q, k, v, SCALE, at[:, None] - at, True, prompts.bias)
    return y


def prompts(
    place: Place, heads: int, kv_heads: int, dim: int, bias: Bias, lengths: list[int] = LENGTHS
) -> Prompts:
    (qkv,) = put(place, random(sum(lengths), heads + 2 * kv_heads, dim))
    return Prompts(qkv, lengths, heads, bias)


def lengths_for(chunk: int) -> list[int]:
    """Token by token the longest prompts would take as long as everything else."""
    return LENGTHS if chunk > 1 else [length for length in LENGTHS if length <= 70]


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", [None, *BIASES])
def test_chunks_equal_torch(place: Place, name: str | None, chunk: int) -> None:
    bias = NO_BIAS if name is None else Bias.of(name, 4, place)
    case = prompts(place, 4, 2, 40, bias, lengths_for(chunk))
    case.check(case.read_in_chunks(place, chunk, threads=2))


@pytest.mark.parametrize("dim", [1, 17, 32, 64, 65, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), *HEADS])
def test_chunks_of_all_sizes(place: Place, heads: int, kv_heads: int, dim: int) -> None:
    case = prompts(place, heads, kv_heads, dim, NO_BIAS, [90, 3, 133])
    case.check(case.read_in_chunks(place, 48))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("window", [1, 16, 33, 64, 65, 150])
def test_windows_reach_into_earlier_chunks(place: Place, window: int, chunk: int) -> None:
    case = prompts(place, 2, 2, 32, Bias(window=window))
    case.check(case.read_in_chunks(place, chunk))


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", [60, 250])
@pytest.mark.parametrize("name", [None, "all", "window"])
@pytest.mark.parametrize("dim", [40, 64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_chunks_of_long_prompts(dtype: torch.dtype, dim: int, name: str | None, chunk: int) -> None:
    """A GPU splits the keys before a chunk over the blocks of clusters."""
    place = Place("cuda", dtype)
    bias = NO_BIAS if name is None else Bias.of(name, 4, place)
    case = prompts(place, 4, 2, dim, bias, [2300, 3])
    case.check(case.read_in_chunks(place, chunk))


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", [None, *BIASES])
@pytest.mark.parametrize("dim", [40, 64])
def test_chunks_do_not_change_bits(isa: str, dim: int, name: str | None, chunk: int) -> None:
    """On the CPU, where they are those of a packed pass over the whole prompt."""
    place = Place(isa)
    bias = NO_BIAS if name is None else Bias.of(name, 4, place)
    case = prompts(place, 4, 2, dim, bias, lengths_for(chunk))
    whole = case.read_whole(place)
    for threads in (1, 3):
        assert_equal(case.read_in_chunks(place, chunk, threads), whole)


@pytest.mark.gpu
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", [None, *BIASES])
@pytest.mark.parametrize("dim", [40, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_deterministic_chunks_do_not_change_bits(
    dtype: torch.dtype, dim: int, name: str | None, chunk: int
) -> None:
    """Other requests decide where a chunk ends. Large scores show a sum that is rescaled."""
    place = Place("cuda", dtype)
    case = prompts(place, 4, 2, dim, NO_BIAS if name is None else Bias.of(name, 4, place))
    case = case._replace(qkv=case.qkv * 4)
    assert_equal(case.read_in_chunks(place, chunk), case.read_whole(place))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_of_large_scores_do_not_change_bits(isa: str, chunk: int) -> None:
    """The maximum changes from block to block, and some weights underflow."""
    place = Place(isa)
    case = prompts(place, 4, 2, 32, NO_BIAS)
    case = case._replace(qkv=case.qkv * 20)
    assert_equal(case.read_in_chunks(place, chunk), case.read_whole(place))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_of_keys_in_bfloat16(isa: str, chunk: int) -> None:
    """They read what is stored, as float32 that holds the same numbers."""
    place = Place(isa)
    case = prompts(place, 4, 2, 40, NO_BIAS)
    kept = case.read_in_chunks(place, chunk, cache=torch.bfloat16)
    case.qkv[:, case.heads :] = case.qkv[:, case.heads :].bfloat16().float()
    assert_equal(kept, case.read_whole(place))
