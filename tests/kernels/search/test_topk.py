"""topk against a stable sort."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoding import _C
from decoding import _kernels as kernels
from tests.conftest import random


def expected(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Best first, lower ids first among equals; (-inf, -1) behind the last finite element."""
    values, ids = x.sort(dim=-1, descending=True, stable=True)
    missing = max(0, k - x.shape[1])
    values = torch.nn.functional.pad(values[:, :k], (0, missing), value=-math.inf)
    ids = torch.nn.functional.pad(ids[:, :k], (0, missing))
    return values, ids.where(values > -math.inf, -1).int()


def check(x: Tensor, k: int, isa: str, threads: int) -> None:
    values, ids = kernels.topk(x, k, isa=isa, threads=threads)
    best, at = expected(x, k)
    assert torch.equal(values, best)
    assert torch.equal(ids, at)


@pytest.mark.parametrize("vocab", [1, 127, 128, 129, 1000, 32000])
@pytest.mark.parametrize("k", [1, 2, 8, 130, 260])
def test_equals_sort(isa: str, threads: int, vocab: int, k: int) -> None:
    check(random(4, vocab), k, isa, threads)


@given(
    isa=st.sampled_from(_C.isas()),
    threads=st.sampled_from([1, 2, 3]),
    vocab=st.sampled_from([1, 5, 127, 128, 129, 255, 256, 257, 1000]),
    k=st.integers(1, 300),
    levels=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_ties_and_banned_tokens(
    isa: str, threads: int, vocab: int, k: int, levels: int, seed: int
) -> None:
    """Few different values, one of them -inf."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.cat([torch.randn(levels, generator=generator), torch.tensor([-math.inf])])
    x = values[torch.randint(levels + 1, (3, vocab), generator=generator)]
    check(x, k, isa, threads)


def test_one_value_everywhere(isa: str) -> None:
    check(torch.zeros(2, 32000), 8, isa, 2)
    check(torch.full((2, 32000), -math.inf), 8, isa, 2)


def test_a_broken_row_leaves_the_others_alone(isa: str, threads: int) -> None:
    x = random(4, 1000)
    clean = expected(x, 8)
    x[1], x[2, ::3], x[2, 7] = math.nan, math.nan, math.inf
    values, ids = kernels.topk(x, 8, isa=isa, threads=threads)
    assert torch.equal(values[[0, 3]], clean[0][[0, 3]])
    assert torch.equal(ids[[0, 3]], clean[1][[0, 3]])
    assert bool((ids >= -1).all()) and bool((ids < 1000).all())
