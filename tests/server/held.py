"""What this process holds in memory. Its resident memory alone tells little: it grows with what
malloc cannot give back, with pages of engines that are written for the first time, and with calls
that are larger than those before, whose memory a model keeps."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path
from typing import NamedTuple


class Held(NamedTuple):
    """blocks: of Python's objects. malloc: bytes that it has handed out. resident: bytes."""

    blocks: int
    malloc: int
    resident: int

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(sys.getallocatedblocks(), mallinfo2().uordblks, 4096 * pages)

    def beyond(self, before: Held) -> Held:
        return Held(*(now - then for now, then in zip(self, before, strict=True)))

    def __str__(self) -> str:
        mebibytes = (
            f"{self.malloc / 2**20:.1f} MiB of malloc's, {self.resident / 2**20:.1f} resident"
        )
        return f"{self.blocks} blocks of Python's, {mebibytes}"


class MallInfo(ctypes.Structure):
    """See mallinfo2(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = MallInfo
