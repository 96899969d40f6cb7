"""Translates files of text on all nodes of a Ray cluster, in their order, and resumes.

    python -m examples.ray_corpus --model models/demo --output english --actors 2 de/*.txt

Each input becomes a folder of its name, of Parquet files with its lines and their translations;
sorted by name they are in the order of the lines. A folder appears in one step when all of it is
there, so the same command goes on where a crash has ended it: what an input costs is what a crash
costs. Ray restarts actors that die, and repeats their batches. Each actor has a CPU, and reading
and writing need another one. On several nodes inputs and output lie on storage that all of them
see. It needs `pip install "ray[data]"`.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray  # pyright: ignore[reportMissingImports]

from decoding.corpus import RayWorker, Task

BATCH = 1024  # rows: more than a model computes at once, so that they can be sorted by length


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("inputs", nargs="+", type=Path)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--model", default="models/demo")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--gpus", type=float, default=0, help="of each actor")
    args = parser.parse_args(arguments)
    names = [path.name for path in args.inputs]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        parser.error(f"two inputs would become {args.output / twice[0]}: their names must differ")

    context: Any = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    task = Task("translate", os.path.abspath(args.model))
    for path in args.inputs:
        target = args.output / path.name
        if not target.exists():
            translate(path, target, task, args.actors, args.gpus)


def translate(path: Path, target: Path, task: Task, actors: int, gpus: float) -> None:
    rows = ray.data.read_text(str(path.absolute()), drop_empty_lines=False)
    answered = rows.map_batches(
        RayWorker,
        fn_constructor_args=[task],
        batch_size=BATCH,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_gpus=gpus,
    )
    temporary = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    answered.write_parquet(str(temporary.absolute()))
    temporary.rename(target)


if __name__ == "__main__":
    main()
