"""`kill -9` of workers and parent: tests/corpus/kills.py, in short."""

from __future__ import annotations

from tests.corpus import kills


def test_what_is_killed_ends_as_if_nobody_had() -> None:
    for seed in range(3):  # a busy machine may run one to its end before the first kill
        done = kills.run(seed, lines=1200, kills=3, shard=120)
        if done["parents"] + done["workers"]:
            return
    raise AssertionError("nothing was killed")
