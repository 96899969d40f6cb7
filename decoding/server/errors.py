"""What a client is told when something is wrong, in the form that its API has."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import decoding
from decoding.common.progress import Cancelled
from decoding.generation.config import OPTIONS

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
Body = Callable[["ApiError"], dict[str, Any]]


class ApiError(Exception):
    """An answer that is an error. retry_after: seconds, where another try may succeed. allow: the
    methods of a path that was asked by another one."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry_after = None if retry_after is None else max(1, math.ceil(retry_after))
        self.allow = allow

    @property
    def headers(self) -> dict[str, str]:
        named = {"retry-after": self.retry_after, "allow": self.allow}
        return {name: str(value) for name, value in named.items() if value is not None}


class Reading:
    """Within it, what the library says about values is about the client's: elsewhere it is a
    mistake of the server's own."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (ValueError, TypeError, NotImplementedError, OverflowError)):
            message = str(error)
            named = re.match(r"(\w+)( must be )?", message)
            param = named[1] if named and (named[2] or named[1] in OPTIONS) else None
            raise ApiError(400, message, param=param) from error


reading = Reading()


def as_api_error(error: BaseException) -> ApiError:
    """What the library's exceptions mean to a client."""
    if isinstance(error, ApiError):
        return error
    message = str(error)
    if isinstance(error, TimeoutError):
        return ApiError(504, message, code="deadline")
    if isinstance(error, Cancelled):  # by nobody else than a server that ends
        return ApiError(503, "the server is shutting down", code="shutdown", retry_after=5)
    if isinstance(error, decoding.Error):
        failed = message.startswith("the engine failed")
        return ApiError(503 if failed else 500, message, code="engine" if failed else "fault")
    return ApiError(500, "internal error; the server's log has more", code="internal")


def openai_body(error: ApiError) -> dict[str, Any]:
    kind = KINDS.get(error.status, "server_error")
    said = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    return {"error": said}


def libretranslate_body(error: ApiError) -> dict[str, Any]:
    return {"error": error.message}


def deepl_body(error: ApiError) -> dict[str, Any]:
    return {"message": error.message}
