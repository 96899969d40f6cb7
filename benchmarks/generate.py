"""Whole generate() calls of Hugging Face, CTranslate2 and ours on the same random weights.

See benchmarks/README.md for what a row means.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.baselines import ENGINES, convert, missing
from benchmarks.environment import Environment, environment
from benchmarks.harness import Worker, interleaved, percentile
from benchmarks.report import Row, console, markdown, write_rows
from benchmarks.roofline import Ceilings, floor, measure
from benchmarks.workloads import STEPS, WORKLOADS, Shape, random_ids, save


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    providers = []
    for name in options.providers:
        absent = missing(ENGINES[name])
        if absent:
            print(f"{name}: missing, {' and '.join(absent)} not installed", file=sys.stderr)
        else:
            providers.append(name)
    if not providers:
        return 1
    if os.getloadavg()[0] > 0.5:
        load = f"{os.getloadavg()[0]:.1f}"
        print(f"The machine is not idle (load {load}): times are noise.", file=sys.stderr)
    ceilings = measure(options.threads)
    if math.isnan(ceilings.bandwidth):
        print("cc: missing, so the machine's ceilings and floors are not known", file=sys.stderr)
    run = Run(providers, options.threads, options.repeats, ceilings, environment())
    rows: list[Row] = []
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            save(WORKLOADS[model], Path(folder))
            if "ctranslate2" in providers:
                convert(Path(folder))
            for shape in options.shapes:
                found = compare(run, model, shape, Path(folder))
                print(console(found), flush=True)
                rows += found
    print(f"\n{markdown(rows)}")
    if options.output:
        write_rows(rows, options.output)
    return 0


@dataclass(frozen=True)
class Run:
    """What all rows of one run have in common."""

    providers: Sequence[str]
    threads: int
    repeats: int
    ceilings: Ceilings
    where: Environment


def compare(run: Run, model: str, shape: Shape, directory: Path) -> list[Row]:
    """Checks and times one shape. Raises RuntimeError when the engines do not agree."""
    workload = WORKLOADS[model]
    ids = random_ids(workload, shape.batch)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(ENGINES[name], directory, workload, run.threads))
            for name in run.providers
        ]
        tokens = {worker.name: worker.run_once(ids, shape.beams) for worker in workers}
        equal = agreement(tokens)
        seconds = interleaved(workers, run.repeats)
        return [
            make_row(run, model, shape, worker, seconds[worker.name], equal[worker.name])
            for worker in workers
        ]


def make_row(
    run: Run, model: str, shape: Shape, worker: Worker, seconds: Sequence[float], equal: int
) -> Row:
    steps = [1e3 * call / STEPS for call in seconds]
    p20, p50, p80 = (percentile(steps, percent) for percent in (20, 50, 80))
    memory = worker.memory()
    return Row(
        what="generate",
        model=model,
        shape=str(shape),
        provider=worker.name,
        version=worker.loaded.version,
        dtype="float32",
        isa=worker.loaded.isa,
        threads=run.threads,
        repeats=run.repeats,
        p20=p20,
        p50=p50,
        p80=p80,
        unit="ms/step",
        rate=1e3 * shape.batch / p50,
        floor=1e3 * floor(WORKLOADS[model], shape, run.ceilings),
        bandwidth=run.ceilings.bandwidth / 1e9,
        flops=run.ceilings.flops / 1e9,
        memory=memory.running / 1e6,
        loading=memory.loading / 1e6,
        equal=f"{equal}/{shape.batch}",
        **asdict(run.where),
    )


def agreement(tokens: dict[str, list[list[int]]]) -> dict[str, int]:
    """How many sentences got the tokens that Hugging Face (or else the first engine) gave.

    Raises RuntimeError when an engine took another number of steps, or when ours differs from
    Hugging Face in any token: then there is nothing to compare.
    """
    reference = "huggingface" if "huggingface" in tokens else next(iter(tokens))
    for name, rows in tokens.items():
        if any(len(row) != STEPS for row in rows):
            lengths = sorted({len(row) for row in rows})
            raise RuntimeError(f"{name} generated {lengths} tokens, not {STEPS}")
        differs = [i for i, row in enumerate(rows) if row != tokens[reference][i]]
        if name == "ours" and reference == "huggingface" and differs:
            raise RuntimeError(f"ours and {reference} give other tokens for sentences {differs}")
    return {name: sum(map(list.__eq__, rows, tokens[reference])) for name, rows in tokens.items()}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate", description=__doc__)
    parser.add_argument("--device", choices=["cpu"], default="cpu")
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--providers", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument(
        "--shapes",
        nargs="+",
        type=Shape.parse,
        default=[Shape(1, 1), Shape(1, 4), Shape(8, 4)],
        help="batch x beams, default 1x1 1x4 8x4",
    )
    parser.add_argument("--threads", type=int, default=2, help="of every engine")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls of each engine")
    parser.add_argument("--output", type=Path, help="a CSV file for the rows")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
