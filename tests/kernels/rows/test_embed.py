"""embed against torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decoding import _kernels as kernels
from decoding._C import Error
from decoding.models.weights.dtypes import name_of
from decoding.models.weights.panels import panel_shape
from tests.conftest import Place, assert_same_bits, assert_within_torch, poison, random
from tests.support.packed import fill_panels

VOCAB, POSITIONS = 50, 20


def reference(
    ids: Tensor,
    at: Tensor,
    tokens: Tensor,
    positions: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    scale: float,
    rms: bool = False,
) -> Tensor:
    x = tokens[ids] * scale
    if positions is not None:
        x = x + positions[at]
    if gamma is None:
        return x
    gamma, beta = gamma.to(x.dtype), None if beta is None else beta.to(x.dtype)
    if rms:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], gamma, 1e-5)
    return torch.nn.functional.layer_norm(x, x.shape[-1:], gamma, beta)


def embed(*inputs: Tensor | None | float, place: Place, threads: int = 1) -> Tensor:
    ids, at, tokens, positions, gamma, beta, scale, rms = (*inputs, False)[:8]
    assert isinstance(ids, Tensor) and isinstance(tokens, Tensor)
    y = poison(len(ids), tokens.shape[1]).to(tokens)
    kernels.embed(
        *(ids, at, tokens, positions, gamma, beta, y, scale, 1e-5),
        **{"rms": rms, "isa": place.isa, "threads": threads},
    )
    return y


def rows(place: Place, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ids and positions; the tables' last rows are among them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (count,), generator=generator, dtype=torch.int32)
    at = torch.randint(POSITIONS, (count,), generator=generator, dtype=torch.int32)
    ids[-1:], at[-1:] = VOCAB - 1, POSITIONS - 1
    return ids.to(place.device), at.to(place.device)


def tables(place: Place, hidden: int) -> tuple[Tensor, Tensor]:
    tokens, positions = random(VOCAB, hidden), random(POSITIONS, hidden, seed=1)
    return tokens.to(place.device, place.dtype), positions.to(place.device, place.dtype)


def affine(place: Place, hidden: int) -> tuple[Tensor, Tensor]:
    """gamma and beta in float32, but of values that the place's type has."""
    gamma, beta = (random(hidden, seed=seed).to(place.dtype).float() for seed in (2, 3))
    return gamma.to(place.device), beta.to(place.device)


@pytest.mark.parametrize(
    "hidden", [1, 15, 16, 17, 63, 64, 65, 257, 512, 768, 1024, 1032, 2048, 4104]
)
@pytest.mark.parametrize("count", [1, 5])
def test_equals_torch(place: Place, count: int, hidden: int) -> None:
    ids, at = rows(place, count)
    tokens, positions = tables(place, hidden)
    gamma, beta = affine(place, hidden)
    scale = hidden**0.5
    for inputs in (
        (ids, at, tokens, positions, None, None, scale),
        (ids, at, tokens, None, None, None, 1.0),
        (ids, at, tokens, positions, gamma, beta, scale),
        (ids, at, tokens, None, gamma, None, scale),
        (ids, at, tokens, positions, gamma, None, scale, True),
    ):
        assert_within_torch(reference, embed(*inputs, place=place), *inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("hidden", [64, 512, 1024, 2048])
def test_more_rows_than_fit_at_once(hidden: int) -> None:
    place = Place("cuda", torch.float16)
    ids, at = rows(place, 20001)
    inputs = (ids, at, *tables(place, hidden), *affine(place, hidden), 2.0)
    assert_within_torch(reference, embed(*inputs, place=place), *inputs)


def test_no_rows(place: Place, threads: int) -> None:
    tokens, _ = tables(place, 7)
    y = embed(*rows(place, 0), tokens, None, None, None, 1.0, place=place, threads=threads)
    assert y.shape == (0, 7)


def test_positions_without_a_table_are_not_read(place: Place) -> None:
    ids, at = rows(place, 6)
    tokens, _ = tables(place, 64)
    inputs = (ids, torch.full_like(at, 2**31 - 1), tokens, None, None, None, 2.0)
    assert_within_torch(reference, embed(*inputs, place=place), *inputs)


@pytest.mark.parametrize("hidden", [64, 65])
@pytest.mark.parametrize("norm", [False, True])
def test_reads_only_the_rows_it_is_given(place: Place, hidden: int, norm: bool) -> None:
    ids, at = rows(place, 6)
    tokens, positions = tables(place, hidden)
    gamma, beta = affine(place, hidden) if norm else (None, None)
    expected = embed(ids, at, tokens, positions, gamma, beta, 2.0, place=place)
    poisoned = torch.full_like(tokens, torch.nan), torch.full_like(positions, torch.nan)
    poisoned[0][ids], poisoned[1][at] = tokens[ids], positions[at]
    y = embed(ids, at, *poisoned, gamma, beta, 2.0, place=place)
    assert_same_bits(y.float(), expected.float())


@pytest.mark.parametrize("hidden", [1, 16, 63, 64, 65, 257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tables_of_the_cpu(isa: str, hidden: int, dtype: torch.dtype) -> None:
    """In bfloat16, and in the panels of an output projection: the bits of a plain float table."""
    place = Place(isa)
    ids, at = rows(place, 6)
    tokens, positions = random(70, hidden), random(POSITIONS, hidden, seed=1)
    ids[0] = 69
    tokens = tokens.to(dtype)
    panels = torch.empty(panel_shape(70, hidden, name_of(dtype)), dtype=dtype)
    fill_panels(panels, tokens, 0)
    expected = embed(ids, at, tokens.float(), positions, None, None, 3.0, place=place)
    for table in (tokens, panels):
        y = poison(6, hidden)
        kernels.embed(ids, at, table, positions, None, None, y, 3.0, 1e-5, isa=isa, threads=1)
        assert_same_bits(y, expected)


def test_tables_that_are_refused(isa: str) -> None:
    ids = torch.zeros(2, dtype=torch.int32)
    for table, words in [
        (torch.zeros(9, 8, dtype=torch.int8), "float32 or bfloat16"),
        (torch.zeros(9, 7), "rows of 8 numbers"),
        (torch.zeros(1, 7, 64), "rows of 8 numbers"),
        (torch.zeros(1, 8, 64, dtype=torch.bfloat16), "rows of 8 numbers"),
    ]:
        with pytest.raises(Error, match=words):
            kernels.embed(
                ids, ids, table, None, None, None, poison(2, 8), 1.0, 1e-5, isa=isa, threads=1
            )


def test_tables_that_do_not_begin_on_16_bytes(place: Place) -> None:
    ids, at = rows(place, 6)
    tokens, positions = tables(place, 64)
    gamma, beta = affine(place, 64)
    shifted = torch.cat([tokens.new_zeros(1), tokens.flatten()])[1:].view_as(tokens)
    inputs = (ids, at, shifted, positions, gamma, beta, 2.0)
    assert_within_torch(reference, embed(*inputs, place=place), *inputs)


@pytest.mark.parametrize("hidden", [70, 512])
def test_a_row_does_not_depend_on_its_batch(place: Place, threads: int, hidden: int) -> None:
    ids, at = rows(place, 13)
    rest = *tables(place, hidden), affine(place, hidden)[0], None, 3.0
    together = embed(ids, at, *rest, place=place, threads=threads)
    for r in range(13):
        alone = embed(ids[r : r + 1].clone(), at[r : r + 1].clone(), *rest, place=place)
        assert_same_bits(together[r : r + 1].float(), alone.float())
