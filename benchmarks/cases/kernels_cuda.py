"""What benchmarks.kernels times on a GPU: every kernel of ours beside torch, on shapes that
matter."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.cases.kernel_case import VOCABULARY, Case, Place
from benchmarks.cases.kernels_attention import cross_attention, packed_attention, self_attention
from benchmarks.cases.kernels_rows import embed, linear, norm, quantised_linear, softmax
from benchmarks.cases.kernels_select import beam_selection


def cases(place: Place) -> Iterator[Case]:
    """What a full run times."""
    for kernel in (norm, softmax):
        for power in range(5, 16):
            yield kernel(place, 49152, 1 << power, compiled=power in (10, 13, 15))
        for rows in (1, 32, 128, 512):
            yield kernel(place, rows, 512)
    yield norm(place, 128, 1024)
    yield norm(place, 49152, 768)
    for rows, hidden in ((4, 512), (128, 512), (512, 1024), (16384, 1024)):
        yield embed(place, rows, hidden, normed=False)
        yield embed(place, rows, hidden, normed=True)
    for inputs, outputs in ((512, 512), (512, 2048), (2048, 512), (1024, 4096), (512, 32000)):
        for rows in (1, 32, 128, 512):
            yield linear(place, rows, inputs, outputs)
    if place.dtype != torch.float32:
        for inputs, outputs in ((512, 2048), (2048, 16384), (8192, 2048), (2048, 128256)):
            for rows in (1, 8, 32, 128, 512):
                for dtype in (torch.int8, torch.float8_e4m3fn):
                    yield quantised_linear(place, rows, inputs, outputs, dtype)
    for sentences, longest, heads in ((32, 128, 8), (32, 256, 16), (32, 512, 16), (32, 1024, 8)):
        for causal in (False, True):
            yield packed_attention(place, sentences, longest, heads, causal)
    for heads, head_dim in ((16, 64), (16, 128), (8, 256)):
        for causal in (False, True):
            yield packed_attention(place, 4, 4096, heads, causal, head_dim)
    for batch in (1, 8, 32, 128):
        yield self_attention(place, batch, 4, 8, position=63)
        yield cross_attention(place, batch, 4, 8, source=64)
    for batch, beams, vocab in ((1, 4, VOCABULARY), (8, 4, VOCABULARY), (32, 4, VOCABULARY),
                                (128, 4, VOCABULARY), (32, 4, 256000), (32, 4, 384)):  # fmt: skip
        yield beam_selection(place, batch, beams, vocab)
