"""How far a job is: a bar in a terminal, and status.json for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoding.corpus.folder import Finished, replace
from decoding.corpus.pool import Worker
from decoding.corpus.shards import Shard

PAUSE = 1.0  # seconds between two writings
BAR = "{percentage:3.0f}%|{bar}| {desc}"


class Status:
    """Counts rows, and writes where the job stands. progress: in a terminal too."""

    def __init__(self, folder: Path, progress: bool) -> None:
        self._path = folder / "status.json"
        self.rows = self.errors = self.tokens = self.shards = 0
        self.computed = 0  # rows of this run
        self.set_aside: list[str] = []
        self._share = self._begun_at = 0.0
        self._begin, self._next = time.monotonic(), 0.0
        self._bar: Any = None
        if progress:
            from tqdm import tqdm

            self._bar = tqdm(total=1.0, bar_format=BAR, file=sys.stderr)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def add(self, shard: Shard, finished: Finished, is_new: bool) -> None:
        """A shard is finished. is_new: in this run."""
        self.rows, self.shards = self.rows + finished.rows, self.shards + 1
        self.errors, self.tokens = self.errors + finished.errors, self.tokens + finished.tokens
        self._share += shard.share
        if is_new:
            self.computed += finished.rows
        else:
            self._begun_at += shard.share

    def write(self, workers: Sequence[Worker], state: str = "running") -> None:
        """Writes, where it is time to, or where the job's state is another one."""
        if state == "running" and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PAUSE
        computing = sum(worker.rows for worker in workers)
        share = self._share + sum(worker.share for worker in workers)
        rate = (self.computed + computing) / max(self.seconds, 1e-9)
        gained = share - self._begun_at
        left = (1 - share) * self.seconds / gained if gained > 0 else None
        fields = {
            "state": state,
            "rows": self.rows + computing,
            "errors": self.errors,
            "shards": self.shards,
            "share": round(min(share, 1.0), 4),
            "seconds": round(self.seconds, 1),
            "rows_per_second": round(rate, 1),
            "seconds_left": None if left is None else round(max(left, 0.0), 1),
            "set_aside": self.set_aside,
            "workers": [described(worker) for worker in workers],
        }
        replace(self._path, json_text(fields), durable=False)
        if self._bar is not None:
            self._bar.n = min(share, 1.0)
            self._bar.set_description_str(said(self.rows + computing, rate, left, self.errors))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def json_text(fields: dict[str, Any]) -> str:
    import json

    return json.dumps(fields, indent=1, ensure_ascii=False)


def described(worker: Worker) -> dict[str, Any]:
    return {
        "device": worker.device,
        "process": None if worker.process is None else worker.process.pid,
        "shards": list(worker.shards),
        "rows": worker.rows,
    }


def said(rows: int, rate: float, left: float | None, errors: int) -> str:
    from tqdm import tqdm

    failed = f", {errors} failed" if errors else ""
    time_left = "" if left is None else f", {tqdm.format_interval(max(left, 0))} left"
    return f"{rows} rows{failed}, {rate:.1f} rows/s{time_left}"
