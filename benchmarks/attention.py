"""The attentions on a GPU beside torch's, as rows of benchmarks/results.

Every provider is captured in a CUDA graph, several calls one after the other on input sets of
their own, so that neither the host nor a warm L2 cache counts. A chain of decode attentions is
what a decoding step consists of: the time of one is that of a stage.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from decoding._C import kernels

COPY = 4.21e12  # bytes per second, read and written, of an H200
MATRIX = 790e12  # 16-bit operations per second of an H200
HEAD_DIM = 64
REPLAYS = 30
SETS = 6  # of inputs: the layers of a Transformer-base


@dataclass(frozen=True)
class Row:
    what: str
    provider: str
    dtype: str
    shape: str
    p20: float  # microseconds of a call
    p50: float
    p80: float
    rate: str
    of_ceiling: float  # the least possible time over p50

    def __str__(self) -> str:
        return (
            f"{self.what:<18} {self.dtype:<9} {self.shape:<38} {self.provider:<12} "
            f"{self.p50:9.2f} us | {self.rate:>12} | {self.of_ceiling:4.0%} of ceiling"
        )


def measure(calls: Sequence[Callable[[], object]]) -> tuple[float, float, float]:
    """p20, p50 and p80 of the microseconds of a call in a chain of all of them."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        begin, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    tenths = statistics.quantiles(times, n=10)
    return tenths[1], tenths[4], tenths[7]


def close(ours: Tensor, theirs: Tensor) -> None:
    """Refuses to time what is wrong; how exact it is, the tests say."""
    error = (ours.float() - theirs.float()).abs().max().item()
    if not error < 0.05:
        raise AssertionError(f"results differ by {error}")


# Packed rows.


def packed(
    batch: int, longest: int, heads: int, causal: bool, dtype: torch.dtype = torch.float16
) -> Iterator[Row]:
    """Sentences of 0.2 to 1.0 of the longest, 0.6 on average."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(longest // 5, longest + 1, (batch,), generator=generator)
    lengths[0] = longest
    tokens, scale = int(lengths.sum()), HEAD_DIM**-0.5
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int().cuda()
    inputs = [
        torch.randn(tokens, 3, heads, HEAD_DIM, device="cuda", dtype=dtype) for _ in range(SETS)
    ]
    outputs = [torch.empty_like(qkv[:, 0], memory_format=torch.contiguous_format) for qkv in inputs]
    valid = (torch.arange(longest)[None] < lengths[:, None]).cuda()
    padded = []
    for qkv in inputs[:2]:
        full = torch.zeros(batch, longest, 3, heads, HEAD_DIM, device="cuda", dtype=dtype)
        full[valid] = qkv
        padded.append([part.transpose(1, 2).contiguous() for part in full.unbind(2)])
    mask = None if causal else valid[:, None, None, :].expand(batch, 1, longest, longest)

    def ours(i: int) -> Tensor:
        kernels.packed_attention(
            inputs[i], offsets, outputs[i], scale, causal, longest=longest, isa="cuda", threads=1
        )
        return outputs[i]

    def varlen(i: int) -> Tensor:
        q, k, v = inputs[i].unbind(1)
        y: Tensor = torch.ops.aten._flash_attention_forward(
            q, k, v, offsets, offsets, longest, longest, 0.0, causal, False, scale=scale
        )[0]
        return y

    def sdpa(i: int) -> Tensor:
        q, k, v = padded[i]
        return scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)

    close(ours(0), sdpa(0).transpose(1, 2)[valid])
    seen = (lengths.double() ** 2).sum().item() * (0.5 if causal else 1.0)
    operations = 4 * HEAD_DIM * heads * seen
    floor = max(operations / MATRIX, 4 * tokens * heads * HEAD_DIM * dtype.itemsize / COPY)
    shape = f"{batch} x {longest}, N {heads}{', causal' if causal else ''}"
    providers: dict[str, list[Callable[[], Tensor]]] = {
        "ours": [lambda i=i: ours(i) for i in range(SETS)],  # type: ignore[misc]
        "torch sdpa": [lambda i=i: sdpa(i) for i in range(2)],  # type: ignore[misc]
    }
    if dtype != torch.float32:
        providers["torch varlen"] = [lambda i=i: varlen(i) for i in range(SETS)]  # type: ignore[misc]
    for provider, calls in providers.items():
        p20, p50, p80 = measure(calls)
        rate = f"{operations / p50 / 1e6:.0f} TFLOP/s"
        name = str(dtype).removeprefix("torch.")
        yield Row("packed_attention", provider, name, shape, p20, p50, p80, rate, floor * 1e6 / p50)


# One new token per row.


class DecodeStep:
    """Self or cross attention of a step: what beams of a sentence share, and what they do not."""

    def __init__(
        self, sentences: int, beams: int, heads: int, shared: Tensor | None, history: int | None
    ) -> None:
        make = {"device": "cuda", "dtype": torch.float16}
        self.rows, self.heads, self.beams = sentences * beams, heads, beams
        self.scale = HEAD_DIM**-0.5
        parts = 1 if history is None else 3
        self.qkv = torch.randn(self.rows, parts, heads, HEAD_DIM, **make)  # type: ignore[call-overload]
        self.live = torch.arange(sentences, dtype=torch.int32).cuda()
        self.y = torch.empty_like(self.qkv[:, 0].contiguous())
        self.partial = torch.zeros(256 * 8 * beams * (HEAD_DIM + 2), device="cuda")
        self.tickets = torch.zeros(256, dtype=torch.int32, device="cuda")
        self.now = torch.tensor([1, history or 0, sentences], dtype=torch.int32).cuda()
        self.shared: dict[str, Tensor] = {}
        self.history: dict[str, Tensor] = {}
        self.positions = 0  # rows of keys that are read, over all sentences
        if shared is not None:
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), shared.cumsum(0)]).int().cuda()
            k, v = torch.randn(2, heads, int(shared.sum()), HEAD_DIM, **make)  # type: ignore[call-overload]
            self.shared = {"shared_k": k, "shared_v": v, "shared_offsets": offsets}
            self.positions += int(shared.sum())
        if history is not None:
            target = history + 32
            k, v = torch.randn(2, self.rows, heads, target, HEAD_DIM, **make)  # type: ignore[call-overload]
            # Beams have exchanged their pasts, as in a search.
            first = torch.arange(self.rows)[:, None] // beams * beams
            slots = first + torch.randint(beams, (2, self.rows, target))
            self.history = {"self_k": k, "self_v": v, "slots": slots.int().cuda()}
            held = slots[1, :, :history] * target + torch.arange(history)
            self.positions += len(set(held.flatten().tolist()))
        self.bytes = self.positions * heads * HEAD_DIM * 2 * 2

    def __call__(self) -> Tensor:
        kernels.decode_attention(
            self.qkv,
            self.live,
            self.y,
            self.scale,
            self.beams,
            **self.shared,
            **self.history,
            now=self.now,
            partial=self.partial,
            tickets=self.tickets,
            isa="cuda",
            threads=1,
        )
        return self.y


def torch_decode(rows: int, heads: int, length: int) -> Callable[[], Tensor]:
    """Every row with keys and values of its own, side by side, as Hugging Face keeps them."""
    make = {"device": "cuda", "dtype": torch.float16}
    q = torch.randn(rows, heads, 1, HEAD_DIM, **make)  # type: ignore[call-overload]
    k, v = torch.randn(2, rows, heads, length, HEAD_DIM, **make)  # type: ignore[call-overload]
    return lambda: scaled_dot_product_attention(q, k, v)


def decode(
    sentences: int, beams: int, heads: int, shared: int | None, history: int | None
) -> Iterator[Row]:
    """shared: mean of the sentences' shared positions, which are 0.5 to 1.5 of it."""
    lengths = None
    if shared is not None:
        spread = torch.linspace(0.5, 1.5, sentences) if sentences > 1 else torch.ones(1)
        lengths = (shared * spread).long().clamp(min=1)
    steps = [DecodeStep(sentences, beams, heads, lengths, history) for _ in range(SETS)]
    shape = f"{sentences}x{beams}, N {heads}, shared {shared or 0}, own {history or 0}"
    floor = max(steps[0].bytes / COPY, 1.2e-6)
    length = (shared or 0) + (history or 0)
    theirs = [
        torch_decode(sentences * beams, heads, length)
        for _ in range(SETS if "ours" not in sys.argv else 0)
    ]
    calls: dict[str, Sequence[Callable[[], Tensor]]] = {
        "ours": [step for _ in range(5) for step in steps],
        "torch sdpa": theirs,
    }
    if "ours" in sys.argv:
        del calls["torch sdpa"]
    for provider, chain in calls.items():
        p20, p50, p80 = measure(chain)
        rate = f"{steps[0].bytes / p50 / 1e3:.0f} GB/s"
        yield Row(
            "decode_attention", provider, "float16", shape, p20, p50, p80, rate, floor * 1e6 / p50
        )


def store(tokens: int, heads: int) -> Iterator[Row]:
    make = {"device": "cuda", "dtype": torch.float16}
    kv = [torch.randn(tokens, 2, heads, HEAD_DIM, **make) for _ in range(SETS)]  # type: ignore[call-overload]
    k, v = torch.empty(2, SETS, heads, tokens, HEAD_DIM, **make)  # type: ignore[call-overload]
    bytes_moved = 2 * kv[0].numel() * 2
    calls: list[Callable[[], object]] = [
        lambda i=i: kernels.store_shared(kv[i], k[i], v[i], isa="cuda", threads=1)  # type: ignore[misc]
        for i in range(SETS)
    ]
    p20, p50, p80 = measure(calls)
    rate, of_ceiling = f"{bytes_moved / p50 / 1e3:.0f} GB/s", bytes_moved / COPY * 1e6 / p50
    shape = f"{tokens} tokens, N {heads}"
    yield Row("store_shared", "ours", "float16", shape, p20, p50, p80, rate, of_ceiling)


def decode_rows() -> Iterator[Row]:
    for sentences, beams, heads, shared, history in [
        (1, 1, 8, None, 32),
        (1, 4, 8, None, 32),
        (1, 4, 8, 32, None),
        (1, 1, 12, 512, 512),
        (1, 4, 12, 512, 256),
        (1, 1, 12, 4000, None),
        (8, 4, 8, None, 32),
        (32, 4, 8, None, 32),
        (32, 4, 8, None, 64),
        (32, 4, 8, 80, None),
        (32, 4, 12, 32, 64),
        (128, 4, 8, None, 32),
        (128, 4, 8, None, 96),
        (128, 4, 8, 32, None),
        (128, 4, 8, 80, None),
        (128, 4, 12, 32, 64),
        (128, 1, 12, 128, 128),
        (32, 8, 8, 64, 64),
    ]:
        yield from decode(sentences, beams, heads, shared, history)


def packed_rows() -> Iterator[Row]:
    for batch, longest, heads in [(16, 128, 8), (32, 128, 8), (32, 256, 16), (16, 512, 8),
                                  (32, 512, 16), (16, 1024, 16), (32, 1024, 8)]:  # fmt: skip
        for causal in (False, True):
            yield from packed(batch, longest, heads, causal)
    yield from packed(32, 256, 16, False, torch.float32)


def store_rows() -> Iterator[Row]:
    yield from store(32 * 77, 8)
    yield from store(32 * 600, 16)


def main(kinds: Sequence[str]) -> None:
    """kinds: decode, packed, store; default all."""
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), torch.__version__)
    with torch.inference_mode():
        for kind, make in (("decode", decode_rows), ("packed", packed_rows), ("store", store_rows)):
            if not kinds or kind in kinds:
                for row in make():
                    print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
