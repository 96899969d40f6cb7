"""Attention of packed rows to keys in pages: a decoder's, to the source. Against torch."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from decoding import _kernels as kernels
from tests.conftest import Place, assert_within_torch, poison, random
from tests.support.attention import DIMS, HEADS, assert_equal, attend, offsets_of, put
from tests.support.pages import Pool, cells_of, deal, pages_of


class Paged(NamedTuple):
    """What the kernel reads. Cells that nobody has are poisoned."""

    q: Tensor  # [tokens, N, D]
    offsets: Tensor
    k_pages: Tensor
    v_pages: Tensor
    pages: Tensor
    lengths: Tensor
    scale: float

    def run(self, isa: str, threads: int = 1) -> Tensor:
        y = poison(*self.q.shape).to(self.q)
        keys = {name: getattr(self, name) for name in ("k_pages", "v_pages", "pages", "lengths")}
        kernels.paged_attention(
            self.q, self.offsets, y, self.scale, False, **keys, isa=isa, threads=threads
        )
        return y

    def check(self, y: Tensor) -> None:
        assert_within_torch(paged_reference, y, *self)


def paged_reference(
    q: Tensor,
    offsets: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    pages: Tensor,
    lengths: Tensor,
    scale: float,
) -> Tensor:
    y, pool = torch.zeros_like(q), Pool(k_pages, v_pages)
    for b, (begin, end) in enumerate(pairwise(offsets.tolist())):
        if lengths[b] > 0:
            positions = torch.arange(int(lengths[b]), device=q.device)
            y[begin:end] = attend(q[begin:end], *pool.read(cells_of(pages, b, positions)), scale)
    return y


def paged(
    place: Place, queries: list[int], keys: list[int], heads: int, dim: int, kv_heads: int = 0
) -> Paged:
    total, (table,) = deal(len(keys), pages_of(max(keys)))
    pool = Pool.poisoned(kv_heads or heads, total, dim)
    for b, length in enumerate(keys):
        own = random(2, length, kv_heads or heads, dim, seed=3 + b)
        pool.write(cells_of(table, b, torch.arange(length)), *own)
    q, lengths = random(sum(queries), heads, dim), torch.tensor(keys).int()
    q, offsets, k, v, table, lengths = put(place, q, offsets_of(queries), *pool, table, lengths)
    return Paged(q, offsets, k, v, table, lengths, dim**-0.5)


@pytest.mark.parametrize("dim", DIMS)
def test_paged_equals_torch(place: Place, threads: int, dim: int) -> None:
    queries, keys = [3, 0, 1, 64, 100, 2, 5, 130], [5, 7, 1, 33, 64, 0, 130, 65]
    case = paged(place, queries, keys, 3, dim)
    y = case.run(place.isa, threads)
    case.check(y)
    assert (y[168:170] == 0).all()  # the sentence without keys


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_paged_with_shared_heads(place: Place, heads: int, kv_heads: int) -> None:
    case = paged(place, [3, 70, 0, 1], [5, 33, 7, 100], heads, 40, kv_heads)
    case.check(case.run(place.isa))


def test_a_sentence_does_not_depend_on_its_batch(place: Place, threads: int) -> None:
    case = paged(place, [3, 150, 64, 1], [70, 5, 130, 0], 2, 40)
    together = case.run(place.isa, threads)
    for b, (begin, end) in enumerate(pairwise(case.offsets.tolist())):
        alone = case._replace(
            q=case.q[begin:end],
            offsets=offsets_of([end - begin]).to(place.device),
            pages=case.pages[b : b + 1].clone(),
            lengths=case.lengths[b : b + 1].clone(),
        )
        assert_equal(together[begin:end], alone.run(place.isa))


def test_keys_and_values_in_bfloat16(isa: str) -> None:
    """As with float32 that holds the same numbers."""
    case = paged(Place(isa), [3, 70, 0, 1], [5, 33, 7, 100], 4, 40, 2)
    kept = case._replace(k_pages=case.k_pages.bfloat16(), v_pages=case.v_pages.bfloat16())
    wide = kept._replace(k_pages=kept.k_pages.float(), v_pages=kept.v_pages.float())
    assert_equal(kept.run(isa), wide.run(isa))


def test_keys_in_pages_are_as_packed_ones(place: Place) -> None:
    """To the bit."""
    lengths, heads, kv_heads, dim = [7, 70, 1], 4, 2, 40
    case = paged(place, lengths, lengths, heads, dim, kv_heads)
    pool = Pool(case.k_pages, case.v_pages)
    cells = [cells_of(case.pages, b, torch.arange(n)) for b, n in enumerate(lengths)]
    qkv = torch.cat([case.q, *pool.read(torch.cat(cells))], 1)
    y = poison(*case.q.shape).to(case.q)
    kernels.packed_attention(qkv, case.offsets, y, case.scale, False, isa=place.isa, threads=1)
    assert_equal(case.run(place.isa), y)
