"""What a server says of itself: alive, ready, its version, its models, its metrics."""

from __future__ import annotations

from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

import decoding
from decoding.server.endpoint import Call, Reply
from decoding.server.errors import ApiError
from decoding.server.served import Served


async def health(call: Call) -> Reply:
    """Alive: 503 once an engine has failed, which only a new process can mend."""
    failure = call.site.failure
    if failure is not None:
        raise ApiError(503, f"an engine has failed: {failure}", code="engine")
    return Reply({"status": "ok"})


async def ready(call: Call) -> Reply:
    """Whether requests should be sent here."""
    if call.site.draining:
        raise ApiError(503, "the server is shutting down", code="shutdown", retry_after=5)
    for served in call.site.models.values():
        served.gate.check()
    return await health(call)


async def version(call: Call) -> Reply:
    return Reply({"version": decoding.__version__})


async def metrics(call: Call) -> Reply:
    found = generate_latest(call.site.metrics.registry).decode()
    return Reply(found, type=CONTENT_TYPE_LATEST)


async def models(call: Call) -> Reply:
    listed = [described(each, call.site.began) for each in call.site.models.values()]
    return Reply({"object": "list", "data": listed})


async def model(call: Call) -> Reply:
    served = call.site.named(call.scope["path_params"]["name"], lambda _: True, "")
    return Reply(described(served, call.site.began))


def described(served: Served, began: int) -> dict[str, Any]:
    does = {"complete": served.completes, "translate": served.translates}
    return {
        "id": served.name,
        "object": "model",
        "created": began,
        "owned_by": "decoding",
        "max_model_len": served.positions,
        "capabilities": [name for name, able in does.items() if able] or ["embed"],
    }
