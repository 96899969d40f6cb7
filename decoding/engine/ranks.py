"""How the processes that share out one model find each other (tensor parallelism).

torch.distributed carries what they tell each other once, as a model is loaded. In a step they meet
in memory that they share (csrc/kernels/cpu/collective.h), so they are on one machine.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from decoding import _C

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

SHARED = 32 << 20  # bytes of shared memory: what an exchange may hold, but for very wide models
PAGE = 4096
NUMBER = 4  # bytes of a float32
BOOT = Path("/proc/sys/kernel/random/boot_id")  # tells machines of one name apart


@dataclass(frozen=True)
class Ranks:
    """The processes of a model, and this one's place among them."""

    rank: int
    size: int
    collective: _C.Collective

    @contextmanager
    def call(self, asked: Iterable[bytes]) -> Iterator[None]:
        """A call that all ranks make. It waits for all, and raises decoding.Error where one has
        ended or asks for something else; what is raised inside ends the call on the others, too."""
        digest = blake2b(digest_size=8)
        for part in asked:
            digest.update(len(part).to_bytes(8, "little") + part)
        self.collective.begin(int.from_bytes(digest.digest(), "little"))
        try:
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
        self._check_started(size, str(dist.get_world_size()))
        self._dist, self.size, self.rank = dist, size, dist.get_rank()
        self._group: ProcessGroup | None = None
        if dist.get_backend() != "gloo":
            self._group = dist.new_group(backend="gloo")

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
        """What each rank has given."""
        found: list[Any] = [None] * self.size
        self._dist.all_gather_object(found, value, group=self._group)
        return found

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


def join(group: Group, widest: int) -> Ranks:
    """Memory that all ranks share. widest: numbers of the widest row that they exchange.

    Raises decoding.Error where there is none, ValueError where they are on several machines.
    """
    group.check_equal({"the machine": machine()})
    size = group.size
    part = max(SHARED // (2 * size), NUMBER * widest)
    part = -(-part // PAGE) * PAGE
    path = ""
    with group.together():
        if group.rank == 0:
            path = shared_file(_C.collective_bytes(size, part))
    path = group.gather(path)[0]
    try:
        with group.together():
            collective = _C.Collective(path, rank=group.rank, size=size, part_bytes=part)
    finally:
        if group.rank == 0:
            Path(path).unlink()  # who has it mapped keeps it
    return Ranks(group.rank, size, collective)


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
