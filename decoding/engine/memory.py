"""The memory plan as a readable table, and the memory that is available."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from decoding import _C
from decoding.common import html
from decoding.engine.limits import Limits


@dataclass(frozen=True, repr=False)
class MemoryPlan:
    """Every buffer of a model's one block of memory; str() is the table.

    limits: that it is planned for.
    buffers: in the order of the plan, each with name, type, shape, offset, bytes and lifetime.
    bytes: of the whole block.
    """

    limits: Limits
    buffers: tuple[_C.Buffer, ...]
    bytes: int

    @property
    def summary(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in vars(self.limits).items())
        return f"{readable(self.bytes)} in {len(self.buffers)} buffers for {sizes}"

    def sharing(self, buffer: _C.Buffer) -> list[str]:
        """Names of the buffers that use some of the same bytes at another time."""
        return [b.name for b in self.buffers if b is not buffer and overlap(buffer, b)]

    def __repr__(self) -> str:
        return f"MemoryPlan({self.summary})"

    def _repr_html_(self) -> str:
        largest = sorted(self.buffers, key=lambda buffer: buffer.bytes, reverse=True)
        rows = [(b.name, b.type, list(b.shape), readable(b.bytes)) for b in largest]
        head = ("name", "type", "shape", "bytes")
        return html.folded(repr(self), html.table(rows, head))

    def __str__(self) -> str:
        head = ["name", "type", "shape", "offset", "bytes", "lifetime", "shares bytes with"]
        rows = [
            [
                b.name,
                b.type,
                str(list(b.shape)),
                str(b.offset),
                str(b.bytes),
                ".".join(str(block) for block in b.lifetime) or "call",
                shortened(self.sharing(b)),
            ]
            for b in self.buffers
        ]
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        right = {3, 4}
        lines = [
            "  ".join(
                cell.rjust(width) if i in right else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in [head, *rows]
        ]
        return "\n".join([*lines, f"total {self.bytes} bytes: {self.summary}"])


def overlap(a: _C.Buffer, b: _C.Buffer) -> bool:
    return max(a.offset, b.offset) < min(a.offset + a.bytes, b.offset + b.bytes)


def shortened(names: Sequence[str], most: int = 3) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def readable(size: float) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.{0 if units[0] == 'bytes' else 1}f} {units[0]}"


def available_memory(device: torch.device) -> int | None:
    """Bytes that this process may still take on `device`; None if unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + held  # torch's allocator gives back what it only holds
    return available_to_process()


def available_text(available: int | None) -> str:
    size = "unknown" if available is None else f"{available} bytes ({readable(available)})"
    return f"available: {size}"


def available_to_process() -> int | None:
    """Bytes of main memory, by the kernel and by the process's cgroup."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except OSError:
        pass  # not Linux
    try:
        group = Path("/sys/fs/cgroup")
        most = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        if most != "max":
            found.append(int(most) - used + int(stat["inactive_file"]))  # the page cache gives way
    except OSError:
        pass  # no cgroup of the second version
    return min(found, default=None)
