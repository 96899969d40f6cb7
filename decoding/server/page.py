"""GET /: the page on which a server can be tried."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from decoding.server.endpoint import Call, Reply

# The page is whole: a browser lets it ask this server alone.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


@cache
def text() -> str:
    return Path(__file__).with_name("page.html").read_text("utf-8")


async def page(call: Call) -> Reply:
    headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff"}
    return Reply(text(), type="text/html; charset=utf-8", headers=headers)
