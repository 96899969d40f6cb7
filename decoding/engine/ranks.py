"""How the processes that share out one model find each other (tensor parallelism).

torch.distributed carries what they tell each other once, as a model is loaded. In a step they meet
in memory that they share (csrc/kernels/cpu/collective.h, and cuda/ beside it for that of GPUs), so
they are on one machine.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoding import _C
from decoding.common import environment
from decoding.common.device import Device
from decoding.common.warn import warn

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

SHARED = 32 << 20  # bytes of shared memory: what an exchange may hold, but for very wide models
SHARED_ON_GPU = 64 << 20  # of each GPU
LEAST_ON_GPU = 1 << 20  # of a part
MESSAGE = 64 << 10  # bytes of a part of hosts that exchange no numbers
PAGE = 4096
NUMBER = 4  # bytes of a float32
BOOT = Path("/proc/sys/kernel/random/boot_id")  # tells machines of one name apart


@dataclass(frozen=True)
class Ranks:
    """The processes of a model, and this one's place among them.

    widest: numbers of the widest row that they exchange. gpus: on GPUs. engines: that are open, in
    which the other ranks follow rank 0.
    """

    group: Group
    device: Device
    widest: int
    collective: _C.Collective
    gpus: _C.CudaCollective | None = None
    engines: weakref.WeakSet[_C.Engine] = field(default_factory=weakref.WeakSet)

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def ours(self) -> _C.Collective | _C.CudaCollective:
        """What a compiled session or engine exchanges numbers through."""
        return self.collective if self.gpus is None else self.gpus

    def beside(self) -> Ranks:
        """The same processes with memory of their own, for an engine beside the model's calls. All
        ranks ask for it."""
        return join(self.group, self.widest, self.device)

    @contextmanager
    def call(self, asked: Iterable[bytes]) -> Iterator[None]:
        """A call that all ranks make. It waits for all, and raises decoding.Error where one has
        ended or asks for something else; what is raised inside ends the call on the others, too."""
        if self.engines:
            raise NotImplementedError(
                "while an Engine of a model with tensor_parallel is open, its ranks make no other "
                "calls: close it first"
            )
        with self._launch_lock(), self.begun(asked):
            yield
        if self.gpus is not None:
            self.gpus.leave()

    def _launch_lock(self) -> AbstractContextManager[None]:
        """Keeps the process's other split models from launching (kernels/cuda/launch_order.h)."""
        return nullcontext() if self.gpus is None or self.rank > 0 else _C.CudaLaunchLock()

    @contextmanager
    def begun(self, asked: Iterable[bytes]) -> Iterator[None]:
        """The same, but for the end of the call."""
        digest = blake2b(digest_size=8)
        for part in asked:
            digest.update(len(part).to_bytes(8, "little") + part)
        self.collective.begin(int.from_bytes(digest.digest(), "little"))
        try:
            if self.gpus is not None:
                self.gpus.enter()
            yield
        except BaseException as error:
            self.collective.fail(said(error))
            raise

    def any(self, flag: bool) -> bool:
        """Whether the flag of some rank is set, inside a call."""
        return self.collective.max_of(int(flag)) > 0


class Group:
    """torch.distributed's group of all processes that torchrun has started."""

    def __init__(self, size: int) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():
            self._check_started(size, os.environ.get("WORLD_SIZE"))
            dist.init_process_group("gloo")
            atexit.register(self._leave)  # its threads, left to the end of Python, may abort it
        self._check_started(size, str(dist.get_world_size()))
        self._dist, self.size, self.rank = dist, size, dist.get_rank()
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
        self._group: ProcessGroup | None = None
        if dist.get_backend() != "gloo":
            self._group = dist.new_group(backend="gloo")

    @staticmethod
    def _leave() -> None:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()

    @staticmethod
    def _check_started(size: int, world: str | None) -> None:
        if world == str(size):
            return
        found = "this one runs alone" if world is None else f"there are {world}"
        raise ValueError(
            f"tensor_parallel={size} needs {size} processes, and {found}: start the program with "
            f"`torchrun --nproc-per-node {size} program.py`"
        )

    def gather(self, value: Any) -> list[Any]:
        """What each rank has given. Raises decoding.Error where one has ended."""
        found: list[Any] = [None] * self.size
        try:
            self._dist.all_gather_object(found, value, group=self._group)
        except RuntimeError as error:  # of gloo
            raise _C.Error(f"a rank has ended while the model was loaded: {error}") from error
        return found

    def smallest(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """Of each of them the smallest that a rank has given."""
        each = self.gather(dict(numbers))
        return {name: min(of[name] for of in each) for name in numbers}

    def check_equal(self, facts: Mapping[str, object]) -> None:
        """Raises ValueError, on all ranks, that names what differs between two of them."""
        first, *others = self.gather(dict(facts))
        for rank, theirs in enumerate(others, 1):
            for name, value in first.items():
                if theirs[name] != value:
                    raise ValueError(
                        f"the ranks of a model must be alike, and {name} is {value!r} on rank 0, "
                        f"{theirs[name]!r} on rank {rank}"
                    )

    @contextmanager
    def together(self) -> Iterator[None]:
        """What all ranks must do: where one of them raises, all others raise decoding.Error."""
        try:
            yield
        except BaseException as error:
            self.gather(said(error))
            raise
        for rank, found in enumerate(self.gather(None)):
            if found is not None:
                raise _C.Error(f"rank {rank} failed: {found}")


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def machine() -> str:
    boot = BOOT.read_text(encoding="ascii").strip() if BOOT.exists() else ""
    return f"{os.uname().nodename} {boot}"


def join(group: Group, widest: int, device: Device) -> Ranks:
    """Memory that all ranks share. widest: numbers of the widest row that they exchange.

    Raises decoding.Error where there is none, ValueError where they are on several machines.
    """
    group.check_equal({"the machine": machine()})
    if device.index is None:
        hosts = join_hosts(group, part_bytes(SHARED // (2 * group.size), widest))
        return Ranks(group, device, widest, hosts)
    hosts = join_hosts(group, MESSAGE)  # which only agree on what they do
    return Ranks(group, device, widest, hosts, join_gpus(group, hosts, device.index, widest))


def part_bytes(usual: int, widest: int) -> int:
    """Of what a rank gives to an exchange."""
    return -(-max(usual, NUMBER * (widest + PAGE)) // PAGE) * PAGE


def join_hosts(group: Group, part: int) -> _C.Collective:
    with new_file(group, _C.collective_bytes(group.size, part)) as path:
        return _C.Collective(path, rank=group.rank, size=group.size, part_bytes=part)


def join_gpus(group: Group, hosts: _C.Collective, index: int, widest: int) -> _C.CudaCollective:
    """Memory of each GPU, or where not all can write to each other's, of the host."""

    def collective(shared: int) -> _C.CudaCollective:
        part = part_bytes(max(shared, LEAST_ON_GPU), widest)
        with group.together():
            return _C.CudaCollective(hosts, device=index, part_bytes=part)

    used = group.gather(index)
    if group.rank == 0 and len(set(used)) < len(used):
        warn(
            "several ranks share a GPU, and each step waits until it has gone from one to the "
            'other: that is for tests; leave device="cuda" without a number, and each rank has its '
            "own"
        )
    own = collective(SHARED_ON_GPU // (2 * group.size))
    reason = open_peers(group, own)
    if reason is None:
        return own
    if group.rank == 0:
        warn(f"the GPUs of the ranks exchange through the host's memory, which is slower: {reason}")
    own = collective(SHARED // (2 * group.size**2))
    with new_file(group, own.host_bytes) as path:
        own.open_on_host(path)
    return own


def open_peers(group: Group, own: _C.CudaCollective) -> str | None:
    """Has all ranks open the memory of each other. Returns why one cannot."""
    handle, reason = b"", None
    try:
        if not environment.peer_access():
            raise _C.Error("DECODING_PEER_ACCESS is 0")
        handle = own.share()
    except (_C.Error, MemoryError) as error:
        reason = str(error)
    handles, reasons = zip(*group.gather((handle, reason)), strict=True)
    if not any(reasons):
        try:
            own.open(list(handles))
        except _C.Error as error:
            reason = str(error)
        reasons = tuple(group.gather(reason))
    return next(filter(None, reasons), None)


@contextmanager
def new_file(group: Group, size: int) -> Iterator[str]:
    """A file of so many zeros for all ranks to map, whose name is gone afterwards."""
    path = ""
    with group.together():
        if group.rank == 0:
            path = shared_file(size)
    path = group.gather(path)[0]
    try:
        with group.together():
            yield path
    finally:
        if group.rank == 0:
            Path(path).unlink()  # who has it mapped keeps it


def shared_file(size: int) -> str:
    """A new file of so many zeros, in memory where Linux has a place for that. Raises
    decoding.Error where there is no room."""
    memory = Path("/dev/shm")
    handle, path = tempfile.mkstemp(prefix="decoding-", dir=memory if memory.is_dir() else None)
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        Path(path).unlink()
        raise _C.Error(f"the ranks of a model share {size} bytes at {path}: {error}") from error
    finally:
        os.close(handle)
    return path
