"""The demo model's folder, for tests that load it."""

from pathlib import Path

DEMO = Path(__file__).parents[2] / "models/demo"
