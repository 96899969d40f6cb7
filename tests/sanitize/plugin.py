"""A pytest plugin: the engine is the one that was built with sanitizers, in SANITIZED."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType


class Sanitized:
    """Finds decoding._C and decoding._kernels in a folder."""

    def __init__(self, folder: Path) -> None:
        self.files = {f"decoding.{path.name.split('.')[0]}": path for path in folder.glob("_*.so")}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_file_location(name, self.files[name]) if name in self.files else None


sys.meta_path.insert(0, Sanitized(Path(os.environ["SANITIZED"])))
