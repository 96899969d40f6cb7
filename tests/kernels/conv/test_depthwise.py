"""Depthwise convolution of packed rows and of one new token per row, against torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from decoding import _kernels as kernels
from tests.conftest import PLACES, Place, assert_same_bits, assert_within_torch, poison, random
from tests.support.active import active_sentences
from tests.support.attention import NOWHERE, assert_equal, offsets_of, put

SIZES = [1, 2, 3, 4, 7, 8, 9, 15, 16, 31, 32]
LENGTHS = [5, 0, 1, 70, 3, 64]


@dataclass(frozen=True)
class Shape:
    size: int = 31  # K
    heads: int = 3
    head_dim: int = 64
    made: bool = False  # from scores
    causal: bool = True

    def kernel(self, rows: int, place: Place) -> Tensor:
        """Weights [N, K], or scores [rows, N, K]."""
        if not self.made:
            return (random(self.heads, self.size, seed=1) / 4).to(place.device)
        return 2 * random(rows, self.heads, self.size, seed=1).to(place.device, place.dtype)

    def given(self, kernel: Tensor) -> dict[str, Tensor]:
        return {"scores" if self.made else "weights": kernel}


def reference(x: Tensor, kernel: Tensor, lengths: list[int], shape: Shape) -> Tensor:
    """x: [tokens, N, D], one sentence after the other."""
    kernel = kernel.softmax(-1) if shape.made else kernel.to(x.dtype).expand(len(x), -1, -1)
    left = shape.size - 1 if shape.causal else shape.size // 2
    padded = [
        functional.pad(part, (0, 0, 0, 0, left, shape.size - 1 - left)).unfold(0, shape.size, 1)
        for part in x.split(lengths)
        if len(part)
    ]
    return (torch.cat(padded) @ kernel[..., None])[..., 0]  # of [tokens, N, D, K] and [.., K, 1]


def convolve(
    x: Tensor, kernel: Tensor, lengths: list[int], shape: Shape, place: Place, threads: int = 1
) -> Tensor:
    [offsets, y] = put(place, offsets_of(lengths), poison(*x.shape))
    how = {"isa": place.isa, "threads": threads, "longest": max(lengths)}
    kernels.packed_depthwise(x, offsets, y, shape.causal, **shape.given(kernel), **how)
    return y


def make(place: Place, shape: Shape, lengths: list[int]) -> tuple[Tensor, Tensor]:
    [x] = put(place, random(sum(lengths), shape.heads, shape.head_dim))
    return x, shape.kernel(sum(lengths), place)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_sentences_equal_torch(place: Place, size: int, made: bool, causal: bool) -> None:
    shape = Shape(size, made=made, causal=causal)
    x, kernel = make(place, shape, LENGTHS)
    y = convolve(x, kernel, LENGTHS, shape, place, threads=2)
    assert_within_torch(reference, y, x, kernel, LENGTHS, shape)


HEAD_DIMS = [1, 2, 7, 16, 30, 33, 64, 80, 128, 130, 256]


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("size", [5, 7])
@pytest.mark.parametrize("made", [False, True])
def test_head_sizes(place: Place, threads: int, made: bool, size: int, head_dim: int) -> None:
    shape = Shape(size, 2, head_dim, made, causal=False)
    x, kernel = make(place, shape, [9, 20])
    y = convolve(x, kernel, [9, 20], shape, place, threads)
    assert_within_torch(reference, y, x, kernel, [9, 20], shape)


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_a_sentence_does_not_depend_on_its_batch(
    place: Place, threads: int, made: bool, causal: bool
) -> None:
    """Nor does it read what is another's."""
    shape = Shape(15, made=made, causal=causal)
    x, kernel = make(place, shape, LENGTHS)
    together = convolve(x, kernel, LENGTHS, shape, place, threads).split(LENGTHS)
    begins = offsets_of(LENGTHS).tolist()
    for i, length in enumerate(LENGTHS):
        own = slice(begins[i], begins[i] + length)
        spoilt = torch.full_like(x, torch.nan)
        spoilt[own] = x[own]
        among = convolve(spoilt, kernel, LENGTHS, shape, place, threads)[own]
        assert_equal(among, together[i])
        alone = kernel[own].clone() if made else kernel
        assert_equal(convolve(x[own].clone(), alone, [length], shape, place), together[i])


@pytest.mark.parametrize("causal", [False, True])
def test_a_token_sees_its_window_alone(place: Place, causal: bool) -> None:
    shape = Shape(5, 1, 8, causal=causal)
    x, kernel = make(place, shape, [20])
    expected = convolve(x, kernel, [20], shape, place)
    x[9] = torch.nan
    seen = range(9, 14) if causal else range(7, 12)
    y = convolve(x, kernel, [20], shape, place)
    assert y[seen.start : seen.stop].isnan().all()
    y[seen.start : seen.stop] = expected[seen.start : seen.stop]
    assert_equal(y, expected)


class Search:
    """Steps of the rows of some sentences whose beams exchange their pasts, position by position.
    All that a step need not read is NaN, or an index that nobody may follow. Sentence i begins
    late[i] steps after the first."""

    sentences, history = 3, 50

    def __init__(
        self,
        place: Place,
        shape: Shape,
        beams: int,
        ring: int,
        cache: torch.dtype | None = None,
        late: tuple[int, ...] = (0, 0, 0),
    ) -> None:
        self.place, self.shape, self.beams, self.ring = place, shape, beams, ring
        self.rows, self.late = self.sentences * beams, late
        self.inputs = poison(self.rows, shape.heads, ring, shape.head_dim)
        self.inputs = self.inputs.to(place.device, cache or place.dtype)
        self.table = torch.full((self.rows, self.history), NOWHERE, dtype=torch.int32)
        self.pasts: list[list[Tensor]] = [[] for _ in range(self.rows)]  # inputs, row by row

    def step(self, position: int, active: list[int], threads: int = 1, finished: int = 0) -> Any:
        """The results, and what they should be: `reference` and its arguments."""
        rows = [i * self.beams + j for i in active for j in range(self.beams)]
        drawn = random(self.rows, self.shape.heads, self.shape.head_dim, seed=position)
        [x] = put(
            self.place, torch.cat([drawn[rows], poison(finished * self.beams, *drawn.shape[1:])])
        )
        kernel = self.shape.kernel(self.rows, self.place)
        if self.shape.made:
            kernel = torch.cat(
                [kernel[rows], torch.full_like(kernel[: finished * self.beams], torch.nan)]
            )
        tables = torch.full((2, *self.table.shape), NOWHERE, dtype=torch.int32)
        positions = [position - self.late[i] for i in active]
        numbers = [position + 3 for position in positions]
        for i, own, number in zip(active, positions, numbers, strict=True):
            mine = slice(i * self.beams, (i + 1) * self.beams)
            tables[number % 2, mine, :own] = self.table[mine, :own]
        state = torch.tensor([NOWHERE, len(active)], dtype=torch.int32)
        nowhere = [NOWHERE] * finished
        ids = active_sentences(active + nowhere, numbers + nowhere, positions + nowhere)
        y, tables, state, ids = put(self.place, poison(*x.shape), tables, state, ids)
        if self.place.device == "cuda":
            torch.cuda.synchronize()  # a kernel may read such things before the last one has ended
        how = {"isa": self.place.isa, "threads": threads, **self.shape.given(kernel)}
        kernels.decode_depthwise(x, self.inputs, tables, ids, state, y, self.beams, **how)
        assert y[len(rows) :].isnan().all()
        for row, slot in enumerate(rows):
            self.pasts[slot].append(x[row])
            self.table[slot, position - self.late[slot // self.beams]] = slot
        seen = [torch.stack(self.pasts[slot][-self.shape.size :]) for slot in rows]
        return y[: len(rows)], seen, kernel[: len(rows)] if self.shape.made else kernel

    def check(self, position: int, active: list[int], **how: Any) -> None:
        y, seen, kernel = self.step(position, active, **how)
        assert_within_torch(newest, y, kernel, self.shape, *seen)

    def exchange(self, parents: list[int]) -> None:
        """parents: [rows], rows of the same sentence."""
        self.table = self.table[parents].clone()
        self.pasts = [list(self.pasts[parent]) for parent in parents]


def newest(kernel: Tensor, shape: Shape, *seen: Tensor) -> Tensor:
    """The last token of each row's inputs [positions, N, D]."""
    rows = []
    for row, x in enumerate(seen):
        own = kernel[row : row + 1].expand(len(x), -1, -1) if shape.made else kernel
        rows.append(reference(x, own, [len(x)], shape)[-1])
    return torch.stack(rows)


def parents_of(search: Search, draw: torch.Generator) -> list[int]:
    chosen = torch.randint(search.beams, (search.rows,), generator=draw).tolist()
    return [slot // search.beams * search.beams + j for slot, j in enumerate(chosen)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 31, 32])
@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("spare", [0, 5])
def test_steps_equal_torch(place: Place, size: int, made: bool, spare: int) -> None:
    """Positions take the places of older ones, under beams that go on from each other."""
    search = Search(place, Shape(size, made=made), beams=3, ring=size + spare)
    draw = torch.Generator().manual_seed(size)
    for position in range(min(size + spare + 9, search.history)):
        active = [2, 0, 1] if position < 5 else [2, 0]
        search.check(position, active, threads=2, finished=3 - len(active))
        search.exchange(parents_of(search, draw))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("made", [False, True])
def test_head_sizes_of_steps(place: Place, made: bool, head_dim: int) -> None:
    search = Search(place, Shape(5, 2, head_dim, made), beams=2, ring=6)
    for position in range(8):
        search.check(position, [1, 0], threads=2)
        search.exchange([1, 0, 3, 3, 4, 5])


@pytest.mark.parametrize("size", [1, 3, 31])
@pytest.mark.parametrize("made", [False, True])
def test_sentences_at_steps_of_their_own(place: Place, size: int, made: bool) -> None:
    """They join while others are at work, and each has its own position and table."""
    search = Search(place, Shape(size, made=made), beams=3, ring=size + 1, late=(4, 0, 9))
    draw = torch.Generator().manual_seed(size)
    for position in range(size + 19):
        active = [i for i in (2, 0, 1) if position >= search.late[i]]
        search.check(position, active, threads=2, finished=3 - len(active))
        search.exchange(parents_of(search, draw))


@pytest.mark.parametrize("place", [place for place in PLACES if place.device == "cpu"], ids=str)
@given(data=st.data())
@settings(max_examples=25)
def test_any_search(place: Place, data: st.DataObject) -> None:
    def draw(strategy: st.SearchStrategy[Any]) -> Any:
        return data.draw(strategy)

    size, beams = draw(st.integers(1, 32)), draw(st.integers(1, 4))
    shape = Shape(size, draw(st.integers(1, 3)), draw(st.integers(1, 40)), draw(st.booleans()))
    late = (0, 0, draw(st.integers(0, 9)))
    search = Search(place, shape, beams, size + draw(st.integers(0, 3)), late=late)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    for position in range(draw(st.integers(1, 40))):
        active = [i for i in (1, 2) if position >= late[i]]
        search.check(position, active, threads=draw(st.integers(1, 3)))
        search.exchange(parents_of(search, generator))


@pytest.mark.parametrize("size", [2, 7, 31])
@pytest.mark.parametrize("made", [False, True])
def test_a_step_is_the_last_token_of_a_sentence(
    place: Place, threads: int, made: bool, size: int
) -> None:
    """To the bit: a row's past may have been read at once or step by step, alone or in a batch."""
    shape, positions = Shape(size, made=made), 12
    together = Search(place, shape, 2, ring=size)
    alone = Search(place, shape, 2, ring=size)
    for position in range(positions):
        y, _, kernel = together.step(position, [1, 0], threads)
        assert_equal(alone.step(position, [0])[0], y[2:])
    x = torch.stack(together.pasts[0])
    own = kernel[2:3].expand(positions, -1, -1).contiguous() if made else kernel
    assert_equal(convolve(x, own, [positions], shape, place)[-1], y[2])


@pytest.mark.parametrize("made", [False, True])
def test_inputs_kept_in_bfloat16(isa: str, made: bool) -> None:
    """As with float32 that holds the same numbers."""
    place, shape = Place(isa), Shape(5, 2, 40, made)
    narrow = Search(place, shape, 2, 5, torch.bfloat16)
    for position in range(9):
        y, seen, kernel = narrow.step(position, [0, 2], threads=2)
        rounded = [x.bfloat16().float() for x in seen]
        for row, x in enumerate(rounded):
            own = kernel[row : row + 1].expand(len(x), -1, -1).contiguous() if made else kernel
            assert_same_bits(convolve(x, own, [len(x)], shape, place)[-1], y[row])


def test_nothing_to_do(place: Place, threads: int) -> None:
    shape = Shape()
    x, kernel = make(place, shape, [0, 0])
    assert convolve(x, kernel, [0, 0], shape, place, threads).shape == (0, 3, 64)
    assert Search(place, shape, 2, 31).step(0, [], finished=3)[0].shape == (0, 3, 64)
