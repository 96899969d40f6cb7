"""Keys and values of packed rows, where decode attention reads them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decoding import _kernels as kernels
from tests.conftest import Place, random
from tests.support.attention import assert_equal, put
from tests.support.pages import PAGE, Pool

PAGES = 3


def cells_anywhere(tokens: int) -> Tensor:
    return torch.randperm(PAGES * PAGE, generator=torch.Generator().manual_seed(1))[:tokens].int()


@pytest.mark.parametrize("dim", [17, 32])
@pytest.mark.parametrize("tokens", [0, 1, 5, 40])
def test_store_shared(place: Place, threads: int, tokens: int, dim: int) -> None:
    pool = Pool.poisoned(3, PAGES, dim)
    kv, cells, *pages = put(place, random(tokens, 2, 3, dim), cells_anywhere(tokens), *pool)
    kernels.store_shared(kv, cells, *pages, isa=place.isa, threads=threads)
    expected = Pool(*put(place, *pool))
    expected.write(cells, *kv.unbind(1))
    for ours, wanted in zip(pages, expected, strict=True):
        assert_equal(ours, wanted)


def test_rows_without_a_cell_are_not_stored(place: Place, threads: int) -> None:
    pool = Pool.poisoned(3, PAGES, 32)
    kv, cells, *pages = put(place, random(6, 2, 3, 32), cells_anywhere(6), *pool)
    cells[torch.tensor([1, 4, 5])] = -1
    kernels.store_shared(kv, cells, *pages, isa=place.isa, threads=threads)
    expected = Pool(*put(place, *pool))
    expected.write(cells[cells >= 0], *kv[cells >= 0].unbind(1))
    for ours, wanted in zip(pages, expected, strict=True):
        assert_equal(ours, wanted)


@pytest.mark.parametrize("dim", [1, 7, 17, 32, 40])
def test_bfloat16_is_rounded_as_by_torch(isa: str, threads: int, dim: int) -> None:
    kv, cells = random(5, 2, 3, dim), cells_anywhere(5)
    special = [0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -3.4e38, 1e-40, float("inf")]
    kv.view(-1)[: min(len(special), kv.numel())] = torch.tensor(special)[: kv.numel()]
    kv[4, 1, 2, 0] = float("nan")
    pool = Pool(*(x.bfloat16() for x in Pool.poisoned(3, PAGES, dim)))
    kernels.store_shared(kv, cells, *pool, isa=isa, threads=threads)
    for part, stored in enumerate(pool.read(cells)):
        expected = kv[:, part].bfloat16()
        nan = expected.isnan()
        assert torch.equal(stored.isnan(), nan)
        assert_equal(stored.masked_fill(nan, 0), expected.masked_fill(nan, 0))
