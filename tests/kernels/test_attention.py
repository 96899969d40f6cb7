"""Attention of packed rows, and of one new token per row, against torch."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from decoding._C import kernels
from tests.conftest import assert_same_bits, assert_within_torch, poison, random

DIMS = [1, 15, 16, 17, 64, 65, 80, 256]
SHARED = [5, 0, 70, 33, 64]  # positions of each sentence


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """q: [queries, N, D]; k, v: [positions, N, D]; mask: [queries, positions], True is seen."""
    scores = torch.einsum("qnd,pnd->nqp", q, k) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("nqp,pnd->qnd", scores.softmax(-1), v)


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


# Packed rows: the encoder, or the prompt.


def packed_reference(qkv: Tensor, offsets: Tensor, scale: float, causal: bool) -> Tensor:
    y = torch.empty_like(qkv[:, 0])
    for begin, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False):
        mask = torch.ones(end - begin, end - begin).tril().bool() if causal else None
        q, k, v = qkv[begin:end].unbind(1)
        y[begin:end] = attend(q, k, v, scale, mask)
    return y


def packed_attention(
    qkv: Tensor, offsets: Tensor, scale: float, causal: bool, *, isa: str, threads: int = 1
) -> Tensor:
    y = poison(len(qkv), *qkv.shape[2:])
    kernels.packed_attention(qkv, offsets, y, scale, causal, isa=isa, threads=threads)
    return y


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", DIMS)
def test_packed_equals_torch(isa: str, dim: int, causal: bool) -> None:
    lengths = [0, 1, 5, 0, 64, 65, 130, 0]
    inputs = random(sum(lengths), 3, 2, dim), offsets_of(lengths), dim**-0.5, causal
    y = packed_attention(*inputs, isa=isa, threads=2)
    assert_within_torch(packed_reference, y, *inputs)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_with_large_scores(isa: str, causal: bool) -> None:
    # The maximum changes from block to block, and some weights underflow.
    lengths = [300, 17]
    inputs = random(sum(lengths), 3, 1, 32) * 6, offsets_of(lengths), 1.0, causal
    assert_within_torch(packed_reference, packed_attention(*inputs, isa=isa), *inputs)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_touches_only_its_sentences(isa: str, threads: int, causal: bool) -> None:
    lengths = [7, 0, 70, 1]
    inner = random(sum(lengths), 3, 2, 24)
    expected = packed_attention(inner, offsets_of(lengths), 0.2, causal, isa=isa)
    qkv = torch.cat([poison(3, 3, 2, 24), inner, poison(2, 3, 2, 24)])
    y = packed_attention(qkv, offsets_of(lengths) + 3, 0.2, causal, isa=isa, threads=threads)
    assert_same_bits(y[3:-2], expected)
    assert y[:3].isnan().all() and y[-2:].isnan().all()


@pytest.mark.parametrize("causal", [False, True])
def test_a_packed_sentence_does_not_depend_on_its_batch(
    isa: str, threads: int, causal: bool
) -> None:
    lengths = [3, 150, 0, 64, 1, 33, 100]
    offsets = offsets_of(lengths)
    qkv = random(sum(lengths), 3, 3, 40)
    together = packed_attention(qkv, offsets, 0.2, causal, isa=isa, threads=threads)
    for begin, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False):
        alone = packed_attention(
            qkv[begin:end].contiguous(), offsets_of([end - begin]), 0.2, causal, isa=isa
        )
        assert_same_bits(together[begin:end], alone, f"rows {begin} to {end}")


def test_nothing_packed(isa: str, threads: int) -> None:
    y = packed_attention(poison(2, 3, 1, 8), offsets_of([]), 1.0, False, isa=isa, threads=threads)
    assert y.isnan().all()


# Shared keys and values.


@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_store_shared(isa: str, threads: int, tokens: int) -> None:
    kv = random(tokens, 2, 3, 17)
    shared_k, shared_v = poison(3, 9, 17), poison(3, 9, 17)
    kernels.store_shared(kv, shared_k, shared_v, isa=isa, threads=threads)
    for part, shared in enumerate((shared_k, shared_v)):
        assert_same_bits(shared[:, :tokens], kv[:, part].transpose(0, 1))
        assert shared[:, tokens:].isnan().all()


# One new token per row.


class Shared(NamedTuple):
    k: Tensor  # [N, capacity, D]
    v: Tensor
    offsets: Tensor  # [sentences + 1]

    def of(self, sentence: int) -> slice:
        return slice(int(self.offsets[sentence]), int(self.offsets[sentence + 1]))


class History(NamedTuple):
    k: Tensor  # [slots, N, target, D]
    v: Tensor
    slots: Tensor  # [slots, target]
    position: int  # of the new token


class Step:
    """One decoding step of the sentences `live`, with everything that is not theirs poisoned.

    shared: shared positions of each sentence, or None; position: of the new token, or None
    without history.
    """

    heads, sentences, scale = 3, 5, 0.2

    def __init__(
        self, live: list[int], beams: int, dim: int, shared: list[int] | None, position: int | None
    ) -> None:
        self.live, self.beams, self.dim = live, beams, dim
        self.row_slots = [i * beams + j for i in live for j in range(beams)]
        parts = 1 if position is None else 3
        # Drawn for all sentences, so that a sentence has the same numbers in every batch.
        self.qkv = random(self.sentences * beams, parts, self.heads, dim, seed=1)[self.row_slots]
        self.shared = None if shared is None else self.make_shared(offsets_of(shared))
        self.history = None if position is None else self.make_history(position)

    def make_shared(self, offsets: Tensor) -> Shared:
        shared = Shared(
            poison(self.heads, 200, self.dim), poison(self.heads, 200, self.dim), offsets
        )
        keys, values = random(2, self.heads, 200, self.dim, seed=2)
        for own in map(shared.of, self.live):
            shared.k[:, own], shared.v[:, own] = keys[:, own], values[:, own]
        return shared

    def make_history(self, position: int) -> History:
        """The beams of a sentence have exchanged their pasts at every position."""
        slots, target = self.sentences * self.beams, 80
        size = slots, self.heads, target, self.dim
        nowhere = torch.full((slots, target), 1 << 30, dtype=torch.int32)
        history = History(poison(*size), poison(*size), nowhere, position)
        keys, values = random(2, *size, seed=3)
        exchanged = torch.randint(
            self.beams, (slots, target), generator=torch.Generator().manual_seed(4)
        )
        for slot in self.row_slots:
            for at in range(position):
                holder = slot // self.beams * self.beams + int(exchanged[slot, at])
                history.slots[slot, at] = holder
                history.k[holder, :, at] = keys[holder, :, at]
                history.v[holder, :, at] = values[holder, :, at]
        return history

    def run(self, isa: str, threads: int = 1) -> Tensor:
        y = poison(len(self.row_slots), self.heads, self.dim)
        shared, history = self.shared, self.history
        kernels.decode_attention(
            self.qkv,
            torch.tensor(self.live, dtype=torch.int32),
            y,
            self.scale,
            self.beams,
            shared_k=shared and shared.k,
            shared_v=shared and shared.v,
            shared_offsets=shared and shared.offsets,
            self_k=history and history.k,
            self_v=history and history.v,
            slots=history and history.slots,
            position=history.position if history else 0,
            isa=isa,
            threads=threads,
        )
        return y

    def check(self, y: Tensor) -> None:
        """Against keys and values that are gathered the slow way."""
        for row, slot in enumerate(self.row_slots):
            keys: list[Tensor] = []
            values: list[Tensor] = []
            if self.shared is not None:
                own = self.shared.of(slot // self.beams)
                keys += self.shared.k[:, own].unbind(1)
                values += self.shared.v[:, own].unbind(1)
            if self.history is not None:
                for at, holder in enumerate(self.history.slots[slot, : self.history.position]):
                    keys.append(self.history.k[holder, :, at])
                    values.append(self.history.v[holder, :, at])
                keys.append(self.qkv[row, 1])
                values.append(self.qkv[row, 2])
            inputs = self.qkv[row, :1], torch.stack(keys), torch.stack(values), self.scale
            assert_within_torch(attend, y[row : row + 1], *inputs)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("beams", [1, 3])
def test_decode_equals_torch(isa: str, beams: int, dim: int) -> None:
    step = Step([3, 0, 4], beams, dim, [5, 0, 9, 33, 64], 37)
    step.check(step.run(isa, threads=2))


@pytest.mark.parametrize("beams", [1, 4, 8, 9, 19])
def test_cross_attention_equals_torch(isa: str, beams: int) -> None:
    step = Step([0, 2, 1], beams, 64, [1, 32, 100, 3, 3], None)
    step.check(step.run(isa))


@pytest.mark.parametrize("position", [0, 1, 15, 31, 32, 33, 79])
def test_history_equals_torch(isa: str, position: int) -> None:
    step = Step([4, 1], 4, 64, None, position)
    step.check(step.run(isa))


def test_a_sentence_may_share_nothing(isa: str) -> None:
    step = Step([0, 1, 2], 2, 16, [0, 40, 0, 0, 0], 3)
    step.check(step.run(isa))


def test_a_sentence_without_anything_gives_zero(isa: str) -> None:
    step = Step([0, 1], 2, 16, [0, 1, 0, 0, 0], None)
    assert_same_bits(step.run(isa)[:2], torch.zeros(2, 3, 16))


def test_decode_writes_its_own_keys_and_nothing_else(isa: str, threads: int) -> None:
    step = Step([2, 0], 3, 17, None, 5)
    assert step.history is not None
    expected_k, expected_v = step.history.k.clone(), step.history.v.clone()
    expected_k[step.row_slots, :, 5] = step.qkv[:, 1]
    expected_v[step.row_slots, :, 5] = step.qkv[:, 2]
    step.run(isa, threads)
    assert_same_bits(step.history.k, expected_k)
    assert_same_bits(step.history.v, expected_v)


@pytest.mark.parametrize(
    ("shared", "position"), [(SHARED, None), (SHARED, 0), (SHARED, 50), (None, 0), (None, 50)]
)
@pytest.mark.parametrize("beams", [1, 4, 11])
def test_a_row_does_not_depend_on_its_batch(
    isa: str, beams: int, position: int | None, shared: list[int] | None
) -> None:
    live = [3, 0, 4, 2]
    alone = torch.cat([_alone(i, beams, shared, position, isa) for i in live])
    for threads in (1, 2, 3, 7):
        together = Step(live, beams, 40, shared, position).run(isa, threads)
        assert_same_bits(together, alone, f"{threads} threads")


def _alone(
    sentence: int, beams: int, shared: list[int] | None, position: int | None, isa: str
) -> Tensor:
    return Step([sentence], beams, 40, shared, position).run(isa)


def test_no_live_sentence(isa: str, threads: int) -> None:
    assert Step([], 4, 64, [1, 1, 1, 1, 1], 3).run(isa, threads).shape == (0, 3, 64)
