"""Starts a command once for each rank of its model, and ends all of them together."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO

from decoding.cli.ranks.arguments import reads_stdin
from decoding.cli.reading import opened_input
from decoding.common.starting import ENDING, held_signals

LOOK = 0.02  # seconds between two looks at the ranks
GRACE = 10.0  # seconds that ranks have to end, once one has
HOST = "127.0.0.1"


def launch(words: Sequence[str], args: argparse.Namespace) -> int:
    """words: the command with its arguments, which each rank is started with. Returns the exit code
    of the rank that failed first, 0 where none has, or that of the signal that has ended all of
    them; raises KeyboardInterrupt where rank 0 ends with that."""
    size, drain = args.tensor_parallel, getattr(args, "drain", 0)  # seconds, of a server
    with contextlib.ExitStack() as stack:
        stack.enter_context(told_of_sigterm())
        spool = stack.enter_context(spooled()) if reads_stdin(args) else os.devnull
        said = [None, *(stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, size))]
        stdin = [stack.enter_context(open(spool, "rb")) for _ in range(size)]
        ranks = stack.enter_context(Ranks(size))
        ranks.start(words, stdin, said)
        code = ranks.wait(GRACE + drain)
        unsaid = ranks.codes[0] in (0, None, -signal.SIGKILL)  # rank 0 has not said why
        if code and unsaid and ranks.asked is None:
            show(said, ranks.codes)
    if code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    return code


class Ranks:
    """The processes. Leaving the block ends them."""

    def __init__(self, size: int) -> None:
        self.codes: list[int | None] = [None] * size
        self.asked: signal.Signals | None = None  # to end, by this signal
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        words: Sequence[str],
        stdin: Sequence[IO[bytes]],
        said: Sequence[IO[bytes] | None],
    ) -> None:
        """said: where what a rank says on standard error goes; None: to ours."""
        size = len(self.codes)
        shared = {"MASTER_ADDR": HOST, "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
        for rank in range(size):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            with held_signals(*ENDING):  # else one that has started may not be known
                process = subprocess.Popen(
                    [sys.executable, "-m", "decoding", *words],
                    env={**os.environ, **shared, **own},
                    stdin=stdin[rank],
                    stdout=None if rank == 0 else subprocess.DEVNULL,
                    stderr=said[rank],
                    start_new_session=True,  # Ctrl-C comes to us, and from us to rank 0
                )
                self._processes.append(process)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def wait(self, grace: float) -> int:
        """The exit code of the first that fails; the others then have GRACE seconds to end. A
        signal to end goes to rank 0, which all wait for then, `grace` seconds at most."""
        first, end = 0, float("inf")
        while self._goes_on() and time.monotonic() < end:
            try:
                time.sleep(LOOK)
                failed = self._look()
                first = first or failed
                if first or self.codes[0] is not None:
                    end = min(end, time.monotonic() + GRACE)
            except (KeyboardInterrupt, Terminated) as error:
                is_interrupt = isinstance(error, KeyboardInterrupt)
                self.asked = signal.SIGINT if is_interrupt else signal.SIGTERM
                self._processes[0].send_signal(self.asked)
                end = min(end, time.monotonic() + grace)
        return first if self.asked is None else 128 + self.asked

    def _goes_on(self) -> bool:
        """Where it is to end, ranks that follow have nothing to write after rank 0."""
        return self.codes[0] is None if self.asked else None in self.codes

    def _look(self) -> int:
        """The exit code of a rank that has failed since the last look; 0: none has."""
        failed = 0
        for rank, process in enumerate(self._processes):
            if self.codes[rank] is None and (code := process.poll()) is not None:
                self.codes[rank] = code
                if code < 0 and -code != self.asked:
                    name = signal.Signals(-code).name
                    print(f"decoding: error: {name} has ended rank {rank}", file=sys.stderr)
                failed = failed or (code if code >= 0 else 128 - code)
        return failed


@contextlib.contextmanager
def spooled() -> Iterator[str]:
    """A file with what standard input has, for each rank to read."""
    with tempfile.NamedTemporaryFile(prefix="decoding-input-") as file:
        shutil.copyfileobj(opened_input("-"), file)
        file.flush()
        yield file.name


class Terminated(SystemExit):
    """SIGTERM has come."""


@contextlib.contextmanager
def told_of_sigterm() -> Iterator[None]:
    """SIGTERM raises Terminated, which ends the program in order."""

    def terminate(*_: object) -> None:
        raise Terminated(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def show(said: Sequence[IO[bytes] | None], codes: Sequence[int | None]) -> None:
    """What the first rank that failed has said, on standard error."""
    for file, code in zip(said, codes, strict=True):
        if file is not None and code:
            file.seek(0)
            print(file.read().decode(errors="replace"), end="", file=sys.stderr)
            return


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
