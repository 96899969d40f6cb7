"""Keys and values of packed rows, where decode attention reads them."""

from __future__ import annotations

import pytest
import torch

from decoding import _kernels as kernels
from tests.conftest import Place, poison, random
from tests.support.attention import assert_equal, put


@pytest.mark.parametrize("dim", [17, 32])
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_store_shared(place: Place, threads: int, tokens: int, dim: int) -> None:
    (kv,) = put(place, random(tokens, 2, 3, dim))
    shared_k, shared_v = (poison(3, 9, dim).to(kv) for _ in range(2))
    kernels.store_shared(kv, shared_k, shared_v, isa=place.isa, threads=threads)
    for part, shared in enumerate((shared_k, shared_v)):
        assert_equal(shared[:, :tokens], kv[:, part].transpose(0, 1))
        assert shared[:, tokens:].isnan().all()


@pytest.mark.parametrize("dim", [1, 7, 17, 32, 40])
def test_bfloat16_is_rounded_as_by_torch(isa: str, threads: int, dim: int) -> None:
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
