"""unconditional_rows against a few lines of Python."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decoding import _C
from decoding import _kernels as kernels
from tests.support.active import active_sentences

BATCH, HISTORY = 3, 9  # sentences that are searched; unconditional ones follow, in another order
FOLLOWING = [4, 5, 3]


def ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def check(isa: str, threads: int, beams: int, sentences: list[int], numbers: list[int]) -> None:
    """numbers: of each sentence's step. The places behind them repeat the first sentence."""
    device = "cuda" if isa == "cuda" else "cpu"
    draw = torch.Generator().manual_seed(beams)
    rows = BATCH * beams
    table = torch.randint(100, (2, 2 * rows, HISTORY), generator=draw).int()
    ids, lengths = torch.arange(rows).int() + 50, ints([3, 0, 4, 1, 1, 2])
    active = active_sentences(sentences, numbers, [number + 1 for number in numbers])
    unused = active_sentences([0] * (BATCH - len(sentences)), -9, -9)
    tensors = (
        torch.cat([active, unused]), ints([7, len(sentences)]), ids, ints(FOLLOWING),
        ints([70, 71, 72]), lengths, table,
    )  # fmt: skip
    placed = [tensor.to(device, copy=True) for tensor in tensors]
    found = kernels.unconditional_rows(*placed, isa=isa, threads=threads)
    state, all_active, all_ids, positions = (tensor.cpu() for tensor in found)
    assert state.tolist() == [7, BATCH + len(sentences)]
    places = [*range(len(sentences)), *[0] * (BATCH - len(sentences))]
    for i, place in enumerate(places):
        sentence, number, position = active[place].tolist()
        following, before = FOLLOWING[sentence], number - 1
        assert all_active[i].tolist() == [sentence, number, position]
        assert all_active[BATCH + i].tolist() == [following, number, position]
        mine, its = (slice(at * beams, (at + 1) * beams) for at in (i, BATCH + i))
        read = ids[place * beams : (place + 1) * beams]
        assert torch.equal(all_ids[mine], read)
        assert torch.equal(all_ids[its], read if before else torch.full_like(read, 70 + sentence))
        assert (positions[mine] == lengths[sentence] + before).all()
        assert (positions[its] == lengths[following] + before).all()
        own, others = (slice(at * beams, (at + 1) * beams) for at in (sentence, following))
        moved = table[number % 2, own, :position] + (following - sentence) * beams
        table[number % 2, others, :position] = moved
    assert torch.equal(placed[-1].cpu(), table)


@given(
    isa=st.sampled_from(_C.isas()),
    threads=st.sampled_from([1, 2, 3]),
    beams=st.integers(1, 4),
    sentences=st.lists(st.integers(0, BATCH - 1), min_size=1, unique=True),
    data=st.data(),
)
def test_sentences_at_steps_of_their_own(
    isa: str, threads: int, beams: int, sentences: list[int], data: st.DataObject
) -> None:
    check(
        isa, threads, beams, sentences, [data.draw(st.integers(1, HISTORY - 1)) for _ in sentences]
    )


@pytest.mark.gpu
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("sentences", [[0, 2], [2, 0, 1], [1]])
@pytest.mark.parametrize("numbers", [[1, 4, 7], [8, 1, 2]])
def test_on_a_gpu(beams: int, sentences: list[int], numbers: list[int]) -> None:
    check("cuda", 1, beams, sentences, numbers[: len(sentences)])
