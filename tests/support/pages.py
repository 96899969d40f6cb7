"""Keys and values in pages, as csrc/kernels/attention/pages.h describes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.conftest import poison

PAGE = 16  # cells
LARGEST = 448.0  # of e4m3
# Of a type: its least normal number, and its largest one that has as few bits as e4m3.
RANGES = {
    torch.float16: (2.0**-14, 1.875 * 2.0**15),
    torch.bfloat16: (2.0**-126, 1.875 * 2.0**127),
}


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


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """The bytes of x [..., D], and their scales [...], computed on the CPU."""
    least, most = RANGES[x.dtype]
    wide = x.cpu().double()
    largest = wide.abs().amax(-1)
    _, exponent = torch.frexp(largest / LARGEST)
    scale = torch.ldexp(torch.ones_like(largest), exponent)
    scale = torch.where(scale / 2 * LARGEST >= largest, scale / 2, scale)  # of a power of two
    scale = scale.where(largest > 0, least).clamp(min=least)
    scale = scale.where(largest.isfinite(), torch.nan)
    numbers = (wide.clamp(-most, most) / scale[..., None]).float().to(torch.float8_e4m3fn)
    return numbers.view(torch.uint8).to(x.device), scale.float().to(x.device)


def dequantise(numbers: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    wide: Tensor = numbers.cpu().view(torch.float8_e4m3fn).float() * scale.cpu()[..., None]
    return wide.to(scale.device, dtype)


class Float8Pool(NamedTuple):
    """A layer's pool in e4m3; the bytes are uint8."""

    k: Tensor  # [Nkv, pages, PAGE, D]
    v: Tensor  # [Nkv, pages, PAGE, D]
    k_scales: Tensor  # [Nkv, pages, PAGE]
    v_scales: Tensor  # [Nkv, pages, PAGE]

    @classmethod
    def of(cls, pool: Pool) -> Float8Pool:
        (k, k_scales), (v, v_scales) = (quantise(x) for x in pool)
        return cls(k, v, k_scales, v_scales)

    def wide(self, dtype: torch.dtype) -> Pool:
        """What is read."""
        return Pool(
            dequantise(self.k, self.k_scales, dtype), dequantise(self.v, self.v_scales, dtype)
        )

    def arguments(self) -> dict[str, Tensor]:
        """Of kernels."""
        return dict(k_pages=self.k, v_pages=self.v, k_scales=self.k_scales, v_scales=self.v_scales)


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
