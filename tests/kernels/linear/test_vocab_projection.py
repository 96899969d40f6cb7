"""project against linear, scan_logits, ban_tokens and topk, to the bit; shortlists."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import decoding
from decoding import _C
from decoding import _kernels as kernels
from tests.conftest import assert_same_bits, poison, random
from tests.support.packed import KINDS, Packed, packed

VOCABS = [1, 63, 64, 65, 127, 128, 129, 1000, 1153]
GROUP = 128


def unwritten(weight: Packed) -> Packed:
    """One of its shape, all 77, also behind the last output."""
    panels, *others = (
        None if t is None else torch.full_like(t, 77)
        for t in (weight.panels, weight.scale, weight.sums)
    )
    assert panels is not None
    return Packed(panels, others[0], others[1], weight.outputs, weight.inputs)


def linear(x: Tensor, weight: Packed, bias: Tensor | None, isa: str, **norm: Tensor) -> Tensor:
    y = poison(len(x), weight.outputs)
    more = dict(norm, scale=weight.scale, sums=weight.sums, scratch=weight.scratch(len(x)))
    kernels.linear(x, weight.panels, bias, None, y, "none", **more, isa=isa, threads=1)
    return y


@dataclass
class Found:
    values: Tensor  # float32 [rows, k]
    ids: Tensor  # int32 [rows, k]
    lse: Tensor  # float32 [rows]


def project(
    x: Tensor,
    weight: Packed,
    bias: Tensor | None,
    k: int,
    isa: str,
    threads: int,
    banned: list[int] | None = None,
    tokens: Tensor | None = None,
    **norm: Tensor,
) -> Found:
    rows, groups = len(x), -(-weight.outputs // GROUP)
    best, lse = torch.full((rows, k, 2), -2, dtype=torch.int32), poison(rows)
    kernels.project(
        *(x, weight.panels, bias, lse, best),
        group_max=poison(rows, groups),
        group_sum=poison(rows, groups),
        thread_best=torch.full((threads, rows, k, 2), -2, dtype=torch.int32),
        scale=weight.scale,
        sums=weight.sums,
        tokens=tokens,
        banned=None if banned is None else torch.tensor(banned, dtype=torch.int32),
        scratch=weight.scratch(rows),
        outputs=weight.outputs,
        isa=isa,
        threads=threads,
        **norm,
    )
    values, ids = best.unbind(-1)
    return Found(values.contiguous().view(torch.float32), ids.contiguous(), lse)


def chosen(logits: Tensor, k: int, isa: str, banned: list[int] | None = None) -> Found:
    """The same from logits, one kernel after the other."""
    masked = logits.clone()
    lse = kernels.ban_tokens(masked, banned or [], isa=isa, threads=1)[2]
    values, ids = kernels.topk(masked, k, isa=isa, threads=1)
    return Found(values, ids, lse)


def assert_same(ours: Found, expected: Found) -> None:
    assert_same_bits(ours.lse, expected.lse, "lse")
    assert_same_bits(ours.values, expected.values, "values")
    assert torch.equal(ours.ids, expected.ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", VOCABS)
def test_equals_one_kernel_after_the_other(
    isa: str, threads: int, kind: torch.dtype, vocab: int
) -> None:
    weight = packed(random(vocab, 70, seed=1), kind)
    x, bias = random(7, 70), random(vocab, seed=2)
    banned = sorted({0, vocab // 2, vocab - 1})
    for k in (1, 8, 130):
        for b, out in ((None, None), (bias, banned)):
            ours = project(x, weight, b, k, isa, threads, out)
            assert_same(ours, chosen(linear(x, weight, b, isa), k, isa, out))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [0, 1, 97, 400])
def test_any_number_of_rows(isa: str, threads: int, kind: torch.dtype, rows: int) -> None:
    """More rows than pass over a panel at a time, and more than are prepared at once."""
    weight, x = packed(random(300, 40, seed=1), kind), random(rows, 40)
    ours = project(x, weight, None, 3, isa, threads)
    assert_same(ours, chosen(linear(x, weight, None, isa), 3, isa))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [2, 300])
def test_norm_before(isa: str, threads: int, kind: torch.dtype, rows: int) -> None:
    weight, x = packed(random(300, 65, seed=1), kind), random(rows, 65)
    gamma, beta = random(65, seed=2), random(65, seed=3)
    normed, expected = poison(rows, 65), poison(rows, 65)
    ours = project(x, weight, None, 3, isa, threads, gamma=gamma, beta=beta, normed=normed)
    logits = linear(x, weight, None, isa, gamma=gamma, beta=beta, normed=expected)
    assert_same(ours, chosen(logits, 3, isa))
    assert_same_bits(normed, expected)


@given(
    isa=st.sampled_from(_C.isas()),
    threads=st.sampled_from([1, 2, 3]),
    vocab=st.sampled_from([5, 128, 257, 1000]),
    k=st.integers(1, 300),
    levels=st.integers(1, 4),
    banned=st.sets(st.integers(0, 4)),
    seed=st.integers(0, 2**32 - 1),
)
def test_ties(
    isa: str, threads: int, vocab: int, k: int, levels: int, banned: set[int], seed: int
) -> None:
    """Few different logits, so that the lower token decides."""
    generator = torch.Generator().manual_seed(seed)
    weight = packed(torch.randint(levels, (vocab, 2), generator=generator).float(), torch.float32)
    x = torch.randint(-2, 3, (3, 2), generator=generator).float()
    ours = project(x, weight, None, k, isa, threads, sorted(banned))
    assert_same(ours, chosen(linear(x, weight, None, isa), k, isa, sorted(banned)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_row_leaves_the_others_alone(isa: str, threads: int, kind: torch.dtype) -> None:
    weight, x = packed(random(300, 40, seed=1), kind), random(5, 40)
    x[1], x[3, 7] = math.nan, math.inf
    bias = torch.zeros(300)
    bias[7] = -math.inf  # a token that never comes
    ours = project(x, weight, bias, 4, isa, threads)
    whole = [0, 2, 4]
    alone = chosen(linear(x[whole], weight, bias, isa), 4, isa)
    assert_same(Found(ours.values[whole], ours.ids[whole], ours.lse[whole]), alone)
    assert not ours.lse[[1, 3]].isfinite().any()
    assert bool(((ours.ids >= -1) & (ours.ids < 300)).all())


def test_nothing_left(isa: str, threads: int) -> None:
    weight, x = packed(random(3, 4, seed=1), torch.float32), random(2, 4)
    ours = project(x, weight, None, 2, isa, threads, [0, 1, 2])
    assert ours.lse.isfinite().all()
    assert (ours.values == -math.inf).all() and (ours.ids == -1).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 64, 130, 1000])
def test_a_shortlist(isa: str, threads: int, kind: torch.dtype, count: int) -> None:
    """As if the weight had never had the other outputs; ids are the vocabulary's."""
    full, bias, x = random(1000, 70, seed=1), random(1000, seed=2), random(3, 70)
    tokens = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:count].sort()[0]
    ids, expected, whole = tokens.int(), packed(full[tokens], kind), packed(full, kind)
    part, some_bias = unwritten(expected), poison(count)
    kernels.gather_outputs(
        *(whole.panels, whole.scale, whole.sums, bias, ids),
        *(part.panels, part.scale, part.sums, some_bias),
        **{"outputs": 1000, "inputs": 70, "isa": isa, "threads": threads},
    )
    for name in ("panels", "scale", "sums"):
        ours, theirs = getattr(part, name), getattr(expected, name)
        assert ours is theirs is None or torch.equal(ours, theirs), name
    assert_same_bits(some_bias, bias[tokens])
    found = project(x, part, some_bias, 4, isa, threads, tokens=ids)
    local = chosen(linear(x, part, some_bias, isa), 4, isa)
    mapped = torch.where(local.ids < 0, -1, ids[local.ids.long().clamp(0)])
    assert_same(found, Found(local.values, mapped, local.lse))


def test_spread_logits(isa: str, threads: int) -> None:
    x, ids, y = random(5, 3), torch.tensor([0, 4, 9], dtype=torch.int32), poison(5, 10)
    kernels.spread_logits(x, ids, y, isa=isa, threads=threads)
    expected = torch.full((5, 10), -math.inf)
    expected[:, ids.long()] = x
    assert_same_bits(y, expected)


def test_mistakes() -> None:
    weight, x = packed(random(9, 4), torch.float32), random(1, 4)
    for banned in ([3, 2], [9], [-1]):
        with pytest.raises(decoding.Error, match="banned must ascend and be below 9"):
            project(x, weight, None, 2, _C.isas()[-1], 1, banned)
