"""Ctrl-C at random moments of every command.

    python -m tests.faults.interrupts --runs 200                        the long run
    python -m tests.faults.interrupts --command translate --only 17     one run again

A run is a function of the seed and its number: when the signal comes, from the first import to
after the end; whether it comes twice; whether the reader of the output has gone by then; and
whether the command's own processes have it, too, as from a terminal. Whatever was written must be
whole lines, or rows, of what the command writes by itself. It ends by the signal or with 130, says
nothing of Python's, and leaves no process and no temporary file. Before our first line runs, Python
itself may answer Ctrl-C with a traceback; such runs are counted apart.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

import decoding
from decoding.compare.results import Comparison
from tests.server.models import sentence_model

ROOT = Path(__file__).parent.parent.parent
DEMO = ROOT / "models/demo"
STORIES = ROOT / "tests/data/stories260K"
LINES = 60  # of input
SECONDS = 400  # until a run hangs
SPLIT = "--device cpu --threads 1 --tensor-parallel 2"
SERVES = 3.0  # seconds that a server runs, at most
STOPPED = (130, -signal.SIGINT)
UNREAD = (141, -signal.SIGPIPE)  # the reader of the output has gone
ENDED = 60.0  # seconds that the processes of a command may live longer than it
PYTHON = re.compile(r"KeyboardInterrupt|Traceback|Exception ignored|Fatal Python error")


class Command(NamedTuple):
    """words: {folder} stands for the run's own folder, {shared} for that of the inputs. file: what
    it writes, in the run's own."""

    words: str
    file: str = ""


COMMANDS = {
    "translate": Command(f"translate --model {DEMO} {{shared}}/de --batch-tokens 64 --progress"),
    "translate-file": Command(f"translate --model {DEMO} {{shared}}/de -o {{folder}}/out", "out"),
    "translate-json": Command(f"translate --model {DEMO} {{shared}}/de --line-buffered --json"),
    "split": Command(
        f"translate --model {DEMO} {{shared}}/de -o {{folder}}/out --quiet {SPLIT}", "out"
    ),
    "generate": Command(f"generate --model {STORIES} {{shared}}/en --batch-tokens 64"),
    "stream": Command(f"generate --model {STORIES} {{shared}}/en --stream --max-new-tokens 30"),
    "score": Command(f"score --model {STORIES} {{shared}}/en --batch-tokens 64"),
    "embed": Command("embed --model {shared}/encoder {shared}/ab -o {folder}/a.npy", "a.npy"),
    "embed-json": Command("embed --model {shared}/encoder {shared}/ab --json"),
    "convert": Command(f"convert --model {DEMO} --dtype int8 --output {{folder}}/int8", "int8"),
    "shortlist": Command(
        f"shortlist --model {DEMO} --source {{shared}}/de --target {{shared}}/en "
        "-o {folder}/list.npz",
        "list.npz",
    ),
    "plan": Command(f"plan --model {DEMO} --full"),
    "serve": Command(f"serve --model {STORIES} --port 0"),
    "serve-split": Command(f"serve --model {STORIES} --port 0 {SPLIT}"),
    "compare": Command(
        f"compare --model {DEMO} --text {{shared}}/de --lines 2 --batch 1 --beams 1 --lengths 8 "
        "--rounds 1 --json {folder}/found.json",
        "found.json",
    ),
    "job": Command(
        f"generate --model {STORIES} --input {{shared}}/en --output {{folder}}/out --workers 2 "
        "--shard-lines 10 --threads 1 --max-new-tokens 5",
        "out",
    ),
}
# How runs may end: before the signal came; by it; by Python's own answer, before our first line.
GOOD = ("ended", "interrupted", "python")
TIMED = ("plan", "compare")  # commands whose output holds what a run has measured
ATOMIC = ("convert", "shortlist", "job")  # whose file is whole where there is one


def write_inputs(folder: Path) -> None:
    sentences = (DEMO / "sentences.de.txt").read_text("utf-8").splitlines()
    lines = [sentences[i % len(sentences)] for i in range(LINES)]
    (folder / "de").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    (folder / "en").write_text("".join(f"Once, {i} dogs\n" for i in range(LINES)))
    (folder / "ab").write_text("".join(f"ab {'a' * (i % 7)}\n" for i in range(20 * LINES)))
    (folder / "encoder").mkdir()
    sentence_model(folder / "encoder")


def content(path: Path) -> bytes:
    """Of a file; of .npy and .npz the arrays, whatever follows them; of a directory its model's
    answer. Raises ValueError for half a comparison."""
    if path.is_dir():
        with decoding.load(path, device="cpu") as model:
            return repr(model.translate(["Danke!"])).encode()
    if path.suffix in (".npy", ".npz"):
        if path.stat().st_size == 0:
            return b""  # it was opened, and nothing has been written yet
        found = np.load(path)
        arrays = [found] if path.suffix == ".npy" else [found[name] for name in found]
        return b"".join(array.tobytes() for array in arrays)
    if path.suffix == ".json":
        Comparison.from_json(path.read_text("utf-8"))
    return path.read_bytes()


@dataclass
class Moment:
    """When a signal comes, in seconds from the start. again: seconds to a second one, if any.
    unread: nobody reads the output from then on. everywhere: all processes of the command have it,
    as from a terminal."""

    after: float
    again: float | None = None
    unread: bool = False
    everywhere: bool = False

    @classmethod
    def drawn(cls, seed: int, number: int, seconds: float) -> Moment:
        """seconds: that the command takes."""
        rng = random.Random(f"{seed} {number}")
        again = rng.choice([0.0, 0.002, 0.05]) if rng.random() < 0.3 else None
        after, unread = rng.random() * seconds * 1.1, rng.random() < 0.2
        return cls(after, again, unread, everywhere=rng.random() < 0.5)

    def interrupt(self, process: subprocess.Popen[bytes], reader: int) -> None:
        """Returns at the end of the process. reader: of its output, closed here."""
        try:
            process.wait(min(self.after, SECONDS))
        except subprocess.TimeoutExpired:
            pass
        os.close(reader)
        self._send(process)
        if self.again is not None:
            time.sleep(self.again)
            self._send(process)
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()

    def _send(self, process: subprocess.Popen[bytes]) -> None:
        """Does nothing where it has ended."""
        if process.poll() is None:
            (os.killpg if self.everywhere else os.kill)(process.pid, signal.SIGINT)


class Ending(NamedTuple):
    """How a run ended."""

    status: int
    out: bytes
    file: bytes | None
    said: str
    left: list[str]  # processes and temporary files that it left


class Interrupted:
    """A command that is interrupted, again and again. shared: with the inputs."""

    def __init__(self, name: str, shared: Path) -> None:
        self.name, self._shared = name, shared
        self._command = COMMANDS[name]
        # Else a shell's job in the background, which ignores Ctrl-C, would start others that do.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        serves = name.startswith("serve")  # until it is stopped
        began = time.perf_counter()
        self.whole = self.run(Moment(SERVES if serves else math.inf))
        self.seconds = time.perf_counter() - began
        assert self.whole.status in (STOPPED if serves else [0]), self.whole

    def run(self, moment: Moment) -> Ending:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            words = self._command.words.format(folder=folder, shared=self._shared)
            temporary = folder / "temporary"
            temporary.mkdir()
            reader, pipe = os.pipe()
            with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as said:
                process = subprocess.Popen(
                    [sys.executable, "-m", "decoding", *words.split()],
                    cwd=ROOT,
                    env={**os.environ, "TMPDIR": str(temporary)},
                    stdin=subprocess.DEVNULL,
                    stdout=pipe if moment.unread else out,
                    stderr=said,
                    start_new_session=True,
                )
                os.close(pipe)
                moment.interrupt(process, reader)
            left = left_of(temporary) + [path.name for path in temporary.iterdir()]
            file = folder / self._command.file
            return Ending(
                process.wait(),
                (folder / "stdout").read_bytes(),
                content(file) if self._command.file and file.exists() else None,
                (folder / "stderr").read_text(),
                left,
            )

    def verdict(self, ending: Ending, moment: Moment) -> str:
        """One of GOOD, or what is wrong."""
        if ending.left:
            return f"left {ending.left}"
        if PYTHON.search(ending.said):
            ours = "decoding/cli" in ending.said or ending.status not in (-signal.SIGINT, 1)
            return f"said {ending.said}" if ours else "python"
        if ending.status not in (0, *STOPPED, *(UNREAD if moment.unread else ())):
            return f"ended with {ending.status}: {ending.said}"
        wrong = self._wrong_output(ending, moment)
        return wrong or ("interrupted" if ending.status else "ended")

    def _wrong_output(self, ending: Ending, moment: Moment) -> str:
        whole = self.whole._replace(out=b"") if moment.unread else self.whole
        if not ending.out.endswith(b"\n") and ending.out and self.name != "stream":
            return f"half a line: {ending.out[-80:]!r}"
        if self.name not in TIMED and not whole.out.startswith(ending.out):
            return f"wrote {ending.out[-80:]!r}"
        if ending.file is not None and self.name not in TIMED:
            assert whole.file is not None
            atomic = self.name in ATOMIC
            if not (ending.file == whole.file if atomic else whole.file.startswith(ending.file)):
                return f"the file has {len(ending.file)} bytes, which differ"
        complete = ending.out == whole.out and ending.file == whole.file
        if ending.status == 0 and self.name not in TIMED and not complete:
            return "ended as if all were written"
        return ""


def left_of(temporary: Path) -> list[str]:
    """The processes that are left of a run, once they have had time to end. temporary: their
    folder, by which they are known; ranks of a split model are in sessions of their own."""
    mark = f"TMPDIR={temporary}".encode()
    until = time.monotonic() + ENDED
    while (found := members(mark)) and time.monotonic() < until:
        time.sleep(0.01)
    return found


def members(mark: bytes) -> list[str]:
    """Processes that have it in their environment, which one that has ended does not show."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environ.read_bytes().split(b"\0"):
                found.append((environ.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended, or is not ours
            continue
    return found


def interrupt(name: str, shared: Path, numbers: Sequence[int], seed: int) -> int:
    """Interrupts a command. Prints what was bad, and counts; returns how many were bad."""
    command = Interrupted(name, shared)
    counts: Counter[str] = Counter()
    for number in numbers:
        moment = Moment.drawn(seed, number, command.seconds)
        verdict = command.verdict(command.run(moment), moment)
        good = verdict in GOOD
        counts[verdict if good else "bad"] += 1
        if not good:
            print(f"{name}, {moment}: {verdict}")
            again = f"--command {name} --seed {seed} --only {number}"
            print(f"  python -m tests.faults.interrupts {again}", flush=True)
    print(f"{name}, {command.seconds:.1f} s: {dict(counts)}", flush=True)
    return counts["bad"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.interrupts", description=__doc__)
    parser.add_argument("--command", choices=COMMANDS, help="this one alone")
    parser.add_argument("--runs", type=int, default=200, help="of each command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="NUMBER")
    args = parser.parse_args()
    numbers = range(args.runs) if args.only is None else [args.only]
    names = [args.command] if args.command else list(COMMANDS)
    with tempfile.TemporaryDirectory() as name:
        write_inputs(Path(name))
        bad = sum(interrupt(each, Path(name), numbers, args.seed) for each in names)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
