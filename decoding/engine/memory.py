"""The memory plan in readable forms, and the memory that is available."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from decoding import _C
from decoding.common import html
from decoding.common.device import Device, torch_cuda
from decoding.engine.limits import EngineLimits, Limits

STEP = "step"
PARTS: dict[str, tuple[str, ...]] = {  # what their buffers' names begin with; a step has the rest
    "encoder and prompt": ("encoder.", "prompt."),
    "keys and values": ("k_pages", "v_pages", "k_scales", "v_scales"),
    STEP: (),
}
LABEL = 38  # columns of a part's name
PAGE = 16  # cells: csrc/engine/model/cache.h


class OutOfMemoryError(_C.Error, MemoryError):
    """There is no memory for what was asked for. Like every lack of memory, a MemoryError; where it
    is known what would help, the message says it."""


@dataclass(frozen=True, repr=False)
class MemoryPlan:
    """The memory that a model needs; str() is a line for each of its parts, table() a line for each
    buffer.

    limits: that it is planned for.
    buffers: of the engine's one block, in the order of the plan, each with name, type, shape,
        offset, bytes and lifetime.
    bytes: of the whole block. weights: bytes of the weights, which lie outside it.
    """

    limits: Limits | EngineLimits
    buffers: tuple[_C.Buffer, ...]
    bytes: int
    weights: int = 0

    @property
    def summary(self) -> str:
        return f"{readable(self.bytes)} in {len(self.buffers)} buffers for {self.sizes}"

    @property
    def sizes(self) -> str:
        return ", ".join(f"{name} {size}" for name, size in vars(self.limits).items() if size)

    def parts(self) -> dict[str, int]:
        """Bytes by what they are for. Some of the encoder's and the step's are the same, as they
        are not in use together: what the parts are more than weights and block."""
        grouped: dict[str, list[_C.Buffer]] = {name: [] for name in PARTS}
        for buffer in self.buffers:
            grouped[part_of(buffer.name)].append(buffer)
        return {"weights": self.weights} | {
            name: covered((b.offset, b.offset + b.bytes) for b in buffers)
            for name, buffers in grouped.items()
        }

    @property
    def pages(self) -> int:
        """Pages of keys and values, each of PAGE positions of a row or of what rows share; 0 for
        an encoder alone."""
        return self._pools[0].shape[1] if self._pools else 0

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, in all layers."""
        return sum(pool.bytes // pool.shape[1] for pool in self._pools)

    @property
    def _pools(self) -> list[_C.Buffer]:
        return [buffer for buffer in self.buffers if buffer.name in PARTS["keys and values"]]

    @property
    def _keeps_inputs(self) -> bool:
        """Whether rows keep inputs of convolutions beside the pages: csrc/engine/model/cache.h."""
        return any(buffer.name == "inputs" for buffer in self.buffers)

    def requests(self, *, source: int = 0, prompt: int = 1, target: int, beams: int = 1) -> int:
        """How many requests of this length fit at once, in pages and in an engine's rows or a
        call's sentences; 0 where one is beyond the limits. source: 0 without an encoder; target:
        new tokens of each of the beams or samples."""
        limits = self.limits
        asked = {"source": source, "prompt": prompt, "target": target, "beams": beams}
        if any(size > getattr(limits, name) for name, size in asked.items()):
            return 0
        most = limits.requests // beams if isinstance(limits, EngineLimits) else limits.batch
        shared, own = (source, target + prompt - 1) if source else (prompt - 1, target)
        own_rows = 0 if self._keeps_inputs else beams
        needed = -(-shared // PAGE) + -(-own_rows * own // PAGE)
        return min(self.pages // max(1, needed), most)

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
        parts, total = self.parts(), self.weights + self.bytes
        digits = 1 if total >= 1e7 else 3
        lines = [(name, f"{size / 1e6:.{digits}f} MB") for name, size in parts.items() if size]
        shared = sum(parts.values()) - total
        behind = f" for {self.sizes}"
        if self.pages:
            behind += f"; {self.pages} pages of {readable(self.page_bytes)}"
        if shared > 0:
            behind += f"; the encoder and the step share {shared / 1e6:.{digits}f} MB"
        lines.append(("total", f"{total / 1e6:.{digits}f} MB"))
        width = max(len(size) for _, size in lines)
        rows = [f"{name:<{LABEL}}{size:>{width}}" for name, size in lines]
        return "\n".join(rows) + behind

    def table(self) -> str:
        """Every buffer of the block."""
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


def part_of(name: str) -> str:
    """The part of a model's memory that a buffer belongs to."""
    return next((part for part, start in PARTS.items() if name.startswith(start)), STEP)


def covered(places: Iterable[tuple[int, int]]) -> int:
    """Bytes that lie in at least one of these places, (begin, end)."""
    count = last = 0
    for begin, end in sorted(places):
        count += max(0, end - max(begin, last))
        last = max(last, end)
    return count


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


def available_memory(device: Device) -> int | None:
    """Bytes that this process may still take on `device`; None if unknown."""
    if device.index is None:
        return available_to_process()
    free, cuda = _C.free_memory(device.index), torch_cuda()
    if cuda is not None:  # its allocator gives back what it only holds: see allocation.py
        free += cuda.memory_reserved(device.index) - cuda.memory_allocated(device.index)
    return free


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
