"""A step of decode attention, what it reads, and what it should give."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from decoding import _kernels as kernels
from tests.conftest import Place, assert_within_torch, poison, random
from tests.kernels.attention.test_rotary import Shape, frequencies
from tests.kernels.attention.test_rotary import reference as rotate_reference
from tests.support.active import active_sentences
from tests.support.attention import NO_BIAS, NOWHERE, Bias, attend
from tests.support.pages import Float8Pool, Pool, cells_of, deal, pages_of


class Shared(NamedTuple):
    pages: Tensor  # [sentences, longest]
    lengths: Tensor  # [sentences]

    def cells(self, sentence: int) -> Tensor:
        """Of the pool, those that hold what the sentence shares."""
        positions = torch.arange(int(self.lengths[sentence]), device=self.pages.device)
        return cells_of(self.pages, sentence, positions)


class History(NamedTuple):
    pages: Tensor  # [sentences, longest]
    table: Tensor  # [2, rows, target], the indirection table
    positions: list[int]  # of each sentence's new token
    beams: int

    def cells(self, rows: Any, positions: Any) -> Tensor:
        """Of the pool, those that these cache rows have written at these positions."""
        rows, positions = (torch.as_tensor(x, device=self.pages.device) for x in (rows, positions))
        return cells_of(self.pages, rows // self.beams, positions * self.beams + rows % self.beams)


class RotaryInputs(NamedTuple):
    positions: Tensor  # [rows]
    frequency: Tensor | None  # [size / 2]
    q_gamma: Tensor | None  # [D]
    k_gamma: Tensor | None  # [D]
    shape: Shape


class Step:
    """One decoding step of the sentences `active`, with everything that is not theirs poisoned.

    shared: shared positions of each sentence, or None; position: of the new token, or of each
    sentence's, or None without history; finished: sentences at the end that a captured step has
    room for, but that are finished; number: of the step, or of each sentence's; heads: of queries
    and of keys; rotate(): with rotary positions.
    """

    sentences, scale = 5, 0.2

    def __init__(
        self,
        active: list[int],
        beams: int,
        dim: int,
        shared: list[int] | None,
        position: int | list[int] | None,
        place: Place,
        finished: int = 0,
        number: int | list[int] = 7,
        heads: tuple[int, int] = (3, 3),
        bias: Bias = NO_BIAS,
    ) -> None:
        self.active, self.beams, self.dim, self.place = active, beams, dim, place
        self.finished = finished
        self.numbers = [number] * self.sentences if isinstance(number, int) else number
        (self.heads, self.kv_heads), self.bias = heads, bias
        self.cache_rows = [i * beams + j for i in active for j in range(beams)]
        parts = self.heads + (0 if position is None else 2 * self.kv_heads)
        # Drawn for all sentences, so that a sentence has the same numbers in every batch.
        qkv = random(self.sentences * beams, parts, dim, seed=1)[self.cache_rows]
        self.qkv = self.put(torch.cat([qkv, poison(finished * beams, *qkv.shape[1:])]))
        if isinstance(position, int):
            position = [position] * self.sentences
        target = max(80, *(position or [0])) + 2
        pages, (shared_pages, self_pages) = deal(
            self.sentences, pages_of(max(shared or [0])), pages_of(target * beams)
        )
        pool = Pool.poisoned(self.kv_heads, pages, dim)
        self.shared = None if shared is None else self.make_shared(pool, shared_pages, shared)
        self.history = (
            None if position is None else self.make_history(pool, self_pages, position, target)
        )
        self.pool = Pool(self.put(pool.k), self.put(pool.v))
        self.kept: Float8Pool | None = None  # what the kernel reads in place of `pool`
        self.rotary: RotaryInputs | None = None

    def round(self) -> None:
        """Keys and values become e4m3; `pool` then has what is read of them."""
        self.kept = Float8Pool.of(self.pool)
        self.pool = self.kept.wide(self.place.dtype)

    def rotate(self, size: int, interleaved: bool = False, norms: bool = False) -> None:
        """size: elements of a head that are rotated; norms: whether heads have norms."""
        row = {"heads": self.heads, "kv_heads": self.kv_heads, "tail": self.kv_heads * self.dim}
        shape = Shape(**row, head_dim=self.dim, size=size, interleaved=interleaved, factor=1.1)
        positions = [100 * (row // self.beams) for row in self.cache_rows]  # that of the sentence
        positions += [NOWHERE] * self.finished * self.beams
        q_gamma, k_gamma = (
            self.put(random(self.dim, seed=seed)).float() if norms else None for seed in (5, 6)
        )
        frequency = frequencies(size).to(self.place.device) if size else None
        self.rotary = RotaryInputs(
            self.put(torch.tensor(positions).int()), frequency, q_gamma, k_gamma, shape
        )

    def put(self, tensor: Tensor) -> Tensor:
        """Where the step runs, and in its type."""
        dtype = self.place.dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self.place.device, dtype)

    def make_shared(self, pool: Pool, pages: Tensor, lengths: list[int]) -> Shared:
        shared = Shared(pages, torch.tensor(lengths).int())
        keys, values = random(2, self.sentences, max(lengths), self.kv_heads, self.dim, seed=2)
        for i in self.active:
            pool.write(shared.cells(i), keys[i, : lengths[i]], values[i, : lengths[i]])
        return Shared(*map(self.put, shared))

    def make_history(self, pool: Pool, pages: Tensor, positions: list[int], target: int) -> History:
        """The beams of a sentence have exchanged their pasts at every position."""
        rows = self.sentences * self.beams
        tables = torch.full((2, rows, target), NOWHERE, dtype=torch.int32)
        history = History(pages, tables, positions, self.beams)
        keys, values = random(2, rows, self.kv_heads, target, self.dim, seed=3)
        exchanged = torch.randint(
            self.beams, (rows, target), generator=torch.Generator().manual_seed(4)
        )
        for row in self.cache_rows:
            sentence = row // self.beams
            position = positions[sentence]
            past = torch.arange(position)
            sources = sentence * self.beams + exchanged[row, :position]
            tables[self.numbers[sentence] % 2, row, :position] = sources.int()
            cells = history.cells(sources, past)
            pool.write(cells, keys[sources, :, past], values[sources, :, past])
        return history._replace(pages=self.put(pages), table=self.put(tables))

    def run(self, threads: int = 1, parts: Sequence[int] = ()) -> Tensor:
        """parts: the sentences of each part of the step; the first ones are active."""
        y = self.put(poison(len(self.qkv), self.heads, self.dim))
        shared, history = self.shared, self.history
        nowhere = [NOWHERE] * self.finished
        positions = [NOWHERE] * self.sentences if history is None else history.positions
        active = active_sentences(
            self.active + nowhere,
            [self.numbers[i] for i in self.active] + nowhere,
            [positions[i] for i in self.active] + nowhere,
        )
        ends = list(accumulate(parts)) or [len(self.active)]
        lives = [
            min(max(len(self.active) - end + size, 0), size)
            for end, size in zip(ends, parts or ends, strict=True)
        ]
        state = torch.tensor([n for live in lives for n in (NOWHERE, live)], dtype=torch.int32)
        active, state = self.put(active), self.put(state)
        if self.place.device == "cuda":
            torch.cuda.synchronize()  # a kernel may read such things before the last one has ended
        rotary: dict[str, Any] = {}
        if self.rotary is not None:
            rotary = self.rotary._asdict()
            shape = rotary.pop("shape")
            rotary["frequencies"] = rotary.pop("frequency")
            rotary |= {"interleaved": shape.interleaved, "factor": shape.factor}
        pages = {"k_pages": self.pool.k, "v_pages": self.pool.v}
        if self.kept is not None:
            pages = self.kept.arguments()
        kernels.decode_attention(
            self.qkv.clone(),  # the CPU rotates it in place
            active,
            y,
            self.scale,
            self.beams,
            **pages,
            shared_pages=shared and shared.pages,
            shared_lengths=shared and shared.lengths,
            self_pages=history and history.pages,
            cache_indirection=history and history.table,
            state=state,
            **self.bias._asdict(),
            **rotary,
            sentences=list(parts),
            isa=self.place.isa,
            threads=threads,
        )
        return y

    @property
    def new(self) -> Tensor:
        """The new keys and values, [rows, 2 Nkv, D]."""
        return self.qkv[: len(self.cache_rows), self.heads :]

    def check(self, y: Tensor) -> None:
        """Against keys and values that are gathered the slow way."""
        rows = len(self.cache_rows)
        gathered = [part for row in range(rows) for part in self.gather(row)]
        how = (self.scale, self.bias, *gathered)
        if self.rotary is None:
            assert_within_torch(decode_reference, y[:rows], self.qkv[:rows, : self.heads], *how)
        else:
            rotary = self.rotary._replace(positions=self.rotary.positions[:rows])
            assert_within_torch(rotary_reference, y[:rows], self.qkv[:rows], *rotary, *how)
        assert y[rows:].isnan().all()

    def gather(self, row: int) -> tuple[Tensor, Tensor]:
        """All keys, [positions, Nkv, D], and values that a row attends to."""
        cache_row = self.cache_rows[row]
        sentence = cache_row // self.beams
        keys: list[Tensor] = []
        values: list[Tensor] = []
        if self.shared is not None:
            k, v = self.pool.read(self.shared.cells(sentence))
            keys.append(k)
            values.append(v)
        if self.history is not None:
            past = torch.arange(self.history.positions[sentence], device=self.place.device)
            table = self.history.table[self.numbers[sentence] % 2]
            cells = self.history.cells(table[cache_row, : len(past)], past)
            old_k, old_v = self.pool.read(cells)
            new_k, new_v = self.new[row, None].chunk(2, 1)
            keys += [old_k, new_k]
            values += [old_v, new_v]
        return torch.cat(keys), torch.cat(values)


def rotary_reference(
    qkv: Tensor,
    positions: Tensor,
    frequency: Tensor | None,
    q_gamma: Tensor | None,
    k_gamma: Tensor | None,
    shape: Shape,
    scale: float,
    bias: Bias,
    *gathered: Tensor,
) -> Tensor:
    """As decode_reference, but queries and the newest keys are rotated first."""
    rotated = rotate_reference(qkv.flatten(1), positions, frequency, q_gamma, k_gamma, shape)
    q, new, _ = rotated.view(qkv.shape).split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
    keys = [torch.cat([k[:-1], one[None]]) for k, one in zip(gathered[::2], new, strict=True)]
    pairs = [part for pair in zip(keys, gathered[1::2], strict=True) for part in pair]
    return decode_reference(q, scale, bias, *pairs)


def decode_reference(q: Tensor, scale: float, bias: Bias, *gathered: Tensor) -> Tensor:
    """gathered: keys and values of row 0, keys and values of row 1, ..."""
    rows = []
    for one, k, v in zip(q, gathered[::2], gathered[1::2], strict=True):
        distance = torch.arange(len(k) - 1, -1, -1, device=k.device)[None]
        rows.append(attend(one[None], k, v, scale, distance, bias=bias))
    return torch.cat(rows)
