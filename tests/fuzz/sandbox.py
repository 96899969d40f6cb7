"""Runs a function in a child process with little memory and time, and watches what it opens.

Only for Linux: the peak of memory is read from /proc.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

SECONDS = 8  # of the processor
WAIT = 40  # seconds until a child that does not run counts as hanging
SPACE = 1 << 30  # bytes of addresses that a child may take beside those of its parent
# Where a process finds Python, libraries and what the system tells of itself.
ROOT = Path(__file__).parent.parent.parent
SYSTEM = (str(ROOT), sys.prefix, sys.base_prefix, "/usr", "/lib", "/proc", "/sys", "/dev/null")
# Audited changes of a file system, and of how many paths.
CHANGES = {"os.link": 2, "os.mkdir": 1, "os.remove": 1, "os.rename": 2, "os.rmdir": 1}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Ended(NamedTuple):
    """How a child ended."""

    status: str  # "done", "crash" (a signal), "hang"
    result: dict[str, Any]  # what the function returned; of a crash the signal
    peak: int  # bytes of memory that it took beside its parent's
    opened: list[str]  # files that it opened outside of `folders` and SYSTEM


def run(function: Callable[[], dict[str, Any]], reads: list[Path], writes: list[Path]) -> Ended:
    """Calls a function in a child. reads, writes: the folders that it may open files of."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(receiver)
            answer = json.dumps(in_child(function, reads, writes)).encode()
            while answer:
                answer = answer[os.write(sender, answer) :]
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(sender)
    answer, over = b"", time.monotonic() + WAIT
    while True:
        ready, _, _ = select.select([receiver], [], [], max(0.0, over - time.monotonic()))
        part = os.read(receiver, 1 << 16) if ready else b""
        answer += part
        if not part:
            break
    os.close(receiver)
    if not ready:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not ready or code == -signal.SIGXCPU:
        return Ended("hang", {}, 0, [])
    if code < 0 or not answer:
        said = signal.Signals(-code).name if code < 0 else f"no answer, exit code {code}"
        return Ended("crash", {"signal": said}, 0, [])
    return Ended("done", **json.loads(answer))


def in_child(
    function: Callable[[], dict[str, Any]], reads: list[Path], writes: list[Path]
) -> dict[str, Any]:
    opened: list[str] = []
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    most = memory("VmSize") + SPACE
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    allowed = [[*map(str, reads), *map(str, writes), *SYSTEM], [*map(str, writes), "/dev/null"]]
    sys.addaudithook(lambda event, args: audit(event, args, allowed, opened))
    before = memory("VmRSS")
    result = function()
    return {"result": result, "peak": max(0, memory("VmHWM") - before), "opened": opened}


def audit(event: str, args: tuple[Any, ...], allowed: list[list[str]], opened: list[str]) -> None:
    if event == "open" and isinstance(args[0], str | bytes):
        name = os.fsdecode(args[0])
        writing = args[2] & WRITES if isinstance(args[2], int) else "w" in str(args[1])
        note(name, allowed[bool(writing)], opened, "write" if writing else "read")
    elif event in CHANGES:
        count = CHANGES[event]  # of paths; then come the folders that they are relative to
        for name, folder in zip(args[:count], args[-count:], strict=True):
            if isinstance(name, str | bytes):
                base = f"/proc/self/fd/{folder}" if folder >= 0 else ""
                note(os.path.join(base, os.fsdecode(name)), allowed[1], opened, event)
    elif event in ("os.system", "subprocess.Popen", "os.exec", "socket.connect"):
        opened.append(event)


def note(name: str, folders: list[str], opened: list[str], how: str) -> None:
    path = os.path.realpath(name)
    if not any(path == folder or path.startswith(f"{folder}/") for folder in folders):
        opened.append(f"{how} {path}")


def memory(kind: str) -> int:
    """Bytes of this process. kind: VmSize, VmRSS or VmHWM."""
    found = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


class Tree:
    """A folder as it was, and whether anyone read its files."""

    def __init__(self, folder: Path, watch_reads: bool = False) -> None:
        self.folder, self.watch_reads = folder, watch_reads
        if watch_reads:  # reading sets a time of access that is before that of the last change
            for path in self._paths():
                if path.is_file() and not path.is_symlink():
                    os.utime(path, (0, path.stat().st_mtime))
        self.before = self._state()

    def changes(self) -> list[str]:
        after = self._state()
        names = sorted(self.before.keys() | after.keys())
        return [name for name in names if self.before.get(name) != after.get(name)]

    def _paths(self) -> list[Path]:
        return sorted(self.folder.rglob("*"))

    def _state(self) -> dict[str, tuple[int, ...]]:
        state: dict[str, tuple[int, ...]] = {}
        for path in self._paths():
            found = path.lstat()
            accessed = int(found.st_atime) if self.watch_reads and not path.is_dir() else 0
            times = 0 if path.is_dir() else found.st_mtime_ns
            state[str(path)] = (found.st_mode, found.st_size, times, accessed)
        return state
