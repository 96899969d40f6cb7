"""Attention of packed rows, and of one new token per row, against torch."""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from decoding._C import kernels
from tests.conftest import Place, assert_same_bits, assert_within_torch, poison, random

DIMS = [1, 8, 15, 16, 17, 32, 40, 64, 65, 80, 96, 128, 256]
SHARED = [5, 0, 70, 33, 64]  # positions of each sentence
NOWHERE = 1 << 30  # an index that nobody may follow


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """q: [queries, N, D]; k, v: [positions, N, D]; mask: [queries, positions], True is seen."""
    scores = torch.einsum("qnd,pnd->nqp", q, k) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("nqp,pnd->qnd", scores.softmax(-1), v)


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def assert_equal(ours: Tensor, expected: Tensor) -> None:
    """To the bit, in any type."""
    assert_same_bits(ours.float().cpu(), expected.float().cpu())


# Packed rows: the encoder, or the prompt.


def packed_reference(qkv: Tensor, offsets: Tensor, scale: float, causal: bool) -> Tensor:
    y = torch.empty_like(qkv[:, 0])
    for begin, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False):
        mask = None
        if causal:
            mask = torch.ones(end - begin, end - begin, device=qkv.device).tril().bool()
        q, k, v = qkv[begin:end].unbind(1)
        y[begin:end] = attend(q, k, v, scale, mask)
    return y


def packed_attention(
    qkv: Tensor,
    offsets: Tensor,
    scale: float,
    causal: bool,
    *,
    isa: str,
    threads: int = 1,
    longest: int = 0,
) -> Tensor:
    y = poison(len(qkv), *qkv.shape[2:]).to(qkv)
    kernels.packed_attention(
        qkv, offsets, y, scale, causal, longest=longest, isa=isa, threads=threads
    )
    return y


def check_packed(place: Place, lengths: list[int], heads: int, dim: int, causal: bool) -> None:
    qkv = random(sum(lengths), 3, heads, dim).to(place.device, place.dtype)
    inputs = qkv, offsets_of(lengths).to(place.device), dim**-0.5, causal
    y = packed_attention(*inputs, isa=place.isa, threads=2, longest=max(lengths))
    assert_within_torch(packed_reference, y, *inputs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", DIMS)
def test_packed_equals_torch(place: Place, dim: int, causal: bool) -> None:
    check_packed(place, [0, 1, 5, 0, 64, 65, 130, 0], 2, dim, causal)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_of_all_lengths(place: Place, causal: bool) -> None:
    check_packed(place, [1, 2, 31, 32, 33, 63, 64, 65, 127, 200, 513, 1100], 2, 64, causal)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [32, 64])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_packed_of_many_heads(dtype: torch.dtype, dim: int, causal: bool) -> None:
    """A GPU takes larger tiles where there is much to do."""
    check_packed(Place("cuda", dtype), [130, 1, 64, 17, 97, 33, 300, 128], 64, dim, causal)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_with_large_scores(place: Place, causal: bool) -> None:
    # The maximum changes from block to block, and some weights underflow.
    lengths = [300, 17]
    qkv = (random(sum(lengths), 3, 8, 32) * 6).to(place.device, place.dtype)
    inputs = qkv, offsets_of(lengths).to(place.device), 1.0, causal
    assert_within_torch(packed_reference, packed_attention(*inputs, isa=place.isa), *inputs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [17, 24])
def test_packed_touches_only_its_sentences(
    place: Place, threads: int, dim: int, causal: bool
) -> None:
    lengths = [7, 0, 70, 1]
    inner = random(sum(lengths), 3, 2, dim)
    offsets = offsets_of(lengths).to(place.device)
    qkv = torch.cat([poison(3, 3, 2, dim), inner, poison(2, 3, 2, dim)])
    inner, qkv = inner.to(place.device, place.dtype), qkv.to(place.device, place.dtype)
    expected = packed_attention(inner, offsets, 0.2, causal, isa=place.isa)
    y = packed_attention(qkv, offsets + 3, 0.2, causal, isa=place.isa, threads=threads)
    assert_equal(y[3:-2], expected)
    assert y[:3].isnan().all() and y[-2:].isnan().all()


@pytest.mark.parametrize("causal", [False, True])
def test_a_packed_sentence_does_not_depend_on_its_batch(
    place: Place, threads: int, causal: bool
) -> None:
    lengths = [3, 150, 0, 64, 1, 33, 100]
    offsets = offsets_of(lengths).to(place.device)
    qkv = random(sum(lengths), 3, 3, 40).to(place.device, place.dtype)
    together = packed_attention(qkv, offsets, 0.2, causal, isa=place.isa, threads=threads)
    for begin, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False):
        own = offsets_of([end - begin]).to(place.device)
        alone = packed_attention(qkv[begin:end].contiguous(), own, 0.2, causal, isa=place.isa)
        assert_equal(together[begin:end], alone)


def test_nothing_packed(place: Place, threads: int) -> None:
    qkv = poison(2, 3, 1, 8).to(place.device, place.dtype)
    offsets = offsets_of([]).to(place.device)
    y = packed_attention(qkv, offsets, 1.0, False, isa=place.isa, threads=threads)
    assert y.isnan().all()


# Packed queries that attend to another text: a decoder's, to the source.


def cross_reference(
    q: Tensor, offsets: Tensor, k: Tensor, v: Tensor, key_offsets: Tensor, scale: float
) -> Tensor:
    """k, v: [N, capacity, D]."""
    y = torch.zeros_like(q)
    for b, (begin, end) in enumerate(zip(offsets.tolist(), offsets[1:].tolist(), strict=False)):
        keys = slice(int(key_offsets[b]), int(key_offsets[b + 1]))
        if keys.start < keys.stop:
            seen_k, seen_v = (x[:, keys].transpose(0, 1) for x in (k, v))
            y[begin:end] = attend(q[begin:end], seen_k, seen_v, scale)
    return y


def cross_attention(
    q: Tensor,
    offsets: Tensor,
    k: Tensor,
    v: Tensor,
    key_offsets: Tensor,
    scale: float,
    *,
    isa: str,
    threads: int = 1,
) -> Tensor:
    y = poison(*q.shape).to(q)
    shared = {"shared_k": k, "shared_v": v, "shared_offsets": key_offsets}
    kernels.packed_attention(
        q[:, None].contiguous(), offsets, y, scale, False, **shared, isa=isa, threads=threads
    )
    return y


def cross_inputs(place: Place, queries: list[int], keys: list[int], heads: int, dim: int) -> tuple:
    """What lies behind the last sentence's keys is poisoned."""
    q = random(sum(queries), heads, dim)
    k, v = (
        torch.cat([random(heads, sum(keys), dim, seed=seed), poison(heads, 5, dim)], 1)
        for seed in (3, 4)
    )
    q, k, v = (x.to(place.device, place.dtype) for x in (q, k, v))
    offsets, key_offsets = (offsets_of(lengths).to(place.device) for lengths in (queries, keys))
    return q, offsets, k, v, key_offsets, dim**-0.5


@pytest.mark.parametrize("dim", DIMS)
def test_cross_equals_torch(place: Place, threads: int, dim: int) -> None:
    queries, keys = [3, 0, 1, 64, 100, 2, 5, 130], [5, 7, 1, 33, 64, 0, 130, 65]
    inputs = cross_inputs(place, queries, keys, 3, dim)
    y = cross_attention(*inputs, isa=place.isa, threads=threads)
    assert_within_torch(cross_reference, y, *inputs)
    assert (y[168:170] == 0).all()  # the sentence without a source


def test_cross_of_a_sentence_does_not_depend_on_its_batch(place: Place, threads: int) -> None:
    queries, keys = [3, 150, 64, 1], [70, 5, 130, 0]
    q, offsets, k, v, key_offsets, scale = cross_inputs(place, queries, keys, 2, 40)
    together = cross_attention(q, offsets, k, v, key_offsets, scale, isa=place.isa, threads=threads)
    for b in range(4):
        mine = slice(int(offsets[b]), int(offsets[b + 1]))
        one = torch.tensor([0, queries[b]]).int().to(place.device)
        alone = cross_attention(
            q[mine], one, k, v, key_offsets[b : b + 2].clone(), scale, isa=place.isa
        )
        assert_equal(together[mine], alone)


def test_self_attention_is_cross_attention_to_itself(place: Place) -> None:
    lengths = [7, 70, 1]
    qkv = random(sum(lengths), 3, 2, 40).to(place.device, place.dtype)
    offsets = offsets_of(lengths).to(place.device)
    q, k, v = qkv.unbind(1)
    shared_k, shared_v = (x.transpose(0, 1).contiguous() for x in (k, v))
    y = cross_attention(q, offsets, shared_k, shared_v, offsets, 0.2, isa=place.isa)
    assert_equal(y, packed_attention(qkv, offsets, 0.2, False, isa=place.isa))


# Shared keys and values.


@pytest.mark.parametrize("dim", [17, 32])
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_store_shared(place: Place, threads: int, tokens: int, dim: int) -> None:
    kv = random(tokens, 2, 3, dim).to(place.device, place.dtype)
    shared_k, shared_v = (poison(3, 9, dim).to(kv) for _ in range(2))
    kernels.store_shared(kv, shared_k, shared_v, isa=place.isa, threads=threads)
    for part, shared in enumerate((shared_k, shared_v)):
        assert_equal(shared[:, :tokens], kv[:, part].transpose(0, 1))
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
    slots: Tensor  # [2, slots, target]
    position: int  # of the new token


class Step:
    """One decoding step of the sentences `live`, with everything that is not theirs poisoned.

    shared: shared positions of each sentence, or None; position: of the new token, or None
    without history; behind: sentences at the end that a captured step has room for, but that are
    finished; number: of the step.
    """

    heads, sentences, scale = 3, 5, 0.2

    def __init__(
        self,
        live: list[int],
        beams: int,
        dim: int,
        shared: list[int] | None,
        position: int | None,
        place: Place,
        behind: int = 0,
        number: int = 7,
    ) -> None:
        self.live, self.beams, self.dim, self.place = live, beams, dim, place
        self.behind, self.number = behind, number
        self.row_slots = [i * beams + j for i in live for j in range(beams)]
        parts = 1 if position is None else 3
        # Drawn for all sentences, so that a sentence has the same numbers in every batch.
        qkv = random(self.sentences * beams, parts, self.heads, dim, seed=1)[self.row_slots]
        self.qkv = self.put(torch.cat([qkv, poison(behind * beams, *qkv.shape[1:])]))
        self.shared = None if shared is None else self.make_shared(offsets_of(shared))
        self.history = None if position is None else self.make_history(position)

    def put(self, tensor: Tensor) -> Tensor:
        """Where the step runs, and in its type."""
        dtype = self.place.dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self.place.device, dtype)

    def make_shared(self, offsets: Tensor) -> Shared:
        capacity = int(offsets[-1]) + 3
        k, v = (poison(self.heads, capacity, self.dim) for _ in range(2))
        keys, values = random(2, self.heads, capacity, self.dim, seed=2)
        for own in (slice(int(offsets[i]), int(offsets[i + 1])) for i in self.live):
            k[:, own], v[:, own] = keys[:, own], values[:, own]
        return Shared(self.put(k), self.put(v), self.put(offsets))

    def make_history(self, position: int) -> History:
        """The beams of a sentence have exchanged their pasts at every position."""
        slots, target = self.sentences * self.beams, max(80, position + 2)
        k, v = (poison(slots, self.heads, target, self.dim) for _ in range(2))
        tables = torch.full((2, slots, target), NOWHERE, dtype=torch.int32)
        keys, values = random(2, slots, self.heads, target, self.dim, seed=3)
        exchanged = torch.randint(
            self.beams, (slots, target), generator=torch.Generator().manual_seed(4)
        )
        at = torch.arange(position)
        for slot in self.row_slots:
            holders = slot // self.beams * self.beams + exchanged[slot, :position]
            tables[self.number % 2, slot, :position] = holders.int()
            k[holders, :, at], v[holders, :, at] = keys[holders, :, at], values[holders, :, at]
        return History(self.put(k), self.put(v), self.put(tables), position)

    def run(self, threads: int = 1) -> Tensor:
        y = self.put(poison(len(self.qkv), self.heads, self.dim))
        shared, history = self.shared, self.history
        live = torch.tensor(self.live + [NOWHERE] * self.behind, dtype=torch.int32)
        position = NOWHERE if history is None else history.position
        now = torch.tensor([self.number, position, len(self.live)], dtype=torch.int32)
        live, now = self.put(live), self.put(now)
        if self.place.device == "cuda":
            torch.cuda.synchronize()  # a kernel may read such things before the last one has ended
        kernels.decode_attention(
            self.qkv,
            live,
            y,
            self.scale,
            self.beams,
            shared_k=shared and shared.k,
            shared_v=shared and shared.v,
            shared_offsets=shared and shared.offsets,
            self_k=history and history.k,
            self_v=history and history.v,
            slots=history and history.slots,
            now=now,
            isa=self.place.isa,
            threads=threads,
        )
        return y

    def check(self, y: Tensor) -> None:
        """Against keys and values that are gathered the slow way."""
        rows = len(self.row_slots)
        gathered = [part for row in range(rows) for part in self.gather(row)]
        assert_within_torch(decode_reference, y[:rows], self.qkv[:rows, 0], self.scale, *gathered)
        assert y[rows:].isnan().all()

    def gather(self, row: int) -> tuple[Tensor, Tensor]:
        """All keys, [positions, N, D], and values that a row attends to."""
        slot = self.row_slots[row]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        if self.shared is not None:
            own = self.shared.of(slot // self.beams)
            keys.append(self.shared.k[:, own].transpose(0, 1))
            values.append(self.shared.v[:, own].transpose(0, 1))
        if self.history is not None:
            at = torch.arange(self.history.position, device=self.place.device)
            holders = self.history.slots[self.number % 2, slot, : self.history.position]
            keys += [self.history.k[holders, :, at], self.qkv[row, 1][None]]
            values += [self.history.v[holders, :, at], self.qkv[row, 2][None]]
        return torch.cat(keys), torch.cat(values)


def decode_reference(q: Tensor, scale: float, *gathered: Tensor) -> Tensor:
    """gathered: keys and values of row 0, keys and values of row 1, ..."""
    rows = zip(q, gathered[::2], gathered[1::2], strict=True)
    return torch.cat([attend(q[None], k, v, scale) for q, k, v in rows])


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
@pytest.mark.parametrize("beams", [2, 4, 7])
def test_beams_may_have_a_past_in_common(
    place: Place, threads: int, beams: int, position: int
) -> None:
    """What they have in common is read once for all of them, and the numbers stay the same."""
    step = Step([4, 1], beams, 40, None, position, place)
    assert step.history is not None
    for i, some in ((4, beams), (1, beams - 1)):  # in the second sentence not all of them
        slots = step.history.slots[step.number % 2, i * beams : i * beams + some]
        slots[:, : min(position, 64)] = slots[0, : min(position, 64)].clone()
    together = step.run(threads)
    step.check(together)
    if place.device == "cpu":
        for row, slot in enumerate(step.row_slots):
            alone = copy(step)
            alone.live, alone.beams, alone.qkv = [slot], 1, step.qkv[row : row + 1].contiguous()
            assert_equal(alone.run(), together[row : row + 1])


@pytest.mark.parametrize(
    ("shared", "position"),
    [([600, 0, 1, 513, 2500], None), ([0, 0, 2, 511, 300], 400), (None, 1500)],
)
@pytest.mark.parametrize("beams", [1, 2, 5])
def test_long_histories_equal_torch(
    place: Place, beams: int, shared: list[int] | None, position: int | None
) -> None:
    """A GPU splits them over blocks, as many as each needs."""
    step = Step([4, 2, 3], beams, 64, shared, position, place)
    step.check(step.run(threads=3))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("shared", "position"), [(SHARED, 40), (None, 79)])
@pytest.mark.parametrize(("beams", "dim"), [(2, 128), (4, 64), (5, 64)])
def test_histories_of_many_heads(
    beams: int, dim: int, shared: list[int] | None, position: int, dtype: torch.dtype
) -> None:
    """With fewer, each beam that has a history gets a block of its own."""

    class Wide(Step):
        heads = 600 // beams

    step = Wide([3, 0, 4, 2], beams, dim, shared, position, Place("cuda", dtype), behind=1)
    step.check(step.run())


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
    step = Step([2, 0], beams, 64, shared, position, place, behind=2)
    step.check(step.run(threads=2))


@pytest.mark.parametrize("number", [1, 2])
def test_the_step_reads_its_own_table(place: Place, number: int) -> None:
    step = Step([3, 1], 3, 32, None, 40, place, number=number)
    step.check(step.run())


@pytest.mark.parametrize(("dim", "position"), [(17, 5), (64, 0), (64, 5), (128, 700)])
def test_decode_writes_its_own_keys_and_nothing_else(
    place: Place, threads: int, dim: int, position: int
) -> None:
    step = Step([2, 0], 3, dim, None, position, place, behind=1)
    assert step.history is not None
    expected_k, expected_v = step.history.k.clone(), step.history.v.clone()
    rows = len(step.row_slots)
    expected_k[step.row_slots, :, position] = step.qkv[:rows, 1]
    expected_v[step.row_slots, :, position] = step.qkv[:rows, 2]
    step.run(threads)
    assert_equal(step.history.k, expected_k)
    assert_equal(step.history.v, expected_v)


@pytest.mark.parametrize(
    ("shared", "position"), [(SHARED, None), (SHARED, 0), (SHARED, 50), (None, 0), (None, 50)]
)
@pytest.mark.parametrize("beams", [1, 4, 11])
def test_a_row_does_not_depend_on_its_batch(
    isa: str, beams: int, position: int | None, shared: list[int] | None
) -> None:
    """A GPU gives few rows more threads each, and may add up in another order."""
    live = [3, 0, 4, 2]
    alone = torch.cat([Step([i], beams, 40, shared, position, Place(isa)).run() for i in live])
    for threads in (1, 2, 3, 7):
        together = Step(live, beams, 40, shared, position, Place(isa)).run(threads)
        assert_same_bits(together, alone, f"{threads} threads")


def test_no_live_sentence(place: Place, threads: int) -> None:
    step = Step([], 4, 64, [1, 1, 1, 1, 1], 3, place)
    assert step.run(threads).shape == (0, 3, 64)
    assert Step([], 4, 64, [1, 1, 1, 1, 1], 3, place, behind=2).run(threads).isnan().all()


# What a step attends to.


def weights_reference(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """The mean over the heads. q: [beams, N, D]; k: [N, positions, D]."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = torch.einsum("bnd,npd->nbp", q.to(wide), k.to(wide)) * scale
    return scores.softmax(-1).mean(0)


@pytest.mark.parametrize("dim", [1, 15, 32, 64, 80, 128, 256])
def test_weights_equal_torch(place: Place, threads: int, dim: int) -> None:
    lengths, beams, live, longest, slots, number = [5, 1, 70, 129, 64], 3, [3, 0, 2], 133, 17, 2
    heads = 4
    q = random(4 * beams, heads, dim).to(place.device, place.dtype)  # one sentence is not live
    k = torch.cat([random(heads, sum(lengths), dim, seed=1), poison(heads, 3, dim)], 1)
    k = k.to(place.device, place.dtype)
    offsets = offsets_of(lengths).to(place.device)
    y = poison(3, slots, longest).to(place.device)
    scale = dim**-0.5
    kernels.attention_weights(
        q,
        torch.tensor([*live, NOWHERE]).int().to(place.device),
        y,
        scale,
        beams,
        shared_k=k,
        shared_offsets=offsets,
        now=torch.tensor([number, NOWHERE, len(live)]).int().to(place.device),
        isa=place.isa,
        threads=threads,
    )
    for i, sentence in enumerate(live):
        keys = k[:, int(offsets[sentence]) : int(offsets[sentence + 1])].contiguous()
        ours = y[number - 1, sentence * beams : (sentence + 1) * beams]
        mine = q[i * beams : (i + 1) * beams]
        assert_within_torch(weights_reference, ours[:, : keys.shape[1]], mine, keys, scale)
        assert (ours[:, keys.shape[1] :] == 0).all()
        y[number - 1, sentence * beams : (sentence + 1) * beams] = float("nan")
    assert y.isnan().all()  # nothing else was written


def test_a_prompts_steps_leave_no_weights(place: Place) -> None:
    y = poison(1, 1, 4).to(place.device)
    q, k = random(1, 1, 8), random(1, 4, 8)
    kernels.attention_weights(
        q.to(place.device, place.dtype),
        torch.tensor([0]).int().to(place.device),
        y,
        1.0,
        1,
        shared_k=k.to(place.device, place.dtype),
        shared_offsets=offsets_of([4]).to(place.device),
        now=torch.tensor([0, 0, 1]).int().to(place.device),
        isa=place.isa,
        threads=1,
    )
    assert y.isnan().all()
