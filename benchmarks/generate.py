"""Whole generate() calls of Hugging Face, CTranslate2 and ours on the same random weights.

See benchmarks/README.md for what a row means.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.baselines import ENGINES, CTranslate2, Engine, Settings, convert, missing
from benchmarks.environment import Environment, environment
from benchmarks.harness import Worker, interleaved, percentile
from benchmarks.profile import print_profile
from benchmarks.report import Row, console, markdown, write_rows
from benchmarks.roofline import KINDS, WIDTHS, Ceilings, floor, measure, measure_gpu
from benchmarks.workloads import STEPS, WORKLOADS, Shape, random_ids, save

# OpenMP's threads of one engine go on spinning for a while after a call (200 ms in LLVM's runtime).
# The next engine's turn begins when they sleep.
PAUSE = 0.3
TURN = 0.1  # seconds on a GPU for which a fast engine repeats its call, each time it has its turn
MOST_CALLS = 10  # of such a turn
DEFAULTS = {  # models, shapes, types
    "cpu": (["marian-base", "gpt2-124M"], "1x1 1x4 8x4", list(KINDS)),
    "cuda": (list(WORKLOADS), "1x1 1x4 8x4 32x4 128x4", ["float16"]),
}


@dataclass(frozen=True)
class Contender:
    """An engine and what it is loaded with."""

    engine: type[Engine]
    settings: Settings


@dataclass(frozen=True)
class Run:
    """What all rows of one run have in common. ceilings: of each type."""

    contenders: Sequence[Contender]
    device: str
    threads: int
    repeats: int
    ceilings: Mapping[str, Ceilings]
    where: Environment


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    settings = [Settings(options.device, dtype, options.threads) for dtype in options.dtype]
    if options.profile:
        profile(options, settings)
        return 0
    run = Run(
        contenders=[
            Contender(engine, each)
            for each in settings
            for engine in available(options.providers)
            if each.dtype in engine.dtypes[options.device]
        ],
        device=options.device,
        threads=options.threads,
        repeats=options.repeats,
        ceilings=ceilings(options),
        where=environment(options.device),
    )
    if not run.contenders:
        print("no provider computes in such a type", file=sys.stderr)
        return 1
    rows: list[Row] = []
    for model in options.models:
        with saved(model, run.contenders) as directory:
            for found in compare(run, model, options.shapes, directory):
                print(console(found), flush=True)
                rows += found
                if options.output:
                    write_rows(rows, options.output)
    print(f"\n{markdown(rows)}")
    return 0


def profile(options: argparse.Namespace, settings: Sequence[Settings]) -> None:
    for model in options.models:
        with saved(model, []) as directory:
            for each in settings:
                print_profile(directory, model, WORKLOADS[model], each, options.shapes)


def available(names: Sequence[str]) -> list[type[Engine]]:
    """Those that are installed; the others are named."""
    found = []
    for name in names:
        absent = missing(ENGINES[name])
        if absent:
            print(f"{name}: missing, {' and '.join(absent)} not installed", file=sys.stderr)
        else:
            found.append(ENGINES[name])
    return found


def ceilings(options: argparse.Namespace) -> Mapping[str, Ceilings]:
    if options.device != "cpu":
        import torch

        return {
            dtype: measure_gpu(getattr(torch, dtype), options.device) for dtype in options.dtype
        }
    if os.getloadavg()[0] > 0.5:
        load = f"{os.getloadavg()[0]:.1f}"
        print(f"The machine is not idle (load {load}): times are noise.", file=sys.stderr)
    found = measure(options.threads)
    if math.isnan(found["float32"].bandwidth):
        print("cc: missing, so the machine's ceilings and floors are not known", file=sys.stderr)
    return found


@contextmanager
def saved(model: str, contenders: Sequence[Contender]) -> Iterator[Path]:
    """A directory with the model, in each contender's form."""
    with tempfile.TemporaryDirectory() as folder:
        save(WORKLOADS[model], Path(folder))
        for contender in contenders:
            if contender.engine is CTranslate2:
                convert(Path(folder), contender.settings.dtype)
        yield Path(folder)


def compare(run: Run, model: str, shapes: Sequence[Shape], directory: Path) -> Iterator[list[Row]]:
    """The rows of each shape. On the CPU each shape has workers of its own, whose memory is then
    that shape's alone; on a GPU they stay, since loading takes longer than all calls."""
    if run.device == "cpu":
        for shape in shapes:
            with loaded(run, model, [shape], directory) as workers:
                yield measured(run, model, shape, workers)
    else:
        with loaded(run, model, shapes, directory) as workers:
            for shape in shapes:
                yield measured(run, model, shape, workers)


@contextmanager
def loaded(
    run: Run, model: str, shapes: Sequence[Shape], directory: Path
) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(each.engine, directory, WORKLOADS[model], each.settings))
            for each in run.contenders
            if any(map(each.engine.serves, shapes))
        ]
        for worker in workers:
            worker.load()
        yield workers


def measured(run: Run, model: str, shape: Shape, workers: Sequence[Worker]) -> list[Row]:
    """Checks and times one shape. Raises RuntimeError when the engines do not agree."""
    workers = [worker for worker in workers if worker.engine.serves(shape)]
    ids = random_ids(WORKLOADS[model], shape.batch)
    tokens = {worker: worker.run_once(ids, shape) for worker in workers}
    equal = agreement(tokens, shape)
    calls = dict.fromkeys(workers, 1)
    if run.device != "cpu":
        for worker in workers:
            calls[worker] = min(MOST_CALLS, math.ceil(TURN / worker.time(1)[0]))
    pause = PAUSE if run.device == "cpu" else 0.0
    seconds = interleaved(workers, run.repeats, calls, pause)
    return [
        make_row(run, model, shape, worker, seconds[worker], equal[worker]) for worker in workers
    ]


def make_row(
    run: Run, model: str, shape: Shape, worker: Worker, seconds: Sequence[float], equal: str
) -> Row:
    steps = [1e3 * call / STEPS for call in seconds]
    p20, p50, p80 = (percentile(steps, percent) for percent in (20, 50, 80))
    memory, ceilings = worker.memory(), run.ceilings[worker.dtype]
    return Row(
        what="generate",
        model=model,
        shape=str(shape),
        provider=worker.name,
        version=worker.loaded.version,
        dtype=worker.dtype,
        isa=worker.loaded.isa,
        threads=run.threads if run.device == "cpu" else 0,
        repeats=run.repeats,
        p20=p20,
        p50=p50,
        p80=p80,
        unit="ms/step",
        rate=1e3 * shape.batch / p50,
        floor=1e3 * floor(WORKLOADS[model], shape, ceilings, worker.dtype),
        bandwidth=ceilings.bandwidth / 1e9,
        flops=ceilings.flops / 1e9,
        stage=ceilings.stage * 1e6,
        nodes=worker.nodes(),
        memory=memory.running / 1e6,
        loading=memory.loading / 1e6,
        equal=equal,
        **asdict(run.where),
    )


def agreement(tokens: Mapping[Worker, list[list[int]]], shape: Shape) -> dict[Worker, str]:
    """How many sentences got the tokens that Hugging Face (or else the first engine) gave, in
    float32 where the run has it.

    Raises RuntimeError when an engine took another number of steps, or when ours differs from
    Hugging Face in any token in float32: then there is nothing to compare. What is drawn differs.
    """
    for worker, rows in tokens.items():
        if any(len(row) != STEPS for row in rows):
            lengths = sorted({len(row) for row in rows})
            raise RuntimeError(f"{worker.name} generated {lengths} tokens, not {STEPS}")
    if shape.sample:
        return dict.fromkeys(tokens, "")
    reference = min(tokens, key=lambda w: (w.name != "huggingface", w.dtype != "float32"))
    found = {}
    for worker, rows in tokens.items():
        equal = sum(map(list.__eq__, rows, tokens[reference]))
        exact = {worker.dtype, reference.dtype} == {"float32"} and worker.name == "ours"
        if exact and reference.name == "huggingface" and equal < shape.batch:
            raise RuntimeError(
                f"ours and {reference.name} agree in {equal} of {shape.batch} sentences"
            )
        found[worker] = f"{equal}/{shape.batch}"
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate", description=__doc__)
    parser.add_argument("--device", choices=list(DEFAULTS), default="cpu")
    parser.add_argument(
        "--dtype",
        nargs="+",
        choices=list(WIDTHS),
        help="default float32 bfloat16 int8, on a GPU float16; who has no such type is left out",
    )
    parser.add_argument("--models", nargs="+", choices=WORKLOADS)
    parser.add_argument(
        "--providers",
        nargs="+",
        choices=ENGINES,
        default=["huggingface", "ctranslate2", "ours"],
        help="huggingface-static only if asked for: it compiles for minutes",
    )
    parser.add_argument(
        "--shapes",
        nargs="+",
        type=Shape.parse,
        help="batch x beams, default 1x1 1x4 8x4, on a GPU 32x4 and 128x4 too; 32s samples",
    )
    parser.add_argument("--threads", type=int, default=2, help="of every engine")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each engine")
    parser.add_argument("--output", type=Path, help="a CSV file for the rows")
    parser.add_argument(
        "--profile", action="store_true", help="where our own step's time goes on a GPU, by kernel"
    )
    options = parser.parse_args(arguments)
    models, shapes, dtypes = DEFAULTS[options.device]
    options.models = options.models or models
    options.shapes = options.shapes or [Shape.parse(shape) for shape in shapes.split()]
    options.dtype = options.dtype or dtypes
    if options.device == "cpu" and options.profile:
        parser.error("--profile is for --device cuda")
    return options


if __name__ == "__main__":
    sys.exit(main())
