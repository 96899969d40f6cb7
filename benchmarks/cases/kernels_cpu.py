"""What benchmarks.kernels times on a CPU: products in each type of weight, and what stands between.

The sizes are those of the steps and prompts of Transformer-base and of GPT-2 (124M).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.cases.kernel_case import VOCABULARY, Call, Case, Place, Set
from benchmarks.cases.kernels_attention import cross_attention, packed_attention, self_attention
from benchmarks.cases.kernels_rows import norm
from decoding import _C
from decoding import _kernels as kernels
from decoding.models.weights.dtypes import name_of
from decoding.models.weights.panels import panel_shape

GPT2_VOCABULARY = 50257
ROWS = (1, 4, 32, 128, 512)
LAYERS = ((512, 1536), (512, 512), (512, 2048), (2048, 512))  # inputs, outputs: Transformer-base
GPT2_LAYERS = ((768, 2304), (768, 768), (768, 3072), (3072, 768))
GROUP = 128  # of the vocabulary; kGroup in csrc/kernels/search/logits.h


@dataclass(frozen=True)
class Weight:
    """A linear weight as our kernels take it. scale, sums: of int8."""

    panels: Tensor
    scale: Tensor | None
    sums: Tensor | None

    @classmethod
    def packed(cls, weight: Tensor, dtype: torch.dtype) -> Weight:
        """weight: float32 [N, K]."""
        scale = sums = None
        if dtype == torch.int8:
            scale, sums = torch.empty(len(weight)), torch.empty(len(weight), dtype=torch.int32)
        panels = torch.empty(
            panel_shape(weight.shape[0], weight.shape[1], name_of(dtype)), dtype=dtype
        )
        _C.fill_panels(panels, weight, 0, scale, sums, threads=1)
        return cls(panels, scale, sums)

    def clone(self) -> Weight:
        return Weight(self.panels.clone(), self.scale, self.sums)


def scratch(rows: int, inputs: int) -> Tensor:
    return torch.empty(kernels.linear_scratch(rows, inputs), dtype=torch.uint8)


@dataclass(frozen=True)
class Product:
    """x W^T + bias for ours and torch, each with weights that are not in cache: a call of a round
    has its own. The rows are, since another kernel has just written them."""

    place: Place
    dtype: torch.dtype  # of the weight
    rows: int
    inputs: int
    outputs: int

    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        """x, W and bias in float32."""
        x, weight = torch.randn(self.rows, self.inputs), torch.randn(self.outputs, self.inputs)
        return x, weight / self.inputs**0.5, torch.randn(self.outputs)

    @property
    def moved(self) -> int:
        return self.inputs * self.outputs * self.dtype.itemsize

    @property
    def operations(self) -> float:
        return 2 * self.rows * self.inputs * self.outputs

    @property
    def name(self) -> str:
        return f"M{self.rows} K{self.inputs} N{self.outputs}"

    @property
    def how(self) -> dict[str, Any]:
        return {"scratch": scratch(self.rows, self.inputs), **self.place.how}


def theirs(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[Any, Call]:
    """torch's weight, and its product of that; int8 is its dynamic quantisation."""
    if dtype != torch.int8:
        x, bias = x.to(dtype), bias.to(dtype)
        return weight.to(dtype), lambda w: functional.linear(x, w, bias)
    scale = weight.abs().amax(1) / 127
    numbers = (weight / scale[:, None]).round().to(torch.int8)
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    quantised = torch._make_per_channel_quantized_tensor(numbers, scale.double(), zeros, 0)
    return quantised, lambda w: torch.ops.quantized.linear_dynamic(x, w)


def another(weight: Any, bias: Tensor) -> Any:
    """A copy of torch's weight, in the form that its product takes."""
    if weight.is_quantized:
        return torch.ops.quantized.linear_prepack(weight, bias)
    return weight.clone()


def linear(product: Product) -> Case:
    x, weight, bias = product.operands()
    y, how = torch.empty(product.rows, product.outputs), product.how
    packed = Weight.packed(weight, product.dtype)
    peer, multiply = theirs(x, weight, bias, product.dtype)

    def ours(s: Set) -> Any:
        w = s[0]
        kernels.linear(x, w.panels, bias, None, y, "none", scale=w.scale, sums=w.sums, **how)
        return y

    return Case(
        "linear",
        product.name,
        product.moved,
        lambda: (packed.clone(), another(peer, bias)),
        {"ours": ours, "torch": lambda s: multiply(s[1])},
        operations=product.operations,
        dtype=product.dtype,
        reference=lambda s: functional.linear(x, weight, bias),
    )


def project(product: Product, best: int) -> Case:
    """The output projection with its log-sum-exp and the best candidates of each row."""
    x, weight, bias = product.operands()
    packed = Weight.packed(weight, product.dtype)
    peer, multiply = theirs(x, weight, bias, product.dtype)
    rows, groups = product.rows, -(-product.outputs // GROUP)
    found = torch.empty(rows, best, 2, dtype=torch.int32)  # the bits of a value, and its token
    how = product.how | {
        "group_max": torch.empty(rows, groups),
        "group_sum": torch.empty(rows, groups),
        "thread_best": torch.empty(product.place.threads, rows, best, 2, dtype=torch.int32),
        "outputs": product.outputs,
    }
    lse = torch.empty(rows)

    def ours(s: Set) -> Any:
        w = s[0]
        kernels.project(x, w.panels, bias, lse, found, scale=w.scale, sums=w.sums, **how)
        return found

    def chosen(logits: Tensor) -> Tensor:
        return logits.topk(best, -1).values - logits.logsumexp(-1, keepdim=True)

    return Case(
        "project",
        f"{product.name}, best {best}",
        product.moved,
        lambda: (packed.clone(), another(peer, bias)),
        {"ours": ours, "torch": lambda s: chosen(multiply(s[1]))},
        operations=product.operations,
        dtype=product.dtype,
        comparable={"ours": lambda y: y[..., 0].contiguous().view(torch.float32) - lse[:, None]},
        reference=lambda s: chosen(functional.linear(x, weight, bias)),
    )


def embed(place: Place, dtype: torch.dtype, rows: int, hidden: int) -> Case:
    """tokens: panels, of a table that is the output projection's weight too."""
    positions, scale = torch.randn(512, hidden), hidden**0.5
    table = torch.randn(VOCABULARY, hidden).to(dtype)
    panels = Weight.packed(table, dtype).panels

    def make() -> Set:
        ids, at = (torch.randint(size, (rows,)) for size in (VOCABULARY, 512))
        return place.ints(ids), place.ints(at), torch.empty(rows, hidden)

    def ours(s: Set) -> Any:
        ids, at, y = s
        kernels.embed(ids, at, panels, positions, None, None, y, scale, 1e-5, **place.how)
        return y

    def torchs(s: Set) -> Any:
        ids, at, _ = s
        return functional.embedding(ids, table) * scale + functional.embedding(at, positions)

    moved = rows * hidden * (dtype.itemsize + 8)
    return Case(
        "embed",
        f"{rows}x{hidden}",
        moved,
        make,
        {"ours": ours, "torch": torchs},
        operations=2 * rows * hidden,
        dtype=dtype,
    )


def attentions(place: Place) -> Iterator[Case]:
    yield packed_attention(place, 8, 32, 8)
    yield packed_attention(place, 8, 128, 8)
    yield packed_attention(place, 8, 128, 12, causal=True)
    for batch, beams in ((1, 1), (1, 4), (8, 4)):
        yield self_attention(place, batch, beams, 8, position=31)
        yield cross_attention(place, batch, beams, 8, source=32)
    yield self_attention(place, 8, 4, 12, position=127)


def cases(place: Place, dtypes: Sequence[torch.dtype]) -> Iterator[Case]:
    """What a full run times."""
    for rows in ROWS:
        for hidden in (512, 768):
            yield norm(place, rows, hidden)
            for dtype in dtypes:
                if dtype != torch.int8:  # there the table is bfloat16
                    yield embed(place, dtype, rows, hidden)
    yield from attentions(place)
    for dtype in dtypes:
        for inputs, outputs in (*LAYERS, *GPT2_LAYERS):
            for rows in ROWS:
                yield linear(Product(place, dtype, rows, inputs, outputs))
        for inputs, outputs in ((512, VOCABULARY), (768, GPT2_VOCABULARY)):
            for rows in ROWS:
                yield project(Product(place, dtype, rows, inputs, outputs), best=8)
