"""A tokenizer that the caller gives to load(), beside a model that brings none."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


class TokenizerFiles:
    """The directory of a tokenizer's files.

    tokenizer: a directory, or a tokenizer of transformers, whose files are written to a temporary
    one: what the library reads is then its own tokenizer of the same vocabulary. Raises TypeError
    for anything else, FileNotFoundError where there is no such directory.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._written: TemporaryDirectory[str] | None = None
        if isinstance(tokenizer, (str, os.PathLike)):
            self.directory = Path(tokenizer).absolute()
            if not self.directory.is_dir():
                raise FileNotFoundError(f"tokenizer={os.fspath(tokenizer)!r} is no directory")
        elif hasattr(tokenizer, "save_pretrained"):
            self._written = TemporaryDirectory(prefix="decoding-tokenizer-")
            self.directory = Path(self._written.name)
            tokenizer.save_pretrained(self.directory)
        else:
            raise TypeError(
                "tokenizer must be a tokenizer of transformers or a directory of one, got "
                f"{type(tokenizer).__name__}"
            )
