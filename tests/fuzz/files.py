"""Models from strangers: damaged files of every format that we read, in processes with limits.

    python -m tests.fuzz.files --cases 200000 --processes 2     the longer run
    python -m tests.fuzz.files --seed 1 --only 1234             one case again, in words
    python -m tests.fuzz.files --output summary.json            the counts, as JSON

Each case is a function of the seed and its number. A model is loaded, a text encoded, two tokens
are generated, and the model is saved. Bad are crashes, hangs, files opened outside of the model's
folder and of the output's, errors that name no file and no field, and more memory than a sound
model takes, twice the files and 64 MiB together.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.case import BAD, Verdict, run_case, warm_up

MEMORY_DISK = Path("/dev/shm")  # where it exists: saving waits for disks
SHOWN = 20  # bad cases of a kind that are printed


def write_corpus(folder: Path) -> None:
    """All models, each in a folder of its name."""
    from tests.fuzz.makers import MAKERS  # and all that tests import

    entries = {}
    for name, make in MAKERS.items():
        (folder / name).mkdir(parents=True)
        entries[name] = make(folder / name)
    (folder / "entries.json").write_text(json.dumps(entries))


@contextmanager
def corpus() -> Iterator[Path]:
    """A temporary folder with the corpus. Another process makes it, so that those that run the
    cases stay small."""
    disk = MEMORY_DISK if os.access(MEMORY_DISK, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=disk, prefix="fuzz-") as name:
        folder = Path(os.path.realpath(name))
        maker = multiprocessing.get_context("spawn").Process(
            target=write_corpus, args=[folder / "corpus"]
        )
        maker.start()
        maker.join()
        if maker.exitcode:
            raise RuntimeError("the models could not be made")
        yield folder


def run_cases(
    folder: Path, seed: int, numbers: range, results: Any = None
) -> list[tuple[int, str, Verdict]]:
    """Runs cases in this process. results: a queue that gets each; else they are returned."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)  # a child of fork() has none of the others
    place, found = folder / f"case-{os.getpid()}", []
    sound = warm_up(folder / "corpus", place)
    parent = multiprocessing.parent_process()
    for number in numbers:
        if parent is not None and not parent.is_alive():
            break  # it was killed
        name, verdict = run_case(seed, number, folder / "corpus", place, sound)
        if results is None:
            found.append((number, name, verdict))
        else:
            results.put((number, name, verdict))
    return found


class Summary:
    """What happened to all cases."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.counts: dict[str, Counter[str]] = {}
        self.bad: list[dict[str, Any]] = []

    def add(self, number: int, name: str, verdict: Verdict) -> None:
        self.counts.setdefault(name, Counter())[verdict.kind] += 1
        if verdict.kind in BAD:
            case = {"number": number, "model": name, **verdict._asdict()}
            self.bad.append(case)
            if sum(each["kind"] == verdict.kind for each in self.bad) <= SHOWN:
                print(self.text(case), flush=True)

    def text(self, case: dict[str, Any]) -> str:
        again = f"python -m tests.fuzz.files --seed {self.seed} --only {case['number']}"
        return f"{case['kind']} in {case['model']!r}: {case['what']}\n  {case['done']}\n  {again}"

    def total(self) -> Counter[str]:
        return sum(self.counts.values(), Counter())

    def table(self) -> str:
        kinds = ("loads", "refused", *BAD)
        lines = [f"{'model':20}" + "".join(f"{kind:>9}" for kind in kinds)]
        for name, counts in [*sorted(self.counts.items()), ("all", self.total())]:
            lines.append(f"{name:20}" + "".join(f"{counts[kind]:9}" for kind in kinds))
        return "\n".join(lines)

    def content(self, seconds: float) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "cases": self.total().total(),
            "seconds": round(seconds, 1),
            "counts": dict(self.total()),
            "models": {name: dict(counts) for name, counts in self.counts.items()},
            "bad": self.bad,
        }


def fuzz(seed: int, first: int, cases: int, processes: int) -> Summary:
    """Runs cases in several processes."""
    summary = Summary(seed)
    context = multiprocessing.get_context("spawn")
    with corpus() as folder:
        results = context.Queue()
        workers = [
            context.Process(
                target=run_cases,
                args=[folder, seed, range(first + i, first + cases, processes), results],
            )
            for i in range(processes)
        ]
        for worker in workers:
            worker.start()
        for _ in range(cases):
            summary.add(*next_of(results, workers))
        for worker in workers:
            worker.join()
    return summary


def next_of(results: Any, workers: list[Any]) -> tuple[int, str, Verdict]:
    """The next result. Raises RuntimeError where a worker has failed, and said why."""
    while True:
        try:
            found: tuple[int, str, Verdict] = results.get(timeout=5)
            return found
        except queue.Empty:
            if any(worker.exitcode for worker in workers):
                raise RuntimeError("a process that runs cases has failed") from None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.files", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", type=int, metavar="NUMBER")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if args.only is not None:
        with corpus() as folder:
            [(_, name, verdict)] = run_cases(folder, args.seed, range(args.only, args.only + 1))
        print(f"{name}: {verdict.kind}: {verdict.what}", *verdict.done, sep="\n  ")
        sys.exit(verdict.kind in BAD)
    began = time.perf_counter()
    summary = fuzz(args.seed, args.first, args.cases, args.processes)
    seconds = time.perf_counter() - began
    print(summary.table(), f"{args.cases / seconds:.1f} cases/s, seed {args.seed}", sep="\n")
    if args.output:
        args.output.write_text(json.dumps(summary.content(seconds), indent=1) + "\n")
    sys.exit(bool(summary.bad))


if __name__ == "__main__":
    main()
