"""decoding.Engine: requests that join and leave one engine between any two steps.

create_app() puts it behind HTTP, with Settings: see decoding.server, which needs the extra `serve`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decoding.server.app import create_app as create_app
    from decoding.server.settings import Settings as Settings

_MODULES = {"create_app": "decoding.server.app", "Settings": "decoding.server.settings"}


def __getattr__(name: str) -> Any:
    """Imports what needs the extra on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
