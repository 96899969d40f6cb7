"""Keys and values in pages, as csrc/kernels/attention/pages.h describes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.conftest import poison

PAGE = 16  # cells


class Pool(NamedTuple):
    """A layer's pool. Cells are numbered page by page."""

    k: Tensor  # [Nkv, pages, PAGE, D]
    v: Tensor  # [Nkv, pages, PAGE, D]

    @classmethod
    def poisoned(cls, kv_heads: int, pages: int, dim: int) -> Pool:
        return cls(*(poison(kv_heads, pages, PAGE, dim) for _ in range(2)))

    def read(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, [cells, Nkv, D]."""
        k, v = (x.flatten(1, 2)[:, cells].transpose(0, 1) for x in self)
        return k, v

    def write(self, cells: Tensor, k: Tensor, v: Tensor) -> None:
        for pages, new in zip(self, (k, v), strict=True):
            pages.view(len(pages), -1, pages.shape[3])[:, cells] = new.to(pages).transpose(0, 1)

    def copy(self) -> Pool:
        return Pool(self.k.clone(), self.v.clone())


def deal(sentences: int, *longest: int) -> tuple[int, list[Tensor]]:
    """Pages of a pool that lie anywhere, three of which nobody has: how many, and a table
    [sentences, n] for each n of `longest`."""
    pages = torch.randperm(
        sentences * sum(longest) + 3, generator=torch.Generator().manual_seed(7)
    ).int()
    tables = pages[3:].view(sentences, -1).split(longest, 1)
    return len(pages), [table.contiguous() for table in tables]


def pages_of(cells: int) -> int:
    return -(-cells // PAGE)


def cells_of(table: Tensor, sentences: Any, numbers: Any) -> Tensor:
    """Cells of the pool: cell `numbers` of each of `sentences`, as far as there are several."""
    sentences, numbers = (torch.as_tensor(x, device=table.device) for x in (sentences, numbers))
    return table[sentences, numbers // PAGE] * PAGE + numbers % PAGE
