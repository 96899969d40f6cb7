"""What a norm of training gets, and calls of its two passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoding._C import training
from tests.conftest import Place, poison, random

EPS = 1e-5
COLS = [7, 8, 31, 64, 257, 768, 1024, 2056]
# On a GPU: some warps of a block, a cluster of blocks, rows that are read twice.
LONG = [1023, 1032, 3072, 4104, 8192, 8200, 16384, 32768, 65536, 65544]


@dataclass(frozen=True)
class Case:
    """What a norm gets, [rows, cols] and [cols]; dy comes back to it, and dsum to its sum."""

    x: Tensor
    residual: Tensor | None
    bias: Tensor | None
    gamma: Tensor | None
    beta: Tensor | None
    dy: Tensor
    dsum: Tensor | None
    rms: bool

    @property
    def sums(self) -> torch.dtype:
        """What sums are kept in."""
        return torch.promote_types(self.x.dtype, torch.float32)

    def forward(
        self, place: Place, threads: int = 1, **dropout: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, total = (poison(*self.x.shape).to(self.x) for _ in range(2))
        stats = poison(1 if self.rms else 2, len(self.x)).to(self.x.device, self.sums)
        plain = self.residual is None and self.bias is None
        training.norm(
            self.x,
            y,
            stats,
            self.gamma,
            self.beta,
            self.residual,
            self.bias,
            None if plain else total,
            EPS,
            self.rms,
            **dropout,
            **place.options(threads),
        )
        return y, self.x if plain else total, stats

    def backward(self, s: Tensor, place: Place, threads: int = 1, **dropout: Any) -> list[Tensor]:
        """dx, dgamma, dbeta, dbias of a sum s."""
        dx = poison(*s.shape).to(s)
        weights = s if self.gamma is None else self.gamma
        [dgamma, dbeta, dbias] = (poison(s.shape[1]).to(s.device, weights.dtype) for _ in range(3))
        training.norm_backward(
            s,
            self.dy,
            dx,
            stats_of(s.to(self.sums), self.rms),
            self.gamma,
            dgamma,
            dbeta,
            dbias,
            self.dsum,
            **dropout,
            **place.options(threads),
        )
        return [dx, dgamma, dbeta, dbias]


def stats_of(wide: Tensor, rms: bool) -> Tensor:
    """Means and factors as they are, not as our forward pass finds them."""
    if rms:
        return (wide.square().mean(1) + EPS).rsqrt()[None]
    return torch.stack([wide.mean(1), (wide.var(1, correction=0) + EPS).rsqrt()])


def case(place: Place, rows: int, cols: int, rms: bool = False, added: bool = False) -> Case:
    def rows_of(seed: int) -> Tensor:
        return random(rows, cols, seed=seed).to(place.device, place.dtype)

    def weight_of(seed: int) -> Tensor:
        return random(cols, seed=seed).to(place.device, place.dtype)

    return Case(
        x=rows_of(0) * 3 + 1,  # a norm that forgets the mean shows
        residual=rows_of(1) if added else None,
        bias=weight_of(2) if added else None,
        gamma=weight_of(3),
        beta=None if rms else weight_of(4),
        dy=rows_of(5),
        dsum=rows_of(6) if added else None,
        rms=rms,
    )
