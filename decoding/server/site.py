"""All that a server serves: its models by name, its metrics and its log, how it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import decoding
from decoding.server.access_log import AccessLog
from decoding.server.errors import ApiError
from decoding.server.metrics import Metrics
from decoding.server.served import Served
from decoding.server.settings import Settings

DEFAULT = "default"  # the name of a model that has none


class Site:
    """models: by name. began: when it started, in seconds since 1970. characters: of all texts that
    were translated since."""

    def __init__(
        self, models: Mapping[str, decoding.Engine | decoding.Model], settings: Settings
    ) -> None:
        if not models:
            raise ValueError("a server needs at least one model")
        self.settings = settings
        self.models = {name: Served(name, model, settings) for name, model in models.items()}
        self.metrics = Metrics(settings.metrics_prefix)
        self.metrics.watch(list(self.models.values()))
        self.log, self.characters = AccessLog(), 0
        self.began, self.draining = int(time.time()), False

    @property
    def failure(self) -> BaseException | None:
        """Why an engine has failed; None while all work."""
        engines = [each.engine for each in self.models.values() if each.engine is not None]
        return next((engine.failure for engine in engines if engine.failure is not None), None)

    def generator(self, name: str | None) -> Served:
        """The model of that name, which goes on with texts."""
        return self.named(
            name,
            lambda each: each.completes,
            "does not go on with texts: use POST /translate, or /v1/embeddings for an encoder",
        )

    def translator(self, name: str | None) -> Served:
        return self.named(name, lambda each: each.translates, "does not translate")

    def embedder(self, name: str | None) -> Served:
        return self.named(name, lambda each: each.engine is None, "makes no embeddings")

    def named(self, name: str | None, supports: Callable[[Served], bool], lacks: str) -> Served:
        """The model of that name, or where the client names none the first that supports what it
        asks for. Raises ApiError 404 for an unknown one, 400 for one that does not."""
        if name is None:
            found = next(filter(supports, self.models.values()), None)
            if found is None:
                raise ApiError(404, f"no model of this server is for that: each {lacks}")
            return found
        if name not in self.models:
            known = ", ".join(self.models)
            raise ApiError(
                404,
                f"there is no model {name[:64]!r}, only {known}",
                param="model",
                code="model_not_found",
            )
        if not supports(self.models[name]):
            raise ApiError(400, f"the model {name!r} {lacks}", param="model")
        return self.models[name]

    def close(self) -> None:
        """Ends the engines, and with them what runs."""
        self.draining = True
        for each in self.models.values():
            if each.engine is not None:
                each.engine.close(drain=False)
        self.log.flush()
