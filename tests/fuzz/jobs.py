"""Corpora from strangers: damaged inputs of jobs, and damaged folders of interrupted jobs.

    python -m tests.fuzz.jobs --cases 20000         the longer run
    python -m tests.fuzz.jobs --seed 1 --only 123   one case again, in words

Each case is a function of the seed and its number: a job over a file of any format, in a process
with little memory and time. Either it refuses, with a ValueError or OSError that names the file, or
every row of the input is in the output, in its order: answered, or in errors.jsonl with the file,
its number and a reason. Answers are compared with their texts where the output is JSON lines. The
same holds for a job that was interrupted, and whose folder was damaged before it is resumed. Some
rows of JSON have options of their own, of which a small model generates.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import csv
import io
import json
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import torch

from decoding.corpus.formats.compressed import reading
from decoding.corpus.formats.parquet import opened
from decoding.corpus.job import Job
from decoding.corpus.shard_answers import Setup
from decoding.corpus.task import Task
from tests.corpus.pool_here import Interrupt, PoolHere
from tests.corpus.tasks import Capitals
from tests.fuzz.files import MEMORY_DISK
from tests.fuzz.job_inputs import damage_folder, damage_input, write_sound
from tests.fuzz.sandbox import ROOT, run

STORIES = ROOT / "tests/data/stories260K"
GOOD = ("done", "refused")
OPTIONS = {"own_options": True, "do_sample": True, "max_new_tokens": 2}


class Case:
    """place: a folder of its own. done: what was damaged."""

    def __init__(self, seed: int, number: int, place: Path) -> None:
        rng = Random(f"{seed} {number}")
        self._place, self.done = place, list[str]()
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        self._input = write_sound(place, rng)
        kinds = [".jsonl", "", ".jsonl.gz", self._input.suffixes[0]]
        self._output = place / ("out" + rng.choice(kinds))
        self._rows = rng.randint(1, 4)
        self._errors = rng.choice(("strict", "strict", "replace", "skip"))
        is_json = self._input.name.startswith("in.jsonl")
        self._generates = is_json and rng.random() < 0.3
        self._resumes = rng.random() < 0.4
        self._stop_after = rng.randint(0, 2)
        if not self._resumes or rng.random() < 0.2:
            self.done.append(f"{self._input.name}: {damage_input(self._input, rng)}")
        if self._input.is_file():  # else thousands of shards wait for the disk
            self._rows = max(self._rows, text_bytes(self._input) // 1000)
        self._rng = rng

    def judge(self) -> str:
        """One of GOOD, or what is wrong."""
        ended = run(self.use, [self._place], [self._place])
        if ended.status != "done":
            return f"{ended.status} {ended.result.get('signal', '')}"
        self.done = ended.result["done"]
        return str(ended.result["verdict"])

    def use(self) -> dict[str, Any]:
        """In a child; returns the verdict."""
        warnings.simplefilter("ignore")
        whole = None
        if self._resumes:
            whole = self._attempt(self._place / "whole", None)
            try:
                self._work(self._output, self._stop_after)
            except (ValueError, OSError):
                pass
            except Interrupt:
                self.done.append(damage_folder(Path(f"{self._output}.job"), self._rng))
        found = self._attempt(self._output, whole)
        return {"verdict": found, "done": self.done}

    def _attempt(self, output: Path, whole: str | None) -> str:
        try:
            rows, errors = self._work(output, None)
        except (ValueError, OSError) as error:
            names = (self._input.name, output.name)
            is_clear = any(name in str(error) for name in names) and len(str(error)) < 2000
            return "refused" if is_clear else f"unclear: {type(error).__name__}: {error}"[:500]
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:500]
        return self._wrong(output, rows, errors, whole) or "done"

    def _task(self) -> Any:
        if not self._generates:
            is_tsv = self._input.name.startswith("in.tsv")  # whose columns else have numbers
            return Capitals(column="text" if is_tsv else None)
        return Task("generate", str(STORIES), "text", {"threads": 1}, OPTIONS)

    def _work(self, output: Path, stop_after: int | None) -> tuple[int, int]:
        """Rows, and how many have failed."""

        def pool(setup: Setup, devices: Sequence[str]) -> PoolHere:
            return PoolHere(setup, devices, stop_after)

        with mock.patch("decoding.corpus.job.Pool", pool):
            job = Job(
                self._task(),
                [self._input],
                output,
                shard_lines=self._rows,
                errors=self._errors,
                resume=True,
                devices=["cpu"],
                output_format="json" if output.name == "whole" else None,
            )
            found = job.run()
        return found.rows, found.errors

    def _wrong(self, output: Path, rows: int, errors: int, whole: str | None) -> str:
        folder = Path(f"{output}.job")
        failed = [json.loads(line) for line in lines_of(folder / "errors.jsonl")]
        if len(failed) != errors:
            return f"{errors} rows have failed, of which {len(failed)} are told"
        for each in failed:
            named = each["file"] == str(self._input) and 1 <= each["row"] <= rows
            if not (named and each["reason"]):
                return f"an error names no row: {each}"
        if ".jsonl" not in output.name and output.name != "whole":
            return ""
        answers = [json.loads(line) for line in lines_of(output)]
        if len(answers) != rows or rows != self._rows_of_input():
            return f"{rows} rows, {len(answers)} answers, {self._rows_of_input()} in the input"
        bad = {each["row"] for each in failed}
        wrong = (i for i, row in enumerate(answers, 1) if not self._fits(row, i in bad))
        return "".join(f"row {i} is {answers[i - 1]}"[:300] for i in list(wrong)[:1])

    def _fits(self, row: dict[str, Any], failed: bool) -> bool:
        if self._generates:
            return row["completion"] is None if failed else isinstance(row["completion"], str)
        if failed:
            return row["capitals"] is None
        text: str = row["text"]
        return bool(row["capitals"] == text.upper() and row["length"] == len(text))

    def _rows_of_input(self) -> int | None:
        """As this file counts them."""
        name = self._input.name
        if name == "in.parquet":
            with opened(str(self._input)) as file:
                return int(file.metadata.num_rows)
        with reading(str(self._input), self._input.suffix) as (file, _):
            data: bytes = file.read()
        count = data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
        if name.startswith("in.csv"):  # what ends a row there depends on quotes
            data = re.sub(rb'(?:[^",\r\n]+|\r(?!\n))+', b"x", data.removeprefix(codecs.BOM_UTF8))
            count = sum(1 for _ in csv.reader(io.StringIO(data.decode(), newline="")))
        return count - (count > 0 and name.startswith(("in.csv", "in.tsv")))


def text_bytes(path: Path) -> int:
    """Up to where the file is damaged."""
    size = 0
    with contextlib.suppress(ValueError, OSError), reading(str(path), path.suffix) as (file, _):
        while part := file.read(1 << 16):
            size += len(part)
    return size


def lines_of(path: Path) -> list[bytes]:
    """Of a file that may be missing, or compressed."""
    if not path.exists():
        return []
    with reading(str(path), path.suffix) as (file, _):
        return [line for line in file.read().split(b"\n") if line]


def fuzz(seed: int, numbers: Sequence[int]) -> Counter[str]:
    """Counts of "done", "refused" and "bad"; prints what was bad."""
    counts: Counter[str] = Counter()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)  # a child of fork() has none of the others
    disk = MEMORY_DISK if os.access(MEMORY_DISK, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=disk, prefix="fuzz-") as name:
        place = Path(os.path.realpath(name)) / "case"
        for number in numbers:
            case = Case(seed, number, place)
            found = case.judge()
            counts[found if found in GOOD else "bad"] += 1
            if found not in GOOD:
                print(
                    f"{found}\n  {case.done}\n  python -m tests.fuzz.jobs --seed {seed} "
                    f"--only {number}",
                    flush=True,
                )
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.jobs", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="NUMBER")
    args = parser.parse_args()
    numbers = range(args.first, args.first + args.cases)
    counts = fuzz(args.seed, numbers if args.only is None else [args.only])
    print(dict(counts))
    sys.exit(counts["bad"] > 0)


if __name__ == "__main__":
    main()
