"""`kill -9` of workers and parent: tests/corpus/kills.py, in short."""

from __future__ import annotations

from tests.corpus import kills


def test_what_is_killed_ends_as_if_nobody_had() -> None:
    done = kills.run(seed=1, lines=1500, kills=4, shard=50)
    assert done["parents"] + done["workers"] > 0
