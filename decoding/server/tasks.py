"""What a handler waits for: threads, where work would stop the event loop, and several things."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import decoding

LARGE = 8192  # characters whose ids are made in a thread, so that the loop goes on
T = TypeVar("T")


async def uncancelled(
    submitting: concurrent.futures.Future[decoding.Request[Any]],
) -> decoding.Request[Any]:
    """Waits for a thread that submits. Where its reader goes it does not begin, or else the request
    is cancelled once it is there."""
    try:
        return await asyncio.wrap_future(submitting)
    except asyncio.CancelledError:
        submitting.cancel()
        submitting.add_done_callback(cancel_result)
        raise


def cancel_result(submitted: concurrent.futures.Future[decoding.Request[Any]]) -> None:
    if not submitted.cancelled() and submitted.exception() is None:
        submitted.result().cancel()


async def quickly(size: int, work: Callable[..., T], *given: Any, **options: Any) -> T:
    """Calls a function on texts of so many characters, in a thread if they are many."""
    if size <= LARGE:
        return work(*given, **options)
    return await asyncio.to_thread(work, *given, **options)


async def together(waits: Sequence[Awaitable[T]]) -> list[T]:
    """All results; after the first error the others are cancelled."""
    if len(waits) == 1:
        return [await waits[0]]
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
