"""Whole generate() calls of Hugging Face, CTranslate2 and ours on the same random weights.

See benchmarks/README.md for what a row means.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.baselines import ENGINES, Settings, convert, missing
from benchmarks.environment import Environment, environment
from benchmarks.harness import Worker, interleaved, percentile
from benchmarks.profile import print_profile
from benchmarks.report import Row, console, markdown, write_rows
from benchmarks.roofline import Ceilings, floor, measure, measure_gpu
from benchmarks.workloads import STEPS, WORKLOADS, Shape, random_ids, save

# OpenMP's threads of one engine go on spinning for a while after a call (200 ms in LLVM's runtime).
# The next engine's turn begins when they sleep.
PAUSE = 0.3
WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}  # bytes
TURN = 0.1  # seconds on a GPU for which a fast engine repeats its call, each time it has its turn
MOST_CALLS = 10  # of such a turn
DEFAULTS = {
    "cpu": (["marian-base", "gpt2-124M"], "1x1 1x4 8x4"),
    "cuda": (list(WORKLOADS), "1x1 1x4 8x4 32x4 128x4"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    settings = Settings(options.device, options.dtype, options.threads)
    if options.profile:
        for model in options.models:
            with saved(model, settings, []) as directory:
                print_profile(directory, model, WORKLOADS[model], settings, options.shapes)
        return 0
    providers = available(options.providers)
    if not providers:
        return 1
    run = Run(
        providers, settings, options.repeats, ceilings(settings), environment(settings.device)
    )
    rows: list[Row] = []
    for model in options.models:
        with saved(model, settings, providers) as directory:
            for found in compare(run, model, options.shapes, directory):
                print(console(found), flush=True)
                rows += found
                if options.output:
                    write_rows(rows, options.output)
    print(f"\n{markdown(rows)}")
    return 0


@dataclass(frozen=True)
class Run:
    """What all rows of one run have in common."""

    providers: Sequence[str]
    settings: Settings
    repeats: int
    ceilings: Ceilings
    where: Environment


def available(names: Sequence[str]) -> list[str]:
    """Those that are installed; the others are named."""
    found = []
    for name in names:
        absent = missing(ENGINES[name])
        if absent:
            print(f"{name}: missing, {' and '.join(absent)} not installed", file=sys.stderr)
        else:
            found.append(name)
    return found


def ceilings(settings: Settings) -> Ceilings:
    if settings.device != "cpu":
        import torch

        return measure_gpu(getattr(torch, settings.dtype), settings.device)
    if os.getloadavg()[0] > 0.5:
        load = f"{os.getloadavg()[0]:.1f}"
        print(f"The machine is not idle (load {load}): times are noise.", file=sys.stderr)
    found = measure(settings.threads)
    if math.isnan(found.bandwidth):
        print("cc: missing, so the machine's ceilings and floors are not known", file=sys.stderr)
    return found


@contextmanager
def saved(model: str, settings: Settings, providers: Sequence[str]) -> Iterator[Path]:
    """A directory with the model, in each provider's form."""
    with tempfile.TemporaryDirectory() as folder:
        save(WORKLOADS[model], Path(folder))
        if "ctranslate2" in providers:
            convert(Path(folder), settings.dtype)
        yield Path(folder)


def compare(run: Run, model: str, shapes: Sequence[Shape], directory: Path) -> Iterator[list[Row]]:
    """The rows of each shape. On the CPU each shape has workers of its own, whose memory is then
    that shape's alone; on a GPU they stay, since loading takes longer than all calls."""
    if run.settings.device == "cpu":
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
            stack.enter_context(Worker(ENGINES[name], directory, WORKLOADS[model], run.settings))
            for name in run.providers
            if any(map(ENGINES[name].serves, shapes))
        ]
        for worker in workers:
            worker.load()
        yield workers


def measured(run: Run, model: str, shape: Shape, workers: Sequence[Worker]) -> list[Row]:
    """Checks and times one shape. Raises RuntimeError when the engines do not agree."""
    workers = [worker for worker in workers if worker.engine.serves(shape)]
    ids = random_ids(WORKLOADS[model], shape.batch)
    tokens = {worker.name: worker.run_once(ids, shape) for worker in workers}
    equal = agreement(tokens, run.settings.dtype, shape)
    calls = {worker.name: 1 for worker in workers}
    if run.settings.device != "cpu":
        for worker in workers:
            calls[worker.name] = min(MOST_CALLS, math.ceil(TURN / worker.time(1)[0]))
    pause = PAUSE if run.settings.device == "cpu" else 0.0
    seconds = interleaved(workers, run.repeats, calls, pause)
    return [
        make_row(run, model, shape, worker, seconds[worker.name], equal[worker.name])
        for worker in workers
    ]


def make_row(
    run: Run, model: str, shape: Shape, worker: Worker, seconds: Sequence[float], equal: str
) -> Row:
    steps = [1e3 * call / STEPS for call in seconds]
    p20, p50, p80 = (percentile(steps, percent) for percent in (20, 50, 80))
    memory = worker.memory()
    width = WIDTHS[run.settings.dtype]
    return Row(
        what="generate",
        model=model,
        shape=str(shape),
        provider=worker.name,
        version=worker.loaded.version,
        dtype=run.settings.dtype,
        isa=worker.loaded.isa,
        threads=run.settings.threads if run.settings.device == "cpu" else 0,
        repeats=run.repeats,
        p20=p20,
        p50=p50,
        p80=p80,
        unit="ms/step",
        rate=1e3 * shape.batch / p50,
        floor=1e3 * floor(WORKLOADS[model], shape, run.ceilings, width),
        bandwidth=run.ceilings.bandwidth / 1e9,
        flops=run.ceilings.flops / 1e9,
        stage=run.ceilings.stage * 1e6,
        nodes=worker.nodes(),
        memory=memory.running / 1e6,
        loading=memory.loading / 1e6,
        equal=equal,
        **asdict(run.where),
    )


def agreement(tokens: dict[str, list[list[int]]], dtype: str, shape: Shape) -> dict[str, str]:
    """How many sentences got the tokens that Hugging Face (or else the first engine) gave.

    Raises RuntimeError when an engine took another number of steps, or when ours differs from
    Hugging Face in any token in float32: then there is nothing to compare. What is drawn differs.
    """
    reference = "huggingface" if "huggingface" in tokens else next(iter(tokens))
    for name, rows in tokens.items():
        if any(len(row) != STEPS for row in rows):
            lengths = sorted({len(row) for row in rows})
            raise RuntimeError(f"{name} generated {lengths} tokens, not {STEPS}")
    if shape.sample:
        return dict.fromkeys(tokens, "")
    equal = {name: sum(map(list.__eq__, rows, tokens[reference])) for name, rows in tokens.items()}
    if (
        dtype == "float32"
        and reference == "huggingface"
        and equal.get("ours", shape.batch) < shape.batch
    ):
        raise RuntimeError(
            f"ours and {reference} agree in {equal['ours']} of {shape.batch} sentences"
        )
    return {name: f"{count}/{shape.batch}" for name, count in equal.items()}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate", description=__doc__)
    parser.add_argument("--device", choices=list(DEFAULTS), default="cpu")
    parser.add_argument("--dtype", choices=list(WIDTHS), default="float32", help="of a GPU")
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
    models, shapes = DEFAULTS[options.device]
    options.models = options.models or models
    options.shapes = options.shapes or [Shape.parse(shape) for shape in shapes.split()]
    if options.device == "cpu" and (options.profile or options.dtype != "float32"):
        parser.error("--profile and --dtype are for --device cuda")
    return options


if __name__ == "__main__":
    sys.exit(main())
