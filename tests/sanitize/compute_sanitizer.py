"""Runs every CUDA kernel and a generation of each family under NVIDIA's compute-sanitizer.

    python -m tests.sanitize.compute_sanitizer                 all, some hours
    python -m tests.sanitize.compute_sanitizer --jobs 16       so many runs at a time, as cores
    python -m tests.sanitize.compute_sanitizer --part 2/20     the second of 20 parts
    python -m tests.sanitize.compute_sanitizer --only linear   those whose subject has that in it
    python -m tests.sanitize.compute_sanitizer --seconds 300   starts nothing later; call it again

memcheck finds bad accesses, racecheck races in shared memory, initcheck reads of what nobody wrote,
synccheck bad barriers. Each run adds a row to --output; what has a row of this commit is not run
again. Fails where there is a report, or where a run does not end. It needs an NVIDIA GPU and the
CUDA toolkit.

Tests of kernels are some of each test function and type, spread over its cases. A family generates
in one type with each tool, and the types take turns. Expected values come from torch, so of tests
only reports that name our kernels count; where a tool can, it checks no others. initcheck does not
see all that cuBLASLt's kernels write, and racecheck not how these order their accesses: so both get
generations of few tokens, whose products are all our own. Nor does initcheck see what another GPU
writes: it gets no collectives.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import torch

from tests.sanitize.generations import NAMES

ROOT = Path(__file__).parent.parent.parent
OUTPUT = ROOT / "benchmarks/results/sanitizers.csv"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# These can leave out torch's kernels. initcheck has to see what those write; racecheck then ends in
# an "Internal Sanitizer Error" (2025.3.1).
FILTERED = ("memcheck", "synccheck")
DTYPES = ("float32", "float16", "bfloat16")
CASES = {"memcheck": 2, "racecheck": 1, "initcheck": 1, "synccheck": 2}  # of a function and type
FAMILIES_A_RUN = 4  # importing takes as long as their generations
TESTS_A_RUN = 5
LIMIT = 600  # seconds of a run, which others slow down
# Timing each product's candidates would run thousands of kernels. And every tensor of torch's gets
# memory of its own, so that what lies behind it is out of bounds.
SETTINGS = {"DECODING_TUNE": "0", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
SUMMARY = re.compile(r"^========= (ERROR|RACECHECK) SUMMARY: ", re.MULTILINE)
TITLES = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY", "LEAK SUMMARY", "Target app")


@dataclass(frozen=True)
class Row:
    """cases: tests, or generations; reports: of them all; versions: of CUDA's tool and of torch."""

    tool: str
    what: str  # "kernels/rows/test_norm 1/2", "generation float16 gpt2 bart mbart t5"
    cases: int
    reports: int
    seconds: float
    device: str
    versions: str
    commit: str


@dataclass(frozen=True)
class Run:
    """One call of compute-sanitizer. command: Python's. ours: only reports of our kernels count."""

    tool: str
    what: str
    cases: int
    command: tuple[str, ...]
    ours: bool


def select(tests: Iterable[str], most: int) -> list[str]:
    """At most so many tests of each function and type, spread over them."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for test in tests:
        types = re.findall(r"float32|float16|bfloat16", test.partition("[")[2])
        groups.setdefault((test.partition("[")[0], *types), []).append(test)
    chosen = []
    for group in groups.values():
        count = min(most, len(group))
        chosen += [group[i * len(group) // count] for i in range(count)]
    return chosen


def batches(names: Sequence[str], most: int) -> list[Sequence[str]]:
    return [names[first : first + most] for first in range(0, len(names), most)]


def kernel_tests(folder: str = "tests/kernels") -> list[str]:
    """The names of the kernels' tests that need a GPU."""
    command = ["-m", "pytest", "--collect-only", "-m", "gpu", folder]
    said = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    return [line for line in said.stdout.splitlines() if "::" in line]


def all_runs(tests: Sequence[str], tools: Sequence[str]) -> list[Run]:
    """tests: kernel_tests()."""
    runs = []
    files = sorted({test.partition("::")[0] for test in tests})
    pytest = ("-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "--timeout=0")
    for at, tool in enumerate(tools):
        for file in files:
            if tool == "initcheck" and "/collective/" in file:
                continue
            chosen = select([test for test in tests if test.startswith(f"{file}::")], CASES[tool])
            what = file.removeprefix("tests/").removesuffix(".py")
            parts = batches(chosen, TESTS_A_RUN)
            for i, some in enumerate(parts, 1):
                part = f" {i}/{len(parts)}" if len(parts) > 1 else ""
                runs.append(Run(tool, what + part, len(some), (*pytest, *some), ours=True))
        lengths = ("5",) if tool in ("racecheck", "initcheck") else ("5", "10")
        for number, dtype in enumerate(DTYPES):
            names = NAMES[(at + number) % len(DTYPES) :: len(DTYPES)]
            for some in batches(names, FAMILIES_A_RUN):
                command = ("-m", "tests.sanitize.generations", ",".join(some), dtype, *lengths)
                what = f"generation {dtype} {' '.join(some)}"
                runs.append(Run(tool, what, len(some) * len(lengths), command, ours=False))
    return runs


def reports(log: str, ours: bool) -> int:
    """How many reports a log has: a line that begins with what is wrong, and indented ones."""
    found = 0
    for block in re.split(r"^========= (?=\S)", log, flags=re.MULTILINE)[1:]:
        if block.startswith(TITLES):
            continue
        where = re.search(r"^=========\s+(at|and|between) .*decoding::", block, re.MULTILINE)
        first = re.search(r"(at|and|between) .*decoding::", block.partition("\n")[0])
        found += not ours or bool(where or first)
    return found


def sanitize(run: Run) -> tuple[int, str, float]:
    """Reports, what went wrong (or ""), and seconds; prints the end of a log with either."""
    command = ["compute-sanitizer", "--print-limit", "100", "--tool", run.tool]
    if run.ours and run.tool in FILTERED:
        command += ["--kernel-name", "kns=decoding"]
    began = time.perf_counter()
    try:
        ended = subprocess.run(
            [*command, sys.executable, *run.command],
            cwd=ROOT,
            env=os.environ | SETTINGS,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return 0, f"did not end in {LIMIT} s", time.perf_counter() - began
    seconds, count = time.perf_counter() - began, reports(ended.stdout, run.ours)
    wrong = f"exit code {ended.returncode}" if ended.returncode else ""
    if not SUMMARY.search(ended.stdout):
        wrong = "the tool gave no summary"
    if count or wrong:
        print(ended.stdout[-8000:], flush=True)
    return count, wrong, seconds


def done(path: Path, commit: str) -> set[tuple[str, str]]:
    """Tool and subject of a commit's rows."""
    if not path.exists():
        return set()
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["tool"], row["what"]) for row in rows if row["commit"] == commit}


def append(path: Path, row: Row) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(field.name for field in fields(Row))
        writer.writerow(astuple(row))


def part_of(runs: Sequence[Run], part: str) -> list[Run]:
    """part: "2/20"; of each tool's runs every 20th, from the second on."""
    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise SystemExit(f"--part must be like 2/20, got {part!r}")
    return list(runs[int(number) - 1 :: int(count)])


def said_by(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def conditions() -> dict[str, str]:
    """device, versions and commit of a row."""
    version = re.search(r"Version ([\d.]+)", said_by("compute-sanitizer", "--version"))
    tool = f"compute-sanitizer {version[1] if version else '?'}"
    return {
        "device": torch.cuda.get_device_name(),
        "versions": f"{tool}, torch {torch.__version__}",
        "commit": said_by("git", "rev-parse", "--short=10", "HEAD"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sanitize.compute_sanitizer", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--tool", choices=TOOLS, action="append")
    parser.add_argument("--part", default="1/1", metavar="I/N")
    parser.add_argument("--only", default="", metavar="REGEX", help="of the subject in a row")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--commit", help="what the rows name; where there is no git")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("compute-sanitizer needs an NVIDIA GPU, and torch sees none")
    where = conditions() | ({"commit": args.commit} if args.commit else {})
    runs = [
        run
        for run in all_runs(kernel_tests(), args.tool or TOOLS)
        if re.search(args.only, run.what)
    ]
    runs = part_of(runs, args.part)
    left = [run for run in runs if (run.tool, run.what) not in done(args.output, where["commit"])]
    left.sort(key=lambda run: -run.cases)  # the longest first, that none is waited for at the end
    over, bad, unstarted = time.monotonic() + args.seconds, 0, 0

    def attempt(run: Run) -> tuple[int, str, float] | None:
        return None if time.monotonic() > over else sanitize(run)

    with ThreadPoolExecutor(args.jobs) as pool:
        runs_of = {pool.submit(attempt, run): run for run in left}
        for ended in as_completed(runs_of):
            run, found = runs_of[ended], ended.result()
            if found is None:
                unstarted += 1
                continue
            count, wrong, seconds = found
            bad += bool(count or wrong)
            print(
                f"{run.tool}, {run.what}: {count} reports{wrong and ', '}{wrong}, {seconds:.0f} s"
            )
            if not wrong:
                row = Row(run.tool, run.what, run.cases, count, round(seconds, 1), **where)
                append(args.output, row)
    if unstarted:
        print(f"{unstarted} of {len(left)} runs are left: call this again")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
