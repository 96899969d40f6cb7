"""A job whose processes are killed at random moments ends with the bytes of one that nobody
disturbs.

    python -m tests.corpus.kills --lines 100000 --kills 10 --seed 1        the long run
    python -m tests.corpus.kills --task capitals --lines 20000             without a model

Each kill is `kill -9` of the job's parent or of one of its workers, drawn from the seed, after so
many seconds as are drawn, too; a job without its parent is resumed. The job is `decoding generate`
with a model of few weights, or a task of tests. Some rows cannot be read. In the end the output and
the rows that failed are compared with those of an undisturbed job with one worker. No shard may be
finished twice, and of the task of tests, which says what it begins, each death of a parent may cost
`--shard-lines` rows of each worker, and that of a worker so many of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import decoding

ROOT = Path(decoding.__file__).parent.parent
WORDS = "Once upon a time there was little girl dog cat ran to the park and saw big tree".split()
MODEL = "tests/data/stories260K"
SECONDS = 0.0005  # of a row of the task of tests
IMPORTS = "from decoding.corpus import run; from tests.corpus.tasks import Capitals"
EXIT = {0, 3}  # of a job that has ended by itself: all rows answered, some failed


class Job:
    """A job in a process of its own, which the next one resumes."""

    def __init__(self, source: Path, name: str, task: str, shard: int, workers: int) -> None:
        self.output = source.parent / name
        self.folder = source.parent / f"{name}.job"
        self.log = source.parent / f"{name}.log"
        self.most = shard  # rows that a worker has in hand
        self.workers = workers
        if task == "generate":
            self._command = [
                *(sys.executable, "-m", "decoding", "generate", "--model", MODEL, "--resume"),
                *("--input", str(source), "--output", str(self.output), "--max-new-tokens", "4"),
                *("--workers", str(workers), "--shard-lines", str(shard), "--threads", "1"),
            ]
        else:
            log = f"log={str(self.log)!r}, group=50, is_shared=True"
            capitals = f"Capitals(seconds={SECONDS}, {log})"
            given = f"[{str(source)!r}], {str(self.output)!r}"
            options = f"resume=True, workers={workers}, shard_lines={shard}"
            code = f"run({capitals}, {given}, {options})"
            self._command = [sys.executable, "-c", f"{IMPORTS}; {code}"]

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self) -> None:
        """Undisturbed, to its end."""
        with self.start() as process:
            said = process.communicate()[1]
        assert process.returncode in EXIT, said.decode()

    def processes(self) -> list[int]:
        """Process ids of the workers that the status names."""
        try:
            status = json.loads((self.folder / "status.json").read_text())
        except FileNotFoundError:
            return []
        return [each["process"] for each in status["workers"] if each["process"]]

    def journal(self) -> list[int]:
        """The numbers of the shards that were finished, in that order."""
        path = self.folder / "shards.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line)["number"] for line in text[: text.rfind("\n") + 1].splitlines()]


def write_input(path: Path, lines: int, rng: random.Random) -> None:
    """Sentences of drawn words; a few rows are empty or no UTF-8."""
    with path.open("wb") as file:
        for _ in range(lines):
            chance = rng.random()
            text = " ".join(rng.choices(WORDS, k=rng.randint(1, 12))).encode()
            file.write(b"" if chance < 0.01 else b"\xff" + text if chance < 0.02 else text)
            file.write(b"\n")


def disturbed(job: Job, kills: int, pause: float, rng: random.Random) -> Counter[str]:
    """Runs a job to its end, and kills as often; returns what was killed, and the runs."""
    done: Counter[str] = Counter()
    while True:
        done["runs"] += 1
        with job.start() as process:
            while process.poll() is None and done["parents"] + done["workers"] < kills:
                try:
                    process.wait(rng.uniform(0, 2 * pause))
                except subprocess.TimeoutExpired:
                    kill(job, process, rng, done)
            said = process.communicate()[1]
        if process.returncode != -signal.SIGKILL:
            assert process.returncode in EXIT, said.decode()
            return done


def kill(
    job: Job, process: subprocess.Popen[bytes], rng: random.Random, done: Counter[str]
) -> None:
    """The parent, or a worker of it; none where there is no worker any more."""
    workers = job.processes() if rng.random() < 0.6 else []
    chosen = rng.choice(workers) if workers else None
    if chosen is None:
        process.kill()
        done["parents"] += 1
    elif parent_of(chosen) == process.pid:  # and not a process of an earlier run
        with contextlib.suppress(ProcessLookupError):
            os.kill(chosen, signal.SIGKILL)
        done["workers"] += 1


def parent_of(process: int) -> int | None:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])


def run(
    seed: int, lines: int, kills: int, workers: int = 2, task: str = "capitals", shard: int = 100
) -> Counter[str]:
    """What was killed, how often. Raises AssertionError, with how to see it again."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_input(folder / "in.txt", lines, rng)
        calm = Job(folder / "in.txt", "calm.txt", task, shard, 1)
        start = time.perf_counter()
        calm.run()
        seconds = time.perf_counter() - start
        killed = Job(folder / "in.txt", "killed.txt", task, shard, workers)
        try:
            done = disturbed(killed, kills, seconds / max(1, kills * workers), rng)
            compare(calm, killed, lines)
            if task == "capitals":
                count_again(killed, done)
        except AssertionError as error:
            sizes = f"--lines {lines} --kills {kills} --workers {workers} --shard-lines {shard}"
            again = f"python -m tests.corpus.kills --seed {seed} {sizes} --task {task}"
            raise AssertionError(f"{error}\n{again}") from error
        return done


def compare(calm: Job, killed: Job, lines: int) -> None:
    found = killed.output.read_bytes()
    assert found == calm.output.read_bytes(), "the outputs differ"
    assert found.count(b"\n") == lines, "rows are lost"
    names = [job.folder / "errors.jsonl" for job in (calm, killed)]
    assert names[0].read_bytes() == names[1].read_bytes(), "the rows that failed differ"
    journal = killed.journal()
    assert sorted(journal) == list(range(len(journal))), "a shard was finished twice"


def count_again(job: Job, done: Counter[str]) -> None:
    """Counts the rows that were begun more than once."""
    calls = [tuple(map(int, line.split())) for line in job.log.read_text().splitlines()]
    done["again"] = sum(rows for _, rows in calls) - sum(rows for _, rows in set(calls))
    most = (done["parents"] * job.workers + done["workers"]) * job.most
    assert done["again"] <= most, f"{done['again']} rows were begun again, and not {most} at most"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--task", choices=("generate", "capitals"), default="generate")
    parser.add_argument("--shard-lines", type=int, default=1000)
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    start = time.perf_counter()
    try:
        done = run(args.seed, args.lines, args.kills, args.workers, args.task, args.shard_lines)
    except AssertionError as error:
        print(error)
        sys.exit(1)
    print(f"{dict(done)}: equal in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
