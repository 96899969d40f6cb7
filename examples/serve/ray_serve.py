"""A Ray Serve deployment: each replica has an engine of its own, and Ray divides the requests.

    pip install decoding[serve] "ray[serve]"
    serve run examples.serve.ray_serve:app
    curl http://127.0.0.1:8000/translate -d '{"q": "Guten Morgen!"}'

A replica takes as many requests at once as its engine has room for: @serve.batch would wait for the
longest of a batch.
"""

from __future__ import annotations

import os
from typing import Any

from ray import serve  # pyright: ignore[reportMissingImports]

import decoding
from decoding.serving import create_app

MODEL = os.environ.get("MODEL", "models/demo")


def build() -> Any:
    """The ASGI application of a replica, made in its own process."""
    return create_app(decoding.Engine(decoding.load(MODEL)))


replica = serve.ingress(build)()
app = serve.deployment(num_replicas=2, max_ongoing_requests=512)(replica).bind()
