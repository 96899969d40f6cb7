"""Processes that share out models, with the environment that torchrun gives them.

    python -m tests.tensor_parallel.ranks JOBS GIVEN FOUND

JOBS is a module with a dict of that name: functions by their names, which all ranks call in turn,
each with what was pickled in the file GIVEN. What one returns, or the exception that it raises, is
appended to the file FOUND at once: a rank that is killed leaves what it has found before.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.server.ports import free_port

ROOT = Path(__file__).parents[2]


class Ranks:
    """`size` processes that work on the jobs of a module. environment: of each, beside ours."""

    def __init__(
        self,
        jobs: str,
        given: Any,
        folder: Path,
        size: int = 2,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        place = folder / "given.pickle"
        place.write_bytes(pickle.dumps(given))
        self._found = [folder / f"found.{rank}.pickle" for rank in range(size)]
        command = [sys.executable, "-m", "tests.tensor_parallel.ranks", jobs, str(place)]
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            **(environment or {}),
        }
        self.processes = [
            subprocess.Popen(
                [*command, str(found)],
                env={**os.environ, **shared, "RANK": str(rank), "WORLD_SIZE": str(size)},
                cwd=ROOT,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, found in enumerate(self._found)
        ]

    def results(self, timeout: float) -> list[dict[str, Any]]:
        """What each rank has found, by the names of the jobs, once all have ended."""
        try:
            self.errors = [each.communicate(timeout=timeout)[1] for each in self.processes]
        except subprocess.TimeoutExpired as error:
            done = [[name for name, _ in read(path)] for path in self._found if path.exists()]
            raise TimeoutError(f"after {timeout} s the ranks have done {done}") from error
        finally:
            for each in self.processes:
                each.kill()
        return [dict(read(path)) for path in self._found]


def read(path: Path) -> list[tuple[str, Any]]:
    found = []
    with path.open("rb") as file:
        while True:
            try:
                found.append(pickle.load(file))
            except EOFError:
                return found


def main(jobs: str, given: str, found: str) -> None:
    content = pickle.loads(Path(given).read_bytes())
    with Path(found).open("wb", buffering=0) as file:
        for name, job in import_module(jobs).JOBS.items():
            try:
                result = job(content)
            except Exception as error:
                result = error
            file.write(pickle.dumps((name, result)))


if __name__ == "__main__":
    main(*sys.argv[1:])
