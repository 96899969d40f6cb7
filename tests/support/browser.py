"""A browser without a window, for tests of pages."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
WANTED = "DECODING_TEST_BROWSER" in os.environ  # CI has installed it: without it tests fail

in_browser = pytest.mark.skipif(
    BROWSER is None and not WANTED, reason=f"there is no {' or '.join(NAMES)}"
)


def browse(url: str, profile: Path, *options: str) -> str:
    """Opens a page; returns what the browser prints. profile: a folder of its own."""
    assert BROWSER is not None, "DECODING_TEST_BROWSER is set, and there is none"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={profile}", *options, url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
