"""Ids of many texts in one array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from decoding.common.arrays import Array


@dataclass(frozen=True)
class Rows:
    """Rows of ids of any lengths, one behind the other."""

    ids: Array  # int32 [n]
    offsets: Array  # int64 [B + 1], row b is ids[offsets[b] : offsets[b + 1]]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Rows:
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        offsets = offsets_of(lengths)
        return cls(np.fromiter(chain.from_iterable(rows), np.int32, offsets[-1]), offsets)

    @classmethod
    def where(cls, table: Array, chosen: Array) -> Rows:
        """Of each row of a table, integers [B, W], those that are chosen, bool [B, W]."""
        return cls(table[chosen].astype(np.int32, copy=False), offsets_of(chosen.sum(1)))

    @classmethod
    def joined(cls, parts: Iterable[Rows]) -> Rows:
        """The rows of all parts."""
        given = [cls.of([]), *parts]
        lengths = np.concatenate([part.lengths for part in given])
        return cls(np.concatenate([part.ids for part in given]), offsets_of(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Array:
        """int64 [B]"""
        found: Array = self.offsets[1:] - self.offsets[:-1]  # what np.diff does, and sooner
        return found

    def lists(self) -> list[list[int]]:
        return self.cut(self.ids)

    def cut(self, values: Array) -> list[list]:  # type: ignore[type-arg]  # of any values
        """One value of each id, [n], as a list of each row."""
        flat, ends = values.tolist(), self.offsets.tolist()
        return [flat[a:b] for a, b in zip(ends, ends[1:], strict=False)]

    def select(self, chosen: Array) -> Rows:
        """The rows `chosen`, int64 [n], in that order."""
        lengths = self.lengths[chosen]
        offsets = offsets_of(lengths)
        shifts = self.offsets[:-1][chosen] - offsets[:-1]
        at = np.arange(offsets[-1]) + shifts.repeat(lengths)
        return Rows(self.ids[at], offsets)

    def kept(self, keep: Array) -> Rows:
        """Without some ids. keep: bool [n]."""
        before = np.concatenate([[0], np.cumsum(keep)])
        return Rows(self.ids[keep], before[self.offsets])

    def framed(self, begin: Sequence[int], end: Sequence[int]) -> Rows:
        """Each row between the same ids."""
        offsets = offsets_of(self.lengths + (len(begin) + len(end)))
        ids = np.empty(offsets[-1], np.int32)
        inside = np.ones(len(ids), bool)
        for i, number in enumerate(begin):
            ids[offsets[:-1] + i] = number
            inside[offsets[:-1] + i] = False
        for i, number in enumerate(reversed(end), 1):
            ids[offsets[1:] - i] = number
            inside[offsets[1:] - i] = False
        ids[inside] = self.ids
        return Rows(ids, offsets)

    def followed_by(self, others: Rows) -> Rows:
        """Each row, and behind it that of others, which are as many."""
        both, order = Rows.joined([self, others]), np.arange(2 * len(self)).reshape(2, -1)
        found = both.select(order.T.reshape(-1))
        return Rows(found.ids, found.offsets[::2])

    def replaced(self, at: Sequence[int], rows: Rows) -> Rows:
        """With other rows in some places."""
        if not at:
            return self
        order = np.arange(len(self))
        order[list(at)] = len(self) + np.arange(len(rows))
        return Rows.joined([self, rows]).select(order)

    def table(self, fill: int = 0) -> tuple[Array, Array | None]:
        """int64 [B, W], filled up on the right, and bool [B, W], where the ids are; None where
        all rows are of one length."""
        lengths = self.lengths
        width = int(lengths.max(initial=0))
        if (lengths == width).all():
            return self.ids.astype(np.int64).reshape(len(self), width), None
        there = np.arange(width) < lengths[:, None]
        ids = np.full(there.shape, fill, np.int64)
        ids[there] = self.ids
        return ids, there


def offsets_of(lengths: Array) -> Array:
    """int64 [B + 1]"""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=offsets[1:])
    return offsets
