"""A job's folder: what the job is, which shards are finished, and that one process works on it."""

from __future__ import annotations

import fcntl
import json
import os
import reprlib
import textwrap
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from decoding.corpus.formats.compressed import sync
from decoding.corpus.shards import Shard

REMOVERS = 16  # threads


class Finished(NamedTuple):
    """A finished shard: a line of shards.jsonl.

    digest: of what it read. size, checksum: of its file. errors: rows that failed, and
    errors_checksum of the file that says why. set_aside: why all have; None where a worker has
    answered them.
    """

    number: int
    source: int
    first: int
    rows: int
    digest: str
    size: int
    checksum: str
    errors: int
    tokens: int
    set_aside: str | None = None
    errors_checksum: str = ""

    @classmethod
    def read(cls, line: bytes) -> Finished:
        """Raises ValueError or TypeError for what is no such line."""
        found = cls(**json.loads(line))
        for name, kind in get_type_hints(cls).items():
            if not isinstance(getattr(found, name), kind):
                raise TypeError(f"{name} is {reprlib.repr(getattr(found, name))}")
        return found


class Written(NamedTuple):
    """A shard's files are on the disk. failed: the file of its errors, None where there are
    none."""

    shard: Finished
    path: Path
    failed: Path | None
    warnings: tuple[str, ...]


class Folder:
    """recorded: the shards that the journal holds when work begins, finished: those of them whose
    files are there, and new ones. Raises ValueError where another process works on the job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ValueError(f"another process works on {path}: wait for its end") from None
        self.recorded: dict[int, Finished] = {}
        self.finished: dict[int, Finished] = {}

    def manifest(self) -> dict[str, Any] | None:
        """What the folder's job is; None where it has none. Raises ValueError for a damaged one."""
        try:
            found: dict[str, Any] = json.loads((self.path / "manifest.json").read_text("utf-8"))
            if not isinstance(found, dict):
                raise ValueError(f"it is {reprlib.repr(found)}")
            return found
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{self.path}/manifest.json is damaged: {error}") from None

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        replace(self.path / "manifest.json", json.dumps(manifest, indent=1, ensure_ascii=False))

    def begin(self) -> None:
        """Reads which shards are finished, and removes what others have left behind."""
        for path in self.path.glob("*.tmp"):
            path.unlink()
        journal = self.path / "shards.jsonl"
        text = journal.read_bytes() if journal.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]  # the end of a line may be missing: it was not synced
        for number, line in enumerate(whole.split(b"\n")[:-1], 1):
            try:
                shard = Finished.read(line)
            except (TypeError, ValueError) as error:
                said = textwrap.shorten(str(error), 200, placeholder=" ...")
                raise ValueError(f"{journal}, line {number} is damaged: {said}") from None
            self.recorded[shard.number] = shard
        for number, shard in self.recorded.items():
            path = self.shard(number)
            is_whole = path.exists() and path.stat().st_size == shard.size
            if shard.errors and not self.errors(number).exists():
                is_whole = False
            if is_whole and not shard.set_aside:
                self.finished[number] = shard
        self._journal = os.open(journal, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        os.ftruncate(self._journal, len(whole))

    def forget(self) -> None:
        """Removes what is said of shards: none is finished."""
        os.ftruncate(self._journal, 0)

    def shard(self, number: int) -> Path:
        return self.path / f"shard-{number:06d}"

    def errors(self, number: int) -> Path:
        return self.path / f"shard-{number:06d}.errors.jsonl"

    def temporary(self, number: int, process: int) -> Path:
        """Where a process writes a shard, so that two never write the same file."""
        return self.path / f"shard-{number:06d}.{process}.tmp"

    def commit(self, written: Sequence[Written]) -> None:
        """Makes shards finished; their files are on the disk, under names of their writers. Those
        of many workers cost two syncs together. Only the process that has the lock calls it, so one
        that has lost its job changes nothing."""
        for each in written:
            self.errors(each.shard.number).unlink(missing_ok=True)
            if each.failed is not None:
                os.replace(each.failed, self.errors(each.shard.number))
            os.replace(each.path, self.shard(each.shard.number))
        sync(self.path)
        lines = [json.dumps(each.shard._asdict()) + "\n" for each in written]
        write_all(self._journal, "".join(lines).encode())
        os.fsync(self._journal)
        self.finished |= {each.shard.number: each.shard for each in written}

    def check(self, shard: Shard) -> bool:
        """Whether a shard is finished. Raises ValueError where it was one of another input."""
        is_finished = shard.number in self.finished
        if is_finished:
            self.compare(shard)
        return is_finished

    def compare(self, shard: Shard) -> None:
        """Raises ValueError where the journal holds this shard as one of another input."""
        found = self.recorded.get(shard.number)
        now = (shard.source, shard.first, shard.rows, shard.digest)
        if found and (found.source, found.first, found.rows, found.digest) != now:
            raise ValueError(
                f"rows {shard.first + 1} to {shard.first + shard.rows} have changed since the job "
                f"read them: remove {self.path} to begin again"
            )

    def clean(self) -> None:
        """Removes the shards, which have been merged. A file system may take milliseconds for each,
        but side by side no longer for all."""
        with ThreadPoolExecutor(REMOVERS) as threads:
            list(threads.map(Path.unlink, self.path.glob("shard-*")))

    def close(self) -> None:
        if hasattr(self, "_journal"):
            os.close(self._journal)
        os.close(self._lock)


def replace(path: Path, text: str, durable: bool = True) -> None:
    """Writes a file whole or not at all. durable: it is on the disk at the end."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if durable:
        sync(path.parent)


def write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def as_json(value: Any, name: str = "") -> Any:
    """A manifest as its file gives it back, lists for tuples. Raises TypeError, with the name of
    the field, for what JSON cannot hold."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: as_json(each, f"{name}.{key}" if name else key) for key, each in value.items()}
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} is {reprlib.repr(value)}: a job writes down what it is as JSON, which holds "
            "strings, numbers, booleans, None, and lists and dicts of these"
        ) from None


def differences(now: Any, was: Any, name: str = "") -> list[str]:
    """Where two manifests differ, as sentences."""
    if isinstance(now, dict) and isinstance(was, dict):
        keys = [*now, *(key for key in was if key not in now)]
        each = (differences(now.get(k), was.get(k), f"{name}.{k}" if name else k) for k in keys)
        return [line for lines in each for line in lines]
    return [] if now == was else [f"{name} is {shown(now)} and was {shown(was)}"]


def shown(value: Any) -> str:
    return textwrap.shorten(json.dumps(value), 200, placeholder=" ...")
