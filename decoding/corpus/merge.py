"""Joins the finished shards of a job to its outputs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from decoding.corpus.folder import Finished, Folder
from decoding.corpus.formats import parquet
from decoding.corpus.formats.compressed import sync
from decoding.corpus.plan import Plan


def merge(plan: Plan, folder: Folder, rows: Sequence[int]) -> dict[str, Any]:
    """Writes the outputs; returns the rows, size and checksum of each. rows: of each input. Raises
    ValueError where a shard is not what it was when it was finished, or rows are missing."""
    shards = [folder.finished[number] for number in sorted(folder.finished)]
    for number, shard in enumerate(shards):
        check(folder, shard, number)
    per_source = [sum(s.rows for s in shards if s.source == i) for i in range(len(rows))]
    if per_source != list(rows):
        raise ValueError(f"the shards of {folder.path} have {per_source} rows, not {list(rows)}")
    merge_errors(folder, shards)
    done = {}
    for index, path in enumerate(plan.outputs):
        own = [s for s in shards if s.source == index or not plan.output.apart]
        path.parent.mkdir(parents=True, exist_ok=True)
        parts = [folder.shard(shard.number) for shard in own]
        count = sum(shard.rows for shard in own)
        with appearing(path) as temporary:
            if plan.output.type.kind == "parquet":
                written = parquet.joined([str(part) for part in parts], str(temporary))
                if written != count:
                    raise ValueError(f"{path} would have {written} rows, not {count}")
            else:
                join(parts, temporary)
            size, checksum = temporary.stat().st_size, checksum_of(temporary)
        done[path.name] = {"rows": count, "bytes": size, "sha256": checksum}
    return done


def check(folder: Folder, shard: Finished, number: int) -> None:
    path = folder.shard(shard.number)
    if shard.number != number:
        raise ValueError(f"shard {number} is missing in {folder.path}: pass --resume")
    if path.stat().st_size != shard.size or checksum_of(path) != shard.checksum:
        raise ValueError(f"{path} has changed since it was written: remove it, and pass --resume")
    errors = folder.errors(shard.number)
    if shard.errors_checksum and checksum_of(errors) != shard.errors_checksum:
        raise ValueError(f"{errors} has changed since it was written: remove it, and pass --resume")


def checksum_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def merge_errors(folder: Folder, shards: Sequence[Finished]) -> None:
    """The rows that failed, in one file; none where there are none."""
    parts = [folder.errors(shard.number) for shard in shards if shard.errors]
    if parts:
        join(parts, folder.path / "errors.tmp")
        os.replace(folder.path / "errors.tmp", folder.path / "errors.jsonl")
    else:
        (folder.path / "errors.jsonl").unlink(missing_ok=True)


def join(parts: Sequence[Path], path: Path) -> None:
    with path.open("wb") as file:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file, 1 << 20)
    sync(path)


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A temporary file, which gets its name in one step at the end, or is removed.

    It lies beside that name, not in the job's folder: a directory of outputs may be a mount point,
    or a link to one, and no file is renamed from one file system to another. The output's name is
    in its own, since jobs of several machines may share the directory; the next run overwrites what
    a killed one has left.
    """
    temporary = path.with_name(f".{path.name}.job.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)
