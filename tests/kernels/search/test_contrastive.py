"""contrast against torch, and contrast_step for sentences at steps of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from decoding import _C
from decoding import _kernels as kernels
from tests.conftest import Place, assert_within_torch, poison, random
from tests.support.active import active_sentences
from tests.support.attention import NOWHERE, offsets_of, put

ACTIVE, BEAMS, HISTORY = [3, 0, 2], 3, 41
NUMBERS, POSITIONS = [4, 1, 9], [3, 0, 40]  # of each of them
PROMPTS = [5, 0, 1, 7]


def similarity(own: Tensor, *contexts: Tensor) -> Tensor:
    """own: [rows, H]; contexts: [positions, H] of each row."""
    cosines = [
        (context @ row) / (row.norm() * context.norm(dim=1))
        for row, context in zip(own, contexts, strict=True)
    ]
    return torch.stack([found.max() for found in cosines])


@pytest.mark.parametrize("size", [8, 33, 512])
def test_cosine_similarity(place: Place, threads: int, size: int) -> None:
    """Each sentence has come as far as its own position, and keeps its states there."""
    rows = len(PROMPTS) * BEAMS
    table = torch.full((2, rows, HISTORY), NOWHERE, dtype=torch.int32)
    states, hidden = random(rows, HISTORY, size, seed=1), poison(rows, HISTORY, size)
    beams = torch.randint(BEAMS, (rows, HISTORY), generator=torch.Generator().manual_seed(2))
    for sentence, number, position in zip(ACTIVE, NUMBERS, POSITIONS, strict=True):
        mine = slice(sentence * BEAMS, (sentence + 1) * BEAMS)
        table[number % 2, mine, :position] = (sentence * BEAMS + beams[mine, :position]).int()
        hidden[mine, :position] = states[mine, :position]
    x, prompt = random(len(ACTIVE) * BEAMS, size), random(sum(PROMPTS), size, seed=3)
    offsets, unused = offsets_of(PROMPTS), [NOWHERE]
    x, prompt, hidden, table, offsets, active, state = put(
        place, torch.cat([x, poison(BEAMS, size)]), prompt, hidden, table, offsets,
        active_sentences(ACTIVE + unused, NUMBERS + unused, POSITIONS + unused),
        torch.tensor([NOWHERE, len(ACTIVE)], dtype=torch.int32),
    )  # fmt: skip
    kept = hidden.clone()
    found = kernels.contrast(
        x, hidden, active, state, table, prompt=prompt, prompt_offsets=offsets,
        isa=place.isa, threads=threads,
    )  # fmt: skip
    contexts = []
    for i, (sentence, number, position) in enumerate(zip(ACTIVE, NUMBERS, POSITIONS, strict=True)):
        given = prompt[int(offsets[sentence]) : int(offsets[sentence + 1])]
        for beam in range(BEAMS):
            slot = sentence * BEAMS + beam
            past = kept[table[number % 2, slot, :position].long(), range(position)]
            contexts.append(torch.cat([given, past]).float())
            kept[slot, position] = x[i * BEAMS + beam]
    count = len(contexts)
    assert_within_torch(similarity, found[:count], x[:count].float(), *contexts)
    assert torch.equal(hidden.nan_to_num(7.0), kept.nan_to_num(7.0))


def step(isa: str, places: list[int]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What a search keeps before and after a step of some of the active sentences."""
    slots, steps, vocab = len(PROMPTS) * BEAMS, 10, 50
    draw = torch.Generator().manual_seed(5)
    device = "cuda" if isa == "cuda" else "cpu"

    def some(most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, generator=draw, dtype=torch.int32)

    rows = len(ACTIVE) * BEAMS
    values, ids = torch.randn(rows, BEAMS, generator=draw), some(vocab, rows, BEAMS)
    lse, similarity = (torch.rand(rows, generator=draw) for _ in range(2))
    of_sentence = torch.arange(slots).int() // BEAMS * BEAMS
    state = {
        "sums": torch.rand(slots, generator=draw),
        "tokens": some(vocab, steps, slots),
        "parents": of_sentence + some(BEAMS, steps, slots),
        "cache_indirection": of_sentence[:, None] + some(BEAMS, 2, slots, HISTORY),
        "finished": torch.full((len(PROMPTS), 1, 5), -1, dtype=torch.int32),
        **{name: torch.zeros(len(PROMPTS), dtype=torch.int32)
           for name in ("finished_count", "done", "fault")},
    }  # fmt: skip
    after = {name: tensor.to(device, copy=True) for name, tensor in state.items()}
    mine = [place * BEAMS + beam for place in places for beam in range(BEAMS)]
    active = active_sentences(ACTIVE, NUMBERS, POSITIONS)[places]
    options: dict[str, Any] = {"eos": [1], "vocab": vocab, "max_new": [9, 9, 8, 9], "alpha": 0.6}
    tensors = (values[mine], ids[mine], lse[mine], similarity[mine], active)
    kernels.contrast_step(
        *(tensor.to(device) for tensor in tensors), state=after, **options, isa=isa, threads=2
    )
    return state, {name: tensor.cpu() for name, tensor in after.items()}


@pytest.mark.parametrize("isa", [*_C.isas(), pytest.param("cuda", marks=pytest.mark.gpu)])
def test_sentences_at_steps_of_their_own(isa: str) -> None:
    """As each alone: one that goes on, one in its first step, one whose last token is chosen."""
    before, together = step(isa, [0, 1, 2])
    assert together["done"].tolist() == [0, 0, 1, 0]
    one_by_one = dict(before)
    for place in range(len(ACTIVE)):
        alone = step(isa, [place])[1]
        for name, kept in one_by_one.items():
            one_by_one[name] = kept.where(alone[name] == before[name], alone[name])
    for name, kept in together.items():
        assert torch.equal(kept, one_by_one[name]), name
