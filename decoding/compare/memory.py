"""Measures the memory that a process takes: its resident set, or memory of a GPU."""

from __future__ import annotations

from pathlib import Path


class ResidentMemory:
    """Measures the code in its context. growth: the peak resident set of the last context, over the
    resident set when the meter was made."""

    def __init__(self) -> None:
        self.before = resident("VmRSS")

    def __enter__(self) -> None:
        forget_peak()

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def growth(self) -> int:
        return resident("VmHWM") - self.before


class GpuMemory:
    """Measures the code in its context, as long as other processes keep the memory that they hold.
    growth: of all contexts so far together."""

    def __init__(self) -> None:
        import torch

        self.growth = 0
        torch.zeros(1, device="cuda")  # the context, which every engine has

    def __enter__(self) -> None:
        self.before = free_memory()

    def __exit__(self, *_: object) -> None:
        self.growth += self.before - free_memory()


def free_memory() -> int:
    """Free bytes of the GPU's memory."""
    import torch

    return torch.cuda.mem_get_info()[0]


def resident(field: str, process: int | str = "self") -> int:
    """Bytes of a process's resident set: "VmRSS" now, "VmHWM" at its peak; 0 for one that has ended
    and where the system does not tell. Linux only."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak() -> None:
    """Starts VmHWM afresh from what is resident now (see proc_pid_clear_refs(5))."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # not Linux: the peak is of the whole process, or unknown
