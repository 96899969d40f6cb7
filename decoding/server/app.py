"""The ASGI application: which path is answered by whom."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

import decoding
from decoding.server import (
    chat,
    completions,
    deepl,
    embeddings,
    page,
    status,
    tokens,
    translation,
)
from decoding.server.endpoint import Endpoint, Handler
from decoding.server.errors import deepl_body, libretranslate_body
from decoding.server.settings import Settings
from decoding.server.site import DEFAULT, Site

LIBRETRANSLATE = {"body": libretranslate_body, "key_in_body": True, "unauthorised": 403}
DEEPL = {"body": deepl_body, "unauthorised": 403}
Models = decoding.Engine | decoding.Model | Mapping[str, decoding.Engine | decoding.Model]


def create_app(models: Models, settings: Settings | None = None) -> Starlette:
    """An ASGI application that serves models, for uvicorn and the like, or to be mounted in
    another one.

        app = decoding.serving.create_app(decoding.Engine(model))

    models: an Engine, or several by name; in place of an engine a Model that is an encoder alone.
    settings: a decoding.serving.Settings. Where the application ends, it closes the engines.

    Raises ValueError for no models.
    """
    if not isinstance(models, Mapping):
        models = {DEFAULT: models}
    site = Site(models, settings or Settings())
    app = Starlette(routes=routes(site), middleware=middleware(site.settings), lifespan=lifespan)
    app.state.site = site
    return app


def routes(site: Site) -> list[Route]:
    def get(path: str, handler: Handler, **options: Any) -> Route:
        return Route(path, Endpoint(site, path, handler, **options), methods=["GET"])

    def post(path: str, handler: Handler, **options: Any) -> Route:
        return Route(path, Endpoint(site, path, handler, **options), methods=["POST"])

    shown = [get("/", page.page)] if site.settings.page else []
    return [
        *shown,
        post("/v1/completions", completions.complete),
        post("/v1/chat/completions", chat.chat),
        post("/v1/embeddings", embeddings.embed),
        post("/tokenize", tokens.tokenize),
        post("/detokenize", tokens.detokenize),
        post("/translate", translation.translate, **LIBRETRANSLATE),
        get("/languages", translation.languages, **LIBRETRANSLATE),
        get("/frontend/settings", translation.frontend_settings, **LIBRETRANSLATE),
        post("/v2/translate", deepl.translate, **DEEPL),
        get("/v2/languages", deepl.languages, **DEEPL),
        get("/v1/models", status.models),
        get("/v1/models/{name:path}", status.model),
        get("/health", status.health),
        get("/ready", status.ready),
        get("/version", status.version),
        get("/metrics", status.metrics),
    ]


def middleware(settings: Settings) -> list[Middleware]:
    if not settings.cors_origins:
        return []
    origins = list(settings.cors_origins)
    return [
        Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    ]


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    try:
        yield
    finally:
        app.state.site.close()
