"""Attention of one new token per row, against torch."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.conftest import Place, assert_same_bits
from tests.kernels.attention.test_rotary import apply_rotary
from tests.support.attention import BIASES, DIMS, HEADS, NO_BIAS, Bias, assert_equal
from tests.support.decode_step import Step
from tests.support.pages import Pool

SHARED = [5, 0, 70, 33, 64]  # positions of each sentence
LONG = [([600, 0, 1, 513, 2500], None), ([0, 0, 2, 511, 300], 400), (None, 1500)]


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("beams", [1, 2, 3])
def test_decode_equals_torch(place: Place, beams: int, dim: int) -> None:
    step = Step([3, 0, 4], beams, dim, [5, 0, 9, 33, 64], 37, place)
    step.check(step.run(threads=2))


@pytest.mark.parametrize("beams", [1, 4, 8, 9, 19])
def test_cross_attention_equals_torch(place: Place, beams: int) -> None:
    step = Step([0, 2, 1], beams, 64, [1, 32, 100, 3, 3], None, place)
    step.check(step.run())


@pytest.mark.parametrize("beams", [1, 4, 5, 12])
@pytest.mark.parametrize("position", [0, 1, 15, 31, 32, 33, 79])
def test_history_equals_torch(place: Place, position: int, beams: int) -> None:
    step = Step([4, 1], beams, 64, None, position, place)
    step.check(step.run())


@pytest.mark.parametrize("position", [30, 33, 63, 64, 99])
@pytest.mark.parametrize("heads", [(3, 3), (4, 2)])
@pytest.mark.parametrize("beams", [2, 4, 7])
def test_beams_may_have_a_past_in_common(
    place: Place, threads: int, beams: int, heads: tuple[int, int], position: int
) -> None:
    """What they have in common is read once for all of them, and the numbers stay the same."""
    step = Step([4, 1], beams, 40, None, position, place, heads=heads)
    assert step.history is not None
    for i, some in ((4, beams), (1, beams - 1)):  # in the second sentence not all of them
        rows = step.history.table[step.numbers[i] % 2, i * beams : i * beams + some]
        rows[:, : min(position, 64)] = rows[0, : min(position, 64)].clone()
    together = step.run(threads)
    step.check(together)
    if place.device == "cpu":
        apart, past = copy(step), torch.arange(position)
        apart.pool = step.pool.copy()
        apart.history = step.history._replace(table=step.history.table.clone())
        for row in step.cache_rows:  # each has the same past in cells of its own
            sources = step.history.table[step.numbers[row // beams] % 2, row, :position]
            cells = step.history.cells(sources, past)
            apart.pool.write(step.history.cells(row, past), *step.pool.read(cells))
            apart.history.table[:, row, :position] = row
        assert_equal(apart.run(threads), together)


@pytest.mark.parametrize(("shared", "position"), LONG)
@pytest.mark.parametrize("beams", [1, 2, 5])
def test_long_histories_equal_torch(
    place: Place, beams: int, shared: list[int] | None, position: int | None
) -> None:
    """A GPU splits them over blocks, as many as each needs."""
    step = Step([4, 2, 3], beams, 64, shared, position, place)
    step.check(step.run(threads=3))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize(("shared", "position"), LONG)
@pytest.mark.parametrize("beams", [1, 2, 5])
def test_long_histories_of_shared_heads(
    beams: int, shared: list[int] | None, position: int | None, dim: int, dtype: torch.dtype
) -> None:
    step = Step([4, 2, 3], beams, dim, shared, position, Place("cuda", dtype), heads=(4, 2))
    step.check(step.run())


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(("shared", "position"), [(SHARED, None), (SHARED, 37), (None, 70)])
@pytest.mark.parametrize("beams", [1, 3])
def test_shared_heads_equal_torch(
    place: Place, beams: int, shared: list[int] | None, position: int | None, heads: tuple[int, int]
) -> None:
    step = Step([3, 0, 4], beams, 64, shared, position, place, finished=1, heads=heads)
    step.check(step.run(threads=2))


@pytest.mark.parametrize("dim", [16, 17, 40, 64, 96, 128, 256])
@pytest.mark.parametrize(("beams", "heads"), [(1, (16, 2)), (2, (6, 2)), (3, (4, 2)), (5, (4, 2))])
@pytest.mark.parametrize("name", [None, "all"])
def test_shared_heads_and_prompts(
    place: Place, name: str | None, beams: int, heads: tuple[int, int], dim: int
) -> None:
    """A GPU lets heads of several beams pass together over what these share."""
    bias = NO_BIAS if name is None else Bias.of(name, heads[0], place)
    shared = [5, 0, 300, 70, 64]
    step = Step([2, 0, 4], beams, dim, shared, 21, place, finished=1, heads=heads, bias=bias)
    step.check(step.run(threads=2))


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("shared", [SHARED, None])
def test_rules_equal_torch(place: Place, shared: list[int] | None, beams: int, name: str) -> None:
    bias = Bias.of(name, 6, place)
    step = Step([3, 0, 2], beams, 40, shared, 50, place, heads=(6, 2), bias=bias)
    step.check(step.run(threads=2))


@pytest.mark.parametrize("window", [1, 10, 11, 12, 33, 80, 81, 82, 1000])
@pytest.mark.parametrize("shared", [SHARED, None])
def test_windows_equal_torch(place: Place, shared: list[int] | None, window: int) -> None:
    """They end in the row's own history, before it, and in what is shared."""
    step = Step([3, 0, 2], 2, 32, shared, 10, place, heads=(4, 2), bias=Bias(window=window))
    step.check(step.run(threads=2))


@pytest.mark.parametrize("name", BIASES)
def test_rules_of_long_histories(place: Place, name: str) -> None:
    """A GPU splits them over blocks."""
    bias = Bias.of(name, 4, place)
    step = Step([4, 2], 2, 64, [0, 0, 700, 1, 300], 600, place, heads=(4, 2), bias=bias)
    step.check(step.run(threads=2))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("shared", "position"), [(SHARED, 40), (None, 79)])
@pytest.mark.parametrize(("beams", "dim"), [(2, 128), (4, 64), (5, 64)])
def test_histories_of_many_heads(
    beams: int, dim: int, shared: list[int] | None, position: int, dtype: torch.dtype
) -> None:
    """With fewer, each beam that has a history gets a block of its own."""
    place, heads = Place("cuda", dtype), 600 // beams
    step = Step([3, 0, 4, 2], beams, dim, shared, position, place, finished=1, heads=(heads, heads))
    step.check(step.run())


@pytest.mark.parametrize(
    ("dim", "size", "interleaved"),
    [(16, 16, True), (17, 10, False), (64, 64, False), (64, 0, False), (80, 32, True)]
    + [(96, 96, False), (128, 128, False), (256, 64, False)],
)
@pytest.mark.parametrize(("beams", "heads"), [(1, (3, 3)), (4, (4, 4)), (2, (6, 2)), (5, (4, 2))])
@pytest.mark.parametrize("name", [None, "all"])
def test_queries_and_keys_are_rotated(
    place: Place,
    name: str | None,
    beams: int,
    heads: tuple[int, int],
    dim: int,
    size: int,
    interleaved: bool,
) -> None:
    bias = NO_BIAS if name is None else Bias.of(name, heads[0], place)
    shared = [5, 0, 300, 70, 64]
    step = Step([2, 0, 4], beams, dim, shared, 21, place, finished=1, heads=heads, bias=bias)
    step.rotate(size, interleaved, norms=dim in (16, 64, 128))
    step.check(step.run(threads=2))


@pytest.mark.parametrize(("shared", "position"), LONG)
@pytest.mark.parametrize(("beams", "heads"), [(1, (3, 3)), (1, (4, 2)), (5, (4, 2))])
def test_queries_of_long_histories_are_rotated(
    place: Place,
    beams: int,
    heads: tuple[int, int],
    shared: list[int] | None,
    position: int | None,
) -> None:
    """On a GPU each of the blocks that split a history rotates them for itself."""
    if position is None:
        position = 0
    step = Step([4, 2, 3], beams, 64, shared, position, place, heads=heads)
    step.rotate(64)
    step.check(step.run(threads=3))


@pytest.mark.parametrize(("dim", "position"), [(17, 5), (64, 0), (128, 700)])
@pytest.mark.parametrize("heads", [(3, 3), (11, 1)])
def test_rotated_keys_are_kept(
    place: Place, threads: int, dim: int, position: int, heads: tuple[int, int]
) -> None:
    """As apply_rotary makes them; values as they are."""
    step = Step([2, 0], 3, dim, None, position, place, finished=1, heads=heads)
    step.rotate(dim // 2 * 2, norms=True)
    assert step.history is not None and step.rotary is not None
    rows, (positions, *rest) = len(step.cache_rows), step.rotary
    inputs: Any = (step.qkv[:rows].flatten(1), positions[:rows], *rest)
    new = apply_rotary(inputs, place).view(rows, -1, dim)[:, heads[0] :]
    expected = step.pool.copy()
    expected.write(step.history.cells(step.cache_rows, position), *new.chunk(2, 1))
    step.run(threads)
    assert_equal(step.pool.k, expected.k)
    assert_equal(step.pool.v, expected.v)


def test_a_sentence_may_share_nothing(place: Place) -> None:
    step = Step([0, 1, 2], 2, 16, [0, 40, 0, 0, 0], 3, place)
    step.check(step.run())


def test_a_sentence_without_anything_gives_zero(place: Place) -> None:
    step = Step([0, 1], 2, 16, [0, 1, 0, 0, 0], None, place)
    assert_equal(step.run()[:2], torch.zeros(2, 3, 16))


@pytest.mark.parametrize(("shared", "position"), [(SHARED, None), (SHARED, 9), (None, 300)])
@pytest.mark.parametrize("beams", [1, 3])
def test_finished_sentences_are_left_alone(
    place: Place, beams: int, shared: list[int] | None, position: int | None
) -> None:
    step = Step([2, 0], beams, 64, shared, position, place, finished=2)
    step.check(step.run(threads=2))


@pytest.mark.parametrize("number", [1, 2])
def test_the_step_reads_its_own_table(place: Place, number: int) -> None:
    step = Step([3, 1], 3, 32, None, 40, place, number=number)
    step.check(step.run())


POSITIONS = [3, 64, 700, 0, 131]  # of each sentence
NUMBERS = [4, 65, 1, 8, 30]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(("dim", "heads"), [(17, (3, 3)), (64, (3, 3)), (64, (8, 2)), (96, (4, 1))])
@pytest.mark.parametrize("shared", [None, SHARED, [5, 0, 64, 33, 1]])
@pytest.mark.parametrize("how", ["plain", "rotary", "bias"])
def test_a_step_of_several_parts(
    place: Place, how: str, shared: list[int] | None, dim: int, heads: tuple[int, int], beams: int
) -> None:
    """Those of few rows have one launch on a GPU; one part is empty, the last one not full."""
    bias = Bias.of("all", heads[0], place) if how == "bias" else NO_BIAS
    step = Step([2, 4, 0, 3], beams, dim, shared, POSITIONS, place, 2, NUMBERS, heads, bias)
    if how == "rotary":
        step.rotate(16)
    step.check(step.run(threads=2, parts=[1, 0, 2, 3]))


@pytest.mark.parametrize("beams", [1, 3, 8])
@pytest.mark.parametrize(("dim", "heads"), [(17, (3, 3)), (64, (3, 3)), (64, (8, 2))])
def test_sources_of_several_parts(
    place: Place, dim: int, heads: tuple[int, int], beams: int
) -> None:
    step = Step([2, 4, 0, 3], beams, dim, SHARED, None, place, 2, heads=heads)
    step.check(step.run(threads=2, parts=[1, 0, 2, 3]))


@pytest.mark.parametrize("shared", [[0, 700, 40, 33, 1], None])
@pytest.mark.parametrize("beams", [1, 3, 8])
@pytest.mark.parametrize(("dim", "heads"), [(32, (3, 3)), (64, (8, 2)), (80, (4, 1))])
@pytest.mark.parametrize("bias", [None, "window"])
def test_sentences_at_steps_of_their_own(
    place: Place,
    dim: int,
    heads: tuple[int, int],
    beams: int,
    shared: list[int] | None,
    bias: str | None,
) -> None:
    """Each reads its own table, as far as it has come, and writes at its own position."""
    how = Bias.of(bias, heads[0], place) if bias else NO_BIAS
    step = Step(
        [2, 4, 0, 3], beams, dim, shared, POSITIONS, place, 1, NUMBERS, heads=heads, bias=how
    )
    assert step.history is not None
    expected = step.pool.copy()
    at = [POSITIONS[row // beams] for row in step.cache_rows]
    expected.write(step.history.cells(step.cache_rows, at), *step.new.chunk(2, 1))
    step.check(step.run(threads=2))
    assert_equal(step.pool.k, expected.k)
    assert_equal(step.pool.v, expected.v)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_row_does_not_depend_on_others_steps(isa: str, beams: int) -> None:
    """To the bit on the CPU, where no number of rows decides how a row is added up."""

    def run(active: list[int]) -> Tensor:
        step = Step(active, beams, 40, SHARED, POSITIONS, Place(isa), number=NUMBERS)
        return step.run(threads=3)

    assert_same_bits(run([3, 0, 4, 2]), torch.cat([run([i]) for i in (3, 0, 4, 2)]))


@pytest.mark.parametrize(("dim", "position"), [(17, 5), (64, 0), (64, 5), (128, 700)])
@pytest.mark.parametrize("heads", [(3, 3), (11, 1)])
def test_decode_writes_its_own_keys_and_nothing_else(
    place: Place, threads: int, dim: int, position: int, heads: tuple[int, int]
) -> None:
    step = Step([2, 0], 3, dim, None, position, place, finished=1, heads=heads)
    assert step.history is not None
    expected = step.pool.copy()
    expected.write(step.history.cells(step.cache_rows, position), *step.new.chunk(2, 1))
    step.run(threads)
    assert_equal(step.pool.k, expected.k)
    assert_equal(step.pool.v, expected.v)


@pytest.mark.parametrize(
    ("shared", "position"), [(SHARED, None), (SHARED, 0), (SHARED, 50), (None, 0), (None, 50)]
)
@pytest.mark.parametrize("beams", [1, 11])
@pytest.mark.parametrize("heads", [(3, 3), (6, 2)])
def test_a_row_does_not_depend_on_its_batch(
    isa: str,
    heads: tuple[int, int],
    beams: int,
    position: int | None,
    shared: list[int] | None,
) -> None:
    """A GPU gives few rows more threads each, and may add up in another order."""
    active, place = [3, 0, 4, 2], Place(isa)
    bias = NO_BIAS if position is None else Bias.of("all", heads[0], place)

    def run(active: list[int], threads: int) -> Tensor:
        step = Step(active, beams, 40, shared, position, place, heads=heads, bias=bias)
        return step.run(threads)

    alone = torch.cat([run([i], 1) for i in active])
    for threads in (1, 2, 3, 7):
        assert_same_bits(run(active, threads), alone, f"{threads} threads")


class ManySentences(Step):
    """More than few rows' blocks split the histories of."""

    sentences = 40


@pytest.mark.gpu
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads", [(8, 8), (8, 2), (12, 1)])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(("shared", "position"), [(True, None), (True, 37), (False, 560)])
@pytest.mark.parametrize("name", [None, "all"])
def test_a_deterministic_row_does_not_depend_on_its_batch(
    name: str | None,
    shared: bool,
    position: int | None,
    beams: int,
    heads: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    place, lengths = Place("cuda", dtype), [97 * i % 900 for i in range(ManySentences.sentences)]
    bias = NO_BIAS if name is None or position is None else Bias.of(name, heads[0], place)

    def run(active: list[int]) -> Tensor:
        given = (active, beams, 64, lengths if shared else None, position, place)
        return ManySentences(*given, heads=heads, bias=bias).run()

    some, everyone = [0, 9, 37], list(range(ManySentences.sentences))
    together = run(everyone).view(len(everyone), beams, -1)
    assert_equal(run(some).view(len(some), beams, -1), together[some])
    for i in some:
        assert_equal(run([i]).view(beams, -1), together[i])


@pytest.mark.parametrize("heads", [(3, 3), (11, 1)])
def test_keys_and_values_in_bfloat16(isa: str, heads: tuple[int, int]) -> None:
    """As with float32 that holds the same numbers."""
    kept, rounded = (Step([3, 0], 2, 40, SHARED, 50, Place(isa), heads=heads) for _ in range(2))
    for step, dtype in ((kept, torch.bfloat16), (rounded, torch.float32)):
        step.pool = Pool(*(x.bfloat16().to(dtype) for x in step.pool))
    rounded.new.copy_(rounded.new.bfloat16())
    assert_same_bits(kept.run(threads=2), rounded.run(threads=2))
    assert_equal(kept.pool.k, rounded.pool.k)
    assert_equal(kept.pool.v, rounded.pool.v)


def test_no_live_sentence(place: Place, threads: int) -> None:
    step = Step([], 4, 64, [1, 1, 1, 1, 1], 3, place)
    assert step.run(threads).shape == (0, 3, 64)
    assert Step([], 4, 64, [1, 1, 1, 1, 1], 3, place, finished=2).run(threads).isnan().all()
