"""The page of a comparison in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colors, image

from decoding.compare.report.sections import comparison_page
from tests.compare.test_report import compared
from tests.support.browser import browse, in_browser

DESKTOP, PHONE = 1280, 500  # pixels; headless Chromium has no narrower window
# Tells how wide the page wants to be; itself, it has no scripts.
WIDTH = '<script>document.title = "wide " + document.documentElement.scrollWidth</script></body>'

pytestmark = in_browser


def shown(page: Path, *options: str) -> str:
    return browse(page.as_uri(), page.parent / "profile", *options)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(comparison_page(compared()).html().replace("</body>", WIDTH), "utf-8")
    return path


def test_screenshot(page: Path) -> None:
    """Every engine's colour and the page's ground are seen, and much else."""
    shot = page.with_name("shot.png")
    shown(page, f"--screenshot={shot}", f"--window-size={DESKTOP},2600")
    pixels = (image.imread(shot)[..., :3] * 255).round().astype(np.uint8)
    assert pixels.shape == (2600, DESKTOP, 3)
    text = page.read_text("utf-8")
    for name, least in {"paper": 100_000, "blue": 200, "orange": 200, "ink": 2000}.items():
        found = re.search(rf"--{name}: (#\w+)", text)
        assert found
        colour = (np.array(colors.to_rgb(found[1])) * 255).round().astype(np.uint8)
        assert (pixels == colour).all(-1).sum() > least, name


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_nothing_is_wider_than_the_window(page: Path, width: int) -> None:
    found = shown(page, "--dump-dom", f"--window-size={width},900")
    assert f"<title>wide {width}</title>" in found
