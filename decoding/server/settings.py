"""What a server allows, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Limits are those of each model, but for body_bytes and what follows it.

    max_queue: requests that wait for room; further ones are answered with 429. max_queue_seconds:
    of waiting, after which a request is answered with 503. deadline: seconds that a request may
    take in all. max_new_tokens, max_beams, max_results: of one request; None: what the model has
    room for. max_texts: in one body. api_keys: one of which each request must show; none: anyone.
    page: whether `GET /` shows the page.

    Raises ValueError for an empty key, which everybody would show.
    """

    max_queue: int = 256
    max_queue_seconds: float = 30.0
    deadline: float = 600.0
    max_new_tokens: int | None = None
    max_beams: int = 16
    max_results: int = 16
    max_texts: int = 512
    body_bytes: int = 1 << 20
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    metrics_prefix: str = "decoding"
    page: bool = True

    def __post_init__(self) -> None:
        if not all(self.api_keys):
            raise ValueError("an API key must not be empty: leave it out, or name one")
