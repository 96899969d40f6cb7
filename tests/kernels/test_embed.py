"""embed against torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decoding._C import kernels
from tests.conftest import assert_same_bits, assert_within_torch, poison, random

VOCAB, POSITIONS = 50, 20


def reference(
    ids: Tensor,
    at: Tensor,
    tokens: Tensor,
    positions: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    scale: float,
) -> Tensor:
    x = tokens[ids] * scale
    if positions is not None:
        x = x + positions[at]
    return x if gamma is None else torch.nn.functional.layer_norm(x, x.shape[-1:], gamma, beta)


def embed(*inputs: Tensor | None | float, isa: str, threads: int = 1) -> Tensor:
    ids, at, tokens, positions, gamma, beta, scale = inputs
    assert isinstance(ids, Tensor) and isinstance(tokens, Tensor)
    y = poison(len(ids), tokens.shape[1])
    kernels.embed(ids, at, tokens, positions, gamma, beta, y, scale, 1e-5, isa=isa, threads=threads)
    return y


def rows(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ids and positions; the tables' last rows are among them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (count,), generator=generator, dtype=torch.int32)
    at = torch.randint(POSITIONS, (count,), generator=generator, dtype=torch.int32)
    ids[-1:], at[-1:] = VOCAB - 1, POSITIONS - 1
    return ids, at


@pytest.mark.parametrize("hidden", [1, 15, 16, 17, 63, 64, 65, 257])
@pytest.mark.parametrize("count", [1, 5])
def test_equals_torch(isa: str, count: int, hidden: int) -> None:
    ids, at = rows(count)
    tokens, positions = random(VOCAB, hidden), random(POSITIONS, hidden, seed=1)
    gamma, beta = random(hidden, seed=2), random(hidden, seed=3)
    scale = hidden**0.5
    for inputs in (
        (ids, at, tokens, positions, None, None, scale),
        (ids, at, tokens, None, None, None, 1.0),
        (ids, at, tokens, positions, gamma, beta, scale),
        (ids, at, tokens, None, gamma, None, scale),
    ):
        assert_within_torch(reference, embed(*inputs, isa=isa), *inputs)


def test_no_rows(isa: str, threads: int) -> None:
    y = embed(*rows(0), random(VOCAB, 7), None, None, None, 1.0, isa=isa, threads=threads)
    assert y.shape == (0, 7)


def test_reads_only_the_rows_it_is_given(isa: str) -> None:
    ids, at = rows(6)
    tokens, positions = random(VOCAB, 65), random(POSITIONS, 65, seed=1)
    expected = embed(ids, at, tokens, positions, None, None, 2.0, isa=isa)
    poisoned_tokens, poisoned_positions = poison(VOCAB, 65), poison(POSITIONS, 65)
    poisoned_tokens[ids], poisoned_positions[at] = tokens[ids], positions[at]
    y = embed(ids, at, poisoned_tokens, poisoned_positions, None, None, 2.0, isa=isa)
    assert_same_bits(y, expected)


def test_a_row_does_not_depend_on_its_batch(isa: str, threads: int) -> None:
    ids, at = rows(13)
    tables = random(VOCAB, 70), random(POSITIONS, 70, seed=1), random(70, seed=2), None, 3.0
    together = embed(ids, at, *tables, isa=isa, threads=threads)
    for r in range(13):
        alone = embed(ids[r : r + 1], at[r : r + 1], *tables, isa=isa)
        assert_same_bits(together[r : r + 1], alone)
