"""Fails each allocation of the engine, one by one: load, plan and calls of all kinds.

    python -m tests.faults.allocations                            every site of every call
    python -m tests.faults.allocations --call beams --only 17     one failure again
    python -m tests.faults.allocations --lasting                  all allocations after it fail, too
    python -m tests.faults.allocations --device cuda              and each call of CUDA

A call is repeated, with its allocation number 0 failing, then number 1, and so on until it comes to
its end. An allocation is one of decoding._C's, a block of memory that Python maps for it, or a
thread. A failure must be a MemoryError, or decoding.Error where no thread could be started; the
next call gives what the first one gave, and nothing stays allocated. Each kind of call has a
process of its own, so that one that ends or hangs costs only its rest.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.calls import CALLS, Call
from tests.faults.shim import Allocator, build

SECONDS = 300  # until a call hangs
REPEATS = 4  # of a failure after which more is allocated than before: whether it is so each time


class Verdict(NamedTuple):
    """kind: "raised", "passed" where the call did without, else bad: "error", "answer", "leak",
    "crash"."""

    number: int
    kind: str
    what: str


def outcome(call: Call) -> Any:
    """What it returns, or raises."""
    try:
        return call()
    except Exception as error:
        return error


class Trial:
    """A call whose allocations fail."""

    def __init__(self, call: Call, allocator: Allocator, lasting: bool) -> None:
        self._call, self._allocator, self._lasting = call, allocator, lasting
        self._expected = call()
        call()  # what a first call leaves behind for good
        gc.collect()
        gc.freeze()  # what is imported is many objects, and none of them goes

    def settle(self) -> int:
        """Allocations that live between calls."""
        gc.collect()
        return self._allocator.live

    def run(self, number: int) -> Verdict | None:
        """None where the call has fewer allocations."""
        first = before = self.settle()
        for _ in range(REPEATS):
            with self._allocator.failing(number, self._lasting):
                found = outcome(self._call)
            if self._allocator.seen <= number:
                return None
            wrong = self._wrong(found)
            del found  # with what its traceback holds
            if wrong is None:
                wrong = self._wrong_after()
            if wrong is not None:
                return Verdict(number, *wrong)
            after = self.settle()
            if after <= before:  # or only once: a table that grew, a frozen cycle that ended
                return Verdict(number, "raised", "")
            before = after
        return Verdict(number, "leak", f"{before - first} allocations stay after {REPEATS}")

    def _wrong(self, found: Any) -> tuple[str, str] | None:
        if not isinstance(found, Exception):
            return None if found == self._expected else ("answer", f"gave {found}")
        if isinstance(found, MemoryError):
            return None
        if isinstance(found, RuntimeError) and re.search(
            "thread can be started|new thread|CUDA: ", str(found)
        ):
            return None
        return "error", f"raised {found!r}"

    def _wrong_after(self) -> tuple[str, str] | None:
        again = outcome(self._call)
        return None if again == self._expected else ("answer", f"afterwards gave {again!r}")


def try_call(name: str, numbers: range, lasting: bool, device: str) -> None:
    """Prints each verdict as a line of JSON, in a process with the allocator."""
    faulthandler.enable()
    allocator = Allocator()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(CALLS[name](Path(folder), device), allocator, lasting)
        for number in numbers:
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            print(json.dumps({"begins": number}), flush=True)
            verdict = trial.run(number)
            faulthandler.cancel_dump_traceback_later()
            if verdict is None:
                break
            print(json.dumps(verdict._asdict()), flush=True)


class Run:
    """Runs a call's failures, in processes, one after another that has ended before its time."""

    def __init__(self, library: Path, name: str, lasting: bool, device: str) -> None:
        self._library, self._name, self._lasting, self._device = library, name, lasting, device
        self.counts: Counter[str] = Counter()
        self.bad: list[Verdict] = []

    def run(self, first: int, stride: int, last: int) -> None:
        while (crashed := self._process(first, stride, last)) is not None:
            first = crashed + stride

    def _process(self, first: int, stride: int, last: int) -> int | None:
        """The number at which the process ended before its time."""
        work = (
            "from tests.faults.allocations import try_call; "
            f"try_call({self._name!r}, range({first}, {last}, {stride}), "
            f"{self._lasting}, {self._device!r})"
        )
        number = None
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", work],
                env={**os.environ, "LD_PRELOAD": str(self._library)},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as process,
        ):
            assert process.stdout
            for line in process.stdout:
                said = json.loads(line)
                number = said.get("begins", number)
                if "kind" in said:
                    self._add(Verdict(**said))
            if process.wait() == 0:
                return None
            errors.seek(0)
            why = f"exit code {process.returncode}\n{errors.read()}"
        if number is None:
            raise RuntimeError(f"{self._name} fails without a fault:\n{why}")
        self._add(Verdict(number, "crash", why.strip()))
        return number

    def _add(self, verdict: Verdict) -> None:
        self.counts[verdict.kind] += 1
        if verdict.kind != "raised":
            self.bad.append(verdict)
            lasting = " --lasting" * self._lasting + " --device cuda" * (self._device == "cuda")
            print(f"{self._name} {verdict.kind}: {verdict.what}")
            print(
                "  python -m tests.faults.allocations "
                f"--call {self._name} --only {verdict.number}{lasting}",
                flush=True,
            )


def try_all(
    names: Sequence[str],
    first: int = 0,
    stride: int = 1,
    last: int = sys.maxsize,
    lasting: bool = False,
    device: str = "cpu",
) -> int:
    """Prints what was bad, and a line for each call. Returns how many were bad."""
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        for name in names:
            run = Run(library, name, lasting, device)
            run.run(first, stride, last)
            print(f"{name}: {run.counts.total()} failures, {len(run.bad)} bad", flush=True)
            bad += len(run.bad)
    return bad


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.allocations", description=__doc__)
    parser.add_argument("--call", choices=CALLS, help="this one alone")
    parser.add_argument("--first", type=int, default=0, help="number of the first allocation")
    parser.add_argument("--stride", type=int, default=1, help="every so many allocations")
    parser.add_argument("--only", type=int, metavar="NUMBER")
    parser.add_argument("--lasting", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    names = [args.call] if args.call else list(CALLS)
    first, last = args.first, sys.maxsize
    if args.only is not None:
        first, last = args.only, args.only + 1
    sys.exit(bool(try_all(names, first, args.stride, last, args.lasting, args.device)))


if __name__ == "__main__":
    main()
