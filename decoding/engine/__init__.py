"""The engine of one model: where it runs, its memory, its sessions."""

from __future__ import annotations

from pathlib import Path

from decoding.engine.build_check import check_built

check_built(Path(__file__).parent.parent)
