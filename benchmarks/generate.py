"""Whole generate() calls of Hugging Face, CTranslate2 and ours on the same random weights.

See benchmarks/README.md for what a row means.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cases.workloads import SOURCE, WORKLOADS, Shape, random_ids, save
from benchmarks.profile import print_profile
from benchmarks.report.rows import Row, console, write_rows
from decoding.compare.bounds import WIDTHS
from decoding.compare.comparison import machine_of
from decoding.compare.engine_pool import EnginePool
from decoding.compare.engines import ENGINES, Answer, EngineConfig, Settings, installed
from decoding.compare.results import Machine, Run
from decoding.compare.roofline import KINDS
from decoding.compare.runs import Batch, measure
from decoding.compare.task import Task
from decoding.compare.worker import ResourceLimits

DEFAULTS = {  # models, shapes, types
    "cpu": (["marian-base", "gpt2-124M"], "1x1 1x4 8x4", list(KINDS)),
    "cuda": (["marian-base", "marian-big", "gpt2-124M"], "1x1 1x4 8x4 32x4 128x4", ["float16"]),
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    settings = [Settings(options.device, dtype, options.threads) for dtype in options.dtype]
    if options.profile:
        for model in options.models:
            with saved(model) as task:
                for each in settings:
                    print_profile(task, model, each, options.shapes)
        return 0
    configs = [
        EngineConfig(engine, each)
        for each in settings
        for engine in installed(options.providers)
        if each.dtype in engine.dtypes[options.device]
    ]
    if not configs:
        print("no provider computes in such a type", file=sys.stderr)
        return 1
    machine = machine_of(options.device, options.dtype, options.threads)
    rows: list[Row] = []
    for model in options.models:
        with saved(model) as task, EnginePool(task, configs, ResourceLimits()) as pool:
            for shape in options.shapes:
                found = compare(pool, machine, model, shape, options.repeats)
                print(console(found), flush=True)
                rows += found
                if options.output:
                    write_rows(rows, options.output)
    return 0


@contextmanager
def saved(model: str) -> Iterator[Task]:
    """The random model, in a directory of its own."""
    with tempfile.TemporaryDirectory() as folder:
        save(WORKLOADS[model], Path(folder))
        yield Task.read(Path(folder))


def compare(
    pool: EnginePool, machine: Machine, model: str, shape: Shape, repeats: int
) -> list[Row]:
    """The rows of one shape. Raises RuntimeError where an engine fails, or where they do not
    agree: then there is nothing to compare."""
    batch = Batch(random_ids(WORKLOADS[model], shape.batch), [SOURCE] * shape.batch)
    runs, answers = measure(pool, shape.point, batch, machine.ceilings, repeats)
    if pool.failures:
        raise pool.failures[0]
    equal = agreement(answers, shape)
    found = dict(zip(pool.configs, runs, strict=True))
    for config, run in found.items():
        if run.error and config.engine.serves(shape.beams):
            raise RuntimeError(f"{config} {run.error}")
    return [
        make_row(model, shape, machine, found[config], repeats, equal[config]) for config in answers
    ]


def make_row(model: str, shape: Shape, machine: Machine, run: Run, repeats: int, equal: str) -> Row:
    ceilings = machine.ceilings[run.dtype]
    return Row(
        what="generate",
        model=model,
        shape=str(shape),
        provider=run.engine,
        version=run.version,
        dtype=run.dtype,
        isa=run.isa,
        threads=machine.threads,
        repeats=repeats,
        p20=run.p20,
        p50=run.p50,
        p80=run.p80,
        unit="ms/step",
        rate=run.rate,
        roofline_bound=run.roofline_bound,
        megabytes=run.bytes / 1e6,
        operations=run.flops / 1e6,
        bound_by=run.bound_by,
        bandwidth=ceilings.bandwidth / 1e9,
        flops=ceilings.flops / 1e9,
        launch=ceilings.launch * 1e6,
        nodes=run.nodes,
        memory=run.memory,
        loading=run.loading,
        equal=equal,
        device=machine.name,
        flags=machine.flags,
        commit=machine.commit,
        date=machine.date,
    )


def agreement(answers: dict[EngineConfig, Answer], shape: Shape) -> dict[EngineConfig, str]:
    """How many sentences got the tokens that Hugging Face (or else the first engine) gave, in
    float32 where the run has it.

    Raises RuntimeError when ours differs from Hugging Face in any token in float32. What is drawn
    differs.
    """
    if shape.sample:
        return dict.fromkeys(answers, "")
    reference = min(
        answers, key=lambda c: (c.engine.name != "huggingface", c.settings.dtype != "float32")
    )
    found = {}
    for config, answer in answers.items():
        equal = sum(map(list.__eq__, answer.tokens, answers[reference].tokens))
        dtypes = {config.settings.dtype, reference.settings.dtype}
        names = (config.engine.name, reference.engine.name)
        if names == ("ours", "huggingface") and dtypes == {"float32"} and equal < shape.batch:
            raise RuntimeError(f"ours and huggingface agree in {equal} of {shape.batch} sentences")
        found[config] = f"{equal}/{shape.batch}"
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
        help="two only if asked for: huggingface-static, which compiles for minutes, and "
        "ours-deterministic, whose price shows beside ours on a GPU",
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
