"""Every kernel of ours beside torch and torch.compile, as fractions of the machine's limits.

Each provider's calls go through several sets of tensors in turns, together larger than the last
cache where there is memory for that; on a GPU they are captured in a CUDA graph, on a CPU ours are
recorded. See benchmarks/README.md for what a row means.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import torch

from benchmarks.cases.kernel_case import Call, Case, Place, Set
from benchmarks.cases.kernels_blocks import cases as cases_blocks
from benchmarks.cases.kernels_cpu import cases as cases_cpu
from benchmarks.cases.kernels_cuda import cases
from benchmarks.cases.kernels_depthwise import cases as cases_depthwise
from benchmarks.report.rows import KernelRow, write_rows
from decoding import _kernels
from decoding.compare.bounds import WIDTHS
from decoding.compare.environment import Environment, environment
from decoding.compare.results import Ceilings
from decoding.compare.roofline import (
    KINDS,
    capture,
    measure,
    measure_gpu,
    seconds_of,
)
from decoding.compare.timing import percentile

DTYPES = {name: getattr(torch, name) for name in WIDTHS}
# Bytes of all sets of a case: twice the L2 cache of an H200, or the L3 cache of a CPU.
COLD = {"cuda": 128 << 20, "cpu": 64 << 20}
WARM = 4 << 20  # of a case whose numbers another kernel has just written
MOST_SETS = 256
ROUND = 2 << 30  # bytes that a round of calls moves, if that takes no more than
MOST_CALLS = 256
REPEATS = 7
SECONDS = 0.03  # of a round on a CPU, or one call of each set


@dataclass(frozen=True)
class Run:
    place: Place
    ceilings: Mapping[str, Ceilings]  # by type
    where: Environment


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    run, chosen = prepared(options)
    rows: list[KernelRow] = []
    with torch.inference_mode():
        for case in chosen:
            if options.kernel and case.kernel not in options.kernel:
                continue
            found = compare(run, case)
            print(console(found), flush=True)
            rows += found
            if options.output:
                write_rows(rows, options.output)
    return 0


def prepared(options: argparse.Namespace) -> tuple[Run, Iterator[Case]]:
    """Activations are float32 on a CPU, and of the weights' type on a GPU."""
    where = environment(options.device)
    if options.device == "cpu":
        warnings.filterwarnings("ignore", "torch.quantize|.*quantized tensor")  # deprecated
        # torch's tensors, ours too, lie in pages of 2 MB, as the engine's memory does.
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
        place = Place("cpu", torch.float32, options.threads)
        dtypes = [DTYPES[name] for name in options.dtype or KINDS]
        return Run(place, measure(options.threads), where), chain(
            cases_cpu(place, dtypes), cases_blocks(place), cases_depthwise(place)
        )
    [name] = options.dtype or ["float16"]
    place = Place(options.device, DTYPES[name], threads=1)
    ceilings = {name: measure_gpu(place.dtype, options.device)}
    return Run(place, ceilings, where), chain(
        cases(place), cases_blocks(place), cases_depthwise(place)
    )


def compare(run: Run, case: Case) -> list[KernelRow]:
    """Checks and times one case. Raises RuntimeError when results differ."""
    sets = [case.make() for _ in range(sets_of(case, run.place))]
    if case.prepare:
        case.prepare(sets[0])
    errors = differences(case, sets[0])
    rounds = {
        name: round_of(run.place, case, name, call, sets) for name, call in case.providers.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in rounds}
    for repeat in range(REPEATS + 1):
        for name, timed in rounds.items():
            for each in sets:
                if case.reset:
                    case.reset(each)
            took = timed()
            if repeat > 0:  # the first is the warm-up
                seconds[name].append(took)
    return [make_row(run, case, name, seconds[name], errors[name]) for name in rounds]


def sets_of(case: Case, place: Place) -> int:
    device = place.device.partition(":")[0]
    if device == "cpu" and case.warm:
        return 1
    return min(math.ceil((WARM if case.warm else COLD[device]) / case.moved), MOST_SETS)


def differences(case: Case, tensors: Set) -> dict[str, float]:
    """Of each provider's result to the reference; relative to its largest number."""
    results = {}
    for name, call in case.providers.items():
        if case.reset:
            case.reset(tensors)
        result = call(tensors)
        if name in case.comparable:
            result = case.comparable[name](result)
        results[name] = result.float()
    if case.reference:
        reference = case.reference(tensors).float()
    else:
        reference = next(y for name, y in results.items() if name != "ours")
    largest = reference.abs().max()
    errors = {name: float((y - reference).abs().max() / largest) for name, y in results.items()}
    for name, error in errors.items():
        if not error < 0.02:
            raise RuntimeError(f"{case.kernel} {case.shape}: {name} is off by {error}")
    return errors


def round_of(
    place: Place, case: Case, name: str, call: Call, sets: Sequence[Set]
) -> Callable[[], float]:
    """What runs many calls and returns the seconds of one."""
    if place.device == "cpu":
        if name != "ours":
            return lambda: repeated(lambda: [call(each) for each in sets]) / len(sets)
        recording = _kernels.Recording(threads=place.threads)
        with recording:
            for each in sets:
                call(each)
        return lambda: repeated(recording.replay) / len(sets)
    calls = min(max(ROUND / case.moved, 3), MOST_CALLS)
    calls = math.ceil(calls / len(sets)) * len(sets)
    kept = [call(sets[0])] * len(sets)  # results take turns too

    def go_through() -> Iterator[None]:
        for i in range(calls):
            kept[i % len(sets)] = call(sets[i % len(sets)])
            yield

    graph = capture(go_through())
    return lambda: seconds_of(graph.replay) / calls


def repeated(call: Callable[[], object]) -> float:
    """Seconds of one of as many calls as take SECONDS."""
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < SECONDS:
        call()
        calls += 1
    return (time.perf_counter() - begin) / calls


def make_row(
    run: Run, case: Case, provider: str, seconds: Sequence[float], error: float
) -> KernelRow:
    p20, p50, p80 = (1e6 * percentile(seconds, percent) for percent in (20, 50, 80))
    dtype = str(case.dtype or run.place.dtype).removeprefix("torch.")
    ceilings = run.ceilings[dtype]
    cached = case.warm and run.place.device == "cpu"
    bandwidth = ceilings.cached if cached else ceilings.bandwidth
    bound = max(case.moved / bandwidth, case.operations / ceilings.flops, ceilings.launch)
    return KernelRow(
        kernel=case.kernel,
        shape=case.shape,
        provider=provider,
        version="" if provider == "ours" else f"torch {torch.__version__}",
        dtype=dtype,
        isa=run.place.isa if run.place.device == "cpu" else "",
        threads=run.place.threads if run.place.device == "cpu" else 0,
        repeats=len(seconds),
        p20=p20,
        p50=p50,
        p80=p80,
        unit="us",
        megabytes=case.moved / 1e6,
        operations=case.operations / 1e6,
        rate=case.moved / p50 / 1e3,
        roofline_bound=1e6 * bound,
        bandwidth=bandwidth / 1e9,
        flops=ceilings.flops / 1e12,
        launch=1e6 * ceilings.launch,
        error=error,
        **asdict(run.where),
    )


def console(rows: Sequence[KernelRow]) -> str:
    """One aligned line for each row; ours ends in how many times faster than each peer it is."""
    lines = []
    for row in rows:
        parts = [
            f"{row.kernel:16}  {row.dtype:8}  {row.shape:26}  {row.provider:18}"
            f" {row.p50:9.2f} us [{row.p20:.2f} {row.p80:.2f}]",
            f"{row.rate:6.0f} GB/s",
            f"{row.roofline_share:4.0%} of the roofline",
        ]
        if row.provider == "ours":
            peers = [peer for peer in rows if peer.provider != "ours"]
            parts += [f"{peer.p50 / row.p50:.2f}x {peer.provider}" for peer in peers]
        lines.append(" | ".join(parts))
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, or a GPU as torch names it")
    parser.add_argument("--kernel", nargs="+", help="names of contracts; default all")
    parser.add_argument(
        "--dtype", nargs="+", choices=DTYPES, help="default float16; of weights on a CPU, all"
    )
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--output", type=Path, help="a CSV file for the rows")
    options = parser.parse_args(arguments)
    if options.device != "cpu" and len(options.dtype or []) > 1:
        parser.error("one --dtype on a GPU")
    return options


if __name__ == "__main__":
    sys.exit(main())
