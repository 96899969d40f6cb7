"""Keys and values in e4m3: as attention to numbers of 16 bits that are the same."""

from __future__ import annotations

from copy import copy

import pytest
import torch
from torch import Tensor

from decoding import _kernels as kernels
from tests.conftest import Place, assert_within_torch, poison, random
from tests.kernels.attention.test_attention_weights import weights_reference
from tests.kernels.attention.test_decode_attention import LONG, SHARED, ManySentences
from tests.kernels.attention.test_paged_attention import paged
from tests.support.active import active_sentences
from tests.support.attention import BIASES, NO_BIAS, Bias, assert_equal, put
from tests.support.decode_step import Step
from tests.support.pages import (
    PAGE,
    RANGES,
    Float8Pool,
    Pool,
    cells_of,
    deal,
    dequantise,
    pages_of,
    quantise,
)

HALVES = pytest.mark.parametrize("dtype", list(RANGES), ids=str)
DIMS = [8, 40, 64, 80, 128, 256]
HEADS = [(3, 3), (4, 2), (11, 1), (16, 2)]  # of queries and of keys


@HALVES
def test_the_reference(dtype: torch.dtype) -> None:
    """Scales are powers of two, and all numbers are as near as 4 bits can be."""
    least, most = RANGES[dtype]
    x = (random(300, 64) * 2.0 ** torch.arange(-20, 10).repeat(10)[:, None]).to(dtype)
    x[0], x[1, 0], x[2, 1] = 0, torch.inf, torch.nan
    x[3, 0] = torch.finfo(dtype).max
    x[4], x[5] = 448, 449
    numbers, scale = quantise(x)
    found = dequantise(numbers, scale, dtype)
    assert scale[0] == least and (found[0] == 0).all()
    assert found[1:3].isnan().all() and found[3:].isfinite().all() and found[3, 0] == most
    assert scale[4] == 1 and scale[5] == (2 if x[5, 0] > 448 else 1)
    error = (found - x)[3:].double().abs()
    steps = torch.maximum(x[3:].double().abs() / 16, scale[3:, None].double() * 2**-10)
    assert (error <= steps).all()


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize("dim", DIMS)
def test_store_shared(dim: int, dtype: torch.dtype) -> None:
    place, pages, tokens = Place("cuda", dtype), 3, 40
    kv = random(tokens, 2, 3, dim) * 2.0 ** torch.arange(-26, 14)[:, None, None, None]
    kv[1, 0, 1], kv[2, 1, 2, 0], kv[3, 0, 0, 5], kv[4, 1, 0, 7] = (
        0,
        torch.inf,
        -torch.inf,
        torch.nan,
    )
    kv[5, 0, 0, 0], kv[6, 0] = torch.finfo(dtype).max, 448
    cells = torch.randperm(pages * PAGE, generator=torch.Generator().manual_seed(1))[:tokens].int()
    cells[7] = -1
    kv, cells = put(place, kv, cells)
    before = Float8Pool(
        *(torch.full((3, pages, PAGE, dim), 77, dtype=torch.uint8, device="cuda") for _ in "kv"),
        *(torch.full((3, pages, PAGE), -1.0, device="cuda") for _ in "kv"),
    )
    found = Float8Pool(*(x.clone() for x in before))
    k, v, k_scales, v_scales = found
    kernels.store_shared(
        kv, cells, k, v, k_scales=k_scales, v_scales=v_scales, isa=place.isa, threads=1
    )
    stored = cells >= 0
    to = cells[stored].long()
    for part, (numbers, scales) in enumerate(((k, k_scales), (v, v_scales))):
        expected, expected_scales = quantise(kv[stored, part])
        ours = numbers.flatten(1, 2)[:, to].transpose(0, 1)
        our_scales = scales.flatten(1)[:, to].T
        assert torch.equal(our_scales.isnan(), expected_scales.isnan())
        finite = expected_scales.isfinite()
        assert finite.sum() < finite.numel()
        assert torch.equal(our_scales[finite], expected_scales[finite])
        # -0 is stored as it is.
        assert torch.equal(ours[finite], expected[finite])
    others = torch.ones(pages * PAGE, dtype=torch.bool)
    others[to.cpu()] = False
    for ours, old in zip(found, before, strict=True):
        assert torch.equal(ours.flatten(1, 2)[:, others], old.flatten(1, 2)[:, others])


def check(step: Step) -> Tensor:
    step.round()
    y = step.run()
    step.check(y)
    return y


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("beams", [1, 2, 3, 5])
@pytest.mark.parametrize("name", [None, "all"])
def test_decode_attention(
    name: str | None, beams: int, heads: tuple[int, int], dim: int, dtype: torch.dtype
) -> None:
    place = Place("cuda", dtype)
    bias = NO_BIAS if name is None else Bias.of(name, heads[0], place)
    for shared, position in ((SHARED, 37), (None, 79), (SHARED, None)):
        given = NO_BIAS if position is None else bias
        check(Step([3, 0, 4], beams, dim, shared, position, place, 1, heads=heads, bias=given))


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize("name", BIASES)
def test_rules(name: str, dtype: torch.dtype) -> None:
    place = Place("cuda", dtype)
    bias = Bias.of(name, 6, place)
    check(Step([3, 0, 2], 3, 40, SHARED, 50, place, heads=(6, 2), bias=bias))
    check(Step([4, 2], 2, 64, [0, 0, 700, 1, 300], 600, place, heads=(6, 6), bias=bias))


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize(("shared", "position"), LONG)
@pytest.mark.parametrize("beams", [1, 2, 5])
@pytest.mark.parametrize(
    ("dim", "heads"), [(64, (3, 3)), (64, (4, 2)), (128, (4, 2)), (256, (4, 1))]
)
def test_long_histories(
    dim: int,
    heads: tuple[int, int],
    beams: int,
    shared: list[int] | None,
    position: int | None,
    dtype: torch.dtype,
) -> None:
    """Which blocks share out."""
    check(Step([4, 2, 3], beams, dim, shared, position, Place("cuda", dtype), heads=heads))


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize(("beams", "heads"), [(1, (3, 3)), (1, (4, 2)), (5, (4, 2)), (2, (6, 2))])
def test_rotary_positions(beams: int, heads: tuple[int, int], dtype: torch.dtype) -> None:
    """Where heads share keys, the arithmetic is that of 16 bits, to the bit."""
    step = Step([2, 0, 4], beams, 64, SHARED, 21, Place("cuda", dtype), heads=heads)
    step.rotate(64, norms=True)
    y = check(step)
    if heads[0] > heads[1]:
        wide = copy(step)
        wide.kept = None
        assert_equal(y, wide.run())


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize("heads", [(3, 3), (8, 2)])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_step_of_several_parts(beams: int, heads: tuple[int, int], dtype: torch.dtype) -> None:
    step = Step(
        [3, 0, 4, 2], beams, 64, [5, 0, 64, 33, 1], 40, Place("cuda", dtype), 1, heads=heads
    )
    step.round()
    step.check(step.run(parts=[2, 1, 2]))


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize(("dim", "position"), [(8, 5), (64, 0), (128, 300), (256, 17)])
@pytest.mark.parametrize("heads", [(3, 3), (11, 1), (6, 2)])
def test_a_step_writes_its_own_keys_and_nothing_else(
    heads: tuple[int, int], dim: int, position: int, dtype: torch.dtype
) -> None:
    step = Step([2, 0], 3, dim, None, position, Place("cuda", dtype), 1, heads=heads)
    step.new[0, 0, 1] = torch.nan
    step.new[1, -1, 2] = torch.inf
    step.round()
    assert step.history is not None and step.kept is not None
    kept = step.kept
    expected = Float8Pool(*(x.clone() for x in kept))
    cells = step.history.cells(step.cache_rows, position)
    for new, numbers, scales in zip(step.new.chunk(2, 1), expected[:2], expected[2:], strict=True):
        made, made_scales = quantise(new)
        numbers.flatten(1, 2)[:, cells] = made.transpose(0, 1)
        scales.flatten(1)[:, cells] = made_scales.T
    step.run()
    for numbers, scales, ours, our_scales in zip(
        expected[:2], expected[2:], kept[:2], kept[2:], strict=True
    ):
        assert torch.equal(our_scales.isnan(), scales.isnan())
        finite = scales.isfinite()
        assert torch.equal(our_scales[finite], scales[finite])
        assert torch.equal(ours[finite], numbers[finite])


@pytest.mark.gpu
@pytest.mark.usefixtures("deterministic")
@HALVES
@pytest.mark.parametrize("heads", [(8, 8), (8, 2)])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_deterministic_row_does_not_depend_on_its_batch(
    beams: int, heads: tuple[int, int], dtype: torch.dtype
) -> None:
    place, lengths = Place("cuda", dtype), [97 * i % 900 for i in range(ManySentences.sentences)]

    def run(active: list[int]) -> Tensor:
        step = ManySentences(active, beams, 64, lengths, 560, place, heads=heads)
        step.round()
        return step.run().view(len(active), beams, -1)

    some, everyone = [0, 9, 37], list(range(ManySentences.sentences))
    together = run(everyone)
    assert_equal(run(some), together[some])
    for i in some:
        assert_equal(run([i])[0], together[i])


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("heads", [(3, 3), (4, 2)])
def test_packed_attention(heads: tuple[int, int], dim: int, dtype: torch.dtype) -> None:
    """The arithmetic is that of 16 bits, to the bit where tiles have as many keys: up to 128."""
    queries, keys = [3, 0, 1, 64, 100, 2, 5, 130], [5, 7, 1, 33, 64, 0, 130, 300]
    case = paged(Place("cuda", dtype), queries, keys, heads[0], dim, heads[1])
    kept = Float8Pool.of(Pool(case.k_pages, case.v_pages))
    wide = kept.wide(dtype)
    case = case._replace(k_pages=wide.k, v_pages=wide.v)
    y = poison(*case.q.shape).to(case.q)
    kernels.paged_attention(
        case.q,
        case.offsets,
        y,
        case.scale,
        False,
        **kept.arguments(),
        pages=case.pages,
        lengths=case.lengths,
        isa="cuda",
        threads=1,
    )
    case.check(y)
    if dim <= 128:
        assert_equal(y, case.run("cuda"))


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("first", [0, 5, 64, 3000])
def test_parts_of_prompts(first: int, window: int, dtype: torch.dtype) -> None:
    """Causal, behind what was read before, with a token that is not finite among them, which
    earlier ones do not see."""
    place, heads, kv_heads, dim, count = Place("cuda", dtype), 4, 2, 64, 70
    total, (table,) = deal(1, pages_of(first + count))
    pool = Pool(*put(place, *Pool.poisoned(kv_heads, total, dim)))
    kv = random(2, first + count, kv_heads, dim)
    kv[1, first + 40, 0, 0] = torch.inf
    pool.write(cells_of(table, 0, torch.arange(first + count)), *put(place, *kv))
    kept = Float8Pool.of(pool)
    wide = kept.wide(dtype)
    q, table, offsets, lengths, first_queries = put(
        place,
        random(count, heads, dim, seed=2),
        table,
        torch.tensor([0, count]).int(),
        torch.tensor([first + count]).int(),
        torch.tensor([first]).int(),
    )
    found = []
    for pages in (kept.arguments(), {"k_pages": wide.k, "v_pages": wide.v}):
        y = poison(*q.shape).to(q)
        kernels.paged_attention(
            q,
            offsets,
            y,
            0.125,
            True,
            **pages,
            pages=table,
            lengths=lengths,
            first_queries=first_queries,
            window=window,
            isa="cuda",
            threads=1,
        )
        found.append(y)
    ours, expected = found
    assert ours[:40].isfinite().all() and not ours[40].isfinite().all()
    # Query by query, sums have another order than the compiler gives those of 16 bits.
    assert torch.equal(ours.isnan(), expected.isnan())
    finite = ~expected.isnan()
    torch.testing.assert_close(ours[finite], expected[finite])


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize("dim", DIMS)
def test_attention_weights(dim: int, dtype: torch.dtype) -> None:
    place, lengths, beams = Place("cuda", dtype), [5, 1, 70], 3
    pages, (table,) = deal(len(lengths), pages_of(max(lengths)))
    pool = Pool.poisoned(2, pages, dim)
    for i, length in enumerate(lengths):
        own = random(length, 2, dim, seed=i)
        pool.write(cells_of(table, i, torch.arange(length)), own, own)
    kept = Float8Pool.of(Pool(*put(place, *pool)))
    wide = kept.wide(dtype)
    q, table, state, of = put(
        place,
        random(len(lengths) * beams, 4, dim, seed=9),
        table,
        torch.tensor([1, len(lengths)]).int(),
        torch.tensor(lengths).int(),
    )
    y = poison(1, len(q), max(lengths)).cuda()
    kernels.attention_weights(
        q,
        active_sentences(list(range(len(lengths))), 1, 0).cuda(),
        y,
        dim**-0.5,
        beams,
        k_pages=kept.k,
        k_scales=kept.k_scales,
        shared_pages=table,
        shared_lengths=of,
        state=state,
        isa="cuda",
        threads=1,
    )
    for i, length in enumerate(lengths):
        cells = cells_of(table, i, torch.arange(length, device="cuda"))
        keys = wide.read(cells)[0].transpose(0, 1).contiguous()
        rows = slice(i * beams, (i + 1) * beams)
        assert_within_torch(weights_reference, y[0, rows, :length], q[rows], keys, dim**-0.5)
