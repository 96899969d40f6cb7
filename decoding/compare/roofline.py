"""Measures the ceilings of a machine: memory bandwidth, arithmetic, dependent launches.

`python -m decoding.compare.roofline` prints the ceilings with one thread and with more, or with
`--device cuda` those of a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy

from decoding.compare.results import Ceilings

KINDS = ("float32", "bfloat16", "int8")  # of weights on a CPU
READ_BYTES = 256 << 20  # for each thread, far more than a last-level cache
CACHED_BYTES = 256 << 10  # for each thread, less than a second-level cache
LINE = 64  # bytes of a cache line
ROUNDS = 5_000_000
TRIALS = 7

GPU_BYTES = 2 << 30  # copied; far more than an L2
GPU_SIZE = 8192  # of the matrices that are multiplied
GPU_LAUNCHES = 500  # in the graph of dependent kernels


def measure(threads: int) -> dict[str, Ceilings]:
    """The ceilings of a CPU's threads together, for each type of weight; NaN without a C compiler.
    It takes some two seconds, and keeps the best of several trials, as a ceiling is a peak."""
    compiler = shutil.which("cc")
    if compiler is None:
        return dict.fromkeys(KINDS, Ceilings(math.nan, math.nan))
    with tempfile.TemporaryDirectory() as directory:
        library = compile_loops(compiler, Path(directory))
    bandwidth, cached = (
        read_rate(library, threads, size, times)
        for size, times in ((READ_BYTES, 1), (CACHED_BYTES, 200))
    )
    return {
        kind: Ceilings(bandwidth, 2 * add_rate(library, threads, kind), cached) for kind in KINDS
    }


def read_rate(library: ctypes.CDLL, threads: int, size: int, times: int) -> float:
    """Bytes a second that `threads` read, each `size` bytes of its own `times` over."""
    blocks = [numpy.ones(size // 4 + LINE // 4, numpy.float32) for _ in range(threads)]
    begins = [block.ctypes.data + -block.ctypes.data % LINE for block in blocks]
    jobs = [partial(library.read_all, begin, size // 4, times) for begin in begins]
    return threads * size * times / best(jobs)


def add_rate(library: ctypes.CDLL, threads: int, kind: str) -> float:
    """Multiply-adds a second of `threads` together."""
    add = getattr(library, kind)
    count = add(1, 0.5, ctypes.byref(ctypes.c_float())) * ROUNDS
    sinks = [ctypes.c_float() for _ in range(threads)]
    jobs = [partial(add, ROUNDS, 0.5, ctypes.byref(sink)) for sink in sinks]
    return float(threads * count / best(jobs))


def measure_gpu(dtype: Any, device: str = "cuda") -> Ceilings:
    """The ceilings of a GPU with weights of a torch dtype. float32 uses no tensor cores, which
    would round it to TF32."""
    import torch

    with torch.cuda.device(device):
        # Random numbers, since zeros cost less energy and so run at a higher clock.
        source, target = torch.randn(2, GPU_BYTES // 4, device=device)
        # Not in a graph, where a copy may become a copy engine's, which is slower.
        copy_seconds = min(seconds_of(lambda: target.copy_(source)) for _ in range(TRIALS))
        a, b = torch.randn(2, GPU_SIZE, GPU_SIZE, device=device).to(dtype)
        product_seconds = best_of_graph(lambda: torch.mm(a, b), 3)
        few = torch.zeros(32, device=device)
        launch_seconds = best_of_graph(lambda: few.add_(1), GPU_LAUNCHES)
    return Ceilings(
        bandwidth=2 * GPU_BYTES / copy_seconds,
        flops=2 * GPU_SIZE**3 / product_seconds,
        launch=launch_seconds,
    )


def best_of_graph(call: Callable[[], object], times: int) -> float:
    """Seconds of one of `times` calls in a CUDA graph, the least of the trials."""
    call()
    graph = capture(call() for _ in range(times))
    return min(seconds_of(graph.replay) for _ in range(TRIALS)) / times


def capture(calls: Iterable[object]) -> Any:
    """A CUDA graph of the kernels that iterating over `calls` launches."""
    import torch

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in calls:
            pass
    return graph


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds that a call takes on the GPU."""
    import torch

    begin, end = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    begin.record()
    call()
    end.record()
    end.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / 1e3


def compile_loops(compiler: str, directory: Path) -> ctypes.CDLL:
    source, output = Path(__file__).with_name("roofline.c"), directory / "roofline.so"
    options = ["-O3", "-march=native", "-ffp-contract=fast", "-funroll-loops", "-shared", "-fPIC"]
    command = [compiler, *options, str(source), "-o", str(output)]
    # Where its files go with the folder, also those of a compiler that Ctrl-C kills.
    subprocess.run(command, check=True, env={**os.environ, "TMPDIR": str(directory)})
    library = ctypes.CDLL(str(output))
    library.read_all.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
    library.read_all.restype = ctypes.c_float
    for kind in KINDS:
        add = getattr(library, kind)
        add.argtypes = [ctypes.c_long, ctypes.c_float, ctypes.POINTER(ctypes.c_float)]
        add.restype = ctypes.c_long
    return library


def best(jobs: Sequence[Callable[[], object]]) -> float:
    """Seconds until all jobs, each in a thread, are done, the least of the trials.

    Calls through ctypes release the GIL.
    """
    seconds = []
    with ThreadPoolExecutor(len(jobs)) as pool:
        for _ in range(TRIALS):
            begin = time.perf_counter()
            for done in [pool.submit(job) for job in jobs]:
                done.result()
            seconds.append(time.perf_counter() - begin)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m decoding.compare.roofline", description=__doc__
    )
    parser.add_argument("--device", default="cpu", help="cpu, or a GPU as torch names it")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU, at most")
    options = parser.parse_args()
    if options.device != "cpu":
        return print_gpu(options.device)
    for threads in range(1, options.threads + 1):
        found = measure(threads)
        flops = (f"{kind} {ceilings.flops / 1e9:.0f}" for kind, ceilings in found.items())
        memory = found["float32"]
        print(
            f"{threads} threads: read {memory.bandwidth / 1e9:.1f} GB/s, from the caches "
            f"{memory.cached / 1e9:.0f} GB/s; {', '.join(flops)} GFLOP/s"
        )


def print_gpu(device: str) -> None:
    import torch

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found = measure_gpu(dtype, device)
        print(
            f"{str(dtype).removeprefix('torch.')}: copy {found.bandwidth / 1e9:6.0f} GB/s, "
            f"product {found.flops / 1e12:6.1f} TFLOP/s, "
            f"dependent launch {found.launch * 1e6:.2f} us"
        )


if __name__ == "__main__":
    main()
