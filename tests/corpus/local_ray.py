"""A Ray of this machine's processes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
STARTS = 3  # each gives up after half a minute, which a busy machine may need


@contextlib.contextmanager
def local_ray(cpus: int) -> Iterator[Any]:
    """The module `ray`, whose actors import what this process does."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'ray[data]'")
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    try:
        for start in range(1, STARTS + 1):
            try:
                ray.init(
                    num_cpus=cpus,
                    include_dashboard=False,
                    log_to_driver=False,
                    runtime_env={"env_vars": {"PYTHONPATH": path}},
                )
                break
            except Exception:  # "the current node timed out during startup"
                ray.shutdown()
                if start == STARTS:
                    raise
        yield ray
    finally:
        ray.shutdown()
