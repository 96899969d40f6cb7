"""A step of decode attention, what it reads, and what it should give."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from decoding import _kernels as kernels
from tests.conftest import Place, assert_within_torch, poison, random
from tests.kernels.attention.test_rotary import Shape, frequencies
from tests.kernels.attention.test_rotary import reference as rotate_reference
from tests.support.attention import NO_RULES, NOWHERE, Rules, attend, offsets_of


class Shared(NamedTuple):
    k: Tensor  # [Nkv, capacity, D]
    v: Tensor
    offsets: Tensor  # [sentences + 1]

    def of(self, sentence: int) -> slice:
        return slice(int(self.offsets[sentence]), int(self.offsets[sentence + 1]))


class History(NamedTuple):
    k: Tensor  # [slots, Nkv, target, D]
    v: Tensor
    slots: Tensor  # [2, slots, target]
    position: int  # of the new token


class Turning(NamedTuple):
    at: Tensor  # [rows]
    frequency: Tensor | None  # [size / 2]
    q_gamma: Tensor | None  # [D]
    k_gamma: Tensor | None  # [D]
    shape: Shape


class Step:
    """One decoding step of the sentences `live`, with everything that is not theirs poisoned.

    shared: shared positions of each sentence, or None; position: of the new token, or None
    without history; behind: sentences at the end that a captured step has room for, but that are
    finished; number: of the step; heads: of queries and of keys; turn(): queries and keys turn.
    """

    sentences, scale = 5, 0.2

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
        heads: tuple[int, int] = (3, 3),
        rules: Rules = NO_RULES,
    ) -> None:
        self.live, self.beams, self.dim, self.place = live, beams, dim, place
        self.behind, self.number = behind, number
        (self.heads, self.kv_heads), self.rules = heads, rules
        self.row_slots = [i * beams + j for i in live for j in range(beams)]
        parts = self.heads + (0 if position is None else 2 * self.kv_heads)
        # Drawn for all sentences, so that a sentence has the same numbers in every batch.
        qkv = random(self.sentences * beams, parts, dim, seed=1)[self.row_slots]
        self.qkv = self.put(torch.cat([qkv, poison(behind * beams, *qkv.shape[1:])]))
        self.shared = None if shared is None else self.make_shared(offsets_of(shared))
        self.history = None if position is None else self.make_history(position)
        self.turning: Turning | None = None

    def turn(self, size: int, interleaved: bool = False, norms: bool = False) -> None:
        """size: numbers of a head that turn; norms: whether heads have norms."""
        row = {"heads": self.heads, "kv_heads": self.kv_heads, "behind": self.kv_heads * self.dim}
        shape = Shape(**row, head_dim=self.dim, size=size, interleaved=interleaved, factor=1.1)
        at = [100 * (slot // self.beams) for slot in self.row_slots]  # that of the sentence
        at += [NOWHERE] * self.behind * self.beams
        q_gamma, k_gamma = (
            self.put(random(self.dim, seed=seed)).float() if norms else None for seed in (5, 6)
        )
        frequency = frequencies(size).to(self.place.device) if size else None
        self.turning = Turning(self.put(torch.tensor(at).int()), frequency, q_gamma, k_gamma, shape)

    def put(self, tensor: Tensor) -> Tensor:
        """Where the step runs, and in its type."""
        dtype = self.place.dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self.place.device, dtype)

    def make_shared(self, offsets: Tensor) -> Shared:
        capacity = int(offsets[-1]) + 3
        k, v = (poison(self.kv_heads, capacity, self.dim) for _ in range(2))
        keys, values = random(2, self.kv_heads, capacity, self.dim, seed=2)
        for own in (slice(int(offsets[i]), int(offsets[i + 1])) for i in self.live):
            k[:, own], v[:, own] = keys[:, own], values[:, own]
        return Shared(self.put(k), self.put(v), self.put(offsets))

    def make_history(self, position: int) -> History:
        """The beams of a sentence have exchanged their pasts at every position."""
        slots, target = self.sentences * self.beams, max(80, position + 2)
        k, v = (poison(slots, self.kv_heads, target, self.dim) for _ in range(2))
        tables = torch.full((2, slots, target), NOWHERE, dtype=torch.int32)
        keys, values = random(2, slots, self.kv_heads, target, self.dim, seed=3)
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
        turning: dict[str, Any] = {}
        if self.turning is not None:
            turning = self.turning._asdict()
            shape = turning.pop("shape")
            turning["frequencies"] = turning.pop("frequency")
            turning |= {"interleaved": shape.interleaved, "factor": shape.factor}
        kernels.decode_attention(
            self.qkv.clone(),  # the CPU turns it in place
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
            **self.rules._asdict(),
            **turning,
            isa=self.place.isa,
            threads=threads,
        )
        return y

    @property
    def new(self) -> Tensor:
        """The new keys and values, [rows, 2 Nkv, D]."""
        return self.qkv[: len(self.row_slots), self.heads :]

    def check(self, y: Tensor) -> None:
        """Against keys and values that are gathered the slow way."""
        rows = len(self.row_slots)
        gathered = [part for row in range(rows) for part in self.gather(row)]
        how = (self.scale, self.rules, *gathered)
        if self.turning is None:
            assert_within_torch(decode_reference, y[:rows], self.qkv[:rows, : self.heads], *how)
        else:
            turning = self.turning._replace(at=self.turning.at[:rows])
            assert_within_torch(turned_reference, y[:rows], self.qkv[:rows], *turning, *how)
        assert y[rows:].isnan().all()

    def gather(self, row: int) -> tuple[Tensor, Tensor]:
        """All keys, [positions, Nkv, D], and values that a row attends to."""
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
            new_k, new_v = self.new[row, None].chunk(2, 1)
            keys += [self.history.k[holders, :, at], new_k]
            values += [self.history.v[holders, :, at], new_v]
        return torch.cat(keys), torch.cat(values)


def turned_reference(
    qkv: Tensor,
    at: Tensor,
    frequency: Tensor | None,
    q_gamma: Tensor | None,
    k_gamma: Tensor | None,
    shape: Shape,
    scale: float,
    rules: Rules,
    *gathered: Tensor,
) -> Tensor:
    """As decode_reference, but queries and the newest keys turn first."""
    turned = rotate_reference(qkv.flatten(1), at, frequency, q_gamma, k_gamma, shape)
    q, new, _ = turned.view(qkv.shape).split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
    keys = [torch.cat([k[:-1], one[None]]) for k, one in zip(gathered[::2], new, strict=True)]
    pairs = [part for pair in zip(keys, gathered[1::2], strict=True) for part in pair]
    return decode_reference(q, scale, rules, *pairs)


def decode_reference(q: Tensor, scale: float, rules: Rules, *gathered: Tensor) -> Tensor:
    """gathered: keys and values of row 0, keys and values of row 1, ..."""
    rows = []
    for one, k, v in zip(q, gathered[::2], gathered[1::2], strict=True):
        distance = torch.arange(len(k) - 1, -1, -1, device=k.device)[None]
        rows.append(attend(one[None], k, v, scale, distance, rules=rules))
    return torch.cat(rows)
