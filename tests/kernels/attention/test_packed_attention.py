"""Attention of packed rows to themselves: the encoder, or the prompt. Against torch."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from decoding import _kernels as kernels
from tests.conftest import Place, assert_same_bits, assert_within_torch, poison, random
from tests.support.attention import (
    BIASES,
    DIMS,
    HEADS,
    NO_BIAS,
    Bias,
    assert_equal,
    attend,
    offsets_of,
    put,
)


class Packed(NamedTuple):
    """What the kernel reads."""

    qkv: Tensor  # [tokens, N + 2 Nkv, D]
    offsets: Tensor
    heads: int
    scale: float
    causal: bool
    bias: Bias = NO_BIAS

    def run(self, place: Place, threads: int = 1, longest: int = 0) -> Tensor:
        y = poison(len(self.qkv), self.heads, self.qkv.shape[2]).to(self.qkv)
        kernels.packed_attention(
            *(self.qkv, self.offsets, y, self.scale, self.causal),
            **self.bias._asdict(),
            longest=longest,
            isa=place.isa,
            threads=threads,
        )
        return y


def packed_reference(qkv: Tensor, case: Packed) -> Tensor:
    kv_heads = (qkv.shape[1] - case.heads) // 2
    y = torch.empty_like(qkv[:, : case.heads])
    for begin, end in pairwise(case.offsets.tolist()):
        q, k, v = qkv[begin:end].split([case.heads, kv_heads, kv_heads], 1)
        at = torch.arange(end - begin, device=qkv.device)
        distance = at[:, None] - at
        y[begin:end] = attend(q, k, v, case.scale, distance, case.causal, case.bias)
    return y


def packed(
    place: Place,
    lengths: list[int],
    heads: int,
    dim: int,
    causal: bool,
    *,
    kv_heads: int = 0,
    bias: Bias = NO_BIAS,
) -> Packed:
    parts = heads + 2 * (kv_heads or heads)
    qkv, offsets = put(place, random(sum(lengths), parts, dim), offsets_of(lengths))
    return Packed(qkv, offsets, heads, dim**-0.5, causal, bias)


def check_packed(place: Place, lengths: list[int], case: Packed) -> None:
    y = case.run(place, threads=2, longest=max(lengths))
    assert_within_torch(packed_reference, y, case.qkv, case)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", DIMS)
def test_packed_equals_torch(place: Place, dim: int, causal: bool) -> None:
    lengths = [0, 1, 5, 0, 64, 65, 130, 0]
    check_packed(place, lengths, packed(place, lengths, 2, dim, causal))


@pytest.mark.parametrize("causal", [False, True])
def test_packed_of_all_lengths(place: Place, causal: bool) -> None:
    lengths = [1, 2, 31, 32, 33, 63, 64, 65, 127, 200, 513, 1100]
    check_packed(place, lengths, packed(place, lengths, 2, 64, causal))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_packed_with_shared_heads(place: Place, heads: int, kv_heads: int, causal: bool) -> None:
    lengths = [3, 0, 97, 64]
    check_packed(place, lengths, packed(place, lengths, heads, 64, causal, kv_heads=kv_heads))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", BIASES)
def test_packed_with_rules(place: Place, name: str, causal: bool) -> None:
    lengths, bias = [1, 20, 0, 130, 65, 200], Bias.of(name, 4, place)
    check_packed(place, lengths, packed(place, lengths, 4, 64, causal, kv_heads=2, bias=bias))


@pytest.mark.parametrize("dim", [17, 32, 64, 96, 128, 256])
def test_packed_with_rules_of_all_sizes(place: Place, dim: int) -> None:
    lengths, bias = [70, 1, 130], Bias.of("all", 2, place)
    check_packed(place, lengths, packed(place, lengths, 2, dim, True, bias=bias))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 2, 33, 63, 64, 65, 150, 1000])
def test_packed_with_windows(place: Place, window: int, causal: bool) -> None:
    lengths = [5, 300, 129]
    case = packed(place, lengths, 2, 32, causal, bias=Bias(window=window))
    check_packed(place, lengths, case)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [32, 64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [None, "all"])
def test_packed_of_many_heads(name: str | None, dtype: torch.dtype, dim: int, causal: bool) -> None:
    """A GPU takes larger tiles where there is much to do."""
    place, lengths = Place("cuda", dtype), [130, 1, 64, 17, 97, 33, 300, 128]
    bias = NO_BIAS if name is None else Bias.of(name, 64, place)
    check_packed(place, lengths, packed(place, lengths, 64, dim, causal, bias=bias))


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [[2100], [700, 5, 0]])
@pytest.mark.parametrize("dim", [24, 32, 64, 96, 128, 200])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [None, "all", "window"])
def test_packed_of_few_heads(
    name: str | None, dtype: torch.dtype, dim: int, lengths: list[int], causal: bool
) -> None:
    """A GPU splits the keys of long sentences over the blocks of clusters."""
    place = Place("cuda", dtype)
    bias = NO_BIAS if name is None else Bias.of(name, 1, place)
    check_packed(place, lengths, packed(place, lengths, 1, dim, causal, bias=bias))


@pytest.mark.parametrize("causal", [False, True])
def test_packed_with_large_scores(place: Place, causal: bool) -> None:
    # The maximum changes from block to block, and some weights underflow.
    case = packed(place, [300, 17], 8, 32, causal)
    case = case._replace(qkv=case.qkv * 6, scale=1.0)
    assert_within_torch(packed_reference, case.run(place), case.qkv, case)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [17, 24])
@pytest.mark.parametrize("name", [None, "all"])
def test_packed_touches_only_its_sentences(
    place: Place, threads: int, dim: int, causal: bool, name: str | None
) -> None:
    bias = NO_BIAS if name is None else Bias.of(name, 2, place)
    case = packed(place, [7, 0, 70, 1], 2, dim, causal, bias=bias)
    expected = case.run(place)
    before, after = (poison(rows, 6, dim).to(case.qkv) for rows in (3, 2))
    qkv = torch.cat([before, case.qkv, after])
    y = case._replace(qkv=qkv, offsets=case.offsets + 3).run(place, threads)
    assert_equal(y[3:-2], expected)
    assert y[:3].isnan().all() and y[-2:].isnan().all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [None, "all"])
def test_a_packed_sentence_does_not_depend_on_its_batch(
    place: Place, threads: int, causal: bool, name: str | None
) -> None:
    bias = NO_BIAS if name is None else Bias.of(name, 4, place)
    case = packed(place, [3, 150, 0, 64, 1, 33, 100], 4, 40, causal, kv_heads=2, bias=bias)
    together = case.run(place, threads)
    for begin, end in pairwise(case.offsets.tolist()):
        own = offsets_of([end - begin]).to(place.device)
        alone = case._replace(qkv=case.qkv[begin:end].contiguous(), offsets=own).run(place)
        assert_equal(together[begin:end], alone)


@pytest.mark.gpu
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [32, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [None, "all"])
def test_a_deterministic_sentence_does_not_depend_on_its_batch(
    name: str | None, dtype: torch.dtype, dim: int, causal: bool
) -> None:
    """Together they have enough blocks for larger tiles."""
    place, lengths = Place("cuda", dtype), [130, 1, 64, 17, 97, 33, 300, 128]
    bias = NO_BIAS if name is None else Bias.of(name, 64, place)
    case = packed(place, lengths, 64, dim, causal, bias=bias)
    together = case.run(place)
    for begin, end in pairwise(case.offsets.tolist()):
        own = offsets_of([end - begin]).to(place.device)
        alone = case._replace(qkv=case.qkv[begin:end].contiguous(), offsets=own).run(place)
        assert_equal(together[begin:end], alone)


def test_nothing_packed(place: Place, threads: int) -> None:
    case = packed(place, [], 1, 8, False)
    assert case._replace(qkv=poison(2, 3, 8).to(case.qkv)).run(place, threads).isnan().all()


@pytest.mark.parametrize("what", [float("nan"), float("inf")])
@pytest.mark.parametrize("broken", [5, 63, 64, 100])
@pytest.mark.parametrize("dim", [16, 24])
def test_a_token_breaks_none_before_it(isa: str, dim: int, broken: int, what: float) -> None:
    """Keys and values that are not finite come to no query by a weight of 0."""
    place = Place(isa)
    case = packed(place, [3, 130, 3], 2, dim, True)
    expected, at = case.run(place), 3 + broken
    for part in (slice(2, 4), slice(4, 6), slice(2, 6)):  # keys, values, both
        qkv = case.qkv.clone()
        qkv[at, part] = what
        found = case._replace(qkv=qkv).run(place)
        assert_same_bits(found[:at], expected[:at])
        assert_same_bits(found[-3:], expected[-3:])
        if part.stop == 6:  # while a score of -inf is a weight of 0
            assert not found[at:-3].isfinite().all(-1).any()


@pytest.mark.gpu
@pytest.mark.parametrize("window", [0, 37])
@pytest.mark.parametrize("what", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("heads", "dim"), [(2, 20), (2, 24), (2, 64), (2, 96), (2, 128), (2, 200), (128, 32), (128, 64)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_token_breaks_none_before_it_on_a_gpu(
    dtype: torch.dtype, heads: int, dim: int, what: float, window: int
) -> None:
    """Nor any that it is out of the window of. Which bits the others have is not promised."""
    place, lengths = Place("cuda", dtype), [3, 130, 3]
    case = packed(place, lengths, heads, dim, True, bias=Bias(window=window))
    for broken in (5, 63, 64, 100):
        at = 3 + broken
        kept = [*range(at), *range(min(at + window, 133) if window else 133, 136)]
        lost = [i for i in range(136) if i not in kept]
        for part in (slice(2 * heads, None), slice(heads, None)):  # values, keys and values
            qkv = case.qkv.clone()
            qkv[at, part] = what
            found = case._replace(qkv=qkv).run(place, longest=max(lengths))
            assert_within_torch(
                lambda qkv, case: packed_reference(qkv, case)[kept],  # noqa: B023
                found[kept],
                case.qkv,
                case,
            )
            assert not found[lost].isfinite().all(-1).any()


@pytest.mark.gpu
@pytest.mark.parametrize("what", [float("nan"), float("inf")])
@pytest.mark.parametrize("broken", [5, 300, 1000])
@pytest.mark.parametrize("dim", [32, 64, 128])
def test_a_token_breaks_none_before_it_where_keys_are_split(
    dim: int, broken: int, what: float
) -> None:
    place, lengths = Place("cuda", torch.float16), [3, 1100, 3]
    case = packed(place, lengths, 1, dim, True)
    qkv, at = case.qkv.clone(), 3 + broken
    qkv[at, 2:] = what  # its value
    found = case._replace(qkv=qkv).run(place, longest=max(lengths))
    kept = [*range(at), *range(1103, 1106)]
    assert_within_torch(
        lambda qkv, case: packed_reference(qkv, case)[kept], found[kept], case.qkv, case
    )
    assert not found[at:1103].isfinite().all(-1).any()
