"""What benchmarks.training times: operators of decoding.nn beside torch's and Liger-Kernel's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.nn import functional as ours

try:
    from liger_kernel.transformers import functional as liger
except ImportError:
    liger = None

Op = Callable[..., Tensor]  # of the tensors that need gradients
NORMED = 1 << 26  # elements of a case of norms: 128 MB in 16 bits, twice an L2 cache
NORMED_CPU = 1 << 22
COLS = (1024, 2048, 4096, 8192, 16384)
COMPILED = 4096  # columns that torch.compile is timed on
LOSSES = ((8192, 32000), (8192, 128256), (4096, 256000))
LOSSES_CPU = ((256, 32000),)
LINEAR_LOSSES = ((8192, 4096, 128256), (8192, 1024, 32000))  # rows, features, classes
LINEAR_LOSSES_CPU = ((256, 256, 32000),)
EMBEDDINGS = ((65536, 1024, 32000),)  # rows, features, vocabulary
EMBEDDINGS_CPU = ((4096, 512, 32000),)
SMOOTHING = 0.1
EPS = 1e-5


@dataclass(frozen=True)
class Training:
    """An operator on one shape. inputs: need gradients; providers take them and return a tensor.

    both: bytes that a forward and a backward pass move at least; forward: the first alone, 0 where
    there is no telling them apart. operations: of both passes' products. overwritten: some write
    the gradient over the first input. waiting: providers that wait for the GPU in a call, so that
    no graph can hold it.
    """

    operator: str
    shape: str
    inputs: tuple[Tensor, ...]
    providers: dict[str, Op]
    both: float
    forward: float = 0
    operations: float = 0
    overwritten: bool = False
    waiting: tuple[str, ...] = ()


def cases(device: str, dtype: torch.dtype) -> Iterator[Training]:
    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    def ids(count: int, below: int) -> Tensor:
        return torch.randint(below, (count,), device=device)

    cpu = device == "cpu"
    for rows, classes in LOSSES_CPU if cpu else LOSSES:
        yield cross_entropy(random(rows, classes), ids(rows, classes))
    for rows, features, classes in LINEAR_LOSSES_CPU if cpu else LINEAR_LOSSES:
        matrix = random(classes, features) / features**0.5
        yield linear_cross_entropy(random(rows, features), matrix, ids(rows, classes))
    elements = NORMED_CPU if cpu else NORMED
    for cols in COLS:
        x, gamma, beta = random(elements // cols, cols), random(cols), random(cols)
        yield layer_norm(x, gamma, beta)
        yield rms_norm(x, gamma)
        yield add_layer_norm(x, random(*x.shape), gamma, beta)
    for rows, features, vocabulary in EMBEDDINGS_CPU if cpu else EMBEDDINGS:
        yield embedding(random(vocabulary, features), random(512, features), ids(rows, vocabulary))


def cross_entropy(logits: Tensor, labels: Tensor) -> Training:
    """Logits are read twice and their gradient written once."""
    how: dict[str, Any] = {"label_smoothing": SMOOTHING}
    providers: dict[str, Op] = {
        "ours": lambda x: ours.cross_entropy(x, labels, **how),
        "torch": lambda x: F.cross_entropy(x, labels, **how),
        "torch, float32": lambda x: F.cross_entropy(x.float(), labels, **how),
    }
    providers |= compiled(providers["torch"])
    if liger:
        providers["liger"] = lambda x: liger.liger_cross_entropy(x, labels, **how)
    shape, moved = "x".join(map(str, logits.shape)), 3 * logits.nbytes + 2 * labels.nbytes
    return Training(
        "cross_entropy",
        shape,
        (logits,),
        providers,
        moved,
        overwritten=True,
        waiting=("liger",),
    )


def linear_cross_entropy(x: Tensor, matrix: Tensor, labels: Tensor) -> Training:
    """Three products; what they read and write beside the logits."""
    how: dict[str, Any] = {"label_smoothing": SMOOTHING}
    providers: dict[str, Op] = {
        "ours": lambda x, m: ours.linear_cross_entropy(x, m, labels, **how),
        "torch": lambda x, m: F.cross_entropy(F.linear(x, m), labels, **how),
    }
    providers |= compiled(providers["torch"])
    if liger:
        providers["liger"] = lambda x, m: liger.liger_fused_linear_cross_entropy(
            x, m, labels, **how
        )
    shape, moved = "x".join(map(str, (*x.shape, len(matrix)))), 4 * (x.nbytes + matrix.nbytes)
    operations = 3 * 2 * len(x) * matrix.numel()
    return Training(
        "linear_cross_entropy",
        shape,
        (x, matrix),
        providers,
        moved,
        operations=operations,
        waiting=("liger",),
    )


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Training:
    cols = x.shape[1:]
    providers: dict[str, Op] = {
        "ours": lambda x, g, b: ours.layer_norm(x, cols, g, b, EPS),
        "torch": lambda x, g, b: F.layer_norm(x, cols, g, b, EPS),
    }
    if liger:
        providers["liger"] = lambda x, g, b: liger.liger_layer_norm(x, g, b, EPS)
    return norm("layer_norm", (x, gamma, beta), providers)


def rms_norm(x: Tensor, gamma: Tensor) -> Training:
    cols = x.shape[1:]
    providers: dict[str, Op] = {
        "ours": lambda x, g: ours.rms_norm(x, cols, g, EPS),
        "torch": lambda x, g: F.rms_norm(x, cols, g, EPS),
    }
    if liger:
        providers["liger"] = lambda x, g: liger.liger_rms_norm(x, g, EPS, in_place=False)
    return norm("rms_norm", (x, gamma), providers)


def add_layer_norm(x: Tensor, residual: Tensor, gamma: Tensor, beta: Tensor) -> Training:
    """norm(x + residual); the next block's gradient of the sum is not part of it."""
    cols = x.shape[1:]
    providers: dict[str, Op] = {
        "ours": lambda x, r, g, b: ours.add_layer_norm(x, r, cols, g, b, EPS)[0],
        "torch": lambda x, r, g, b: F.layer_norm(x + r, cols, g, b, EPS),
    }
    return norm("add_layer_norm", (x, residual, gamma, beta), providers, read=2, written=2)


def norm(
    operator: str,
    inputs: tuple[Tensor, ...],
    providers: dict[str, Op],
    read: int = 1,
    written: int = 1,
) -> Training:
    """The backward pass reads what was normed and dy, and writes dx."""
    x = inputs[0]
    forward, shape = (read + written) * x.nbytes, "x".join(map(str, x.shape))
    if x.shape[1] == COMPILED:
        providers = providers | compiled(providers["torch"])
    return Training(operator, shape, inputs, providers, forward + 3 * x.nbytes, forward)


def embedding(table: Tensor, positions: Tensor, ids: Tensor) -> Training:
    """Scaled, with positions; the gradients of both tables are written once, dy is read twice."""
    at = torch.arange(len(ids), device=ids.device) % len(positions)
    scale = float(table.shape[1] ** 0.5)

    def theirs(table: Tensor, positions: Tensor) -> Tensor:
        return F.embedding(ids, table) * scale + F.embedding(at, positions)

    providers: dict[str, Op] = {
        "ours": lambda t, p: ours.embedding(ids, t, scale=scale, positions=p, position=at),
        "torch": theirs,
    }
    row = table[0].nbytes
    shape = f"{len(ids)}x{table.shape[1]} of {len(table)}"
    forward = 3 * row * len(ids)
    both = forward + 2 * row * len(ids) + table.nbytes + positions.nbytes
    providers |= compiled(theirs)
    return Training("embedding", shape, (table, positions), providers, both, forward)


def compiled(op: Op) -> dict[str, Op]:
    return {"torch.compile": torch.compile(op, dynamic=False)}
