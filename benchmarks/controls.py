"""What controls add to a decoding step: whole generate() calls of ours with and without them.

python -m benchmarks.controls [--device cuda --dtype float16] [--shape 8x4] [--output FILE]
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import decoding
from benchmarks.cases.workloads import SEED, STEPS, WORKLOADS, Shape, random_ids, random_model
from benchmarks.report.rows import write_rows
from decoding.compare.environment import environment
from decoding.compare.timing import percentile

WORDS = 100  # that must not occur, half of them of two tokens


@dataclass(frozen=True)
class ControlRow:
    """Milliseconds of a step with the controls, and the share that they add to one without."""

    model: str
    shape: str
    controls: str
    dtype: str
    threads: int
    repeats: int
    p20: float
    p50: float
    p80: float
    unit: str
    added: float
    device: str
    flags: str
    commit: str
    date: str


def controls(vocabulary: int) -> dict[str, dict[str, Any]]:
    draw = random.Random(SEED)
    words = [[draw.randrange(2, vocabulary) for _ in range(1 + i % 2)] for i in range(WORDS)]
    each: dict[str, dict[str, Any]] = {
        "repetition_penalty": {"repetition_penalty": 1.2},
        "no_repeat_ngram_size": {"no_repeat_ngram_size": 3},
        "bad_words_ids": {"bad_words_ids": words},
    }
    together = {name: value for options in each.values() for name, value in options.items()}
    return {"none": {}, **each, "all three": together}


def measure(options: argparse.Namespace) -> list[ControlRow]:
    """All of them in turns, so that a machine that slows down does so for each."""
    workload, shape = WORKLOADS[options.model], options.shape
    device = {"threads": options.threads} if options.device == "cpu" else {}
    model = decoding.load(random_model(workload), options.device, options.dtype, **device)
    ids = random_ids(workload, shape.batch)
    call = {"num_beams": shape.beams, "min_new_tokens": STEPS, "max_new_tokens": STEPS}
    kinds = controls(workload.vocabulary)
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(options.repeats + 1):
        for name, more in kinds.items():
            begin = time.perf_counter()
            model.generate(ids, **call, **more)
            if turn > 0:  # the first is the warm-up
                times[name].append(1e3 * (time.perf_counter() - begin) / STEPS)
    plain, where = percentile(times["none"], 50), environment(options.device)
    rows = []
    for name, taken in times.items():
        p20, p50, p80 = (percentile(taken, percent) for percent in (20, 50, 80))
        rows.append(
            ControlRow(
                model=options.model,
                shape=str(shape),
                controls=name,
                dtype=options.dtype,
                threads=model.threads,
                repeats=options.repeats,
                p20=p20,
                p50=p50,
                p80=p80,
                unit="ms/step",
                added=p50 / plain - 1,
                **asdict(where),
            )
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--model", default="marian-base", choices=WORKLOADS)
    parser.add_argument("--shape", type=Shape.parse, default=Shape(8, 4), help="batch x beams")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--output", type=Path, help="a CSV file for the rows")
    options = parser.parse_args(arguments)
    rows = measure(options)
    for row in rows:
        print(f"{row.controls:22} {row.p50:8.4f} ms/step  {row.added:+.1%}")
    if options.output:
        write_rows(rows, options.output)


if __name__ == "__main__":
    main()
