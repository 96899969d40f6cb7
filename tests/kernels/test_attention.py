"""Attention of packed rows, and of one new token per row, against torch."""

from __future__ import annotations

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
        y[begin:end] = attend(*qkv[begin:end].unbind(1), scale, mask)
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
    lengths = [0, 1, 5, 0, 64, 65, 97, 200, 0]
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


class Step:
    """One decoding step with everything unused poisoned: three heads, sentences in any order.

    shared: shared positions of each sentence, or None; position: of the new token, or None
    without history; live: sentence ids.
    """

    def __init__(
        self,
        live: list[int],
        beams: int,
        dim: int,
        shared: list[int] | None,
        position: int | None,
        seed: int = 0,
    ) -> None:
        heads, target, sentences = 3, 80, 5
        generator = torch.Generator().manual_seed(seed)
        self.live, self.beams, self.scale = torch.tensor(live).int(), beams, dim**-0.5
        rows = len(live) * beams
        self.row_slots = [i * beams + j for i in live for j in range(beams)]
        self.position = position
        # A sentence's queries depend on the sentence alone, so that batches can be compared.
        parts = 1 if position is None else 3
        everything = random(sentences * beams, parts, heads, dim, seed=seed + 1)
        self.qkv = everything[self.row_slots].reshape(rows, parts, heads, dim).contiguous()
        self.shared_k = self.shared_v = self.shared_offsets = None
        if shared is not None:
            self.shared_offsets = offsets_of(shared)
            kv = random(2, heads, sum(shared), dim, seed=seed + 2)
            self.shared_k, self.shared_v = poison(heads, 200, dim), poison(heads, 200, dim)
            for i in live:
                own = slice(int(self.shared_offsets[i]), int(self.shared_offsets[i + 1]))
                self.shared_k[:, own], self.shared_v[:, own] = kv[:, :, own]
        self.self_k = self.self_v = self.slots = None
        if position is not None:
            size = (sentences * beams, heads, target, dim)
            self.self_k, self.self_v = poison(*size), poison(*size)
            self.slots = torch.full((sentences * beams, target), 1 << 30, dtype=torch.int32)
            kv = random(2, *size, seed=seed + 3)
            for at in range(position):
                for i in range(sentences):
                    # The beams of a sentence have exchanged their histories at every position.
                    exchanged = torch.randint(beams, (beams,), generator=generator)
                    if i in live:
                        own = torch.arange(i * beams, (i + 1) * beams)
                        self.slots[own, at] = own[exchanged].int()
                        read = own[exchanged]
                        self.self_k[read, :, at] = kv[0, read, :, at]
                        self.self_v[read, :, at] = kv[1, read, :, at]

    def run(self, isa: str, threads: int = 1) -> Tensor:
        y = poison(*self.qkv[:, 0].shape)
        kernels.decode_attention(
            self.qkv,
            self.live,
            y,
            self.scale,
            self.beams,
            shared_k=self.shared_k,
            shared_v=self.shared_v,
            shared_offsets=self.shared_offsets,
            self_k=self.self_k,
            self_v=self.self_v,
            slots=self.slots,
            position=self.position or 0,
            isa=isa,
            threads=threads,
        )
        return y

    def rows(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """q [1, N, D], k and v [positions, N, D] of each row, gathered the slow way."""
        found = []
        for row, slot in enumerate(self.row_slots):
            keys, values = [], []
            if self.shared_k is not None:
                i = slot // self.beams
                own = slice(int(self.shared_offsets[i]), int(self.shared_offsets[i + 1]))
                keys += self.shared_k[:, own].unbind(1)
                values += self.shared_v[:, own].unbind(1)
            if self.position is not None:
                for at in range(self.position):
                    keys.append(self.self_k[self.slots[slot, at], :, at])
                    values.append(self.self_v[self.slots[slot, at], :, at])
                keys.append(self.qkv[row, 1])
                values.append(self.qkv[row, 2])
            found.append((self.qkv[row, :1], torch.stack(keys), torch.stack(values)))
        return found

    def check(self, y: Tensor) -> None:
        for row, (q, k, v) in enumerate(self.rows()):
            assert_within_torch(attend, y[row : row + 1], q, k, v, self.scale)


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


def test_decode_writes_its_own_keys_and_nothing_else(isa: str, threads: int) -> None:
    step = Step([2, 0], 3, 17, None, 5)
    before_k, before_v = step.self_k.clone(), step.self_v.clone()
    step.run(isa, threads)
    before_k[step.row_slots, :, 5], before_v[step.row_slots, :, 5] = step.qkv[:, 1], step.qkv[:, 2]
    assert_same_bits(step.self_k, before_k)
    assert_same_bits(step.self_v, before_v)


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
