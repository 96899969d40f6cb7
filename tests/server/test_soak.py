"""A moment of the soak: see tests/server/soak.py."""

from __future__ import annotations

from tests.server.live import Live
from tests.server.soak import soak


def test_a_moment(live: Live) -> None:
    answered, _ = soak(live, 1)
    assert all(answered.values())
