"""Keys and values in bfloat16 on the CPU: each number is rounded once, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.test_attention import (
    SHARED,
    Step,
    assert_equal,
    cross_attention,
    cross_inputs,
    offsets_of,
)
from torch import Tensor

from decoding._C import kernels
from tests.conftest import Place, poison, random


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().float()


@pytest.mark.parametrize("dim", [1, 7, 17, 32, 40])
def test_store_shared_rounds_as_torch(isa: str, threads: int, dim: int) -> None:
    kv = random(5, 2, 3, dim)
    special = [0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -3.4e38, 1e-40, float("inf")]
    kv.view(-1)[: min(len(special), kv.numel())] = torch.tensor(special)[: kv.numel()]
    kv[4, 1, 2, 0] = float("nan")
    shared_k, shared_v = (poison(3, 9, dim).bfloat16() for _ in range(2))
    kernels.store_shared(kv, shared_k, shared_v, isa=isa, threads=threads)
    for part, shared in enumerate((shared_k, shared_v)):
        expected = kv[:, part].transpose(0, 1).bfloat16()
        nan = expected.isnan()
        assert torch.equal(shared[:, :5].isnan(), nan)
        assert_equal(shared[:, :5].masked_fill(nan, 0), expected.masked_fill(nan, 0))
        assert shared[:, 5:].isnan().all()


@pytest.mark.parametrize(("shared", "position"), [(SHARED, None), (SHARED, 50), (None, 70)])
@pytest.mark.parametrize(("beams", "dim"), [(1, 64), (3, 17), (4, 40), (11, 64), (2, 256)])
def test_decode_attention(
    isa: str, threads: int, beams: int, dim: int, shared: list[int] | None, position: int | None
) -> None:
    """The bits of float32 keys and values that hold the rounded numbers."""
    exact, narrow = (Step([3, 0, 2], beams, dim, shared, position, Place(isa)) for _ in range(2))
    exact.qkv[:, 1:] = rounded(exact.qkv[:, 1:])
    for name in ("shared", "history"):
        kept = getattr(exact, name)
        if kept is not None:
            setattr(exact, name, kept._replace(k=rounded(kept.k), v=rounded(kept.v)))
            setattr(narrow, name, kept._replace(k=kept.k.bfloat16(), v=kept.v.bfloat16()))
    assert_equal(narrow.run(threads), exact.run())
    if narrow.history is not None and exact.history is not None:
        assert_equal(narrow.history.k, exact.history.k)
        assert_equal(narrow.history.v, exact.history.v)


@pytest.mark.parametrize("dim", [17, 64])
def test_packed_cross_attention(isa: str, threads: int, dim: int) -> None:
    queries, keys = [3, 0, 1, 100], [5, 7, 70, 64]
    q, offsets, k, v, *rest = cross_inputs(Place(isa), queries, keys, 3, dim)
    exact = cross_attention(q, offsets, rounded(k), rounded(v), *rest, isa=isa)
    narrow = cross_attention(
        q, offsets, k.bfloat16(), v.bfloat16(), *rest, isa=isa, threads=threads
    )
    assert_equal(narrow, exact)


@pytest.mark.parametrize("dim", [15, 64])
def test_attention_weights(isa: str, threads: int, dim: int) -> None:
    q, k = random(6, 3, dim), random(3, 80, dim, seed=1)
    found = []
    for keys in (rounded(k), k.bfloat16()):
        y = poison(1, 6, 70)
        kernels.attention_weights(
            q,
            torch.tensor([0, 1]).int(),
            y,
            dim**-0.5,
            3,
            shared_k=keys,
            shared_offsets=offsets_of([70, 10]),
            now=torch.tensor([1, 0, 2]).int(),
            isa=isa,
            threads=threads,
        )
        found.append(y)
    assert_equal(*found)
