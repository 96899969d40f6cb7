"""What benchmarks.kernels times on a GPU: every kernel of ours beside torch, on shapes that matter.

A case makes sets of inputs and outputs, which the harness goes through in turns, and names for each
provider a call on one set. All calls of a case compute the same thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from decoding import _C
from decoding import _kernels as kernels

HEAD_DIM = 64
VOCABULARY = 32000
STEP_ROWS = 512  # of a decode step, at most
# Operations for each element. A norm: sums of x and of (x - mean)^2, then scale, gamma and beta. A
# softmax: the maximum, the difference to it, the exponential, their sum, the quotient.
NORM, SOFTMAX = 8, 5

Set = Any  # the tensors of one call, however a case keeps them
Call = Callable[[Set], Any]  # returns a tensor


@dataclass(frozen=True)
class Place:
    device: str
    dtype: torch.dtype
    threads: int

    @property
    def isa(self) -> str:
        return "cuda" if self.device != "cpu" else _C.isas()[0]

    @property
    def how(self) -> dict[str, Any]:
        """Where a kernel of ours runs."""
        return {"isa": self.isa, "threads": self.threads}

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device).to(self.dtype)

    def floats(self, *shape: int) -> Tensor:
        """float32 numbers that the type has too."""
        return self.random(*shape).float()

    def ints(self, values: Sequence[int] | Tensor) -> Tensor:
        return torch.as_tensor(values, dtype=torch.int32, device=self.device)

    def active(self, sentences: int, number: int, position: int) -> Tensor:
        """int32 [sentences, 3], all at the same step: csrc/kernels/search/step.h."""
        return self.ints(torch.tensor([[i, number, position] for i in range(sentences)]))


@dataclass(frozen=True)
class Case:
    """moved: bytes that a call must read and write at least; operations: additions,
    multiplications and the like of its results, an exponential being one. dtype: of the weights,
    else the place's. reference: what results should be, else torch's.
    """

    kernel: str
    shape: str
    moved: float
    make: Callable[[], Set]
    providers: dict[str, Call]
    operations: float
    warm: bool = False  # reads what another kernel has just written, so from the L2 cache
    prepare: Callable[[Set], object] | None = None  # called once, on the first set
    reset: Callable[[Set], object] | None = None  # called on every set before each round
    comparable: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)  # results
    dtype: torch.dtype | None = None
    reference: Call | None = None


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


def int8_linear(place: Place, rows: int, inputs: int, outputs: int) -> Case:
    """As `linear`, with an int8 weight beside torch's in the place's type.

    Of every 16 inputs the first eight and the last lie in turns: csrc/kernels/linear/linear.h.
    """

    def make() -> Set:
        numbers = torch.randint(-127, 128, (outputs, inputs), device=place.device).to(torch.int8)
        rows_of_pairs = numbers.view(outputs, -1, 2, 4, 2).transpose(2, 3)
        packed = rows_of_pairs.reshape(outputs, inputs).contiguous()
        scale = torch.rand(outputs, device=place.device) / 127 / inputs**0.5
        weight = (numbers * scale[:, None]).to(place.dtype)
        x, y = place.random(rows, inputs), place.random(rows, outputs)
        return x, packed, scale, weight, y

    def call(function: Callable[..., object], s: Set, **how: Any) -> Any:
        x, packed, scale, _, y = s
        function(x, packed, None, None, y, "none", scale=scale, **how)
        return y

    return Case(
        "int8_linear",
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


def packed_attention(
    place: Place, sentences: int, longest: int, heads: int, causal: bool = False
) -> Case:
    """Lengths from 0.2 to 1.0 of the longest, 0.6 on average."""
    lengths = torch.linspace(0.2 * longest, longest, sentences).round().int()
    tokens = int(lengths.sum())
    offsets = place.ints(functional.pad(lengths.cumsum(0), (1, 0)))
    valid = (torch.arange(longest) < lengths[:, None]).to(place.device)
    mask = None if causal else valid[:, None, None, :]

    def make() -> Set:
        qkv = place.random(tokens, 3, heads, HEAD_DIM)
        padded = qkv.new_zeros(sentences, longest, 3, heads, HEAD_DIM)
        padded[valid] = qkv
        parts = [part.transpose(1, 2).contiguous() for part in padded.unbind(2)]
        return qkv, parts, torch.empty_like(qkv[:, 0], memory_format=torch.contiguous_format)

    def ours(s: Set) -> Any:
        kernels.packed_attention(
            s[0].flatten(1, 2), offsets, s[2], HEAD_DIM**-0.5, causal, longest=longest, **place.how
        )
        return s[2]

    def sdpa(s: Set) -> Any:
        q, k, v = s[1]
        return functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)

    def varlen(s: Set) -> Any:
        q, k, v = s[0].unbind(1)
        return torch.ops.aten._flash_attention_forward(
            q, k, v, offsets, offsets, longest, longest, 0.0, causal, False
        )[0]

    def packed(y: Tensor) -> Tensor:
        return y.transpose(1, 2)[valid]

    providers: dict[str, Call] = {"ours": ours, "torch sdpa, padded": sdpa}
    if place.device != "cpu" and place.dtype != torch.float32:
        providers["torch varlen"] = varlen
    seen = (lengths.double() ** 2).sum().item() * (0.5 if causal else 1)
    return Case(
        "packed_attention",
        f"{sentences}x{longest} N{heads}" + " causal" * causal,
        4 * tokens * heads * HEAD_DIM * place.dtype.itemsize,
        make,
        providers,
        operations=4 * seen * heads * HEAD_DIM,
        comparable={"torch sdpa, padded": packed},
    )


def self_attention(place: Place, batch: int, beams: int, heads: int, position: int) -> Case:
    """The new token of each row over its own history, in pages of 16 positions that lie anywhere.
    torch has the history gathered already."""
    rows, scale = batch * beams, HEAD_DIM**-0.5
    active, state = place.active(batch, 2, position), place.ints([2, batch])
    slots = place.ints(torch.arange(rows)).view(1, rows, 1).repeat(2, 1, position + 1)
    longest = -(-(position + 1) * beams // 16)
    pages = torch.randperm(batch * longest, generator=torch.Generator().manual_seed(0))
    tables = {"cache_indirection": slots, "self_pages": place.ints(pages).view(batch, longest)}
    cells = torch.arange(position + 1) * beams + torch.arange(rows)[:, None] % beams
    page = pages.view(batch, longest)[torch.arange(rows)[:, None] // beams, cells // 16]
    scratch = attention_scratch(place)

    def make() -> Set:
        qkv = place.random(rows, 3, heads, HEAD_DIM)
        k, v = (place.random(heads, batch * longest, 16, HEAD_DIM) for _ in range(2))
        k[:, page[:, -1], cells[:, -1] % 16] = qkv[:, 1].transpose(0, 1)
        v[:, page[:, -1], cells[:, -1] % 16] = qkv[:, 2].transpose(0, 1)
        gathered = [x[:, page, cells % 16].transpose(0, 1).contiguous() for x in (k, v)]
        return qkv, k, v, torch.empty_like(qkv[:, 0].contiguous()), *gathered

    def ours(s: Set) -> Any:
        qkv, k, v, y = s[:4]
        history = {"k_pages": k, "v_pages": v, "state": state, **tables}
        kernels.decode_attention(
            qkv.flatten(1, 2), active, y, scale, beams, **history, **scratch, **place.how
        )
        return y

    def theirs(s: Set) -> Any:
        qkv, _, _, _, k, v = s
        return functional.scaled_dot_product_attention(qkv[:, 0, :, None], k, v)[:, :, 0]

    numbers = rows * heads * HEAD_DIM * (2 * position + 6)
    return Case(
        "decode_attention",
        f"self {batch}x{beams} N{heads} T{position + 1}",
        numbers * place.dtype.itemsize,
        make,
        {"ours": ours, "torch sdpa": theirs},
        operations=4 * rows * heads * HEAD_DIM * (position + 1),
    )


def cross_attention(place: Place, batch: int, beams: int, heads: int, source: int) -> Case:
    """The beams of a sentence over its source, whose keys and values torch too has only once. Ours
    lie in pages of 16 positions, anywhere; torch's in one piece."""
    rows, scale = batch * beams, HEAD_DIM**-0.5
    active, state = place.active(batch, 2, 1), place.ints([2, batch])
    longest = -(-source // 16)
    pages = torch.randperm(batch * longest, generator=torch.Generator().manual_seed(0))
    tables = {
        "shared_pages": place.ints(pages).view(batch, longest),
        "shared_lengths": place.ints([source] * batch),
    }
    cells = torch.arange(source)
    page = pages.view(batch, longest)[:, cells // 16]
    scratch = attention_scratch(place)

    def make() -> Set:
        q = place.random(rows, heads, HEAD_DIM)
        k, v = (place.random(heads, batch * longest, 16, HEAD_DIM) for _ in range(2))
        gathered = [x[:, page, cells % 16].transpose(0, 1).contiguous() for x in (k, v)]
        return q, k, v, torch.empty_like(q), *gathered

    def ours(s: Set) -> Any:
        q, k, v, y = s[:4]
        shared = {"k_pages": k, "v_pages": v, "state": state, **tables}
        kernels.decode_attention(q, active, y, scale, beams, **shared, **scratch, **place.how)
        return y

    def theirs(s: Set) -> Any:
        q, _, _, y, k, v = s
        q = q.view(batch, beams, heads, HEAD_DIM).transpose(1, 2)
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(y.shape)

    numbers = 2 * heads * HEAD_DIM * (rows + batch * source)
    return Case(
        "decode_attention",
        f"cross {batch}x{beams} N{heads} S{source}",
        numbers * place.dtype.itemsize,
        make,
        {"ours": ours, "torch sdpa": theirs},
        operations=4 * rows * heads * HEAD_DIM * source,
    )


def attention_scratch(place: Place) -> dict[str, Tensor]:
    """see SplitScratch in csrc/kernels/attention/decode.h; nothing on a CPU."""
    if place.device == "cpu":
        return {}
    partial = torch.empty(512 * 8 * (HEAD_DIM + 2), device=place.device)
    return {
        "partial": partial,
        "split_counters": torch.zeros_like(partial[:256], dtype=torch.int32),
    }


def beam_selection(place: Place, batch: int, beams: int, vocab: int) -> Case:
    """From the logits to the next step's rows. torch does the first part of it alone: the best 2K
    candidates of each sentence."""
    sums = -torch.rand(batch * beams, device=place.device)

    def make() -> Set:
        logits = place.random(batch * beams, vocab)
        state = SelectState(place, batch, beams, vocab, sums)
        select(logits, state, upload=True)
        state.reset()
        return logits, state

    def select(logits: Tensor, state: SelectState, *, upload: bool) -> None:
        more = {"beams": beams, "m": 2 * beams, "upload": upload}
        kernels.select(logits, state.tensors, state.rules, "beam", **more)

    def ours(s: Set) -> Any:
        logits, state = s
        select(logits, state, upload=False)
        return state.tensors["sums"].view(batch, beams)

    def theirs(s: Set) -> Any:
        scores = torch.log_softmax(s[0], -1, dtype=torch.float32) + sums[:, None]
        return scores.view(batch, beams * vocab).topk(2 * beams, -1).values[:, :beams]

    return Case(
        "select",
        f"beam {batch}x{beams} V{vocab}",
        batch * beams * vocab * place.dtype.itemsize,
        make,
        {"ours": ours, "torch": theirs},
        operations=SOFTMAX * batch * beams * vocab,
        comparable={"ours": torch.clone},  # its sums are undone by the next reset
        reset=lambda s: s[1].reset(),
    )


class SelectState:
    """What a search keeps: the fields of SelectParams (csrc/kernels/search/select.h)."""

    TARGET = 512  # steps that it has room for

    def __init__(self, place: Place, batch: int, beams: int, vocab: int, sums: Tensor) -> None:
        rows, groups = batch * beams, -(-vocab // 128)
        ints = {
            **{"first": batch, "stop_now": 1, "finished_count": batch},
            **{"done": batch, "fault": batch, "length": rows, "ids": rows, "at": rows},
            **{"random_row": rows, "now": 2, "seen": 2, "tickets": batch * (beams + 1) + 1},
        }
        self.tensors = {name: place.ints([0] * size) for name, size in ints.items()}
        zeros = self.tensors["now"].new_zeros
        self.tensors |= {
            "tokens": zeros(self.TARGET, rows),
            "parents": zeros(self.TARGET, rows),
            "slots": zeros(2, rows, self.TARGET),
            "finished": zeros(batch, beams, 5),
            "best": zeros(rows, 2 * beams, 2),
            "config": zeros(65536 + 512 * batch, dtype=torch.uint8),
            "lse": zeros(rows, dtype=torch.float32),
            "sums": sums.clone(),
            **{name: torch.zeros(rows, groups, device=place.device)
               for name in ("group_max", "group_sum")},
        }  # fmt: skip
        self.rules = {
            **{"min_new": 0, "pad": 0, "renormalize": False, "length_penalty": 1.0},
            **{"early_stopping": kernels.EarlyStopping.no, "eos": [], "banned": []},
            **{"forced_last": [], "seeds": [0] * batch, "max_news": [self.TARGET] * batch},
            **{"random_firsts": [beams * b for b in range(batch)], "top_ks": [0] * batch},
            **{"forced_firsts": [-1] * batch, "temperatures": [1.0] * batch},
            **{"top_ps": [1.0] * batch},
        }
        self.begin = place.ints([2, batch])  # number, live_count
        self.sentences, self.sums = place.active(batch, 2, 1), sums
        self.tensors["live"] = self.sentences.clone()
        self.reset()

    def reset(self) -> None:
        self.tensors["now"].copy_(self.begin)
        self.tensors["live"].copy_(self.sentences)
        self.tensors["sums"].copy_(self.sums)


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
                yield int8_linear(place, rows, inputs, outputs)
    for sentences, longest, heads in ((32, 128, 8), (32, 256, 16), (32, 512, 16), (32, 1024, 8)):
        for causal in (False, True):
            yield packed_attention(place, sentences, longest, heads, causal)
    for batch in (1, 8, 32, 128):
        yield self_attention(place, batch, 4, 8, position=63)
        yield cross_attention(place, batch, 4, 8, source=64)
    for batch, beams, vocab in ((1, 4, VOCABULARY), (8, 4, VOCABULARY), (32, 4, VOCABULARY),
                                (128, 4, VOCABULARY), (32, 4, 256000)):  # fmt: skip
        yield beam_selection(place, batch, beams, vocab)
