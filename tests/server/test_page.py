"""The page of a server, in a real browser that talks to one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from decoding.server.errors import ApiError
from decoding.server.page import text
from decoding.server.served import Served
from tests.server.live import Live
from tests.server.models import STORIES, engine
from tests.support.browser import browse, in_browser
from tests.support.demo import DEMO

DESKTOP, PHONE = 1280, 500  # pixels; headless Chromium has no narrower window
# Types into the page, and writes what it then shows into the title.
SCRIPT = """<script>
const wide = () => document.documentElement.scrollWidth;
function typed(id, value) { $(id).value = value; $(id).dispatchEvent(new Event("input")); }
async function until(found) { while (!found()) await new Promise(go => setTimeout(go, 20)); }
(async () => {
  await until(() => chosen.model);
  typed("text", "Guten Morgen!");
  await until(() => $("translation").textContent && $("alternatives").children.length);
  const said = { translation: $("translation").textContent, wide: wide(), model: chosen.model };
  said.alternatives = [...$("alternatives").children].map(line => line.textContent);
  const word = $("translation").querySelector(".word");
  word.onmouseenter();
  said.on = [...document.querySelectorAll(".on")].map(span => span.textContent);
  word.onmouseleave();
  said.off = document.querySelectorAll(".on").length;
  show("complete");
  chosen.model = "stories";
  $("temperature").value = 0;
  $("tokens").value = 20;
  await complete();
  said.answer = $("answer").textContent;
  said.tokens = [...$("answer").querySelectorAll(".token")].map(span => span.title);
  await until(() => /tokens/.test($("speed").textContent));
  said.speed = $("speed").textContent;
  said.error = $("error").textContent;
  said.wider = wide();
  show("translate");
  await translate();
  document.title = JSON.stringify(said);
})();
</script></html>"""


def test_the_page_is_whole() -> None:
    """It names nothing outside of it, and writes no HTML of what others say."""
    found = text()
    assert not re.findall(r"""(?:https?:)?//\w|src=|@import|url\(""", found)
    assert "innerHTML" not in found and "prefers-color-scheme: dark" in found


def test_how_it_is_sent(live: Live) -> None:
    said = live.ask("/")
    assert said.status == 200 and said.body == text()
    assert "connect-src 'self'" in said.headers["content-security-policy"]


def played(
    live: Live, width: int, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """What the page has shown to the user that SCRIPT plays."""
    whole = text().replace("</html>", SCRIPT)
    monkeypatch.setattr("decoding.server.page.text", lambda: whole)
    options = [f"--window-size={width},900", "--timeout=20000", "--dump-dom"]
    options += ["--virtual-time-budget=20000"]
    dom = browse(f"{live.url}/", profile, *options)
    [title] = re.findall(r"<title>(.*?)</title>", dom)
    said: dict[str, Any] = json.loads(title.replace("&quot;", '"').replace("&amp;", "&"))
    return said


@in_browser
class TestBrowser:
    """With the page's own script, and one that plays its user."""

    @pytest.mark.parametrize("width", [DESKTOP, PHONE])
    def test_what_a_user_sees(
        self, width: int, live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said = played(live, width, tmp_path, monkeypatch)
        model = live.model("demo")
        assert said["translation"] == model.translate("Guten Morgen!", num_beams=4)
        found = model.translate("Guten Morgen!", num_beams=4, n_best=4, unique=True)
        assert said["alternatives"] == [one.text for one in found[1:]]
        assert said["on"] == ["Guten", "Good"] and said["off"] == 0
        expected = live.model("stories").complete("Once upon a time", max_new_tokens=20)
        assert said["answer"] == expected and len(said["tokens"]) == 20
        assert all(re.fullmatch(r"[\d.]+ %", share) for share in said["tokens"])
        assert said["error"] == "" and re.fullmatch(r"\d+ tokens/s, \d+ running", said["speed"])
        assert said["wide"] <= width and said["wider"] <= width

    def test_models_that_are_split(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The page asks once for what they do not tell, and shows the rest."""

        def refuse(served: Served, reads_again: bool) -> None:
            if reads_again:
                raise ApiError(400, "this model is split over processes")

        monkeypatch.setattr(Served, "check_reads_again", refuse)
        with Live({"demo": engine(DEMO), "stories": engine(STORIES)}) as live:
            said = played(live, PHONE, tmp_path, monkeypatch)
            model, responses = live.model("demo"), live.site.metrics.responses
        assert said["translation"] == model.translate("Guten Morgen!", num_beams=4)
        assert said["alternatives"] and said["on"] == ["Good"]
        assert len(said["answer"]) > 20 and said["tokens"] == [] and said["error"] == ""
        assert responses["/translate", 400] == responses["/v1/completions", 400] == 1
        assert responses["/translate", 200] == 2 and responses["/v1/completions", 200] == 1

    @pytest.mark.parametrize("dark", [False, True])
    def test_screenshot(self, dark: bool, live: Live, tmp_path: Path) -> None:
        shot = tmp_path / "shot.png"
        options = [f"--screenshot={shot}", "--window-size=1280,900"]
        options += ["--virtual-time-budget=3000"]
        options += ["--blink-settings=preferredColorScheme=0"] if dark else []
        browse(f"{live.url}/", tmp_path / "profile", *options)
        pixels = (image.imread(shot)[..., :3] * 255).round().astype(np.uint8)
        assert pixels.shape == (900, 1280, 3)
        papers = re.findall(r"--paper: #(\w{6})", text())
        paper = np.frombuffer(bytes.fromhex(papers[int(dark)]), np.uint8)
        assert (pixels == paper).all(-1).mean() > 0.5
