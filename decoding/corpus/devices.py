"""The devices of a job's workers, which a process of its own counts: this one has no engine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVER = Path("/proc/driver/nvidia/gpus")  # has an entry for each GPU
ONE_START = threading.Lock()  # at a time, since processes inherit the environment
COUNT = (
    "from decoding.engine.devices import _C, sees_gpu; print(len(_C.gpus()) if sees_gpu() else 0)"
)


def places(devices: Sequence[str] | str, workers: int) -> list[str]:
    """The device of each worker. Raises ValueError for "all" where there is no GPU, and for workers
    beside several devices."""
    if devices == "all":
        count = gpus()
        if count == 0:
            raise ValueError(
                "this machine has no GPU that the engine can use: pass --workers (workers=N) for "
                "processes on its CPU"
            )
        devices = [f"cuda:{number}" for number in range(count)]
    found = [devices] if isinstance(devices, str) else list(devices)
    if workers < 1 or not found:
        raise ValueError(f"a job needs a device and a worker, got {found} and {workers}")
    if workers > 1 and len(found) > 1:
        raise ValueError("each device has one worker: leave --workers or --devices out")
    return found * workers


def gpus() -> int:
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else 0


@contextmanager
def seen_alone(device: str) -> Iterator[str]:
    """Processes that are started meanwhile see of all GPUs this one; under the name that they have
    for it. In a process that sees several CUDA opens the first one, too, whichever is used: that
    takes time, and half a gigabyte of its memory for each process."""
    own = visible_name(device)
    if own is None:
        yield device
        return
    with ONE_START:
        before = os.environ.get(VISIBLE)
        os.environ[VISIBLE] = own
        try:
            yield "cuda:0"
        finally:
            if before is None:
                del os.environ[VISIBLE]
            else:
                os.environ[VISIBLE] = before


def visible_name(device: str) -> str | None:
    """What CUDA_VISIBLE_DEVICES has for "cuda:N"; None for what is no such GPU, of which load()
    will say what is wrong."""
    kind, _, number = device.partition(":")
    if kind != "cuda" or not number.isdecimal():
        return None
    visible = os.environ.get(VISIBLE)
    count = len(list(DRIVER.glob("*")))
    names = list(map(str, range(count))) if visible is None else visible.split(",")
    return names[int(number)] if int(number) < len(names) else None
