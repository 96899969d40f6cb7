"""The ASGI application: which path is answered by whom."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import decoding
from decoding.generation.option_names import suggestion
from decoding.server import page, status
from decoding.server.endpoint import Call, Endpoint, Handler, Reply
from decoding.server.errors import ApiError, deepl_body, libretranslate_body
from decoding.server.openai import chat, completions, embeddings, tokens
from decoding.server.settings import Settings
from decoding.server.site import DEFAULT, Site
from decoding.server.translating import deepl, libretranslate

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
    app = App(routes=routes(site), middleware=middleware(site.settings), lifespan=lifespan)
    app.state.site = site
    return app


class App(Starlette):
    """Goes to an endpoint at once where nothing stands before it: Starlette's own way there costs
    as much as the rest of a short request."""

    def __init__(self, *, routes: Sequence[Route], **options: Any) -> None:
        super().__init__(routes=routes, **options)
        self._direct = {
            (method, route.path): route.endpoint
            for route in routes
            for method in route.methods or ()
            if not (route.param_convertors or options["middleware"])
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint: ASGIApp = super().__call__
        if scope["type"] == "http" and not scope.get("root_path"):  # not mounted
            endpoint = self._direct.get((scope["method"], scope["path"]), endpoint)
        await endpoint(scope, receive, send)


def routes(site: Site) -> list[Route]:
    def get(path: str, handler: Handler, **options: Any) -> Route:
        return Route(path, Endpoint(site, path, handler, **options), methods=["GET"])

    def post(path: str, handler: Handler, **options: Any) -> Route:
        return Route(path, Endpoint(site, path, handler, **options), methods=["POST"])

    own = [
        *([get("/", page.page)] if site.settings.page else []),
        post("/v1/completions", completions.complete),
        post("/v1/chat/completions", chat.chat),
        post("/v1/embeddings", embeddings.embed),
        post("/tokenize", tokens.tokenize),
        post("/detokenize", tokens.detokenize),
        post("/translate", libretranslate.translate, **LIBRETRANSLATE),
        get("/languages", libretranslate.languages, **LIBRETRANSLATE),
        get("/frontend/settings", libretranslate.frontend_settings, **LIBRETRANSLATE),
        post("/v2/translate", deepl.translate, **DEEPL),
        get("/v2/languages", deepl.languages, **DEEPL),
        get("/v2/usage", deepl.usage, **DEEPL),
        get("/v1/models", status.models),
        get("/v1/models/{name:path}", status.model),
        get("/health", status.health),
        get("/ready", status.ready),
        get("/version", status.version),
        get("/metrics", status.metrics),
    ]
    others = Endpoint(site, "other", nowhere({route.path: route.methods or set() for route in own}))
    return [*own, Route("/{path:path}", others)]


def nowhere(known: Mapping[str, set[str]]) -> Handler:
    """Answers what no path does. known: the methods of each path."""

    async def answer(call: Call) -> Reply:
        path, method = f"/{call.scope['path_params']['path']}"[:64], call.scope["method"]
        if path in known:
            allow = ", ".join(sorted(known[path]))
            raise ApiError(405, f"{path} takes {allow}, not {method[:16]}", allow=allow)
        near = suggestion(path, known)
        raise ApiError(404, f"there is no path {path!r}{near}", code="unknown_path")

    return answer


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
