"""How long a step behind a long prompt takes, by the type of keys and values, on a GPU.

python -m benchmarks.kv_cache [--model llama-1.2G] [--shapes 8x4 32x1] [--prompt 4096]

The time of a step is that of STEPS of them, less that of one. Each row reads a prompt of its own,
which the beams of a sentence share.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

import decoding
from benchmarks.cases.workloads import WORKLOADS, Shape, random_model
from benchmarks.report.rows import show_and_write
from decoding.compare.environment import environment
from decoding.generation import batching

STEPS = 65


@dataclass(frozen=True)
class CacheRow:
    """One type of keys and values in one shape. step: milliseconds, the median of `repeats`.
    megabytes: of pages for such rows."""

    model: str
    dtype: str
    kv_cache: str
    shape: str
    prompt: int
    repeats: int
    step: float
    megabytes: float
    device: str
    flags: str
    commit: str
    date: str

    def __str__(self) -> str:
        return (
            f"{self.model} {self.dtype} K/V {self.kv_cache:8} {self.shape:6} "
            f"prompt {self.prompt}: {self.step:.3f} ms a step, {self.megabytes:.0f} MB of pages"
        )


def measure(options: argparse.Namespace) -> Iterator[CacheRow]:
    workload = WORKLOADS[options.model]
    theirs = random_model(workload)
    theirs.config.max_position_embeddings = options.prompt + 2 * STEPS
    draw = torch.Generator().manual_seed(0)
    for kept in options.kv_cache_dtype:
        model = decoding.load(theirs, "cuda", options.dtype, kv_cache_dtype=kept)
        for shape in options.shapes:
            batching.TOKENS = shape.batch * options.prompt  # all rows step together
            ids = torch.randint(
                2, workload.vocabulary - 1, (shape.batch, options.prompt), generator=draw
            )
            yield CacheRow(
                model=options.model,
                dtype=options.dtype,
                kv_cache=kept,
                shape=str(shape),
                prompt=options.prompt,
                repeats=options.repeats,
                step=time_of_step(model, ids, shape.beams, options.repeats),
                megabytes=pages(model, shape, options.prompt) / 1e6,
                **asdict(environment("cuda")),
            )
        model.close()


def pages(model: decoding.Model, shape: Shape, prompt: int) -> int:
    """Bytes."""
    limits = decoding.Limits(
        batch=shape.batch, beams=shape.beams, source=0, prompt=prompt, target=STEPS
    )
    return model.memory_plan(limits).parts()["keys and values"]


def time_of_step(model: decoding.Model, ids: torch.Tensor, beams: int, repeats: int) -> float:
    """Milliseconds."""

    def seconds(steps: int) -> float:
        begin = time.perf_counter()
        model.generate(ids, num_beams=beams, max_new_tokens=steps, eos_token_id=None)
        return time.perf_counter() - begin

    for steps in (STEPS, 1, STEPS, 1):  # memory, graphs
        seconds(steps)
    return median(seconds(STEPS) - seconds(1) for _ in range(repeats)) / (STEPS - 1) * 1e3


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kv_cache", description=__doc__)
    parser.add_argument("--model", default="llama-1.2G", choices=WORKLOADS)
    parser.add_argument("--dtype", default="float16", choices=["float16", "bfloat16", "int8"])
    parser.add_argument("--kv-cache-dtype", nargs="+", default=["auto", "fp8"], help="one or more")
    parser.add_argument(
        "--shapes",
        nargs="+",
        type=Shape.parse,
        default=[Shape(8, 4), Shape(32, 1)],
        help="batch x beams, default 8x4 32x1",
    )
    parser.add_argument("--prompt", type=int, default=4096, help="tokens (default: 4096)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, help="a CSV file for the rows")
    options = parser.parse_args(arguments)
    show_and_write(measure(options), options.output)


if __name__ == "__main__":
    main()
