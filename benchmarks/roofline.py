"""What the machine allows: measured ceilings, and the least time that a decoding step can take.

`python -m benchmarks.roofline` prints the ceilings with one thread and with more.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy

from benchmarks.workloads import SOURCE, STEPS, Shape, Workload

READ_BYTES = 256 << 20  # for each thread, far more than a last-level cache
ROUNDS = 10_000_000
TRIALS = 7


@dataclass(frozen=True)
class Ceilings:
    """Bytes a second from memory and float32 operations a second, of `threads` together.

    NaN where there was no C compiler to measure them with.
    """

    threads: int
    bandwidth: float
    flops: float


def measure(threads: int) -> Ceilings:
    """Takes a second or two, best of several trials: a ceiling is what the machine can do."""
    compiler = shutil.which("cc")
    if compiler is None:
        return Ceilings(threads, math.nan, math.nan)
    with tempfile.TemporaryDirectory() as directory:
        library = compile_loops(compiler, Path(directory))
        block = numpy.ones(READ_BYTES // 4, numpy.float32)
        blocks = [block, *(block.copy() for _ in range(threads - 1))]
        read_seconds = best(
            [lambda b=b: library.read_all(b.ctypes.data, b.size) for b in blocks]  # type: ignore[misc]
        )
        add_seconds = best([lambda: library.multiply_add(ROUNDS, 0.5, 1.0)] * threads)
        return Ceilings(
            threads,
            bandwidth=threads * READ_BYTES / read_seconds,
            flops=threads * 2 * library.multiply_adds_per_round() * ROUNDS / add_seconds,
        )


def compile_loops(compiler: str, directory: Path) -> ctypes.CDLL:
    source, output = Path(__file__).with_name("roofline.c"), directory / "roofline.so"
    options = ["-O3", "-march=native", "-ffp-contract=fast", "-funroll-loops", "-shared", "-fPIC"]
    subprocess.run([compiler, *options, str(source), "-o", str(output)], check=True)
    library = ctypes.CDLL(str(output))
    library.read_all.argtypes = [ctypes.c_void_p, ctypes.c_long]
    library.multiply_add.argtypes = [ctypes.c_long, ctypes.c_float, ctypes.c_float]
    return library


def best(jobs: list[Callable[[], object]]) -> float:
    """Seconds until all jobs, each in a thread, are done; the least of the trials.

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


def floor(workload: Workload, shape: Shape, ceilings: Ceilings) -> float:
    """Seconds that a step takes at least in float32, the encoder or prompt spread over the steps.

    Every weight is read once a step; K/V of source and prompt once for each sentence, generated
    K/V once for each row; logits stay in cache.
    """
    w, sentences, rows = workload, shape.batch, shape.batch * shape.beams
    cross = 1 if w.has_encoder else 0
    prompt = 0 if w.has_encoder else SOURCE
    generated = (STEPS + 1) / 2  # mean length of a row so far
    block = 2 * w.hidden * w.feed_forward
    layers = w.layers * ((4 + 2 * cross) * w.hidden**2 + block)
    weights = layers + w.vocabulary * w.hidden
    kept = w.layers * w.hidden * (generated * rows + (prompt + cross * SOURCE) * sentences)
    attended = generated + prompt + cross * SOURCE
    step = seconds(
        ceilings,
        values=weights + 2 * kept,
        operations=2 * weights * rows + 4 * w.hidden * w.layers * attended * rows,
    )
    # All but the last prompt token, or the encoder and the K/V that the decoder takes from it.
    if w.has_encoder:
        first = w.encoder_layers * (4 * w.hidden**2 + block) + w.layers * 2 * w.hidden**2
        tokens = SOURCE * sentences
    else:
        first, tokens = layers, (SOURCE - 1) * sentences
    return step + seconds(ceilings, values=first, operations=2 * first * tokens) / STEPS


def seconds(ceilings: Ceilings, *, values: float, operations: float) -> float:
    """Reading float32 values and computing, whichever takes longer."""
    return max(4 * values / ceilings.bandwidth, operations / ceilings.flops)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.roofline", description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    for threads in range(1, parser.parse_args().threads + 1):
        found = measure(threads)
        print(
            f"{threads} threads: read {found.bandwidth / 1e9:6.1f} GB/s, "
            f"float32 {found.flops / 1e9:7.1f} GFLOP/s"
        )


if __name__ == "__main__":
    main()
