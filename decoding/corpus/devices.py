"""The devices of a job's workers, which a process of its own counts: this one has no engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

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
