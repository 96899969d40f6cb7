"""Operators of decoding.nn beside torch, torch.compile and Liger-Kernel: time and memory.

python -m benchmarks.training [--device cuda] [--dtype bfloat16] [--operator NAME] [--output FILE]

Forward alone, and forward with backward, in turns; on a GPU each is a CUDA graph of several calls.
See benchmarks/README.md for what a row means.
"""

from __future__ import annotations

import argparse
import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.cases.training import Op, Training, cases
from benchmarks.kernels import repeated
from benchmarks.report.rows import write_rows
from decoding.compare.environment import Environment, environment
from decoding.compare.results import Ceilings
from decoding.compare.roofline import capture, measure, measure_gpu, seconds_of
from decoding.compare.timing import percentile

REPEATS = 7
CALLS = 5  # in a graph
CLOSE = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.1}  # of results, to their largest number

Call = Callable[[], list[Tensor]]


@dataclass(frozen=True)
class TrainingRow:
    """One provider on one case. Times are microseconds of a call.

    passes: "forward", or "both" with the backward one. megabytes: bytes that they must move;
    rate: those over p50, GB/s; roofline_bound: the longer of moving them at the speed of a copy (on
    a CPU of reading memory) and of the operations at the speed of a large matrix product. memory:
    that a call takes beyond its inputs at most, MB, on a GPU. error: the largest difference of
    result or gradients to torch's in float32, over their largest number.
    """

    operator: str
    passes: str
    shape: str
    provider: str
    version: str
    dtype: str
    threads: int
    repeats: int
    p20: float
    p50: float
    p80: float
    unit: str
    megabytes: float
    rate: float
    roofline_bound: float
    roofline_share: float
    bandwidth: float
    flops: float
    memory: float
    error: float
    device: str
    flags: str
    commit: str
    date: str


@dataclass(frozen=True)
class Run:
    device: str
    dtype: str
    threads: int
    ceilings: Ceilings
    where: Environment


class Computed(torch.autograd.Function):
    """x as the result of an operator, which the one behind it may overwrite."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: object, dx: Tensor) -> Tensor:
        return dx


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    if options.device == "cpu":
        ceilings = measure(options.threads)["float32"]
    else:
        ceilings = measure_gpu(dtype, options.device)
    threads = options.threads if options.device == "cpu" else 0
    run = Run(options.device, options.dtype, threads, ceilings, environment(options.device))
    rows: list[TrainingRow] = []
    for case in cases(options.device, dtype):
        if options.operator and case.operator not in options.operator:
            continue
        for passes in ("forward", "both") if case.forward else ("both",):
            found = compare(run, case, passes)
            print(console(found), flush=True)
            rows += found
            if options.output:
                write_rows(rows, options.output)
        gc.collect()  # graphs
        torch.compiler.reset()  # which compiles a function for few shapes, then no more


def compare(run: Run, case: Training, passes: str) -> list[TrainingRow]:
    """Checks and times one case. Raises RuntimeError when results differ."""
    exact = call_of(case, case.providers["torch"], passes, [x.float() for x in case.inputs])()
    errors, memory, rounds = {}, {}, {}
    for name, op in case.providers.items():
        inputs = [x.clone() for x in case.inputs]
        call = call_of(case, op, passes, inputs)
        errors[name] = difference(call(), exact)
        if not errors[name] < CLOSE[run.dtype]:
            raise RuntimeError(f"{case.operator} {case.shape}: {name} is off by {errors[name]}")
        memory[name] = growth(run.device, call)
        rounds[name] = round_of(run.device, case, call, inputs, name in case.waiting)
    del exact
    seconds: dict[str, list[float]] = {name: [] for name in rounds}
    for repeat in range(REPEATS + 1):
        for name, timed in rounds.items():
            took = timed()
            if repeat > 0:  # the first is the warm-up
                seconds[name].append(took)
    return [
        make_row(run, case, passes, name, seconds[name], memory[name], errors[name])
        for name in rounds
    ]


def call_of(case: Training, op: Op, passes: str, inputs: list[Tensor]) -> Call:
    """Returns the result and, with both passes, the gradients of the inputs."""
    with torch.no_grad():
        y = case.providers["torch"](*inputs)
    # What comes to a result that is no loss, in numbers that the type of the case has.
    line = torch.linspace(-1, 1, y.shape[-1] if y.ndim else 1).to(case.inputs[0].dtype)
    dy = line.to(y).expand(y.shape).contiguous() if y.ndim else torch.ones_like(y)
    leaves = [x.requires_grad_() for x in inputs]

    def forward() -> list[Tensor]:
        return [op(*leaves)]

    def both() -> list[Tensor]:
        y = op(Computed.apply(leaves[0]), *leaves[1:])  # type: ignore[no-untyped-call]
        return [y, *torch.autograd.grad(y, leaves, dy)]

    return forward if passes == "forward" else both


def difference(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest, of each tensor to its largest number."""
    return max(
        float((x.detach().float() - y.detach()).abs().max() / y.detach().abs().max())
        for x, y in zip(found, exact, strict=True)
    )


def growth(device: str, call: Call) -> float:
    """Bytes that a call takes at most, results included; NaN on a CPU, whose allocator keeps what
    was freed."""
    if device == "cpu":
        return math.nan
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    return torch.cuda.max_memory_allocated(device) - before


def round_of(
    device: str, case: Training, call: Call, inputs: Sequence[Tensor], waits: bool
) -> Callable[[], float]:
    """What runs some calls and returns the seconds of one."""
    if device == "cpu":
        return lambda: repeated(call)
    # Gradients in place of logits are small numbers, which cost less energy and so less time.
    calls = 1 if case.overwritten else CALLS

    def repeatedly() -> None:
        for _ in range(calls):
            call()

    run = repeatedly if waits else capture(call() for _ in range(calls)).replay

    def timed() -> float:
        if case.overwritten:
            with torch.no_grad():
                inputs[0].copy_(case.inputs[0])
        return seconds_of(run) / calls

    return timed


def make_row(
    run: Run,
    case: Training,
    passes: str,
    provider: str,
    seconds: Sequence[float],
    memory: float,
    error: float,
) -> TrainingRow:
    p20, p50, p80 = (1e6 * percentile(seconds, percent) for percent in (20, 50, 80))
    moved, operations = case.forward, 0.0
    if passes == "both":
        moved, operations = case.both, case.operations
    bound = max(moved / run.ceilings.bandwidth, operations / run.ceilings.flops)
    return TrainingRow(
        operator=case.operator,
        passes=passes,
        shape=case.shape,
        provider=provider,
        version=version_of(provider),
        dtype=run.dtype,
        threads=run.threads,
        repeats=len(seconds),
        p20=p20,
        p50=p50,
        p80=p80,
        unit="us",
        megabytes=moved / 1e6,
        rate=moved / p50 / 1e3,
        roofline_bound=1e6 * bound,
        roofline_share=1e6 * bound / p50,
        bandwidth=run.ceilings.bandwidth / 1e9,
        flops=run.ceilings.flops / 1e12,
        memory=memory / 1e6,
        error=error,
        **asdict(run.where),
    )


def version_of(provider: str) -> str:
    if provider == "ours":
        return ""
    return (
        f"liger {version('liger-kernel')}" if provider == "liger" else f"torch {torch.__version__}"
    )


def console(rows: Sequence[TrainingRow]) -> str:
    """One aligned line for each row; ours ends in how many times faster than each peer it is."""
    lines = []
    for row in rows:
        parts = [
            f"{row.operator:20}  {row.passes:7}  {row.shape:18}  {row.provider:14}"
            f" {row.p50:9.1f} us [{row.p20:.1f} {row.p80:.1f}]",
            f"{row.rate:6.0f} GB/s",
            f"{row.roofline_share:4.0%} of the roofline",
            f"{row.memory:7.0f} MB",
        ]
        if row.provider == "ours":
            peers = [peer for peer in rows if peer.provider != "ours"]
            parts += [f"{peer.p50 / row.p50:.2f}x {peer.provider}" for peer in peers]
        lines.append(" | ".join(parts))
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, or a GPU as torch names it")
    parser.add_argument("--dtype", choices=CLOSE, help="default bfloat16, on a CPU float32")
    parser.add_argument("--operator", nargs="+", help="functions of decoding.nn; default all")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--output", type=Path, help="a CSV file for the rows")
    options = parser.parse_args(arguments)
    options.dtype = options.dtype or ("float32" if options.device == "cpu" else "bfloat16")
    return options


if __name__ == "__main__":
    main()
