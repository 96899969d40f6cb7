"""gather_active, reset_cache_indirection and accept_tokens against a few lines of Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoding import _C
from decoding import _kernels as kernels
from tests.support.active import active_sentences


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@given(
    isa=st.sampled_from(_C.isas()),
    threads=st.sampled_from([1, 2, 3]),
    beams=st.integers(1, 4),
    done=st.lists(st.booleans(), min_size=1, max_size=7),
    data=st.data(),
)
def test_gather_active(
    isa: str, threads: int, beams: int, done: list[bool], data: st.DataObject
) -> None:
    """Each sentence is at a step of its own."""
    sentences = len(done)
    active = data.draw(st.lists(st.integers(0, sentences - 1), unique=True).map(sorted))
    prompt_lengths = torch.arange(sentences).int() * 10
    random_first = (torch.arange(sentences).int() + 50) * beams
    numbers = [data.draw(st.integers(1, 5)) for _ in done]
    tokens = torch.full((5, sentences * beams), -7, dtype=torch.int32)
    for i, number in enumerate(numbers):
        mine = slice(i * beams, (i + 1) * beams)
        tokens[number - 1, mine] = torch.arange(sentences * beams)[mine].int() + 100
    listed = torch.full((sentences, 3), -9, dtype=torch.int32)
    own = [numbers[i] for i in active]
    listed[: len(active)] = active_sentences(active, own, [30 * n for n in own])
    state = ints(12, len(active))
    ids, positions, random_row = kernels.gather_active(
        state, ints(*done), prompt_lengths, tokens, random_first, listed, isa=isa, threads=threads
    )
    kept = [sentence for sentence in active if not done[sentence]]
    slots = [sentence * beams + beam for sentence in kept for beam in range(beams)]
    assert state.tolist() == [13, len(kept)]
    assert listed[: len(kept)].tolist() == [[i, numbers[i] + 1, 30 * numbers[i] + 1] for i in kept]
    assert ids[: len(slots)].tolist() == [100 + slot for slot in slots]
    assert positions[: len(slots)].tolist() == [
        10 * (slot // beams) + numbers[slot // beams] for slot in slots
    ]
    assert random_row[: len(slots)].tolist() == [50 * beams + slot for slot in slots]


@pytest.mark.parametrize("isa", [*_C.isas(), pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("beams", "prefix"), [(1, 0), (1, 3), (4, 0), (4, 2), (3, 7)])
@pytest.mark.parametrize("history", [7, 300])
def test_reset_cache_indirection(isa: str, beams: int, prefix: int, history: int) -> None:
    rows = 5 * beams
    device = "cuda" if isa == "cuda" else "cpu"
    table = torch.full((2, rows, history), -7, dtype=torch.int32, device=device)
    kernels.reset_cache_indirection(table, beams=beams, prefix=prefix, isa=isa, threads=3)
    row = torch.arange(rows)[:, None].expand(rows, history).clone()
    row[:, :prefix] = row[:, :prefix] // beams * beams
    assert (table.cpu() == row).all()


class Accepted:
    """Three sentences of two rows; the second one is no longer active."""

    def __init__(self) -> None:
        self.state = {
            "tokens": torch.full((4, 6), -7, dtype=torch.int32),
            "length": torch.zeros(6, dtype=torch.int32),
            "done": ints(0, 1, 0),
            "fault": torch.zeros(3, dtype=torch.int32),
        }

    def step(
        self,
        step: int | list[int],
        ids: list[int],
        lse: list[float],
        *,
        fallback: int,
        isa: str,
        threads: int,
    ) -> None:
        """step: of both sentences, or of each."""
        kernels.update_rows(
            torch.zeros(4), ints(*ids), torch.tensor(lse), active_sentences([0, 2], step, -9),
            eos=[8, 9], state=self.state, pad=1, fallback=fallback, max_new=3,
            isa=isa, threads=threads,
        )  # fmt: skip

    def __getitem__(self, name: str) -> Any:
        return self.state[name].tolist()


def test_rows_end_by_eos_and_by_length(isa: str, threads: int) -> None:
    rows, fine = Accepted(), [0.0] * 4
    rows.step(1, [5, 8, 6, 7], fine, fallback=-1, isa=isa, threads=threads)
    assert rows["length"] == [0, 1, 0, 0, 0, 0] and rows["done"] == [0, 1, 0]
    rows.step(2, [9, 5, 6, 7], [0.0, math.nan, 0.0, 0.0], fallback=-1, isa=isa, threads=threads)
    assert rows["length"] == [2, 1, 0, 0, 0, 0] and rows["done"] == [1, 1, 0]
    rows.step(3, [5, 5, 6, 9], fine, fallback=-1, isa=isa, threads=threads)
    assert rows["length"] == [2, 1, 0, 0, 3, 3] and rows["done"] == [1, 1, 1]
    assert rows["fault"] == [0, 0, 0]
    untouched = [-7, -7]
    assert rows["tokens"] == [
        [5, 8, *untouched, 6, 7],
        [9, 1, *untouched, 6, 7],
        [1, 1, *untouched, 6, 9],
        [-7] * 6,
    ]


def test_each_sentence_takes_tokens_at_its_own_step(isa: str, threads: int) -> None:
    rows = Accepted()
    rows.step([3, 1], [5, 8, 6, 7], [0.0] * 4, fallback=-1, isa=isa, threads=threads)
    assert rows["length"] == [3, 3, 0, 0, 0, 0] and rows["done"] == [1, 1, 0]
    rows.step([2, 4], [5, 5, 6, 9], [0.0, 0.0, math.nan, 0.0], fallback=0, isa=isa, threads=threads)
    assert rows["length"] == [3, 3, 0, 0, 4, 4] and rows["fault"] == [0, 0, 4]
    untouched = [-7, -7]
    assert rows["tokens"] == [
        [*untouched, *untouched, 6, 7],
        [1, 1, *untouched, *untouched],
        [5, 8, *untouched, *untouched],
        [*untouched, *untouched, 1, 9],
    ]


def test_broken_logits_are_a_fault(isa: str, threads: int) -> None:
    for value in (math.nan, math.inf):
        rows = Accepted()
        rows.step(1, [5] * 4, [0.0] * 4, fallback=0, isa=isa, threads=threads)
        rows.step(2, [5] * 4, [0.0, 0.0, 0.0, value], fallback=0, isa=isa, threads=threads)
        assert rows["fault"] == [0, 0, 2]
        assert rows["length"] == [0, 0, 0, 0, 0, 2]


def test_nothing_left_to_choose(isa: str, threads: int) -> None:
    empty = [0.0, -math.inf, 0.0, 0.0]
    rows = Accepted()
    rows.step(2, [5, -1, 5, 5], empty, fallback=-1, isa=isa, threads=threads)
    assert rows["fault"] == [-2, 0, 0]
    rows = Accepted()
    rows.step(2, [5, -1, 5, 5], empty, fallback=0, isa=isa, threads=threads)
    assert rows["fault"] == [0, 0, 0]
    assert rows["tokens"][1] == [5, 0, -7, -7, 5, 5]
