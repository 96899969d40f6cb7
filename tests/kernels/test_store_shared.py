"""Keys and values of packed rows, where decode attention reads them."""

from __future__ import annotations

import pytest
import torch

from decoding._C import kernels
from tests.conftest import Place, poison, random
from tests.kernels.attention import assert_equal, put


@pytest.mark.parametrize("dim", [17, 32])
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_store_shared(place: Place, threads: int, tokens: int, dim: int) -> None:
    (kv,) = put(place, random(tokens, 2, 3, dim))
    shared_k, shared_v = (poison(3, 9, dim).to(kv) for _ in range(2))
    kernels.store_shared(kv, shared_k, shared_v, isa=place.isa, threads=threads)
    for part, shared in enumerate((shared_k, shared_v)):
        assert_equal(shared[:, :tokens], kv[:, part].transpose(0, 1))
        assert shared[:, tokens:].isnan().all()


def test_store_shared_in_bfloat16(isa: str) -> None:
    kv = random(5, 2, 3, 17)
    shared_k, shared_v = (torch.zeros(3, 5, 17, dtype=torch.bfloat16) for _ in range(2))
    kernels.store_shared(kv, shared_k, shared_v, isa=isa, threads=2)
    for part, shared in enumerate((shared_k, shared_v)):
        assert_equal(shared, kv[:, part].transpose(0, 1).bfloat16())
