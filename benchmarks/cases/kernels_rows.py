"""Kernels of rows: norms, softmax, embeddings and products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from benchmarks.cases.kernel_case import STEP_ROWS, VOCABULARY, Call, Case, Place, Set
from decoding import _kernels as kernels

# Operations for each element. A norm: sums of x and of (x - mean)^2, then scale, gamma and beta. A
# softmax: the maximum, the difference to it, the exponential, their sum, the quotient.
NORM, SOFTMAX = 8, 5


def norm(place: Place, rows: int, cols: int, compiled: bool = False) -> Case:
    def make() -> Set:
        gamma, beta = place.floats(cols), place.floats(cols)
        x = place.random(rows, cols)
        return x, gamma, beta, gamma.to(place.dtype), beta.to(place.dtype), torch.empty_like(x)

    def ours(s: Set) -> Any:
        x, gamma, beta, _, _, y = s
        kernels.layer_norm(x, gamma, beta, y, 1e-5, **place.how)
        return y

    def theirs(s: Set) -> Any:
        x, _, _, gamma, beta, _ = s
        return functional.layer_norm(x, (cols,), gamma, beta)

    providers = {"ours": ours, "torch": theirs} | compiled_too(theirs, compiled)
    return Case(
        "norm",
        f"{rows}x{cols}",
        2 * rows * cols * place.dtype.itemsize + 8 * cols,
        make,
        providers,
        operations=NORM * rows * cols,
        warm=rows <= STEP_ROWS,
    )


def softmax(place: Place, rows: int, cols: int, compiled: bool = False) -> Case:
    def make() -> Set:
        x = place.random(rows, cols)
        return x, torch.empty_like(x)

    def ours(s: Set) -> Any:
        kernels.softmax(s[0], None, s[1], 1.0, **place.how)
        return s[1]

    def theirs(s: Set) -> Any:
        return torch.softmax(s[0], -1)

    providers = {"ours": ours, "torch": theirs} | compiled_too(theirs, compiled)
    return Case(
        "softmax",
        f"{rows}x{cols}",
        2 * rows * cols * place.dtype.itemsize,
        make,
        providers,
        operations=SOFTMAX * rows * cols,
        warm=rows <= STEP_ROWS,
    )


def compiled_too(call: Call, wanted: bool) -> dict[str, Call]:
    return {"torch.compile": torch.compile(call, dynamic=False)} if wanted else {}


def embed(place: Place, rows: int, hidden: int, normed: bool, compiled: bool = False) -> Case:
    positions, scale = 512, hidden**0.5
    tables = place.random(VOCABULARY, hidden), place.random(positions, hidden)
    gamma, beta = (place.floats(hidden), place.floats(hidden)) if normed else (None, None)

    def make() -> Set:
        ids, at = (torch.randint(size, (rows,)) for size in (VOCABULARY, positions))
        y = torch.empty(rows, hidden, dtype=place.dtype, device=place.device)
        return place.ints(ids), place.ints(at), y

    def ours(s: Set) -> Any:
        ids, at, y = s
        kernels.embed(ids, at, *tables, gamma, beta, y, scale, 1e-5, **place.how)
        return y

    def theirs(s: Set) -> Any:
        ids, at, _ = s
        x = functional.embedding(ids, tables[0]) * scale + functional.embedding(at, tables[1])
        if gamma is None or beta is None:
            return x
        return functional.layer_norm(x, (hidden,), gamma.to(x.dtype), beta.to(x.dtype))

    providers = {"ours": ours, "torch": theirs} | compiled_too(theirs, compiled)
    return Case(
        "embed",
        f"{rows}x{hidden}" + ", norm" * normed,
        3 * rows * hidden * place.dtype.itemsize,
        make,
        providers,
        operations=(2 + NORM * normed) * rows * hidden,
        warm=rows <= STEP_ROWS,
    )


def linear(place: Place, rows: int, inputs: int, outputs: int) -> Case:
    """Cold weights: each call of a round has its own.

    The bias is one, as ours prepares it (in 16 bits, for cuBLASLt) while it tunes.
    """
    bias = place.floats(outputs)

    def make() -> Set:
        weight = place.random(outputs, inputs) / inputs**0.5
        x, y = place.random(rows, inputs), place.random(rows, outputs)
        return x, weight, bias, bias.to(place.dtype), y

    def call(function: Callable[..., object], s: Set, **how: Any) -> Any:
        x, weight, bias, _, y = s
        function(x, weight, bias, None, y, "none", **how)
        return y

    def theirs(s: Set) -> Any:
        x, weight, _, bias, _ = s
        return functional.linear(x, weight, bias)

    width = place.dtype.itemsize
    return Case(
        "linear",
        f"M{rows} K{inputs} N{outputs}",
        width * (inputs * outputs + rows * (inputs + outputs)) + 4 * outputs,
        make,
        {"ours": lambda s: call(kernels.linear, s, **place.how), "torch": theirs},
        operations=2 * rows * inputs * outputs,
        prepare=lambda s: call(kernels.tune_linear, s),
    )


def quantised_linear(
    place: Place, rows: int, inputs: int, outputs: int, dtype: torch.dtype
) -> Case:
    """As `linear`, with a weight of int8 or e4m3 beside torch's in the place's type.

    Of every 16 inputs the first eight and the last lie in turns: csrc/kernels/linear/linear.h.
    """

    def make() -> Set:
        numbers = torch.randint(-127, 128, (outputs, inputs), device=place.device).to(dtype)
        bits = numbers.view(torch.int8 if dtype == torch.int8 else torch.uint8)
        rows_of_pairs = bits.view(outputs, -1, 2, 4, 2).transpose(2, 3)
        packed = rows_of_pairs.reshape(outputs, inputs).contiguous()
        scale = torch.rand(outputs, device=place.device) / 127 / inputs**0.5
        weight = (numbers.float() * scale[:, None]).to(place.dtype)
        x, y = place.random(rows, inputs), place.random(rows, outputs)
        return x, packed, scale, weight, y

    def call(function: Callable[..., object], s: Set, **how: Any) -> Any:
        x, packed, scale, _, y = s
        function(x, packed, None, None, y, "none", scale=scale, **how)
        return y

    return Case(
        "int8_linear" if dtype == torch.int8 else "e4m3_linear",
        f"M{rows} K{inputs} N{outputs}",
        inputs * outputs + place.dtype.itemsize * rows * (inputs + outputs) + 4 * outputs,
        make,
        {
            "ours": lambda s: call(kernels.linear, s, **place.how),
            "torch": lambda s: functional.linear(s[0], s[3]),
        },
        operations=2 * rows * inputs * outputs,
        prepare=lambda s: call(kernels.tune_linear, s),
    )
