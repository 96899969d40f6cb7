"""How much memory a process has taken: of its resident set, or of a GPU."""

from __future__ import annotations

from pathlib import Path


class ResidentMemory:
    """Measures what it is wrapped around. growth: the peak so far over what was resident at first,
    each time afresh."""

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
    """Measures what it is wrapped around, while other processes use the GPU's memory too but do not
    change what they hold. growth: of all so far together."""

    def __init__(self) -> None:
        import torch

        self.growth = 0
        torch.zeros(1, device="cuda")  # the context, which every engine has

    def __enter__(self) -> None:
        self.before = free_memory()

    def __exit__(self, *_: object) -> None:
        self.growth += self.before - free_memory()


def free_memory() -> int:
    """Of the GPU, in bytes."""
    import torch

    return torch.cuda.mem_get_info()[0]


def resident(field: str, process: int | str = "self") -> int:
    """Bytes of a process in memory: "VmRSS" now, "VmHWM" at most so far; 0 of one that has ended,
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
