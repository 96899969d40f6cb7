"""Runs a job: hands shards to workers, keeps what is finished, and joins it at the end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoding.corpus.devices import places
from decoding.corpus.folder import Folder, Written, as_json, differences
from decoding.corpus.merge import merge
from decoding.corpus.plan import plan
from decoding.corpus.pool import Pool, Worker
from decoding.corpus.row_task import RowTask
from decoding.corpus.shard_answers import Setup, set_aside
from decoding.corpus.shards import Shard, cut
from decoding.corpus.status import Status
from decoding.corpus.worker import Ended, Ready

DEATHS = 3  # of workers, after which a shard is set aside
LISTEN = 0.5  # seconds to wait for workers before the status is written
WARNINGS = 20  # that are passed on


class JobError(RuntimeError):
    """A job cannot go on; what is finished is kept."""


@dataclass(frozen=True)
class Done:
    """What a job has come to, in all its runs. computed, seconds: of this one. set_aside: shards
    that killed their workers, in words. errors: rows that failed, those of such shards too."""

    outputs: tuple[Path, ...]
    folder: Path
    rows: int
    errors: int
    tokens: int
    computed: int
    seconds: float
    set_aside: tuple[str, ...]


class Job:
    """A task over files, in processes, that can be interrupted at any moment and resumed.

    inputs: files and patterns. output: a file, or a directory: one that is there or ends with "/".
    input_format, output_format: lines, json, tsv, csv or parquet; None: by the files' names.
    encoding, errors: of text, as the command line has them. shard_lines: rows that a worker has in
    hand at most, in two shards. resume: go on with the job that the output's folder holds, if there
    is one. devices: such as ["cuda:0", "cuda:1"], one worker each, or "all" for all GPUs; workers:
    so many on one device, where devices has one. progress: a bar on standard error.

    Raises ValueError and OSError for files, formats and options that do not go together, for a job
    that is there already or, with resume, is another one.
    """

    def __init__(
        self,
        task: RowTask,
        inputs: Sequence[str | os.PathLike[str]],
        output: str | os.PathLike[str],
        *,
        input_format: str | None = None,
        output_format: str | None = None,
        encoding: str = "utf-8",
        errors: str = "strict",
        shard_lines: int = 10_000,
        resume: bool = False,
        devices: Sequence[str] | str = ("auto",),
        workers: int = 1,
        progress: bool = False,
    ) -> None:
        self.task = task
        self.devices = places(devices, workers)
        self.plan = plan(
            task,
            inputs,
            output,
            input_format=input_format,
            output_format=output_format,
            encoding=encoding,
            errors=errors,
            shard_lines=shard_lines,
        )
        self._resume, self._progress = resume, progress
        self._warned: set[str] = set()

    def run(self) -> Done:
        """Works until all shards are finished and joined. Raises JobError where no worker is left,
        OSError where the disk is full: what is finished is kept for a job that resumes. Raises
        TypeError for options that JSON cannot hold."""
        folder = Folder(self.plan.folder)
        status = None
        try:
            folder.begin()
            manifest = self._manifest(folder)
            if "done" in manifest:
                self._check_inputs(folder, manifest["done"]["rows"])
                return self._done(manifest["done"], 0, 0.0)
            status = Status(folder.path, self._progress)
            return self._work(folder, status, manifest)
        finally:
            if status is not None:
                status.close()
            folder.close()

    def _manifest(self, folder: Folder) -> dict[str, Any]:
        """Of this job, written where the folder has nothing that another run could want."""
        now, was = {"job": as_json(self.plan.manifest(self.task))}, folder.manifest()
        if was is None or not (folder.finished or "done" in was):
            folder.forget()
            folder.write_manifest(now)
            return now
        if not self._resume:
            raise ValueError(
                f"{folder.path} holds a job: pass --resume (resume=True) to go on with it, or "
                "remove the folder"
            )
        differing = differences(now["job"], was.get("job"))
        if differing:
            raise ValueError(
                f"{folder.path} holds another job: {differing[0]}; remove the folder to begin again"
            )
        missing = [path for path in self.plan.outputs if "done" in was and not path.exists()]
        if missing:
            raise ValueError(
                f"{missing[0]} was finished and is not there: remove {folder.path} to begin again"
            )
        if "done" in was and was["done"]["set_aside"]:
            del was["done"]
        return was

    def _check_inputs(self, folder: Folder, rows: int) -> None:
        """Raises ValueError where an input of a job that is done has changed: its shards have been
        removed, but the journal still says what they read. rows: that the inputs had."""
        found = 0
        for shard in cut(self.plan.sources, self.plan.layout, self.plan.rows, [*folder.recorded]):
            folder.compare(shard)
            found += shard.rows
        if found != rows:  # whole shards more or less, of which the journal says nothing
            raise ValueError(
                f"the inputs have {found} rows and had {rows} when the job read them: remove "
                f"{folder.path} to begin again"
            )

    def _work(self, folder: Folder, status: Status, manifest: dict[str, Any]) -> Done:
        setup = Setup(
            self.task,
            self.plan.layout,
            self.plan.output,
            tuple(source.path for source in self.plan.sources),
            folder.path,
            len(self.devices),
            self.plan.in_hand,
        )
        rows = [0] * len(self.plan.sources)
        state = "failed"
        with Pool(setup, self.devices) as pool:
            try:
                shards = self._unfinished(folder, status, rows)
                self._compute(pool, shards, setup, folder, status)
                state = "done"
            except KeyboardInterrupt:
                state = "interrupted"
                raise
            finally:
                if state != "done":
                    status.write(pool.workers, state)
            pool.dismiss()  # they end meanwhile
            done = self._finish(folder, status, manifest, rows)
        status.write([], state)
        return done

    def _unfinished(self, folder: Folder, status: Status, rows: list[int]) -> Iterator[Shard]:
        """The shards to compute. rows: gets those of each source."""
        for shard in cut(self.plan.sources, self.plan.layout, self.plan.rows, [*folder.finished]):
            rows[shard.source] += shard.rows
            if folder.check(shard):
                status.add(shard, folder.finished[shard.number], is_new=False)
            else:
                yield shard

    def _compute(
        self, pool: Pool, shards: Iterator[Shard], setup: Setup, folder: Folder, status: Status
    ) -> None:
        waiting: list[Shard] = []
        while True:
            while pool.lacks(waiting) and (shard := next(shards, None)):
                waiting.append(shard)
            pool.assign(waiting)
            if not waiting and not pool.is_working:
                return
            if pool.is_given_up:
                raise JobError(f"no worker is left: {pool.deaths[-1]} (--resume goes on)")
            heard = pool.heard(LISTEN)
            written = [(shards[0], said) for _, said, shards in heard if isinstance(said, Written)]
            self._keep(folder, status, written)
            for worker, said, lost in heard:
                if isinstance(said, Ready):
                    self._warn(said.warnings)
                elif isinstance(said, Ended):
                    given_up = self._bury(pool, worker, said, lost, setup, status)
                    self._keep(folder, status, given_up)
                    waiting[:0] = [shard for shard in lost if len(shard.deaths) < DEATHS]
            status.write(pool.workers)

    def _keep(
        self, folder: Folder, status: Status, written: Sequence[tuple[Shard, Written]]
    ) -> None:
        """Makes shards finished."""
        if written:
            folder.commit([each for _, each in written])
        for shard, each in written:
            status.add(shard, each.shard, is_new=True)
            name = Path(self.plan.sources[shard.source].path).name
            self._warn([f"{name}, behind row {shard.first}: {said}" for said in each.warnings])

    def _warn(self, messages: Sequence[str]) -> None:
        """Passes on what workers warn of, each once, and so many that they can be read."""
        for message in messages:
            if message not in self._warned and len(self._warned) <= WARNINGS:
                more = "; more warnings are left out" if len(self._warned) == WARNINGS else ""
                self._warned.add(message)
                warnings.warn(message + more, stacklevel=2)

    def _bury(
        self,
        pool: Pool,
        worker: Worker,
        ended: Ended,
        lost: Sequence[Shard],
        setup: Setup,
        status: Status,
    ) -> list[tuple[Shard, Written]]:
        """What follows when a worker has ended: another one takes the shards that it had in hand,
        but for those that are set aside, which are returned."""
        pool.deaths.append(f"{worker.device}: {ended.reason}")
        if ended.is_users:
            raise JobError(ended.reason)
        for shard in lost:
            shard.deaths.append(ended.reason)
            if len(lost) == 1:  # else it may be the other that no worker survives
                shard.places.add(worker.number)
        dead = [shard for shard in lost if len(shard.deaths) >= DEATHS]
        return [(shard, self._set_aside(shard, ended.reason, setup, status)) for shard in dead]

    def _set_aside(self, shard: Shard, last: str, setup: Setup, status: Status) -> Written:
        name = Path(self.plan.sources[shard.source].path).name
        place = f"{name}, rows {shard.first + 1} to {shard.first + shard.rows}"
        status.set_aside.append(f"{place} (shard {shard.number}): {last}")
        reason = f"its shard has ended {DEATHS} workers, the last one with: {last}"
        return set_aside(setup, shard, reason)

    def _finish(
        self, folder: Folder, status: Status, manifest: dict[str, Any], rows: list[int]
    ) -> Done:
        outputs = merge(self.plan, folder, rows)
        found = list(folder.finished.values())
        manifest["done"] = {
            "outputs": outputs,
            "rows": sum(rows),
            "errors": sum(shard.errors for shard in found),
            "tokens": sum(shard.tokens for shard in found),
            "set_aside": status.set_aside,
        }
        folder.write_manifest(manifest)
        if not status.set_aside:
            folder.clean()
        return self._done(manifest["done"], status.computed, status.seconds)

    def _done(self, done: dict[str, Any], computed: int, seconds: float) -> Done:
        return Done(
            self.plan.outputs,
            self.plan.folder,
            done["rows"],
            done["errors"],
            done["tokens"],
            computed,
            seconds,
            tuple(done["set_aside"]),
        )


def run(
    task: RowTask,
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    **options: Any,
) -> Done:
    """Runs a job; the arguments and errors are those of Job and Job.run()."""
    return Job(task, inputs, output, **options).run()
