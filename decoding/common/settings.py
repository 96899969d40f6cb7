"""A checkpoint's settings: a dict whose entries are attributes too, as in transformers."""

from __future__ import annotations

from typing import Any


class Settings(dict[str, Any]):
    """config.num_layers is config["num_layers"]. What a dict has (keys, items, ...) is the dict's.

    unset: names that are None where the file does not have them.
    """

    unset: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in self.unset:
            return None
        raise AttributeError(f"the checkpoint's file has no {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(f"the checkpoint's file has no {name!r}")
        del self[name]

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in self if name.isidentifier())})

    def to_dict(self) -> dict[str, Any]:
        """A plain copy."""
        return dict(self)
