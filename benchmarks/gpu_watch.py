"""How busy a GPU is, as nvidia-smi says."""

from __future__ import annotations

import contextlib
import math
import shutil
import subprocess
from types import TracebackType

COMMAND = "nvidia-smi --id=0 --query-gpu=utilization.gpu --format=csv,noheader,nounits"
EVERY = 100  # milliseconds between two looks


class GpuWatch:
    """Looks at the first GPU in a context, where it is asked to and nvidia-smi is there."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted and shutil.which("nvidia-smi") is not None
        self._process: subprocess.Popen[str] | None = None
        self.busy = math.nan  # the share of the context's time in which kernels ran

    def __enter__(self) -> GpuWatch:
        if self._wanted:
            command = [*COMMAND.split(), f"--loop-ms={EVERY}"]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        said, _ = self._process.communicate()
        self.busy = mean(said)


def mean(said: str) -> float:
    """Of the numbers in lines, percent; NaN where there are none."""
    found = list[float]()
    for line in said.splitlines():
        with contextlib.suppress(ValueError):  # the last may be cut
            found.append(float(line))
    return sum(found) / len(found) / 100 if found else math.nan
