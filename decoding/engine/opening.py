"""Opens a GPU in a thread: CUDA and cuBLASLt take half a second, in which a program can import."""

from __future__ import annotations

import contextlib
import re
import threading

from decoding import _C
from decoding.common import environment


def open_gpu(device: str) -> None:
    """Begins with it, for a program that will load a model there. device: as load() takes it. What
    is wrong with the device load() will say."""
    wanted = environment.given_or_set(device, "DECODING_DEVICE")
    gpu = re.fullmatch(r"auto|cuda(?::(\d+))?", wanted)
    if gpu and _C.cuda_archs:
        # No daemon: a process that ends must not pull the driver away from under it.
        threading.Thread(target=touch, args=(int(gpu[1] or 0),)).start()


def touch(index: int) -> None:
    with contextlib.suppress(Exception):
        _C.free_memory(index)
        from decoding.engine.devices import library_folders  # only now: it imports numpy

        _C.look_for_cublaslt(library_folders())
        _C.load_tuned_kernels(index)
