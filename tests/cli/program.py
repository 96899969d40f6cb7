"""The program `decoding` in this process: its arguments in, its status and what it says out."""

from __future__ import annotations

import io
import sys
from typing import NamedTuple

import pytest

import decoding
from decoding.cli.main import main


class Said(NamedTuple):
    """What a run has left."""

    status: int
    out: str
    err: str


class Program:
    """Runs commands. model: what `--model` gives, whatever it names; None: what is there.

    loaded: the arguments of the last load().
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[bytes]
    ) -> None:
        """capture: capsysbinary."""
        self.monkeypatch, self._capture = monkeypatch, capture

    def __call__(
        self,
        *words: str,
        source: str | bytes | io.BytesIO = b"",
        model: decoding.Model | None = None,
    ) -> Said:
        source = source.encode() if isinstance(source, str) else source
        stream = io.BytesIO(source) if isinstance(source, bytes) else source
        with self.monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(stream))
            if model is not None:
                patch.setattr(decoding, "load", lambda *_, **__: model)
            try:
                status = main(words)
            except SystemExit as left:
                status = int(left.code or 0)
        out, err = self._capture.readouterr()
        return Said(status, out.decode(), err.decode())


def one_line(text: str) -> bool:
    return text.count("\n") == 1 and text.endswith("\n")
