"""Host time of operators of decoding.nn beside torch's: microseconds of a processor for each call.

python -m benchmarks.training_host [--device cuda] [--dtype bfloat16] [--shape 1 8]

Each operator is called a few times in a row, as in a model, with and without the backward pass
through all of them. On a GPU that is the time to issue their work, on a CPU the work is in it: a
shape of 1 8 leaves little more than the calls. Time is the process's own, so other processes count
for little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.nn import functional as ours

CALLS = 16  # in a row
ROUNDS = 200
Op = Callable[[Any, Tensor, Sequence[Tensor], Tensor], Tensor]  # of a library, x, weights, ids


def layer_norm(library: Any, x: Tensor, weights: Sequence[Tensor], ids: Tensor) -> Tensor:
    return library.layer_norm(x, x.shape[1:], *weights)  # type: ignore[no-any-return]


def rms_norm(library: Any, x: Tensor, weights: Sequence[Tensor], ids: Tensor) -> Tensor:
    return library.rms_norm(x, x.shape[1:], weights[0])  # type: ignore[no-any-return]


def block_end(library: Any, x: Tensor, weights: Sequence[Tensor], ids: Tensor) -> Tensor:
    """What follows the last product in a post-norm block."""
    y: Tensor
    gamma, beta = weights
    if library is ours:
        y, _ = ours.add_layer_norm(x, x, x.shape[1:], gamma, beta, input_bias=gamma, dropout=0.1)
    else:
        y = F.layer_norm(F.dropout(x + gamma, 0.1) + x, x.shape[1:], gamma, beta)
    return y


def softmax(library: Any, x: Tensor, weights: Sequence[Tensor], ids: Tensor) -> Tensor:
    return library.softmax(x, -1)  # type: ignore[no-any-return]


def dropout(library: Any, x: Tensor, weights: Sequence[Tensor], ids: Tensor) -> Tensor:
    return library.dropout(x, 0.1)  # type: ignore[no-any-return]


def embedding(library: Any, x: Tensor, weights: Sequence[Tensor], ids: Tensor) -> Tensor:
    return library.embedding(ids, x)  # type: ignore[no-any-return]


def cross_entropy(library: Any, x: Tensor, weights: Sequence[Tensor], ids: Tensor) -> Tensor:
    return library.cross_entropy(x, ids)  # type: ignore[no-any-return]


def calls_of(op: Op, library: ModuleType, shape: Sequence[int], **place: Any) -> Callable[[], Any]:
    """What calls an operator and, with gradients, goes back through all calls. Those that give
    something else than they take stand side by side, the others one after the other."""
    x = torch.randn(*shape, **place).requires_grad_()
    ids = torch.arange(shape[0], device=x.device) % min(shape)
    weights = [[torch.ones(shape[1:], **place, requires_grad=True)] * 2 for _ in range(CALLS)]
    with torch.no_grad():
        alike = op(ours, x, weights[0], ids).shape == x.shape and op is not embedding

    def call() -> None:
        found = [x]
        for own in weights:
            found.append(op(library, found[-1] if alike else x, own, ids))
        if torch.is_grad_enabled():
            ends = found[-1:] if alike else found[1:]
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])

    return call


def microseconds(call: Callable[[], Any], device: str) -> float:
    """Of one of the CALLS: the median."""
    found = []
    for repeat in range(ROUNDS + 20):
        begin = time.process_time_ns()
        call()
        if repeat >= 20:
            found.append((time.process_time_ns() - begin) / CALLS / 1e3)
        if device != "cpu":
            torch.cuda.synchronize(device)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, or a GPU as torch names it")
    parser.add_argument("--dtype", default="float32", help="as torch names it")
    parser.add_argument("--shape", nargs=2, type=int, default=(64, 512), help="rows and columns")
    options = parser.parse_args()
    torch.set_num_threads(1)
    place = {"device": options.device, "dtype": getattr(torch, options.dtype)}
    print(f"{'us a call':14}  {'forward':>7}  {'torch':>7}  {'both':>7}  {'torch':>7}")
    for op in (layer_norm, rms_norm, block_end, softmax, dropout, embedding, cross_entropy):
        line = []
        for gradients in (False, True):
            for library in (ours, F):
                with torch.set_grad_enabled(gradients):
                    call = calls_of(op, library, options.shape, **place)
                    line.append(f"{microseconds(call, options.device):7.1f}")
        print(f"{op.__name__:14}  {'  '.join(line)}", flush=True)


if __name__ == "__main__":
    main()
