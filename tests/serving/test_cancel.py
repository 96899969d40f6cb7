"""A request that is cancelled while it runs gives its pages back within a few steps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from statistics import median
from typing import Any

import decoding
from tests.serving.engines import tight_engine

NEW = 64  # tokens of the request that is cancelled, and of the one that waits for its pages
BESIDE = 48  # of the one that steps beside them; fewer, so that it ends first
PAGES = 5 + 4  # with one of a source each, so that the third waits for those of the second
TRIES, CANCELS = 200, 20


def steps_until_pages_are_free(engine: decoding.Engine) -> int | None:
    """From a cancel() to the step before the first one of who waits for the pages; None where this
    thread came too late to cancel.

    Nothing is read from a clock, or while it happens: who waits takes NEW steps and is the last to
    step, so the steps that were taken in the end say when its first one was.
    """
    options: dict[str, Any] = {"num_beams": 1, "eos_token_id": None}
    beside = engine.submit([5, 6, 0], max_new_tokens=BESIDE, **options)
    cancelled = engine.submit([7, 8, 0], max_new_tokens=NEW, **options)
    waiting = engine.submit([9, 10, 0], max_new_tokens=NEW, **options)
    first = engine.stats()["steps"]
    while (before := engine.stats())["steps"] < first + 3 and not waiting.done:
        pass
    cancelled.cancel()
    waiting.result(60)
    beside.result(60)
    if before["pages_used"] < PAGES or before["waiting"] == 0:
        return None
    steps: int = engine.stats()["steps"] - NEW - before["steps"]
    return steps


def samples(engine: decoding.Engine) -> Iterator[int]:
    for _ in range(TRIES):
        steps = steps_until_pages_are_free(engine)
        if steps is not None:
            yield steps


def test_pages_are_free_within_four_steps() -> None:
    """The step that runs and one more, on a CPU; other programs may delay this thread between its
    look at the steps and its cancel(), but not every other time."""
    model = decoding.load("demo", device="cpu", dtype="float32", threads=1)
    with tight_engine(model, rows=4, pages=PAGES, prefix_caching=False) as engine:
        found = list(islice(samples(engine), CANCELS))
    assert len(found) == CANCELS and 1 <= median(found) <= 4, found
